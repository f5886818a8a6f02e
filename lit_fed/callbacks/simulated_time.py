"""What the rounds would have taken on links and devices of given speeds."""

from __future__ import annotations

from typing import Literal

from lightning.pytorch import LightningModule, Trainer

from lit_fed.core import tree
from lit_fed.core.seeds import generator
from lit_fed.core.types import RoundRecord
from lit_fed.errors import check_settings
from lit_fed.metrics.round_time import RoundTime
from lit_fed.training.hooks import FederatedCallback, federated, log_round
from lit_fed.training.module import FederatedModule

__all__ = ["SimulatedTime"]


class SimulatedTime(FederatedCallback):
    """Logs `time/simulated` after each round: the time since the first, in units of one model sent downwards.

    It works for every algorithm: traffic is what the algorithm counts, and a phase with local work takes the slowest of
    its clients' computing times, T_min plus an exponential variable with the mean 1/μ. An algorithm without a server
    takes the time in which its clients send, to one neighbour after the other.
    The settings of https://arxiv.org/abs/2110.09869, Figure 3, are (ρ, T_min, 1/μ) = (4, 1, 1), (2, 1, 0) and
    (1, 1, 0). The time goes to the run's summary and survives a resume. A run may have several of these callbacks, each
    for a system of its own with a name of its own.

    Args:
        uplink_ratio: ρ, how much longer a model takes upwards than downwards.
        compute_min: T_min, least time of local training.
        compute_mean: 1/μ, mean of what chance adds to it.
        uplink: clients send one after the other (`serial`) or all at once (`parallel`).
        compute: take the `expected` time of the slowest client, or draw all times (`sampled`).
        name: of the system; where it has one, `time/simulated/<name>` is logged.
    """

    def __init__(
        self,
        uplink_ratio: float = 1.0,
        compute_min: float = 1.0,
        compute_mean: float = 0.0,
        uplink: Literal["serial", "parallel"] = "serial",
        compute: Literal["expected", "sampled"] = "expected",
        name: str = "",
    ) -> None:
        self.round_time = RoundTime(uplink_ratio, compute_min, compute_mean, uplink)
        self.compute, self.name = compute, name
        check_settings(self, {"compute": (compute in ("expected", "sampled"), "expected or sampled")}, "SimulatedTime")
        self.time = 0.0
        self._model_bits = 1.0

    @property
    def state_key(self) -> str:
        """Where a checkpoint keeps the time of this system."""
        return f"SimulatedTime{self.name and '/'}{self.name}"

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Learn the size of one model."""
        module = federated(pl_module)
        self._model_bits = float(tree.bits(module.federation.terms.task.fresh(1, module.facts.seed)))

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        """Log and add up."""
        drawn = generator(module.facts.seed, record.round_idx, 0, "compute time")
        rng = drawn if self.compute == "sampled" else None
        self.time += sum(self.round_time.phase(one, self._model_bits, rng) for one in record.phases)
        key = f"time/simulated{self.name and '/'}{self.name}"
        module.results[key] = self.time
        log_round(trainer, module, {key: self.time})

    def state_dict(self) -> dict[str, float]:
        """The time so far."""
        return {"time": self.time}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Go on from the time of a checkpoint."""
        self.time = state_dict["time"]
