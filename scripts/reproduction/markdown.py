"""Pages in Markdown: tables, sections, wrapped paragraphs, commands in lines, orders of methods."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from itertools import combinations
from string import Formatter

Part = str | Sequence[str] | None  # a text, or lines that stand as they are; None drops the paragraph that names it


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows)]


def section(title: str, *blocks: Sequence[str]) -> list[str]:
    """A heading and blocks of lines, each behind an empty line."""
    return [line for block in ([f"## {title}"], *blocks) if block for line in ("", *block)]


def order(ours: Mapping[str, float], published: Mapping[str, float]) -> str:
    """Both orders, best first, over what both have, and the pairs that stand the other way round."""
    common = [name for name in ours if name in published]
    if len(common) < 2:
        return ""
    pairs = list(combinations(common, 2))
    turned = [(a, b) for a, b in pairs if (ours[a] - ours[b]) * (published[a] - published[b]) < 0]
    words = "; ".join(
        f"{a} and {b} ({ours[a] - ours[b]:+.1f} here, {published[a] - published[b]:+.1f})" for a, b in turned
    )
    agree = f"{len(pairs) - len(turned)} of {len(pairs)} pairs agree"
    both = (ranked({name: values[name] for name in common}) for values in (published, ours))
    return "in the paper {}; here {}. ".format(*both) + agree + (f"; not {words}." if turned else ".")


def ranked(values: Mapping[str, float]) -> str:
    """Names by falling values."""
    return " > ".join(sorted(values, key=lambda name: -values[name]))


def wrap(text: str, bullet: bool = False) -> list[str]:
    """Text in lines of at most 120 characters."""
    first, rest = ("- ", "  ") if bullet else ("", "")
    whole = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, 120, initial_indent=first, subsequent_indent=rest, **whole)


def fill(text: str, parts: Mapping[str, Part]) -> list[str]:
    """The lines of a text in Markdown with `{part}` in the place of what a page computes.

    A table or a part that is a list of lines stands as it is, a paragraph that names a part that is None is dropped,
    and the others are wrapped anew. `{only_reduced}` is empty at the reduced scale and None at others.
    """
    lines: list[str] = []
    for paragraph in text.strip().split("\n\n"):
        if paragraph.startswith("| "):
            lines += ["", *paragraph.split("\n")]
            continue
        block: list[str] = []
        for one in paragraph.replace("\n  ", " ").split("\n- "):
            block += _filled(" ".join(one.split()), parts, bullet=paragraph.startswith("- "))
        lines += ["", *block] if block else []
    return lines[1:]


def _filled(text: str, parts: Mapping[str, Part], bullet: bool) -> Sequence[str]:
    text = text.removeprefix("- ")
    names = [name for _, name, _, _ in Formatter().parse(text) if name]
    whole = parts[names[0]] if names and text == f"{{{names[0]}}}" else None
    if whole is not None and not isinstance(whole, str):
        return [line for one in whole for line in wrap(one, bullet)] if bullet else whole
    if any(parts[name] is None for name in names):
        return []
    text = text.format_map(parts).strip()
    return [text] if text.startswith("#") else wrap(text, bullet)


WIDTH = 96  # letters for which a code block has room on a laptop's screen


def in_lines(command: str) -> str:
    r"""A command with line breaks that a shell joins again.

    Example:
        >>> print(in_lines("python -m lit_fed fit " + 4 * "--trainer.max_epochs 60 "))
        python -m lit_fed fit --trainer.max_epochs 60 --trainer.max_epochs 60 --trainer.max_epochs 60 \
          --trainer.max_epochs 60
    """
    if len(command) <= WIDTH:
        return command.strip()
    lines = [""]
    for part in re.split(r" (?=--?[\w(])", command.strip()):
        if lines[-1] and len(f"{lines[-1]} {part} \\") > WIDTH:
            lines[-1] += " \\"
            lines.append(f"  {part}")
        else:
            lines[-1] = f"{lines[-1]} {part}".lstrip() if len(lines) == 1 else f"{lines[-1]} {part}"
    return "\n".join(lines)
