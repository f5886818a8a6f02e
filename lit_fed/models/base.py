"""What a network has to be."""

from __future__ import annotations

from torch import nn

__all__ = ["Network"]


class Network(nn.Module):
    """A plain module built from the sizes of the data.

    Subclasses take `input_shape` (of one sample) and `num_outputs` first, then options of their own; these appear on
    the command line as `--model.network.<option>`.
    """
