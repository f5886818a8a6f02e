"""A client's personal model as a program, without the data of other clients.

The prediction of an algorithm is split in two: the networks whose outputs it uses, and their combination. Networks
whose outputs have no gradient are omitted, and the part of the combination that depends on states alone is computed
once, so the program holds only what its predictions need. A network of which features are used is part of the
combination.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import importlib.metadata
import io
import json
import math
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from lit_fed.core import tree
from lit_fed.core.named_inputs import NamedInputs
from lit_fed.core.served_models import served_models
from lit_fed.core.task import Task
from lit_fed.core.types import Leaves, ModelState, Tree
from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.data_sets.columns import TableColumns
from lit_fed.data.data_sets.texts import encoding
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import ALL
from lit_fed.errors import ConfigError, notice
from lit_fed.models.adapters import merge_adapters
from lit_fed.rounds import FederatedRounds
from lit_fed.serving import prediction_by_state, prediction_of
from lit_fed.system.files import given_path, whole_file, write_atomically
from lit_fed.system.packages import optional_package
from lit_fed.training.output import check_new_folder, check_writable
from lit_fed.wrappers.base import innermost

__all__ = [
    "PersonalModel", "RawColumns", "check_program_file", "mixture_of", "network_of", "save_clients", "save_mixture",
    "save_program", "traced_for_all", "traced_model",
]  # fmt: skip

ENDINGS = {"pt": ".pt2", "onnx": ".onnx"}
"""File ending of each format."""

FOLDERS = ("peft", "lightning")
"""Formats that are folders."""

OF_FORMATS = "pt, onnx, peft or lightning"

SERIALIZATION_ID = "serialization_id"
"""Entry of a `.pt2` file that changes with its description."""


Predict = Callable[[Task, Tensor], Tensor]
"""Predictions of inputs [N, ...] by a task."""


class Legal(NamedTuple):
    """The legal values of an input, or of every input of a sample; in `about.json`."""

    name: str
    least: float
    most: float
    whole: bool = False  # whole numbers alone
    may_miss: bool = False  # NaN marks a missing value


class LegalInputs(nn.Module):
    """Whether samples have legal inputs.

    Args:
        legal: of each input, or one for all.
        named: whether an error names the input; there may be a thousand.
    """

    least: Any
    most: Any
    whole: Any
    may_miss: Any

    def __init__(self, legal: Sequence[Legal], *, named: bool = False) -> None:
        super().__init__()
        self.legal, self.named = tuple(legal), named
        self.least, self.most, self.whole, self.may_miss = legal[0][1:]
        if len(legal) > 1:  # one is no tensor, which a program would store
            for name, each in zip(Legal._fields[1:], list(zip(*legal, strict=True))[1:], strict=True):
                delattr(self, name)
                self.register_buffer(name, torch.tensor(each))

    def forward(self, x: Tensor) -> Tensor:
        """Whether each sample [N, ...] is legal, [N] bool.

        Raises:
            RuntimeError: if one is not; a program of ONNX goes on.
        """
        within = (x >= self.least) & (x <= self.most)
        if x.is_floating_point():
            if any(one.whole for one in self.legal):
                within = within & ((x - x.round()) * self.whole == 0)
            if any(one.may_miss for one in self.legal):
                within = within | (x.isnan() & self.may_miss)
        within = within.flatten(1)
        for place, one in enumerate(self.legal if self.named else ()):
            torch._assert_async(within[:, place].all(), f"{_in_words(one)}; see legal_inputs of about.json")
        legal: Tensor = within.all(1)
        torch._assert_async(
            legal.all(),
            f"{_in_words(self.legal[0]) if len(self.legal) == 1 else 'an input is not legal'}; see legal_inputs of "
            "about.json",
        )
        return legal


def _in_words(one: Legal) -> str:
    kind = "a whole number" if one.whole else "a number"
    missing = ", or NaN where it is missing" if one.may_miss else ""
    return f"{one.name} is not {kind} from {one.least:g} to {one.most:g}{missing}"


FARTHEST = float(2**24)
"""Largest distance of an input from its training mean in deviations, or from 0; whole numbers are exact so far."""


def legal_inputs(facts: TrainingFacts) -> list[Legal]:
    """The legal inputs of a training: of each, or one for all."""
    if facts.columns is not None:
        return legal_columns(facts.columns, facts.normalisation)
    if facts.inputs is not None:
        ends = {"bool": (0.0, 1.0), "uint8": (0.0, 1.0), "int64": (0.0, FARTHEST)}
        return [
            Legal(one.name, *ends.get(one.kind, (-FARTHEST, FARTHEST)), whole=one.kind in ("bool", "int64"))
            for one in facts.inputs.inputs
            for _ in range(math.prod(one.shape))
        ]
    if not facts.dtype.is_floating_point:
        return [Legal("x", 0, 2**31 - 1, True)]
    return [Legal("x", *((-FARTHEST, FARTHEST) if facts.normalisation is None else (0.0, 1.0)))]


def legal_columns(columns: TableColumns, constants: Normalisation | None, *, raw: bool = False) -> list[Legal]:
    """The legal inputs of a table: encoded, or with `raw` its columns."""
    legal, place = list[Legal](), 0
    for one in columns.features:
        mean, std = (0.0, 1.0) if constants is None else (constants.mean[place], constants.std[place])
        place += len(one.input_names)
        may_miss, is_number = raw and one.fill is not None, one.categories is None
        if is_number:
            legal.append(Legal(one.name, mean - FARTHEST * std, mean + FARTHEST * std, False, may_miss))
        elif raw:  # a number that is no category's is an unknown category
            known = columns.unknown_categories == "error"
            ends = (0.0, len(one.categories or ()) - 1.0) if known else (-FARTHEST, FARTHEST)
            legal.append(Legal(one.name, *ends, True, may_miss))
        legal += [] if raw else [Legal(name, 0.0, 1.0, True) for name in one.input_names[is_number:]]
    return legal


class RawColumns(nn.Module):
    """Inputs [N, W] of columns [N, R]: fills in missing values (NaN), and encodes categories one-hot.

    Args:
        columns: encoding of the training's table.

    Raises:
        ConfigError: if missing values are filled in by each client's own, which only its rows say.
    """

    fill: Tensor
    source: Tensor
    code: Tensor
    kind: Tensor

    def __init__(self, columns: TableColumns) -> None:
        super().__init__()
        if columns.own_fills is not None:
            raise ConfigError(
                "--raw_columns is true, and missing values are filled in by each client's own rows (impute_by client), "
                "which a program does not have; leave --raw_columns out, or train with impute_by all"
            )
        nan, fills, inputs = math.nan, [], []  # of each input: its column, the category's number, and its kind
        for place, one in enumerate(columns.features):
            if one.categories is None:
                fills.append(nan if one.fill is None else float(one.fill))
                inputs.append((place, 0, 0))
            else:
                fills.append(float(one.categories.index(one.fill)) if one.fill in one.categories else -1.0)
                inputs += [(place, code, 1) for code in range(len(one.categories))]
            inputs += [(place, 0, 2)] * one.indicator
        self.columns = columns
        self.register_buffer("fill", torch.tensor(fills, dtype=torch.float64))
        for name, each in zip(("source", "code", "kind"), zip(*inputs, strict=True), strict=True):
            self.register_buffer(name, torch.tensor(each))

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows; a missing number without a fill stays NaN, and an unknown category is in no input."""
        missing = x.isnan()
        known = torch.where(missing, self.fill, x)[:, self.source]
        encoded = torch.where(self.kind == 1, (known == self.code).to(x.dtype), known)
        return torch.where(self.kind == 2, missing[:, self.source].to(x.dtype), encoded)

    @property
    def about(self) -> list[dict[str, Any]]:
        """Name of each column, and its categories in the order of their numbers; None: it is a number."""
        return [
            {"name": one.name, "categories": None if one.categories is None else list(one.categories)}
            for one in self.columns.features
        ]


class PersonalModel(nn.Module):
    """The personal model of one client, in plain PyTorch and evaluation mode.

    Args:
        components: the client's networks.
        combination: maps normalised inputs [N, ...] and the outputs of each component to predictions.
        normalisation: constants that normalise inputs in 0..1; None: inputs are used as they are.
        example: zero inputs [2, ...] of the right shape and type.
        about: description of the model in plain types, for files.
        legal: the legal inputs, of each or one for all.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, components: list[nn.Module], combination: nn.Module, normalisation: Normalisation | None,
        example: Tensor, about: dict[str, Any], legal: Sequence[Legal] = (Legal("x", -FARTHEST, FARTHEST),),
    ) -> None:  # fmt: skip
        super().__init__()
        self.components, self.combination = nn.ModuleList(components), combination
        self.normalisation = normalisation
        if normalisation is not None:
            shape = (-1, *[1] * (example.ndim - 2))
            for name, constants in normalisation._asdict().items():
                self.register_buffer(name, torch.tensor(constants, dtype=example.dtype).view(shape))
        self.example, self.about = example, about
        self._take(legal)
        self.encoder: RawColumns | None = None
        self.own: Leaves = {}
        self.eval()

    def take_client(self, own: Leaves) -> None:
        """Take the numbers of a client as the argument `client`; these are examples, by name."""
        self.own = own
        self.about["client_inputs"] = [
            {"name": name, "shape": [*leaf.shape], "type": str(leaf.dtype).removeprefix("torch.")}
            for name, leaf in own.items()
        ]

    @property
    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Inputs of the right shape and type, by position and by name."""
        return (self.example,), {"client": self.own} if self.own else {}

    def _take(self, legal: Sequence[Legal], *, named: bool = False) -> None:
        self.legal = LegalInputs(legal, named=named)
        self.about["legal_inputs"] = [one._asdict() for one in dict.fromkeys(legal)]

    def take_columns(self, columns: TableColumns | None) -> None:
        """Take the columns of the training's table as inputs [N, R] in place of their encoding.

        Raises:
            ConfigError: if the training was not on a table.
        """
        if columns is None:
            raise ConfigError("--raw_columns is true, and the training was not on a table; leave it out")
        self.encoder = RawColumns(columns)
        self.example = torch.zeros(2, len(columns.features), dtype=self.example.dtype)
        self._take(legal_columns(columns, self.normalisation, raw=True), named=True)
        self.about |= {
            "input_shape": ["N", len(columns.features)],
            "input_names": [one.name for one in columns.features],
            "columns": self.encoder.about,
        }

    def forward(self, x: Tensor, *, client: Leaves | None = None) -> Tensor:
        """Probabilities [N, C] of inputs [N, ...], of sequences [N, L, C]; for regression the predicted values [N].

        Args:
            x: the inputs.
            client: the client's own numbers, of a model of all clients.

        Raises:
            RuntimeError: if an input is not legal; programs of ONNX return NaN for that sample.
        """
        legal = self.legal(x)
        if self.encoder is not None:
            x = self.encoder(x)
        if self.normalisation is not None:
            x = (x - self.mean) / self.std
        x = x.float() if x.dtype == torch.float64 else x  # the mean of a table's column may be far larger than the rest
        own = [] if client is None else [client[name] for name in self.own]
        parts = own or [component(x) for component in self.components]
        found: Tensor = self.combination(x, parts)
        return torch.where(legal.view(-1, *[1] * (found.ndim - 1)), found, math.nan)


class NamedPersonalModel(PersonalModel):
    """The personal model of a network of several inputs, which it takes by name, or of a tuple by position.

    Args:
        inputs: the inputs.
        made: arguments of the base class.
    """

    def __init__(self, inputs: NamedInputs, *made: Any) -> None:
        super().__init__(*made)
        self.inputs = inputs

    @property
    def arguments(self) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        given, named = self.inputs.arguments(self.example)
        return given, named | super().arguments[1]

    def forward(self, *given: Tensor, client: Leaves | None = None, **named: Tensor) -> Tensor:
        """Probabilities or predicted values of inputs [N, ...], as of the base class."""
        return super().forward(self.inputs.joined(*given, **named), client=client)


@dataclass(frozen=True)
class SubstitutedTask(Task):
    """A task with replaced outputs.

    Args:
        source: outputs [B, M, ...] of M models for inputs [B, ...].
    """

    source: Callable[[ModelState, Tensor], Tensor] = field(kw_only=True)

    closed_form = None  # whose products read the number of samples, which programs leave open

    @classmethod
    def of(cls, task: Task, source: Callable[[ModelState, Tensor], Tensor]) -> SubstitutedTask:
        """The task with another source of outputs."""
        return cls(**{one.name: getattr(task, one.name) for one in fields(task)}, source=source)

    def outputs(self, models: ModelState, x: Tensor) -> Tensor:
        return self.source(models, x)


class Asked(NamedTuple):
    """The models whose outputs a prediction used in one call."""

    models: ModelState  # leaves [M, ...]
    counts: list[bool]  # [M] whether the prediction depends on the outputs of each
    shape: tuple[int, ...]  # of one sample's outputs


class Combination(nn.Module):
    """An algorithm's prediction for one client from the outputs of its components.

    Args:
        predict: `log_prob` for a task and inputs [N, ...].
        task: the task.
        asked: the models whose outputs `predict` uses.
    """

    def __init__(self, predict: Predict, task: Task, asked: list[Asked]) -> None:
        super().__init__()
        self.predict, self.task, self.asked = predict, task, asked

    def forward(self, x: Tensor, outputs: list[Tensor]) -> Tensor:
        """The prediction from the outputs of each component, [N, K] or [N, L, K]."""
        calls, remaining = iter(self.asked), iter(outputs)

        def source(models: ModelState, x: Tensor) -> Tensor:
            _, counts, shape = next(calls)
            nothing = x.new_zeros(x.shape[0], *shape, dtype=self.task.dtype)
            return torch.stack([next(remaining) if one else nothing for one in counts], dim=1)

        prediction = self.predict(SubstitutedTask.of(self.task, source), x)
        return self.task.target.in_units(self.task.target.shown(prediction))


class AnyClient(nn.Module):
    """The prediction as a function of inputs and leaves of a client's state, which its models may be.

    Args:
        federation: the federation that serves the clients.
        state: the state of some client.
        own: names of the leaves that are inputs; the others are constants.
    """

    def __init__(self, federation: FederatedRounds, state: Tree, own: list[str]) -> None:
        super().__init__()
        self.predict, self.task = prediction_by_state(federation)
        self.state, self.own = state, own
        self.network = copy.deepcopy(self.task.network).cpu().eval()

    def forward(self, x: Tensor, own: list[Tensor]) -> Tensor:
        """The prediction of inputs [N, ...] for the client with these leaves."""
        leaves = _by_name(self.state) | dict(zip(self.own, own, strict=True))
        state, task = tree.rebuild(self.state, list(leaves.values())), self.task

        def source(models: ModelState, x: Tensor) -> Tensor:
            each = (tree.index(models, m) for m in range(len(next(iter(models.parameters.values())))))
            outputs = [functional_call(self.network, (*model, task.frozen), (x,)) for model in each]
            return torch.stack(outputs, dim=1).to(task.dtype)

        prediction = self.predict(SubstitutedTask.of(task, source), state, x)
        return task.target.in_units(task.target.shown(prediction))


def traced_model(
    federation: FederatedRounds, facts: TrainingFacts, state: Tree, example: Tensor, client: str = "",
    sets: dict[str, Any] | None = None,
) -> PersonalModel:  # fmt: skip
    """The personal model of a client with this state.

    Args:
        federation: the federation that serves the client.
        facts: what it was built from; the module normalises inputs in 0..1 with their constants.
        state: this client's state, see `lit_fed.serving.serve`.
        example: any inputs of the right shape and type, [B, ...].
        client: the client's name, for files.
        sets: see `conformal.described`; None: there are none.

    Raises:
        ConfigError: if the algorithm's prediction cannot be traced, with PyTorch's reason.
    """
    example = _blank(example)
    predict, task = prediction_of(federation, state)
    if task.own is not None:
        task.own.check_program()
    asked = asked_models(predict, task, example)
    components = [
        merge_adapters(network_of(task, tree.index(models, m)).to(task.dtype))
        for models, counts, _ in asked
        for m, one in enumerate(counts)
        if one
    ]
    with torch.no_grad():
        outputs = [component(example) for component in components]
    traced = _traced(Combination(predict, task, asked), (example, outputs), {}, name=federation.name)
    return _personal_model(federation, facts, components, _folded(traced, federation.name), example, client, sets)


def traced_for_all(
    federation: FederatedRounds, facts: TrainingFacts, state: Tree, example: Tensor, client: str = ALL,
    sets: dict[str, Any] | None = None,
) -> PersonalModel:  # fmt: skip
    """The model of all clients: takes a client's own numbers, the leaves of its state that its prediction depends on.

    Args:
        federation: the federation that serves the clients.
        facts: as for `traced_model`.
        state: the state of any client.
        example: as for `traced_model`.
        client: stands for all clients in files.
        sets: as for `traced_model`.

    Raises:
        ConfigError: if the prediction cannot be traced, or finds the models of a client by its number.
    """
    example, task = _blank(example), federation.terms.task
    if task.own is not None:
        task.own.check_program()
    state = tree.map_leaves(lambda leaf: leaf.detach().cpu(), state)
    leaves = _by_name(state)
    for _ in range(2):  # the second time without leaves that the prediction does not use
        own = list(leaves.values())
        whole = _traced(AnyClient(federation, state, list(leaves)), (example, own), {}, name=federation.name)
        combination = _folded(whole, federation.name)
        inputs = [node for node in combination.graph.nodes if node.op == "placeholder"][1:]
        leaves = {name: leaf for (name, leaf), node in zip(leaves.items(), inputs, strict=True) if node.users}
    if numbers := [name for name, leaf in leaves.items() if not leaf.is_floating_point()]:
        raise ConfigError(
            f"--client all: {federation.name} predicts by {', '.join(numbers)} of a client, which is no input of a "
            "program for all; export its clients one by one"
        )
    if not leaves:
        raise ConfigError(
            f"--client all: {federation.name} serves all clients by the same model; export one, such as --client 0"
        )
    model = _personal_model(federation, facts, [], combination, example, client, sets)
    model.take_client(leaves)
    return model


def _by_name(state: Tree) -> Leaves:
    """The leaves of a state by their paths, which begin below the wrappers."""
    found: Leaves = {}
    for path, leaf in tree.items(state):
        short = re.sub("^(inner/)+", "", path)
        found[(path if short.replace("/", ".") in found else short).replace("/", ".")] = leaf
    return found


def _blank(example: Tensor) -> Tensor:
    """Two zero inputs like an example."""
    return torch.zeros(2, *example.shape[1:], dtype=example.dtype)


def _personal_model(
    federation: FederatedRounds, facts: TrainingFacts, components: list[nn.Module], combination: nn.Module,
    example: Tensor, client: str, sets: dict[str, Any] | None,
) -> PersonalModel:  # fmt: skip
    shown = example if facts.columns is None else example.double()  # as the columns of a table are read
    about = _about(federation, facts, client, shown) | (sets or {})
    made = components, combination, facts.normalisation, shown, about, legal_inputs(facts)
    return PersonalModel(*made) if facts.inputs is None else NamedPersonalModel(facts.inputs, *made)


def asked_models(predict: Predict, task: Task, x: Tensor) -> list[Asked]:
    """The models whose outputs a prediction uses, and which of these outputs have a gradient."""
    rng, calls = torch.Generator().manual_seed(0), []
    with torch.no_grad():
        shape = copy.deepcopy(task.network).cpu().eval()(x).shape

    def source(models: ModelState, x: Tensor) -> Tensor:
        num_models = len(next(iter(models.parameters.values())))
        outputs = torch.randn(len(x), num_models, *shape[1:], generator=rng, dtype=task.dtype).requires_grad_()
        calls.append((models, outputs))
        return outputs

    prediction = predict(SubstitutedTask.of(task, source), x)
    if not calls:
        return []
    weight = torch.randn(prediction.shape, generator=rng, dtype=prediction.dtype)
    gradients = torch.autograd.grad(
        prediction, [outputs for _, outputs in calls], weight, allow_unused=True, materialize_grads=True
    )
    counts = [gradient.transpose(0, 1).flatten(1).any(1).tolist() for gradient in gradients]
    return [Asked(models, one, tuple(shape[1:])) for (models, _), one in zip(calls, counts, strict=True)]


def mixture_of(task: Task, predict: Predict, example: Tensor, algorithm: str) -> dict[str, tuple[float, ModelState]]:
    """Weight and model of each component that serves a client, by name; those of weight 0 are omitted.

    Raises:
        ConfigError: if the prediction is no mixture of models.
    """
    served = served_models(predict, task, example)
    if served is None:
        raise ConfigError(
            f"{algorithm} does not predict by a mixture of models with fixed weights, so no files of these models "
            "predict as it does; choose --format pt"
        )
    shares = enumerate(served.weights.tolist())
    return {f"component_{m}": (share, tree.index(served.models, m)) for m, share in shares if share}


def save_mixture(
    folder: Path, mixture: dict[str, tuple[float, ModelState]], algorithm: str, client: str, sets: dict[str, Any] | None
) -> None:
    """Write `mixture.json`, the weights of several components, and `sets.json`, the entry `sets` of programs."""
    if len(mixture) > 1:
        about = {"client": client, "algorithm": algorithm, "weights": {name: one[0] for name, one in mixture.items()}}
        (folder / "mixture.json").write_text(json.dumps(about, indent=2) + "\n")
    for name, content in (sets or {}).items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def network_of(task: Task, model: ModelState) -> nn.Module:
    """A copy of the network with the parameters and buffers of one model, and the frozen ones."""
    network = copy.deepcopy(task.network).cpu().to(memory_format=torch.contiguous_format).eval()
    given = task.frozen | model.parameters | model.buffers
    with torch.no_grad():
        for name, leaf in (*network.named_parameters(), *network.named_buffers()):
            leaf.copy_(given[name])
    return network


def _about(federation: FederatedRounds, facts: TrainingFacts, client: str, example: Tensor) -> dict[str, Any]:
    """Description of a model for its file."""
    target, normalisation = facts.target, facts.normalisation
    holds = getattr(innermost(federation.algorithm), "program_holds", None)
    several, texts = [] if facts.inputs is None else facts.inputs.inputs, encoding(facts.texts, facts.stored_type)
    given = [
        {"name": one.name, "shape": ["N", *one.shape], "type": one.kind.replace("uint8", "float32")} for one in several
    ]
    return (
        {
            "client": client,
            "algorithm": federation.name,
            "rounds": federation.server.rounds_done,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {"lit_fed": importlib.metadata.version("lit-fed"), "torch": torch.__version__},
            "network": type(federation.terms.task.network).__name__,
            "input_shape": ["N", *example.shape[1:]],
            "input_type": str(example.dtype).removeprefix("torch."),
            "input_names": None if facts.columns is None else facts.columns.input_names,
            "normalisation": None if normalisation is None else normalisation._asdict(),
            "output": "value" if target.continuous else "probabilities",
            "classes": None if target.continuous else list(facts.class_names or range(target.num_classes)),
        }
        | ({"inputs": given} if given else {})
        | ({"texts": texts | {"length": facts.input_shape[0]}} if texts else {})
        | ({} if holds is None else {"holds": holds})
    )


def _traced(
    model: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], *, name: str
) -> torch.export.ExportedProgram:
    """The program of a module for any number of samples.

    Raises:
        ConfigError: if the module cannot be exported, with PyTorch's reason.
    """
    batch = {0: torch.export.Dim.DYNAMIC}
    several = None if isinstance(model, AnyClient) else batch  # a client's numbers have no axis of samples
    shapes: Any = tuple(batch if isinstance(one, Tensor) else [several] * len(one) for one in inputs)
    if isinstance(model, NamedPersonalModel):
        shapes = (shapes,)
    if named:
        given = dict(zip(("given",) if isinstance(model, NamedPersonalModel) else ("x",), shapes, strict=True))
        shapes = {name: one for name, one in given.items() if one} | {
            name: batch if isinstance(one, Tensor) else dict.fromkeys(one) for name, one in named.items()
        }
    try:
        with torch.no_grad(), warnings.catch_warnings():
            # an LSTM lists its own parameters anew
            warnings.filterwarnings("ignore", "The tensor attributes? .* assigned during export")
            return torch.export.export(model, inputs, named, dynamic_shapes=shapes)
    except Exception as error:
        raise ConfigError(
            f"{name} cannot be exported ({_reason(error)}); its forward pass must be traceable by torch.export, for "
            "any number of samples"
        ) from error


def _reason(error: BaseException) -> str:
    """The first cause of an error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _folded(program: torch.export.ExportedProgram, name: str) -> fx.GraphModule:
    """The program with constant expressions folded; other constants are dropped.

    Raises:
        ConfigError: if a part has a program of its own, as under `torch.enable_grad`.
    """
    traced = program.module()
    graph, known = traced.graph, dict[fx.Node, Any]()
    for node in list(graph.nodes):
        if node.op == "call_module":  # input checks, which the whole program repeats
            graph.erase_node(node)
    graph.eliminate_dead_code()  # outputs of a pass for features
    for node in graph.nodes:
        if node.op == "get_attr":
            known[node] = _attribute(traced, node.target)
        elif node.op == "call_function" and all(one in known for one in node.all_input_nodes):
            arguments = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            known[node] = node.target(*arguments[0], **arguments[1])
    constants: dict[str, Any] = {}
    for node, value in reversed(known.items()):
        if node.users:  # the nodes that can be computed themselves are gone by now
            if not isinstance(value, Tensor):
                raise ConfigError(f"{name} takes gradients to predict, which no program for all clients does; name one")
            node.op, node.target, node.args, node.kwargs = "get_attr", f"constant_{len(constants)}", (), {}
            constants[node.target] = value.detach().clone(memory_format=torch.contiguous_format)  # not a view
        else:
            graph.erase_node(node)
    return fx.GraphModule(constants, graph)


def _attribute(module: nn.Module, target: str) -> Any:
    path, _, name = target.rpartition(".")
    return getattr(module.get_submodule(path), name)


# ------------------------------------------------------------------ files
def check_program_file(output: str | Path, format: str, *, every: bool = False) -> Path:
    """The file of a program, or the folder of adapters or of the models of all clients, with `~` expanded.

    Raises:
        ConfigError: if the format or the file's ending is unknown, the file exists, its folder cannot be written or a
            package is missing.
    """
    path = given_path(str(output), "--output")
    if format not in (*ENDINGS, *(() if every else FOLDERS)):
        all_of = " with --client all" * every
        raise ConfigError(f"--format is {format}{all_of}; choose {'pt or onnx' if every else OF_FORMATS}")
    if format == "peft":
        optional_package("peft", "peft>=0.21,<1", "lora", "--format peft")
    for package in ("onnx", "onnxscript") if format == "onnx" else ():
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f'--format onnx needs the package {package}; pip install "onnx>=1.17" "onnxscript>=0.5", or choose pt'
            ) from error
    if every or format in FOLDERS:
        return check_new_folder(output)
    if path.suffix != ENDINGS[format]:
        raise ConfigError(
            f"--output {path}: a program of --format {format} is written as {ENDINGS[format]}; end the file's name in "
            "it, or choose the other format"
        )
    if path.exists():
        raise ConfigError(f"--output {path} exists; choose a new file, or delete it first")
    check_writable(path.parent, "--output")
    return path


def save_program(model: PersonalModel, path: Path, format: str = "pt") -> None:
    """Write a model as a program that runs without lit_fed and takes no gradients; the model is frozen, too.

    Args:
        model: the model.
        path: the file, `.pt2` or `.onnx`.
        format: `pt` for `torch.export`, or `onnx`.

    Raises:
        ConfigError: if the model cannot be traced or written in the format.
    """
    if "holds" in model.about:
        notice(
            f"{path.name} holds {model.about['holds']}, which may reveal them; give it only to those who may see them"
        )
    model.requires_grad_(False)
    program = _traced(model, *model.arguments, name=model.about["network"])
    program.example_inputs = None  # the only part that PyTorch would pickle
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    written = _torch_program if format == "pt" else _onnx_program
    write_atomically(path, written(program, model.about))


def save_clients(folder: Path, own: Iterable[str], states: Tree, names: Sequence[str]) -> None:
    """Write what a program of all clients takes of each, `clients/<name>.npz`.

    Args:
        folder: the folder of the program.
        own: names of the numbers.
        states: the states of some clients, leaves [C, ...].
        names: their names, [C].

    Raises:
        ConfigError: if a name is no file's.
    """
    (folder / "clients").mkdir(parents=True, exist_ok=True)
    leaves = {name: leaf.detach().cpu().numpy() for name, leaf in _by_name(states).items()}
    for row, name in enumerate(names):
        if Path(name).name != name:
            raise ConfigError(f"--client all writes a file for each client, and {name!r} names none; rename it")
        with whole_file(folder / "clients" / f"{name}.npz", private=True) as file:
            np.savez(file, **{one: leaves[one][row] for one in own})


def _torch_program(program: torch.export.ExportedProgram, about: dict[str, Any]) -> bytes:
    def saved(**files: str) -> io.BytesIO:
        buffer = io.BytesIO()
        torch.export.save(program, buffer, extra_files=files)
        return buffer

    with zipfile.ZipFile(saved()) as archive:
        entries = [archive.read(name) for name in sorted(archive.namelist()) if not name.endswith(SERIALIZATION_ID)]
    about = about | {"illegal_inputs": "RuntimeError"}
    return saved(**{"about.json": _with_digest(about, entries)}).getvalue()


def _with_digest(about: dict[str, Any], parts: Iterable[bytes]) -> str:
    """The description of a program, with the SHA-256 of its file without it."""
    return json.dumps(about | {"digest": hashlib.sha256(b"".join(parts)).hexdigest()})


def _onnx_program(program: torch.export.ExportedProgram, about: dict[str, Any]) -> bytes:
    names = [one["name"] for one in about.get("inputs", ({"name": "x"},))]
    own = [one["name"] for one in about.get("client_inputs", ())]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's, of its own code
            converted = torch.onnx.export(
                program, dynamo=True, input_names=names + own, output_names=[about["output"]],
                dynamic_shapes=({0: "N"},) * len(names) + (None,) * len(own), verbose=False,
            )  # fmt: skip
    except Exception as error:
        raise ConfigError(
            f"{about['network']} cannot be written as ONNX ({_reason(error)}); choose --format pt"
        ) from error
    assert converted is not None
    # the errors of `LegalInputs` are left out by the conversion
    about = about | {"illegal_inputs": "NaN in all outputs of the sample"}
    description = _with_digest(about, [converted.model_proto.SerializeToString()])
    converted.model.metadata_props["lit_fed"] = description
    return converted.model_proto.SerializeToString()  # type: ignore[no-any-return]
