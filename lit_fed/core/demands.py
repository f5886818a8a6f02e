"""What an algorithm asks of a run, refused before training where a run does not give it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lit_fed.core.context import Context
from lit_fed.errors import ConfigError

__all__ = [
    "check_aggregation",
    "check_augmented_steps",
    "check_cohort",
    "check_deployment",
    "check_division",
    "check_init_seeds",
    "check_loss",
    "check_sampling",
]

ROUNDS_LOOKED_AT = 100
"""Rounds of which one at least has local steps, where an algorithm takes some."""


def check_aggregation(algorithm: Any, aggregation: str) -> None:
    """Refuse `stale_fill` where an algorithm says itself what absent clients count for.

    Raises:
        ConfigError: naming the algorithm.
    """
    if aggregation == "stale_fill" and not algorithm.fills_in_absent_clients:
        raise ConfigError(
            f"--model.aggregation is stale_fill, and {type(algorithm).__name__} says itself what absent clients count "
            "for; leave it out"
        )


def check_loss(algorithm: Any, name: str, loss: object | None) -> None:
    """Refuse another loss than the log-loss where an algorithm's own mathematics takes that.

    Args:
        algorithm: the algorithm.
        name: its name.
        loss: the loss that was given; None: the log-loss.

    Raises:
        ConfigError: naming both, with the reason.
    """
    if loss is not None and algorithm.refuses_loss:
        raise ConfigError(
            f"--model.loss is {type(loss).__name__}, and {name} {algorithm.refuses_loss}; leave it out, or choose "
            "another --model.algorithm"
        )


def check_division(algorithm: Any, name: str, divided_by: str, dataset: str) -> None:
    """Refuse data whose clients have samples of their own where features are wanted, and the other way round.

    Args:
        algorithm: the algorithm.
        name: its name.
        divided_by: what its clients have of their own, `samples` or `features`.
        dataset: name of the data set.

    Raises:
        ConfigError: naming the algorithm and the data set.
    """
    if algorithm.divided_by != divided_by:
        kinds = {
            "samples": "clients with samples of their own",
            "features": "parties that hold different features of the same samples, such as FeatureBlocks",
        }
        raise ConfigError(
            f"{name} needs {kinds[algorithm.divided_by]}, and {dataset} has "
            f"{kinds[divided_by]}; give another --data.dataset or --model.algorithm"
        )


def check_sampling(
    algorithm: Any, name: str, sampling: str, aggregation: str, weighting: str | None, probability: float = 1.0
) -> None:
    """Refuse ways to draw clients in which the algorithm has no meaning.

    Drawn each for itself (`poisson`), any client may be absent. Drawn by size, with replacement, a mean over draws has
    to be what is wanted: if p_i = n_i/n is the probability of client i, the mean over C draws of what they send is the
    mean weighted by samples on average, E[Σ_draws m_i / C] = Σ_i p_i m_i. So every draw weighs the same, and no client
    is absent. Nothing of the kind holds where each client has to count once.

    Args:
        algorithm: the algorithm.
        name: its name.
        sampling: how clients are drawn.
        aggregation: what absent clients count for.
        weighting: weight of a client's message, where it was given.
        probability: with which a client takes part in a round, where each is drawn for itself.

    Raises:
        ConfigError: naming the two settings that do not go together.
    """
    if sampling == "poisson" and algorithm.needs_all_clients and probability < 1:
        raise ConfigError(
            f"--data.client_sampling is poisson, by which a client takes part in a round with probability "
            f"{probability:.4g}, and {name} needs every client in every round; leave out --data.client_fraction and "
            "--data.clients_per_round"
        )
    if sampling != "size":
        return
    reason = (
        "needs every client once in every round" if algorithm.needs_all_clients else algorithm.refuses_size_sampling
    )
    if reason:
        raise ConfigError(
            f"--data.client_sampling is size, by which a client may be drawn twice in a round, and {name} {reason}; "
            "give uniform"
        )
    if aggregation == "stale_fill":
        raise ConfigError(
            "--data.client_sampling is size, whose draws stand for all clients, so that --model.aggregation stale_fill "
            "has no absent ones to fill in; give renormalised, or sample uniformly"
        )
    if weighting == "samples" and algorithm.counts_draws:
        raise ConfigError(
            "--data.client_sampling is size, by which large clients are drawn more often, and --model.weighting is "
            "samples, by which they would count for more once again; give uniform, or sample uniformly"
        )


def check_augmented_steps(algorithm: Any, name: str, ctx: Context) -> None:
    """Refuse augmentation where clients take no local steps, whose inputs alone are augmented.

    Args:
        algorithm: the algorithm.
        name: its name.
        ctx: what every client knows.

    Raises:
        ConfigError: naming the algorithm.
    """
    if ctx.augmentation is None:
        return
    everybody = torch.arange(ctx.num_clients)
    for round_idx in range(min(ctx.num_rounds, ROUNDS_LOOKED_AT)):  # coins may leave some rounds without steps
        phases = algorithm.phases(ctx._replace(phase="plan", round_idx=round_idx), everybody)
        if any(phase.work.trains for phase in phases):
            return
    raise ConfigError(
        f"--data.augment {ctx.augmentation.said}: augments local steps, and {name} takes none with these settings; "
        "leave it out"
    )


def check_cohort(algorithm: Any, name: str, client_ids: np.ndarray, num_clients: int) -> None:
    """Refuse a cohort that lacks a client or has one twice, where an algorithm needs all of them.

    Args:
        algorithm: the algorithm.
        name: its name.
        client_ids: the cohort of a round, [C].
        num_clients: clients in all.

    Raises:
        ConfigError: naming the algorithm and the number of clients drawn.
    """
    drawn, draws = len(np.unique(client_ids)), len(client_ids)
    if algorithm.needs_all_clients and not drawn == draws == num_clients:
        repeats = f" in {draws} draws" if draws > drawn else ""
        raise ConfigError(
            f"{name} needs every client in every round, and {drawn} of {num_clients} are drawn{repeats}; leave out "
            "--data.client_fraction and --data.clients_per_round, and sample uniformly"
        )


def check_deployment(algorithm: Any, name: str) -> None:
    """Refuse clients on machines of their own where a server would learn what is not for it, or could not do its part.

    Args:
        algorithm: the algorithm.
        name: its name.

    Raises:
        ConfigError: naming the algorithm, with the reason.
    """
    alone = "" if algorithm.has_server else "has no server: one that played the network would see every client's model"
    if reason := alone or algorithm.refuses_deployment:
        raise ConfigError(
            f"{name} {reason}; choose another --model.algorithm for clients on machines of their own, or simulate it "
            "with data on this one"
        )


def check_init_seeds(init_seeds: tuple[int, ...], num_models: int, num_clients: int) -> None:
    """Refuse seeds that no generator takes, and more seeds than there are models.

    Args:
        init_seeds: seeds of the initial models.
        num_models: models that the server broadcasts.
        num_clients: clients, who may each begin with models of their own.

    Raises:
        ConfigError: naming the seed, or the number of seeds.
    """
    for seed in init_seeds:
        if not 0 <= seed < 2**63:
            raise ConfigError(f"--model.init_seeds holds {seed}; give whole numbers from 0 to 2^63 - 1")
    # one seed serves all models where they begin alike, and only the start itself knows how many are too few
    if len(init_seeds) not in (1, num_models, num_clients, num_clients * num_models):
        raise ConfigError(f"--model.init_seeds has {len(init_seeds)} seeds; give one for each of {num_models}")
