"""Anderson acceleration of fixed-point iterations.

Anderson. "Iterative Procedures for Nonlinear Integral Equations". Journal of the ACM 12(4), 1965.
https://doi.org/10.1145/321296.321305
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Jumps"]

JUMP_EVERY, MEMORY = 5, 10
RIDGE = 1e-8
"""What keeps the small linear system solvable where steps repeat each other, relative to its mean diagonal."""


class Jumps:
    """Every few steps of x ← G(x), go to where a linear map through the last steps would have its fixed point.

    Plain steps of an averaged map never lengthen; a jump after which the next step is longer than the one before is
    taken back, so convergence stays what it is without jumps.
    """

    def __init__(self) -> None:
        self.moves: list[Tensor] = []
        self.images: list[Tensor] = []
        self.plain: Tensor | None = None  # where to go on if the last jump was wrong
        self.length, self.count = torch.inf, 0

    def next(self, point: Tensor, move: Tensor) -> Tensor:
        """The point to go on from.

        Args:
            point: x, of any shape; what the last call returned.
            move: G(x) − x.
        """
        length = float(move.norm())
        if self.plain is not None and length > self.length:
            point, self.plain, self.moves, self.images = self.plain, None, [], []
            return point
        image = point + move
        self.moves, self.images = [*self.moves[-MEMORY:], move], [*self.images[-MEMORY:], image]
        self.plain, self.length, self.count = None, length, self.count + 1
        if self.count % JUMP_EVERY or len(self.moves) <= MEMORY:
            return image
        self.plain = image
        changes = torch.stack(self.moves).flatten(1).diff(dim=0)
        gram = changes @ changes.T
        gram = gram + RIDGE * gram.diagonal().mean() * torch.eye(MEMORY, dtype=gram.dtype)
        share: Tensor = torch.linalg.solve(gram, changes @ move.flatten())
        past = torch.stack(self.images).flatten(1).diff(dim=0)
        return image - (share @ past).view_as(image)
