"""Networks for images of the library timm."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from lit_fed.errors import ConfigError
from lit_fed.models.base import Network, check_dropout, image_shape
from lit_fed.models.library_options import TIMM
from lit_fed.models.pretrained import SUFFIXES, fit_weights, read_weights
from lit_fed.system.names import check_library_options, did_you_mean
from lit_fed.system.packages import optional_package

__all__ = ["Timm"]

FILLED_IN = {"num_classes": "the data", "in_chans": "the data", "drop_rate": "--model.network.dropout"}
"""Options of timm, and what says them here."""

NAME = re.compile(r"\w+(\.\w+)?")
"""A network and a version of its weights; `hf-hub:` and `local-dir:` lead to code and files elsewhere."""


class Timm(Network):
    """Any network for images of the library timm (extra `timm`), by name, with a classifier for K classes.

    Wightman. "PyTorch Image Models". 2019. https://github.com/huggingface/pytorch-image-models. Networks for images of
    one size are built for that of the samples. With attention among the layers clients are trained one after another.

    Args:
        input_shape: channels, height and width of one image.
        num_outputs: K.
        name: of the network, as `timm.list_models()` knows it.
        pretrained: start from the weights that timm offers for this name, downloaded when first used.
        weights: path of a file (.pt, .pth) with a state dict of this network to start from; a classifier for another
            number of classes stays random. null: those of `pretrained`.
        dropout: share of units dropped before the classifier in training, in [0, 1).
        options: further arguments of `timm.create_model`, by name: sizes, rates, switches and names of layers.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        name: str = "resnet18",
        pretrained: bool = False,
        weights: str | None = None,
        dropout: float = 0.0,
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        library = optional_package("timm", "timm>=1.0.31", "timm", f"--model.network {type(self).__name__}")
        image = image_shape(f"timm's {name}", input_shape)
        check_dropout(dropout)
        options = dict(options or {})
        _check_names(library, name, pretrained, weights, options)
        if getattr(library.models.get_pretrained_cfg(name), "fixed_input_size", False):
            options.setdefault("img_size", image[1:])
        pretrained = pretrained and torch.empty(0).device.type != "meta"  # where sizes alone are wanted
        given = {"num_classes": num_outputs, "in_chans": image[0], "drop_rate": dropout, **options}
        made = _create(library, name, pretrained, given)
        self.layers, head = made, made.pretrained_cfg.get("classifier") or ()
        prefixes = tuple(f"{one}." for one in ((head,) if isinstance(head, str) else head))
        if weights is not None:
            fit_weights(self.layers, read_weights(weights), weights, f"timm's {name}", prefixes)
        self.head_names = frozenset(
            f"layers.{one}" for one, _ in self.layers.named_parameters() if one.startswith(prefixes)
        )
        # kernels of attention run for one client at a time
        self.vmappable = not any(getattr(one, "fused_attn", False) for one in self.layers.modules())
        # some networks drop by function: this one says so to whoever looks for dropout among the modules
        shares = [value for option, value in given.items() if "drop" in option and isinstance(value, float)]
        self.drops = nn.Dropout(max(shares))

    def forward(self, x: Tensor) -> Tensor:
        """Outputs [B, K] of images [B, C, H, W]."""
        return self.layers(x)  # type: ignore[no-any-return]


def _check_names(library: Any, name: str, pretrained: bool, weights: str | None, options: dict[str, Any]) -> None:
    if NAME.fullmatch(name) is None or not library.is_model(name):
        meant = did_you_mean(name, library.list_models(), "timm.list_models() lists them")
        raise ConfigError(f"--model.network.name is {name}; give a network that timm knows, {meant}")
    for option, instead in FILLED_IN.items():
        if option in options:
            raise ConfigError(f"--model.network.options has {option}, which is said by {instead}; leave it out")
    check_library_options(options, TIMM, "--model.network.options", "timm")
    if weights is not None and pretrained:
        raise ConfigError("--model.network.pretrained and --model.network.weights are both given; leave one out")
    if weights is not None and not weights.endswith(SUFFIXES):
        raise ConfigError(
            f"--model.network.weights is {weights}; give the path of a state dict, {' or '.join(SUFFIXES)}"
        )


def _create(library: Any, name: str, pretrained: bool, given: dict[str, Any]) -> Any:
    try:
        return library.create_model(name, pretrained=pretrained, **given)
    except Exception as error:  # of the network, the hub, or what timm makes of an option
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        fix = "correct --model.network.options"
        if pretrained:
            fix += ", or where nothing can be downloaded give the path of a file by --model.network.weights"
        raise ConfigError(f"timm's {name} cannot be built ({said}); {fix}") from error
