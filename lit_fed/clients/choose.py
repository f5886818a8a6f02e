"""The client trainer that suits a network and a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

from lit_fed.clients.base import ClientTrainer, refuse
from lit_fed.clients.graphed import GraphedTrainer
from lit_fed.clients.sequential import DebugTrainer, SequentialTrainer
from lit_fed.clients.vectorized import VectorizedTrainer
from lit_fed.core.networks.layers import normalises_batches
from lit_fed.core.networks.products import affine_map
from lit_fed.data.data_sets.base import is_first_process
from lit_fed.errors import ConfigError, notice
from lit_fed.system.machine import keep_freed_memory

__all__ = ["MemoryFormat", "choose_trainer"]

MemoryFormat = Literal["auto", "contiguous", "channels_last"]

TRAINERS: dict[str, type[SequentialTrainer]] = {
    "sequential": SequentialTrainer, "graphed": GraphedTrainer, "debug": DebugTrainer,
}  # fmt: skip
"""Those that run clients one after another."""

SMALL_MODEL = 20_000
"""Parameters up to which a dense network is bound by overhead on a CPU, so that clients are better run at once."""


def choose_trainer(
    name: str, network: nn.Module, device: torch.device, memory_format: MemoryFormat = "auto",
    alone: Callable[[], str] = lambda: "",
) -> ClientTrainer:  # fmt: skip
    """The client trainer of this name, which can train the network; `auto` chooses one.

    Args:
        name: `sequential`, `vectorized`, `graphed`, `debug` or `auto`.
        network: the network to train.
        device: its device.
        memory_format: layout of images and convolution weights; `auto` puts the channels last if there are 2-D
            convolutions and clients run one after another.
        alone: says why a trial run cannot run clients at once; "": it can.

    Raises:
        ConfigError: if there is none of this name, or it cannot train the network, or not in this memory format.
    """
    if name not in ("auto", *TRAINERS, "vectorized"):
        raise ConfigError(f"client_trainer is {name}; choose auto, sequential, vectorized, graphed or debug")
    if name == "graphed" and device.type != "cuda":
        raise ConfigError(
            f"--model.client_trainer graphed records CUDA graphs, and the device is {device.type}; use auto or "
            "sequential"
        )
    if name == "auto":
        name = _automatic(network, device)
        if name != "sequential" and not affine_map(network) and (why := alone()):
            if is_first_process():
                notice(f"clients train one after another: {type(network).__name__} has {why}")
            name = "sequential"
    elif name == "vectorized":
        VectorizedTrainer().check(network)  # by its layers, in plainer words
        if not affine_map(network) and (why := alone()):
            raise refuse(why, name)
    if name == "vectorized":
        if memory_format == "channels_last":
            raise ConfigError(
                "--model.memory_format channels_last is for clients one after another; use --model.client_trainer "
                "sequential, or memory_format auto"
            )
        chosen: ClientTrainer = VectorizedTrainer()
    else:
        images = any(isinstance(layer, nn.Conv2d) for layer in network.modules())
        chosen = TRAINERS[name](channels_last=memory_format == "channels_last" or (memory_format == "auto" and images))
    chosen.check(network)
    keep_freed_memory(device)
    return chosen


def _automatic(network: nn.Module, device: torch.device) -> str:
    """On a GPU launches limit small steps, so steps are replayed; on a CPU overhead limits only small dense networks.

    A closed form takes a few products for all clients on either device. Networks that vmap cannot run, and those with
    BatchNorm, whose steps cannot be replayed, train one client after another.
    """
    try:
        VectorizedTrainer().check(network)
    except ConfigError:
        return "sequential"
    if affine_map(network):
        return "vectorized"
    if normalises_batches(network):
        return "sequential"
    if device.type == "cuda":
        return "graphed"
    dense = not any(isinstance(layer, nn.modules.conv._ConvNd) for layer in network.modules())
    small = dense and sum(leaf.numel() for leaf in network.parameters()) <= SMALL_MODEL
    return "vectorized" if small else "sequential"
