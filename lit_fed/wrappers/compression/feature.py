"""Compression: codecs of messages and broadcasts, `--model.compression` and the options beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.types import Tree
from lit_fed.errors import ConfigError
from lit_fed.wrappers.compression.codecs.base import SMALLEST, Codec, Feedback, Scope, vectors_of
from lit_fed.wrappers.feature import Feature

__all__ = ["CompressionFeature"]

ENCODES = " encodes changes of models, and {name} %s; choose an algorithm that averages models, or leave it out"
EF21 = "--model.compression_feedback is ef21, and %s; give ef14"
ADDS_UP = "{name} adds up what clients send from round to round, and would add up what was known before"


@dataclass(frozen=True)
class CompressionFeature(Feature):
    """Codecs for both directions.

    Args:
        compression: codec of the clients' messages, applied to the change of each leaf; null: none.
        compression_feedback: treatment of the codec's error: dropped (`none`), added to the client's next message
            (`ef14`), or avoided by sending differences to the server's copy (`ef21`); null: `ef14` for a biased codec,
            else `none`.
        compression_scope: what is encoded as one vector: each `leaf` of a model, or the `whole` model.
        downlink_compression: codec of what the server sends; null: none.
    """

    compression: Codec | None = None
    compression_feedback: Feedback | None = None
    compression_scope: Scope = "leaf"
    downlink_compression: Codec | None = None

    order = 2
    acts_on_messages = True
    reasons = {
        "encoded_broadcast": "--model.downlink_compression, which encodes changes of the server's last models",
        "ef21": "--model.compression_feedback ef21",
    }
    acts = {
        "compression": "--model.compression" + ENCODES,
        "downlink": "--model.downlink_compression" + ENCODES,
    }
    refused = {
        "downlink refuses_encoded_broadcast": (
            "--model.downlink_compression encodes changes of the server's last models, and {name} "
            "{refuses_encoded_broadcast}; leave it out"
        ),
        "feedback_none accumulates": (
            "--model.compression_feedback is none, and {name} adds up what clients send from round to round, so that "
            "what a codec loses is lost for good; give ef14"
        ),
        "ef21 accumulates": EF21 % ADDS_UP,
        "ef21 second_part": EF21 % ADDS_UP,
        "ef21 refuses_ef21": EF21 % "{name} {refuses_ef21}",
        "ef21 incomplete": EF21 % "clients of {name} send some of the models, each to a mean of its own",
        "ef21 stale_fill": EF21
        % "--model.aggregation stale_fill has no absent clients to fill in, for their last changes count",
        "compression noisy_messages": (
            "--model.compression {compression} encodes changes before --model.privacy {privacy} adds noise to all of "
            "their numbers, so that nothing is saved; leave it out"
        ),
        "ef21 privacy": (
            "--model.compression_feedback is ef21, whose server adds up what it learns from round to round, the noise "
            "of --model.privacy included; give ef14"
        ),
        "secure scaled_codec": (
            "--model.compression {compression}: its scales or positions differ from client to client, and with "
            "--model.secure_aggregation their sum cannot be decoded; choose RandomK"
        ),
        "secure downlink": (
            "--model.downlink_compression gives clients other models than the server has, and the masked words of "
            "--model.secure_aggregation encode changes of the server's; leave one out"
        ),
        "ef21 size": (
            "--model.compression_feedback is ef21, whose server knows of each client once, and --data.client_sampling "
            "is size, by which a client may be drawn twice in a round; give ef14, or uniform"
        ),
    }

    def check(self) -> None:
        """Refuse settings that need another codec or none."""
        for name, given, missing in (
            ("feedback", self.compression_feedback, self.compression_feedback is not None and not self.compression),
            ("scope", self.compression_scope, self.compression_scope != "leaf" and not self.codecs),
        ):
            if missing:
                raise ConfigError(
                    f"--model.compression_{name} is {given}, and there is no --model.compression; give one, or leave "
                    "it out"
                )
        for option, codec in self.codecs.items():
            if codec.keeps_shape and self.compression_scope == "whole":
                raise ConfigError(
                    f"{option} is {type(codec).__name__}, which takes matrices, and --model.compression_scope is "
                    "whole; give leaf"
                )

    @property
    def codecs(self) -> dict[str, Codec]:
        """The codecs, by their options."""
        given = {"--model.compression": self.compression, "--model.downlink_compression": self.downlink_compression}
        return {option: codec for option, codec in given.items() if codec is not None}

    def facts(self, algorithm: Any) -> dict[str, Any]:
        codec = self.compression
        return {
            "compression": None if codec is None else type(codec).__name__,
            "scaled_codec": codec is not None and not codec.adds_up,
            "downlink": self.downlink_compression is not None,
            "ef21": self.compression_feedback == "ef21",
            "feedback_none": self.compression_feedback == "none",
        }

    def around(self, algorithm: Any) -> Any:
        """`Compressed`, if there is a codec; by default an unbiased one has no feedback, unless errors accumulate."""
        from lit_fed.wrappers.compression.wrapper import Compressed

        codec, given = self.compression, self.compression_feedback
        if codec is None:
            return algorithm
        usual: Feedback = "none" if codec.unbiased and not algorithm.message.accumulates else "ef14"
        return Compressed(algorithm, codec, usual if given is None else given, self.compression_scope)

    def around_all(self, algorithm: Any) -> Any:
        """`CompressedBroadcast`, if there is a codec for broadcasts."""
        from lit_fed.wrappers.compression.wrapper import CompressedBroadcast

        codec = self.downlink_compression
        return algorithm if codec is None else CompressedBroadcast(algorithm, codec, self.compression_scope)

    def check_models(self, algorithm: Any, terms: Context, shared: Tree) -> None:
        """Refuse codecs that do not fit the models."""
        for option, codec in self.codecs.items():
            leaves = tree.models(shared)[0].parameters
            if not any(leaf[0].numel() for leaf in leaves.values()):
                raise ConfigError(
                    f"{option} {type(codec).__name__} has nothing to encode: no leaf of this network is sent; leave it "
                    "out"
                )
            vectors = vectors_of(leaves, codec, self.compression_scope)
            if not vectors:
                largest = max((leaf[0].numel() for leaf in leaves.values()), default=0)
                raise ConfigError(
                    f"{option} {type(codec).__name__} has nothing to encode: leaves of less than {SMALLEST} numbers go "
                    f"as they are, and the largest has {largest}; give --model.compression_scope whole, or leave it out"
                )
            for name, vector in vectors.items():
                codec.check_size(vector[0].numel(), "the model" if self.compression_scope == "whole" else name)
