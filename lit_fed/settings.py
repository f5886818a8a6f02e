"""The settings of a training: the section `model` of a configuration, which server, nodes and checkpoints share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from lit_fed.algorithms.fedem import FedEM
from lit_fed.clients.choose import MemoryFormat
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.local_solver import BY_CLIENT, LocalSolver, is_searched
from lit_fed.core.targets import Loss, Target
from lit_fed.data.data_sets.base import names_of
from lit_fed.errors import ConfigError, check_settings, refuse_ignored_defaults
from lit_fed.metrics.selection import MetricsGiven, wanted_metrics, with_classes
from lit_fed.models.adapters import LowRankAdapters
from lit_fed.models.base import Network
from lit_fed.models.linear import Linear
from lit_fed.system.discovery import with_objects
from lit_fed.system.options import divided
from lit_fed.wrappers.compatibility import facts_of_data, refuse_incompatible
from lit_fed.wrappers.feature import Feature, features
from lit_fed.wrappers.mixture_start import with_start

__all__ = ["FIXES", "ModelSettings", "model_settings"]

FIXES = {
    "solver": "for a learning rate write LocalSolver(lr=0.1)", "algorithm": "a network is the argument network=",
}  # fmt: skip
"""Arguments → the values that they take, for messages about other types."""


Given = TypeVar("Given", bound=Feature)


@dataclass(frozen=True)
class ModelSettings:
    """Algorithm, solver, network, and what surrounds them; `features` has the options of `lit_fed.wrappers`.

    Args:
        algorithm: the algorithm with its hyper-parameters.
        solver: the local solver of the clients.
        network: builds the network from the sizes of the data: a class, a function, or in Python an `nn.Module` whose
            weights all models start from; each model of a mixture then has a fresh last layer.
        client_trainer: how clients run: `sequential` one after another, `vectorized` at once, `graphed` one after
            another with local steps replayed from CUDA graphs, `debug` slowly with every result checked; `auto` chooses
            by device and network.
        aggregation: contribution of clients that were not sampled to an average of models: none (`renormalised`), or
            the model that they last received (`stale_fill`, as in the official FedEM code).
        weighting: weight of a client's message: its `samples`, the `positions` of its samples that have a label, or
            `uniform`; null takes the algorithm's (mostly `samples`), and `uniform` where clients are sampled in
            proportion to their samples.
        init_seeds: seeds of the initial models, for `torch.manual_seed`; null derives them from the training seed.
        client_memory_gb: memory in GB (10⁹ bytes) for the states of all clients; beyond it, the largest leaves are
            stored in files beside the run's checkpoints.
        memory_format: layout of images and of weights of 2-D convolutions; `auto` takes channels last unless clients
            run at once.
        trainable: patterns of names of trained parameters, such as `[layer4.*, fc]`, or `head` for the last layer; the
            others are frozen and stored once for all models and clients. Null: the network's `requires_grad`.
        lora_rank: rank of adapters (LoRA, extra `lora`) on linear layers; `trainable` is then `head` by default, of a
            causal language model nothing.
        lora_targets: patterns of names of layers that get an adapter, such as `*query`; null: all frozen ones.
        lora_alpha: adapters are scaled by this divided by their rank; null: unscaled.
        metrics: metrics of the clients beside accuracy and loss: names of torchmetrics classes, such as
            `[AUROC, F1Score]`; null: none.
        loss: loss of the local steps in place of the log-loss; null: the log-loss.
        target: what labels are: a likelihood, such as `Multiclass`, `Regression` or a user-defined class; null:
            inferred from type and shape of the training labels.
        conformal: coverage of prediction sets and intervals, such as 0.9, by thresholds from the samples of
            `--data.calibration_fraction`; null: none.
    """

    algorithm: Algorithm = FedEM()  # noqa: RUF009 - frozen
    solver: LocalSolver = LocalSolver()  # noqa: RUF009 - frozen
    network: Callable[[tuple[int, ...], int], Network] = Linear
    client_trainer: Literal["auto", "sequential", "vectorized", "graphed", "debug"] = "auto"
    aggregation: Literal["renormalised", "stale_fill"] = "renormalised"
    weighting: Literal["samples", "positions", "uniform"] | None = None
    init_seeds: list[int] | None = None
    client_memory_gb: float = 4.0
    memory_format: MemoryFormat = "auto"
    trainable: list[str] | str | None = None
    lora_rank: int | None = None
    lora_targets: list[str] | str | None = None
    lora_alpha: float | None = None
    metrics: MetricsGiven = None
    loss: Loss | None = None
    target: Target | None = None
    conformal: float | None = None

    features: tuple[Feature, ...] = field(default=(), metadata={"option": False})

    def check(self) -> None:
        """Refuse settings that are wrong for any data.

        Raises:
            ConfigError: naming the setting.
        """
        if not self.client_memory_gb >= 0:
            raise ConfigError(f"--model.client_memory_gb is {self.client_memory_gb}; give a number >= 0")
        if self.conformal is not None and not 0 < self.conformal < 1:
            raise ConfigError(f"--model.conformal is {self.conformal}; give a number above 0 and below 1, such as 0.9")
        self.adapters.check()
        wanted_metrics(self.metrics)
        for owner in (self, *self.features):
            check_settings(owner, prefix="--model")
        for one in self.features:
            one.check()
        for part, option in ((self.algorithm, "--model.algorithm"), (self.solver, "--model.solver")):
            refuse_ignored_defaults(type(part), option)
        self.check_combination()

    def check_combination(self, **data: Any) -> None:
        """Refuse incompatible settings, see `lit_fed.wrappers.compatibility`.

        Args:
            data: facts of the data known by now, as for `facts_of_data`.

        Raises:
            ConfigError: naming the settings, or the setting and the algorithm.
        """
        solver = self.solver
        facts = facts_of_data(**data) | {
            "stale_fill": self.aggregation == "stale_fill",
            "by_samples": self.weighting == "samples",
            "by_positions": self.weighting == "positions",
            "uniform": self.weighting == "uniform",
            "loss": None if self.loss is None else type(self.loss).__name__,
            "counted_classes": getattr(self.loss, "counts_classes", False),
            **{name: bool(getattr(solver, name)) for name in BY_CLIENT},
            "searched": is_searched(solver.lr),
        }
        refuse_incompatible(with_start(self.algorithm), self.features, facts)

    @property
    def adapters(self) -> LowRankAdapters:
        """Low-rank adapters of the frozen layers."""
        targets = None if self.lora_targets is None else list(names_of(self.lora_targets))
        return LowRankAdapters(self.lora_rank, targets, self.lora_alpha)

    @property
    def wrapped(self) -> Any:
        """The algorithm inside its start and the wrappers of the features; without any, the algorithm itself."""
        wrapped = with_start(self.algorithm)
        for one in self.features:
            wrapped = one.around(wrapped)
        for one in self.features:
            wrapped = one.around_all(wrapped)
        return wrapped

    @property
    def is_private(self) -> bool:
        """Whether only their owner may read files with results of clients."""
        return any(getattr(one, "is_private", False) for one in (*self.features, self.algorithm))

    def feature(self, kind: type[Given]) -> Given | None:
        """The feature of a kind; None: it was not given."""
        return next((one for one in self.features if isinstance(one, kind)), None)

    def with_lr(self, lr: Any) -> ModelSettings:
        """With this local learning rate, or what it is searched among."""
        return replace(self, solver=replace(self.solver, lr=lr))


def model_settings(**given: Any) -> ModelSettings:
    """Settings from options by their flat names, those of features included; a class or a name stands for its object.

    Raises:
        ConfigError: naming an option that does not exist, or has a value of another kind.
    """
    kinds: tuple[type[Any], ...] = (ModelSettings, *features())
    parts = zip(kinds, divided(given, kinds, "model"), strict=True)
    own, *others = (with_objects(kind, part, "model", FIXES) for kind, part in parts)
    if "metrics" in own:
        own["metrics"] = with_classes(own["metrics"])
    made = (kind(**part) for kind, part in zip(kinds[1:], others, strict=True))
    return ModelSettings(**own, features=tuple(one for one in made if one.is_given))
