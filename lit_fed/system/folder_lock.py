"""Folders into which only one process at a time may write."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lit_fed.errors import ConfigError
from lit_fed.system.files import os_error_text, write_atomically
from lit_fed.system.foreign_files import read_file
from lit_fed.system.readers import record

__all__ = ["LOCK_NAME", "FolderLock", "claimed"]

LOCK_NAME = ".lock"
"""The file in a folder that its writer holds. It stays when nobody does: deleting it could let two writers in."""

SECONDS_TO_TRY = 0.2
"""For a process that is just letting go."""


class FolderLock:
    """Keeps other processes from writing into a folder, inside a `with` or until this process ends.

    The lock is the system's, not the file's existence, so a killed process leaves nothing to remove. The file names its
    holder.

    Args:
        folder: the folder, created if missing.
        shown: its name in messages.
        fix: advice if another process holds it.
    """

    def __init__(self, folder: Path, shown: str, fix: str) -> None:
        self.folder, self.shown, self.fix = folder, shown, fix
        self._file = FileLock(folder / LOCK_NAME, thread_local=False)

    def __enter__(self) -> FolderLock:
        """Take the folder for this process.

        Raises:
            ConfigError: naming the holder, or why the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file.acquire(timeout=SECONDS_TO_TRY, poll_interval=SECONDS_TO_TRY / 4)
        except Timeout as error:
            raise ConfigError(f"{self.shown}: {self._holder()}; {self.fix}") from error
        except OSError as error:
            raise ConfigError(f"{self.shown}: {os_error_text(error)}; choose a folder that can be written") from error
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the name of its holder
            Path(self._file.lock_file).write_text(f"process {os.getpid()} on {socket.gethostname()}\n{since}\n")
        return self

    def __exit__(self, *_: object) -> None:
        """Release the lock; if nothing else was written into the folder, delete the lock's file too."""
        file = Path(self._file.lock_file)
        if [one.name for one in self.folder.glob("*")] == [file.name]:
            file.unlink(missing_ok=True)
        self._file.release()

    def _holder(self) -> str:
        """The process that works in the folder, if the file names it."""
        try:
            who, since = Path(self._file.lock_file).read_text().splitlines()
        except (OSError, ValueError):  # it is being written
            return "another process is at work in it"
        return f"{who} is at work in it since {since}"


@contextlib.contextmanager
def claimed(folder: Path, kind: str, meaning: dict[str, Any], option: str = "--output") -> Iterator[None]:
    """Lock the folder of a command's runs for this process, and for this command with these settings.

    Args:
        folder: the folder, which exists.
        kind: what the folder holds, such as `sweep`; its settings are in `sweep.json`.
        meaning: the settings.
        option: names the folder.

    Raises:
        ConfigError: if it belongs to something else, or is in use by another process.
    """
    file = folder / f"{kind}.json"
    others = [one for one in folder.iterdir() if one.name not in (LOCK_NAME, file.name)]
    with FolderLock(folder, f"{option} {folder}", "wait until it ends, or choose a new folder"):
        if not file.is_file():
            if others:
                raise ConfigError(f"{option} {folder} holds something that is no {kind}; choose a new folder")
            write_atomically(file, json.dumps(meaning, indent=2) + "\n")
        stored = read_file(file, json.loads, record({}, others=True), "choose a new folder")
        now = json.loads(json.dumps(meaning))
        if changed := [key for key in now if stored.get(key) != now[key]]:
            raise ConfigError(
                f"{option} {folder} holds another {kind}: {', '.join(changed)} changed since; choose a new folder, or "
                "take the change back"
            )
        yield
