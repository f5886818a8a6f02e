"""Augmentation settings: names of torchvision transforms with their arguments.

RandomHorizontalFlip, RandomCrop(32, padding=4)
RandomApply([ColorJitter(brightness=0.4)], p=0.8)
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lit_fed.core.seeds import seed_of
from lit_fed.core.types import Population
from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.populations.checks import looked_at
from lit_fed.errors import ConfigError
from lit_fed.system.files import quote
from lit_fed.system.names import did_you_mean

__all__ = ["Augmentation", "BatchTransform", "check_augmentation", "in_batches", "make_augmentation", "written_out"]

EXAMPLE = "RandomHorizontalFlip, RandomCrop(32, padding=4)"
FIX = f"give names of torchvision's transforms with their arguments, such as {EXAMPLE!r}"

REFUSED = {
    **dict.fromkeys(["CutMix", "MixUp"], "mixes the labels of a batch as well"),
    **dict.fromkeys(["Normalize", "LinearTransformation"], "also has to apply at evaluation, not in training alone"),
}
"""Transforms that do not work as augmentation of single images, with the reason."""

OF_COLOURS = {
    "AugMix", "AutoAugment", "ColorJitter", "GaussianNoise", "RandAugment", "RandomAdjustSharpness",
    "RandomAutocontrast", "RandomEqualize", "RandomInvert", "RandomPhotometricDistort", "RandomPosterize",
    "RandomSolarize", "TrivialAugmentWide",
}  # fmt: skip
"""Transforms that assume pixels in 0..1 and clip others."""

TRIALS = 8
"""Number of trial applications before training."""


def written_out(augment: str | Sequence[str] | None) -> str | None:
    """Write transforms in canonical form, for comparing and storing settings: calls separated by commas.

    Args:
        augment: transforms separated by commas, or a list of them, possibly split at any comma; None or empty: no
            augmentation.

    Raises:
        ConfigError: if it is not a list of names or calls.

    Example:
        >>> written_out(["RandomHorizontalFlip", "v2.RandomCrop(8, padding = 1)"])
        'RandomHorizontalFlip, RandomCrop(8, padding=1)'
    """
    texts = [augment] if isinstance(augment, str) else list(augment or ())
    for text in texts:
        if not isinstance(text, str):
            raise ConfigError(f"--data.augment holds a {type(text).__name__}; {FIX}")
    # YAML cuts [A, B(1, c=2)] into A and B(1 and c=2)
    joined = ", ".join(texts)
    return ", ".join(map(ast.unparse, _calls(joined))) if joined.strip() else None


def make_augmentation(augment: str | None, normalisation: Normalisation | None = None) -> Augmentation | None:
    """Build the transforms.

    Args:
        augment: as `written_out` gives them.
        normalisation: constants of the inputs' normalisation.

    Raises:
        ConfigError: naming an unknown transform or a wrong argument.
    """
    if augment is None:
        return None
    transforms = [in_batches(_value(call, augment)) for call in _calls(augment)]
    mean, std = ((), ()) if normalisation is None else (normalisation.mean, normalisation.std)
    return Augmentation(transforms, mean, std, said=repr(augment))


def check_augmentation(
    augment: str | None, seen: Population, dataset: str, normalisation: Normalisation | None
) -> None:
    """Try the transforms on a training image.

    Args:
        augment: as `written_out` gives them.
        seen: the training clients.
        dataset: name of the data set.
        normalisation: constants of the inputs' normalisation.

    Raises:
        ConfigError: if the inputs are not images, or a transform fails.
    """
    augmentation = make_augmentation(augment, normalisation)
    if augment is None or augmentation is None:
        return
    shape, dtype = list(seen.train.x.shape[1:]), str(seen.train.x.dtype).removeprefix("torch.")
    if len(shape) != 3 or not seen.train.x.is_floating_point():
        raise ConfigError(
            f"--data.augment {augment!r} needs images [channels, height, width], the inputs of {dataset} are "
            f"{dtype} of shape {shape}; leave it out"
        )
    x = looked_at(seen.train).x
    lowest, highest = (float(one) for one in x.aminmax())
    named = {node.id for call in _calls(augment) for node in ast.walk(call) if isinstance(node, ast.Name)}
    coloured = sorted(named & OF_COLOURS)
    if coloured and normalisation is None and (lowest < 0 or highest > 1):
        raise ConfigError(
            f"--data.augment {coloured[0]}: changes colours in 0..1, the inputs of {dataset} are in "
            f"{lowest:.3g}..{highest:.3g}; store images as uint8 or in 0..1, or leave it out"
        )
    for step in range(TRIALS):
        augmentation(x[:1], seed_of(0, 0, 0, f"trial/{step}"))


def _calls(text: str) -> list[ast.expr]:
    """Parse the transforms, each a name or a call; brackets around a list are optional."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
        ast.unparse(body)  # fails here if it is nested too deeply
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"--data.augment {quote(text)!r} cannot be read ({error}); {FIX}") from error
    given = [body] if not isinstance(body, ast.Tuple) else body.elts
    listed = [call for one in given for call in (one.elts if isinstance(one, ast.List) else [one])]
    calls: list[ast.expr] = [_Names().visit(one) for one in listed]
    for call in calls:
        if not isinstance(call.func if isinstance(call, ast.Call) else call, ast.Name):
            raise ConfigError(f"--data.augment {text!r}: {ast.unparse(call)} is not a transform; {FIX}")
    return calls


class _Names(ast.NodeTransformer):
    """Strip `torchvision.transforms.v2.` from names of transforms."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if ast.unparse(node.value) in ("v2", "transforms.v2", "torchvision.transforms.v2"):
            return ast.Name(node.attr)
        return node


def _value(node: ast.expr, augment: str) -> Any:
    """Evaluate a transform, a list of transforms, or a literal."""
    if isinstance(node, ast.Name):
        return _made(node.id, node, [], {}, augment)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        positional = [_value(one, augment) for one in node.args]
        named = {one.arg: _value(one.value, augment) for one in node.keywords if one.arg is not None}
        return _made(node.func.id, node, positional, named, augment)
    if isinstance(node, ast.List):
        return [_value(one, augment) for one in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ConfigError(
            f"--data.augment {augment!r}: {ast.unparse(node)} is not a number, text, list or transform"
        ) from error


def _made(name: str, node: ast.expr, positional: list[Any], named: dict[str, Any], augment: str) -> Any:
    """Build a torchvision transform with these arguments."""
    from torchvision.transforms import v2

    known = {key: one for key, one in vars(v2).items() if isinstance(one, type) and issubclass(one, torch.nn.Module)}
    if name not in known or name in REFUSED or name == "Transform":
        meant = [one for one in known if one.lower() == f"random{name.lower()}"]
        fix = did_you_mean(name, known, f"give some of torchvision.transforms.v2, such as {EXAMPLE!r}", first=meant)
        why = f"{name} {REFUSED[name]}; leave it out" if name in REFUSED else f"unknown transform {name}; {fix}"
        raise ConfigError(f"--data.augment {augment!r}: {why}")
    try:
        return known[name](*positional, **named)
    except Exception as error:
        raise ConfigError(
            f"--data.augment {augment!r}: {ast.unparse(node)} cannot be built ({error}); correct it"
        ) from error


class BatchTransform:
    """A transform of a batch of images [n, C, H, W] instead of one image.

    Each image has its own random numbers, from the CPU generator on every device; ten times faster than one by one.

    Args:
        function: the transform.
    """

    takes_batches = True

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        self.function = function

    def __call__(self, pictures: Tensor) -> Tensor:
        """Pictures [n, C, h, w]."""
        return self.function(pictures)


def in_batches(transform: Any) -> Any:
    """An equivalent `BatchTransform` of flips and plain crops; other transforms are returned unchanged."""
    from torchvision.transforms import v2

    if type(transform) in (v2.RandomHorizontalFlip, v2.RandomVerticalFlip):
        axis = -1 if isinstance(transform, v2.RandomHorizontalFlip) else -2
        return BatchTransform(partial(_flipped, probability=transform.p, axis=axis))
    plain = type(transform) is v2.RandomCrop and not transform.pad_if_needed and transform.padding_mode == "constant"
    if plain and isinstance(transform.fill, int | float):
        size, padding, fill = transform.size, transform.padding, transform.fill
        return BatchTransform(partial(_cropped, size=size, padding=padding, fill=fill))
    return transform


def _flipped(pictures: Tensor, probability: float, axis: int) -> Tensor:
    chosen = (torch.rand(len(pictures)) < probability).to(pictures.device)
    return torch.where(chosen.view(-1, 1, 1, 1), pictures.flip(axis), pictures)


def _cropped(pictures: Tensor, size: tuple[int, int], padding: list[int] | None, fill: float) -> Tensor:
    """Random crops of images padded left, right, top and bottom."""
    padded = pictures if padding is None else functional.pad(pictures, padding, value=fill)
    number, channels, *room = padded.shape
    if room[0] < size[0] or room[1] < size[1]:
        raise ValueError(f"the crop {tuple(size)} is larger than the padded image {tuple(room)}")
    top, left = (
        torch.randint(whole - part + 1, (number, 1)) + torch.arange(part)
        for whole, part in zip(room, size, strict=True)
    )
    which = torch.arange(number).view(-1, 1, 1, 1), torch.arange(channels).view(1, -1, 1, 1)
    places = (*which, top[:, None, :, None], left[:, None, None, :])
    return padded[tuple(one.to(padded.device) for one in places)]


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
