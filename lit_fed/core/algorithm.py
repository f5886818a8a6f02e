"""The interface of an algorithm: pure functions of state, with FedAvg's behaviour as the default of each."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, row_of
from lit_fed.core.reduce import server_average
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced, Tree
from lit_fed.errors import check_settings

__all__ = [
    "NOT_SENT", "Algorithm", "GlobalModels", "LocalRun", "MessageSpec", "OwnModel", "Participation", "Personal",
    "Served", "local_result", "local_run", "local_step", "ranged", "takes_steps", "tuned",
    "tuning_space",
]  # fmt: skip

NOT_SENT: Any = None
"""Stands in a client's shared state for what it was not sent; an empty tree."""

ROUNDS_LOOKED_AT = 100
"""Rounds among which at least one has local steps, if the algorithm takes any."""

Shared = TypeVar("Shared", bound=Any)
State = TypeVar("State", bound=Any)
Work = TypeVar("Work", bound=Any)


class GlobalModels(NamedTuple):
    """Shared state of an algorithm with broadcast models."""

    models: ModelState  # leaves [M, ...]


class OwnModel(NamedTuple):
    """State of a client that keeps a personal model, which serves it."""

    models: ModelState  # leaves [1, ...]


class LocalRun(NamedTuple):
    """Work of a client that trains a copy of the broadcast models."""

    models: ModelState  # leaves [M, ...]
    optimizer: Any  # an `OptimizerState`, or one for each model that is trained
    loss: Tensor  # [] sum over steps of the mean loss of the batch, before the step
    steps: Tensor  # [] steps taken
    extra: Any = ()  # what the algorithm keeps beside these during the phase


class MessageSpec(NamedTuple):
    """Content of an algorithm's messages, and how the server combines them."""

    kind: Literal["models", "changes", "multiples", "statistics", "rows", "nothing"] = "models"
    """Models, of which the server knows its own; changes, of which it knows nothing; models times private numbers;
    `statistics` of samples, such as class means, without models; `rows` that the server keeps for each client; or
    nothing."""

    reduce: Literal["sum", "stack"] = "sum"
    """Input of the server: the weighted mean of the messages (one all-reduce), or all of them (an all-gather)."""

    complete: bool = True
    """Whether every client sends all of its models; False: it chooses some."""

    accumulates: bool = False
    """Whether the server adds up messages from round to round: errors and noise then add up, too."""

    beside_models: bool = False
    """Whether messages hold a second tree of parameters, whose scale differs from that of the models."""


class Participation(NamedTuple):
    """Which clients take part in a round, how they are weighted, and what else the server needs."""

    weighting: Literal["samples", "uniform"] = "samples"
    """Weight of a client's message in the paper; the default of `--model.weighting`."""

    needs_all_clients: bool = False
    """Whether every client has to take part in every round, once."""

    counts_draws: bool = True
    """Whether a client that is sampled twice counts twice, as two clients with its samples would, in a mean over draws;
    False: once, because the server or the network keeps one entry for each client."""

    fills_in_absent: bool = True
    """Whether `--model.aggregation stale_fill` is defined: `server_average` averages the models."""

    steps_on_empty_rounds: bool = False
    """Whether the server takes its step after a phase without clients: with weight 0 and means of 0, or without rows.
    False: its state stays as it is."""

    divided_by: Literal["samples", "features"] = "samples"
    """Each client has its own samples, or its own features of the same samples."""


class Algorithm(ABC, Generic[Shared, State, Work]):
    """A federated algorithm.

    Subclasses are frozen dataclasses of hyper-parameters. Every method is pure: state goes in and comes out, `self` is
    never assigned, no input is changed in place. A client's functions see one client, without a client axis. They
    run under `torch.func.vmap`, so Python control flow may not depend on the values of tensors.

    A work tuple of local steps has a field `optimizer`, made by `ctx.solver.init`; the client trainer puts the stored
    state there if `solver.persist_optimizer`. `server_step` may return float64: the round casts it.
    """

    # Annotations here are not postponed: jsonargparse resolves those of a base in the module of the subclass, and one
    # name missing there would leave every field on the command line unchecked.
    message: ClassVar[MessageSpec] = MessageSpec()
    """Content of messages, and how the server combines them. All features accept `models` and `changes`; which other
    kinds one accepts, it says itself."""

    participation: ClassVar[Participation] = Participation()
    """Which clients take part, and how they count."""

    incompatible: ClassVar[dict[str, str]] = {}
    """Features that the algorithm cannot be combined with → the reason, which completes "NAME …" in the error message.

    Keys are those of `lit_fed.wrappers.compatibility.reasons`, e.g. `loss`, `privacy` or `size_sampling`. A reason may
    end with the fix, after a semicolon: `{"loss": "needs the log-loss; leave it out"}`.
    """

    has_server: ClassVar[bool] = True
    """False: clients receive the messages of other clients."""

    server_only: ClassVar[tuple[str, ...]] = ()
    """Fields of the shared state that no function of a client reads; clients are not sent them."""

    start_only: ClassVar[tuple[str, ...]] = ()
    """Fields of the shared state that only a client without a state reads; others are sent the names of its leaves."""

    serving_settings: ClassVar[tuple[str, ...]] = ()
    """Fields that only change how clients are served: a checkpoint may be served with other values."""

    without_samples: ClassVar[str] = ""
    """What the phase `adapt` serves a client without training samples by, in words; "": such a client is refused."""

    mean_mixture: ClassVar[bool] = False
    """Whether an unseen client without training samples gets the mean of the seen clients' mixture weights."""

    reads_losses: ClassVar[bool] = False
    """Whether `client_init` reads the losses of the client's samples under the shared models."""

    state_reads_data: ClassVar[bool] = False
    """Whether `state_init` reads anything of the client, such as its number; else all clients start alike."""

    in_every_combination: ClassVar[bool] = False
    """The promise: numbers are right alone and in every combination with wrappers, ranks and nodes, unless it is
    refused; False: formula, both client trainers and resumed runs are checked, and combinations are not."""

    reveals_mixture: ClassVar[bool] = False
    """Whether messages tell the server a client's mixture weights, which the operator of a node has to allow."""

    hides_cohort: ClassVar[bool] = False
    """Whether it is secret who takes part in a round; so under a wrapper whose ε counts on it."""

    drops_non_finite: ClassVar[bool] = False
    """Whether the server drops messages that hold NaN or infinity."""

    over_selection: ClassVar[float] = 0.0
    """Share of the clients of a round that are drawn beyond their number, since some will be missing."""

    files: ClassVar[dict[str, str]] = {}
    """Digests of the files that it reads, by option: a resumed run needs the same ones."""

    num_models: ClassVar[int] = 1
    """M, the broadcast models; a hyper-parameter if the algorithm has several."""

    def __post_init__(self) -> None:
        """Refuse hyper-parameters outside their range."""
        check_settings(self)

    # ------------------------------------------------------------------ start
    def shared_init(self, ctx: Context) -> Shared:
        """The server's state before the first round."""
        return GlobalModels(ctx.task.init(self.num_models, ctx.seed))  # type: ignore[return-value]

    def state_init(self, ctx: Context, shared: Shared, data: ClientData) -> State:
        """A client's first state, kept between rounds; () if it keeps none."""
        return ()  # type: ignore[return-value]

    def kept_names(self, ctx: Context) -> frozenset[str]:
        """Names of the leaves of models that stay with their clients; so under a wrapper."""
        return frozenset()

    # ------------------------------------------------------------------ one round
    def reachable(self, ctx: Context) -> np.ndarray | None:
        """Mask of the clients that can be reached in a round, [T] bool; None: all."""
        return None

    def phases(self, ctx: Context, client_ids: Tensor) -> Sequence[Phase]:
        """The exchanges of one round with the sampled clients [C]."""
        return (Phase("train", client_ids, ctx.solver.work),)

    def shared_losses(self, ctx: Context, shared: Shared, batch: Batch) -> Tensor | None:
        """Losses [B, M] of samples that depend on the shared state only, for `client_init`; None if it reads none.

        For speed: all clients' samples in one pass. `ctx.task.sample_losses` in `client_init` gives the same numbers.
        """
        return ctx.task.losses_of(shared.models, batch.x, batch.y) if self.reads_losses else None

    def client_init(self, ctx: Context, shared: Shared, state: State, data: ClientData, losses: Any) -> Work:
        """The start of a client's phase.

        Args:
            ctx: the context.
            shared: the shared state that the client received.
            state: the client's state.
            data: its samples.
            losses: losses of its samples under the shared models, [N, M]; None unless `reads_losses`.
        """
        return local_run(ctx, shared.models)  # type: ignore[return-value]

    def client_step(self, ctx: Context, shared: Shared, work: Work, batch: Batch) -> Work:
        """One local step."""
        return local_step(ctx, work, batch)

    def client_final(self, ctx: Context, shared: Shared, work: Work, data: ClientData) -> ClientResult:
        """The end of a client's phase: its message, its new state and its metrics.

        The metric `loss` is logged as `train/seen/loss`, weighted like the messages; a phase without local work has no
        metrics.
        """
        return local_result(ctx, work, data)

    def server_step(self, ctx: Context, shared: Shared, reduced: Reduced, client_ids: Tensor) -> Shared:
        """The new shared state after a phase."""
        return shared._replace(models=server_average(ctx, shared.models, reduced))  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ clients on separate machines
    def sent(self, ctx: Context, shared: Shared, client_id: int) -> Tree:
        """The part of the shared state that is sent to one client: only what it needs.

        By default fields of `server_only` are left out, as are the leaves of `start_only` for clients that have a
        state, and a server sends of each `Peers` the client's row.

        Args:
            ctx: the context. Its phase is that of the client's work, or `adapt` for adapting and serving
                a client.
            shared: the server's whole state.
            client_id: the client; T or more for an unseen client.

        Returns:
            A tree for `received`, with empty trees or tensors for parts that are not sent. Parts that are the same
            for all clients are the same tensors.
        """
        if isinstance(shared, Peers):
            return row_of(shared, client_id, ctx.num_clients) if self.has_server else shared
        parts: dict[str, Any] = dict.fromkeys(self.server_only)
        for name in self.start_only if client_id < ctx.num_clients and ctx.phase != "init" else ():
            parts[name] = tree.map_leaves(lambda leaf: leaf.new_empty(0), getattr(shared, name))
        for name in getattr(shared, "_fields", ()) if self.has_server else ():
            if isinstance(one := getattr(shared, name), Peers):
                parts[name] = row_of(one, client_id, ctx.num_clients)
        return shared._replace(**parts) if parts else shared

    def received(self, ctx: Context, sent: Tree, client_id: int) -> Shared:
        """The shared state for the client's functions, from the result of `sent`; may share its memory."""
        return sent  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ reports and cost of a round
    def collaboration(self, ctx: Context, shared: Shared, states: State) -> Tensor | None:
        """Weight of each client's model in each client's prediction, [T, T], one row per served client.

        Args:
            ctx: the context.
            shared: the shared state.
            states: the states of all clients, leaves [T, ...].

        Returns:
            The weights, for figures only; None if client models are not weighted individually.
        """
        return None

    def numbers_left_out(self, heard: Shared) -> int:
        """Numbers that a codec leaves out of each message, whose places all clients know.

        Args:
            heard: the shared state as clients received it.
        """
        return 0

    def num_payloads(self, ctx: Context, shared: Shared, num_clients: int) -> int:
        """Number of different messages that the server sends to `num_clients` clients of a phase, for simulated time.

        Each message has the average size that a client receives; 0 without a server. A server that holds `Peers` sends
        each client its own.
        """
        own = isinstance(shared, Peers) or any(isinstance(one, Peers) for one in shared)
        return int(self.has_server) * (num_clients if own else 1)

    # ------------------------------------------------------------------ serving a client
    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Local work before a client is served, in a phase `adapt` whose state is discarded; None: no such phase.

        In this phase `ctx.lr` is the rate of adaptation, which no schedule decays.
        """
        return None

    @property
    def tune_work(self) -> LocalWork | None:
        """Local work on the models that serve a client, after `adapt_work`, see `FineTunes`; None: none.

        Its phase is `adapt`, too, with `ctx.tunes`.
        """
        return None

    def shared_outputs(self, ctx: Context, shared: Shared, x: Tensor) -> Tree | None:
        """Predictions of samples [B, ...] that depend on the shared state only, e.g. [B, M, K]; None without any."""
        return ctx.task.outputs(shared.models, x)

    def log_prob(self, ctx: Context, shared: Shared, state: State, x: Tensor, outputs: Any) -> Tensor:
        """Personalised prediction for samples [B, ...]: from `outputs` of the shared models, else from `state.models`.

        Returns:
            Log-probabilities [B, C] (binary C = 2; sequences [B, L, C]), or the mean [B, 1] for regression.
        """
        outputs = ctx.task.outputs(state.models, x) if outputs is None else outputs
        return ctx.task.mix(outputs.new_ones(1), outputs)


def local_result(
    ctx: Context, work: Any, data: ClientData, value: Tree = None, state: Tree = (), *, weight: Tensor | None = None,
    up: float | Tensor | None = None, down: float | Tensor | None = None, **metrics: Tensor,
) -> ClientResult:  # fmt: skip
    """The end of local training: the trained models are sent, and the mean loss of the steps is logged.

    Args:
        ctx: the context.
        work: the work, with `models`, `loss` and `steps`.
        data: the client's samples.
        value: what is sent in place of the models.
        state: the client's new state.
        weight: weight of the message, [] float64; None: the client's.
        up: bits that the client sends; None: the size of `value`.
        down: bits that it received; None: the size of what it is `sent`.
        metrics: what else is logged, [].
    """
    weight = ctx.client_weight(data) if weight is None else weight
    bits = (one if one is None or isinstance(one, Tensor) else torch.full_like(weight, one) for one in (up, down))
    message = Message(work.models if value is None else value, weight, *bits)
    return ClientResult(message, state, {"loss": work.loss / work.steps.clamp(min=1)} | metrics)


class Served(Algorithm[Shared, State, Work]):
    """An algorithm that serves each client by one model; an unseen client first makes its state, without steps."""

    def state_init(self, ctx: Context, shared: Shared, data: ClientData) -> State:
        """A copy of the shared model."""
        return OwnModel(shared.models)  # type: ignore[return-value]

    @abstractmethod
    def client_final(self, ctx: Context, shared: Shared, work: Work, data: ClientData) -> ClientResult:
        """The update of FedAvg; subclasses define the client's new state."""
        return super().client_final(ctx, shared, work, data)

    def served(self, ctx: Context, shared: Shared, state: State) -> ModelState:
        """The model that predicts for a client, leaves [1, ...]."""
        return state.models  # type: ignore[no-any-return]

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        return None if seen else LocalWork()

    def shared_outputs(self, ctx: Context, shared: Shared, x: Tensor) -> None:
        return None

    def log_prob(self, ctx: Context, shared: Shared, state: State, x: Tensor, outputs: None) -> Tensor:
        return super().log_prob(ctx, shared, state, x, ctx.task.outputs(self.served(ctx, shared, state), x))


class Personal(Served[Shared, State, Work]):
    """An algorithm that serves each client by its personal model; an unseen client first trains one as in a round."""

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        return None if seen else ctx.solver.whole_work


def local_run(ctx: Context, models: ModelState, extra: Any = ()) -> LocalRun:
    """Work that starts from these models with a fresh optimizer, and what the algorithm keeps beside them."""
    zero = torch.zeros((), dtype=ctx.task.dtype, device=ctx.lr.device)
    return LocalRun(models, ctx.solver.init(models), zero, zero.clone(), extra)


def local_step(ctx: Context, work: Work, batch: Batch, **options: Any) -> Work:
    """A step of the local solver, with options of `LocalSolver.step`."""
    models, optimizer, loss = ctx.solver.step(ctx.task, work.models, work.optimizer, batch, ctx.lr, **options)
    work = work._replace(models=models, optimizer=optimizer)
    return work._replace(loss=work.loss + loss.mean(), steps=work.steps + 1)  # type: ignore[no-any-return]


def takes_steps(algorithm: Any, ctx: Context) -> bool:
    """Whether clients take local steps in some of the first rounds; coins may leave others without."""
    everybody = torch.arange(ctx.num_clients)
    rounds = (ctx._replace(phase="plan", round_idx=index) for index in range(min(ctx.num_rounds, ROUNDS_LOOKED_AT)))
    return any(phase.work.trains for one in rounds for phase in algorithm.phases(one, everybody))


def ranged(default: Any, within: str) -> Any:
    """A hyper-parameter with its default and its range, as for `check_settings`."""
    return field(default=default, metadata={"range": within})


def tuned(default: Any, *values: Any, within: str = "") -> Any:
    """A hyper-parameter to tune: its default, the values that a benchmark tries, and its range; "": any.

    The values are those of the paper or of its authors' program, and include the default. A class has at most two
    such fields; the learning rate is tuned for every algorithm.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Pulled(Algorithm):
        ...     prox_weight: float = tuned(1.0, 0.1, 1.0, 10.0, within=">= 0")
        >>> Pulled().prox_weight, tuning_space(Pulled)
        (1.0, {'prox_weight': (0.1, 1.0, 10.0)})
    """
    return field(default=default, metadata={"tuned": values, "range": within})


def tuning_space(options: type[Any]) -> dict[str, tuple[Any, ...]]:
    """The tuned settings of an algorithm, or of a section, by name, with the values to try; {} if there are none."""
    found = fields(options)
    return {one.name: one.metadata["tuned"] for one in found if "tuned" in one.metadata}
