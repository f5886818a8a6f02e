"""A federation built from the settings of a module and the facts of its data."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn

from lit_fed.algorithms.base import Algorithm
from lit_fed.algorithms.fedbn import LocalNorm
from lit_fed.clients import ClientTrainer, MemoryFormat, choose_trainer
from lit_fed.core.context import Context
from lit_fed.core.demands import check_aggregation, check_division, check_init_seeds, check_sampling
from lit_fed.core.errors import ConfigError
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.task import Task
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule
from lit_fed.models.base import Network, build_network, check_outputs
from lit_fed.rounds import Federation
from lit_fed.training.module_server import ModuleServer

__all__ = ["ModelSettings", "build_federation"]


class ModelSettings(NamedTuple):
    """What `FederatedModule` was given; see there."""

    algorithm: Algorithm
    solver: LocalSolver
    network: Callable[[tuple[int, ...], int], Network]
    client_trainer: Literal["auto", "sequential", "vectorized", "debug"]
    aggregation: Literal["renormalised", "stale_fill"]
    weighting: Literal["samples", "uniform"] | None
    init_seeds: list[int] | None
    client_memory_gb: float
    memory_format: MemoryFormat
    batch_norm: Literal["average", "local"]

    def check(self) -> None:
        """Refuse what no data can make sense of.

        Raises:
            ConfigError: naming the setting.
        """
        if not self.client_memory_gb >= 0:
            raise ConfigError(f"--model.client_memory_gb is {self.client_memory_gb}; give a number >= 0")
        check_aggregation(self.algorithm, self.aggregation)

    @property
    def wrapped(self) -> Any:
        """The algorithm that runs: the one that was given, or with local BatchNorm the wrapper around it."""
        return LocalNorm(self.algorithm) if self.batch_norm == "local" else self.algorithm

    @property
    def name(self) -> str:
        """The algorithm's name."""
        return type(self.algorithm).__name__

    def facts_of(self, data: FederatedDataModule, num_rounds: int) -> TrainingFacts:
        """What a federation is built from for these data.

        Raises:
            ConfigError: if their clients are divided in another way than the algorithm needs.
        """
        check_division(self.algorithm, self.name, data.dataset.divided_by, type(data.dataset).__name__)
        usual = "uniform" if data.client_sampling == "size" else self.algorithm.default_weighting
        seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
        return data.facts(weighting=self.weighting or usual, seed=seed, num_rounds=num_rounds)

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
        check_sampling(self.algorithm, self.name, data.client_sampling, self.aggregation, self.weighting)
        limits = [one for one in (trainer.max_epochs, trainer.max_steps) if one not in (None, -1)]
        return max(min(limits, default=1), 1)


def build_federation(module: LightningModule, settings: ModelSettings, facts: TrainingFacts) -> Federation:
    """A federation without seen clients whose server keeps its state in a module.

    Args:
        module: the module; leaves of the shared state are registered in it.
        settings: of the module.
        facts: sizes of the training.

    Raises:
        ConfigError: if network, data, client trainer and algorithm do not go together.
    """
    shape, outputs = facts.input_shape, facts.target.num_outputs
    init_seeds = None if settings.init_seeds is None else tuple(settings.init_seeds)
    task = Task.create(
        lambda: build_network(settings.network, shape, facts.dtype, outputs), facts.target, facts.seed,
        init_seeds=init_seeds,
    )  # fmt: skip
    check_outputs(task.network, shape, facts.dtype, facts.target.output_shape(facts.label_shape))
    if settings.batch_norm == "local" and not task.norm_names:
        raise ConfigError(
            f"--model.batch_norm is local, and {type(task.network).__name__} has no BatchNorm; leave it out"
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
    )  # fmt: skip
    return Federation(algorithm, terms, ModuleServer(module, task, algorithm.shared_init(terms)), choose)


def _choose(settings: ModelSettings, network: nn.Module, device: torch.device) -> ClientTrainer:
    return choose_trainer(settings.client_trainer, network, device, settings.memory_format)
