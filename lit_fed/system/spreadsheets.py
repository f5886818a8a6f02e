"""Texts in tables that people open in a spreadsheet, which runs a cell that begins like a formula."""

from __future__ import annotations

import math
import re
from typing import Any

from lit_fed.system.packages import DataFrame

__all__ = ["quoted", "quoted_table", "unquoted", "unquoted_table"]

CELL = r"(?:^|(?<=[;,|\t\r\n]))"
"""Where a cell may begin: spreadsheets separate cells by what their user's country does."""

FORMULA = r"(?=[\s'\ufeff\u200b]*[=+\-@\t\r\n＝＋－＠﹦﹢﹣﹫])"
"""What makes a cell a formula; spreadsheets in East Asia read wide signs, too."""


def quoted(text: str) -> str:
    """The text with an apostrophe before each part that a spreadsheet would take for a formula; numbers stay.

    Example:
        >>> quoted("=1+2"), quoted("-0.5"), quoted("anna"), quoted("'=1"), quoted("x;=1")
        ("'=1+2", '-0.5', 'anna', "''=1", "x;'=1")
    """
    return text if _is_number(text) else re.sub(CELL + FORMULA, "'", text)


def unquoted(text: str) -> str:
    """The inverse of `quoted`."""
    return re.sub(f"{CELL}'{FORMULA}", "", text)


def quoted_table(table: DataFrame) -> DataFrame:
    """A copy of a data frame whose texts and names of columns are `quoted`."""
    return _changed(table, quoted)


def unquoted_table(table: DataFrame) -> DataFrame:
    """The inverse of `quoted_table`."""
    return _changed(table, unquoted)


def _changed(table: DataFrame, change: Any) -> DataFrame:
    def of_any(value: Any) -> Any:
        return change(value) if isinstance(value, str) else value

    table = table.rename(columns=of_any)
    for name in table.columns[[kind.kind not in "biufcmM" for kind in table.dtypes]]:
        table[name] = table[name].map(of_any)
    return table


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False
