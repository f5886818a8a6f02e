"""Output that a page shows is what its commands print, or write into a table, run as a reader runs them."""

import re

import doc_pages
import pytest
from doc_pages import ROOT, blocks, run_page

SHOWN = {
    "docs/quickstart.md": (0,),
    "docs/guides/own_table.md": (1, 2),
    "docs/guides/few_rows.md": (0, 1),
    "docs/guides/frozen_backbones.md": (0,),
    "docs/guides/sweeps.md": (0,),
    "docs/guides/pictures.md": (0,),
}
"""Pages, and which of their `text` blocks are output of their commands."""

ELSEWHERE = {
    "docs/guides/own_table.md": 1, "docs/guides/frozen_backbones.md": 1, "docs/guides/run_folder.md": 2,
    "docs/guides/secure_sums.md": 1, "docs/guides/several_machines.md": 1,
}  # fmt: skip
"""How many messages other pages quote from commands that go wrong, which have tests of their own."""

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")
TIME = re.compile(r"\(?\d+:\d\d:\d\d left\)?|results: .*|[-╇┳┴┼━─┏┓┡┩└┘]{3,}")
WITHIN = 0.02
"""Relative difference of a number that another processor may make."""


def words(line, *, timed):
    """The words of a line, numbers as such; of a table with seconds without its last column."""
    line = TIME.sub("", line)
    if timed and line.rstrip().endswith(("│", "┃")):
        line = line.rstrip("│┃ ").rpartition("│" if "│" in line else "┃")[0]
    parts = re.split(r"[\s│┃,]+", line)
    return [float(one.replace(",", "")) if NUMBER.fullmatch(one) else one for one in parts if one]


def alike(shown, printed):
    if len(shown) != len(printed):
        return False
    return all(
        isinstance(b, float) and a == pytest.approx(b, rel=WITHIN, abs=5e-3) if isinstance(a, float) else a == b
        for a, b in zip(shown, printed, strict=True)
    )


@pytest.mark.parametrize("page", list(SHOWN))
def test_a_page_shows_what_its_commands_print(page, tmp_path, monkeypatch):
    monkeypatch.setattr(doc_pages, "shortened", lambda line: line)
    monkeypatch.setattr(doc_pages, "fewer_rounds", lambda text: text)
    output = "\n".join(done.output for _, done in run_page(page, tmp_path, rendered=page.endswith("pictures.md")))
    output += "\n".join(path.read_text(encoding="utf-8") for path in sorted(tmp_path.rglob("*.csv")))
    texts = [block.text for block in blocks(page) if block.language == "text"]
    for number in SHOWN[page]:
        timed = "seconds" in texts[number]
        if texts[number].startswith("lit_fed: "):  # one line, wrapped
            assert " ".join(texts[number].split()) in " ".join(output.split())
            continue
        printed = [words(line, timed=timed) for line in output.splitlines()]
        for line in filter(None, (words(one, timed=timed) for one in texts[number].splitlines())):
            assert any(alike(line, one) for one in printed), line


def test_no_other_page_shows_output():
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        page = str(path.relative_to(ROOT))
        texts = [block.text for block in blocks(page) if block.language == "text"]
        found = [
            one
            for one in texts
            if re.search(r"^(lit_fed: |--[a-z]+\.|client,|population,|.*[┃│].*[┃│])", one, re.MULTILINE)
        ]
        assert len(found) == len(SHOWN.get(page, ())) + ELSEWHERE.get(page, 0), page
