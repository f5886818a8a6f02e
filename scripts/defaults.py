"""Learning rates without tuning: the default and `--model.solver.lr auto` against the best of a grid.

    python scripts/defaults.py [--data.root DIR] [--write]

The data are those of seven tasks of the benchmark, on cut 0, and two more divisions of the digits. A run is made for
every rate of the grid that docs/results/defaults.json lacks; its validation samples are measured at the stages of the
search and at the end. A trial of `auto` is the beginning of the run with its rate, so that its choice follows from
these runs. With --write, the page is written and nothing is run.
"""

import argparse
import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from lightning.pytorch import LightningModule, Trainer
from reproduction.markdown import grid
from trials import facts, keep, written

from lit_fed.benchmark.measures import ValidationCurve, measured, primary, short
from lit_fed.benchmark.task import Task, read_task
from lit_fed.callbacks.defaults import keep_notices_out
from lit_fed.cli import UntestedCLI
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import NotFiniteError
from lit_fed.training.hooks import data_of, federated
from lit_fed.training.learning_rate import SGD_RATES, STAGES, best_rate, halved, validation_loss

RECORD = Path(__file__).resolve().parents[1] / "docs/results/defaults.json"
ALGORITHMS = {
    "ResponsibilityFedEM": "FedEM by responsibility", "FedAvg": "FedAvg", "FedAvgPlus": "FedAvg+", "Ditto": "Ditto",
    "Local": "Local",
}  # fmt: skip
DIGITS = {
    "digits_dirichlet": {"class_path": "Dirichlet", "init_args": {"alpha": 0.4}},
    "digits_label_permutations": {"class_path": "LabelPermutations", "init_args": {"num_groups": 3}},
}
"""Further divisions of the digits."""
TASKS = (
    "landmine", "school", "parkinsons", "heart", "digits_label_groups", *DIGITS, "synthetic_mixture", "mnist_by_writer",
)  # fmt: skip
CLOSE = 3.0
"""Points of accuracy or AUROC, or hundredths of R²."""

LEAST = -100.0
"""A run whose R² × 100 is below it diverged, though its numbers are still finite."""

Runs = dict[str, dict[str, Any]]  # by task, algorithm and rate


class StageCurve(ValidationCurve):
    """Round, score and loss of the seen clients' validation samples at the stages of a search, and at the end."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module, rounds = federated(pl_module), int(trainer.max_epochs or 1)
        if module.num_rounds_done in {max(1, round(share * rounds)) for share in (*STAGES, 1)}:
            data = data_of(trainer)
            found = measured(module, data, "seen", "val", self.metric)
            loss = validation_loss(module.federation, data, trainer.precision_plugin)
            self.curve.append([module.num_rounds_done, short(primary(found, "clients")), short(loss)])


def task_of(name: str) -> Task:
    """A task of the benchmark, or one of its digits with another division."""
    if name not in DIGITS:
        return read_task(name)
    digits = read_task("digits_label_groups")
    return replace(digits, name=name, given=digits.given | {"partition": DIGITS[name]})


def key_of(task: str, algorithm: str, rate: float) -> str:
    """The name of a run in the record."""
    return f"{task} {algorithm} {rate}"


def make(task: Task, algorithm: str, rate: float, root: Path) -> dict[str, Any]:
    """Run an algorithm with a rate; its curve and the score of its test samples, or the round in which it diverged."""
    given = task.at(root, task.arguments(algorithm, {"lr": rate}, 0))
    given["trainer"]["callbacks"] = [{"class_path": f"{__name__}.StageCurve", "init_args": {"metric": task.metric}}]
    began = time.process_time()
    with open(os.devnull, "w") as no, contextlib.redirect_stdout(no), contextlib.redirect_stderr(no):
        try:
            cli = UntestedCLI(["fit", "--config", json.dumps(given)])
        except NotFiniteError as error:
            return {"diverged": error.round_idx}
        curve = next(one for one in cli.trainer.callbacks if isinstance(one, StageCurve)).curve
        test = primary(measured(cli.model, cli.datamodule, "seen", "test", task.metric), "clients")
    return {"curve": curve, "test": short(test), "cpu_seconds": round(time.process_time() - began, 1)}


# ---------------------------------------------------------------------- the page
def cell(runs: Runs, task: Task, algorithm: str) -> dict[str, tuple[float, float]]:
    """Rate and test score × 100 of each way of choosing the rate; the score of a run that diverged is NaN.

    `early` is a search without its last stage, `score` one that is judged by scores.
    """
    found = {rate: runs[key_of(task.name, algorithm, rate)] for rate in SGD_RATES}
    final = {rate: run["curve"][-1][1] for rate, run in found.items() if "curve" in run}
    by_loss, by_score = (halved(SGD_RATES, task.rounds, partial(_after, found, *judge)) for judge in ((1, 2), (-1, 1)))
    chosen = {
        "default": LocalSolver().rate,
        "auto": best_rate(by_loss, algorithm),
        "early": best_rate([one for one in by_loss if one.rounds < by_loss[-1].rounds], algorithm),
        "score": best_rate(by_score, algorithm),
        "tuned": max((rate for rate in final if final[rate] is not None), key=lambda rate: (final[rate], -rate)),
    }
    return {how: (rate, _points(found[rate])) for how, rate in chosen.items()}


def _points(run: dict[str, Any]) -> float:
    """Test score × 100; NaN if the run diverged."""
    score = 100 * run.get("test", math.nan)
    return score if score > LEAST else math.nan


def _after(found: Mapping[float, dict[str, Any]], sign: int, column: int, rate: float, rounds: int) -> float:
    """What `halved` minimises: a column of a rate's curve."""
    value = next((row[column] for row in found[rate].get("curve", ()) if row[0] == rounds), None)
    return math.inf if value is None else sign * value


def table(cells: dict[tuple[str, str], dict[str, tuple[float, float]]]) -> list[str]:
    """A line for each data set and algorithm; gaps of more than `CLOSE` are bold."""
    lines = []
    for (task, algorithm), found in cells.items():
        best = found["tuned"][1]
        scores = [f"{best:.1f} ({found['tuned'][0]})"]
        for how in ("auto", "default"):
            rate, score = found[how]
            gap = "diverged" if math.isnan(score) else f"{score - best:+.1f}"
            gap = gap if best - score <= CLOSE else f"**{gap}**"
            scores.append(f"{gap} ({rate})")
        lines.append([task.replace("_", " "), ALGORITHMS[algorithm], *scores])
    return grid(["data", "algorithm", "tuned", "auto", "default"], lines)


def page(record: dict[str, Any]) -> str:
    """The page of the record."""
    runs = record["runs"]
    made = [(name, one) for name in TASKS for one in ALGORITHMS if _complete(runs, name, one)]
    cells = {key: cell(runs, task_of(key[0]), key[1]) for key in made}
    parts: dict[str, Any] = {}
    for how in ("auto", "default", "early", "score"):
        gaps = {key: one["tuned"][1] - one[how][1] for key, one in cells.items()}
        held = [gap for gap in gaps.values() if not math.isnan(gap)]
        parts |= {f"{how}_close": str(sum(gap <= CLOSE for gap in held)), f"{how}_worst": f"{max(held):.1f}"}
        parts[f"{how}_diverged"] = str(len(gaps) - len(held))
        parts[f"{how}_far"] = _listed([key for key, gap in gaps.items() if not gap <= CLOSE])
    constants = [[str(rate), *_of_constant(runs, cells, rate)] for rate in SGD_RATES]
    return written(__file__, parts | {
        "cells": str(len(cells)), "all_cells": str(len(TASKS) * len(ALGORITHMS)), "table": table(cells),
        "constants": grid(["rate", "within three points", "largest gap", "diverged"], constants),
        "minutes": f"{sum(run.get('cpu_seconds', 0) for run in runs.values()) / 60:.0f}", "num_runs": str(len(runs)),
        "date": record["facts"]["date"], "torch": record["facts"]["torch"],
    })  # fmt: skip


def _complete(runs: Runs, task: str, algorithm: str) -> bool:
    return all(key_of(task, algorithm, rate) in runs for rate in SGD_RATES)


def _of_constant(runs: Runs, cells: dict[tuple[str, str], Any], rate: float) -> list[str]:
    """Of one rate for everything: cells that are close to the tuned best, the largest gap, cells that diverged."""
    gaps = [one["tuned"][1] - _points(runs[key_of(*key, rate)]) for key, one in cells.items()]
    gaps = [gap for gap in gaps if not math.isnan(gap)]
    return [str(sum(gap <= CLOSE for gap in gaps)), f"{max(gaps):.1f}", str(len(cells) - len(gaps))]


def _listed(keys: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{ALGORITHMS[algorithm]} on {task.replace('_', ' ')}" for task, algorithm in keys) or "none"


def missing(runs: Runs) -> Iterator[tuple[Task, str, float]]:
    """The runs that the record lacks."""
    for name in TASKS:
        task = task_of(name)
        for algorithm in ALGORITHMS:
            yield from ((task, algorithm, rate) for rate in SGD_RATES if key_of(name, algorithm, rate) not in runs)


def main() -> None:
    """Make the missing runs, and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data.root", dest="root", type=Path, default=Path("data"), help="where the data sets lie")
    parser.add_argument("--write", action="store_true", help="write the page from what is there, and run nothing")
    chosen = parser.parse_args()
    keep_notices_out()
    runs: Runs = json.loads(RECORD.read_text())["runs"] if RECORD.is_file() else {}
    for task, algorithm, rate in () if chosen.write else missing(runs):
        runs[key_of(task.name, algorithm, rate)] = make(task, algorithm, rate, chosen.root)
        print(key_of(task.name, algorithm, rate), flush=True)
        keep(RECORD, page, facts=facts(), runs=runs)
    RECORD.with_suffix(".md").write_text(page(json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main()
