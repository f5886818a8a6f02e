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
"""Modules that there are no more, or with other content; what stood in them for the command line is in `lit_fed`."""

MOVED = re.compile(rf"\blit_fed\.(?:{'|'.join(map(re.escape, MODULES))})\.(?=[A-Z])")


def with_present_paths(text: str) -> str:
    """A configuration or an argument with every path of a class that has moved as it is now.

    Args:
        text: YAML, JSON, or a value of the command line.

    Example:
        >>> with_present_paths("surrogate: lit_fed.core.surrogates.MixtureSurrogate")
        'surrogate: lit_fed.MixtureSurrogate'
    """
    return MOVED.sub("lit_fed.", text)
