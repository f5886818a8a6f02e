"""How long a round takes on links and devices of given speeds, in units of the time that one model takes downwards.

Mestoukirdi, Zecchin, Gesbert, Li, Gresset. "User-Centric Federated Learning". 2021. https://arxiv.org/abs/2110.09869,
Section IV-C.

Symbols:
    T_dl  ->               1: time in which the server sends one model, to one client or to all at once
    ρ     -> uplink_ratio  T_ul / T_dl
    T_min -> compute_min   least time of local training
    1/μ   -> compute_mean  mean of what chance adds to it, an exponential variable for each client
Deviations:
    The paper gives no formula for a round. Ours: computing, then all that the server sends one after the other, then
    what the clients send: one after the other (`serial`, with which the paper's remarks agree) or all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lit_fed.core.types import PhaseTraffic
from lit_fed.errors import check_settings

__all__ = ["RoundTime", "harmonic_number"]


def harmonic_number(m: int) -> float:
    """H_m = Σ_{k ≤ m} 1/k.

    Example:
        >>> round(harmonic_number(20), 5), round(harmonic_number(100), 5)
        (3.59774, 5.18738)
    """
    return float((1 / np.arange(1, m + 1)).sum())


@dataclass(frozen=True)
class RoundTime:
    """Speeds of links and devices; every time is in units of T_dl.

    Args:
        uplink_ratio: ρ, how much longer a model takes upwards than downwards.
        compute_min: T_min.
        compute_mean: 1/μ; 0: computing always takes T_min.
        uplink: clients send one after the other (`serial`) or all at once (`parallel`).
    """

    uplink_ratio: float = 1.0
    compute_min: float = 1.0
    compute_mean: float = 0.0
    uplink: Literal["serial", "parallel"] = "serial"

    def __post_init__(self) -> None:
        """Refuse values outside their range."""
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
        """max_i T_i of m clients whose times are drawn."""
        return self.compute_min + self.compute_mean * float(rng.exponential(size=num_clients).max())

    def transfers(self, traffic: PhaseTraffic, model_bits: float) -> float:
        """Time on the links, downwards and upwards.

        Every payload is as long as what a client receives on average. Without a server what clients receive is what
        others send, and counts as sent alone.

        Args:
            traffic: of the phase.
            model_bits: size of one model.
        """
        each_down, each_up = (bits / traffic.num_clients / model_bits for bits in (traffic.bits_down, traffic.bits_up))
        senders = traffic.num_clients if self.uplink == "serial" else 1
        return traffic.num_payloads * each_down + self.uplink_ratio * senders * each_up

    def phase(self, traffic: PhaseTraffic, model_bits: float, rng: np.random.Generator | None = None) -> float:
        """Time of a phase, 0 if nobody took part; that of computing is known to the round, expected, or drawn."""
        if not traffic.num_clients:
            return 0.0
        if not traffic.trains:
            return self.transfers(traffic, model_bits)
        m = traffic.num_clients
        if traffic.wait is not None:
            return traffic.wait + self.transfers(traffic, model_bits)
        slowest = self.expected_slowest(m) if rng is None else self.drawn_slowest(m, rng)
        return slowest + self.transfers(traffic, model_bits)
