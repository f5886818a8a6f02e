"""Cells that a spreadsheet would run, and the way back."""

import pandas as pd
import pytest

from lit_fed.system.spreadsheets import quoted, quoted_table, unquoted, unquoted_table

FORMULAS = ["=1+2", "+1+2", "-1+2", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "'=1", "''@x", "=cmd|' /C calc'!A0"]
PLAIN = ["anna", "", "1=2", "'anna", "-0.5", "+3", "1e-5", "a-b", "nan", "p_0"]


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_are_quoted_and_read_back(text):
    assert quoted(text) == f"'{text}"
    assert unquoted(quoted(text)) == text


@pytest.mark.parametrize("text", PLAIN)
def test_others_stay(text):
    assert quoted(text) == text == unquoted(text)


def test_tables(tmp_path):
    table = pd.DataFrame(
        {"client": [*FORMULAS, *PLAIN[:2]], "=p_0": range(12), "-0.5": [-0.5] * 12, "mixed": ["=1", None, 3] * 4}
    )
    told = quoted_table(table)
    assert told.columns.tolist() == ["client", "'=p_0", "-0.5", "mixed"]
    assert told["client"].tolist() == [*(f"'{one}" for one in FORMULAS), *PLAIN[:2]]
    assert told["-0.5"].dtype == table["-0.5"].dtype
    pd.testing.assert_frame_equal(unquoted_table(told), table)
    assert table["client"][0] == "=1+2", "the table itself stays"
