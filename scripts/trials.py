"""Child processes of soak.py, folders of runs, and pages with their records.

As a program it is `python -m lit_fed` without compiled modules, which a kill or a full disk could leave half written.
`SOAK_CLOCK` lets the clock jump: pairs of seconds after the start and seconds of the jump, as JSON.
"""

import json
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

TRIAL = Path(__file__)  # the program of a child process


def newest_folder(runs: Path) -> Path:
    """The newest folder of a run's versions."""
    from lit_fed.training.round_logger import newest_version

    return runs / f"version_{max(newest_version(runs), 0)}"


def rounds_logged(runs: Path) -> int:
    """Rounds in metrics.csv of the newest folder of a run."""
    try:
        return max((newest_folder(runs) / "metrics.csv").read_text().count("\n") - 1, 0)
    except OSError:
        return 0


def go_on(runs: Path) -> list[str]:
    """Arguments that continue a run if it has a checkpoint."""
    return ["--ckpt_path", "last"] if any(runs.glob("version_*/checkpoints/last.ckpt")) else []


def facts() -> dict[str, str]:
    """Versions and date of a measurement."""
    import torch

    return {"torch": torch.__version__, "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}


def keep(path: Path, page: Callable[[dict[str, Any]], str], **news: Any) -> None:
    """Update the JSON record at a path, and write its page beside it."""
    from lit_fed.system.files import write_atomically

    path.parent.mkdir(parents=True, exist_ok=True)
    record = (json.loads(path.read_text()) if path.is_file() else {}) | news
    write_atomically(path, json.dumps(record, indent=1) + "\n")
    write_atomically(path.with_suffix(".md"), page(json.loads(path.read_text())))


def written(script: str, parts: Mapping[str, Any]) -> str:
    """The page whose words are in a Markdown file beside a script, without paragraphs of missing parts."""
    from reproduction.markdown import fill

    known: dict[str, Any] = defaultdict(lambda: None, parts)
    return "\n".join([*fill(Path(script).with_suffix(".md").read_text(), known), ""])


# ---------------------------------------------------------------------- in a child process
def _jump(jumps: list[tuple[float, float]]) -> None:
    """Let `time.time` jump; `time.monotonic` does not."""
    true, begin = time.time, time.monotonic()
    time.time = lambda: true() + sum(by for after, by in jumps if time.monotonic() - begin >= after)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    _jump(json.loads(os.environ.get("SOAK_CLOCK", "[]")))
    from lit_fed.__main__ import main

    main()
