"""Modules that compute their loss themselves, such as LightningModules: their steps as pure functions of leaves.

    mean loss       `training_step` on the whole batch: all that algorithms without weights of samples need
    sample losses   the module's `sample_losses(batch) -> [B]`, else `training_step` on each sample alone: what E-steps,
                    choices of clusters, weighted steps and privacy of samples need

A class is recognised by its `training_step`; nothing of Lightning is imported here.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils import _pytree as pytree

from lit_fed.core.named_inputs import LABELS, WHOLE, NamedInputs
from lit_fed.core.networks.layers import normalises_batches
from lit_fed.core.types import Leaves
from lit_fed.errors import ConfigError, notice

__all__ = ["OwnModule", "Run", "defines", "maker_from_hparams", "prepared", "trains_itself"]

FRAMEWORKS = ("lightning", "pytorch_lightning", "lightning_fabric", "torch")
"""Packages whose own methods are defaults, and not the user's."""

NOT_CALLED = (
    "backward", "optimizer_step", "optimizer_zero_grad", "configure_gradient_clipping", "lr_scheduler_step",
    "prepare_data", "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader", "teardown",
    "configure_callbacks", "transfer_batch_to_device",
)  # fmt: skip
"""Hooks of a LightningModule that clients do not call, beside those whose names begin with `on_`."""

AT_END = {"test_step": "on_test_epoch_end", "validation_step": "on_validation_epoch_end"}
"""Hooks behind the last batch of a client, by the step."""

CALLED = ("on_before_batch_transfer", "on_after_batch_transfer", "on_save_checkpoint", *AT_END.values())
"""Hooks whose names begin with `on_`, and that are called."""

REDUCTIONS = ("mean", "sum", "min", "max")
"""How values of a client's batches are put together."""

OF_BATCHES = ("on_before_batch_transfer", "on_after_batch_transfer")
"""Hooks that change a batch."""

OF_TORCH = ("_parameters", "_buffers", "_modules", "_trainer", "training", "log")
"""Attributes of modules that a step does not own."""

VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

CONTAINERS = (list, dict, set, deque)
"""Attributes that steps may fill."""

SAME = 1e-4
"""Relative difference up to which the loss of a batch is the mean over its samples."""


def defines(network: Any, name: str) -> bool:
    """Whether a module, or a class of one, has a method of its own of this name."""
    method = getattr(network if isinstance(network, type) else type(network), name, None)
    return callable(method) and method.__module__.partition(".")[0] not in FRAMEWORKS


def trains_itself(network: Any) -> bool:
    """Whether a module, or a class of one, computes its loss itself."""
    is_module = issubclass(network, nn.Module) if isinstance(network, type) else isinstance(network, nn.Module)
    return is_module and defines(network, "training_step")


def prepared(network: nn.Module) -> nn.Module:
    """The module after its `configure_model` and `setup`, once, as a Trainer calls them."""
    if "is_prepared" not in vars(network):
        for hook, arguments in (("configure_model", ()), ("setup", ("fit",))):
            if defines(network, hook):
                with _attached(network, Run()):
                    getattr(network, hook)(*arguments)
        network.is_prepared = True  # type: ignore[assignment] # no module
    return network


def maker_from_hparams(network: nn.Module) -> Callable[[], nn.Module] | None:
    """Makes the same module with fresh weights from the hyper-parameters that it saved; None: it saved too few."""
    hparams = dict(getattr(network, "hparams", None) or {})
    parameters = inspect.signature(type(network).__init__).parameters
    needed = [name for name, one in parameters.items() if one.default is one.empty and one.kind not in VARIADIC]
    if not hparams or not {*needed[1:]} <= hparams.keys():
        return None
    known = {name: value for name, value in hparams.items() if name in parameters}

    def make() -> nn.Module:  # without parameters that sizes of the data could fill
        return type(network)(**known)

    return make


@contextmanager
def _attached(network: nn.Module, run: Run, *, steps: bool = True) -> Iterator[None]:
    """The LightningModules of a network see a run as their trainer; `steps` is false for predictions."""
    parts = [one for one in network.modules() if "_trainer" in vars(one)]
    for part in parts:
        vars(part).update(_trainer=run, log=run.log)
    vars(network)["in_own_step"] = steps
    try:
        yield
    finally:
        del vars(network)["in_own_step"]
        for part in parts:
            vars(part)["_trainer"] = None
            del vars(part)["log"]


@dataclass
class Run:
    """What a module sees as its trainer, and what it logs, for one client at a time.

    Attributes:
        current_epoch: local epochs before this one, over all rounds, if the client took part in each.
        global_step: local steps before this one, likewise.
        batch_idx: local steps before this one in this epoch.
    """

    current_epoch: int = 0
    global_step: int = 0
    batch_idx: int = 0
    max_epochs: int = 1
    num_training_batches: int = 1  # local steps of an epoch
    estimated_stepping_batches: int = 1
    training: bool = True
    testing: bool = False
    validating: bool = False
    predicting: bool = False
    sanity_checking: bool = False
    is_global_zero: bool = True
    world_size: int = 1
    global_rank: int = 0
    local_rank: int = 0
    logger: None = None
    loggers: tuple[()] = ()
    progress_bar_callback: None = None
    size: int = 1  # samples of the batch
    scale: float = 1.0  # of what is logged
    _sums: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)  # Σ size·value, Σ size
    _extremes: dict[str, tuple[str, list[Tensor]]] = field(default_factory=dict)  # reduced otherwise than by the mean
    _metrics: dict[str, Any] = field(default_factory=dict)  # objects of torchmetrics
    _aside: dict[str, Tensor] | None = None  # what single samples log; None: a batch logs

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"a client has no trainer.{name}; pass what is needed to the module's __init__")

    def log(
        self, name: str, value: Any, *_: Any, batch_size: int | None = None, reduce_fx: Any = "mean", **__: Any
    ) -> None:  # fmt: skip
        """As `LightningModule.log`, over a client's batches, whatever of `on_step` or `sync_dist` is asked.

        Raises:
            ConfigError: if the value is no number, or the reduction is none of PyTorch's or Lightning's.
        """
        if hasattr(value, "compute"):
            if self._aside is None:  # of single samples nothing was added to it
                self._metrics[name] = value
            return
        how = getattr(reduce_fx, "__name__", reduce_fx)
        if isinstance(value, Mapping) or how not in REDUCTIONS:
            other = f"reduce_fx {how}; give mean, sum, min or max"
            raise ConfigError(
                f"self.log({name!r}) has {'a dict; use self.log_dict' if isinstance(value, Mapping) else other}"
            )
        number = torch.as_tensor(value).detach().double()
        if number.numel() != 1:
            raise ConfigError(f"self.log({name!r}) has a tensor {list(number.shape)}; log its numbers one by one")
        if self._aside is not None:
            self._aside[name] = number.reshape(()) if how == "mean" else torch.full_like(number.reshape(()), math.nan)
        elif how == "mean":
            self.add(name, number.reshape(()), batch_size or self.size)
        else:
            scaled = number.reshape(()) * (self.scale if how == "sum" else 1)
            self._extremes.setdefault(name, (how, []))[1].append(scaled)

    def add(self, name: str, value: Tensor, size: Tensor | float) -> None:
        """Add the mean [] of some samples to what is logged under a name."""
        total, count = self._sums.get(name, (value.new_zeros(()), value.new_zeros(())))
        self._sums[name] = total + size * self.scale * value, count + size * self.scale

    @contextmanager
    def apart(self) -> Iterator[dict[str, Tensor]]:
        """What is logged within goes to the yielded dict."""
        before, self._aside = self._aside, {}
        try:
            yield self._aside
        finally:
            self._aside = before

    def logged(self) -> Leaves:
        """Means [] of what was logged, by name, float64; afterwards nothing is logged."""
        found = {name: total / count for name, (total, count) in self._sums.items()}
        found |= {name: getattr(torch.stack(each), how)() for name, (how, each) in self._extremes.items()}
        for name, metric in self._metrics.items():
            value = torch.as_tensor(metric.compute()).detach().double()
            if value.numel() != 1:
                raise ConfigError(
                    f"self.log({name!r}) has a {type(metric).__name__} of {list(value.shape)} values; log numbers"
                )
            found[name] = value.reshape(())
        self.forget()
        return found

    def forget(self) -> None:
        """Drop what was logged."""
        self._sums, self._extremes, self._metrics = {}, {}, {}


class _OfMany(Run):
    """What a module sees while clients run at once: they are at different steps, and what they log has no place."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("current_epoch", "global_step"):
            raise RuntimeError(f"it reads self.{name}, which differs from client to client")
        return super().__getattribute__(name)

    def log(self, *_: Any, **__: Any) -> None:
        """Nothing is logged."""


class _Caller(nn.Module):
    """A module whose forward calls a method of another, so that `functional_call` reaches it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, name: str, *arguments: Any, **named: Any) -> tuple[Any, Leaves]:
        """The result, and the buffers behind it, also those that were assigned anew."""
        return getattr(self.module, name)(*arguments, **named), dict(self.module.named_buffers())


class OwnModule:
    """The steps of a module that computes its loss itself.

    Args:
        network: the module.
        inputs: what a sample concatenates; None: a single input.
        is_target: whether its loss is the target, `OwnLoss`, so that samples hold their labels.
        no_label: a label [...] of zeros, with which hooks of batches run where labels are not known.
        mask: (H, W), the shape of labels that are kept as positions [B, H·W]; None: they have the shape of steps.
        reserved: keys of results that nothing logged may take.

    Raises:
        ConfigError: if it optimises manually.
    """

    def __init__(
        self, network: nn.Module, inputs: NamedInputs | None = None, *, is_target: bool = False,
        no_label: Tensor | None = None, mask: tuple[int, ...] | None = None, reserved: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.network, self.name, self.run = network, type(network).__name__, Run()
        self.inputs, self.is_target, self.mask, self.reserved = inputs, is_target, mask, reserved
        self._predicts = True
        self._takes = dict[str, tuple[bool, bool]]()  # whether a step takes `batch_idx`, and `dataloader_idx`
        self._no_label = torch.zeros(()) if no_label is None else no_label
        self.names: tuple[str, ...] | None = None  # of what steps log; None: not known yet
        self._caller, self._said, self._first_epoch = _Caller(network), set[str](), 0
        self._has_stepped = False
        if not getattr(network, "automatic_optimization", True):
            raise ConfigError(
                f"{self.name} optimises manually, and its steps cannot be those of a federated algorithm; return the "
                "loss from training_step, and leave out automatic_optimization = False"
            )
        for metric in self._metrics:
            metric.distributed_available_fn = _never  # clients of several ranks are not in step

    # ------------------------------------------------------------------ what is said
    @property
    def not_called(self) -> list[str]:
        """Names of its hooks that clients do not call."""
        own = [name for name in dir(type(self.network)) if name.startswith("on_") and name not in CALLED]
        return [name for name in (*own, *NOT_CALLED) if defines(self.network, name)]

    def say(self, text: str) -> None:
        """Print a line, once."""
        if text not in self._said:
            self._said.add(text)
            notice(text)

    # ------------------------------------------------------------------ calls
    def call(self, leaves: Leaves, method: str, *arguments: Any, **options: Any) -> tuple[Any, Leaves]:
        """The result of a method under other leaves, and the buffers behind it.

        Args:
            leaves: all leaves by name; buffers may be changed in place.
            method: the name of the method.
            arguments: its arguments.
            options: its arguments by name.
        """
        named = {f"module.{name}": leaf for name, leaf in leaves.items()}
        with _attached(self.network, self.run, steps=method != "__call__"):
            return functional_call(self._caller, named, (method, *arguments), options)  # type: ignore[no-any-return]

    def call_plain(self, method: str, *arguments: Any) -> Any:
        """The result of a method of the module as it is, which sees the run as its trainer."""
        with _attached(self.network, self.run):
            return getattr(self.network, method)(*arguments)

    def step(self, leaves: Leaves, method: str, batch: Any) -> tuple[Any, Leaves]:
        """What a step returns, such as `training_step`, and the buffers behind it."""
        if method not in self._takes:
            parameters = inspect.signature(getattr(self.network, method)).parameters
            self._takes[method] = "batch_idx" in parameters or len(parameters) > 1, "dataloader_idx" in parameters
        with_index, with_loader = self._takes[method]
        given = (batch, self.run.batch_idx) if with_index else (batch,)
        return self.call(leaves, method, *given, **({"dataloader_idx": 0} if with_loader else {}))

    @contextmanager
    def forward_as(self, mixture: tuple[list[Leaves], Callable[[Tensor], Tensor]]) -> Iterator[None]:
        """Within, the module's `forward` is that of a mixture.

        Args:
            mixture: all leaves of each of M models, and the prediction from outputs [B, M, ...].
        """
        network, (models, mixed) = self.network, mixture

        def forward(*inputs: Any, **named: Any) -> Tensor:
            del vars(network)["forward"]
            try:
                each = [functional_call(network, leaves, inputs, named) for leaves in models]
            finally:
                vars(network)["forward"] = forward
            return mixed(torch.stack(each, dim=1))

        vars(network)["forward"] = forward
        try:
            yield
        finally:
            del vars(network)["forward"]

    def _step(self, leaves: Leaves, batch: Any) -> tuple[Tensor, Leaves]:
        """The loss [] of `training_step`, and the buffers behind it."""
        found, buffers = self.step(leaves, "training_step", batch)
        loss = found.get("loss") if isinstance(found, Mapping) else found
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shown = f"a tensor {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(f"{self.name}.training_step returns {shown}; return the mean loss of the batch")
        return loss.reshape(()), buffers

    def batch(self, x: Tensor, y: Tensor) -> Any:
        """The batch that steps read: inputs and labels, or what samples hold."""
        labels = y if self.mask is None else y.unflatten(1, self.mask)
        batch = self._held(x) if self.is_target else (self._inputs(x), labels)
        for hook in OF_BATCHES:
            if defines(self.network, hook):
                batch = self.call_plain(hook, batch, 0)
        return batch

    def _inputs(self, x: Tensor) -> Any:
        """Inputs of a batch: a tensor, or a tuple or dict of tensors."""
        if self.inputs is None:
            return x
        positional, named = self.inputs.arguments(x)
        return positional or named

    def _held(self, x: Tensor) -> Any:
        """Inputs and labels that samples hold, as a pair if the labels have a name of their own."""
        assert self.inputs is not None
        given = self._inputs(x)
        parts = given.values() if isinstance(given, dict) else given
        named = dict(zip((one.name for one in self.inputs.inputs), parts, strict=True))
        if LABELS not in named:
            return named.get(WHOLE, given)
        y = named.pop(LABELS)
        if set(named) == {"x"}:
            return named["x"], y
        return (tuple(named.values()) if next(iter(named)).isdecimal() else named), y

    # ------------------------------------------------------------------ predictions
    def outputs(self, leaves: Leaves, x: Tensor) -> Tensor:
        """Outputs of one model in the network's mode: of `forward`, or own losses and predictions, [B, 1 + P].

        Args:
            leaves: all leaves of one model.
            x: inputs [B, ...].
        """
        if not self.is_target:
            given = self._inputs(x)
            if any(defines(self.network, hook) for hook in OF_BATCHES):
                given = self.batch(x, self._no_label.to(x.device).expand(len(x), *self._no_label.shape))[0]
            positional = tuple(given) if isinstance(given, tuple) else () if isinstance(given, dict) else (given,)
            return self.call(leaves, "__call__", *positional, **(given if isinstance(given, dict) else {}))[0]  # type: ignore[no-any-return]
        batch = self.batch(x, x)
        with self._muted(), self.run.apart():
            losses = self.sample_losses(leaves, x, x, training=False)[0].unsqueeze(-1)
            found = self._predicted(leaves, batch)
        shown = isinstance(found, Tensor) and found.ndim > 0 and len(found) == len(x)
        return torch.cat([losses, found.reshape(len(x), -1).to(losses)], -1) if shown else losses

    def _predicted(self, leaves: Leaves, batch: Any) -> Any:
        """What the module predicts of a batch that holds its labels; None: nothing."""
        if defines(self.network, "predict_step"):
            return self.call(leaves, "predict_step", batch, 0)[0]
        if not defines(self.network, "forward") or not self._predicts:
            return None
        try:
            return self._forward(leaves, batch)
        except Exception as error:  # the user's code may raise anything
            self._predicts = False
            self.say(
                f"{self.name}.forward cannot read a batch ({_first_line(error)}), so that there are no predictions; "
                "define predict_step(batch, batch_idx)"
            )
            return None

    def _forward(self, leaves: Leaves, batch: Any) -> Any:
        """`forward` of the inputs of a batch: by their names, or in their order."""
        given = batch[0] if isinstance(batch, tuple) and len(batch) == 2 else batch
        if isinstance(given, dict):
            takes = inspect.signature(self.network.forward).parameters
            named = {name: leaf for name, leaf in given.items() if name in takes}
            return self.call(leaves, "__call__", **named)[0] if named else self.call(leaves, "__call__", given)[0]
        return self.call(leaves, "__call__", *(given if isinstance(given, tuple) else (given,)))[0]

    # ------------------------------------------------------------------ losses
    def mean_loss(self, leaves: Leaves, x: Tensor, y: Tensor, mask: Tensor) -> tuple[Tensor, Leaves]:
        """The loss [] of a batch without its masked samples, 0 if none is left; and the buffers behind it.

        Args:
            leaves: all leaves of one model.
            x: inputs [B, ...].
            y: labels [B, ...].
            mask: [B].
        """
        if not bool(mask.all()):
            x, y = x[mask > 0], y[mask > 0]
        self.run.size = len(y)
        if not len(y):
            return next(iter(leaves.values())).new_zeros(()), leaves
        loss, buffers = self._step(leaves, self.batch(x, y))
        if torch.is_grad_enabled() and not loss.requires_grad:
            raise ConfigError(
                f"the loss of {self.name}.training_step has no gradient; return a tensor that its parameters lead to, "
                "without .detach() or .item()"
            )
        return loss, buffers

    def sample_losses(self, leaves: Leaves, x: Tensor, y: Tensor, *, training: bool) -> tuple[Tensor, Leaves, Leaves]:
        """The loss of each sample [B], the buffers behind it, and what each sample logs, [B] by name.

        Args:
            leaves: all leaves of one model.
            x: inputs [B, ...].
            y: labels [B, ...].
            training: the network is in the mode of local steps.

        Raises:
            ConfigError: if a sample has no loss of its own.
        """
        batch, size = self.batch(x, y), len(y)
        if defines(self.network, "sample_losses"):
            with self.run.apart() as logged:
                losses, buffers = self.call(leaves, "sample_losses", batch)
            if not isinstance(losses, Tensor) or losses.shape != (size,):
                shown = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
                raise ConfigError(
                    f"{self.name}.sample_losses returns {shown} for {size} samples; return one loss for each, without "
                    "a mean over the batch"
                )
            return losses, buffers, {}
        if training and normalises_batches(self.network):
            raise ConfigError(
                f"the algorithm weighs the losses of single samples, and with the BatchNorm of {self.name} a sample "
                "has none in training; define sample_losses(batch) -> [B] from one pass of the batch, or take GroupNorm"
            )
        losses, logged = self._each_alone(leaves, batch, size)
        return losses, leaves, logged

    def weighted_loss(
        self, leaves: Leaves, x: Tensor, y: Tensor, share: Tensor, *, training: bool, logs: bool = False
    ) -> tuple[Tensor, Leaves]:  # fmt: skip
        """Σ_b share_b·(loss of sample b), [], and the buffers behind it.

        Args:
            leaves: all leaves of one model.
            x: inputs [B, ...].
            y: labels [B, ...].
            share: [B].
            training: the network is in the mode of local steps.
            logs: whether what samples log counts, by their shares; under functions of `torch.func` it cannot.
        """
        losses, buffers, logged = self.sample_losses(leaves, x, y, training=training)
        total = share.detach().double().sum() if logs else share
        for name, each in logged.items() if logs else ():
            mean = (each * share.detach()).sum() / total.clamp(min=1e-30)
            self.run.add(name, mean, total * len(y))
        return (losses * share).sum(), buffers

    def check_step(self, objective: object | None, *, soft: bool) -> None:
        """Refuse what a module's own loss cannot stand for.

        Args:
            objective: a loss of the algorithm, in place of the network's.
            soft: labels are probabilities.

        Raises:
            ConfigError: naming what works.
        """
        why = "own local loss reads outputs or features of the network" if objective is not None else ""
        why = "local loss takes the predictions of another model for labels" if soft else why
        if why:
            raise ConfigError(
                f"the algorithm's {why}, and {self.name} computes its loss itself, in training_step; choose an "
                "algorithm of gradients or of mixtures, such as FedAvg, SCAFFOLD, Ditto or FedEM, or give "
                f"--model.loss, such as CrossEntropy, to train the forward of {self.name} by it"
            )

    def check_program(self) -> None:
        """Refuse a program of what only `forward` alone would compute otherwise.

        Raises:
            ConfigError: saying why, and what to write instead.
        """
        hooks = [name for name in OF_BATCHES if defines(self.network, name)]
        why = f"its {hooks[0]} changes batches ahead of forward" if hooks else ""
        why = "its steps read several inputs" if self.inputs is not None else why
        why = "its predictions are made beside its own loss" if self.is_target else why
        if why:
            raise ConfigError(
                f"{self.name} cannot be a program, since {why}; choose --format lightning, whose checkpoints the class "
                "itself loads"
            )

    def _each_alone(self, leaves: Leaves, batch: Any, size: int) -> tuple[Tensor, Leaves]:
        """`training_step` on each sample as a batch of one: at once if vmap can, else one by one, which is said."""

        def alone(sample: Any) -> tuple[Tensor, Leaves]:
            with self.run.apart() as logged:
                loss, _ = self._step(leaves, pytree.tree_map(lambda leaf: leaf.unsqueeze(0), sample))
                return loss, dict(logged)

        self.run.size = 1
        if self._metrics and torch.is_grad_enabled():
            self.say(f"objects of torchmetrics in {self.name}.training_step measure nothing where samples are weighed")
        if size > 1 and "one by one" not in self._said:
            try:
                with self._muted():
                    return vmap(alone, randomness="different")(batch)
            except ConfigError:
                raise
            except Exception as error:  # the user's code; what is wrong with it, too, comes again below
                if isinstance(self.run, _OfMany):
                    raise
                self._said.add("one by one")
                self.say(
                    f"{self.name}.training_step runs on one sample after another, as vmap cannot run it "
                    f"({_first_line(error)}); define sample_losses(batch) -> [B] for a single pass"
                )
        each = []
        with self._muted():
            for row in range(size):
                own = {name: leaf.clone() if name in self._buffers else leaf for name, leaf in leaves.items()}
                with self.run.apart() as logged:
                    loss, _ = self._step(own, pytree.tree_map(lambda leaf, row=row: leaf[row : row + 1], batch))
                each.append((loss, {name: value.reshape(()) for name, value in logged.items()}))
        names = [name for name in each[0][1] if all(name in one for _, one in each)]
        losses = torch.stack([loss for loss, _ in each])
        return losses, {name: torch.stack([one[name] for _, one in each]) for name in names}

    @property
    def _buffers(self) -> set[str]:
        return {name for name, _ in self.network.named_buffers()}

    def compare(self, leaves: Leaves, x: Tensor, y: Tensor, losses: Tensor) -> None:
        """Say, once, where the loss of a batch is not the mean over its samples, on which weights of samples act.

        Args:
            leaves: all leaves of one model, in evaluation mode.
            x: inputs [B, ...].
            y: labels [B, ...].
            losses: of the samples, [B].

        Raises:
            ConfigError: if the loss compares samples, so that a sample alone has none.
        """
        if "compared" in self._said or len(y) < 2:
            return
        self._said.add("compared")
        with torch.no_grad(), self._muted(), self.run.apart():
            whole = self._step({name: leaf.clone() for name, leaf in leaves.items()}, self.batch(x, y))[0]
        if torch.allclose(whole.double(), losses.double().mean(), rtol=SAME, atol=1e-6):
            return
        if bool((losses == losses[0]).all()):
            raise ConfigError(
                f"{self.name}.training_step compares the samples of a batch: alone each has the loss "
                f"{losses[0].item():.4g}, together {whole.item():.4g}; define sample_losses(batch) -> [B], or choose "
                "an algorithm that weighs no samples, such as FedAvg or Ditto"
            )
        self.say(
            f"the loss of {self.name}.training_step on a batch is {whole.item():.4g}, the mean over its samples "
            f"{losses.mean().item():.4g}; weights of samples act on the latter"
        )

    # ------------------------------------------------------------------ a client
    @contextmanager
    def at_once(self) -> Iterator[None]:
        """The turn of several clients that run at once: a step may read neither counters nor its `batch_idx`."""
        before, self.run = self.run, _OfMany()
        try:
            with self.client(0, 1, 1):
                self.run.batch_idx = None  # type: ignore[assignment] # whose use fails
                yield
        finally:
            self.run = before

    def why_alone(self, leaves: Leaves, x: Tensor) -> str:
        """The reason why vmap cannot run the steps of several clients; "" if it can.

        Args:
            leaves: all leaves of one model.
            x: inputs [B, ...], with labels of zeros.
        """
        y = self._no_label.expand(len(x), *self._no_label.shape)

        def loss(leaves: Leaves, x: Tensor) -> Tensor:
            own = {name: leaf.clone() if name in self._buffers else leaf for name, leaf in leaves.items()}
            return self.weighted_loss(own, x, y, torch.ones(len(x)), training=True)[0]

        def slope(moving: Leaves, fixed: Leaves, x: Tensor) -> Leaves:
            return grad(lambda moving: loss(moving | fixed, x))(moving)  # type: ignore[no-any-return]

        two = {name: leaf.detach().expand(2, *leaf.shape).clone() for name, leaf in leaves.items()}
        fixed = {name: two.pop(name) for name in self._buffers}
        self.network.train()
        try:
            with self.at_once():
                vmap(slope)(two, fixed, torch.stack([x, x]))
        except Exception as error:  # the user's code may raise anything
            return _first_line(error)
        finally:
            self.network.eval()
        return ""

    @contextmanager
    def client(self, round_idx: int, num_rounds: int, local_epochs: int) -> Iterator[None]:
        """A client's turn in a round; afterwards metrics and plain attributes are as they were.

        Args:
            round_idx: the round, from 0.
            num_rounds: of the training.
            local_epochs: of a round.
        """
        kept = [(one, _held(one)) for one in self.network.modules()]
        for metric in self._metrics:
            metric.reset()
        self.run.max_epochs, self._first_epoch = num_rounds * max(local_epochs, 1), round_idx * max(local_epochs, 1)
        self.at_step(0, 1)
        self._has_stepped = False
        try:
            yield
        finally:
            self.run.forget()
            metrics = {id(one) for metric in self._metrics for one in metric.modules()}
            metrics |= {id(one) for one in self.network.modules() if hasattr(one, "_groups_checked")}  # collections
            changed = {f"self.{name}" for one, held in kept for name in _put_back(one, held) if id(one) not in metrics}
            if changed:
                self.say(
                    f"{self.name} changes {', '.join(sorted(changed))} in its steps, which is put back after each "
                    "client; register a buffer for what a model shall keep"
                )

    def at_step(self, step: int, epoch_steps: int) -> None:
        """Set the counters for a local step.

        Args:
            step: the local step of this client in this round, from 0.
            epoch_steps: local steps of a pass over its samples.
        """
        run, self._has_stepped = self.run, True
        run.num_training_batches = epoch_steps
        epoch, run.batch_idx = divmod(step, run.num_training_batches)
        run.current_epoch = self._first_epoch + epoch
        run.global_step = self._first_epoch * run.num_training_batches + step

    def logged(self) -> Leaves:
        """What a client has logged in its turn, [] float64 by name; all clients have the same names.

        A value that a client does not log is NaN, and 0 for a client without steps, which counts nowhere.
        """
        found = self.named(self.run.logged())
        if self.names is None:
            self.names = tuple(found)
        if late := [name for name in found if name not in self.names]:
            self.say(f"{self.name} logs {', '.join(late)} in some steps only, which is not measured")
        absent = torch.full((), math.nan if self._has_stepped else 0.0, dtype=torch.float64)
        return {name: found.get(name, absent) for name in self.names}

    def named(self, logged: Leaves) -> Leaves:
        """What was logged by its key in results; a name that these have already gets `own_` in front, which is said."""
        keys = {name: name.replace("/", "_") for name in logged}
        taken = {name: f"own_{key}" for name, key in keys.items() if key in self.reserved or key.startswith("pi_")}
        for name, key in taken.items():
            self.say(f"{name}, which {self.name} logs, is {key} in results, which have this name already")
        return {taken.get(name, keys[name]): value for name, value in logged.items()}

    def learn_names(self, leaves: Leaves, x: Tensor) -> None:
        """Find out what steps log, by one on made-up samples; if that fails, `names` stay unknown.

        Args:
            leaves: all leaves of one model.
            x: inputs [B, ...], with labels of zeros.
        """
        y = self._no_label.expand(len(x), *self._no_label.shape)
        self.network.train()
        with torch.random.fork_rng(devices=[]), self.client(0, 1, 1):
            try:
                self._step({name: leaf.clone() for name, leaf in leaves.items()}, self.batch(x, y))
            except Exception:  # the user's code may raise anything; a trial on real samples follows
                self.run.forget()
            else:
                self.logged()
        self.network.eval()

    @property
    def _metrics(self) -> list[Any]:
        """Its objects of torchmetrics."""
        return [one for one in self.network.modules() if hasattr(one, "compute") and hasattr(one, "_defaults")]

    @contextmanager
    def _muted(self) -> Iterator[None]:
        """Metrics neither update nor compute within."""
        nothing, kept = torch.full((), math.nan), []  # which no mean takes for a value
        silent: dict[str, Callable[..., Any]] = {
            "forward": lambda *_, **__: nothing, "update": lambda *_, **__: None, "compute": lambda: nothing,
        }  # fmt: skip
        for metric in self._metrics:
            kept.append((metric, {name: vars(metric)[name] for name in silent if name in vars(metric)}))
            vars(metric).update(silent)
        try:
            yield
        finally:
            for metric, before in kept:
                for name in silent:
                    del vars(metric)[name]
                vars(metric).update(before)


def _first_line(error: Exception) -> str:
    """What an exception says first: its first sentence."""
    return str(error).strip().partition("\n")[0].partition(". ")[0]


def _never() -> bool:
    return False


def _held(module: nn.Module) -> dict[str, Any]:
    """Plain attributes of a module, with copies of tensors and containers."""
    return {name: _copied(value) for name, value in vars(module).items() if name not in OF_TORCH}


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    return copy.copy(value) if isinstance(value, CONTAINERS) else value


def _content(held: Any) -> list[Any]:
    return [*held.keys(), *held.values()] if isinstance(held, dict) else [*held]


def _put_back(module: nn.Module, held: dict[str, Any]) -> list[str]:
    """Give a module the attributes that it had; the names of those that differed."""
    here = vars(module)
    changed = [name for name in here if name not in held and name not in OF_TORCH]
    for name in changed:
        del here[name]
    for name, value in held.items():
        if name not in here or not _is_same(here[name], value):
            changed.append(name)
            here[name] = value
    return changed


def _is_same(here: Any, held: Any) -> bool:
    if isinstance(here, Tensor) or isinstance(held, Tensor):
        both = isinstance(here, Tensor) and isinstance(held, Tensor) and here.shape == held.shape
        return both and torch.equal(here, held)
    if isinstance(held, CONTAINERS):
        return type(here) is type(held) and [*map(id, _content(here))] == [*map(id, _content(held))]
    return here is held or (type(here) is type(held) and type(held) in (int, float, str, bool, tuple) and here == held)
