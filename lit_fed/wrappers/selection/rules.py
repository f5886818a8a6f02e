"""Selection of a round's clients by reported losses of candidates, and Power-of-Choice.

Cho, Wang, Joshi. "Towards Understanding Biased Client Selection in Federated Learning". AISTATS 2022.
https://arxiv.org/abs/2010.01243, Section 4 (the strategy pow-d).

Symbols:
    p_k    -> sizes / Σ sizes   share of client k in the training samples
    A, d   -> draw, candidates  clients that report, and their number
    F_k(w) -> losses            mean loss of the training samples of client k
    S, m   -> choose, cohort    clients of the round, and their number
Deviations:
    The reported loss is that of the prediction that would serve the client: for FedAvg that of the global model w, for
    FedEM that of the client's mixture, for algorithms with personal models that of the personal one.
    Losses are compared to five significant digits, with ties by client, so that rounding decides nothing. A client
    without samples, or with loss NaN, comes last.
    Candidates receive the broadcast for serving, and the selected ones also that of the round: bytes count both.
    The estimates cpow-d, from a mini-batch, and rpow-d, from the last local training, are not offered.
    Attackers (`--data.attackers`) report their true losses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from lit_fed.errors import ConfigError, check_settings

__all__ = ["PowerOfChoice", "Selection"]

PLACE = "--model.selection"


class Selection(ABC):
    """A rule that selects the clients of a round by the candidates' losses.

    Subclasses are frozen dataclasses. Their functions are pure: the same on every rank, with randomness from `rng`
    only.
    """

    usual_weighting: ClassVar[Literal["samples", "uniform"] | None] = None
    """Weight of a client's message where `--model.weighting` is not given; None: the algorithm's."""

    def check_cohort(self, cohort: int, num_clients: int) -> None:
        """Refuse numbers of clients that leave no choice.

        Args:
            cohort: m, clients of a round.
            num_clients: T.

        Raises:
            ConfigError: naming the option.
        """
        if cohort >= num_clients:
            raise ConfigError(
                f"{PLACE} chooses clients of a round, and all {num_clients} take part; give --data.clients_per_round "
                "or --data.client_fraction, or leave it out"
            )

    def draw(self, sizes: np.ndarray, cohort: int, rng: np.random.Generator) -> np.ndarray:
        """The clients that report their loss; by default all.

        Args:
            sizes: training samples of each reachable client, [A].
            cohort: m, at most A.
            rng: the stream of the round.

        Returns:
            Positions in `sizes` [d], without duplicates.
        """
        return np.arange(len(sizes))

    @abstractmethod
    def choose(self, losses: np.ndarray, sizes: np.ndarray, cohort: int, rng: np.random.Generator) -> np.ndarray:
        """The clients of the round.

        Args:
            losses: mean loss of each candidate's training samples, by ascending client [d]; NaN without samples.
            sizes: its training samples, [d].
            cohort: m, at most d.
            rng: the stream of the round.

        Returns:
            Positions in `losses` [m], without duplicates.
        """


@dataclass(frozen=True)
class PowerOfChoice(Selection):
    """The m clients with the largest loss among d candidates, sampled in proportion to their size (pow-d).

    The paper averages the models of a round without weights, which is the default of `--model.weighting` here.

    Args:
        candidates: d, from m to the number of clients; m is `--data.clients_per_round`.
    """

    candidates: int = 20

    usual_weighting = "uniform"

    def __post_init__(self) -> None:
        check_settings(self, prefix=PLACE, candidates="> 0")

    def check_cohort(self, cohort: int, num_clients: int) -> None:
        """Refuse fewer candidates than clients of a round, and more than all clients."""
        super().check_cohort(cohort, num_clients)
        if not cohort <= self.candidates <= num_clients:
            raise ConfigError(
                f"{PLACE}.candidates is {self.candidates}, a round has {cohort} of {num_clients} "
                f"clients; give a number from {cohort} to {num_clients}"
            )

    def draw(self, sizes: np.ndarray, cohort: int, rng: np.random.Generator) -> np.ndarray:
        """A: d draws without replacement, client k with probability p_k; fewer if fewer clients have samples."""
        number = min(self.candidates, int(np.count_nonzero(sizes)))
        return rng.choice(len(sizes), number, replace=False, p=sizes / max(sizes.sum(), 1)) if number else np.arange(0)

    def choose(self, losses: np.ndarray, sizes: np.ndarray, cohort: int, rng: np.random.Generator) -> np.ndarray:
        """S: the m largest F_k(w)."""
        falling = np.where(np.isnan(losses), -np.inf, losses)
        return np.argsort(-falling, kind="stable")[:cohort]
