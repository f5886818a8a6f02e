"""A user's images: folders of PNG and JPEG files with classes, masks or numbers.

layout clients    ROOT/<client>/<class>/*.png, or ROOT/seen/<client>/<class>/*.png beside ROOT/unseen/<client>/…
layout classes    ROOT/<class>/*.png, divided among clients by a partition
layout masks      ROOT/<client>/images/*.png and ROOT/<client>/masks/*.png; also in seen and unseen
layout targets    ROOT/<client>/images/*.png and ROOT/<client>/targets.csv; also in seen and unseen
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Literal, NamedTuple

import numpy as np

from lit_fed.data.data_sets.base import (
    Labels,
    Names,
    Normalisation,
    PooledDataSet,
    Samples,
    names_of,
    require,
    say_resized,
)
from lit_fed.data.data_sets.image_labels import (
    FORMATS,
    IMAGES,
    MASKS,
    TABLE,
    check_masks,
    mask_of,
    read_masks,
    read_targets,
)
from lit_fed.errors import ConfigError, check_settings
from lit_fed.system.files import given_path, require_file, whole_file

__all__ = ["SUFFIXES", "ImageFolder", "visible_entries"]

SUFFIXES = (".png", ".jpg", ".jpeg")
OF_THE_SYSTEM = {"thumbs.db", "desktop.ini"}
"""Files of operating systems to ignore, besides hidden files."""

MODES = {1: "L", 3: "RGB"}
"""Pillow mode for each number of channels."""

DEEP = ("I", "F")
"""Prefixes of Pillow modes with more than 8 bits per channel."""

MOST_PIXELS = 2**27
"""Upper limit of the pixels announced by a file's header, to protect memory: 134 million."""

READ_AT_ONCE = 512
"""Number of images decoded concurrently."""

CLIENTS, CLASSES = "ROOT/<client>/<class>/*.png", "ROOT/<class>/*.png"
BESIDE = {
    "masks": f"ROOT/<client>/{IMAGES}/*.png with ROOT/<client>/{MASKS}/*.png",
    "targets": f"ROOT/<client>/{IMAGES}/*.png with ROOT/<client>/{TABLE}",
}
"""Layouts whose labels stand beside the images."""

Layout = Literal["clients", "classes", "masks", "targets"]


class _Found(NamedTuple):
    """The files of a folder, with labels and owners from their paths."""

    paths: list[Path]
    labels: np.ndarray | None = None  # [n] int64, or targets [n] or [n, L]; None: masks, which are read later
    class_names: tuple[str, ...] | None = None
    owner: np.ndarray | None = None  # [n] int64
    names: list[str] | None = None  # of the owners
    unseen: tuple[str, ...] = ()  # owners held out of training
    bare: list[tuple[Path, int]] = []


@dataclass(frozen=True)
class ImageFolder(PooledDataSet):
    """Images from a folder, x [n, channels, image_size, image_size], with classes, masks or numbers.

    Each image is rotated by its EXIF tag, scaled until its shorter side is `image_size`, and cropped to the central
    square. Transparency is dropped. Pixels are in 0..1, normalised if `mean` and `std` are given. Files are decoded
    once: up to `memory_gb` images are held as float32, beyond that as bytes in a file that is read block by block.

    Args:
        root: the folder.
        layout: `clients`: ROOT/<client>/<class>/ (or ROOT/seen/<client>/<class>/ and ROOT/unseen/<client>/<class>/,
            whose clients are held out of training); `classes`: ROOT/<class>/, divided by a partition; `masks`:
            ROOT/<client>/images/ and masks/ of one-channel .png files of the same names, whose pixels are classes;
            `targets`: ROOT/<client>/images/ and a file targets.csv with a file name and numbers in each row.
        image_size: height and width of the inputs in pixels.
        channels: 3 for colour, 1 for grey.
        mean: mean of each channel in 0..1, subtracted; null: pixels stay in 0..1.
        std: standard deviation of each channel.
        classes: class folders in the order of their labels; null: all, sorted by name, or as numbers if all are. Of
            masks: names of the pixel values 0, 1, ….
        memory_gb: GB (10⁹ bytes) of float32 images up to which they are held in memory.
        cache_dir: folder that keeps decoded images for further runs; null: none, and a file beyond `memory_gb` lies in
            the system's temporary folder (TMPDIR) until the process ends.
        labels: what integers of targets.csv mean, as in `ClientFolder`: `auto`, `multilabel` or `regression`.
    """

    root: str = ""
    layout: Layout = "clients"
    image_size: int = 32
    channels: Literal[1, 3] = 3
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    classes: Names | None = None
    memory_gb: float = 4.0
    cache_dir: str | None = None
    labels: Labels = "auto"  # type: ignore[misc]  # the base promises one for the whole class

    def __post_init__(self) -> None:
        option = "--data.dataset"
        object.__setattr__(self, "classes", None if self.classes is None else names_of(self.classes))
        channels = self.channels in MODES, "1 (grey) or 3 (colours)"
        check_settings(self, prefix=option, image_size=f"[1, {2**14}]", channels=channels, memory_gb=">= 0")
        for name, values, other in (("mean", self.mean, self.std), ("std", self.std, self.mean)):
            require(
                (values is None) == (other is None) and (values is None or len(values) == self.channels),
                f"{option}.{name} is {values}; give mean and std with a number for each of {self.channels} channels, "
                "or neither",
            )
        require(self.std is None or min(self.std) > 0, f"{option}.std is {self.std}; give numbers above 0")
        twice = len(set(self.classes or ())) < len(self.classes or ())
        require(self.classes != () and not twice, f"{option}.classes is {self.classes}; give each folder once, or null")
        numbers = self.layout == "targets"
        require(self.classes is None or not numbers, f"{option}.classes: targets are numbers; leave it out")
        require(self.labels == "auto" or numbers, f"{option}.labels is for layout targets; leave it out")

    @property
    def normalisation(self) -> Normalisation | None:  # type: ignore[override]
        """Constants of the pixels' normalisation; None: not normalised."""
        return None if self.mean is None or self.std is None else Normalisation(self.mean, self.std)

    def prepare(self) -> None:
        """Decode the files into `cache_dir`, if given."""
        if self.cache_dir is not None:
            self._pixels(self._find().paths)

    def load(self) -> Samples:
        """All images as uint8, sorted by client and class; splits convert them to float32."""
        return self._samples(self._find())

    def later(self) -> Samples:
        """The same of clients that come later: pictures beside the classes, or without a mask, are test samples."""
        found = self._find(later=True)
        samples, bare = self._samples(found), np.array([owner for _, owner in found.bare], dtype=np.int64)
        labelled = np.arange(len(samples.x)) < len(samples.y)
        y = np.concatenate([samples.y, np.zeros((len(bare), *samples.y.shape[1:]), samples.y.dtype)])
        assert found.owner is not None
        owner = np.append(found.owner, bare)
        return samples._replace(y=y, owner=owner, split=np.where(labelled, 0, 2), labelled=labelled)

    def _samples(self, found: _Found) -> Samples:
        paths = [*found.paths, *(path for path, _ in found.bare)]
        x = self._pixels(paths)
        y = read_masks(found.paths, self.image_size) if found.labels is None else found.labels
        root = given_path(self.root, "--data.dataset.root")
        files = np.array([path.relative_to(root).as_posix() for path in paths], dtype=object)
        return Samples(x, y, found.owner, found.names, found.class_names, unseen=found.unseen, files=files)

    # ------------------------------------------------------------------ finding files
    def _find(self, *, later: bool = False) -> _Found:
        require(bool(self.root), "ImageFolder: root is not set; pass --data.dataset.root FOLDER")
        root = given_path(self.root, "--data.dataset.root")
        require(root.is_dir(), f"{root}: no such folder; correct --data.dataset.root")
        if self.layout == "classes":
            classes = {one.name: _pictures_in(one) for one in _folders(root, CLASSES, self.layout)}
            class_names = self._class_names([classes], root)
            return _Found(*_listed([classes], class_names)[:2], class_names)
        parts, layout = [root / "seen", root / "unseen"] if (root / "seen").is_dir() else [root], self._says
        each = [_folders(part, layout, self.layout, alone=not later) if part.is_dir() else [] for part in parts]
        require(bool(each[0]), f"{parts[0]}: no client folder in it; images are expected as {layout}")
        clients = [one for part in each for one in part]
        names = [one.name for one in clients]
        for name in names:
            require(names.count(name) == 1, f"{root}: client {name!r} is both seen and unseen; remove one of them")
        unseen = tuple(names[len(each[0]) :])
        if self.layout in BESIDE:
            return self._beside(clients, later=later)._replace(names=names, unseen=unseen)
        found = [
            {one.name: _pictures_in(one) for one in _folders(client, CLIENTS, self.layout, alone=not later)}
            for client in clients
        ]
        bare = [
            (path, number)
            for number, client in enumerate(clients if later else [])
            for path in _pictures_in(client, beside_classes=True)
        ]
        class_names = self._class_names(found, root, may_lack=bool(bare))
        paths, labels, owner = _listed(found, class_names)
        without_class = {number for _, number in bare}
        for number, (client, pictures) in enumerate(zip(clients, found, strict=True)):
            require(
                number in without_class or any(pictures.values()),
                f"{client}: no image of a class; add {class_names[0]}/*.png, or remove it",
            )
        return _Found(paths, labels, class_names, owner, names, unseen, bare)

    @property
    def _says(self) -> str:
        """The folders of the layout, for messages."""
        return BESIDE.get(self.layout, CLIENTS if self.layout == "clients" else CLASSES)

    def _beside(self, clients: list[Path], *, later: bool = False) -> _Found:
        """Images of clients, with masks or targets beside them; of later clients, those without one are unlabelled."""
        found, masks = [], []
        for client in clients:
            # a later client may have images alone; a folder of another name may hold its masks
            bare = later and visible_entries(client) == [client / IMAGES]
            for name in (IMAGES, MASKS) if self.layout == "masks" and not bare else (IMAGES,):
                require(
                    (client / name).is_dir(), f"{client}: no folder {name}; layout {self.layout} reads {self._says}"
                )
            found.append(_pictures_in(client / IMAGES))
            require(bool(found[-1]), f"{client / IMAGES}: no image of this client; add some, or remove the folder")
            masks += _pictures_in(client / MASKS) if self.layout == "masks" and not bare else []
        there = set(masks)
        each = [(path, owner) for owner, pictures in enumerate(found) for path in pictures]
        if self.layout == "masks":
            check_masks([path for path, _ in each], masks, may_lack=later)
        unlabelled = [one for one in each if later and mask_of(one[0]) not in there]
        each = [one for one in each if not later or mask_of(one[0]) in there]
        paths = [path for path, _ in each]
        targets = read_targets(paths) if self.layout == "targets" else None
        names = None if self.classes is None else names_of(self.classes)
        return _Found(paths, targets, names, np.array([owner for _, owner in each], dtype=np.int64), bare=unlabelled)

    def _class_names(
        self, found: list[dict[str, list[Path]]], root: Path, *, may_lack: bool = False
    ) -> tuple[str, ...]:
        """Class names by label; unknown folders, and unless `may_lack` classes without images, are refused."""
        held = {name for client in found for name, pictures in client.items() if pictures}
        there = {name for client in found for name in client}
        require(
            may_lack or bool(held),
            f"{root}: no image ({', '.join(SUFFIXES)}) in it; expected are {CLIENTS} or {CLASSES}",
        )
        require(
            not {IMAGES, MASKS} <= there or self.classes is not None,
            f"{root}: the folders {IMAGES} and {MASKS} would be classes; give --data.dataset.layout masks",
        )
        if self.classes is not None:
            unknown = sorted(there - set(self.classes))
            known = ", ".join(self.classes)
            require(not unknown, f"{root}: {unknown[:1]} is not in the classes {known}; rename, or remove the folder")
            return names_of(self.classes)
        empty = sorted(there - held)
        require(not empty, f"{root}: no image of class {empty[:1]}; add some, or remove the folder")
        numbers = all(name.isascii() and name.isdecimal() for name in held)
        class_names = tuple(sorted(held, key=int) if numbers else sorted(held))
        require(
            len(class_names) > 1,
            f"{root}: only one class, {class_names[0]!r}; add a second, check "
            f"--data.dataset.layout ({self.layout}), or list the classes in --data.dataset.classes",
        )
        return class_names

    # ------------------------------------------------------------------ decoding
    def _pixels(self, paths: list[Path]) -> np.ndarray:
        """Pixels [n, channels, height, width] uint8: an array, or a memory-mapped file."""
        shape = (len(paths), self.channels, self.image_size, self.image_size)
        num_pixels = int(np.prod(shape))
        beyond = 4 * num_pixels > self.memory_gb * 1e9
        if self.cache_dir is not None:
            kept = self._kept(paths, num_pixels)
            return np.memmap(kept, np.uint8, "r", shape=shape) if beyond else np.fromfile(kept, np.uint8).reshape(shape)
        if beyond:
            try:
                with tempfile.TemporaryFile() as file:
                    self._write(paths, file)
                    return np.memmap(file, np.uint8, "r", shape=shape)
            except OSError as error:
                raise ConfigError(
                    f"{num_pixels / 1e9:.3g} GB of decoded images cannot be stored in {tempfile.gettempdir()} "
                    f"({error.strerror or error}); free space, or give another folder by TMPDIR or "
                    "--data.dataset.cache_dir, a smaller --data.dataset.image_size or a larger memory_gb"
                ) from error
        x = np.empty(shape, np.uint8)
        for row, picture in enumerate(_decoded(paths, self.image_size, self.channels)):
            x[row] = picture
        return x

    def _kept(self, paths: list[Path], num_pixels: int) -> Path:
        """The file of these images in `cache_dir`, written if missing; concurrent writers are safe."""
        folder = given_path(str(self.cache_dir), "--data.dataset.cache_dir")
        digest = hashlib.blake2b(f"{self.channels} {self.image_size}".encode(), digest_size=16)
        for path in paths:
            about = path.stat()
            digest.update(f"\n{path.absolute()} {about.st_size} {about.st_mtime_ns}".encode())
        target = folder / f"pictures-{digest.hexdigest()}.uint8"
        if not target.is_file() or target.stat().st_size != num_pixels:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"--data.dataset.cache_dir {folder} cannot be made ({error.strerror}); give another folder"
                ) from error
            own = target.with_suffix(f".{socket.gethostname()}-{os.getpid()}")
            with whole_file(own) as file:
                self._write(paths, file)
            own.replace(target)
        return target

    def _write(self, paths: list[Path], file: IO[bytes]) -> None:
        for picture in _decoded(paths, self.image_size, self.channels):
            file.write(picture.tobytes())
        file.flush()


def _decoded(paths: Sequence[Path], image_size: int, channels: int) -> Iterator[np.ndarray]:
    """Decode images to uint8 [channels, image_size, image_size] in threads, in the order of the files.

    A line says at the end if some are scaled.

    Args:
        paths: the files.
        image_size: height and width, see `ImageFolder`.
        channels: 3 for colour, 1 for grey.

    Raises:
        ConfigError: naming a file that is not an image with 8 bits per channel.
    """
    sizes = []
    with ThreadPoolExecutor() as pool:
        for lo in range(0, len(paths), READ_AT_ONCE):
            some = partial(_decode, image_size=image_size, mode=MODES[channels])
            for picture, size in pool.map(some, paths[lo : lo + READ_AT_ONCE]):
                sizes.append(size)
                yield picture
    say_resized(sizes, (image_size, image_size))


def _decode(path: Path, image_size: int, mode: str) -> tuple[np.ndarray, tuple[int, int]]:
    """Pixels of an image, and its width and height before it is scaled."""
    from PIL import Image, ImageOps

    require_file(path, "remove it, or restore the image")
    try:
        with Image.open(path, formats=FORMATS) as file:
            stored = file.mode
            announced = file.width * file.height  # by the header, before memory is allocated
            require(announced <= MOST_PIXELS, f"{announced:,} pixels are announced; at most {MOST_PIXELS:,} are read")
            picture = ImageOps.exif_transpose(file)
            size = picture.size
            if not stored.startswith(DEEP):
                if stored == "P":  # palettes may hold transparency
                    picture = picture.convert("RGBA")
                picture = ImageOps.fit(picture.convert(mode), (image_size, image_size), Image.Resampling.BILINEAR)
    except Exception as error:  # decoders raise many types on damaged files
        raise ConfigError(
            f"{path}: cannot be read as an image ({error or type(error).__name__}); replace or remove it"
        ) from error
    require(
        not stored.startswith(DEEP), f"{path}: its pixels have more than 8 bits (mode {stored}); convert it to 8 bits"
    )
    pixels = np.asarray(picture)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1), size


def visible_entries(folder: Path) -> list[Path]:
    """Sorted entries of a folder without hidden and system files."""
    entries = (one for one in folder.iterdir() if not one.name.startswith("."))
    return sorted(one for one in entries if one.name.lower() not in OF_THE_SYSTEM)


def _folders(folder: Path, layout: str, name: str, *, alone: bool = True) -> list[Path]:
    """The subfolders of a folder; files are refused if folders are to be alone, else left out."""
    entries = [entry for entry in visible_entries(folder) if alone or entry.is_dir()]
    for entry in entries:
        picture = entry.suffix.lower() in SUFFIXES
        other = f"; {CLASSES} is --data.dataset.layout classes" if picture and name == "clients" else ""
        other = other or ("; give --data.dataset.layout targets" if entry.name == TABLE else "")
        require(
            entry.is_dir(),
            f"{entry}: {'an image' if picture else 'a file'} where a folder is expected; --data.dataset.layout {name} "
            f"reads {layout}{other or '; move it away'}",
        )
    return entries


def _pictures_in(folder: Path, *, beside_classes: bool = False) -> list[Path]:
    """The images in a folder, sorted by name; other entries are refused.

    Args:
        folder: the folder.
        beside_classes: allow subfolders.

    Raises:
        ConfigError: naming an unexpected entry.
    """
    entries = [one for one in visible_entries(folder) if not (beside_classes and one.is_dir())]
    for entry in entries:
        require(
            not entry.is_dir(),
            f"{entry}: a folder where images are expected; --data.dataset.layout classes reads {CLASSES}, layout "
            f"clients reads {CLIENTS}",
        )
        require(
            entry.suffix.lower() in SUFFIXES,
            f"{entry}: not an image by its name; expected are {', '.join(SUFFIXES)}: convert it, or move it away",
        )
    return entries


def _listed(
    clients: Sequence[dict[str, list[Path]]], class_names: tuple[str, ...]
) -> tuple[list[Path], np.ndarray, np.ndarray]:
    """Files of all clients, with labels and owners, both [n] int64."""
    number = {name: label for label, name in enumerate(class_names)}
    rows = [
        (path, number[name], owner)
        for owner, client in enumerate(clients)
        for name, pictures in client.items()
        for path in pictures
    ]
    labels, owner = (np.array([row[place] for row in rows], dtype=np.int64) for place in (1, 2))
    return [path for path, _, _ in rows], labels, owner
