"""Segmentation: a class for each pixel, and losses for its local steps.

Networks return [B, K, H, W]. A hook of the network, `pixels_last`, reshapes this to [B, H·W, K], and the data module
flattens masks [n, H, W] to [n, H·W]. All other code sees positions, as of sequences. So a mixture mixes each pixel,
and an E-step takes the mean loss over the pixels of an image, or with `position_loss: sum` their sum.

Symbols:
    C, H, W -> classes; height and width of a mask
    p_lc    -> probability of class c at pixel l
    y_lc    -> 1 if pixel l is of class c; 0 for all c if the pixel is ignored
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from lit_fed.core.targets import CLASSES, Loss, Sequences, Target, class_probabilities, over_classes
from lit_fed.core.types import Population, Split
from lit_fed.errors import ConfigError, check_settings

__all__ = ["DiceLoss", "FocalLoss", "Segmentation", "flat_masks", "flat_population", "pixels_last"]


@dataclass(frozen=True)
class Segmentation(Sequences):
    """A class for each pixel of an image; loss and hit of an image are the means over its labelled pixels.

    IoU and Dice are means over the classes without the background, class 0, which `--model.metrics` can include.

    Args:
        num_classes: C, including the background; 0: taken from the training masks.
        ignore_index: label of ignored pixels, often 255; null: -100 if some client's masks contain it.
    """

    kind = "segmentation"
    metrics = (
        {"JaccardIndex": {"average": "macro", "include_background": False}},
        {"dice": {"class_path": "F1Score", "init_args": {"average": "macro", "include_background": False}}},
    )

    def fitted(self, y: Tensor, num_classes: int | None = None) -> Self:
        if y.ndim != 3:
            raise ConfigError(
                f"--model.target Segmentation needs masks of shape [n, height, width], and the training labels have "
                f"shape {list(y.shape)}; store the class of each pixel, as y.squeeze(1) or y.argmax(1) makes them"
            )
        return super().fitted(y.flatten(1), num_classes)

    def output_shape(self, label_shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the outputs of one image after `pixels_last`, (H·W, K)."""
        height, width = label_shape
        return (height * width, self.num_outputs)


def pixels_last(network: nn.Module, target: Target, label_shape: tuple[int, ...]) -> nn.Module:
    """The network with a hook that reshapes outputs [B, K, H, W] to [B, H·W, K]; other outputs are unchanged.

    With a hook, parameters keep their names. While a step of the network itself runs, outputs stay as they are.
    """
    if not isinstance(target, Segmentation):
        return network
    network.register_forward_hook(partial(_arranged, (target.num_outputs, *label_shape)))
    return network


def _arranged(wanted: tuple[int, ...], module: nn.Module, _: Any, outputs: Tensor) -> Tensor:
    if getattr(module, "in_own_step", False):
        return outputs
    found = tuple(getattr(outputs, "shape", (None,)))[1:]
    if found != wanted:
        raise ConfigError(
            f"the network {type(module).__name__} returns {_batch(found)}; for masks of {wanted[0]} classes it should "
            f"return {_batch(wanted)}; choose another --model.network, such as UNet"
        )
    return outputs.flatten(2).transpose(1, 2)


def _batch(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(['B', *map(str, shape)])}]"


def flat_population(clients: Population) -> Population:
    """The clients with masks as positions."""
    return clients.with_splits(flat_masks)


def flat_masks(split: Split) -> Split:
    """The split with masks [n, H, W] as positions [n, H·W]; other labels are unchanged."""
    return split if split.y.ndim != 3 else split.flattened()


# ---------------------------------------------------------------------- losses of local steps
@dataclass(frozen=True)
class DiceLoss(Loss):
    """One minus the soft Dice coefficient of an image (or sequence), averaged over classes.

    Milletari, Navab, Ahmadi. "V-Net". 3DV 2016. https://arxiv.org/abs/1606.04797, Section 3, for several classes and
    with plain sums in the denominator: 1 − 1/C Σ_c (2 Σ_l p_lc·y_lc + s) / (Σ_l p_lc + Σ_l y_lc + s).

    Args:
        smoothing: s > 0; a class that is neither in the mask nor predicted has a coefficient near 1.
        background: whether class 0 counts.
    """

    smoothing: float = 1.0
    background: bool = True

    def __post_init__(self) -> None:
        check_settings(self, {"smoothing": "> 0"}, "--model.loss")

    def check(self, target: Target) -> None:
        """Refuse labels without positions and classes.

        Raises:
            ConfigError: naming the labels.
        """
        if not target.positions or target.name not in CLASSES:
            raise ConfigError(f"--model.loss DiceLoss is for masks, and these labels are {target.name}; leave it out")

    def losses(self, target: Target, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each image; 0 without a labelled pixel."""
        labels, labelled = class_probabilities(target, y, outputs), target.labelled(y)
        predicted = over_classes(torch.softmax, outputs)
        if labelled is not None:
            predicted = predicted * labelled.unsqueeze(-1)
        both, each = (predicted * labels).sum(-2), (predicted + labels).sum(-2)
        dice = (2 * both + self.smoothing) / (each + self.smoothing)
        return 1 - dice[..., 0 if self.background else 1 :].mean(-1)


@dataclass(frozen=True)
class FocalLoss(Loss):
    """Cross-entropy times (1 − p)^γ, which down-weights samples that are classified well: −(1 − p_y)^γ log p_y.

    Lin, Goyal, Girshick, He, Dollár. "Focal Loss for Dense Object Detection". ICCV 2017.
    https://arxiv.org/abs/1708.02002, Equation 4, for several classes. A sample's loss is the mean over its
    labelled positions.

    Args:
        gamma: γ >= 0; 0 is the cross-entropy.
    """

    gamma: float = 2.0

    def __post_init__(self) -> None:
        check_settings(self, {"gamma": ">= 0"}, "--model.loss")

    def check(self, target: Target) -> None:
        """Refuse labels other than classes with one output each.

        Raises:
            ConfigError: naming the labels.
        """
        if target.name not in CLASSES or target.num_outputs == 1:
            raise ConfigError(
                f"--model.loss FocalLoss is for classes with an output each, and these labels are {target.name}; give "
                "--model.target Multiclass with two classes, or leave it out"
            )

    def losses(self, target: Target, outputs: Tensor, y: Tensor) -> Tensor:
        """Means over positions of the weighted cross-entropies."""
        labels, log_prob = class_probabilities(target, y, outputs), over_classes(torch.log_softmax, outputs)
        # the power has an infinite slope at 0 if γ < 1
        rest = -torch.expm1(log_prob.clamp(max=-torch.finfo(log_prob.dtype).tiny))
        return target.over_positions(-(labels * rest**self.gamma * log_prob).sum(-1), y)
