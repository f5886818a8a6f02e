"""Labels that stand beside a client's images: masks of the same name, or a table with numbers for each image.

<client>/images/0.jpg    with <client>/masks/0.png, the class of each pixel; or with a row `0.jpg,…` of
                         <client>/targets.csv
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from lit_fed.data.data_sets.base import PLACE, require
from lit_fed.data.data_sets.rows import as_numbers, read_rows
from lit_fed.errors import ConfigError
from lit_fed.system.files import require_file
from lit_fed.system.names import few

__all__ = ["FORMATS", "IMAGES", "MASKS", "TABLE", "check_masks", "mask_of", "read_masks", "read_targets"]

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP")
"""Formats of Pillow that a picture may have, whatever its name; PostScript would start Ghostscript."""

IMAGES, MASKS, TABLE = "images", "masks", "targets.csv"
LAYOUT = f"{PLACE}.layout"

CLASS_MODES = ("1", "L", "P")
"""Pillow modes whose pixels are one number of at most 8 bits: the class, also behind a palette."""

TURNED = (5, 6, 7, 8)
"""EXIF orientations that swap height and width."""

SHOWN = 4
"""Number of files that an error lists."""


def mask_of(image: Path) -> Path:
    """The mask of `<client>/images/NAME.jpg`, `<client>/masks/NAME.png`."""
    return image.parent.parent / MASKS / f"{image.stem}.png"


def check_masks(images: Sequence[Path], masks: Sequence[Path], *, may_lack: bool = False) -> None:
    """Refuse images without a mask, masks without an image, and names that are used twice.

    Args:
        images: all files in folders `images`.
        masks: all files in folders `masks`.
        may_lack: images may have no mask.

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
    lacking = [image for mask, image in wanted.items() if mask not in there and not may_lack]
    first = mask_of(lacking[0]) if lacking else ""
    require(not lacking, f"{few(lacking, SHOWN)}: without a mask {first}; add it, or move the image away")
    alone = sorted(there - wanted.keys())
    require(not alone, f"{few(alone, SHOWN)}: no image of this name in {IMAGES}; add it, or remove the mask")


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
        with Image.open(image, formats=FORMATS) as file:
            turned = file.getexif().get(0x0112) in TURNED
            size = file.size[::-1] if turned else file.size
        with Image.open(path, formats=FORMATS) as file:
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
        ConfigError: naming the images without a row, or file, row and column of what cannot be read.
    """
    clients = list(dict.fromkeys(image.parent.parent for image in images))
    for client in clients:
        say = "save a row for each image in it, with the columns file and one or more targets"
        require((client / TABLE).is_file(), f"{client / TABLE}: no such file; {say}, or give another {LAYOUT}")
    rows = read_rows([(str(client / TABLE), f"{LAYOUT} targets:") for client in clients])
    first, *columns = rows.frame.columns
    require(
        bool(columns) and bool(as_numbers(rows.frame.columns[1:].to_series()).isna().all()),
        f"{rows.source}: the first line is {','.join([first, *columns])!r}; it has to name the columns, such as "
        "file,weight",
    )
    found: dict[Path, int] = {}
    owner = [client for client, (_, size) in zip(clients, rows.files, strict=True) for _ in range(size)]
    for row, (client, name) in enumerate(zip(owner, rows.texts(first), strict=True)):
        image = client / IMAGES / name.strip()
        if found.setdefault(image, row) != row:
            raise rows.error(row, first, f"{name!r} is named a second time; remove a row")
    lacking = [image for image in images if image not in found]
    say = f"without a row in {TABLE} beside {IMAGES}; add it, or move the image away"
    require(not lacking, f"{few(lacking, SHOWN)}: {say}")
    alone = sorted(found.keys() - set(images))
    require(not alone, f"{few(alone, SHOWN)}: {TABLE} has a row, but there is no such image; add it, or remove the row")
    whole = all(rows.frame[name].dtype.kind in "iu" for name in columns)
    each = [rows.frame[name].to_numpy() if whole else rows.numbers(name).astype(np.float32) for name in columns]
    targets = np.stack(each, axis=1)[[found[image] for image in images]]
    return targets[:, 0] if targets.shape[1] == 1 else targets
