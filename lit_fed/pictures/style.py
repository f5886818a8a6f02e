"""Style of all figures: sizes, lines that differ in grey too, units, and files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lit_fed.metrics.scores import STATISTICS
from lit_fed.system.files import whole_file

__all__ = [
    "COLOURS", "COLUMN", "COLUMN_WIDTH", "DASHES", "DPI", "FULL_WIDTH", "MARKERS", "POPULATIONS", "SAMPLES", "STYLE",
    "UNDATED",
    "byte_unit", "bytes_in_unit", "draw_curve", "draw_mean", "few_ticks", "frame", "legend_above", "literal", "look",
    "name_clients", "new_figure", "percent", "save", "scale_of", "short_name",
]  # fmt: skip

SAMPLES = "test_samples.png"
"""Name of the figure of test samples in the folder of a run's figures."""

DPI = 200
"""Resolution of every figure."""

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "figure.constrained_layout.use": True,
    "savefig.dpi": DPI,
}

COLUMN: dict[Any, Any] = STYLE | {
    "font.size": 8,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 2.8,  # room for a dash
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,  # embeds fonts as text, as publishers require
    "svg.hashsalt": "lit_fed",  # reproducible files
}
"""Settings of matplotlib for figures printed in their drawn size."""

COLUMN_WIDTH, FULL_WIDTH = 3.4, 7.0
"""Widths of one column and of two, in inches."""

MARKERS = "osD^vP*X<>"
DASHES = ["-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2))]
COLOURS = ["#1b4f8a", "#d1701f", "#4f9d69", "#7a4f9d", "#8a8a8a", "#b03a48", "#c9a227", "#2a9d9d"]

POPULATIONS = {"seen": "#7694bb", "unseen": "#d1701f"}
"""Colours of areas by population."""

MOST_MARKERS = 8

LONGEST_NAME = 14
"""Upper limit of letters of a client's name."""

UNDATED = {".png": {"Software": None}, ".pdf": {"CreationDate": None}, ".svg": {"Date": None}}
"""Metadata by format that keeps files reproducible."""


def new_figure(width: float, height: float) -> Any:
    """An empty figure of a size in inches, which a notebook shows."""
    from matplotlib.figure import Figure

    class Shown(Figure):
        """IPython knows matplotlib's figures only after pyplot has drawn one."""

        def _repr_png_(self) -> bytes:
            held = io.BytesIO()
            self.savefig(held, format="png")
            return held.getvalue()

    return Shown(figsize=(width, height))


def look(position: int) -> dict[str, Any]:
    """Dash and marker of a line, by its position among the lines of a figure."""
    return {"linestyle": DASHES[position % len(DASHES)], "marker": MARKERS[position % len(MARKERS)]}


def draw_curve(
    axes: Any, x: Sequence[float] | np.ndarray, middle: Any, deviation: Any = None, **line_options: Any
) -> None:
    """Draw a line with a few markers, and a band of one standard deviation around it.

    Args:
        axes: where it is drawn.
        x: where the points stand on the horizontal axis, [n].
        middle: their values, [n].
        deviation: standard deviations, [n]; None: no band.
        line_options: as those of matplotlib's `plot`.
    """
    (line,) = axes.plot(x, middle, markevery=max(1, len(x) // MOST_MARKERS), **line_options)
    if deviation is not None:
        axes.fill_between(x, middle - deviation, middle + deviation, color=line.get_color(), alpha=0.15)


def draw_mean(axes: Any, x: Sequence[float] | np.ndarray, values: Any, **line_options: Any) -> None:
    """The mean over seeds of values [seeds, n], in a band of their standard deviation with n − 1; see `draw_curve`."""
    values = np.asarray(values)
    draw_curve(axes, x, values.mean(0), values.std(0, ddof=1) if len(values) > 1 else None, **line_options)


def byte_unit(most: float) -> tuple[float, str]:
    """Bytes in a unit, and its name, for numbers of up to so many bytes.

    Example:
        >>> byte_unit(2_500_000)
        (1000000.0, 'MB')
    """
    names = ["bytes", "kB", "MB", "GB", "TB", "PB"]
    power = int(np.clip(np.floor(np.log10(max(most, 1)) / 3), 0, len(names) - 1))
    return 1000.0**power, names[power]


def bytes_in_unit(value: float) -> str:
    """A number of bytes as text; empty if it is unknown, NaN.

    Example:
        >>> bytes_in_unit(2_512_345)
        '2.51 MB'
    """
    size, name = byte_unit(value)
    return f"{value / size:.3g} {name}" if value == value else ""


def percent(name: str) -> tuple[float, str]:
    """The factor of a metric, or of a statistic of it, in figures, 100 for shares, and its unit.

    Example:
        >>> percent("accuracy"), percent("accuracy_std"), percent("mse")
        ((100.0, ' (%)'), (100.0, ' (%)'), (1.0, ''))
    """
    units_of_their_own = tuple(suffix for suffix, one in STATISTICS.items() if not one.in_its_unit)
    is_share = name.startswith("accuracy") and not name.endswith(units_of_their_own)
    return (100.0, " (%)") if is_share else (1.0, "")


def scale_of(values: Any) -> str:
    """`log` for positive values over two orders of magnitude, else `linear`.

    Example:
        >>> scale_of([0.01, 2.0]), scale_of([0.0, 2.0])
        ('log', 'linear')
    """
    known = np.asarray(values, dtype=float)
    known = known[np.isfinite(known)]
    return "log" if len(known) and known.min() > 0 and known.max() >= 100 * known.min() else "linear"


def few_ticks(*, whole: bool = False, most: int = 6) -> Any:
    """A locator of ticks at round numbers, or at whole ones."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(most, steps=[1, 2, 5, 10], integer=whole, min_n_ticks=1)


def frame(axes: Any) -> None:
    """Draw the box around the axes of a heat map, without a grid."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(True)


def legend_above(figure: Any, columns: int = 2) -> None:
    """Add a legend of all labelled artists above the figure's axes."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles, labels = ([one for part in parts for one in part] for parts in zip(*found, strict=True))
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=min(columns, len(handles)))


def literal(text: Any) -> str:
    r"""A text that matplotlib draws as it is: $ begins no formula, and _ at the start hides no line from the legend.

    Example:
        >>> literal("$x$"), literal("_anna")
        ('\\$x\\$', ' _anna')
    """
    return f"{' ' * str(text).startswith('_')}{text}".replace("$", r"\$")


def short_name(name: Any, most: int = LONGEST_NAME, line: int | None = None) -> str:
    """The name of a client or a run, shortened for a figure, as `literal`; `line`: upper limit of letters in a line.

    Example:
        >>> short_name("anna"), short_name("hospital_of_the_north_4")
        ('anna', 'hospital_of_t…')
    """
    text = str(name) if len(str(name)) <= most else f"{str(name)[: most - 1]}…"
    return literal(text if line is None else textwrap.fill(text, line))


def name_clients(axes: Any, names: Sequence[Any] | np.ndarray | None, num_clients: int, most: int = 30) -> None:
    """Write the names of clients below an axis on which they stand at 0, 1, …; no ticks if there are too many.

    Args:
        axes: the axes.
        names: in the order of the axis; None if unknown.
        num_clients: number of clients.
        most: upper limit of names.
    """
    if names is None or num_clients > most:
        axes.set_xticks([])
        return
    turned = {"rotation": 90} if sum(len(short_name(name)) for name in names) > most else {}
    axes.set_xticks(range(num_clients), [short_name(name) for name in names], fontsize=6, **turned)
    axes.tick_params(axis="x", length=2, pad=1.5)


def save(figure: Any, path: Path) -> None:
    """Write a figure atomically, in the format of the path's suffix."""
    with whole_file(path) as file:
        figure.savefig(file, format=path.suffix[1:], dpi=DPI, metadata=UNDATED[path.suffix])
