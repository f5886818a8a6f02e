"""A client's personal model as adapters of the library peft, which peft and transformers load onto the frozen network.

A mixture of probabilities is no single network, so the adapters of its components are not merged: each component is a
folder of its own, and `mixture.json` has their weights. The folder holds the frozen network only if its weights are
random, since others are where the training read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lit_fed.core.task import Task
from lit_fed.core.types import ModelState, Tree
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.models.adapters import adapters_of, remove_adapters
from lit_fed.models.hugging_face import HuggingFaceCausalLM, HuggingFaceClassifier, silenced
from lit_fed.rounds import FederatedRounds
from lit_fed.serving import prediction_of
from lit_fed.system.packages import optional_package
from lit_fed.training.export import PersonalModel, mixture_of, network_of, save_mixture, save_program, traced_model
from lit_fed.training.lightning_checkpoint import save_lightning
from lit_fed.training.output import new_folder

__all__ = ["save_adapters", "save_client"]


def save_client(
    path: Path, format: str, federation: FederatedRounds, facts: TrainingFacts, state: Tree, example: Tensor,
    client: str = "", sets: dict[str, Any] | None = None, *, raw_columns: bool = False,
) -> PersonalModel | None:  # fmt: skip
    """Write a client's personal model in a format of `export`; returns it, but for `peft`."""
    if format == "peft":
        if raw_columns:
            raise ConfigError("--raw_columns is true, and --format peft writes adapters of texts; leave it out")
        save_adapters(path, federation, state, example, client, sets)
        return None
    if format == "lightning":
        save_lightning(path, federation, state, example, client, sets)
        return None
    model = traced_model(federation, facts, state, example, client, sets)
    if raw_columns:
        model.take_columns(facts.columns)
    save_program(model, path, format)
    return model


def save_adapters(
    path: Path, federation: FederatedRounds, state: Tree, example: Tensor, client: str = "",
    sets: dict[str, Any] | None = None,
) -> None:  # fmt: skip
    """Write the adapters that serve a client, `adapter_config.json` and `adapter_model.safetensors`.

    A mixture of several components has a folder `component_m` for each that counts, and their weights in
    `mixture.json`. Without trained weights, the frozen network is in the folder `base`.

    Args:
        path: the folder, new or empty.
        federation: the federation that serves the client.
        state: this client's state, see `lit_fed.serving.serve`.
        example: any inputs of the right shape and type, [B, ...].
        client: the client's name, for `mixture.json`.
        sets: see `conformal.described`, for `sets.json`; None: there are none.

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
    mixture = mixture_of(task, predict, example, federation.name)
    transformers = optional_package("transformers", "transformers>=5.24,<6", "transformers", "--format peft")
    first = next(iter(mixture.values()))[1]
    settings = _settings(task.network, first.parameters.keys() | first.buffers.keys())
    with new_folder(path, owner=True) as partial:
        if settings.base_model_name_or_path is None:
            with silenced(transformers):
                base: Any = remove_adapters(_library(task, first))
                base.save_pretrained(partial / "base")
        for name, (_, model) in mixture.items():
            _save(partial / name if len(mixture) > 1 else partial, _library(task, model), settings)
        save_mixture(partial, mixture, federation.name, client, sets)


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
