"""A federation built from the settings of a module and the facts of its data."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn

from lit_fed.algorithms.base import Algorithm
from lit_fed.clients import ClientTrainer, MemoryFormat, choose_trainer
from lit_fed.core.aggregation import Rule
from lit_fed.core.attacks import Attack
from lit_fed.core.codecs import Codec
from lit_fed.core.codecs.vectors import Scope
from lit_fed.core.context import Context
from lit_fed.core.demands import (
    check_aggregation,
    check_augmented_steps,
    check_division,
    check_init_seeds,
    check_loss,
    check_sampling,
)
from lit_fed.core.errors import ConfigError
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.losses import Criterion, Loss
from lit_fed.core.networks.frozen import HEAD, choose_trained
from lit_fed.core.networks.start import copies_of, start_of
from lit_fed.core.task import Task
from lit_fed.data.augmentation import make_augmentation
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule
from lit_fed.metrics.selection import MetricsGiven, wanted_metrics
from lit_fed.models.adapters import LowRankAdapters
from lit_fed.models.base import Network, build_network, check_outputs, zero_outputs
from lit_fed.rounds import Federation
from lit_fed.training.frozen_part import source_of
from lit_fed.training.module_server import ModuleServer
from lit_fed.training.warm_start import WarmStart
from lit_fed.wrappers.codec_settings import Compression
from lit_fed.wrappers.compression import Feedback
from lit_fed.wrappers.faults import Faults
from lit_fed.wrappers.order import surround
from lit_fed.wrappers.privacy import Privacy
from lit_fed.wrappers.robustness import Robustness
from lit_fed.wrappers.secure_aggregation import SecureAggregation

__all__ = ["ModelSettings", "build_federation"]


class ModelSettings(NamedTuple):
    """What `FederatedModule` was given; see there."""

    algorithm: Algorithm
    solver: LocalSolver
    network: Callable[[tuple[int, ...], int], Network]
    client_trainer: Literal["auto", "sequential", "vectorized", "graphed", "debug"]
    aggregation: Literal["renormalised", "stale_fill"]
    weighting: Literal["samples", "uniform"] | None
    init_seeds: list[int] | None
    client_memory_gb: float
    memory_format: MemoryFormat
    batch_norm: Literal["average", "local"]
    trainable: list[str] | str | None
    lora_rank: int | None
    lora_targets: list[str] | None
    lora_alpha: float | None
    metrics: MetricsGiven
    loss: Loss | None
    privacy: Privacy | None
    secure_aggregation: SecureAggregation | None
    compression: Codec | None
    compression_feedback: Feedback | None
    compression_scope: Scope
    downlink_compression: Codec | None
    robust_aggregation: Rule | None
    attack: Attack | None
    faults: Faults | None

    def check(self) -> None:
        """Refuse what no data can make sense of.

        Raises:
            ConfigError: naming the setting.
        """
        if not self.client_memory_gb >= 0:
            raise ConfigError(f"--model.client_memory_gb is {self.client_memory_gb}; give a number >= 0")
        self.adapters.check()
        check_aggregation(self.algorithm, self.aggregation)
        wanted_metrics(self.metrics)
        check_loss(self.algorithm, self.name, self.loss)
        if self.privacy is not None:
            self.privacy.check(self.algorithm, self.name, self.aggregation, self.weighting)
        if self.secure_aggregation is not None:
            self.secure_aggregation.check(self.algorithm, self.name)
        self.codecs.check(self.algorithm, self.name, self.aggregation)
        private, secure = self.privacy is not None, self.secure_aggregation is not None
        ef21 = self.codecs.feedback == "ef21"
        self.codecs.check_wrappers(private=private, secure=secure)
        self.robustness.check(self.algorithm, self.name, self.weighting)
        self.robustness.check_wrappers(privacy=self.privacy, secure=secure, sums_up=ef21)
        if self.faults is not None:
            self.faults.check(self.algorithm, self.name, self.aggregation)
            robust = self.robustness != Robustness()
            self.faults.check_wrappers(private=private, secure=secure, robust=robust, ef21=ef21)

    @property
    def adapters(self) -> LowRankAdapters:
        """What the frozen layers get."""
        return LowRankAdapters(self.lora_rank, self.lora_targets, self.lora_alpha)

    @property
    def codecs(self) -> Compression:
        """How what clients send and hear is encoded."""
        return Compression(
            self.compression, self.compression_feedback, self.compression_scope, self.downlink_compression
        )

    @property
    def robustness(self) -> Robustness:
        """What stands against clients that lie, and what these do."""
        return Robustness(self.robust_aggregation, self.attack)

    @property
    def wrapped(self) -> Any:
        """The algorithm that runs: the one that was given, inside the wrappers that were asked for."""
        return surround(
            self.algorithm, batch_norm=self.batch_norm, compression=self.codecs, privacy=self.privacy,
            secure_aggregation=self.secure_aggregation, robustness=self.robustness, faults=self.faults,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return type(self.algorithm).__name__

    def facts_of(self, data: FederatedDataModule, num_rounds: int) -> TrainingFacts:
        """What a federation is built from for these data.

        Raises:
            ConfigError: if their clients are divided in another way than the algorithm needs, or are too many.
        """
        check_division(self.algorithm, self.name, data.dataset.divided_by, type(data.dataset).__name__)
        usual = "uniform" if data.client_sampling == "size" else self.algorithm.default_weighting
        if self.privacy is not None:
            usual = self.privacy.usual_weighting() or usual
        usual = self.robustness.usual_weighting() or usual
        seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
        facts = data.facts(weighting=self.weighting or usual, seed=seed, num_rounds=num_rounds)
        share = 1.0 if data.client_sampling == "poisson" else facts.sampling_probability
        num_messages = round(share * facts.num_clients)
        self.robustness.check_data(facts, num_messages)
        if self.faults is not None:
            self.faults.check_clients(facts.num_clients)
        if self.secure_aggregation is not None:
            most_weight = facts.most_samples if facts.weighting == "samples" else 1
            self.secure_aggregation.check_cohort(self.algorithm, self.name, num_messages, most_weight)
        cap = self.robustness.weight_cap if self.privacy is None else self.privacy.weight_cap
        return facts if cap is None else facts._replace(capped_samples=data.capped_samples(cap))

    def rounds_of_fit(self, trainer: Trainer, data: FederatedDataModule) -> int:
        """Rounds of a fit, from its limits in epochs and steps.

        Raises:
            ConfigError: if nothing in it takes the server's step, or cohorts are drawn in a way in which the algorithm
                has no meaning.
        """
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        if not any(getattr(one, "is_server", False) for one in callbacks):
            raise ConfigError(
                "a fit without a server; take lit_fed.FederatedTrainer, which brings one, instead of Lightning's"
            )
        self.codecs.check_sampling(data.client_sampling)
        probability = data.sampling_probability
        check_sampling(self.algorithm, self.name, data.client_sampling, self.aggregation, self.weighting, probability)
        if self.privacy is not None:
            self.privacy.check_sampling(data.client_sampling)
        if self.faults is not None:
            self.faults.check_sampling(data.client_sampling)
        limits = [one for one in (trainer.max_epochs, trainer.max_steps) if one not in (None, -1)]
        return max(min(limits, default=1), 1)


def build_federation(
    module: LightningModule, settings: ModelSettings, facts: TrainingFacts, warm: WarmStart | None = None
) -> Federation:
    """A federation without seen clients whose server keeps its state in a module.

    Args:
        module: the module; leaves of the shared state are registered in it.
        settings: of the module.
        facts: sizes of the training.
        warm: models of another run to start from; None: fresh ones, or those of a network that was given as such.

    Raises:
        ConfigError: if network, data, client trainer and algorithm do not go together.
    """
    shape, outputs = facts.input_shape, facts.target.num_outputs
    init_seeds = None if settings.init_seeds is None else tuple(settings.init_seeds)
    task = Task.create(
        lambda: _build(settings, shape, facts.dtype, outputs), facts.target, facts.seed, init_seeds=init_seeds,
        criterion=None if settings.loss is None else Criterion(settings.loss, facts.target),
    )  # fmt: skip
    if isinstance(settings.network, nn.Module) and settings.lora_rank is None:  # beside adapters it is frozen, or fresh
        task = replace(task, start=start_of(settings.network, frozenset(task.frozen)))
    if warm is not None:
        task = warm.into(task)
    check_outputs(task.network, shape, facts.dtype, facts.target.output_shape(facts.label_shape))
    task = task.with_end(_example(shape, facts.dtype))
    if settings.batch_norm == "local" and not task.norm_names:
        raise ConfigError(
            f"--model.batch_norm is local, and {type(task.network).__name__} has no BatchNorm to train; leave it out"
        )
    choose = partial(_choose, settings, task.network)
    if settings.client_trainer != "auto":
        choose(module.device)  # one that cannot train the network is refused now
    if init_seeds is not None:
        check_init_seeds(init_seeds, settings.algorithm.num_models, facts.num_clients)
    algorithm = settings.wrapped
    terms = Context(
        task, settings.solver, settings.solver.lr_in("init", 0, facts.num_rounds), 0, "init", facts.num_clients,
        facts.total_samples, facts.seed, facts.groups, settings.aggregation, facts.weighting, facts.num_rounds,
        facts.most_samples, batch_size=facts.batch_size,
        augmentation=make_augmentation(facts.augment, facts.normalisation),
        sampling_probability=facts.sampling_probability, capped_samples=facts.capped_samples, attackers=facts.attacking,
    )  # fmt: skip
    check_augmented_steps(algorithm, settings.name, terms)
    source, shared = source_of(settings.network, task.template_seed), algorithm.shared_init(terms)
    settings.codecs.check_models(algorithm, terms, shared)
    return Federation(algorithm, terms, ModuleServer(module, task, shared, source), choose)


def _build(settings: ModelSettings, shape: tuple[int, ...], input_type: torch.dtype, outputs: int) -> nn.Module:
    """A network whose parameters are trained as the settings say; beside adapters the last layer alone, by default."""
    given = settings.network
    maker = copies_of(given) if isinstance(given, nn.Module) else given
    network = build_network(maker, shape, input_type, outputs)
    trainable = HEAD if settings.trainable is None and settings.lora_rank is not None else settings.trainable
    if trainable is not None:
        choose_trained(network, trainable)
    return settings.adapters.add_to(network, lambda: zero_outputs(network, shape, input_type))


def _example(shape: tuple[int, ...], input_type: torch.dtype) -> Tensor:
    """Two samples that differ wherever their type allows it; tokens, whose range a network knows alone, are 0."""
    if not input_type.is_floating_point:
        return torch.zeros(2, *shape, dtype=input_type)
    return torch.linspace(0, 1, 2 * math.prod(shape), dtype=input_type).view(2, *shape)


def _choose(settings: ModelSettings, network: nn.Module, device: torch.device) -> ClientTrainer:
    return choose_trainer(settings.client_trainer, network, device, settings.memory_format)
