"""A trial run of a network: passes over a few samples show what its classes and names do not tell.

Local steps call a network as a pure function of its parameters, its buffers and a batch. The trial refuses what such a
call would drop or share without a word, and finds out whether the samples of a batch and the clients of a round may be
computed together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from lit_fed.core.networks.layers import train_mode, working
from lit_fed.errors import ConfigError

__all__ = ["TriedNetwork", "check_kind", "check_scores", "try_network", "why_alone"]

UNLIKE = 1e-4
"""Relative difference above which values are other values, and not rounded otherwise."""

SHIFT = 0.01
"""Added to all trained parameters of a trial."""

FACTORS = (1.0, 100.0, -100.0)
"""Factors on weights with which scores leave the range of probabilities."""


class TriedNetwork(NamedTuple):
    """Findings of a trial run."""

    mixes_samples: bool = False  # whether outputs or buffers depend on other samples of a batch, BatchNorm apart
    is_seeded: bool = True  # whether torch's seed decides all outputs


def check_kind(network: nn.Module) -> None:
    """Refuse modules whose leaves cannot be replaced, or whose gradients no local solver takes.

    Raises:
        ConfigError: naming the module, and what to give instead.
    """
    for path, module in network.named_modules():
        where = f"--model.network: {f'its layer {path}' if path else 'it'} is {type(module).__name__}"
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError(f"{where}, whose leaves cannot be replaced; give the module that was compiled")
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise ConfigError(f"{where}; give its .module, since lit_fed itself divides clients over devices")
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise ConfigError(f"{where} with sparse gradients, which no local solver takes; give sparse=False")


def try_network(network: nn.Module, resting: Sequence[nn.Module], example: Tensor) -> TriedNetwork:
    """Run a network on a few samples; it is left as it was, in evaluation mode.

    Args:
        network: the network, on the device of the example.
        resting: its modules that are the same function in training as in evaluation.
        example: two samples [2, ...] that differ where their type allows it.

    Raises:
        ConfigError: if a forward pass writes inputs or parameters, or keeps values that are in no buffer.
    """
    one, other = example[[0, 1, 0, 0]], example[[0, 1, 1, 1]]  # the first two samples, among different ones
    mixes, is_seeded = False, True
    for training in (True, False):
        passes = _Passes(network, resting, training)
        outputs, buffers = passes.pure(one)
        if _differ(outputs, passes.pure(one)[0]):  # then differences between other passes tell nothing
            is_seeded = False
            continue
        passes.check_state(one)
        among_others, moved = passes.pure(other)
        mixes |= _differ(outputs[:2], among_others[:2]) or any(_differ(buffers[name], moved[name]) for name in buffers)
    return TriedNetwork(mixes, is_seeded)


def check_scores(network: nn.Module, frozen: Mapping[str, Tensor], example: Tensor) -> None:
    """Refuse outputs that are probabilities: losses and mixtures take scores, as before softmax or sigmoid.

    Args:
        network: a network of classes, in evaluation mode.
        frozen: its frozen leaves, by name.
        example: samples [2, ...].

    Raises:
        ConfigError: naming the network and the function to leave out.
    """
    trained = {name: leaf.detach() for name, leaf in network.named_parameters() if name not in frozen}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        # scores leave 0..1 with other weights, probabilities do not
        each = [
            functional_call(network, {name: by * leaf for name, leaf in trained.items()}, (example,)) for by in FACTORS
        ]
    first, *others = (one.double().reshape(-1, one.shape[-1]) for one in each)
    rows = torch.cat([first, *others])
    # a last layer of zeros gives 0, which no softmax or sigmoid of these weights does
    if bool((first > 0).all() and ((rows >= 0) & (rows <= 1)).all()):
        last = "softmax" if rows.shape[1] > 1 and not _differ(rows.sum(1), torch.ones_like(rows[:, 0])) else "sigmoid"
        raise ConfigError(
            f"{type(network).__name__} returns probabilities, in 0..1 whatever its weights are, as after a {last}; "
            f"leave the {last} out, since losses and mixtures take scores"
        )


# ---------------------------------------------------------------------- passes
class _Passes:
    """Passes of a network in one mode, each from the same buffers, attributes and random numbers."""

    def __init__(self, network: nn.Module, resting: Sequence[nn.Module], training: bool) -> None:
        self.network, self.resting, self.training = network, resting, training
        # a layer of zeros would hide what is before it
        self.parameters = {
            name: leaf.detach() + SHIFT for name, leaf in network.named_parameters() if leaf.requires_grad
        }
        self.said = f"{type(network).__name__} "

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """The network in its mode; afterwards with the buffers and attributes of before, in evaluation mode."""
        modules = list(self.network.modules())
        before = [(dict(vars(one)), {name: (leaf, leaf.clone()) for name, leaf in _buffers(one)}) for one in modules]
        self.network.eval()
        if self.training:
            train_mode(self.network, self.resting)
        for layer in working(self.network, self.resting):
            # BatchNorm is known by its class: client trainers handle its batches
            if isinstance(layer, nn.modules.batchnorm._NormBase):
                layer.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                yield
        finally:
            for module, (attributes, buffers) in zip(modules, before, strict=True):
                vars(module).clear()
                vars(module).update(attributes)
                for name, (leaf, value) in buffers.items():
                    module._buffers[name] = leaf.copy_(value)
            self.network.eval()

    def pure(self, x: Tensor, passes: int = 1) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs of the last of some passes as a pure function, and the buffers behind it.

        Raises:
            ConfigError: if a pass writes its inputs or its parameters.
        """
        buffers = {name: leaf.clone() for name, leaf in self.network.named_buffers()}
        for _ in range(passes):
            given = x.clone()
            with self._restored():
                outputs: Tensor = functional_call(self.network, self.parameters | buffers, (given,))
            if _differ(given, x):
                raise ConfigError(
                    f"{self.said}writes its inputs in place, and passes share them; write x = x.clone() first, or use "
                    "functions without a final underscore"
                )
        own = dict(self.network.named_parameters())
        written = [name for name, leaf in self.parameters.items() if _differ(own[name].detach() + SHIFT, leaf)]
        if written:
            raise ConfigError(
                f"{self.said}writes its parameter {written[0]} in its forward pass, where local steps have it from the "
                "optimizer alone; compute what is needed from the parameter, without writing it"
            )
        return outputs.clone(), buffers

    def check_state(self, x: Tensor) -> None:
        """Refuse values that a pass leaves to the next one outside of its buffers.

        Raises:
            ConfigError: naming them.
        """
        second, _ = self.pure(x, passes=2)
        with self._restored():
            before = _values(self.network)
            for _ in range(2):
                torch.default_generator.manual_seed(0)
                direct: Tensor = functional_call(self.network, self.parameters, (x.clone(),))
            after = _values(self.network)
        assigned = [name for name in before if name in after and _changed(before[name], after[name])]
        if not assigned or not _differ(second, direct):  # a value that is kept, and not read, does no harm
            return
        registered = f"register it by register_buffer, and write it in place: self.{assigned[0]}.copy_(...)"
        raise ConfigError(
            f"{self.said}assigns {', '.join(assigned)} in its forward pass, which would be lost or pass from client to "
            f"client; {registered}"
        )


def _buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, leaf) for name, leaf in module._buffers.items() if leaf is not None]


def _values(network: nn.Module) -> dict[str, Any]:
    """Attributes and buffers of all modules by name: assigned ones are other objects afterwards."""
    found: dict[str, Any] = {}
    for path, module in network.named_modules():
        own = {name: value for name, value in vars(module).items() if not name.startswith("_")} | dict(_buffers(module))
        found |= {f"{path}.{name}" if path else name: value for name, value in own.items() if name != "training"}
    return found


def _changed(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return before is not after and _differ(before, after)
    if isinstance(before, bool | int | float | NoneType):
        return type(before) is not type(after) or before != after
    return False  # of other objects, such as caches, only outputs tell


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether values differ by more than rounding."""
    if one.shape != other.shape:
        return True
    near = UNLIKE * max(1e-3, float(one.abs().nan_to_num(0).max())) if one.is_floating_point() and one.numel() else 0.0
    return not torch.allclose(one, other, rtol=0.0, atol=near, equal_nan=True)


# ---------------------------------------------------------------------- a local step
def why_alone(network: nn.Module, frozen: Mapping[str, Tensor], resting: Sequence[nn.Module], example: Tensor) -> str:
    """The reason why vmap cannot run local steps of several clients; "" if it can.

    Args:
        network: the network, on any device.
        frozen: its frozen leaves, by name.
        resting: as for `try_network`.
        example: samples [2, ...].
    """
    parameters, buffers = (
        {
            name: leaf.detach().to(example.device).expand(2, *leaf.shape).clone()
            for name, leaf in part
            if name not in frozen
        }
        for part in (network.named_parameters(), network.named_buffers())
    )
    still = {name: leaf.to(example.device) for name, leaf in frozen.items()}

    def loss(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(network, (parameters, buffers, still), (x,)).double().square().mean()  # type: ignore[no-any-return]

    train_mode(network, resting)
    try:
        vmap(grad(loss))(parameters, buffers, torch.stack([example, example]))
    except Exception as error:  # user-defined code may raise anything
        return f"a forward pass that vmap cannot run ({str(error).strip().partition(chr(10))[0]})"
    finally:
        network.eval()
    return ""
