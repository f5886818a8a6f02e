"""What a node tells the server when it cannot answer: one of these codes. The full text goes to the node's own log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lit_fed.deployment.wire import WireError
from lit_fed.errors import ConfigError

__all__ = ["REFUSALS", "RefusalError", "refusing"]

REFUSALS = {
    "packet": "the question cannot be read",
    "folders": "it was started without a folder that it needs, or with one that it cannot use",
    "no settings": "no settings were sent: the server is a program; give `Node` those of its module",
    "settings": "the classes that the settings name cannot be made there",
    "start": (
        "the models that clients start from are others here, or data and settings do not go together; install the same "
        "version of torch, have the same files of a pretrained network on both, and leave out --init_from"
    ),
    "noise seed": "the settings hold the seed of this node's noise, which the server could then subtract",
    "clients": "its clients are others than at the start; start the server's command again",
    "states missing": "the file of a client's state is missing; give it the folder --states that it had before",
    "states damaged": "the file of a client's state cannot be read; put it back from a copy",
    "disk": "its disk cannot be written to",
    "error": "an error",
}
"""Phrases for the server's operator by code; a code that is not in it makes an answer garbage."""


class RefusalError(Exception):
    """A question that a node does not answer.

    Attributes:
        code: what the server is told, a key of `REFUSALS`.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def refusing(code: str) -> Iterator[None]:
    """Turn every error in a block, all of whose input comes from the server, into a refusal with this code."""
    try:
        yield
    except RefusalError:
        raise
    except Exception as error:  # whatever a library makes of foreign options
        kind = "" if isinstance(error, ConfigError | WireError) else f"{type(error).__name__}: "
        raise RefusalError(code, f"{kind}{error}") from error
