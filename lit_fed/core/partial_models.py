"""Models in two parts: leaves that clients send, and leaves that each client keeps.

This is partial model personalisation (https://arxiv.org/abs/2204.03809). The pure functions serve the wrapper of
`--model.personal` and the algorithms with a personal part, which derive from `PartialModel`.
"""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, Personal, Served, local_result, local_run, local_step
from lit_fed.core.context import Context
from lit_fed.core.networks.stacked_network import fresh_leaves
from lit_fed.core.networks.start import leaves_named
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, LocalWork, ModelState, Stage
from lit_fed.errors import ConfigError

__all__ = [
    "OWN", "SHARED", "KeptPart", "Optimizers", "PartialModel", "Patterns", "PersonalPart", "SentPart",
    "in_turn", "joined", "leaf_order", "measured", "module_leaves", "named_leaves", "named_part", "names_of", "rate_of",
    "staged_run", "staged_step", "whole_models", "with_module",
]  # fmt: skip

OWN, SHARED = "personal", "shared"
"""Stages of training in turn, in their order."""

Patterns = tuple[str, ...] | str
"""Patterns of names of leaves or modules, or `head`, `body`, `norm`."""

ORDERS: WeakKeyDictionary[nn.Module, list[str]] = WeakKeyDictionary()
"""Names of the leaves of networks in use."""


class SentPart(NamedTuple):
    """The server's state; the initial personal part is no `ModelState`, since it is sent once and not counted."""

    models: ModelState  # leaves that are averaged, [1, ...]
    own: tuple[Leaves, Leaves]  # initial parameters and buffers of the personal leaves, [1, ...]


class KeptPart(NamedTuple):
    """A client's state."""

    own: ModelState  # leaves that are never sent, [1, ...]


# ---------------------------------------------------------------------- names of leaves
def leaf_order(network: nn.Module) -> list[str]:
    """Names of all leaves in the network's order, in which sums over leaves run."""
    if network not in ORDERS:
        ORDERS[network] = [name for name, _ in (*network.named_parameters(), *network.named_buffers())]
    return ORDERS[network]


def named_leaves(task: Task, patterns: Patterns, setting: str, *, may_be_all: bool = True) -> frozenset[str]:
    """Names of the trained leaves and running statistics that patterns match.

    Args:
        task: the task.
        patterns: see `leaves_named`.
        setting: the setting that gave them, for messages.
        may_be_all: whether they may match all leaves.

    Raises:
        ConfigError: if a pattern matches no leaf.
    """
    given = (patterns,) if isinstance(patterns, str) else patterns
    leaves = [name for name in leaf_order(task.network) if name not in task.frozen]
    return leaves_named(task.network, given, task.norm_names, leaves, setting, may_be_all=may_be_all)


# ---------------------------------------------------------------------- two parts
def named_part(models: Sequence[Leaves], names: Collection[str]) -> ModelState:
    """The leaves of models, or of a pair of parameters and buffers, that have these names."""
    return ModelState(*(tree.named(leaves, names) for leaves in models))


def measured(ctx: Context, own: ModelState, whole: ModelState, data: ClientData) -> ModelState:
    """The initial personal leaves; an unseen client computes BatchNorm statistics from its samples."""
    if ctx.phase != "adapt" or ctx.task.norm_names.isdisjoint(own.buffers):
        return own
    found = ctx.task.statistics(whole, data.x)
    return own._replace(buffers={name: found[name] for name in own.buffers})


def names_of(part: Sequence[Leaves]) -> frozenset[str]:
    """Names of the leaves of models, or of a pair of parameters and buffers."""
    return frozenset(name for leaves in part for name in leaves)


def joined(network: nn.Module, one: Leaves, other: Leaves) -> Leaves:
    """The leaves of both parts in the order of the network."""
    both = one | other
    return {name: both[name] for name in leaf_order(network) if name in both}


def whole_models(network: nn.Module, one: Sequence[Leaves], other: Sequence[Leaves]) -> ModelState:
    """Two parts as models, in the order of the network."""
    return ModelState(*(joined(network, *pair) for pair in zip(one, other, strict=True)))


# ---------------------------------------------------------------------- modules beside the network
def with_module(ctx: Context, models: ModelState, build: Callable[[], nn.Module], name: str) -> ModelState:
    """Models with the fresh leaves of a module added as `NAME.…`: sent and averaged like the network's leaves.

    `whole_models` omits them, and `module_leaves` returns them.

    Raises:
        ConfigError: if the network already has a part of this name.
    """
    if module_leaves(models, name):
        raise ConfigError(f"the algorithm keeps a module {name!r} beside the network, which has one; rename that one")
    fresh = fresh_leaves(build, ctx.seed, name, ctx.task.dtype)
    beside = {f"{name}.{key}": leaf.unsqueeze(0) for key, leaf in fresh.items()}
    return models._replace(parameters=models.parameters | beside)


def module_leaves(models: ModelState, name: str) -> Leaves:
    """The leaves of a module beside the network, [1, ...], with its name as prefix."""
    return {key: leaf for key, leaf in models.parameters.items() if key.startswith(f"{name}.")}


# ---------------------------------------------------------------------- steps of one part
class Optimizers(NamedTuple):
    """Optimizer states of the two stages of a client's phase."""

    shared: Any  # of the shared leaves, an `OptimizerState`; () if they take no steps
    own: Any  # of the personal leaves; () without such a stage


def in_turn(work: LocalWork, *stages: Stage) -> LocalWork:
    """Local work in these stages."""
    return work._replace(epochs=None, steps=None, stages=stages)


def rate_of(ctx: Context, lr: float | None) -> Tensor:
    """Learning rate [] of the personal leaves: `lr` under the solver's schedule, or the rate of adaptation if given.

    None: the solver's rate.
    """
    if lr is None or (ctx.phase == "adapt" and ctx.solver.adapt_lr is not None):
        return ctx.lr
    return ctx.lr * (lr / ctx.solver.rate) if ctx.solver.rate else ctx.own_rate(lr)


def staged_run(ctx: Context, models: ModelState) -> LocalRun:
    """Work that starts from these models with fresh optimizers."""
    run = local_run(ctx, models)
    return run._replace(optimizer=Optimizers(run.optimizer, run.optimizer))


def staged_step(ctx: Context, shared: SentPart, work: LocalRun, batch: Batch, lr: float | None = None) -> LocalRun:
    """A step of the part that the current stage trains; the loss of a round is that of the shared part's steps.

    Args:
        ctx: the context, in stage `OWN` or that of the shared part.
        shared: the received state.
        work: the work.
        batch: the samples.
        lr: learning rate of the personal part, see `rate_of`.
    """
    optimizers, is_own = work.optimizer, ctx.stage == OWN
    work = work._replace(optimizer=optimizers.own if is_own else optimizers.shared)
    if not is_own:
        run = local_step(ctx, work, batch, moving=names_of(shared.models))
        return run._replace(optimizer=optimizers._replace(shared=run.optimizer))
    run = local_step(ctx._replace(lr=rate_of(ctx, lr)), work, batch, moving=names_of(shared.own))
    return work._replace(models=run.models, optimizer=optimizers._replace(own=run.optimizer))


# ---------------------------------------------------------------------- algorithms
class PartialModel(Served[SentPart, Any, Any]):
    """An algorithm whose clients send a part of their model and keep the rest.

    By default both parts take each step together.
    """

    # Annotations here are not postponed, for the same reason as those of `Algorithm`.
    incompatible = {
        "noise_in_steps": "the private part of the model",
        "personal_parts": "keeps a private part of the model itself",
    }

    start_only = ("own",)

    @abstractmethod
    def own_names(self, ctx: Context) -> frozenset[str]:
        """Names of the leaves that stay with the clients."""

    def shared_init(self, ctx: Context) -> SentPart:
        """The initial network in two parts."""
        own, whole = self.own_names(ctx), ctx.task.init(1, ctx.seed)
        parameters, buffers = named_part(whole, own)
        return SentPart(named_part(whole, names_of(whole) - own), (parameters, buffers))

    def state_init(self, ctx: Context, shared: SentPart, data: ClientData) -> Any:
        """The initial personal part, `KeptPart`; an unseen client computes statistics from its samples."""
        state = KeptPart(ModelState(*shared.own))
        return KeptPart(measured(ctx, state.own, self.whole(ctx, shared, state), data))

    def client_init(self, ctx: Context, shared: SentPart, state: Any, data: ClientData, losses: None) -> Any:
        """The received part with the personal one."""
        return local_run(ctx, self.whole(ctx, shared, state))

    def client_step(self, ctx: Context, shared: SentPart, work: Any, batch: Batch) -> Any:
        """A step of both parts together; of the personal part only if the shared part is fixed."""
        return local_step(ctx, work, batch, moving=names_of(shared.own) if ctx.phase == "adapt" else None)

    def client_final(self, ctx: Context, shared: SentPart, work: Any, data: ClientData) -> ClientResult:
        """Send the shared part; keep the personal part."""
        sent, own = (named_part(work.models, names_of(part)) for part in (shared.models, shared.own))
        return local_result(ctx, work, data, sent, KeptPart(own))

    def served(self, ctx: Context, shared: SentPart, state: Any) -> ModelState:
        """The shared part with the client's personal part."""
        return self.whole(ctx, shared, state)

    def whole(self, ctx: Context, shared: SentPart, state: Any) -> ModelState:
        """Both parts as models, in the order of the network."""
        return whole_models(ctx.task.network, shared.models, state.own)


class PersonalPart(PartialModel, Personal[SentPart, Any, Any]):
    """A partial model whose unseen clients train their part first; the shared one and its statistics are fixed."""

    def own_stage(self, ctx: Context) -> Stage:
        """The local work of a round on the personal part."""
        return Stage(OWN, ctx.solver.work.epochs, ctx.solver.work.steps)

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Only a client without a personal part trains one, as in a round."""
        return None if seen or not self.own_names(ctx) else in_turn(LocalWork(), self.own_stage(ctx))
