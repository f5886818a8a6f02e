"""Simulated time of the rounds on links and devices of given speeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from lightning.pytorch import LightningModule, Trainer

from lit_fed.core import tree
from lit_fed.core.types import PhaseTraffic, RoundRecord
from lit_fed.errors import check_settings
from lit_fed.system.readers import number
from lit_fed.training.hooks import FederatedCallback, federated, log_round
from lit_fed.training.module import FederatedModule

__all__ = ["RoundTime", "SimulatedTime", "harmonic_number"]


class SimulatedTime(FederatedCallback):
    """Logs `time/simulated` after each round: the time since the first, in units of one model sent downwards.

    It works for every algorithm: traffic is what the algorithm counts, and a phase with local work takes the
    expected slowest of its clients' computing times, T_min plus an exponential variable with the mean 1/μ; clients send
    one after the other. An algorithm without a server
    takes the time in which its clients send, to one neighbour after the other.
    The settings of https://arxiv.org/abs/2110.09869, Figure 3, are (ρ, T_min, 1/μ) = (4, 1, 1), (2, 1, 0) and
    (1, 1, 0). The time goes to the run's summary and survives a resume. A run may have several of these callbacks, each
    with its own system and name.

    Args:
        uplink_ratio: ρ, upload time of a model relative to its download time.
        compute_min: T_min, minimum time of local training.
        compute_mean: 1/μ, mean of the random time added to it.
        name: name of the system; with a name, `time/simulated/<name>` is logged.
    """

    kept = {"time": number(0)}

    def __init__(
        self, uplink_ratio: float = 1.0, compute_min: float = 1.0, compute_mean: float = 0.0, name: str = ""
    ) -> None:
        self.round_time, self.name, self.time = RoundTime(uplink_ratio, compute_min, compute_mean), name, 0.0
        self._model_bits = 1.0

    @property
    def state_key(self) -> str:
        return f"SimulatedTime{self.name and '/'}{self.name}"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        self._model_bits = float(tree.bits(module.federation.terms.task.fresh(1, module.facts.seed)))

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        self.time += sum(self.round_time.phase(one, self._model_bits) for one in record.phases)
        key = f"time/simulated{self.name and '/'}{self.name}"
        module.results[key] = self.time
        log_round(trainer, module, {key: self.time})


def harmonic_number(m: int) -> float:
    """H_m = Σ_{k ≤ m} 1/k.

    Example:
        >>> round(harmonic_number(20), 5), round(harmonic_number(100), 5)
        (3.59774, 5.18738)
    """
    return float((1 / np.arange(1, m + 1)).sum())


@dataclass(frozen=True)
class RoundTime:
    """Speeds of links and devices; times are in units of T_dl.

    Args:
        uplink_ratio: ρ, upload time of a model relative to its download time.
        compute_min: T_min.
        compute_mean: 1/μ; 0: computing always takes T_min.
    """

    uplink_ratio: float = 1.0
    compute_min: float = 1.0
    compute_mean: float = 0.0

    def __post_init__(self) -> None:
        check_settings(self, prefix="SimulatedTime", uplink_ratio=">= 0", compute_min=">= 0", compute_mean=">= 0")

    def expected_slowest(self, num_clients: int) -> float:
        """E[max_i T_i] = T_min + H_m/μ of m clients.

        Example:
            >>> round(RoundTime(compute_min=1.0, compute_mean=0.5).expected_slowest(20), 4)
            2.7989
        """
        return self.compute_min + self.compute_mean * harmonic_number(num_clients)

    def transfers(self, traffic: PhaseTraffic, model_bits: float) -> float:
        """Transfer time of a phase, downlink and uplink.

        Payloads have the average size received by a client. Without a server, traffic counts once, as sent.

        Args:
            traffic: traffic of the phase.
            model_bits: size of one model.
        """
        each_down, each_up = (bits / traffic.num_clients / model_bits for bits in (traffic.bits_down, traffic.bits_up))
        return traffic.num_payloads * each_down + self.uplink_ratio * traffic.num_clients * each_up

    def phase(self, traffic: PhaseTraffic, model_bits: float) -> float:
        """Time of a phase, 0 without clients; computing time is known to the round, or expected."""
        if not traffic.num_clients:
            return 0.0
        if not traffic.trains:
            return self.transfers(traffic, model_bits)
        wait = self.expected_slowest(traffic.num_clients) if traffic.wait is None else traffic.wait
        return wait + self.transfers(traffic, model_bits)
