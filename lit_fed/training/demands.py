"""What an algorithm asks of a run, refused before training where a run does not give it."""

from __future__ import annotations

from typing import Any

import numpy as np

from lit_fed.core.errors import ConfigError

__all__ = ["check_aggregation", "check_cohort", "check_division", "check_init_seeds"]


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


def check_division(algorithm: Any, name: str, dataset: Any) -> None:
    """Refuse data whose clients have samples of their own where features are wanted, and the other way round.

    Args:
        algorithm: the algorithm.
        name: its name.
        dataset: the data set.

    Raises:
        ConfigError: naming the algorithm and the data set.
    """
    if algorithm.divided_by != dataset.divided_by:
        kinds = {
            "samples": "clients with samples of their own",
            "features": "parties that hold different features of the same samples, such as FeatureBlocks",
        }
        raise ConfigError(
            f"{name} needs {kinds[algorithm.divided_by]}, and {type(dataset).__name__} has "
            f"{kinds[dataset.divided_by]}; give another --data.dataset or --model.algorithm"
        )


def check_cohort(algorithm: Any, name: str, client_ids: np.ndarray, num_clients: int) -> None:
    """Refuse a cohort that lacks a client, where an algorithm needs all of them.

    Args:
        algorithm: the algorithm.
        name: its name.
        client_ids: the cohort of a round, [C].
        num_clients: clients in all.

    Raises:
        ConfigError: naming the algorithm and the number of clients drawn.
    """
    drawn = len(np.unique(client_ids))
    if algorithm.needs_all_clients and drawn < num_clients:
        raise ConfigError(
            f"{name} needs every client in every round, and {drawn} of {num_clients} are drawn; leave out "
            "--data.client_fraction and --data.clients_per_round, and sample uniformly"
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
