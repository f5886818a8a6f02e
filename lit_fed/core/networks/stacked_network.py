"""A network as pure functions of stacked models: fresh models, outputs and features.

Every function takes M models (leaves [M, ...]) and returns one entry per model; a single model is M = 1 with the same
arithmetic, except for narrow convolutions (`grouped`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from lit_fed.core import tree
from lit_fed.core.networks.layers import Head, TrainedEnd, drops_units, normalises_batches, train_mode, working
from lit_fed.core.networks.products import AffineMap, Layers, affine_map, grouped_layers, grouped_outputs
from lit_fed.core.seeds import seed_of
from lit_fed.core.types import Leaves, ModelState
from lit_fed.errors import ConfigError
from lit_fed.system.machine import require_memory

__all__ = [
    "StackedNetwork", "check_models", "check_network", "check_trained", "fresh_network", "initial_seeds",
    "num_models_of",
]  # fmt: skip


@dataclass(frozen=True)
class StackedNetwork:
    """A network evaluated with given weights, M models at once.

    Args:
        build: makes a network with fresh weights from torch's global generator; called once per model by `init`.
        network: the template whose forward is used; only its frozen weights and those of the first initial model are
            used.
        frozen: parameters with `requires_grad=False` and buffers of modules at rest, one copy for all models and
            clients, in the memory of the template; no `ModelState` holds them, so they are neither sent nor stored.
        resting: modules that are the same function in training as in evaluation, see `at_rest`.
        end: the part that holds all leaves of models; None: none, or not searched for.
        template_seed: seed of the template's weights.
        init_seeds: seeds of the initial models, for `torch.manual_seed`; None derives them from the training seed.
        model_axis: `loop` runs the M models one after another, `vmap` together.
        dtype: floating type of the models.
        channels_last: store images and weights of 2-D convolutions with the channels last if `model_axis` is `loop`;
            the numbers are the same up to rounding.
        start: returns the models to start from, given fresh models and the network, see `Start`; None: the fresh ones.
    """

    build: Callable[[], nn.Module]
    network: nn.Module
    frozen: Leaves = field(default_factory=dict, compare=False)
    resting: list[nn.Module] = field(default_factory=list, compare=False)
    end: TrainedEnd | None = field(default=None, compare=False)
    template_seed: int | None = None
    init_seeds: tuple[int, ...] | None = None
    model_axis: Literal["loop", "vmap"] = "loop"
    dtype: torch.dtype = torch.float32
    channels_last: bool = False
    start: Callable[[ModelState, nn.Module], ModelState] | None = field(default=None, compare=False)

    def init(self, num_models: int, seed: int) -> ModelState:
        """Initial models: fresh ones, or those of `start`.

        Raises:
            ConfigError: as `fresh`, or if the models to start from do not fit.
        """
        fresh = self.fresh(num_models, seed)
        return fresh if self.start is None else self.start(fresh, self.network)

    def fresh(self, num_models: int, seed: int) -> ModelState:
        """Fresh models, each from its seed; frozen parameters are those of the task.

        Raises:
            ConfigError: if `init_seeds` has fewer seeds than models, or the models do not fit into memory.
        """
        check_models(num_models, self.network)
        return tree.stack([self._fresh(one) for one in initial_seeds(num_models, seed, self.init_seeds)])  # type: ignore[no-any-return]

    def _fresh(self, seed: int) -> ModelState:
        network = self.network if seed == self.template_seed else fresh_network(self.build, seed, self.dtype)
        own = (network.named_parameters(), network.named_buffers())
        return ModelState(*({name: leaf.detach() for name, leaf in part if name not in self.frozen} for part in own))

    def with_end(self, example: Tensor) -> Self:
        """The network with its trained end, if any, so that the part before it is computed once for all models."""
        if not self.frozen:
            return self
        return replace(self, end=TrainedEnd.find(self.network, self.resting, self.frozen, example))

    @cached_property
    def norm_names(self) -> frozenset[str]:
        """Names of the parameters and buffers of BatchNorm layers, without frozen ones."""
        names = {
            f"{path}.{name}" if path else name
            for path, layer in self.network.named_modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)
            for name in layer.state_dict()
        }
        return frozenset(names - self.frozen.keys())

    @cached_property
    def smallest_batch(self) -> int:
        """Smallest batch of a local step: 2 if BatchNorm uses batch statistics, else 1."""
        return 2 if normalises_batches(self.network) else 1

    @cached_property
    def same_in_training(self) -> bool:
        """Whether training and evaluation are the same function: no BatchNorm, no running statistics, no dropout."""
        norms = (one for one in working(self.network, self.resting) if isinstance(one, nn.modules.batchnorm._NormBase))
        tracks = any(one.track_running_stats for one in norms)
        return self.smallest_batch == 1 and not tracks and not drops_units(self.network)

    def statistics(self, models: ModelState, x: Tensor) -> Leaves:
        """Buffers, leaves [M, ...], with the running statistics of these samples [B, ...].

        With fewer samples than `smallest_batch` the buffers are unchanged.
        """
        if len(x) < self.smallest_batch or not models.buffers:
            return models.buffers
        kind = nn.modules.batchnorm._BatchNorm
        layers = [one for one in working(self.network, self.resting) if isinstance(one, kind)]
        momenta = [layer.momentum for layer in layers]
        self.network.eval()
        try:
            for layer in layers:
                layer.train()
                layer.momentum = 1.0
            each = []
            for m in range(num_models_of(models)):
                model = tree.map_leaves(lambda leaf: leaf.clone(), tree.index(models, m))
                self._forward(model, self._laid_out(x), self._call)
                each.append(model.buffers)
        finally:
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum
        return tree.stack(each)  # type: ignore[no-any-return]

    @cached_property
    def of_clients(self) -> Self:
        """The network of clients that run at once."""
        return self if self.model_axis == "vmap" else replace(self, model_axis="vmap")

    def laid_out(self, channels_last: bool) -> Self:
        """The network in this memory layout; frozen leaves change in place, with the template."""
        if channels_last == self.channels_last and not self.frozen:
            return self
        task = replace(self, channels_last=channels_last)
        own = dict(self.network.named_parameters()) | dict(self.network.named_buffers()) if self.frozen else {}
        for name, leaf in self.frozen.items():
            leaf.data = own[name].data = task._laid_out(leaf).data
        return task

    # ------------------------------------------------------------------ forward
    @cached_property
    def closed_form(self) -> AffineMap | None:
        """The network as an affine map, or None."""
        return affine_map(self.network)

    def outputs(self, models: ModelState, x: Tensor) -> Tensor:
        """Raw outputs in evaluation mode for inputs [B, ...]: [B, M, K], with positions [B, M, L, K]."""
        if self.closed_form is not None:
            return self.closed_form.outputs(self._stacked(models), x, False).to(self.dtype)
        self.network.eval()
        if self.model_axis == "vmap":
            call, x = self._begun(x)
            forward = vmap(lambda model: call(model.parameters, model.buffers, x))
            return forward(models).transpose(0, 1).to(self.dtype)  # type: ignore[no-any-return]
        if self.goes_together(models):
            return grouped_outputs(self.grouped, models.parameters, self._laid_out(x)).to(self.dtype)
        call, x = self._begun(self._laid_out(x))
        each = [self._forward(tree.index(models, m), x, call) for m in range(num_models_of(models))]
        return torch.stack(each, dim=1).to(self.dtype)

    @cached_property
    def last(self) -> Head:
        """The head of the network."""
        return Head.of(self.network)

    def features(self, models: ModelState, x: Tensor) -> Tensor:
        """Inputs of the last layer in evaluation mode for inputs [B, ...]: [B, M, D], with positions [B, M, L, D].

        The features of `nn.Linear` and `Linear` are the flattened inputs. `head` maps features to `outputs`.

        Raises:
            ConfigError: if the network has no known last layer, saying how it can name its two parts.
        """
        if self.closed_form is not None:
            return x.flatten(1).to(self.dtype).unsqueeze(1).expand(-1, num_models_of(models), -1)
        self.network.eval()
        if self.model_axis == "vmap":
            call, x = self._begun_with_features(x)
            forward = vmap(lambda model: call(model.parameters, model.buffers, x)[1])
            return forward(models).transpose(0, 1).to(self.dtype)  # type: ignore[no-any-return]
        if self._splits_together(models):
            return grouped_outputs(self.grouped[:-1], models.parameters, self._laid_out(x)).to(self.dtype)
        call, x = self._begun_with_features(self._laid_out(x))
        each = [self._forward(tree.index(models, m), x, call)[1] for m in range(num_models_of(models))]
        return _beside(each).to(self.dtype)

    def head(self, models: ModelState, features: Tensor) -> Tensor:
        """Raw outputs in evaluation mode for features [B, M, D] or [B, M, L, D]: [B, M, K] or [B, M, L, K].

        `head(models, features(models, x))` has the bits of `outputs(models, x)`.

        Raises:
            ConfigError: as `features`.
        """
        alike = _alike(features)  # one product for all models, as in `outputs`
        if self.closed_form is not None:
            given = features[:, 0] if alike else features.transpose(0, 1)
            return self.closed_form.outputs(self._stacked(models), given, not alike).to(self.dtype)
        self.network.eval()
        if self.model_axis == "vmap":
            call = vmap(
                lambda model, f: self._call_head(model.parameters, model.buffers, f), in_dims=(0, None if alike else 1)
            )
            return call(models, features[:, 0] if alike else features).transpose(0, 1).to(self.dtype)
        if self._splits_together(models):
            return grouped_outputs(self.grouped[-1:], models.parameters, features).to(self.dtype)
        # a slice of several models may be unaligned, and alignment changes the order of summation
        rows = [features[:, m] if alike else features[:, m].clone() for m in range(num_models_of(models))]
        each = [self._forward(tree.index(models, m), one, self._call_head) for m, one in enumerate(rows)]
        return torch.stack(each, dim=1).to(self.dtype)

    def _splits_together(self, models: ModelState) -> bool:
        """Whether models share a joint pass whose last layer is the head."""
        return self.goes_together(models) and self.grouped[-1][1] is self.last.top

    @cached_property
    def grouped(self) -> Layers:
        """The layers for joint passes of models, see `grouped_layers`; empty if not supported."""
        return () if self.frozen or self.model_axis == "vmap" else grouped_layers(self.network)

    def goes_together(self, models: ModelState) -> bool:
        """Whether models share a joint pass on the same samples: several narrow convolutional ones, on a CPU."""
        leaf = next(iter(models.parameters.values()))
        return self.channels_last and len(leaf) > 1 and leaf.device.type == "cpu" and bool(self.grouped)

    def _forward(self, model: ModelState, x: Tensor, call: Callable[..., Any]) -> Any:
        return call({name: self._laid_out(leaf) for name, leaf in model.parameters.items()}, model.buffers, x)

    def _begun(
        self, x: Tensor, *, training: bool = False, per_model: bool = False
    ) -> tuple[Callable[..., Any], Tensor]:
        """The function to evaluate for each model and its inputs: the trained end, or the whole network.

        Args:
            x: inputs [B, ...], the same for all models; [M, B, ...] if `per_model`.
            training: the network is in the mode of local steps.
            per_model: each model has its own inputs.
        """
        if self.end is None or per_model or (training and not self.end.same_in_training):
            return self._call, x
        with torch.no_grad():
            return self._call_end, self.end.inputs(self.frozen, x)

    def _begun_with_features(self, x: Tensor, **mode: bool) -> tuple[Callable[..., Any], Tensor]:
        """As `_begun`; the function returns outputs and features."""
        if self.last.body is not None:
            return self._call_parts, x
        call, x = self._begun(x, **mode)
        return lambda *model: self.last.watched(lambda: call(*model)), x

    def _call(self, parameters: Leaves, buffers: Leaves, x: Tensor) -> Tensor:
        """Outputs of one model, without a model axis, in the network's mode."""
        return functional_call(self.network, (parameters, buffers, self.frozen), (x,))  # type: ignore[no-any-return]

    def _call_end(self, parameters: Leaves, buffers: Leaves, z: Tensor) -> Tensor:
        """Outputs of one model from the inputs of the trained end."""
        assert self.end is not None
        return self.end.outputs(parameters | buffers | self.frozen, z)

    def _call_parts(self, parameters: Leaves, buffers: Leaves, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and features of one model by the two parts of the network's `split`."""
        leaves = parameters | buffers | self.frozen
        features = self.last.features(leaves, x)
        return self.last.outputs(leaves, features), features

    def _call_head(self, parameters: Leaves, buffers: Leaves, features: Tensor) -> Tensor:
        """Outputs of one model from features [B, ...]."""
        return self.last.outputs(parameters | buffers | self.frozen, features)

    def set_mode(self, training: bool) -> None:
        """Training mode, or evaluation mode in which cuDNN can compute an LSTM's gradient."""
        train_mode(self.network, self.resting)
        for layer in () if training else self.network.modules():
            if isinstance(layer, nn.modules.batchnorm._NormBase | nn.modules.dropout._DropoutNd):
                layer.eval()

    def _stacked(self, models: ModelState) -> Leaves:
        """All parameters, leaves [M, ...]; frozen ones are views."""
        num_models = num_models_of(models)
        return models.parameters | {name: leaf.expand(num_models, *leaf.shape) for name, leaf in self.frozen.items()}

    def _laid_out(self, leaf: Tensor) -> Tensor:
        """Convert images and convolution weights to the task's memory format; other leaves are unchanged."""
        if not self.channels_last or leaf.ndim != 4:
            return leaf
        # `contiguous` skips leaves with one channel, and convolutions would use the other format
        return leaf.to(memory_format=torch.channels_last)


def num_models_of(models: ModelState) -> int:
    """The number of stacked models, M."""
    return next(iter(models.parameters.values())).shape[0]


def _alike(features: Tensor) -> bool:
    """Whether features [B, M, ...] are known to be the same for all models: an expanded view."""
    return features.shape[1] == 1 or features.stride(1) == 0


def _beside(each: list[Tensor]) -> Tensor:
    """Features [B, ...] of M models as [B, M, ...], each in its own memory layout, which affects rounding."""
    first = each[0]
    if all(one is first for one in each):
        return first.unsqueeze(1).expand(-1, len(each), *first.shape[1:])
    order = sorted(range(first.ndim), key=lambda axis: -first.stride()[axis])
    stacked = torch.stack([one.permute(order) for one in each])
    places = [1 + order.index(axis) for axis in range(first.ndim)]
    return stacked.permute(places[0], 0, *places[1:])


# ---------------------------------------------------------------------- fresh networks
def initial_seeds(num_models: int, seed: int, given: Sequence[int] | None = None) -> list[int]:
    """Seeds of the initial models, [M].

    Args:
        num_models: M.
        seed: the training seed, used if no seeds are given.
        given: at least M seeds, or None.

    Raises:
        ConfigError: if fewer seeds are given than there are models.
    """
    if given is None:
        return [int(seed_of(seed, 0, m, "init").generate_state(1)[0]) for m in range(num_models)]
    if len(given) < num_models:
        raise ConfigError(f"--model.init_seeds has {len(given)} seeds; give one for each of {num_models}")
    return list(given[:num_models])


def fresh_network(build: Callable[[], nn.Module], seed: int, dtype: torch.dtype) -> nn.Module:
    """A network with weights from a seed; the global generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed looks for devices, which takes a millisecond
        (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)
        network = build().to(dtype)
    frozen_dtype: torch.dtype = getattr(network, "frozen_dtype", None) or dtype
    for leaf in network.parameters() if frozen_dtype != dtype else ():
        if not leaf.requires_grad:
            leaf.data = leaf.data.to(frozen_dtype)
    return network


def fresh_leaves(build: Callable[[], nn.Module], seed: int, purpose: str, dtype: torch.dtype) -> Leaves:
    """Fresh parameters of a network beside the models, such as a generator of the server."""
    network = fresh_network(build, int(seed_of(seed, 0, 0, purpose).generate_state(1)[0]), dtype)
    return {name: leaf.detach() for name, leaf in network.named_parameters()}


def check_trained(network: nn.Module) -> None:
    """Refuse a network without trained parameters.

    Raises:
        ConfigError: naming the network.
    """
    if not any(leaf.requires_grad for leaf in network.parameters()):
        number = sum(1 for _ in network.parameters())
        which = f"all of its {number} parameters have requires_grad=False" if number else "it has no parameters"
        raise ConfigError(
            f"{type(network).__name__} has nothing to train: {which}; leave requires_grad=True for a part of it, or "
            "choose another --model.network"
        )


def check_models(num_models: int, network: nn.Module) -> None:
    """Refuse more stacked models than fit into memory.

    Args:
        num_models: M.
        network: one of them; frozen parameters are not stacked.

    Raises:
        ConfigError: naming their number and size.
    """
    each = _bytes_of(network) - sum(leaf.nbytes for leaf in network.parameters() if not leaf.requires_grad)
    require_memory(
        2 * num_models * each,  # separate and stacked
        f"{num_models} initial models of {each} bytes each",
        "lower the number of models in --model.algorithm, or choose a smaller --model.network",
    )


def check_network(build: Callable[[], nn.Module]) -> None:
    """Refuse a network that does not fit into memory, by building it on device `meta` first.

    Args:
        build: makes a network.

    Raises:
        ConfigError: naming both sizes.
    """
    try:
        with torch.device("meta"), warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # loading weights onto meta warns
            size = _bytes_of(build())
    except Exception:  # building may need values; other errors reappear in the real build
        return
    require_memory(size, "the --model.network", "choose smaller sizes, or another network")


def _bytes_of(network: nn.Module) -> int:
    """Bytes of parameters and buffers."""
    return sum(leaf.numel() * leaf.element_size() for leaf in (*network.parameters(), *network.buffers()))
