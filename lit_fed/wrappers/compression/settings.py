"""What a user asks for of fewer bits, and what is refused of it before training."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.types import Tree
from lit_fed.errors import ConfigError
from lit_fed.wrappers.compression.codecs.base import Codec
from lit_fed.wrappers.compression.codecs.vectors import SMALLEST, Scope, vectors_of
from lit_fed.wrappers.compression.downlink import CompressedBroadcast
from lit_fed.wrappers.compression.uplink import Compressed, Feedback, sent_leaves
from lit_fed.wrappers.privacy.settings import Privacy

__all__ = ["Compression"]


class Compression(NamedTuple):
    """Codecs of what clients send and of what they hear."""

    up: Codec | None = None
    feedback: Feedback | None = None
    scope: Scope = "leaf"
    down: Codec | None = None

    def around(self, algorithm: Any) -> Any:
        """`Compressed` around an algorithm, if there is a codec."""
        return algorithm if self.up is None else Compressed(algorithm, self.up, self._told_later(algorithm), self.scope)

    def around_broadcast(self, algorithm: Any) -> Any:
        """`CompressedBroadcast` around an algorithm, if there is a codec for the way down."""
        return algorithm if self.down is None else CompressedBroadcast(algorithm, self.down, self.scope)

    def _told_later(self, algorithm: Any) -> Feedback:
        """The feedback; by default none for a codec that loses nothing on average, unless what it loses adds up."""
        assert self.up is not None
        usual: Feedback = "none" if self.up.unbiased and not algorithm.keeps_running_sum else "ef14"
        return usual if self.feedback is None else self.feedback

    @property
    def _given(self) -> dict[str, Codec]:
        """The codecs, by their options."""
        given = {"--model.compression": self.up, "--model.downlink_compression": self.down}
        return {option: codec for option, codec in given.items() if codec is not None}

    def check(self, algorithm: Any, name: str, aggregation: str) -> None:
        """Refuse what does not go together.

        Args:
            algorithm: the algorithm.
            name: its name.
            aggregation: what absent clients count for.

        Raises:
            ConfigError: naming the options and the algorithm.
        """
        if self.feedback not in (None, *get_args(Feedback)):
            raise ConfigError(f"--model.compression_feedback is {self.feedback}; give none, ef14 or ef21")
        if self.scope not in get_args(Scope):
            raise ConfigError(f"--model.compression_scope is {self.scope}; give leaf or whole")
        if self.up is None and self.feedback is not None:
            raise ConfigError(
                f"--model.compression_feedback is {self.feedback}, and there is no --model.compression; give one, or "
                "leave it out"
            )
        if not self._given and self.scope != "leaf":
            raise ConfigError(
                f"--model.compression_scope is {self.scope}, and there is no --model.compression; give one, or leave "
                "it out"
            )
        for option, codec in self._given.items():
            _check_algorithm(option, algorithm, name)
            if codec.keeps_shape and self.scope == "whole":
                raise ConfigError(
                    f"{option} is {type(codec).__name__}, which takes matrices, and --model.compression_scope is "
                    "whole; give leaf"
                )
        if self.feedback == "none" and algorithm.keeps_running_sum:
            raise ConfigError(
                f"--model.compression_feedback is none, and {name} adds up what clients send from round to round, so "
                "that what a codec loses is lost for good; give ef14"
            )
        if self.feedback == "ef21":
            self._check_ef21(algorithm, name, aggregation)

    def _check_ef21(self, algorithm: Any, name: str, aggregation: str) -> None:
        """Refuse EF21 where the mean of what is known of all clients is not what the server needs."""
        reason = ""
        if algorithm.keeps_running_sum or algorithm.sends_beside_models:
            reason = f"{name} adds up what clients send from round to round, and would add up what was known before"
        elif not algorithm.sends_all:
            reason = f"clients of {name} send some of the models, each to a mean of its own"
        elif aggregation == "stale_fill":
            reason = "--model.aggregation stale_fill has no absent clients to fill in, for their last changes count"
        if reason:
            raise ConfigError(f"--model.compression_feedback is ef21, and {reason}; give ef14")

    def check_wrappers(self, *, privacy: Privacy | None, secure: bool) -> None:
        """Refuse what other wrappers cannot live with.

        Args:
            privacy: differential privacy; None: none.
            secure: whether the server sees sums alone, so that messages have to be added up undecoded.

        Raises:
            ConfigError: naming the options.
        """
        if privacy is not None and privacy.noises_messages and self.up is not None:
            raise ConfigError(
                f"--model.compression {type(self.up).__name__} encodes changes before --model.privacy "
                f"{type(privacy).__name__} adds noise to all of their numbers, so that nothing is saved; leave it out"
            )
        if privacy is not None and self.feedback == "ef21":
            raise ConfigError(
                "--model.compression_feedback is ef21, whose server adds up what it learns from round to round, the "
                "noise of --model.privacy included; give ef14"
            )
        if secure and self.up is not None and not self.up.adds_up:
            raise ConfigError(
                f"--model.compression {type(self.up).__name__}: its scales or positions differ from client to client, "
                "and with --model.secure_aggregation their sum cannot be decoded; choose RandomK"
            )
        if secure and self.down is not None:
            raise ConfigError(
                "--model.downlink_compression lets clients hear other models than the server has, and the masked words "
                "of --model.secure_aggregation are told from the server's; leave one out"
            )

    def check_sampling(self, sampling: str) -> None:
        """Refuse draws by which a client may count twice, where the server knows each once.

        Raises:
            ConfigError: naming both settings.
        """
        if self.feedback == "ef21" and sampling == "size":
            raise ConfigError(
                "--model.compression_feedback is ef21, whose server knows of each client once, and "
                "--data.client_sampling is size, by which a client may be drawn twice in a round; give ef14, or uniform"
            )

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


def _check_algorithm(option: str, algorithm: Any, name: str) -> None:
    """Refuse an algorithm whose messages are no changes of models that an average could take, or are of old ones."""
    if option == "--model.downlink_compression" and algorithm.refuses_encoded_broadcast:
        raise ConfigError(f"{option} encodes changes of the server's last models, and {name} "
                          f"{algorithm.refuses_encoded_broadcast}; leave it out")  # fmt: skip
    if algorithm.sends in ("models", "changes"):
        return
    kept = {"rows": "keeps rows of single clients at the server", "nothing": "sends nothing to a server"}
    reason = kept.get(algorithm.sends, "sends models times numbers that are the client's own")
    raise ConfigError(
        f"{option} encodes changes of models, and {name} {reason}; choose an algorithm that averages models, or leave "
        "it out"
    )
