"""Tables of results for the terminal and for papers: text, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Sequence
from typing import Literal, NamedTuple

from lit_fed.system.spreadsheets import quoted
from lit_fed.training.output import print_rows

__all__ = ["WIDTH", "ResultTable", "TableFormat", "escaped", "latex_table", "markdown_table", "print_tables"]

TableFormat = Literal["text", "md", "csv", "latex"]

WIDTH = 140
"""Letters in a line of a printed table in a file."""

MARKS = r"[\\`*\[\]<|~$]|&(?=#?\w+;)|(?<!\w)_|_(?!\w)"
"""Signs that mean something to Markdown, where they do."""

LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": "$<$",
    ">": "$>$", **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
"""Signs that mean something to LaTeX, or that its fonts lack, and what prints them."""


class ResultTable(NamedTuple):
    """A table with texts as cells."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    words: int = 1  # columns of words, the first ones; the others are numbers


def escaped(text: str) -> str:
    r"""A text in one line that Markdown shows as it is: without tags, links, code and formulas.

    Example:
        >>> print(escaped("lr=0.1, my_run"), escaped("<b> [x](javascript:1)"))
        lr=0.1, my_run \<b> \[x\](javascript:1)
    """
    return re.sub(MARKS, r"\\\g<0>", " ".join(text.split()))


def markdown_table(headings: Sequence[str], lines: Sequence[Sequence[str]], words: int = 1) -> list[str]:
    """Lines of a Markdown table; all columns but the first `words` are aligned to the right."""
    head, *rest = ["| " + " | ".join(map(escaped, line)) + " |" for line in [headings, *lines]]
    return [head, "|" + "---|" * words + "--:|" * (len(headings) - words), *rest]


def latex_table(table: ResultTable) -> list[str]:
    r"""Lines of a LaTeX table with its caption, which needs `\usepackage{booktabs}`.

    Example:
        >>> latex_table(ResultTable("t", ["run", "seen %"], [["a_b", "0.50"]]))[5:8]
        ['run & seen \\% \\\\', '\\midrule', 'a\\_b & 0.50 \\\\']
    """
    rows = [" & ".join(map(_in_latex, line)) + r" \\" for line in (table.headings, *table.rows)]
    columns = "l" * table.words + "r" * (len(table.headings) - table.words)
    return [
        r"\begin{table}", r"\centering",
        rf"\caption{{{_in_latex(f'{table.title}. {table.caption}'.strip())}}}",
        rf"\begin{{tabular}}{{{columns}}}", r"\toprule", rows[0], r"\midrule", *rows[1:], r"\bottomrule",
        r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip


def _in_latex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in " ".join(text.split()))


def print_tables(tables: Sequence[ResultTable], form: TableFormat) -> None:
    """Print the tables that have rows, with an empty line between them in a file's format."""
    for number, table in enumerate(one for one in tables if one.rows):
        if number and form != "text":
            sys.stdout.write("\n")
        if form == "text":
            print_rows(
                table.title, table.headings, table.rows, words=table.words, caption=table.caption or None, width=WIDTH,
                overflow="fold",
            )  # fmt: skip
        elif form == "csv":
            csv.writer(sys.stdout, lineterminator="\n").writerows(
                [[quoted(cell) for cell in line] for line in (table.headings, *table.rows)]
            )
        elif form == "latex":
            sys.stdout.write("\n".join(latex_table(table)) + "\n")
        else:
            lines = markdown_table(table.headings, table.rows, table.words)
            about = [escaped(table.caption), ""] if table.caption else []
            sys.stdout.write("\n".join([f"### {escaped(table.title)}", "", *lines, "", *about]) + "\n")
