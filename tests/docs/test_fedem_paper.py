"""The page on the FedEM paper repeats numbers of other pages; each is there."""

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs/results"
ROWS = [
    line
    for line in (FOLDER / "fedem-paper.md").read_text(encoding="utf-8").splitlines()
    if re.search(r"\.md\) \|$", line)
]


def numbers(text):
    return set(re.findall(r"\d+(?:\.\d+)?", text))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_the_numbers_of_a_row_are_those_of_its_page(row):
    cells = [one.strip() for one in row.strip("|").split(" | ")]
    linked = (FOLDER / re.search(r"\(([\w-]+\.md)\)", cells[-1])[1]).read_text(encoding="utf-8")
    for cell in cells[:-1]:
        figures = {one for one in numbers(cell) if "." in one or f"{one} of " in cell}
        assert figures <= numbers(linked), f"{figures - numbers(linked)} of {cell!r}"


def test_there_are_rows():
    assert len(ROWS) == 15
