"""Networks of several inputs, such as tokens with their mask, or a picture with numbers of a table.

A sample is one row of numbers, the inputs one after another, and only the network takes it apart: data sets, client
trainers, privacy, nodes and exported programs see samples [n, D].
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from lit_fed.errors import ConfigError
from lit_fed.models.base import Network

__all__ = ["NamedInputs", "pack_inputs"]

LARGEST = 2**24
"""Whole numbers up to which float32 is exact."""


class NamedInputs(Network):
    """Base of networks that read several inputs, which `pack_inputs` put into samples [B, D].

    A subclass names them, in the order in which they were packed, on the class or in `__init__`, and reads them.

    Attributes:
        inputs: shape of each input in one sample, by name.
        whole: names of the inputs that hold whole numbers, such as tokens; `read` gets them as int64.
    """

    inputs: Mapping[str, tuple[int, ...]]
    whole: tuple[str, ...] = ()

    @abstractmethod
    def read(self, **inputs: Tensor) -> Tensor:
        """Outputs [B, K] of the inputs [B, *shape] by their names."""

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of packed samples [B, D].

        Raises:
            ConfigError: if the samples do not hold as many numbers as the inputs.
        """
        sizes = [math.prod(shape) for shape in self.inputs.values()]
        if x.ndim != 2 or x.shape[1] != sum(sizes) or not x.is_floating_point():
            named = ", ".join(f"{name} {list(shape)}" for name, shape in self.inputs.items())
            raise ConfigError(
                f"{type(self).__name__} reads {named}: {sum(sizes)} numbers of a sample, and the samples are {x.dtype} "
                f"of shape {list(x.shape[1:])}; store x = pack_inputs({', '.join(f'{name}=…' for name in self.inputs)})"
            )
        parts = zip(self.inputs.items(), x.split(sizes, dim=1), strict=True)
        given = {name: part.reshape(len(x), *shape) for (name, shape), part in parts}
        return self.read(**{name: part.long() if name in self.whole else part for name, part in given.items()})


def pack_inputs(**inputs: np.ndarray) -> np.ndarray:
    """Samples [n, D] of several inputs [n, ...], one after another, as float32; numbers stay as they are.

    Args:
        inputs: numbers or truth values, in the order of `NamedInputs.inputs`; sequences padded to one length.

    Raises:
        ConfigError: naming an input of another length, or with whole numbers that float32 cannot hold.

    Example:
        >>> pack_inputs(ids=np.array([[7, 2, 0]]), mask=np.array([[True, True, False]])).tolist()
        [[7.0, 2.0, 0.0, 1.0, 1.0, 0.0]]
    """
    rows = []
    for name, array in inputs.items():
        length = len(next(iter(inputs.values())))
        if len(array) != length:
            raise ConfigError(
                f"input {name} has {len(array)} samples, and the first input has {length}; pack equally many"
            )
        if array.dtype.kind in "iu" and array.size and max(-int(array.min()), int(array.max())) > LARGEST:
            raise ConfigError(f"input {name} holds whole numbers above {LARGEST}; number its values anew from 0")
        rows.append(array.reshape(length, -1).astype(np.float32))
    return np.concatenate(rows, axis=1)
