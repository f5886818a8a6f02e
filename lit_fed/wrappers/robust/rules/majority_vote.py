"""MajorityVote: each number of the model takes a step of fixed size in the direction of most clients.

Bernstein, Zhao, Azizzadenesheli, Anandkumar. "signSGD with Majority Vote is Communication Efficient and Fault
Tolerant". ICLR 2019. https://arxiv.org/abs/1810.05291, Algorithm 1.

Symbols:
    η        -> server_lr    size of the step
    sign(v_m) -> X.sign()    vote of client m
Deviations:
    Clients vote with the signs of their changes after local training, the paper with those of momenta of gradients. An
    unchanged number is no vote, and ties move nothing. With weights, votes are weighted.
    Messages are full, and counted as such: `--model.compression ScaledSign` sends one bit per number, with the same
    votes except that unchanged numbers count as increases.
"""

from dataclasses import dataclass

from torch import Tensor

from lit_fed.wrappers.robust.rules.base import CoordinateRule

__all__ = ["MajorityVote"]


@dataclass(frozen=True)
class MajorityVote(CoordinateRule):
    """Each number of the model takes one step in the direction of most clients.

    Args:
        server_lr: η, size of the step.
    """

    server_lr: float = 1e-3

    takes_signs = True

    ranges = {"server_lr": "> 0"}

    def fewest(self, num_attackers: int) -> int:
        """More than half must be honest."""
        return 2 * num_attackers + 1

    def at_each(self, piece: Tensor, weights: Tensor, num_attackers: int) -> tuple[Tensor, Tensor]:
        """η·sign(Σ w sign X); votes with the majority count as used."""
        votes = piece.sign()
        majority = (weights @ votes).sign()
        return self.server_lr * majority, votes == majority
