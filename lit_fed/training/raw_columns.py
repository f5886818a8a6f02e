"""Columns of a table as a program takes them: numbers, and numbers of categories, with gaps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lit_fed.data.data_sets.columns import TableColumns
from lit_fed.errors import ConfigError

__all__ = ["RawColumns"]


class RawColumns(nn.Module):
    """Inputs [N, W] of columns [N, R]: fills in missing values (NaN), and encodes categories one-hot.

    Args:
        columns: encoding of the training's table.

    Raises:
        ConfigError: if missing values are filled in by each client's own, which only its rows say.
    """

    fill: Tensor
    source: Tensor
    code: Tensor
    kind: Tensor

    def __init__(self, columns: TableColumns) -> None:
        super().__init__()
        if columns.own_fills is not None:
            raise ConfigError(
                "--raw_columns is true, and missing values are filled in by each client's own rows (impute_by client), "
                "which a program does not have; leave --raw_columns out, or train with impute_by all"
            )
        nan, fills, inputs = math.nan, [], []  # of each input: its column, the category's number, and its kind
        for place, one in enumerate(columns.features):
            if one.categories is None:
                fills.append(nan if one.fill is None else float(one.fill))
                inputs.append((place, 0, 0))
            else:
                fills.append(float(one.categories.index(one.fill)) if one.fill in one.categories else -1.0)
                inputs += [(place, code, 1) for code in range(len(one.categories))]
            inputs += [(place, 0, 2)] * one.indicator
        self.columns = columns
        self.register_buffer("fill", torch.tensor(fills))
        for name, each in zip(("source", "code", "kind"), zip(*inputs, strict=True), strict=True):
            self.register_buffer(name, torch.tensor(each))

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows; a missing number without a fill stays NaN, and an unknown category is in no input."""
        missing = x.isnan()
        known = torch.where(missing, self.fill, x)[:, self.source]
        encoded = torch.where(self.kind == 1, (known == self.code).to(x.dtype), known)
        return torch.where(self.kind == 2, missing[:, self.source].to(x.dtype), encoded)

    @property
    def about(self) -> list[dict[str, Any]]:
        """Name of each column, and its categories in the order of their numbers; None: it is a number."""
        return [
            {"name": one.name, "categories": None if one.categories is None else list(one.categories)}
            for one in self.columns.features
        ]
