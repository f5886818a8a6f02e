"""`lit-fed blend`: finished runs as one run, which serves each client by a mixture of their predictions."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_fed import serving
from lit_fed.callbacks.checkpoint import last_checkpoint
from lit_fed.cli import FederatedCLI
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.core import tree
from lit_fed.core.blocks import serving_blocks
from lit_fed.core.local_solver import is_searched
from lit_fed.core.targets import Target
from lit_fed.core.types import ServingBlock, Tree
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.metrics.summary import RunSummary
from lit_fed.metrics.verdict import EVIDENCE, constant_scores, in_words, probabilities, verdict_row
from lit_fed.rounds import FederatedRounds
from lit_fed.system.files import given_path, owner_only, quote
from lit_fed.system.packages import pd
from lit_fed.training.checkpoint import CHECKPOINT_KEY, load_checkpoint
from lit_fed.training.finished_runs import find_run
from lit_fed.training.history import compare_arguments
from lit_fed.training.hooks import federated, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import print_line, print_rows, write_table
from lit_fed.wrappers.base import AlgorithmWrapper
from lit_fed.wrappers.blend import (
    Blend,
    BlendShared,
    BlendState,
    calibrated,
    errors_of,
    held_out,
    negative_log_likelihood,
    stacked,
    why_not,
)
from lit_fed.wrappers.feature import features

__all__ = ["Restored", "TakesRuns", "Weights", "blend", "blend_parser", "blend_runs", "most_likely", "predictions"]

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Samples that the common weights may count for; validation samples choose."""

OWN = ("algorithm", "solver", "serving", "init_seeds")
"""Settings of the section `model` in which runs may differ, beside those of features that act on messages alone."""

SAMPLING = ("clients_per_round", "client_sampling")
"""Settings of the section `data` in which runs may differ."""

COSTS = ("seconds", "comm/total_bytes_up", "comm/total_bytes_down")
"""Entries of a summary that are those of the runs together."""

TEMPERATURES = torch.logspace(-2, 2, 33, base=2, dtype=torch.float64)
"""Temperatures that are tried for a candidate."""


PRIVATE = (
    "privacy: ε covers the training samples alone. Weights and verdict of a client are found from its own validation "
    "and test samples, and are not released: only their owner may read the files of this run"
)
"""A line for blends of private runs."""


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
        "--prior_weight", type=float | None,
        help="samples that the common weights count for in a client's; by default the number in "
        f"{', '.join(f'{one:g}' for one in STRENGTHS)} that predicts held-out validation samples best.",
    )  # fmt: skip
    parser.add_argument(
        "--alone", type=str | None,
        help="folder of a further run, of Local: it serves clients whose validation samples do not speak for the "
        "blend, and each client's gain over it is written.",
    )  # fmt: skip
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
    blend([Path(one) for one in given.runs], output, given.prior_weight, given.alone and Path(given.alone), given.trust)


def blend(
    folders: Sequence[Path], output: Path, prior_weight: float | None = None, alone: Path | None = None,
    trusted: Sequence[str] = (), *, half: bool = False,
) -> None:  # fmt: skip
    """Make the run of a blend.

    Args:
        folders: of the runs.
        output: folder of the new run.
        prior_weight: as of `Blend`; None: it is chosen among `STRENGTHS`.
        alone: folder of a run of Local, the last candidate; None: there is no such fallback.
        trusted: modules whose classes checkpoints may name.
        half: by every second validation sample alone; so it is anyway where some searched a learning rate.

    Raises:
        ConfigError: naming a refused run; nothing has been written then.
    """
    runs = [_Run.read(one) for one in [*folders, *([] if alone is None else [alone])]]
    if len(runs) < 2:
        raise ConfigError(f"a blend needs at least two runs, and there is one, {quote(runs[0].folder)}")
    _check_alike(runs)
    modules, data = _restored(runs, [part for one in trusted for part in ("--trust", one)])
    if alone is not None and (name := modules[-1].algorithm_name) != "Local":
        raise ConfigError(f"--alone {alone} is a run of {name}, which learns from other clients; give one of Local")
    half |= any(one.is_searched for one in runs)
    private = any(one.settings.is_private for one in modules)
    found = Weights.of(modules, data, prior_weight, half=half, falls_back=alone is not None, private=private)
    print_line(f"weights: those of all samples together count for {found.prior_weight:g} samples of a client")
    if private:
        print_line(PRIVATE)
    _BlendCLI.keep(runs, TakesRuns(modules, found), output, prior_weight=found.prior_weight, is_private=private)


def most_likely(folders: Sequence[Path]) -> Path:
    """The folder of the run with the smallest loss on the validation samples that search learning rates; says all.

    Args:
        folders: of runs that differ in their algorithm's settings.
    """
    runs = [_Run.read(one) for one in folders]
    modules, data = _restored(runs, [])
    seen, target = data.populations[0], modules[0].target
    blocks = serving_blocks(seen.val.every_other(0), seen.train, clients_per_block=data.block_size)
    losses = torch.cat([errors_of(target, outputs, y) for _, outputs, y in predictions(modules, blocks)]).mean(0)
    best = folders[int(losses.argmin())]
    each = ", ".join(f"{one.name} {loss:.4g}" for one, loss in zip(folders, losses.tolist(), strict=True))
    print_line(f"validation loss: {each}; {best.name} is a candidate")
    return best


class _Run(NamedTuple):
    """A finished run."""

    folder: Path
    checkpoint: Path
    arguments: dict[str, Any]
    identity: dict[str, Any]
    frozen: str  # digest of what is frozen; "" without any

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
        if stored["init_from"] is not None:
            raise ConfigError(f"{quote(folder)} started from --init_from, which no blend serves yet; give runs without")
        frozen = "" if stored["frozen"] is None else stored["frozen"]["digest"]
        return cls(folder, checkpoint, stored["arguments"], stored["identity"], frozen)

    def common(self, section: str) -> dict[str, Any]:
        """Settings of a section in which runs may not differ."""
        messages = [one.name for kind in features() if kind.acts_on_messages for one in fields(kind)]
        return {k: v for k, v in self.arguments[section].items() if k not in (*OWN, *SAMPLING, *messages)}

    @property
    def solver(self) -> dict[str, Any]:
        """Options of the solver."""
        solver: dict[str, Any] = self.arguments["model"]["solver"]
        options: dict[str, Any] = solver.get("init_args", solver)
        return options

    @property
    def is_searched(self) -> bool:
        """Whether the learning rate was searched on validation samples."""
        return is_searched(self.solver.get("lr"))

    @property
    def candidate(self) -> dict[str, Any]:
        """The algorithm and the solver, with the learning rate that was found."""
        solver = self.solver | ({"lr": self.identity["solver"]["lr"]} if self.is_searched else {})
        model = self.arguments["model"]
        return {"algorithm": model["algorithm"], "solver": solver, "serving": model.get("serving") or {}}


def _check_alike(runs: Sequence[_Run]) -> None:
    """Refuse runs on other clients or samples, or with other networks.

    Raises:
        ConfigError: naming the first difference.
    """
    first = runs[0]
    for one in runs[1:]:
        found = compare_arguments(first.common("model"), one.common("model"), "model.")
        found += compare_arguments(first.common("data"), one.common("data"), "data.")
        if found:
            raise ConfigError(
                f"{quote(one.folder)} and {quote(first.folder)} differ: {found[0].setting} is {found[0].now} and "
                f"{found[0].before}; a blend needs runs on the same clients and samples, with the same network"
            )
        if one.frozen != first.frozen:
            raise ConfigError(
                f"{quote(one.folder)} and {quote(first.folder)} froze other numbers of their network; a blend needs "
                "runs with the same ones, such as by the same --seed_everything"
            )
        key = "data (fingerprint)"
        if one.identity[key] != first.identity[key]:
            raise ConfigError(
                f"{quote(one.folder)} and {quote(first.folder)} have other samples or another division of them; a "
                "blend needs runs on the same clients and samples"
            )


# ---------------------------------------------------------------------- the runs
class Restored(FederatedCLI):
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
        own = Restored(["validate", "--ckpt_path", str(one.checkpoint), *trust])
        data = own.datamodule if data is None else data
        module = federated(own.model)
        if data.dataset.is_remote:
            raise ConfigError(f"{quote(one.folder)} trained on nodes, whose validation samples stay there")
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # the fit below says what holds for all
            data.setup()
            if not data.populations[0].val.num_samples:
                raise ConfigError(
                    "the runs have no validation samples, which weights are found on; train them with "
                    "--data.val_fraction 0.2"
                )
            own.trainer.validate(own.model, datamodule=data, ckpt_path=str(one.checkpoint), verbose=False)
        if why := why_not(module.settings.features, module.target, module.federation.terms.task):
            raise ConfigError(f"{quote(one.folder)} {why}")
        modules.append(module)
    assert data is not None
    return modules, data


def _names(runs: Sequence[_Run]) -> list[str]:
    """The name of each run, with its place where several have it."""
    names = [one.folder.parent.name for one in runs]
    return [name if names.count(name) == 1 else f"{name}_{place}" for place, name in enumerate(names)]


class Weights(NamedTuple):
    """Weights of all seen clients, and what they have in common."""

    mixture: Tensor  # [T, K]
    prior: Tensor  # [K]
    prior_weight: float
    spread: Tensor  # [K]
    chance: Tensor | None  # [T] probability that the blend serves a client better than the last run; None: not asked

    @classmethod
    def of(
        cls, modules: Sequence[FederatedModule], data: FederatedDataModule, prior_weight: float | None, *, half: bool,
        falls_back: bool, private: bool,
    ) -> Weights:  # fmt: skip
        """Weights by the validation samples; the prior are those of all clients' samples together.

        Args:
            modules: the runs.
            data: the samples.
            prior_weight: as of `blend`.
            half: by every second sample alone.
            falls_back: clients whose samples do not speak for the blend are served by the last run.
            private: nothing is estimated from the samples of several clients.

        Raises:
            ConfigError: if no sample is left.
        """
        target, seen = modules[0].target, data.populations[0]
        val = seen.val.every_other(1) if half else seen.val
        clients = list(predictions(modules, serving_blocks(val, seen.train, clients_per_block=data.block_size)))
        if not clients:
            raise ConfigError("no validation sample is left beside those that chose rates; raise --data.val_fraction")
        outputs, labels = (torch.cat(each) for each in zip(*((o, y) for _, o, y in clients), strict=True))
        spread = common_spread(target, outputs, labels)
        if private:
            spread, prior_weight = torch.full_like(spread, 0.0 if target.continuous else 1.0), prior_weight or 1.0
        losses = [negative_log_likelihood(target, found, y, torch.ones(len(y)), spread) for _, found, y in clients]
        equal, last = torch.ones(len(modules)) / len(modules), torch.eye(len(modules))[-1]
        prior = equal if private else stacked(torch.cat(losses), torch.ones(len(labels)), equal, 1.0)
        strengths = torch.tensor(STRENGTHS if prior_weight is None else [prior_weight])
        held = [held_out(target, found, y, prior, spread, strengths) for _, found, y in clients]
        best = int(torch.cat(held, 1).mean(1).argmin())
        strength = float(strengths[best])
        nothing = torch.zeros(1, len(modules)), torch.zeros(1)
        mixture = stacked(*nothing, prior, strength).repeat(seen.train.num_clients, 1)
        for (client, _, _), one in zip(clients, losses, strict=True):
            mixture[client] = stacked(one, torch.ones(len(one)), prior, strength)
        if not falls_back:
            return cls(mixture, prior, strength, spread, None)
        gains = [np.zeros(0)] * len(mixture)
        for (client, found, y), each in zip(clients, held, strict=True):
            alone = target.score(target.mix(last, calibrated(target, found, spread)), y)[0]
            gains[client] = (alone - each[best]).double().numpy()
        chance = torch.from_numpy(probabilities(gains, pooled=not private))
        mixture = torch.where((chance > EVIDENCE).unsqueeze(1), mixture, last)
        return cls(mixture, prior, strength, spread, chance)


def predictions(
    modules: Sequence[FederatedModule], blocks: Iterable[ServingBlock], *, seen: bool = True
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each client with samples its number, outputs [n, K, ...] of the runs and labels [n]."""
    for block in blocks:
        with torch.no_grad():
            each = [serving.predict_block(one.federation, block, seen=seen) for one in modules]
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
def plain(federation: FederatedRounds, state: Tree) -> tuple[Tree, Tree]:
    """The shared state and these clients' states of the algorithm inside all wrappers, as clients receive them."""
    algorithm, shared, ctx = federation.algorithm, federation.shared, federation.context("evaluate")
    while isinstance(algorithm, AlgorithmWrapper):
        shared = algorithm.broadcast_view(ctx, shared)
        state = state.inner if algorithm.has_client_state else state
        algorithm = algorithm.inner
    return shared, state


class TakesRuns(Callback):
    """Replaces the initial states of a blend by those of the runs before its only round."""

    def __init__(self, modules: Sequence[FederatedModule], found: Weights) -> None:
        self.modules, self.found = modules, found

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        federation, server = federated(pl_module).federation, federated(pl_module).federation.server
        ids = torch.arange(federation.terms.num_clients)
        each = [plain(one.federation, one.store.gather(ids)["state"]) for one in self.modules]
        shared = BlendShared(tuple(one for one, _ in each), self.found.prior, self.found.spread)
        server.overwrite(shared)  # type: ignore[attr-defined] # of a `ModuleServer`
        state, states = federation.store.template["state"], tuple(one for _, one in each)
        federation.store.stage(ids, tree.rebuild(state, tree.leaves(BlendState(states, self.found.mixture))))
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
        model = runs[0].common("model")
        named = zip(runs, _names(runs), strict=True)
        init_args = {"candidates": [one.candidate | {"name": name} for one, name in named], **options}
        model["algorithm"] = {"class_path": f"{Blend.__module__}.{Blend.__qualname__}", "init_args": init_args}
        own = {"seed_everything": arguments["seed_everything"], "model": model, "data": runs[0].common("data")}
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
        folder = results_folder(self.trainer)
        assert folder is not None
        summary, each = RunSummary.read(folder), [RunSummary.read(one.folder).entries for one in self.runs]
        summary.entries |= {key: sum(one.get(key, 0) for one in each) for key in COSTS}  # its own round sends nothing
        with owner_only(any(one.settings.is_private for one in self.taken.modules)):
            summary.write(folder)
        weights = self.taken.found
        largest = weights.mixture.argmax(1)
        rows = [
            [f"pi_{name}", str(run.folder), f"{float(weights.prior[k]):.2f}"]
            + [f"{int((largest == k).sum())} of {len(largest)} clients"]
            for k, (run, name) in enumerate(zip(self.runs, _names(self.runs), strict=True))
        ]
        if weights.chance is not None:
            given = self.taken.modules[-1], federated(self.model), self.datamodule, weights.mixture, weights.chance
            table = _verdict(*given)
            write_table(table, folder / "verdict.csv")
            print_line(in_words(table))
        print_rows("weights", ("column", "run", "common weight", "largest weight for"), rows, words=2)
        sys.stdout.write(
            f"test, predict, personalize and export take it as --ckpt_path {last_checkpoint(self.trainer)}\n"
        )


# ---------------------------------------------------------------------- the verdict
def _verdict(
    alone: FederatedModule, blended: FederatedModule, data: FederatedDataModule, mixture: Tensor, chance: Tensor
) -> pd.DataFrame:
    """Each seen client's gain over training alone, on its test samples, which chose nothing."""
    seen, target = data.populations[0], blended.target
    blocks = serving_blocks(seen.test, seen.train, seen.measured, clients_per_block=data.block_size)
    rows = []
    for client, outputs, y in predictions([blended, alone], blocks):
        served, own = (target.score(target.mix(torch.ones(1), outputs[:, k : k + 1]), y)[1] for k in range(2))
        trained = seen.train.select(torch.tensor([client])).client(client).y
        constant = constant_scores(target, trained, y)
        name = seen.names[client]
        rows.append(verdict_row(name, target, served, own, constant, mixture[client], float(chance[client])))
    return pd.DataFrame(rows)
