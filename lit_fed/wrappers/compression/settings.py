"""What a user asks for of fewer bits, and what is refused of it before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.types import Tree
from lit_fed.errors import ConfigError
from lit_fed.wrappers.compression.codecs.base import Codec
from lit_fed.wrappers.compression.codecs.vectors import SMALLEST, Scope, vectors_of
from lit_fed.wrappers.compression.downlink import CompressedBroadcast
from lit_fed.wrappers.compression.uplink import Compressed, Feedback, sent_leaves

__all__ = ["Compression"]


@dataclass(frozen=True)
class Compression:
    """Codecs of what clients send and of what they receive."""

    up: Codec | None = None
    feedback: Feedback | None = None
    scope: Scope = "leaf"
    down: Codec | None = None

    def __post_init__(self) -> None:
        """Refuse unknown values, and settings of a codec that is not there or does not fit."""
        if self.feedback not in (None, *get_args(Feedback)):
            raise ConfigError(f"--model.compression_feedback is {self.feedback}; give none, ef14 or ef21")
        if self.scope not in get_args(Scope):
            raise ConfigError(f"--model.compression_scope is {self.scope}; give leaf or whole")
        for name, given, missing in (
            ("feedback", self.feedback, self.feedback is not None and self.up is None),
            ("scope", self.scope, self.scope != "leaf" and not self._given),
        ):
            if missing:
                raise ConfigError(
                    f"--model.compression_{name} is {given}, and there is no --model.compression; give one, or leave "
                    "it out"
                )
        for option, codec in self._given.items():
            if codec.keeps_shape and self.scope == "whole":
                raise ConfigError(
                    f"{option} is {type(codec).__name__}, which takes matrices, and --model.compression_scope is "
                    "whole; give leaf"
                )

    def around(self, algorithm: Any) -> Any:
        """`Compressed` around an algorithm, if there is a codec."""
        return algorithm if self.up is None else Compressed(algorithm, self.up, self._told_later(algorithm), self.scope)

    def around_broadcast(self, algorithm: Any) -> Any:
        """`CompressedBroadcast` around an algorithm, if there is a codec for the way down."""
        return algorithm if self.down is None else CompressedBroadcast(algorithm, self.down, self.scope)

    def _told_later(self, algorithm: Any) -> Feedback:
        """The feedback; by default none for a codec that loses nothing on average, unless what it loses adds up."""
        assert self.up is not None
        usual: Feedback = "none" if self.up.unbiased and not algorithm.message.accumulates else "ef14"
        return usual if self.feedback is None else self.feedback

    @property
    def _given(self) -> dict[str, Codec]:
        """The codecs, by their options."""
        given = {"--model.compression": self.up, "--model.downlink_compression": self.down}
        return {option: codec for option, codec in given.items() if codec is not None}

    def check_models(self, algorithm: Any, ctx: Context, shared: Tree) -> None:
        """Refuse codecs that do not fit the models.

        Args:
            algorithm: the algorithm inside the wrappers that come before.
            ctx: what every client knows.
            shared: the shared state.

        Raises:
            ConfigError: naming the option, the leaf and its size.
        """
        for option, codec in self._given.items():
            leaves: dict[str, Tensor] = sent_leaves(algorithm, ctx, tree.models(shared)[0].parameters)
            vectors = vectors_of(leaves, codec, self.scope)
            if not vectors:
                largest = max((leaf[0].numel() for leaf in leaves.values()), default=0)
                raise ConfigError(
                    f"{option} {type(codec).__name__} has nothing to encode: leaves of less than {SMALLEST} numbers go "
                    f"as they are, and the largest has {largest}; give --model.compression_scope whole, or leave it out"
                )
            for name, vector in vectors.items():
                codec.check_size(vector[0].numel(), "the model" if self.scope == "whole" else name)
