"""Cells that a spreadsheet would run, and the way back."""

import random
import re

import pandas as pd
import pytest

from lit_fed.system.spreadsheets import quoted, quoted_table, unquoted, unquoted_table

FORMULAS = ["=1+2", "+1+2", "-1+2", "@SUM(A1)", "\tx", "\rx", "\nx", "'=1", "''@x", "=cmd|' /C calc'!A0", "＝1", " =1"]
PLAIN = ["anna", "", "1=2", "'anna", "-0.5", "+3", "1e-5", "a-b", "nan", "p_0", "a; b", "a,b"]


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_quoted_and_read_back(text):
    assert quoted(text) == f"'{text}"
    assert unquoted(quoted(text)) == text


@pytest.mark.parametrize("text", PLAIN)
def test_others_stay(text):
    assert quoted(text) == text == unquoted(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x;=HYPERLINK(1)", "x;'=HYPERLINK(1)"), ("x\t+1", "x\t'+1"), ("a, @b", "a,' @b"), ("x;＝1", "x;'＝1"),
        ("=1\n=2", "'=1\n'=2"), ("x|'=1", "x|''=1"), ("x;-1", "x;'-1"),
    ],
)  # fmt: skip
def test_a_cell_may_begin_inside(text, told):
    """Where ; or a tab separates cells, or a cell is pasted."""
    assert quoted(text) == told
    assert unquoted(told) == text


def test_any_text_is_read_back():
    rng = random.Random(0)
    texts = ["".join(rng.choices("='-@;,\t\n x＝1\ufeff", k=rng.randrange(8))) for _ in range(3000)]
    assert [unquoted(quoted(one)) for one in texts] == texts
    held = [part for one in texts for part in re.split(r"[;,\t\n]", quoted(one)) if quoted(one) != one or len(part) > 1]
    assert not [one for one in held if one.lstrip().startswith(("=", "@", "＝")) and "'" not in one]


def test_tables(tmp_path):
    table = pd.DataFrame(
        {
            "client": [*FORMULAS, *PLAIN[:2]],
            "=p_0": range(14),
            "-0.5": [-0.5] * 14,
            "mixed": ["=1", None, 3] * 4 + ["x", "y"],
        }
    )
    told = quoted_table(table)
    assert told.columns.tolist() == ["client", "'=p_0", "-0.5", "mixed"]
    assert told["client"].tolist() == [*(f"'{one}" for one in FORMULAS), *PLAIN[:2]]
    assert told["-0.5"].dtype == table["-0.5"].dtype
    pd.testing.assert_frame_equal(unquoted_table(told), table)
    assert table["client"][0] == "=1+2", "the table itself stays"
