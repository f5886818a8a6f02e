"""Files and folders of results: refused before anything is computed, written whole or not at all."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from lit_fed.core.errors import ConfigError
from lit_fed.core.files import given_path

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "check_creatable",
    "check_new_folder",
    "check_table_file",
    "check_table_format",
    "check_writable",
    "new_folder",
    "write_table",
]


def check_writable(folder: Path, option: str) -> None:
    """Find out whether a folder can be written before anything is computed.

    Args:
        folder: the folder, which is made if need be.
        option: the argument that named it.

    Raises:
        ConfigError: naming the folder and the fix.
    """
    probe = folder / f".lit_fed_{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{option} {folder}: {reason}; choose a folder that can be written") from error


def check_creatable(folder: Path, option: str) -> None:
    """Find out whether a folder can be made and written, and leave nothing behind.

    Args:
        folder: the folder, which may not exist yet.
        option: the argument that named it.

    Raises:
        ConfigError: naming the folder and the fix.
    """
    given_path(str(folder), option)
    existing = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    try:
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"{option} {folder}: {reason}; choose a folder that can be written") from error


def check_table_file(path: Path) -> None:
    """Refuse a file that no table can be written to.

    Raises:
        ConfigError: if its ending is neither .csv nor .parquet, a package is missing or its folder cannot be written.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(
            f"--output {path}: a table is written as .csv or .parquet; end the file's name in one of them"
        )
    given_path(str(path), "--output")
    if path.is_dir():
        raise ConfigError(f"--output {path} is a folder; give a file in it")
    check_table_format(path.suffix[1:])
    check_writable(path.parent, "--output")


def check_table_format(name: str) -> None:
    """Refuse `parquet` where the package that writes it is missing.

    Raises:
        ConfigError: naming the command that installs it.
    """
    if name == "parquet":
        try:
            importlib.import_module("pyarrow")
        except ImportError as error:
            raise ConfigError(
                'parquet files need the package pyarrow; pip install "pyarrow>=15", or choose csv'
            ) from error


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write a table as .csv or .parquet beside its place and move it there."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        if path.suffix == ".parquet":
            table.to_parquet(partial, index=False, engine="pyarrow")
        else:
            table.to_csv(partial, index=False)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def check_new_folder(path: Path) -> None:
    """Refuse a folder of results that holds something already.

    Raises:
        ConfigError: naming the folder and the fix.
    """
    given_path(str(path), "--output")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"--output {path} exists and is not empty; choose a new folder")
    check_writable(path.absolute().parent, "--output")


@contextmanager
def new_folder(path: Path, *, owner: bool) -> Iterator[Path]:
    """A folder beside `path` to write results into, which is moved there at the end, or deleted after an error.

    Args:
        path: where the results belong; nothing, or an empty folder.
        owner: this process moves and deletes; every other one only learns the name.
    """
    partial = path.absolute().with_name(f".{path.name}.partial")
    if not owner:
        yield partial
        return
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    try:
        yield partial
        if path.exists():
            path.rmdir()
        partial.replace(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
