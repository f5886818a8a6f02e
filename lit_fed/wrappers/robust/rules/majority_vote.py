"""MajorityVote: at each number of the model a step of one size to where most clients want it.

Bernstein, Zhao, Azizzadenesheli, Anandkumar. "signSGD with Majority Vote is Communication Efficient and Fault
Tolerant". ICLR 2019. https://arxiv.org/abs/1810.05291, Algorithm 1.

Symbols:
    η        -> server_lr    size of the step
    sign(v_m) -> X.sign()    what client m votes for
Deviations:
    Clients vote with the signs of their changes after local training, where the paper takes momenta of gradients; a
    number that did not change is no vote, and where votes are even nothing moves. With weights votes weigh.
    Messages are whole, and counted so: `--model.compression ScaledSign` sends a bit for each number, with the same
    votes but for numbers that did not change, which then count as having grown.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from lit_fed.wrappers.robust.rules.base import CoordinateRule

__all__ = ["MajorityVote"]


@dataclass(frozen=True)
class MajorityVote(CoordinateRule):
    """Each number of the model moves by one step to where most clients want it.

    Args:
        server_lr: η, size of the step.
    """

    server_lr: float = 1e-3

    takes_signs = True

    ranges: ClassVar[dict[str, str]] = {"server_lr": "> 0"}

    def fewest(self, num_attackers: int) -> int:
        """More than half have to be honest."""
        return 2 * num_attackers + 1

    def at_each(self, piece: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """η·sign(Σ w sign X); votes count that went with the majority."""
        votes = piece.sign()
        majority = (weights @ votes).sign()
        return self.server_lr * majority, votes == majority
