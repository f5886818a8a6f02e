"""Augmentation settings: names of torchvision transforms with their arguments.

RandomHorizontalFlip, RandomCrop(32, padding=4)
RandomApply([ColorJitter(brightness=0.4)], p=0.8)
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lit_fed.core.seeds import seed_of
from lit_fed.core.segmentation import Segmentation
from lit_fed.core.targets import IGNORED, Target
from lit_fed.core.types import Population
from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.populations.checks import looked_at
from lit_fed.errors import ConfigError
from lit_fed.system.files import quote
from lit_fed.system.names import did_you_mean

__all__ = [
    "Augmentation", "BatchTransform", "MaskForm", "check_augmentation", "in_batches", "make_augmentation", "mask_form",
    "written_out",
]  # fmt: skip

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


class MaskForm(NamedTuple):
    """Form of the masks that move with their pictures."""

    shape: tuple[int, ...]  # H, W
    ignored: int  # label of pixels from outside the picture


def mask_form(target: Target, label_shape: tuple[int, ...]) -> MaskForm | None:
    """The form of the labels if they are masks, else None.

    Args:
        target: the target.
        label_shape: shape of the labels of one sample, before masks are flattened.
    """
    if not isinstance(target, Segmentation):
        return None
    return MaskForm(label_shape, IGNORED if target.ignored is None else target.ignored)


def make_augmentation(
    augment: str | None, normalisation: Normalisation | None = None, masks: MaskForm | None = None
) -> Augmentation | None:
    """Build the transforms.

    Args:
        augment: as `written_out` gives them.
        normalisation: constants of the inputs' normalisation.
        masks: form of the masks that move with the pictures; None: the labels stay.

    Raises:
        ConfigError: naming an unknown transform or a wrong argument.
    """
    if augment is None:
        return None
    transforms = [in_batches(_value(call, augment, masks)) for call in _calls(augment)]
    mean, std = ((), ()) if normalisation is None else (normalisation.mean, normalisation.std)
    return Augmentation(transforms, mean, std, repr(augment), masks)


def check_augmentation(
    augment: str | None,
    seen: Population,
    dataset: str,
    normalisation: Normalisation | None,
    masks: MaskForm | None = None,
) -> None:
    """Try the transforms on a training image.

    Args:
        augment: as `written_out` gives them.
        seen: the training clients.
        dataset: name of the data set.
        normalisation: constants of the inputs' normalisation.
        masks: form of the masks that move with the pictures; None: the labels stay.

    Raises:
        ConfigError: if the inputs are not images, or a transform fails.
    """
    augmentation = make_augmentation(augment, normalisation, masks)
    if augment is None or augmentation is None:
        return
    shape, dtype = list(seen.train.x.shape[1:]), str(seen.train.x.dtype).removeprefix("torch.")
    if len(shape) != 3 or not seen.train.x.is_floating_point():
        raise ConfigError(
            f"--data.augment {augment!r} needs images [channels, height, width], the inputs of {dataset} are "
            f"{seen.inputs or f'{dtype} of shape {shape}'}; leave it out"
        )
    x, y = (few := looked_at(seen.train)).x, few.y
    if not len(x):  # the samples are on nodes
        return
    lowest, highest = (float(one) for one in x.aminmax())
    named = {node.id for call in _calls(augment) for node in ast.walk(call) if isinstance(node, ast.Name)}
    coloured = sorted(named & OF_COLOURS)
    if coloured and normalisation is None and (lowest < 0 or highest > 1):
        raise ConfigError(
            f"--data.augment {coloured[0]}: changes colours in 0..1, the inputs of {dataset} are in "
            f"{lowest:.3g}..{highest:.3g}; store images as uint8 or in 0..1, or leave it out"
        )
    for step in range(TRIALS):
        augmentation(x[:1], y[:1], seed_of(0, 0, 0, f"trial/{step}"))


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


def _value(node: ast.expr, augment: str, masks: MaskForm | None) -> Any:
    """Evaluate a transform, a list of transforms, or a literal."""
    if isinstance(node, ast.Name):
        return _made(node.id, node, [], {}, augment, masks)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        positional = [_value(one, augment, masks) for one in node.args]
        named = {one.arg: _value(one.value, augment, masks) for one in node.keywords if one.arg is not None}
        return _made(node.func.id, node, positional, named, augment, masks)
    if isinstance(node, ast.List):
        return [_value(one, augment, masks) for one in node.elts]
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ConfigError(
            f"--data.augment {augment!r}: {ast.unparse(node)} is not a number, text, list or transform"
        ) from error


def _made(
    name: str, node: ast.expr, positional: list[Any], named: dict[str, Any], augment: str, masks: MaskForm | None
) -> Any:
    """Build a torchvision transform with these arguments."""
    from torchvision.transforms import v2

    known = {key: one for key, one in vars(v2).items() if isinstance(one, type) and issubclass(one, torch.nn.Module)}
    if name not in known or name in REFUSED or name == "Transform":
        meant = [one for one in known if one.lower() == f"random{name.lower()}"]
        fix = did_you_mean(name, known, f"give some of torchvision.transforms.v2, such as {EXAMPLE!r}", first=meant)
        why = f"{name} {REFUSED[name]}; leave it out" if name in REFUSED else f"unknown transform {name}; {fix}"
        raise ConfigError(f"--data.augment {augment!r}: {why}")
    try:
        given = inspect.signature(known[name]).bind(*positional, **named)
        if masks is not None and "fill" in given.signature.parameters:
            given.arguments["fill"] = _fills(given, masks.ignored)
        return known[name](*given.args, **given.kwargs)
    except Exception as error:
        raise ConfigError(
            f"--data.augment {augment!r}: {ast.unparse(node)} cannot be built ({error}); correct it"
        ) from error


def _fills(given: inspect.BoundArguments, ignored: int) -> dict[Any, Any]:
    """The given fill for pixels from outside a picture, by kind of input, and that of masks."""
    from torchvision.tv_tensors import Mask

    fill = given.arguments.get("fill", given.signature.parameters["fill"].default)
    return {**(fill if isinstance(fill, dict) else {"others": fill}), Mask: ignored}


class BatchTransform:
    """A transform of a batch of images [n, C, H, W] instead of one image.

    Each image has its own random numbers, from the CPU generator on every device; ten times faster than one by one.

    Args:
        function: the transform, of pictures or of pictures and their masks [n, 1, H, W]; it returns a tuple.
    """

    takes_batches = True

    def __init__(self, function: Callable[..., tuple[Tensor, ...]]) -> None:
        self.function = function

    def __call__(self, *both: Tensor) -> Any:
        """Pictures [n, C, h, w], or a tuple with their masks [n, 1, h, w] too, as transforms of torchvision do."""
        out = self.function(*both)
        return out if len(both) > 1 else out[0]


def in_batches(transform: Any) -> Any:
    """An equivalent `BatchTransform` of flips and plain crops; other transforms are returned unchanged."""
    from torchvision.transforms import v2
    from torchvision.tv_tensors import Mask

    if type(transform) in (v2.RandomHorizontalFlip, v2.RandomVerticalFlip):
        axis = -1 if isinstance(transform, v2.RandomHorizontalFlip) else -2
        return BatchTransform(partial(_flipped, probability=transform.p, axis=axis))
    if type(transform) is not v2.RandomCrop or transform.pad_if_needed or transform.padding_mode != "constant":
        return transform
    fills = transform.fill if isinstance(transform.fill, dict) else {"others": transform.fill}
    fill, ignored = fills.get("others"), fills.get(Mask, 0)
    if not isinstance(fill, int | float):
        return transform
    return BatchTransform(partial(_cropped, size=transform.size, padding=transform.padding, fills=(fill, ignored)))


def _flipped(*both: Tensor, probability: float, axis: int) -> tuple[Tensor, ...]:
    """Random flips of images, and of their masks with them."""
    chosen = (torch.rand(len(both[0])) < probability).to(both[0].device).view(-1, 1, 1, 1)
    return tuple(torch.where(chosen, one.flip(axis), one) for one in both)


def _cropped(
    *both: Tensor, size: tuple[int, int], padding: list[int] | None, fills: tuple[float, float]
) -> tuple[Tensor, ...]:
    """Random crops of images padded left, right, top and bottom, and of their masks with them."""
    padded = [
        one if padding is None else functional.pad(one, padding, value=fill)
        for one, fill in zip(both, fills, strict=False)
    ]
    number, _, *room = padded[0].shape
    if room[0] < size[0] or room[1] < size[1]:
        raise ValueError(f"the crop {tuple(size)} is larger than the padded image {tuple(room)}")
    top, left = (
        torch.randint(whole - part + 1, (number, 1)) + torch.arange(part)
        for whole, part in zip(room, size, strict=True)
    )
    which, rows, columns = (
        one.to(both[0].device)
        for one in (torch.arange(number).view(-1, 1, 1, 1), top[:, None, :, None], left[:, None, None, :])
    )
    return tuple(
        one[which, torch.arange(one.shape[1], device=one.device).view(1, -1, 1, 1), rows, columns] for one in padded
    )


class Augmentation:
    """Image transforms that draw from torch's global generators, as functions of a random stream.

    Transforms see images in 0..1: normalisation is undone before and reapplied after. Masks move with their images:
    each pixel gets the class of the nearest one, or the ignored label from outside.

    Args:
        transforms: each takes and gives a picture [C, H, W], or with an attribute `takes_batches` pictures
            [n, C, H, W], or pictures and masks where there are masks; they are applied one after another.
        mean: mean of each channel, by which inputs were shifted; () if not.
        std: standard deviation of each channel, by which they were scaled.
        said: the transforms as text, for messages.
        masks: form of the masks; None: labels are unchanged.
    """

    def __init__(
        self,
        transforms: Sequence[Callable[[Tensor], Tensor]],
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        said: str = "",
        masks: MaskForm | None = None,
    ) -> None:
        self.transforms, self.mean, self.std, self.said = tuple(transforms), tuple(mean), tuple(std), said
        self.masks = masks

    def __call__(self, x: Tensor, y: Tensor, stream: np.random.SeedSequence) -> tuple[Tensor, Tensor]:
        """Transformed images, each with its own random draws; the same stream gives the same result.

        Args:
            x: images [..., C, H, W]; not modified.
            y: labels [..., H·W] of masks, not modified, or other labels, which are returned unchanged.
            stream: source of the draws; the state of the global generators is preserved.

        Returns:
            Pictures and labels of the shape and type of `x` and `y`.

        Raises:
            ConfigError: if a transform fails, or pictures do not keep their shape and type.
        """
        if not x.numel():
            return x, y
        masks = None if self.masks is None else y.reshape(-1, 1, *self.masks.shape)
        pictures = x.reshape(-1, *x.shape[-3:])
        if self.mean:
            mean, std = (x.new_tensor(one).view(-1, 1, 1) for one in (self.mean, self.std))
            pictures = (pictures * std + mean).clamp_(0, 1)
        with _seeded(x.device, stream):
            out, *moved = self._transformed((pictures,) if masks is None else (pictures, masks))
        return ((out - mean) / std if self.mean else out).view(x.shape), moved[0].reshape(y.shape) if moved else y

    def _transformed(self, both: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        pictures, after = both[0], both
        shape = list(pictures.shape[1:])
        try:
            for transform in self.transforms:
                after = _applied(transform, *after)
        except Exception as error:
            raise ConfigError(
                f"--data.augment {self.said}: fails on pictures of shape {shape} ({error}); correct it"
            ) from error
        out = after[0]
        if (out.shape, out.dtype) != (pictures.shape, pictures.dtype):
            raise ConfigError(
                f"--data.augment {self.said}: makes {str(out.dtype).removeprefix('torch.')} of shape "
                f"{list(out.shape[1:])} of a picture of shape {shape}; a network takes one shape, so end with a "
                "transform that restores it"
            )
        return after


def _applied(transform: Callable[..., Any], pictures: Tensor, *masks: Tensor) -> tuple[Tensor, ...]:
    """Pictures, and their masks if there are some, after one transform."""
    if hasattr(transform, "takes_batches"):
        out = transform(pictures, *masks)
        return out if masks else (out,)
    if not masks:
        return (torch.stack([*map(transform, pictures)]),)
    from torchvision.tv_tensors import Mask

    pairs = [transform(picture, Mask(mask)) for picture, mask in zip(pictures, *masks, strict=True)]
    return tuple(torch.stack([one.as_subclass(Tensor) for one in column]) for column in zip(*pairs, strict=True))


@contextmanager
def _seeded(device: torch.device, stream: np.random.SeedSequence) -> Iterator[None]:
    """Seed torch's generators of the CPU and a device from a stream; their state is restored afterwards."""
    seed = int(stream.generate_state(1, np.uint64)[0]) & (2**63 - 1)
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device.index] if on_gpu else []):
        # torch.manual_seed looks for devices of every kind, which takes a millisecond
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            torch.cuda.default_generators[device.index].manual_seed(seed)
        yield
