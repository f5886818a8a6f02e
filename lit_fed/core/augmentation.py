"""Augmentation: pictures of a local batch transformed at random, by draws that depend on their stream alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from lit_fed.errors import ConfigError

__all__ = ["Augmentation"]


class Augmentation:
    """Transforms of pictures that draw from torch's global generators, made functions of a stream.

    Transforms see pictures in 0..1: constants by which inputs were normalised are taken off before and put on after.

    Args:
        transforms: each takes and gives a picture [C, H, W], or with an attribute `takes_batches` pictures
            [n, C, H, W]; they are applied one after another.
        mean: of each channel, by which inputs were shifted; () where they were not.
        std: of each channel, by which they were scaled.
        said: the transforms in words, for messages.
    """

    def __init__(
        self,
        transforms: Sequence[Callable[[Tensor], Tensor]],
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        said: str = "",
    ) -> None:
        self.transforms, self.mean, self.std, self.said = tuple(transforms), tuple(mean), tuple(std), said

    def __call__(self, x: Tensor, stream: np.random.SeedSequence) -> Tensor:
        """Pictures transformed, each with draws of its own; the same stream gives the same ones.

        Args:
            x: pictures [..., C, H, W]; left as they are.
            stream: where the draws come from; the global generators are left as they were.

        Returns:
            Tensor of the shape and type of `x`.

        Raises:
            ConfigError: if a transform fails, or pictures do not keep their shape and type.
        """
        if not x.numel():
            return x
        pictures = x.reshape(-1, *x.shape[-3:])
        if self.mean:
            mean, std = (x.new_tensor(one).view(-1, 1, 1) for one in (self.mean, self.std))
            pictures = (pictures * std + mean).clamp_(0, 1)
        with _seeded(x.device, stream):
            out = self._transformed(pictures)
        return ((out - mean) / std if self.mean else out).view(x.shape)

    def _transformed(self, pictures: Tensor) -> Tensor:
        out, shape = pictures, list(pictures.shape[1:])
        try:
            for transform in self.transforms:
                out = transform(out) if hasattr(transform, "takes_batches") else torch.stack([*map(transform, out)])
        except Exception as error:
            raise ConfigError(
                f"--data.augment {self.said}: fails on pictures of shape {shape} ({error}); correct it"
            ) from error
        if (out.shape, out.dtype) != (pictures.shape, pictures.dtype):
            raise ConfigError(
                f"--data.augment {self.said}: makes {str(out.dtype).removeprefix('torch.')} of shape "
                f"{list(out.shape[1:])} of a picture of shape {shape}; a network takes one shape, so end with a "
                "transform that restores it"
            )
        return out


@contextmanager
def _seeded(device: torch.device, stream: np.random.SeedSequence) -> Iterator[None]:
    """Torch's generators of the CPU and of a device seeded from a stream, and afterwards as they were before."""
    seed = int(stream.generate_state(1, np.uint64)[0]) & (2**63 - 1)
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device.index] if on_gpu else []):
        # torch.manual_seed looks for devices of every kind, which takes a millisecond
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.default_generators[device.index].manual_seed(seed)
        yield
