"""Critical-difference diagram: average ranks on a line, and bars over algorithms that may be level.

Demsar. "Statistical Comparisons of Classifiers over Multiple Data Sets". JMLR 7 (2006), Figure 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lit_fed.pictures import style
from lit_fed.system.packages import mpl

__all__ = ["critical_difference_diagram", "level_groups"]

MOST = 20
"""Upper limit of algorithms in the figure: the best by rank."""

LINE = 0.22
"""Height of a line of text in inches."""


def level_groups(ranks: list[float], critical: float) -> list[tuple[int, int]]:
    """First and last position of each largest group of ranks, ascending, that differ by at most `critical`.

    Example:
        >>> level_groups([1.0, 1.5, 2.2, 4.0], 1.0)
        [(0, 1), (1, 2)]
    """
    found: list[tuple[int, int]] = []
    for first, rank in enumerate(ranks):
        last = max(place for place, other in enumerate(ranks) if other - rank <= critical)
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return found


def critical_difference_diagram(ranks: Mapping[str, float], critical: float) -> Any:
    """The figure.

    Args:
        ranks: average rank of each algorithm; 1 is the best.
        critical: ranks that differ by less are level.
    """
    shown = dict(sorted(ranks.items(), key=lambda one: one[1])[:MOST])
    values, half = list(shown.values()), -(-len(shown) // 2)
    bars = level_groups(values, critical)
    with mpl.rc_context(style.COLUMN):
        figure = style.new_figure(style.FULL_WIDTH, LINE * (half + 0.6 * len(bars) + 3))
        axes = figure.subplots()
        low, high = min(values), max(values)
        margin = max(high - low, critical) / 2
        left, right = low - margin, max(high, low + critical) + margin
        axes.set(xlim=(left, right), ylim=(half + 0.6 * len(bars) + 1, -1.5), yticks=[])
        axes.spines[["left", "right", "bottom"]].set_visible(False)
        axes.grid(visible=False)
        axes.spines["top"].set_visible(True)
        axes.spines["top"].set_position(("data", 0))
        axes.xaxis.tick_top()
        axes.plot([low, low + critical], [-1, -1], color="black", marker="|")
        axes.annotate(f"critical difference {critical:.2f}", (low, -1), xytext=(4, 3), textcoords="offset points")
        for place, (first, last) in enumerate(bars):
            axes.plot([values[first], values[last]], [0.4 + 0.6 * place] * 2, color="black", linewidth=2.5)
        for place, (name, rank) in enumerate(shown.items()):
            is_left = place < half
            height = 0.6 * len(bars) + 1 + (place if is_left else len(shown) - 1 - place)
            end = left if is_left else right
            axes.plot([rank, rank, end], [0, height, height], color="grey", linewidth=0.6)
            said = f"{style.literal(name)} {rank:.1f}"
            axes.annotate(said, (end, height), ha="left" if is_left else "right", va="bottom", fontsize=7)
    return figure
