"""Texts in tables that people open in a spreadsheet, which runs a cell that begins like a formula."""

from __future__ import annotations

import math
import re
from typing import Any

from lit_fed.system.packages import DataFrame

__all__ = ["quoted", "quoted_table", "unquoted", "unquoted_table"]

FORMULA = re.compile(r"'*[=+\-@\t\r\n]")


def quoted(text: str) -> str:
    """The text with an apostrophe before it if a spreadsheet would take it for a formula; numbers stay.

    Example:
        >>> quoted("=1+2"), quoted("-0.5"), quoted("anna"), quoted("'=1")
        ("'=1+2", '-0.5', 'anna', "''=1")
    """
    return f"'{text}" if FORMULA.match(text) and not _is_number(text) else text


def unquoted(text: str) -> str:
    """The inverse of `quoted`."""
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


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
