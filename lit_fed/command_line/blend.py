"""`lit-fed blend`: finished runs as one run, which serves each client by a mixture of their predictions."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_fed import serving
from lit_fed.callbacks.checkpoint import last_checkpoint
from lit_fed.cli import FederatedCLI
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.core import tree
from lit_fed.core.targets import Binary, Multiclass, Regression, Target
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError, notice
from lit_fed.system.files import given_path, quote
from lit_fed.training.checkpoint import CHECKPOINT_KEY, load_checkpoint
from lit_fed.training.finished_runs import find_run
from lit_fed.training.history import compare_arguments
from lit_fed.training.hooks import federated
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import print_rows
from lit_fed.wrappers.blend import Blend, BlendShared, BlendState, errors_of, negative_log_likelihood, stacked

__all__ = ["blend_parser", "blend_runs"]

OWN = ("algorithm", "solver", "init_seeds")
"""Settings of the section `model` in which runs may differ."""

TEMPERATURES = torch.logspace(-2, 2, 33, base=2, dtype=torch.float64)
"""Temperatures that are tried for a candidate."""


def blend_parser() -> FederatedParser:
    """The arguments of the command."""
    parser = command_parser(
        "blend", "[options] RUN RUN [RUN …] --output DIR",
        "Weights are found on validation samples, which trained none of the runs; they need the same clients, samples "
        "and network. The result is a run: test, predict, personalize, export, compare and report take it.",
    )  # fmt: skip
    parser.add_argument("runs", type=str, nargs="+", metavar="RUN", help="folder of a finished run.")
    parser.add_argument("--output", type=str, default="", help="folder of the new run.")
    parser.add_argument(
        "--prior_weight", type=float, default=1.0, help="samples that the mean weights count for in a client's."
    )
    parser.add_argument("--trust", type=str, action="append", default=[], metavar="MODULE", help="as of `test`.")
    return parser


def blend_runs(arguments: list[str]) -> None:
    """Run the command.

    Raises:
        ConfigError: naming a refused run or argument; nothing has been written then.
    """
    given = blend_parser().parse_args(arguments)
    if not given.output:
        raise ConfigError("--output is not set; give a new folder for the blend")
    output = given_path(given.output, "--output")
    if len(given.runs) < 2:
        raise ConfigError(f"a blend needs at least two runs, and there is one, {quote(given.runs[0])}")
    runs = [_Run.read(Path(one)) for one in given.runs]
    _check_alike(runs)
    trust = [part for one in given.trust for part in ("--trust", one)]
    modules, data = _restored(runs, trust)
    found = _Weights.of(modules, data, given.prior_weight)
    _BlendCLI.keep(runs, TakesRuns(modules, found), output, prior_weight=given.prior_weight)


class _Run(NamedTuple):
    """A finished run."""

    folder: Path
    checkpoint: Path
    arguments: dict[str, Any]
    identity: dict[str, Any]

    @classmethod
    def read(cls, given: Path) -> _Run:
        """Read the last checkpoint of a run.

        Raises:
            ConfigError: if there is none, or it has no arguments of a command line.
        """
        folder = find_run(given)
        checkpoint = folder / "checkpoints" / "last.ckpt"
        if not checkpoint.is_file():
            raise ConfigError(f"{quote(folder)} has no checkpoints/last.ckpt; give the folder of a run of `fit`")
        stored = load_checkpoint(checkpoint, values=False)[CHECKPOINT_KEY]
        if not stored["arguments"]:
            raise ConfigError(f"{quote(folder)} is a run of a Python program, whose settings it does not hold")
        return cls(folder, checkpoint, stored["arguments"], stored["identity"])

    @property
    def solver(self) -> dict[str, Any]:
        """Options of the solver."""
        solver: dict[str, Any] = self.arguments["model"]["solver"]
        options: dict[str, Any] = solver.get("init_args", solver)
        return options

    @property
    def is_searched(self) -> bool:
        """Whether the learning rate was searched on validation samples."""
        return self.solver.get("lr") == "auto"

    @property
    def candidate(self) -> dict[str, Any]:
        """The algorithm and the solver, with the learning rate that was found."""
        solver = self.solver | ({"lr": self.identity["solver"]["lr"]} if self.is_searched else {})
        return {"algorithm": self.arguments["model"]["algorithm"], "solver": solver}


def _check_alike(runs: Sequence[_Run]) -> None:
    """Refuse runs on other clients or samples, or with other networks.

    Raises:
        ConfigError: naming the first difference.
    """
    first = runs[0]
    for one in runs[1:]:
        before, now = ({k: v for k, v in run.arguments["model"].items() if k not in OWN} for run in (first, one))
        found = compare_arguments(before, now, "model.")
        found += compare_arguments(first.arguments["data"], one.arguments["data"], "data.")
        if found:
            raise ConfigError(
                f"{quote(one.folder)} and {quote(first.folder)} differ: {found[0].setting} is {found[0].now} and "
                f"{found[0].before}; a blend needs runs on the same clients and samples, with the same network"
            )
        key = "data (fingerprint)"
        if one.identity[key] != first.identity[key]:
            raise ConfigError(
                f"{quote(one.folder)} and {quote(first.folder)} have other samples or another division of them; a "
                "blend needs runs on the same clients and samples"
            )


# ---------------------------------------------------------------------- the runs
class _Restored(FederatedCLI):
    """A command line up to its objects: runs nothing."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Run no command."""


def _restored(runs: Sequence[_Run], trust: list[str]) -> tuple[list[FederatedModule], FederatedDataModule]:
    """The module of each run with its states, and the data, which they share.

    Raises:
        ConfigError: naming a run that no blend can serve, or if there are no validation samples.
    """
    modules: list[FederatedModule] = []
    data: FederatedDataModule | None = None
    for one in runs:
        own = _Restored(["validate", "--ckpt_path", str(one.checkpoint), *trust])
        data = own.datamodule if data is None else data
        module = federated(own.model)
        _check_served(one, module, data)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # the fit below says what holds for all
            data.setup()
            if not data.populations[0].val.num_samples:
                raise ConfigError(
                    "the runs have no validation samples, which weights are found on; train them with "
                    "--data.val_fraction 0.2"
                )
            own.trainer.validate(own.model, datamodule=data, ckpt_path=str(one.checkpoint), verbose=False)
        if module.federation.terms.task.own is not None:
            raise ConfigError(f"{quote(one.folder)} trains a module by its own steps, which no blend serves yet")
        modules.append(module)
    assert data is not None
    if not isinstance(modules[0].target, Binary | Multiclass | Regression):
        raise ConfigError(
            f"the labels are {modules[0].target.name}, and blends are made of classes and of single real numbers"
        )
    return modules, data


def _check_served(run: _Run, module: FederatedModule, data: FederatedDataModule) -> None:
    """Refuse a run of nodes, and one with features."""
    if data.dataset.is_remote:
        raise ConfigError(f"{quote(run.folder)} trained on nodes, whose validation samples stay there")
    if features := [type(one).__name__ for one in module.settings.features]:
        raise ConfigError(
            f"{quote(run.folder)} has {', '.join(features)}, which no blend serves yet; give runs without"
        )
    if run.is_searched:
        notice(
            f"{quote(run.folder)} chose its learning rate on the validation samples on which its weights are found, "
            "which favours it a little; --model.solver.lr with a number does not"
        )


class _Weights(NamedTuple):
    """Weights of all seen clients, and what they have in common."""

    mixture: Tensor  # [T, K]
    prior: Tensor  # [K]
    spread: Tensor  # [K]

    @classmethod
    def of(cls, modules: Sequence[FederatedModule], data: FederatedDataModule, prior_weight: float) -> _Weights:
        """Weights by the validation samples; the prior is their mean, found with equal ones."""
        target, clients = modules[0].target, list(_predictions(modules, data))
        outputs, labels = (torch.cat(each) for each in zip(*((o, y) for _, o, y in clients), strict=True))
        spread = common_spread(target, outputs, labels)
        losses = [negative_log_likelihood(target, found, y, torch.ones(len(y)), spread) for _, found, y in clients]

        def weights(prior: Tensor) -> Tensor:
            return torch.stack([stacked(one, torch.ones(len(one)), prior, prior_weight) for one in losses])

        rows = torch.tensor([one for one, _, _ in clients])
        prior = weights(torch.ones(len(modules)) / len(modules)).mean(0)
        mixture = prior.repeat(data.populations[0].train.num_clients, 1)
        mixture[rows] = weights(prior)
        return cls(mixture, prior, spread)


def _predictions(modules: Sequence[FederatedModule], data: FederatedDataModule) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each seen client with validation samples its number, outputs [n, K, ...] and labels [n]."""
    for block in data.val_dataloader():
        with torch.no_grad():
            each = [serving.predict_block(one.federation, block, seen=True) for one in modules]
        target, sizes = modules[0].target, each[0].sizes.tolist()
        outputs = torch.stack([target.as_outputs(one.log_prob) for one in each], 1)
        parts = zip(each[0].client_ids.tolist(), outputs.split(sizes), each[0].labels.split(sizes), strict=True)
        yield from (part for part in parts if len(part[2]))


def common_spread(target: Target, outputs: Tensor, labels: Tensor) -> Tensor:
    """Of real numbers the variance of each candidate's errors, of two classes its best temperature, else 1, [K]."""
    if target.continuous:
        return 2 * errors_of(target, outputs, labels).mean(0)
    if target.kind != "binary":
        return torch.ones(outputs.shape[1])
    losses = torch.stack([errors_of(target, outputs / one.to(outputs), labels).mean(0) for one in TEMPERATURES])
    return TEMPERATURES[losses.argmin(0)].to(outputs)


# ---------------------------------------------------------------------- the new run
class TakesRuns(Callback):
    """Replaces the initial states of a blend by those of the runs before its only round."""

    def __init__(self, modules: Sequence[FederatedModule], found: _Weights) -> None:
        self.modules, self.found = modules, found

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        federation, server = federated(pl_module).federation, federated(pl_module).federation.server
        shared = BlendShared(tuple(one.federation.shared for one in self.modules), self.found.prior, self.found.spread)
        server.overwrite(shared)  # type: ignore[attr-defined] # of a `ModuleServer`
        ids = torch.arange(federation.terms.num_clients)
        each = tuple(one.store.gather(ids)["state"] for one in self.modules)
        state = federation.store.template["state"]
        federation.store.stage(ids, tree.rebuild(state, tree.leaves(BlendState(each, self.found.mixture))))
        federation.store.commit()


class _BlendCLI(FederatedCLI):
    """A fit whose only round keeps what the runs have learned."""

    taken: TakesRuns
    runs: Sequence[_Run]

    @classmethod
    def keep(cls, runs: Sequence[_Run], taken: TakesRuns, output: Path, **options: Any) -> None:
        """Write the run of a blend, with options of `Blend`."""
        cls.taken, cls.runs = taken, runs
        arguments = runs[0].arguments
        model = {name: value for name, value in arguments["model"].items() if name not in OWN}
        init_args = {"candidates": [one.candidate for one in runs], **options}
        model["algorithm"] = {"class_path": f"{Blend.__module__}.{Blend.__qualname__}", "init_args": init_args}
        own = {"seed_everything": arguments["seed_everything"], "model": model, "data": arguments["data"]}
        cls([
            "fit", "--config", json.dumps(own), "--name", output.name, "--trainer.default_root_dir", str(output.parent),
            "--trainer.max_epochs", "1", "--trainer.limit_val_batches", "0",
        ])  # fmt: skip

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        trainer.callbacks.insert(0, self.taken)  # type: ignore[attr-defined]
        return trainer

    def after_fit(self) -> None:
        """Measure the test split, and print who serves whom."""
        self.trainer.test(self.model, datamodule=self.datamodule)
        weights = self.taken.found
        largest = weights.mixture.argmax(1)
        rows = [
            [f"pi_{k}", f"{federated(module).algorithm_name} ({run.folder})", f"{float(weights.prior[k]):.2f}"]
            + [f"{int((largest == k).sum())} of {len(largest)}"]
            for k, (run, module) in enumerate(zip(self.runs, self.taken.modules, strict=True))
        ]
        print_rows("weights", ("column", "run", "mean", "largest of clients"), rows, words=2)
        sys.stdout.write(
            f"test, predict, personalize and export take it as --ckpt_path {last_checkpoint(self.trainer)}\n"
        )
