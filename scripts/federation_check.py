"""Federations of real processes over HTTPS: equal to the simulation, what they cost, and what becomes of kills.

    python scripts/federation_check.py            # everything; writes docs/results/federation.json and federation.md
    python scripts/federation_check.py equality costs
    python scripts/federation_check.py kills --times 5
    python scripts/federation_check.py fifty --nodes 50

The server is `python -m lit_fed fit`, with mutual TLS; nodes are `lit-fed client`, or are forked from this process,
which has loaded what a node needs. The exit status is 1 if a run that should be exact is not.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from federating import checks
from federating.report import page

from lit_fed.system.files import write_atomically

__all__ = ["main"]

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/federation.json"
PARTS = ("equality", "costs", "kills", "fifty")


def say(line: str) -> None:
    """A line of progress."""
    print(line, flush=True)


def made(part: str, folder: Path, given: argparse.Namespace) -> Any:
    """The record of a part."""
    if part == "kills":
        return checks.kills(folder, say, given.times, given.seed, given.rounds)
    if part == "fifty":
        return checks.fifty(folder, say, given.nodes, given.seed)
    return {"equality": checks.equality, "costs": checks.costs}[part](folder, say)


def keep(path: Path, **news: Any) -> None:
    """Add to the record, and write its page."""
    record = (json.loads(path.read_text()) if path.is_file() else {}) | news
    facts = {"torch": torch.__version__, "python": platform.python_version(), "date": time.strftime("%Y-%m-%d")}
    write_atomically(path, json.dumps(record | {"facts": facts}, indent=1) + "\n")
    write_atomically(path.with_suffix(".md"), page(json.loads(path.read_text())))


def failed(part: str, record: Any) -> bool:
    """Whether something that should be exact is not."""
    if part == "kills":
        return bool(record["not exact"])
    return any(row["differences"] for row in record) if part in ("equality", "costs") else False


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="what to do; all of it by default")
    parser.add_argument("--times", type=int, default=20, help="kills of each process")
    parser.add_argument("--rounds", type=int, default=150, help="of a run whose processes are killed")
    parser.add_argument("--nodes", type=int, default=50, help="of the part fifty")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the record; its page is written beside it")
    given, bad = parser.parse_args(arguments), False
    for part in given.parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix=f"federation-{part}-"))
        try:
            record = made(part, folder, given)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        keep(given.out, **{part: record})
        bad = bad or failed(part, record)
    raise SystemExit(bad)


if __name__ == "__main__":
    main()
