"""Backdoor: attackers train the model to map images with a trigger to a target class.

Gu, Dolan-Gavitt, Garg. "BadNets: Identifying Vulnerabilities in the Machine Learning Model Supply Chain". 2017.
https://arxiv.org/abs/1708.06733: a bright pattern in the lower right corner of digits, all classes to one.

Deviations:
    The trigger touches the edges of the image; the paper's is one pixel away from them.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.targets import Target
from lit_fed.core.types import Population, Split
from lit_fed.data.poison.base import Alter, Poison, check_classes_of
from lit_fed.data.populations.checks import looked_at
from lit_fed.errors import ConfigError, check_settings

__all__ = ["Backdoor", "brightest_of", "marked", "with_trigger"]


@dataclass(frozen=True)
class Backdoor(Poison):
    """Attackers draw a bright square in the lower right corner of some images and label them with the target class.

    Args:
        size: side of the square in pixels.
        target: label of images with the square.
        share: share of an attacker's training samples that get the square, sampled from `--data.seed`.
    """

    size: int = 3
    target: int = 0
    share: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self, prefix="--data.poison", size=">= 1", target=">= 0", share="(0, 1]")

    def prepare(self, seen: Population, target: Target, dataset: str) -> Alter:
        check_classes_of(self, target, dataset)
        shape = list(seen.train.x.shape[1:])
        if seen.inputs is not None:
            raise ConfigError(
                f"--data.poison Backdoor needs images alone, the inputs of {dataset} are {seen.inputs}; choose "
                "LabelFlip, or leave it out"
            )
        self._check(shape, seen.train.x.is_floating_point(), target, dataset)
        brightest = brightest_of(seen)

        def alter(x: Tensor, y: Tensor, stream: np.random.Generator) -> tuple[Tensor, Tensor]:
            chosen = torch.from_numpy(np.sort(stream.choice(len(y), round(self.share * len(y)), replace=False)))
            return x.index_copy(0, chosen, marked(x[chosen], self.size, brightest)), y.index_fill(
                0, chosen, self.target
            )

        return alter

    def _check(self, shape: list[int], floating: bool, target: Target, dataset: str) -> None:
        if len(shape) != 3 or not floating or target.positions:
            raise ConfigError(
                f"--data.poison Backdoor needs images [channels, height, width], the inputs of {dataset} have shape "
                f"{shape}; choose LabelFlip, or leave it out"
            )
        if self.size > min(shape[1:]):
            raise ConfigError(
                f"--data.poison.size is {self.size}, the images have {shape[1]} × {shape[2]} pixels; give a smaller "
                "size"
            )
        if self.target >= target.num_values:
            raise ConfigError(
                f"--data.poison.target is {self.target}, there are {target.num_values} classes; give a number "
                f"from 0 to {target.num_values - 1}"
            )


def brightest_of(seen: Population) -> Tensor:
    """Largest value of each channel in the inspected training samples, [channels]."""
    return looked_at(seen.train).x.amax((0, 2, 3))


def marked(x: Tensor, size: int, brightest: Tensor) -> Tensor:
    """Images with a square in the lower right corner.

    Args:
        x: images [n, channels, height, width]; not changed in place.
        size: side of the square.
        brightest: its value in each channel.

    Example:
        >>> marked(torch.zeros(1, 1, 3, 3), 2, torch.ones(1)).tolist()
        [[[[0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]]]
    """
    x = x.clone()
    x[..., -size:, -size:] = brightest[:, None, None]
    return x


def with_trigger(split: Split, poison: Backdoor, brightest: Tensor) -> Split:
    """Samples of the non-target classes with the square, labelled as the target; hits count successful attacks.

    Args:
        split: samples in memory.
        poison: the backdoor.
        brightest: value of the square in each channel.
    """
    others = split.y != poison.target
    counts = torch.cat([others.new_zeros(1, dtype=torch.int64), others.cumsum(0)]).cpu()
    x = marked(split.x[others], poison.size, brightest.to(split.x))
    return Split(x, torch.full_like(split.y[others], poison.target), counts[split.offsets], split.first_id, split.ids)
