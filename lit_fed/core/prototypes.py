"""Class means of features or outputs, as sums and counts; and losses of class logits.

Symbols:
    B, L, C, D -> samples, positions of a sequence, classes, entries of a vector
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core import tree
from lit_fed.core.networks.products import full_precision
from lit_fed.core.targets import Target
from lit_fed.core.task import Task
from lit_fed.core.types import ClientData, Leaves, ModelState
from lit_fed.errors import ConfigError

__all__ = [
    "EXCLUDED", "ClassSums", "batch_sums", "check_classes", "class_counts", "class_cross_entropy", "class_features",
    "class_logits", "class_sums", "class_vectors", "feature_width", "gradient_only", "head_leaves", "masked_mean",
    "of_present", "per_sample", "shifted",
]  # fmt: skip


class ClassSums(NamedTuple):
    """Sums over the samples of each class; added over clients and divided last, they give exact class means."""

    sums: Tensor  # [C, D]
    counts: Tensor  # [C]

    @property
    def means(self) -> Tensor:
        """Mean of each class, [C, D]; 0 for a class without samples."""
        return self.sums / self.counts.clamp(min=torch.finfo(self.counts.dtype).tiny).unsqueeze(-1)


def check_classes(target: Target, algorithm: str) -> None:
    """Refuse labels that are no classes, several per sample, or ignored at some positions.

    Raises:
        ConfigError: naming the kind of labels.
    """
    if target.ignored is not None:
        raise ConfigError(
            f"{algorithm} needs a class at every position, and labels {target.ignored} are ignored; give another "
            "--model.algorithm"
        )
    if target.continuous or target.vectors:
        raise ConfigError(
            f"{algorithm} needs class labels, and these are {target.name}; give another --data.dataset or "
            "--model.algorithm"
        )


def class_sums(
    values: Callable[[Tensor], Tensor], data: ClientData, num_classes: int, rows_per_pass: int = 1024
) -> ClassSums:
    """Sums of vectors by class over all samples of a client, in passes of some rows.

    Args:
        values: a vector of each sample [N, D], or of each position [N, L, D], from inputs [N, ...].
        data: the samples.
        num_classes: C.
        rows_per_pass: samples in a pass.

    Example:
        >>> x, y, mask = torch.eye(3), torch.tensor([0, 1, 1]), torch.tensor([1.0, 1.0, 0.0])
        >>> class_sums(lambda x: x, ClientData(x, y, None, mask, y[0]), 2).sums.tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    x, y = data.x, data.y
    passes = [slice(lo, lo + rows_per_pass) for lo in range(0, max(len(x), 1), rows_per_pass)]
    parts = [batch_sums(values(x[rows]), y[rows], data.mask[rows], num_classes) for rows in passes]
    return tree.map_leaves(lambda *leaves: sum(leaves), *parts)  # type: ignore[no-any-return]


def batch_sums(values: Tensor, y: Tensor, mask: Tensor, num_classes: int) -> ClassSums:
    """Sums of vectors [B, D] or [B, L, D] by their classes; samples whose mask [B] is 0 are ignored."""
    member = _members(y, mask, num_classes, values.dtype)
    with full_precision(values):
        return ClassSums(member.T @ values.reshape(-1, values.shape[-1]), member.sum(0))


def class_features(
    task: Task, models: ModelState, data: ClientData, rows_per_pass: int = 1024
) -> tuple[Tensor, Tensor]:
    """Features [N·L, D] of all samples or positions of a client under one model, and their classes [N·L, C].

    A row of classes has a 1 at its class; rows of padding are 0.
    """
    x = data.x
    passes = [x[lo : lo + rows_per_pass] for lo in range(0, max(len(x), 1), rows_per_pass)]
    features = torch.cat([task.features(models, rows)[:, 0] for rows in passes])
    member = _members(data.y, data.mask, task.target.num_classes, features.dtype)
    return features.reshape(-1, features.shape[-1]), member


def class_counts(data: ClientData, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Number of samples or positions of each class, [C]."""
    return _members(data.y, data.mask, num_classes, dtype).sum(0)


def _members(y: Tensor, mask: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """1 where a sample or position is of a class, [N·L, C]; rows of padding are 0."""
    mask = mask.to(dtype).view(-1, *[1] * (y.ndim - 1)).expand(y.shape)
    classes = torch.arange(num_classes, device=y.device)
    return (y.reshape(-1, 1) == classes).to(dtype) * mask.reshape(-1, 1)


def class_vectors(task: Task, width: int) -> Tensor:
    """A vector of zeros for each class, [C, width]."""
    return torch.zeros(task.target.num_classes, width, dtype=task.dtype)


def feature_width(task: Task, algorithm: str) -> int:
    """Number of features D, of a network that ends in a linear layer.

    Raises:
        ConfigError: if the network does not.
    """
    width = getattr(task.last.top, "in_features", None)
    if not isinstance(width, int):
        raise ConfigError(
            f"{algorithm} keeps class means of features, and the last layer of {type(task.network).__name__} is no "
            "nn.Linear, which would tell their number; choose another --model.network"
        )
    return width


class PersonalHead(NamedTuple):
    """State of a client that keeps a personal head."""

    head: Leaves  # leaves [1, ...]


def head_leaves(task: Task, models: ModelState) -> Leaves:
    """Trained parameters of the last layer, leaves [M, ...].

    Raises:
        ConfigError: if the network's `split` returns a function instead of a layer, or the layer is frozen.
    """
    names = frozenset(task.last.names.values())
    found = {name: leaf for name, leaf in models.parameters.items() if name in names}
    if not found:
        raise ConfigError(
            f"the algorithm trains a copy of the last layer, and {type(task.network).__name__} has no layer of its "
            "own to train there; choose another --model.network, or leave --model.trainable out"
        )
    return found


def class_logits(outputs: Tensor) -> Tensor:
    """A logit for each class, [..., C]; if one output represents two classes, class 0 has logit 0."""
    return outputs if outputs.shape[-1] > 1 else torch.cat([torch.zeros_like(outputs), outputs], dim=-1)


def class_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of outputs [B, K] to labels [B], [B]."""
    return F.cross_entropy(class_logits(outputs), labels, reduction="none")


EXCLUDED = -1e30
"""Shift of the logit of a class that is excluded from a softmax: its probability and its gradient are 0."""


def of_present(shift: Tensor, counts: Tensor) -> Tensor:
    """Shifts of class logits [C] that exclude the classes without samples, of which there are `counts` [C]."""
    return torch.where(counts > 0, shift, EXCLUDED)


def shifted(outputs: Tensor, shift: Tensor) -> Tensor:
    """Outputs [..., K] with their class logits shifted by `shift` [C]."""
    return outputs + (shift if outputs.shape[-1] > 1 else shift[1:] - shift[:1])


def per_sample(values: Tensor) -> Tensor:
    """The mean over positions, [B], of numbers [B] or [B, L]."""
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def gradient_only(losses: Tensor) -> Tensor:
    """0 with the gradient of these losses, which then count in no logged loss."""
    return losses - losses.detach()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean of values [B, ...] of the samples whose mask [B] is 1, [...]; 0 without any."""
    mask = mask.to(values.dtype).view(-1, *[1] * (values.ndim - 1))
    return (values * mask).sum(0) / mask.sum().clamp(min=1)
