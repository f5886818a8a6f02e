"""The session of a training: algorithm, task and terms, built from the settings and the facts of the data.

Server and nodes build the same session from the same settings, without Lightning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from lit_fed.clients.base import ClientTrainer
from lit_fed.clients.choose import MemoryFormat, choose_trainer
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.start import HEAD, NetworkCopies, choose_trained, start_of
from lit_fed.core.segmentation import pixels_last
from lit_fed.core.targets import Criterion, Loss, Target
from lit_fed.core.task import Task
from lit_fed.core.types import Tree
from lit_fed.data.augmentation import make_augmentation, mask_form
from lit_fed.data.data_sets.base import names_of
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError, refuse_ignored_defaults
from lit_fed.metrics.selection import MetricsGiven, wanted_metrics
from lit_fed.models.adapters import LowRankAdapters
from lit_fed.models.base import Network, build_network, check_outputs, refuse_lightning, zero_outputs
from lit_fed.wrappers.compatibility import Compatibility
from lit_fed.wrappers.compression.codecs import Codec
from lit_fed.wrappers.compression.codecs.base import Scope
from lit_fed.wrappers.compression.wrapper import Compression, Feedback
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.fedbn import LocalNorm
from lit_fed.wrappers.mixture_start import with_start
from lit_fed.wrappers.personal import PersonalSettings
from lit_fed.wrappers.privacy.settings import Privacy
from lit_fed.wrappers.robust.attacks import Attack
from lit_fed.wrappers.robust.rules import Rule
from lit_fed.wrappers.robust.wrapper import Robustness
from lit_fed.wrappers.secure.wrapper import SecureAggregation
from lit_fed.wrappers.selection import Selection

__all__ = ["ModelSettings", "Session", "check_augmented_steps", "check_init_seeds", "surround"]

ROUNDS_LOOKED_AT = 100
"""Rounds among which at least one has local steps, if the algorithm takes any."""


class ModelSettings(NamedTuple):
    """Settings as given to `FederatedModule`; see there."""

    algorithm: Algorithm
    solver: LocalSolver
    network: Callable[[tuple[int, ...], int], Network]
    client_trainer: Literal["auto", "sequential", "vectorized", "graphed", "debug"]
    aggregation: Literal["renormalised", "stale_fill"]
    weighting: Literal["samples", "positions", "uniform"] | None
    init_seeds: list[int] | None
    client_memory_gb: float
    memory_format: MemoryFormat
    batch_norm: Literal["average", "local"]
    personal: list[str] | str | None
    personal_training: Literal["joint", "alternating"]
    personal_epochs: int | None
    personal_lr: float | None
    personal_unseen_epochs: int | None
    trainable: list[str] | str | None
    lora_rank: int | None
    lora_targets: list[str] | str | None
    lora_alpha: float | None
    metrics: MetricsGiven
    loss: Loss | None
    target: Target | None
    privacy: Privacy | None
    secure_aggregation: SecureAggregation | None
    compression: Codec | None
    compression_feedback: Feedback | None
    compression_scope: Scope
    downlink_compression: Codec | None
    robust_aggregation: Rule | None
    attack: Attack | None
    faults: Faults | None
    selection: Selection | None

    def check(self) -> None:
        """Refuse settings that are wrong for any data.

        Raises:
            ConfigError: naming the setting.
        """
        if not self.client_memory_gb >= 0:
            raise ConfigError(f"--model.client_memory_gb is {self.client_memory_gb}; give a number >= 0")
        refuse_lightning(self.network)
        self.adapters.check()
        self.personal_parts.check()
        wanted_metrics(self.metrics)
        self._check_words()
        for part, option in ((self.algorithm, "--model.algorithm"), (self.solver, "--model.solver")):
            refuse_ignored_defaults(part, option)
        self.check_combination()

    def _check_words(self) -> None:
        """Refuse words that an option does not list; from Python, no parser has checked them."""
        for name, hint in get_type_hints(type(self)).items():
            kinds = [one for one in (hint, *get_args(hint)) if get_origin(one) is Literal]
            words = [word for one in kinds for word in get_args(one)]
            words += [None] if words and NoneType in get_args(hint) else []
            if words and getattr(self, name) not in words:
                known = ", ".join("null" if word is None else str(word) for word in words)
                raise ConfigError(f"--model.{name} is {getattr(self, name)!r}; give one of {known}")

    def check_combination(self, **known: Any) -> None:
        """Refuse incompatible settings, see `lit_fed.wrappers.compatibility`.

        Args:
            known: facts of the data known by now, fields of `Compatibility`.

        Raises:
            ConfigError: naming the settings, or the setting and the algorithm.
        """
        self._around(**known).check()

    def _around(self, **known: Any) -> Compatibility:
        return Compatibility(
            with_start(self.algorithm), self.aggregation, self.weighting, self.loss, solver=self.solver,
            privacy=self.privacy, secure=self.secure_aggregation, compression=self.codecs, robustness=self.robustness,
            faults=self.faults, batch_norm=self.batch_norm, personal=self.personal_parts, selection=self.selection,
            **known,
        )  # fmt: skip

    @property
    def adapters(self) -> LowRankAdapters:
        """Low-rank adapters of the frozen layers."""
        targets = None if self.lora_targets is None else list(names_of(self.lora_targets))
        return LowRankAdapters(self.lora_rank, targets, self.lora_alpha)

    @property
    def personal_parts(self) -> PersonalSettings:
        """Leaves that stay with their client."""
        parts = None if self.personal is None else list(names_of(self.personal))
        return PersonalSettings(
            parts, self.personal_training, self.personal_epochs, self.personal_lr, self.personal_unseen_epochs
        )

    @property
    def codecs(self) -> Compression:
        """Encoding of messages and broadcasts."""
        return Compression(
            self.compression, self.compression_feedback, self.compression_scope, self.downlink_compression
        )

    @property
    def robustness(self) -> Robustness:
        """The robust rule, and the attack."""
        return Robustness(self.robust_aggregation, self.attack)

    @property
    def wrapped(self) -> Any:
        """The given algorithm inside its wrappers."""
        return surround(
            self.algorithm, batch_norm=self.batch_norm, personal=self.personal_parts, compression=self.codecs,
            privacy=self.privacy, secure_aggregation=self.secure_aggregation, robustness=self.robustness,
            faults=self.faults,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return type(self.algorithm).__name__


class Session(NamedTuple):
    """Parts of a training that are the same on every machine."""

    algorithm: Algorithm  # inside the wrappers that the settings ask for
    terms: Context  # context of all clients in all rounds
    shared: Tree  # the initial shared state
    choose: Callable[[torch.device], ClientTrainer]  # the client trainer for a device

    @classmethod
    def of(
        cls,
        settings: ModelSettings,
        facts: TrainingFacts,
        device: torch.device,
        start: Callable[[Task], Task] | None = None,
    ) -> Session:
        """The session of a training.

        Args:
            settings: settings of the module.
            facts: sizes of the training.
            device: device of the clients.
            start: replaces the initial models of the task; None: they are fresh, or those of a network given as a
                module.

        Raises:
            ConfigError: if network, data, client trainer and algorithm are incompatible.
        """
        task, init_seeds = _task_of(settings, facts, start), settings.init_seeds
        if settings.batch_norm == "local" and not task.norm_names:
            raise ConfigError(
                f"--model.batch_norm is local, and {type(task.network).__name__} has no BatchNorm to train; leave it "
                "out"
            )
        choose = partial(_choose, settings, task.network)
        if settings.client_trainer != "auto":
            choose(device)  # a trainer that cannot train the network is refused now, unless it runs on nodes only
        if init_seeds is not None:
            check_init_seeds(tuple(init_seeds), settings.algorithm.num_models, facts.num_clients)
        algorithm = settings.wrapped
        solver, privacy = settings.solver, settings.privacy
        terms = Context(
            task=task, solver=solver, lr=solver.lr_in("init", 0, facts.num_rounds), round_idx=0, phase="init",
            num_clients=facts.num_clients, total_samples=facts.total_samples, seed=facts.seed, groups=facts.groups,
            aggregation=settings.aggregation, weighting=facts.weighting, num_rounds=facts.num_rounds,
            most_samples=facts.most_samples, total_positions=facts.total_positions, attackers=facts.attacking,
            capped_samples=facts.capped_samples,
            sampling_probability=facts.sampling_probability, batch_size=facts.batch_size, sizes=facts.sizes,
            lr_factors=facts.lr_factors, work_shares=facts.work_shares, batch_sizes=facts.batch_sizes,
            augmentation=make_augmentation(
                facts.augment, facts.normalisation, mask_form(facts.target, facts.label_shape)
            ),
            secret=None if privacy is None else privacy.secret(),
        )  # fmt: skip
        check_augmented_steps(algorithm, settings.name, terms)
        if settings.personal_training == "alternating" and not _takes_steps(algorithm, terms):
            raise ConfigError(
                "--model.personal_training is alternating, which puts steps of personal leaves ahead of local steps, "
                f"and {settings.name} takes none with these settings; give joint"
            )
        shared = algorithm.shared_init(terms)
        settings.codecs.check_models(algorithm, terms, shared)
        return cls(algorithm, terms, shared, choose)


def surround(
    algorithm: Algorithm,
    *,
    batch_norm: Literal["average", "local"] = "average",
    personal: PersonalSettings = PersonalSettings(),  # noqa: B008 - a tuple
    compression: Compression = Compression(),  # noqa: B008 - frozen
    privacy: Privacy | None = None,
    secure_aggregation: SecureAggregation | None = None,
    robustness: Robustness = Robustness(),  # noqa: B008 - a tuple
    faults: Faults | None = None,
) -> Any:
    """The algorithm inside the configured wrappers; without any, the algorithm itself.

    From the inside out: the start of a mixture, personal parts or FedBN, faults, compression, privacy, secure sums,
    robust rules, compression of the broadcast. At a client the innermost acts first, at the server the outermost.
    Clipping is the last step of a client before messages are summed, since the bound must hold for the summands.
    """
    algorithm = with_start(algorithm)
    if personal.parts is None:
        wrapped: Any = LocalNorm(algorithm) if batch_norm == "local" else algorithm
    else:
        wrapped = personal.around(algorithm, with_norm=batch_norm == "local")
    wrapped = wrapped if faults is None else faults.around(wrapped)
    wrapped = compression.around(wrapped)
    for one in (privacy, secure_aggregation):
        wrapped = wrapped if one is None else one.around(wrapped)
    return compression.around_broadcast(robustness.around(wrapped))


def check_augmented_steps(algorithm: Any, name: str, ctx: Context) -> None:
    """Refuse augmentation if clients take no local steps: only their inputs are augmented.

    Raises:
        ConfigError: naming the algorithm.
    """
    if ctx.augmentation is not None and not _takes_steps(algorithm, ctx):
        raise ConfigError(
            f"--data.augment {ctx.augmentation.said}: augments local steps, and {name} takes none with these settings; "
            "leave it out"
        )


def _takes_steps(algorithm: Any, ctx: Context) -> bool:
    everybody = torch.arange(ctx.num_clients)
    for round_idx in range(min(ctx.num_rounds, ROUNDS_LOOKED_AT)):  # coins may leave some rounds without steps
        phases = algorithm.phases(ctx._replace(phase="plan", round_idx=round_idx), everybody)
        if any(phase.work.trains for phase in phases):
            return True
    return False


def check_init_seeds(init_seeds: tuple[int, ...], num_models: int, num_clients: int) -> None:
    """Refuse seeds outside the range of generators, and a number of seeds that fits neither models nor clients.

    Raises:
        ConfigError: naming the seed, or the number of seeds.
    """
    for seed in init_seeds:
        if not 0 <= seed < 2**63:
            raise ConfigError(f"--model.init_seeds holds {seed}; give whole numbers from 0 to 2^63 - 1")
    # one seed suffices if all models start equal; only the start knows how many seeds are too few
    if len(init_seeds) not in (1, num_models, num_clients, num_clients * num_models):
        raise ConfigError(f"--model.init_seeds has {len(init_seeds)} seeds; give one for each of {num_models}")


def _task_of(settings: ModelSettings, facts: TrainingFacts, start: Callable[[Task], Task] | None) -> Task:
    shape = facts.input_shape
    init_seeds = None if settings.init_seeds is None else tuple(settings.init_seeds)
    task = Task.create(
        partial(_build, settings, facts), facts.target, facts.seed, init_seeds=init_seeds,
        criterion=None if settings.loss is None else Criterion(settings.loss.fitted(facts.class_counts), facts.target),
    )  # fmt: skip
    if isinstance(settings.network, nn.Module) and settings.lora_rank is None:  # with adapters it is frozen, or fresh
        task = replace(task, start=start_of(settings.network, frozenset(task.frozen)))
    if start is not None:
        task = start(task)
    check_outputs(task.network, shape, facts.dtype, facts.target.output_shape(facts.label_shape))
    given = facts.inputs
    return task.with_end(_example(_short(task.network, shape), facts.dtype) if given is None else given.example())


def _build(settings: ModelSettings, facts: TrainingFacts) -> nn.Module:
    """A network with the trained parameters of the settings; with adapters by default at most the last layer."""
    given, shape, input_type = settings.network, facts.input_shape, facts.dtype
    maker = NetworkCopies(given) if isinstance(given, nn.Module) else given
    network = build_network(maker, shape, input_type, facts.target.num_outputs, facts.inputs)
    trainable, adapted = settings.trainable, settings.lora_rank is not None
    if trainable is None and adapted:
        trainable = [] if getattr(network, "keeps_head", False) else HEAD
    if trainable is not None:
        choose_trained(network, list(names_of(trainable)), may_be_none=adapted)
    short = _short(network, shape)
    network = settings.adapters.add_to(network, lambda: zero_outputs(network, short, input_type))
    others = [name for name, leaf in network.named_parameters() if leaf.requires_grad and "lora_" not in name]
    if others and getattr(network, "frozen_dtype", None) is not None:
        raise ConfigError(
            f"--model.network.frozen_dtype is for networks whose adapters alone are trained, but {others[0]} is, "
            "too; give --model.lora_rank without --model.trainable, or float32"
        )
    return pixels_last(network, facts.target, facts.label_shape)


def _short(network: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a sample for trying a network; language models accept texts of any length.

    Outputs of a long text over many words would take more memory than the training.
    """
    return (min(8, *shape),) if getattr(network, "keeps_head", False) else shape


def _example(shape: tuple[int, ...], input_type: torch.dtype) -> Tensor:
    """Two samples that differ where their type allows it; tokens are 0, since their range is unknown."""
    if not input_type.is_floating_point:
        return torch.zeros(2, *shape, dtype=input_type)
    return torch.linspace(0, 1, 2 * math.prod(shape), dtype=input_type).view(2, *shape)


def _choose(settings: ModelSettings, network: nn.Module, device: torch.device) -> ClientTrainer:
    return choose_trainer(settings.client_trainer, network, device, settings.memory_format)
