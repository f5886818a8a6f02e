"""Reader of .npz files that does not trust the announced sizes."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from lit_fed.data.data_sets.base import files_of, require
from lit_fed.errors import ConfigError
from lit_fed.system.files import require_file
from lit_fed.system.machine import require_memory

__all__ = ["npz_files", "read_npz"]

SAVE = "save it again with numpy.savez"


def npz_files(folder: Path) -> list[Path]:
    """The .npz files of a folder, sorted by name; a `ConfigError` refuses other things and undecodable names."""
    paths = files_of(folder, ".npz")
    for path in paths:
        require_file(path, "remove it, or put a file of numpy.savez in its place")
        try:
            path.name.encode("utf-8")
        except UnicodeEncodeError as error:  # tables of clients could not hold it
            raise ConfigError(f"{str(path)!r}: the name is not in UTF-8; rename the file") from error
    return paths


def read_npz(
    path: Path, required: tuple[str, ...], optional: tuple[str, ...], inputs: Sequence[str] | None = ()
) -> dict[str, Any]:
    """Read stored arrays of one file.

    Args:
        path: the file.
        required: names of the required arrays.
        optional: names of optional arrays; others are not read.
        inputs: names of several inputs, of which a split may have arrays `<name>_<split>` in place of one `x_<split>`,
            which is then a dict of these arrays; None: all names but `y`, if there is no `x_<split>`.

    Raises:
        ConfigError: naming a file that cannot be read, or an array that is missing, holds Python objects or does not
            fit into memory.
    """
    require_file(path, SAVE)
    require(zipfile.is_zipfile(path), f"{path}: cannot be read (no complete .npz archive); {SAVE}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            held = _with_inputs(archive.files, (*required, *optional), inputs)
            for name in required:
                require(name in held, f"{path}: array {name} is missing; save {', '.join(required)} in it")
            return {
                name: _array(archive, own, path)
                if isinstance(own, str)
                else {one: _array(archive, stored, path) for one, stored in own.items()}
                for name, own in held.items()
            }
    except ConfigError:  # a ValueError too, with the right message
        raise
    except Exception as error:  # zipfile, decompressors and NumPy raise many types on damaged files
        raise ConfigError(f"{path}: cannot be read ({error or type(error).__name__}); {SAVE}") from error


def _with_inputs(
    stored: list[str], wanted: tuple[str, ...], inputs: Sequence[str] | None
) -> dict[str, str | dict[str, str]]:
    """For each stored array that is wanted its name, and the names of the arrays that replace it as inputs."""
    held: dict[str, str | dict[str, str]] = {name: name for name in wanted if name in stored}
    splits = [name.removeprefix("x_") for name in wanted if name.startswith("x_")]
    if inputs is None and any(f"x_{split}" in held for split in splits):
        return held
    for split in splits:
        named = {name.removesuffix(f"_{split}"): name for name in stored if name.endswith(f"_{split}")}
        named = {one: name for one, name in named.items() if one != "y" and (inputs is None or one in inputs)}
        if len(named) > (inputs is None):  # a single array of another name is mostly a slip
            held[f"x_{split}"] = named
    return {name: held[name] for name in wanted if name in held}


def _array(archive: Any, name: str, path: Path) -> np.ndarray:
    """Read one array after checking its header: NumPy allocates the announced size before reading."""
    inside = archive.zip.getinfo(name if name in archive.zip.namelist() else f"{name}.npy")
    with archive.zip.open(inside) as file:
        version = npy.read_magic(file)
        require(version in ((1, 0), (2, 0)), f"{path}: array {name} holds structured records; store numbers")
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read_header(file)
        held = inside.file_size - file.tell()
    require(not dtype.hasobject, f"{path}: array {name} holds Python objects; store numbers, with samples of one shape")
    announced = math.prod(shape) * dtype.itemsize
    require(
        announced <= held,
        f"{path}: array {name} is announced as {dtype} of shape {list(shape)}, {announced} bytes, and the file holds "
        f"{held} of them; {SAVE}",
    )
    require_memory(announced, f"{path}: array {name} of shape {list(shape)}", "store fewer samples in one file")
    return np.asarray(archive[name])
