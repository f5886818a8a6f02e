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
from lit_fed.core.machine.files import whole_file
from lit_fed.core.machine.given_paths import given_path, reason, shown

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "check_creatable",
    "check_new_folder",
    "check_run_name",
    "check_table_file",
    "check_table_format",
    "check_writable",
    "new_folder",
    "write_table",
]

LONGEST_NAME = 200
"""Bytes of a folder's name; file systems take 255, and files beside it have longer names."""


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
    except (OSError, ValueError) as error:
        raise ConfigError(f"{option} {shown(folder)}: {reason(error)}; choose a folder that can be written") from error


def check_creatable(folder: Path, option: str) -> None:
    """Find out whether a folder can be made and written, and leave nothing behind.

    Args:
        folder: the folder, which may not exist yet.
        option: the argument that named it.

    Raises:
        ConfigError: naming the folder and the fix.
    """
    given_path(str(folder), option)
    try:
        existing = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
        with TemporaryFile(dir=existing):
            pass
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise ConfigError(f"{option} {shown(folder)}: {reason(error)}; choose a folder that can be written") from error


def check_run_name(name: str | None) -> None:
    """Refuse a run's name that is no folder below the folder of all runs; a name may have parts, `digits/first`.

    Args:
        name: the name; None where a run names itself.

    Raises:
        ConfigError: naming the name and the fix.
    """
    if name is None:
        return
    parts = name.split("/")
    wrong = (
        "is empty" if not name.strip()
        else "is a path from the root" if name.startswith("/")
        else "leads out of the folder of runs" if ".." in parts
        else "names no folder" if any(part in ("", ".") for part in parts)
        else "holds a letter that no folder should have" if not name.isprintable()
        else "is too long" if max(len(part.encode()) for part in parts) > LONGEST_NAME
        else None
    )  # fmt: skip
    if wrong:
        shown = name if len(name) <= LONGEST_NAME else name[:20] + "…"
        raise ConfigError(
            f"--name {shown!r} {wrong}; give letters, digits, - and _, at most {LONGEST_NAME} bytes: the run's folder "
            "is <name>/version_<n> below --trainer.default_root_dir"
        )


def check_table_file(output: str | Path) -> Path:
    """The file of a table, with `~` written out; one that cannot be written is refused.

    Raises:
        ConfigError: if its ending is neither .csv nor .parquet, a package is missing or its folder cannot be written.
    """
    path = given_path(str(output), "--output")
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(
            f"--output {path}: a table is written as .csv or .parquet; end the file's name in one of them"
        )
    if path.is_dir():
        raise ConfigError(f"--output {path} is a folder; give a file in it")
    check_table_format(path.suffix[1:])
    check_writable(path.parent, "--output")
    return path


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
    """Write a table as .csv or .parquet, whole or not at all."""
    with whole_file(path) as file:
        if path.suffix == ".parquet":
            table.to_parquet(file, index=False, engine="pyarrow")
        else:
            table.to_csv(file, index=False)


def check_new_folder(output: str | Path) -> Path:
    """A folder of results, with `~` written out; one that holds something already is refused.

    Raises:
        ConfigError: naming the folder and the fix.
    """
    path = given_path(str(output), "--output")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"--output {path} exists and is not empty; choose a new folder")
    check_writable(path.absolute().parent, "--output")
    return path


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
