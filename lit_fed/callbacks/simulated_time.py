"""Simulated time of the rounds on links and devices of given speeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from lightning.pytorch import LightningModule, Trainer

from lit_fed.core import tree
from lit_fed.core.seeds import generator
from lit_fed.core.types import PhaseTraffic, RoundRecord
from lit_fed.errors import check_settings
from lit_fed.system.readers import number
from lit_fed.training.hooks import FederatedCallback, federated, log_round
from lit_fed.training.module import FederatedModule

__all__ = ["RoundTime", "SimulatedTime", "harmonic_number"]


class SimulatedTime(FederatedCallback):
    """Logs `time/simulated` after each round: the time since the first, in units of one model sent downwards.

    It works for every algorithm: traffic is what the algorithm counts, and a phase with local work takes the slowest of
    its clients' computing times, T_min plus an exponential variable with the mean 1/μ. An algorithm without a server
    takes the time in which its clients send, to one neighbour after the other.
    The settings of https://arxiv.org/abs/2110.09869, Figure 3, are (ρ, T_min, 1/μ) = (4, 1, 1), (2, 1, 0) and
    (1, 1, 0). The time goes to the run's summary and survives a resume. A run may have several of these callbacks, each
    with its own system and name.

    Args:
        uplink_ratio: ρ, upload time of a model relative to its download time.
        compute_min: T_min, minimum time of local training.
        compute_mean: 1/μ, mean of the random time added to it.
        uplink: clients send one after the other (`serial`) or all at once (`parallel`).
        compute: take the `expected` time of the slowest client, or draw all times (`sampled`).
        name: name of the system; with a name, `time/simulated/<name>` is logged.
    """

    kept = {"time": number(0)}

    def __init__(
        self, uplink_ratio: float = 1.0, compute_min: float = 1.0, compute_mean: float = 0.0,
        uplink: Literal["serial", "parallel"] = "serial", compute: Literal["expected", "sampled"] = "expected",
        name: str = "",
    ) -> None:  # fmt: skip
        self.round_time = RoundTime(uplink_ratio, compute_min, compute_mean, uplink)
        self.compute, self.name = compute, name
        check_settings(self, {"compute": (compute in ("expected", "sampled"), "expected or sampled")}, "SimulatedTime")
        self.time = 0.0
        self._model_bits = 1.0

    @property
    def state_key(self) -> str:
        return f"SimulatedTime{self.name and '/'}{self.name}"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        self._model_bits = float(tree.bits(module.federation.terms.task.fresh(1, module.facts.seed)))

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        drawn = generator(module.facts.seed, record.round_idx, 0, "compute time")
        rng = drawn if self.compute == "sampled" else None
        self.time += sum(self.round_time.phase(one, self._model_bits, rng) for one in record.phases)
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
        uplink: clients send one after the other (`serial`) or all at once (`parallel`).
    """

    uplink_ratio: float = 1.0
    compute_min: float = 1.0
    compute_mean: float = 0.0
    uplink: Literal["serial", "parallel"] = "serial"

    def __post_init__(self) -> None:
        checks = {
            "uplink_ratio": (self.uplink_ratio >= 0, "a number >= 0"),
            "compute_min": (self.compute_min >= 0, "a number >= 0"),
            "compute_mean": (self.compute_mean >= 0, "a number >= 0"),
            "uplink": (self.uplink in ("serial", "parallel"), "serial or parallel"),
        }
        check_settings(self, checks, "SimulatedTime")

    def expected_slowest(self, num_clients: int) -> float:
        """E[max_i T_i] = T_min + H_m/μ of m clients.

        Example:
            >>> round(RoundTime(compute_min=1.0, compute_mean=0.5).expected_slowest(20), 4)
            2.7989
        """
        return self.compute_min + self.compute_mean * harmonic_number(num_clients)

    def drawn_slowest(self, num_clients: int, rng: np.random.Generator) -> float:
        """max_i T_i of m clients with sampled times."""
        return self.compute_min + self.compute_mean * float(rng.exponential(size=num_clients).max())

    def transfers(self, traffic: PhaseTraffic, model_bits: float) -> float:
        """Transfer time of a phase, downlink and uplink.

        Payloads have the average size received by a client. Without a server, traffic counts once, as sent.

        Args:
            traffic: traffic of the phase.
            model_bits: size of one model.
        """
        each_down, each_up = (bits / traffic.num_clients / model_bits for bits in (traffic.bits_down, traffic.bits_up))
        senders = traffic.num_clients if self.uplink == "serial" else 1
        return traffic.num_payloads * each_down + self.uplink_ratio * senders * each_up

    def phase(self, traffic: PhaseTraffic, model_bits: float, rng: np.random.Generator | None = None) -> float:
        """Time of a phase, 0 without clients; computing time is known to the round, expected, or sampled."""
        if not traffic.num_clients:
            return 0.0
        if not traffic.trains:
            return self.transfers(traffic, model_bits)
        m = traffic.num_clients
        if traffic.wait is not None:
            return traffic.wait + self.transfers(traffic, model_bits)
        slowest = self.expected_slowest(m) if rng is None else self.drawn_slowest(m, rng)
        return slowest + self.transfers(traffic, model_bits)
