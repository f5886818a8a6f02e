"""Paths of classes that have moved: configurations and checkpoints that were written before still name them."""

from __future__ import annotations

import re

__all__ = ["with_present_paths"]

MODULES = (
    "core.local", "core.surrogates", "core.topology",
    "data.cifar", "data.client_folder", "data.client_groups", "data.digits", "data.emnist", "data.feature_blocks",
    "data.femnist", "data.mnist", "data.office_home", "data.pachinko", "data.partition", "data.quantity_skew",
    "data.shakespeare", "data.shards", "data.sine", "data.synthetic",
)  # fmt: skip
"""Modules below `lit_fed` that are gone; the classes of theirs that the command line takes are found as `lit_fed.X`."""

MOVED = re.compile(rf"\blit_fed\.(?:{'|'.join(map(re.escape, MODULES))})\.(?=[A-Z])")


def with_present_paths(text: str) -> str:
    """A configuration or an argument with the present path of each class that has moved.

    Args:
        text: YAML, JSON, or a value of the command line.

    Example:
        >>> with_present_paths("surrogate: lit_fed.core.surrogates.MixtureSurrogate")
        'surrogate: lit_fed.MixtureSurrogate'
    """
    return MOVED.sub("lit_fed.", text)
