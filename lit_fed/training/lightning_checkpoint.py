"""A client's personal model as checkpoints of Lightning, which the user's own class loads by `load_from_checkpoint`."""

from __future__ import annotations

import importlib.metadata
import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_fed.core.types import Tree
from lit_fed.errors import ConfigError
from lit_fed.rounds import FederatedRounds
from lit_fed.serving import prediction_of
from lit_fed.system.files import write_atomically
from lit_fed.training.export import mixture_of, network_of, save_mixture
from lit_fed.training.output import new_folder

__all__ = ["save_lightning"]


def save_lightning(
    path: Path, federation: FederatedRounds, state: Tree, example: Tensor, client: str = "",
    sets: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write `model.ckpt`, or of a mixture `component_m.ckpt` for each component, and their weights in `mixture.json`.

    Args:
        path: the folder, new or empty.
        federation: the federation that serves the client.
        state: this client's state, see `lit_fed.serving.serve`.
        example: inputs of the right shape and type, [B, ...].
        client: the client's name, for `mixture.json`.
        sets: see `conformal.described`, for `sets.json`; None: there are none.

    Raises:
        ConfigError: if the network is no LightningModule, or the client's prediction is no mixture of models.
    """
    predict, task = prediction_of(federation, state)
    if not hasattr(type(task.network), "load_from_checkpoint"):
        raise ConfigError(
            f"--format lightning writes checkpoints of a LightningModule, and {type(task.network).__name__} is none; "
            "choose --format pt"
        )
    mixture = mixture_of(task, predict, example, federation.name)
    with new_folder(path, owner=True) as partial:
        partial.mkdir(exist_ok=True)
        for name, (_, model) in mixture.items():
            file = partial / f"{name if len(mixture) > 1 else 'model'}.ckpt"
            write_atomically(file, _checkpoint(network_of(task, model), federation))
        save_mixture(partial, mixture, federation.name, client, sets)


def _checkpoint(network: nn.Module, federation: FederatedRounds) -> bytes:
    """The bytes of a checkpoint that the class of a module loads."""
    content: dict[str, Any] = {
        "epoch": federation.server.rounds_done,
        "global_step": federation.server.rounds_done,
        "pytorch-lightning_version": importlib.metadata.version("lightning"),
        "state_dict": network.state_dict(),
        "hyper_parameters": dict(getattr(network, "hparams", None) or {}),
    }
    network.on_save_checkpoint(content)  # type: ignore[operator] # of every LightningModule
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()
