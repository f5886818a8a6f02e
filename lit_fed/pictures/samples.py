"""A figure of test samples: input, truth and prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lit_fed.pictures import style
from lit_fed.system.names import few
from lit_fed.system.packages import mpl, pd

__all__ = ["samples_figure"]

LEAST_COLUMNS = 4
"""Columns that share the width of a page at least, so that few images are not enlarged."""

LONGEST = 18
"""Upper limit of letters in the truth and the prediction of a sample."""


def samples_figure(images: np.ndarray, table: pd.DataFrame, num_classes: int) -> Any:
    """Samples side by side, with truth and prediction below: in words, or as masks.

    Args:
        images: pixels [n, channels, height, width] in 0..1, of 1 or 3 channels.
        table: the predictions of these samples, a row each, see `prediction_table`.
        num_classes: C; pixels of masks outside 0 … C − 1 stay white.
    """
    rows = table.to_dict("records")
    lines = ("label", "prediction") if isinstance(rows[0].get("label"), np.ndarray) else ()
    width = style.FULL_WIDTH / max(len(rows), LEAST_COLUMNS)
    height = width * images.shape[2] / images.shape[3]
    with mpl.rc_context(style.COLUMN):
        figure = style.new_figure(width * len(rows), (1 + len(lines)) * height + (0.3 if lines else 0.6))
        panels = figure.subplots(1 + len(lines), len(rows), squeeze=False)
        for row, image, column in zip(rows, images, panels.T, strict=True):
            column[0].imshow(image.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            client = str(row["client"])
            column[0].set_title(style.short_name(f"client {client}" if client.isdecimal() else client))
            if not lines:
                said = f"truth: {_said(row, 'label')}\npredicted: {_said(row, 'prediction')}"
                column[0].set_xlabel(said, fontsize=7)
            for name, axes in zip(lines, column[1:], strict=True):
                classes = np.ma.masked_outside(row[name], 0, num_classes - 1)
                axes.imshow(classes, cmap="viridis", vmin=0, vmax=num_classes - 1, interpolation="nearest")
        for axes, name in zip(panels[:, 0], ("input", "truth", "prediction")[: 3 if lines else 0], strict=False):
            axes.set_ylabel(name)
        for axes in panels.flat:
            axes.set(xticks=[], yticks=[])
            style.frame(axes)
    return figure


def _said(row: Mapping[Any, Any], kind: str) -> str:
    """Truth or prediction of a sample in a few letters; of several labels those that hold."""
    values = {str(name).removeprefix(f"{kind}_"): one for name, one in row.items() if str(name).startswith(kind)}
    numbers = [f"{one:.3g}" if isinstance(one, float) else str(one) for one in values.values()]
    if len(values) > 1 and all(isinstance(one, int) for one in values.values()):  # 0 or 1
        numbers = [name for name, one in values.items() if one] or ["none"]
    return style.short_name(few(numbers, 3), LONGEST)
