"""A client's personal model as adapters of the library peft, which peft and transformers load onto the frozen network.

A mixture of probabilities is no single network, so the adapters of its components are not merged: each component is a
folder of its own, and `mixture.json` has their weights. The folder holds the frozen network only if its weights are
random, since others are where the training read them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lit_fed.core import tree
from lit_fed.core.task import Task
from lit_fed.core.types import ModelState, Tree
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.models.adapters import adapters_of, remove_adapters
from lit_fed.models.hugging_face import HuggingFaceCausalLM, HuggingFaceClassifier, silenced
from lit_fed.rounds import FederatedRounds
from lit_fed.serving import prediction_of
from lit_fed.system.packages import optional_package
from lit_fed.training.export import (
    PersonalModel,
    Predict,
    SubstitutedTask,
    asked_models,
    network_of,
    save_program,
    traced_model,
)
from lit_fed.training.lightning_checkpoint import save_lightning
from lit_fed.training.output import new_folder

__all__ = ["save_adapters", "save_client"]

ROWS = 64
"""Number of random outputs from which mixture weights are recovered, for labels without positions."""

EQUATIONS = 4096
"""Probabilities that the weights are solved from."""

TOLERANCE = 1e-4
"""Largest difference of probabilities from those of a mixture, by rounding."""


def save_client(
    path: Path, format: str, federation: FederatedRounds, facts: TrainingFacts, state: Tree, example: Tensor,
    client: str = "", *, raw_columns: bool = False,
) -> PersonalModel | None:  # fmt: skip
    """Write a client's personal model in a format of `export`; returns it, but for `peft`."""
    if format == "peft":
        if raw_columns:
            raise ConfigError("--raw_columns is true, and --format peft writes adapters of texts; leave it out")
        save_adapters(path, federation, state, example, client)
        return None
    if format == "lightning":
        save_lightning(path, federation, state, example, client)
        return None
    model = traced_model(federation, facts, state, example, client)
    if raw_columns:
        model.take_columns(facts.columns)
    save_program(model, path, format)
    return model


def save_adapters(path: Path, federation: FederatedRounds, state: Tree, example: Tensor, client: str = "") -> None:
    """Write the adapters that serve a client, `adapter_config.json` and `adapter_model.safetensors`.

    A mixture of several components has a folder `component_m` for each that counts, and their weights in
    `mixture.json`. Without trained weights, the frozen network is in the folder `base`.

    Args:
        path: the folder, new or empty.
        federation: the federation that serves the client.
        state: this client's state, see `lit_fed.serving.serve`.
        example: any inputs of the right shape and type, [B, ...].
        client: the client's name, for `mixture.json`.

    Raises:
        ConfigError: if the network is none of transformers with adapters, the client's prediction is no mixture of
            networks, or a trained matrix has two places.
    """
    predict, task = prediction_of(federation, state)
    if not isinstance(task.network, HuggingFaceCausalLM | HuggingFaceClassifier) or not adapters_of(task.network):
        raise ConfigError(
            f"--format peft writes adapters of a network of transformers, and {type(task.network).__name__} has none; "
            "train with --model.lora_rank and --model.network HuggingFaceCausalLM or HuggingFaceClassifier, or choose "
            "--format pt"
        )
    x = torch.zeros(2 if task.target.positions else ROWS, *example.shape[1:], dtype=example.dtype)
    weights, models = _mixture(predict, task, x, federation.name)
    transformers = optional_package("transformers", "transformers>=5.24,<6", "transformers", "--format peft")
    settings = _settings(task.network, models[0].parameters.keys() | models[0].buffers.keys())
    with new_folder(path, owner=True) as partial:
        if settings.base_model_name_or_path is None:
            with silenced(transformers):
                base: Any = remove_adapters(_library(task, models[0]))
                base.save_pretrained(partial / "base")
        for m, model in zip(weights, models, strict=True):
            _save(partial / f"component_{m}" if len(weights) > 1 else partial, _library(task, model), settings)
        if len(weights) > 1:
            named = {f"component_{m}": share for m, share in weights.items()}
            about = {"client": client, "algorithm": federation.name, "weights": named}
            (partial / "mixture.json").write_text(json.dumps(about, indent=2) + "\n")


def _mixture(predict: Predict, task: Task, x: Tensor, algorithm: str) -> tuple[dict[int, float], list[ModelState]]:
    """Weight and model of each component that counts.

    The weights solve the linear equations of the predicted probabilities of random outputs, whose solution is exact up
    to rounding if the prediction is a mixture.
    """
    asked = asked_models(predict, task, x)

    def shown(prediction: Tensor) -> Tensor:
        return task.target.shown(prediction).double().flatten()

    if len(asked) == 1:
        models, counts, shape = asked[0]
        outputs = torch.randn(len(x), len(counts), *shape, generator=torch.Generator().manual_seed(1), dtype=task.dtype)
        mixed = shown(predict(SubstitutedTask.of(task, lambda *_: outputs), x))
        one = torch.ones(1, dtype=task.dtype)
        used = [m for m, one in enumerate(counts) if one]
        each = [shown(task.mix(one, outputs[:, m : m + 1])) for m in used]
        parts = torch.stack(each, 1)
        weights = torch.linalg.lstsq(parts[:EQUATIONS], mixed[:EQUATIONS]).solution
        if (parts @ weights - mixed).abs().max() < TOLERANCE and weights.min() > -TOLERANCE:
            shares = (weights.clamp(min=0) / weights.clamp(min=0).sum()).tolist()
            return dict(zip(used, shares, strict=True)), [tree.index(models, m) for m in used]
    raise ConfigError(
        f"{algorithm} does not predict by a mixture of networks with fixed weights, so its adapters alone do not "
        "predict as it does; choose --format pt"
    )


# ------------------------------------------------------------------ files
def _settings(network: Any, trained: Iterable[str]) -> Any:
    """The configuration of the adapters as peft reads it, with names of modules of the network of transformers."""
    peft = optional_package("peft", "peft>=0.21,<1", "lora", "--format peft")
    adapters = adapters_of(network.model)
    one = next(iter(adapters.values()))
    random = {f"model.{name}" for name in network.random} - set(trained)
    return peft.LoraConfig(
        r=one.r["default"], lora_alpha=one.lora_alpha["default"], fan_in_fan_out=one.fan_in_fan_out,
        target_modules=sorted(adapters), modules_to_save=_saved_whole(network.model, trained) or None,
        base_model_name_or_path=None if random else network.weights, inference_mode=True,
        task_type="CAUSAL_LM" if network.keeps_head else None,
    )  # fmt: skip


def _library(task: Task, model: ModelState) -> Any:
    """The network of transformers with the leaves of one model."""
    return network_of(task, model).model


def _saved_whole(library: nn.Module, trained: Iterable[str]) -> list[str]:
    """Modules with leaves that are trained beside the adapters, or with statistics."""
    state = library.state_dict(keep_vars=True)  # without buffers that are made anew
    leaves = {name.removeprefix("model.") for name in trained if "lora_" not in name} & state.keys()
    for name in sorted(leaves):
        if sum(other is state[name] for other in state.values()) > 1:
            raise ConfigError(
                f"--format peft: the trained {name} is also another layer's, which peft would separate; train adapters "
                "alone, or choose --format pt"
            )
    return sorted({name.rpartition(".")[0] for name in leaves})


def _save(folder: Path, network: Any, settings: Any) -> None:
    """Write the configuration, and the leaves of adapters and of modules that are saved whole by the names of peft."""
    whole = tuple(f"{name}." for name in settings.modules_to_save or ())
    leaves = {
        f"base_model.model.{name.replace('.default', '')}": leaf.contiguous()
        for name, leaf in network.state_dict().items()
        if "lora_" in name or name.startswith(whole)
    }
    settings.save_pretrained(folder)
    write = optional_package("safetensors.torch", "safetensors", "lora", "--format peft").save_file
    write(leaves, folder / "adapter_model.safetensors", metadata={"format": "pt"})
