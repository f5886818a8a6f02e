"""Labels that stand beside a client's images: masks of the same name, or a table with numbers for each image.

<client>/images/0.jpg    with <client>/masks/0.png, the class of each pixel; or with a row `0.jpg,…` of
                         <client>/targets.csv
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from lit_fed.data.data_sets.base import require
from lit_fed.errors import ConfigError
from lit_fed.system.files import require_file

__all__ = ["IMAGES", "MASKS", "TABLE", "check_masks", "mask_of", "read_masks", "read_targets"]

IMAGES, MASKS, TABLE = "images", "masks", "targets.csv"

CLASS_MODES = ("1", "L", "P")
"""Pillow modes whose pixels are one number of at most 8 bits: the class, also behind a palette."""

TURNED = (5, 6, 7, 8)
"""EXIF orientations that swap height and width."""

SHOWN = 4
"""Number of files that an error lists."""


def mask_of(image: Path) -> Path:
    """The mask of `<client>/images/NAME.jpg`, `<client>/masks/NAME.png`."""
    return image.parent.parent / MASKS / f"{image.stem}.png"


def check_masks(images: Sequence[Path], masks: Sequence[Path]) -> None:
    """Refuse images without a mask, masks without an image, and names that are used twice.

    Args:
        images: all files in folders `images`.
        masks: all files in folders `masks`.

    Raises:
        ConfigError: naming the files.
    """
    wanted: dict[Path, Path] = {}
    for image in images:
        other = wanted.setdefault(mask_of(image), image)
        require(other == image, f"{image}: {other.name} would have the same mask, {mask_of(image).name}; rename one")
    for mask in masks:
        require(mask.suffix == ".png", f"{mask}: a mask has to be a .png file; other formats change classes")
    there = set(masks)
    lacking = [image for mask, image in wanted.items() if mask not in there]
    require(
        not lacking,
        f"{_some(lacking)}: without a mask {mask_of(lacking[0]) if lacking else ''}; add it, or move the image away",
    )
    alone = sorted(there - wanted.keys())
    require(not alone, f"{_some(alone)}: no image of this name in {IMAGES}; add it, or remove the mask")


def read_masks(images: Sequence[Path], image_size: int) -> np.ndarray:
    """The masks of images, scaled and cropped as these are, but with the class of the nearest pixel.

    Args:
        images: the images, whose masks exist.
        image_size: height and width of a mask, see `ImageFolder`.

    Returns:
        Classes [n, image_size, image_size] uint8.

    Raises:
        ConfigError: naming a mask that holds colours, or whose size is not that of its image.
    """
    masks = np.empty((len(images), image_size, image_size), np.uint8)
    with ThreadPoolExecutor() as pool:
        for row, mask in enumerate(pool.map(partial(_read_mask, image_size=image_size), images)):
            masks[row] = mask
    return masks


def _read_mask(image: Path, image_size: int) -> np.ndarray:
    from PIL import Image, ImageOps

    path = mask_of(image)
    require_file(path, "remove it, or restore the mask")
    try:
        with Image.open(image) as file:
            turned = file.getexif().get(0x0112) in TURNED
            size = file.size[::-1] if turned else file.size
        with Image.open(path) as file:
            mode, found = file.mode, file.size
            usable = mode in CLASS_MODES and found == size
            classes = np.asarray(file).astype(np.uint8) if usable else np.zeros((1, 1), np.uint8)
    except Exception as error:  # decoders raise many types on damaged files
        raise ConfigError(
            f"{path}: cannot be read as a mask ({error or type(error).__name__}); replace or remove it"
        ) from error
    require(
        mode in CLASS_MODES,
        f"{path}: its pixels are colours or have more than 8 bits (mode {mode}); save the class of each pixel, 0, 1, "
        "…, as an image with one channel of 8 bits, Image.fromarray(classes.astype('uint8'))",
    )
    require(
        found == size,
        f"{path}: has {found[0]} x {found[1]} pixels, and {image.parent.name}/{image.name} has {size[0]} x {size[1]}; "
        "save it in the size of the image",
    )
    fitted = ImageOps.fit(Image.fromarray(classes), (image_size, image_size), Image.Resampling.NEAREST)
    return np.asarray(fitted)


def read_targets(images: Sequence[Path]) -> np.ndarray:
    """The numbers of each image from the file `targets.csv` of its client.

    Its first line names the columns: the name of an image in `images`, and one or more numbers. Columns that hold whole
    numbers alone, for all clients, are integers.

    Args:
        images: the images, client by client.

    Returns:
        Targets [n] with one column, [n, L] with more; int64 or float32.

    Raises:
        ConfigError: naming the images without a row, or file, line and column of what cannot be read.
    """
    clients = list(dict.fromkeys(image.parent.parent for image in images))
    tables = {client: _read_table(client / TABLE) for client in clients}
    columns = {client: tuple(table.pop(COLUMNS)) for client, table in tables.items()}
    for client in clients:
        require(
            columns[client] == columns[clients[0]],
            f"{client / TABLE}: the columns {', '.join(columns[client])} are not those of {clients[0] / TABLE}, "
            f"{', '.join(columns[clients[0]])}; give all clients the same columns in one order",
        )
    lacking = [image for image in images if image.name not in tables[image.parent.parent]]
    require(
        not lacking,
        f"{_some(lacking)}: without a row in {TABLE} beside {IMAGES}; add it, or move the image away",
    )
    rows = [tables[image.parent.parent].pop(image.name) for image in images]
    alone = [client / IMAGES / name for client, table in tables.items() for name in table]
    require(not alone, f"{_some(alone)}: {TABLE} has a row, but there is no such image; add it, or remove the row")
    whole = all(text.removeprefix("-").isdecimal() for row in rows for text in row)
    targets = np.array(rows).astype(np.int64 if whole else np.float32)
    return targets[:, 0] if targets.shape[1] == 1 else targets


COLUMNS = ""
"""Key of the names of the columns, which no file has."""


def _read_table(path: Path) -> dict[str, list[str]]:
    """The texts of each row by the image's name, and under `COLUMNS` the names of the columns."""
    require_file(
        path, f"save a row for each image in it, with the columns file and one or more targets, or give {OTHER}"
    )
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return dict(_rows(path, file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); save it as UTF-8 with commas") from error


OTHER = "another --data.dataset.layout"


def _rows(path: Path, file: IO[str]) -> Iterator[tuple[str, list[str]]]:
    reader = csv.reader(file)
    header = next(reader, [])
    names, known = [one.strip() for one in header[1:]], set[str]()
    require(
        bool(names) and not any(map(_is_number, names)),
        f"{path}: the first line is {','.join(header)!r}; it has to name the columns, such as file,weight",
    )
    yield COLUMNS, names
    for row in filter(None, reader):
        at, name = f"{path}: line {reader.line_num}", row[0].strip()
        require(len(row) == len(header), f"{at} has {len(row)} values for {len(header)} columns; correct it")
        require(bool(name) and name not in known, f"{at} names the image {name!r}, empty or a second time; correct it")
        known.add(name)
        for column, text in zip(names, row[1:], strict=True):
            require(_is_number(text), f"{at}: column {column} is {text!r}, which is no number; correct it")
        yield name, [text.strip() for text in row[1:]]


def _is_number(text: str) -> bool:
    try:
        return bool(np.isfinite(float(text)))
    except ValueError:
        return False


def _some(paths: Sequence[Path]) -> str:
    shown = ", ".join(map(str, paths[:SHOWN]))
    return shown if len(paths) <= SHOWN else f"{shown} and {len(paths) - SHOWN} more"
