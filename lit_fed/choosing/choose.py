"""`lit-fed choose`: does it pay to join, and with which model? Candidates are trained, blended, and judged by client.

Rows are disjoint: training samples train; every second validation sample searches the rates; the others find the
weights and whether a client is served alone; test samples tell the gain.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any, Literal

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt

from lit_fed.choosing.blend import Restored, blend, most_likely
from lit_fed.command_line.arguments import divided, prepared, with_place
from lit_fed.command_line.parser import FederatedParser, command_parser
from lit_fed.command_line.several_fits import DECIDED, Fit, made
from lit_fed.core.local_solver import is_searched
from lit_fed.errors import ConfigError, notice
from lit_fed.system.files import given_path, quote
from lit_fed.system.folder_lock import claimed
from lit_fed.system.foreign_files import read_table
from lit_fed.system.machine import cores, require_cores
from lit_fed.training.finished_runs import FIX
from lit_fed.training.learning_rate import Trial, best_rate, halved
from lit_fed.training.output import check_writable, print_line
from lit_fed.wrappers.feature import features

__all__ = ["choose_parser", "choose_run"]

CANDIDATES = ("FedAvg", "FedAvgPlus", "FedEM", "ResponsibilityFedEM")
"""Algorithms that are tried by default, with `MixedEffects` for the network Linear, `PartialPooling` for others."""

RATES = {"sgd": (0.01, 0.0464, 0.215, 1.0), "adam": (0.0001, 0.000464, 0.00215, 0.01)}
"""Learning rates among which that of each candidate is searched, by the optimizer; all but sgd have those of adam."""

COMPONENTS = (1, 2, 3, 4, 6)
"""Numbers of components that `--components auto` tries."""

OWN = ("--candidates", "--components", "--jobs", "--output")
"""Options of this command; all others are those of `fit`."""


def choose_parser() -> FederatedParser:
    """The arguments of the command."""
    parser = command_parser(
        "choose", "[options] [options of fit]",
        "Data and network are given as for fit. Each candidate is trained, with a rate that is searched; each client "
        "is then served by a mixture of them, or alone if its validation samples do not speak for the others. Ends "
        "with the gain of each client over training alone, on its test samples. The same command continues after an "
        "interrupt.",
    )  # fmt: skip
    parser.add_argument(
        "--candidates", type=str, nargs="+",
        help=f"algorithms beside Local; by default {', '.join(CANDIDATES)}, and MixedEffects for the network Linear, "
        "PartialPooling for others.",
    )  # fmt: skip
    parser.add_argument(
        "--components", type=Literal["auto"] | None,
        help="auto: each candidate with num_components, such as FedEM, is trained with "
        f"{', '.join(map(str, COMPONENTS))} of them, and the one with the smallest validation loss is kept.",
    )  # fmt: skip
    parser.add_argument("--jobs", type=PositiveInt | None, help="runs at a time; by default one for each core.")
    parser.add_argument("--output", type=str, default="runs/choose", help="folder of the new run, a run itself.")
    return parser


def choose_run(arguments: list[str], parse: Callable[[list[str]], Namespace], run: Callable[[list[str]], Any]) -> None:
    """Run the command.

    Args:
        arguments: arguments of the command `choose`.
        parse: parses the arguments of a run, without running it.
        run: runs a command line; other processes import it by its name.

    Raises:
        ConfigError: naming a refused argument; nothing has been run then.
        CutShort: after Ctrl-C.
    """
    own, others = divided(arguments, (*OWN, "--help", "-h"))
    given = choose_parser().parse_args(own)
    require_cores(given.jobs or 1, "--jobs")
    output = given_path(given.output, "--output")
    check_writable(output, "--output")
    _refuse_decided(others)
    usual = parse(["fit", *others]).fit
    if usual.get("init_from") is not None:  # of a configuration
        raise ConfigError(f"init_from of the configuration: {DECIDED['--init_from']}; leave it out")
    is_linear = str(usual.model.network.class_path).rpartition(".")[2] == "Linear"
    names = given.candidates or [*CANDIDATES, "MixedEffects" if is_linear else "PartialPooling"]
    solver, rounds = usual.model.solver, usual.trainer.max_epochs
    if solver.lr is None or solver.lr == "auto":
        solver.lr = RATES["sgd" if solver.optimizer == "sgd" else "adam"]
    others = [*others, f"--model.solver.lr={json.dumps(solver.lr)}"]
    names = [*dict.fromkeys(one for one in names if one != "Local"), "Local"]
    said = f"--model.algorithm: choose trains {', '.join(names)} (--candidates); its options go to those that have them"
    if (placed := with_place(prepared(others), said)) != said:  # a configuration has it
        notice(placed)
    on_messages = [(kind, one) for kind in features() if kind.acts_on_messages for one in fields(kind)]
    around = {one.name: kind for kind, one in on_messages if usual.model[one.name] not in (None, one.default)}
    if is_searched(solver.lr) and any(kind.is_private for kind in around.values()):
        raise ConfigError(
            "--model.solver.lr is searched on the clients' samples, and the ε of a private run does not cover it; give "
            "a number"
        )
    without = [f"--model.{one.name}={json.dumps(one.default)}" for _, one in on_messages if one.name in around]
    components = COMPONENTS if given.components else ()
    held_out = divided(others, ["--data.val_fraction"])[0] or usual.data.val_fraction
    common = [*others, *([] if held_out else ["--data.val_fraction", "0.2"])]
    fits = _fits(names, common, output / "candidates", parse, components, without)
    with redirect_stderr(StringIO()):  # each run says these notices itself
        Restored(["validate", *fits[-1].arguments]).datamodule.setup()  # data that cannot be read are refused now
    jobs = min(given.jobs or len(cores()), len(fits))
    done = sum(one.is_over for one in fits)
    with claimed(output, "choice", {"candidates": [one.name for one in fits], "options of fit": others}):
        if (output / "version_0" / "verdict.csv").is_file():  # which is written last
            print_line(f"--output {output}: this choice is finished; lit-fed report {quote(output)} shows its verdict")
            return
        shutil.rmtree(output / "version_0", ignore_errors=True)  # cut off after the training of the candidates
        print_line(
            f"{len(fits)} candidates of {rounds} rounds each: {', '.join(one.name for one in fits)}; "
            f"{_search(solver.lr, rounds)}; {done} are done, {jobs} at a time"
        )
        errors = made(fits, run, jobs, "is left out")
        if "Local" in errors or len(errors) == len(fits) - 1:
            raise ConfigError(f"no comparison is possible: {'; '.join(f'{k}: {v}' for k, v in errors.items())}")
        trained: dict[str, list[Path]] = {}
        for one in fits:
            if one.name not in errors:
                trained.setdefault(one.group, []).append(one.folder)
        *others_kept, alone = [each[0] if len(each) == 1 else most_likely(each) for each in trained.values()]
        if is_searched(solver.lr):
            _say_ends([*others_kept, alone], solver.lr)
        blend(others_kept, output, alone=alone, half=bool(given.components))


def _refuse_decided(given: Sequence[str]) -> None:
    """Refuse options of `fit` that are decided here.

    Raises:
        ConfigError: naming the option and the fix.
    """
    for option, instead in DECIDED.items():
        if divided(given, [option])[0]:
            raise ConfigError(f"{option} is decided by choose; leave it out: {instead}")


def _fits(
    names: Sequence[str], given: Sequence[str], folder: Path, parse: Callable[[list[str]], Namespace],
    components: Sequence[int], without: Sequence[str],
) -> list[Fit]:  # fmt: skip
    """The trainings of the candidates; those whose settings are refused are left out, which is said.

    Raises:
        ConfigError: if Local is refused.
    """
    found = []
    for name in names:
        arguments = [*given, "--model.algorithm", name, *(without if name == "Local" else ())]  # it sends nothing
        if name == "MixedEffects":
            arguments += ["--model.solver.lr", "0.1"]  # which it does not use
        try:
            with redirect_stderr(StringIO()):
                settings = parse(["fit", *arguments]).fit.model.algorithm.get("init_args", {})
        except ConfigError as error:
            if name == "Local":
                raise
            print_line(f"{name} is left out: {error}")
            continue
        if "num_components" in settings and components:
            each = {f"{name}_{one}": [f"--model.algorithm.num_components={one}"] for one in components}
        else:
            each = {name: []}
        found += [Fit((*arguments, *more), folder / called, name) for called, more in each.items()]
    return found


def _search(lr: Any, num_rounds: int) -> str:
    """The learning rates of the candidates, in words."""
    if not is_searched(lr):
        return f"learning rate {lr:g}"
    trials = halved(lr, num_rounds, lambda rate, _: rate)  # which rate wins does not change the number of rounds
    more = sum({one.lr: one.rounds for one in trials}.values())
    rates = ", ".join(f"{one:g}" for one in lr)
    return f"the learning rate of each is searched among {rates}, by {more} further rounds"


def _say_ends(folders: Sequence[Path], rates: Sequence[float]) -> None:
    """Print a line if the best rate of some candidates is the smallest or the largest: a better one may lie beyond.

    Args:
        folders: of the candidates.
        rates: those that were searched.
    """
    tried = sorted({one for one in rates if one})  # a rate of 0 trains nothing
    files = {one.name: one / "version_0" / "learning_rates.csv" for one in folders}
    found = {
        name: best_rate([Trial(*row) for row in read_table(file, FIX).itertuples(index=False)], name)
        for name, file in files.items()
        if file.is_file()  # MixedEffects uses no rate
    }
    said, wider = [], list(tried)
    for word, end, step in (("smallest", 0, 1), ("largest", -1, -2)) if len(tried) > 1 else ():
        if names := [name for name, rate in found.items() if rate == tried[end]]:
            said.append(f"of {', '.join(names)} is the {word} tried, {tried[end]:g}")
            wider.append(float(f"{tried[end] ** 2 / tried[step]:.3g}"))
    if said:
        options = f"--model.solver.lr '{sorted(wider)}'"
        print_line(f"the best rate {', and that '.join(said)}: give more --trainer.max_epochs, or {options}")
