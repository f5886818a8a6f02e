"""How docstrings and comments of lit_fed are shown in the reference: an extension of griffe, named in mkdocs.yml."""

from __future__ import annotations

import ast
import re
from typing import Any

from griffe import Class, Extension, Module, Object

BLOCK = r"^{name}:\n(?P<lines>(?: {{4}}.*\n?)+)"
SYMBOLS = re.compile(BLOCK.format(name="Symbols"), flags=re.MULTILINE)
DEVIATIONS = re.compile(BLOCK.format(name="Deviations"), flags=re.MULTILINE)
NAME = r"[A-Za-z_][\w.]*(?:\[\d\])?"
PLACE = re.compile(rf"(?P<names>{NAME}(?:, {NAME})*)(?P<end>  |: |, | |$)(?P<meaning>.*)")
EXAMPLE = re.compile(r"^Example:$", flags=re.MULTILINE)
COMMENT = re.compile(r"  # (?:type: ignore\S* # )?(?P<text>.*)$")


class FieldsAndSymbols(Extension):
    """Tables for symbols of papers and for fields of named tuples, which stand in comments; lists for deviations."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Let griffe, which knows `Examples:` alone, find the doctests under `Example:`."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub("Examples:", obj.docstring.value)

    def on_module_instance(self, *, mod: Module, **kwargs: Any) -> None:
        """Symbols and deviations in the docstring of a file."""
        if mod.docstring is not None:
            text = SYMBOLS.sub(lambda found: _table(found["lines"]), mod.docstring.value)
            mod.docstring.value = DEVIATIONS.sub(lambda found: _list(found["lines"]), text)

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        """Leave out `__post_init__`, the checks of dataclasses, which nobody calls."""
        cls.members.pop("__post_init__", None)

    def on_class_instance(self, *, node: ast.AST, cls: Class, **kwargs: Any) -> None:
        """Fields of a named tuple, each described by the comment behind it."""
        if cls.docstring and isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases):
            fields = [_field(one, cls) for one in node.body if isinstance(one, ast.AnnAssign)]
            cls.docstring.value = "\n".join([cls.docstring.value, "", "Attributes:", *fields])


def _field(node: ast.AnnAssign, cls: Class) -> str:
    line = cls.module.lines_collection[cls.filepath][node.end_lineno - 1]
    comment = COMMENT.search(line)
    return f"    {ast.unparse(node.target)}: {comment['text'] if comment else '…'}"


def _table(lines: str) -> str:
    """Rows `symbol -> place  meaning` as a table; a row goes on where lines are indented, and prose may follow it."""
    rows: list[list[str]] = []
    prose: list[str] = []
    for line in lines.splitlines():
        symbol, arrow, rest = line.partition(" -> ")
        if line.startswith(" " * 8) and rows:
            rows[-1][-1] += " " + line.strip()
        elif arrow:
            rows.append([symbol.strip(), *_place_and_meaning(rest.strip())])
        else:
            prose.append(line.strip())
    table = [f"| {' | '.join(map(_cell, row))} |" for row in (["paper", "here", "meaning"], ["---"] * 3, *rows)]
    return "\n".join(["**Symbols**", "", *table, "", " ".join(prose), "", ""])


def _place_and_meaning(text: str) -> tuple[str, str]:
    found = PLACE.fullmatch(text)
    if found is None or (found["end"] == " " and "." not in found["names"]):  # prose
        return "", text
    return f"`{found['names']}`", found["meaning"].strip()


def _cell(text: str) -> str:
    """A cell of a table, in which Markdown sees neither its end nor an attribute."""
    return text.replace("|", "\\|").replace("{", "&#123;")


def _list(lines: str) -> str:
    """Lines of prose as a list; an item ends where a line ends with a full stop."""
    items = re.split(r"(?<=[.:])\n", lines.strip())
    return "\n".join(["**Deviations**", "", *("- " + " ".join(item.split()) for item in items)])
