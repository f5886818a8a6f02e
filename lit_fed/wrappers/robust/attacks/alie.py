"""ALIE, "a little is enough": attackers stay within the spread of honest clients, where no rule can tell them apart.

Baruch, Baruch, Goldberg. "A Little Is Enough: Circumventing Defenses For Distributed Learning". NeurIPS 2019.
https://arxiv.org/abs/1902.06156, Algorithm 3.

Symbols:
    m, f -> clients of a round, and how many of them attack (the paper: n, m)
    s    -> honest clients that must be further from the mean than attackers, for a majority
    z    -> deviations by which attackers leave the mean, Φ⁻¹((m − f − s)/(m − f)) with s = ⌊m/2 + 1⌋ − f
Deviations:
    Attackers know mean and deviation of the honest clients; in the paper they estimate them from their own samples. The
    deviation is the unbiased one (the official code: divided by the number of clients, and z = 1.5).
    The sign refers to changes of the model; the official code uses gradients, which have the opposite sign.
    Rounds whose cohort has too many attackers, or too few clients, take the nearest s with a finite z.
"""

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import Tree
from lit_fed.errors import ConfigError, check_settings
from lit_fed.wrappers.robust.attacks.base import Attack, Intercepted

__all__ = ["ALIE"]


@dataclass(frozen=True)
class ALIE(Attack):
    """Attackers send the mean of the honest changes minus z deviations, elementwise.

    Args:
        z: number of deviations; null: the maximum that goes unnoticed for these numbers of clients and attackers.
            Negative values lie on the other side of the mean, as in attacks on gradients.
    """

    z: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, prefix="--model.attack", z=(self.z != 0, "a number other than 0, or leave it out"))

    def check(self, num_messages: int, num_attackers: int) -> None:
        """Refuse numbers for which z is infinite."""
        supporters = _supporters(num_messages, num_attackers)
        if self.z is None and num_attackers and not num_messages - num_attackers > supporters > 0:
            raise ConfigError(
                f"--model.attack ALIE with {num_attackers} attackers among {num_messages} clients of a round has no z: "
                "it takes 3 clients at least, of whom not more than half attack; change --data.attackers, draw more "
                "clients, or give --model.attack.z"
            )

    def changes(self, sent: Intercepted) -> Tree:
        """mean(H) − z·std(H); one honest change has no spread."""
        deviations = self.deviations(len(sent.attacked), int(sent.attacked.sum())) if self.z is None else self.z

        def leaf(honest: Tensor) -> Tensor:
            mean = honest.mean(0)
            squares = (honest - mean).square_().sum(0)  # torch.std takes twice as long over a first axis
            return (mean - deviations * (squares / max(len(honest) - 1, 1)).sqrt())[None]

        return tree.map_leaves(leaf, sent.honest)

    @staticmethod
    def deviations(num_messages: int, num_attackers: int) -> float:
        """The z for which half of the clients plus one are at least as far from the mean as the attackers.

        Args:
            num_messages: m.
            num_attackers: f.

        Example:
            >>> round(ALIE.deviations(25, 5), 6), round(ALIE.deviations(50, 24), 6), ALIE.deviations(10, 2)
            (0.253347, 1.426077, 0.0)
        """
        honest = num_messages - num_attackers
        if honest < 2:
            return 0.0
        supporters = min(max(_supporters(num_messages, num_attackers), 1), honest - 1)
        return NormalDist().inv_cdf((honest - supporters) / honest)


def _supporters(num_messages: int, num_attackers: int) -> int:
    """s: number of honest clients that form a majority together with the attackers."""
    return num_messages // 2 + 1 - num_attackers
