"""A federation built from the settings of a module and the facts of its data."""

from __future__ import annotations

import os
from typing import Any

from lightning.pytorch import LightningModule, Trainer

from lit_fed.clients.session import ModelSettings, Session
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule
from lit_fed.deployment.remote import RemoteTrainer
from lit_fed.deployment.remote_clients import RemoteClients, RemoteSplit
from lit_fed.deployment.session_facts import facts_to_json
from lit_fed.errors import ConfigError
from lit_fed.rounds import FederatedRounds
from lit_fed.training.module_server import ModuleServer, source_of
from lit_fed.training.warm_start import WarmStart

__all__ = ["build_federation", "facts_of", "remote_trainer", "rounds_of_fit", "without_noise_seed"]


def facts_of(settings: ModelSettings, data: FederatedDataModule, num_rounds: int) -> TrainingFacts:
    """What a federation is built from for these data.

    Raises:
        ConfigError: if their clients are divided in another way than the algorithm needs, or are too many.
    """
    settings.check_combination(dataset=(type(data.dataset).__name__, data.dataset.divided_by))
    usual = "uniform" if data.client_sampling == "size" else settings.algorithm.participation.weighting
    if settings.privacy is not None:
        usual = settings.privacy.usual_weighting() or usual
    usual = settings.robustness.usual_weighting() or usual
    seed = int(os.environ.get("PL_GLOBAL_SEED", "0"))
    facts = data.facts(weighting=settings.weighting or usual, seed=seed, num_rounds=num_rounds)
    share = 1.0 if data.client_sampling == "poisson" else facts.sampling_probability
    num_messages = round(share * facts.num_clients)
    settings.robustness.check_data(facts, num_messages)
    if settings.faults is not None:
        settings.faults.check_clients(facts.num_clients)
    if settings.secure_aggregation is not None:
        most_weight = facts.most_samples if facts.weighting == "samples" else 1
        settings.secure_aggregation.check_cohort(num_messages, most_weight)
    if settings.privacy is not None and settings.privacy.needs_sizes:
        facts = facts._replace(sizes=data.populations[0].train.sizes)
    cap = settings.robustness.weight_cap if settings.privacy is None else settings.privacy.weight_cap
    return facts if cap is None else facts._replace(capped_samples=data.capped_samples(cap))


def rounds_of_fit(settings: ModelSettings, trainer: Trainer, data: FederatedDataModule) -> int:
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
    settings.check_combination(sampling=data.client_sampling, probability=data.sampling_probability)
    limits = [one for one in (trainer.max_epochs, trainer.max_steps) if one not in (None, -1)]
    return max(min(limits, default=1), 1)


def build_federation(
    module: LightningModule, settings: ModelSettings, facts: TrainingFacts, warm: WarmStart | None = None
) -> FederatedRounds:
    """A federation without seen clients whose server keeps its state in a module.

    Args:
        module: the module; leaves of the shared state are registered in it.
        settings: of the module.
        facts: sizes of the training.
        warm: models of another run to start from; None: fresh ones, or those of a network that was given as such.

    Raises:
        ConfigError: if network, data, client trainer and algorithm do not go together.
    """
    session = Session.of(settings, facts, module.device, None if warm is None else warm.into)
    task, shared = session.terms.task, session.shared
    server = ModuleServer(module, task, shared, source_of(settings.network, task.template_seed))
    return FederatedRounds(session.algorithm, session.terms, server, session.choose)


def remote_trainer(
    rounds: FederatedRounds,
    settings: ModelSettings,
    facts: TrainingFacts,
    arguments: dict[str, Any],
    data: FederatedDataModule,
) -> RemoteTrainer:
    """The client trainer of a federation whose clients are on nodes.

    Args:
        rounds: the federation.
        settings: of the module.
        facts: what it was built from.
        arguments: those of the command line, which nodes make their settings of; {} without one.
        data: the data module.

    Raises:
        ConfigError: if the algorithm or a setting makes no sense there.
    """
    dataset = data.dataset
    assert isinstance(dataset, RemoteClients)
    settings.check_combination(deployed=True, missing=dataset.missing, poison=data.poison is not None)
    seen, unseen = data.populations
    assert isinstance(seen.train, RemoteSplit)
    session = {
        "model": without_noise_seed(arguments.get("model")), "facts": facts_to_json(facts),
        "val_fraction": data.val_fraction if seen.train.is_cut else 0.0, "data_seed": data.seed,
    }  # fmt: skip
    return RemoteTrainer(dataset.fleet, rounds, (seen, unseen), session)


def without_noise_seed(model: dict[str, Any] | None) -> dict[str, Any] | None:
    """The settings that nodes are sent: each has noise of its own, and none may repeat the server's."""
    options = ((model or {}).get("privacy") or {}).get("init_args")
    if model is None or not options:
        return model
    kept = {name: value for name, value in options.items() if name != "noise_seed"}
    return model | {"privacy": model["privacy"] | {"init_args": kept}}
