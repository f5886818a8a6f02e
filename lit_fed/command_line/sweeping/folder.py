"""The folder of a sweep: whose it is, who works in it, and how far each run in it is."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lit_fed.command_line.sweeping.sweep_file import Sweep
from lit_fed.errors import ConfigError
from lit_fed.system.files import write_atomically
from lit_fed.system.folder_lock import LOCK_NAME, FolderLock
from lit_fed.training.output import check_writable

__all__ = ["SweepFolder"]


class SweepFolder:
    """`sweep.json`, `runs/<point>_seed_<seed>/` and, from the search and at the end, the rest.

    Args:
        path: the folder, new or that of the same sweep.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def opened(self, sweep: Sweep, seeds: Sequence[int] | None) -> Iterator[SweepFolder]:
        """Hold the folder for this process, and for this sweep with these seeds.

        Raises:
            ConfigError: if it cannot be written, belongs to something else, or another process is at work in it.
        """
        check_writable(self.path, "--output")
        others = [one for one in self.path.iterdir() if one.name not in (LOCK_NAME, "sweep.json")]
        with FolderLock(self.path, f"--output {self.path}", "wait until it ends, or choose a new folder"):
            self._claim({**sweep.meaning(), "seeds": seeds}, empty=not others)
            yield self

    def _claim(self, meaning: dict[str, Any], *, empty: bool) -> None:
        file = self.path / "sweep.json"
        if not file.is_file():
            if not empty:
                raise ConfigError(f"--output {self.path} holds something that is no sweep; choose a new folder")
            write_atomically(file, json.dumps(meaning, indent=2) + "\n")
            return
        stored, now = json.loads(file.read_text()), json.loads(json.dumps(meaning))
        changed = [key for key in now if stored.get(key) != now[key]]
        if changed:
            raise ConfigError(
                f"--output {self.path} holds another sweep: {', '.join(changed)} changed since; choose a new "
                "folder, or take the change back"
            )

    def run_name(self, number: int, seed: int | None) -> str:
        """Name of a run."""
        return f"{number:03d}" if seed is None else f"{number:03d}_seed_{seed}"

    def run_folder(self, number: int, seed: int | None) -> Path:
        """Folder of a run."""
        return self.path / "runs" / self.run_name(number, seed) / "version_0"

    def is_done(self, number: int, seed: int | None) -> bool:
        """Whether a run is over: its summary is written last."""
        return (self.run_folder(number, seed) / "summary.json").is_file()

    def arguments(self, number: int, seed: int | None) -> list[str]:
        """What puts a run into its folder, and lets it go on where it was cut off."""
        folder = self.run_folder(number, seed)
        begun = (folder / "checkpoints" / "last.ckpt").is_file()
        if not begun:
            shutil.rmtree(folder, ignore_errors=True)  # cut off before its first round was over
        return [
            f"--trainer.default_root_dir={self.path / 'runs'}", f"--name={self.run_name(number, seed)}",
            "--trainer.enable_progress_bar=false", *([] if seed is None else [f"--seed_everything={seed}"]),
            *(["--ckpt_path=last"] if begun else []),
        ]  # fmt: skip

    def log(self, number: int, seed: int | None) -> Path:
        """What a run printed."""
        return self.path / "runs" / self.run_name(number, seed) / "log.txt"
