"""A data set of any shape, drawn and not read, for runs that only show that a recipe works."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from lit_fed.core.seeds import generator
from lit_fed.data import PooledDataSet, Samples


@dataclass(frozen=True)
class StandIn(PooledDataSet):
    """Clouds of points, one for each class, in the shape of a real data set; or windows of text.

    Args:
        shape: of a sample.
        classes: number of classes.
        samples: size of the pool.
        owners: natural clients; 0: there are none.
        kind: `pictures`, or `text`: integers [length] with a label for every position.
        seed: of the draw.
    """

    shape: tuple[int, ...] = (1, 28, 28)
    classes: int = 10
    samples: int = 400
    owners: int = 0
    kind: Literal["pictures", "text"] = "pictures"
    seed: int = 0

    @property
    def num_classes(self) -> int:  # type: ignore[override]  # the base promises one number for the whole class
        """Number of classes."""
        return self.classes

    def load(self) -> Samples:
        """The pool; every class is there."""
        rng = generator(self.seed, 0, 0, "stand-in")
        owner = np.arange(self.samples) % self.owners if self.owners else None
        if self.kind == "text":
            text = rng.integers(self.classes, size=(self.samples, self.shape[0] + 1))
            return Samples(text[:, :-1], text[:, 1:], owner, self._names())
        y = rng.permutation(np.arange(self.samples) % self.classes)
        centres = rng.normal(size=(self.classes, *self.shape))
        x = (centres[y] + rng.normal(size=(self.samples, *self.shape))).astype(np.float32)
        return Samples(x, y, owner, self._names())

    def _names(self) -> list[str] | None:
        return [f"owner {number}" for number in range(self.owners)] if self.owners else None
