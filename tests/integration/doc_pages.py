"""The pages of the documentation as a reader works through them: blocks in their order, in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n)?"
    r"```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    flags=re.MULTILINE | re.DOTALL,
)
ROUNDS = "--trainer.max_epochs 2"
INSTALLS = re.compile(r"^pip install [^&\n]*(?:&& (?:pytest$)?)?", flags=re.MULTILINE)
"""Installations and the tests themselves are CI's business; what else follows on a line is run."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    title: str | None
    reason: str | None
    """Why it cannot be run."""


def pages() -> list[str]:
    """All pages that a person wrote; those of the results are generated, and have tests of their own."""
    written = [
        ROOT / "README.md",
        *(path for part in (".", "guides", "reference") for path in (ROOT / "docs" / part).glob("*.md")),
    ]
    return sorted(str(path.relative_to(ROOT)) for path in written)


def blocks(page: str) -> list[Block]:
    """The blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(found["language"], found["text"], found["title"], found["reason"]) for found in FENCE.finditer(text)]


def lines(block: Block) -> list[str]:
    """The commands of a bash block, continuations joined, installations left out."""
    text = INSTALLS.sub("", re.sub(r"\s*\\\n\s*", " ", block.text))
    return [line.split("  #")[0].strip() for line in text.splitlines() if line.strip()]


def shortened(command: str) -> str:
    """A `fit` of two rounds."""
    is_fit = re.match(r"(?:python|torchrun .*?) ?-m lit_fed fit|lit-fed fit", command)
    return f"{command} {ROUNDS}" if is_fit and "--trainer.max_epochs" not in command else command


def run(block: Block, folder: Path) -> subprocess.CompletedProcess[str] | None:
    """Do with a block what a reader does: write it to the file that its title names, or run it."""
    if block.title is not None:
        (folder / block.title).write_text(block.text, encoding="utf-8")
    if block.language == "bash" and block.title is None:
        return _process(["bash", "-e", "-c", "\n".join(map(shortened, lines(block)))], folder)
    if block.language == "python":
        file = folder / (block.title or "snippet.py")
        file.write_text(block.text, encoding="utf-8")
        return _process([sys.executable, file.name], folder)
    return None


def _process(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    for name in ("configs", "scripts"):
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / name)
    environment = os.environ | {
        "HOME": str(folder),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg",
        "COLUMNS": "120", "WANDB_MODE": "offline",
    }  # fmt: skip
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
