"""A digest of all samples, by which a run that goes on tells whether its data are still the same."""

from __future__ import annotations

import hashlib

import numpy as np

from lit_fed.core.types import Population
from lit_fed.data.populations.checks import looked_at
from lit_fed.data.populations.drawn_clients import DrawnSplit

__all__ = ["fingerprint"]


def fingerprint(*populations: Population | None) -> str:
    """A digest of offsets, inputs and labels of all splits, 32 hexadecimal digits; None stands for no clients.

    Of a split that draws its clients it covers all sizes, what the samples depend on, and the samples of a few clients.
    """
    digest = hashlib.blake2b(digest_size=16)
    for population in populations:
        digest.update(b"none" if population is None else b"population")
        for split in () if population is None else (population.train, population.val, population.test):
            tensors = [split.offsets]
            if isinstance(split, DrawnSplit):
                digest.update(split.origin.encode())
                tensors.append(split.numbers)
            few = looked_at(split)
            for tensor in (*tensors, few.x, few.y):
                array = np.ascontiguousarray(tensor.numpy())
                digest.update(f"{array.dtype.str}{array.shape}".encode())
                digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
