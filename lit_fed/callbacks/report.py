"""Results of a run: summary.json, clients.csv, figures, and a table on the terminal."""

from __future__ import annotations

import importlib.metadata
import itertools
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import lightning
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import EarlyStopping, Timer

from lit_fed.core.types import Population
from lit_fed.data.data_sets.base import names_of
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.metrics.scores import STATISTICS, Statistic
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.packages import pd
from lit_fed.system.readers import number
from lit_fed.training.hooks import FederatedCallback, data_of, federated, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import print_rows, write_table
from lit_fed.wrappers.blend import Blend

__all__ = ["RunReport", "client_table", "populations_of", "print_table"]

FORMATS = {"png", "pdf", "svg"}

REPORTED = ("seen", "honest", "unseen")
"""Rows of the tables, in this order."""


def populations_of(data: FederatedDataModule) -> dict[str, Population | None]:
    """The clients of a run, by the name of their population."""
    return dict(zip(("seen", "unseen"), data.populations, strict=True))


def client_table(populations: dict[str, Population | None], module: FederatedModule) -> pd.DataFrame:
    """One row per measured client with its last results.

    `client` is its name and `client_id` its number, as in the table of predictions. `group` is its true group, where
    known; `attacker` whether it attacks, if some do; `kept` the share of its last message that a robust rule kept;
    `pi_m` its mixture weights, of a blend with names of the runs in place of m.

    Args:
        populations: the clients by the name of their population, `seen` and `unseen`.
        module: the module that measured them.
    """
    attacked = any(one is not None and one.attackers is not None for one in populations.values())
    algorithm, tables = module.settings.algorithm, []
    names = [one.name for one in algorithm.candidates] if isinstance(algorithm, Blend) else []
    for name, population in populations.items():
        scores = module.client_scores.get(name)
        if population is None or scores is None:
            continue
        positions = population.positions.tolist()
        columns = {
            "client": [population.names[position] for position in positions],
            "client_id": population.train.client_ids[positions].tolist(),
            "population": name,
            "num_train": population.train.sizes[positions].tolist(),
            **scores.columns(module.target.metric),
        }
        if population.groups is not None:
            columns["group"] = population.groups[positions].tolist()
        if attacked:
            honest = torch.ones(len(positions), dtype=torch.bool) if population.honest is None else population.honest
            columns["attacker"] = (~honest).tolist()
        module.tell("on_client_columns", name, positions, columns)
        tables.append(pd.DataFrame(columns | scores.weights(names)))
    return pd.concat(tables, ignore_index=True)


class RunReport(FederatedCallback):
    """Writes the results into the run's folder after the test, and prints them.

    Args:
        pictures: also draw figures into `plots/`.
        formats: formats of the figures: `png`, `pdf`, `svg`.
    """

    kept = {"seconds": number(0)}

    def __init__(self, pictures: bool = True, formats: Sequence[Literal["png", "pdf", "svg"]] = ("png",)) -> None:
        if not formats or not set(formats) <= FORMATS:
            raise ConfigError(f"RunReport.formats is {list(formats)}; give some of {', '.join(sorted(FORMATS))}")
        self.pictures, self.formats = pictures, formats
        self._seconds = 0.0  # of the fits that ended
        self._started: float | None = None  # clock of the fit under way

    @property
    def seconds(self) -> float:
        """Seconds of the run's fits so far, those before a resume included."""
        return self._seconds + (0.0 if self._started is None else time.perf_counter() - self._started)

    @seconds.setter
    def seconds(self, before: float) -> None:
        self._seconds = before

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.perf_counter()
        trials, folder = federated(pl_module).trials, results_folder(trainer)
        if trials and folder is not None:
            write_table(pd.DataFrame(trials), folder / "learning_rates.csv")

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._stop_clock()

    def _stop_clock(self) -> None:
        self._seconds, self._started = self.seconds, None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_clock()
        module = federated(pl_module)
        if trainer.should_stop and module.num_rounds_done < module.num_rounds and trainer.is_global_zero:
            rounds = f"round {module.num_rounds_done} of {module.num_rounds}"
            sys.stdout.write(f"ended after {rounds}: {_reason_to_stop(trainer)}\n")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        if trainer.state.fn == "validate" and trainer.is_global_zero:
            print_table(
                module.results, data_of(trainer).evaluation_split, module.target.metric, module.chosen_metrics.names
            )

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        if not trainer.is_global_zero:
            return
        print_table(module.results, "test", module.target.metric, module.chosen_metrics.names)
        summary = RunSummary(module.results | self._facts(trainer, module))
        summary.add_directions(module.chosen_metrics.directions)
        module.tell("on_summary", summary)
        sys.stdout.write("".join(summary.lines))
        folder = results_folder(trainer)
        if folder is None:
            return
        table = client_table(populations_of(data_of(trainer)), module)
        write_table(table, folder / "clients.csv")
        if self.pictures:
            from lit_fed.callbacks.sample_pictures import sample_pictures
            from lit_fed.pictures.run import draw

            samples = sample_pictures(module, data_of(trainer))
            draw(folder, table, module.chosen_metrics.directions, self.formats, samples)
        summary.write(folder)
        sys.stdout.write(f"results: {folder}\n")

    def _facts(self, trainer: Trainer, module: FederatedModule) -> dict[str, Any]:
        history, data = module.history, data_of(trainer)
        attackers = data.populations[0].attackers
        return {
            "rounds": module.num_rounds_done,
            "seconds": round(self.seconds, 3),
            "algorithm": module.algorithm_name,
            "client_trainer": module.federation.client_trainer.name,
            "device": str(module.device),
            "versions/python": sys.version.split()[0],
            "versions/lit_fed": importlib.metadata.version("lit-fed"),
            "versions/torch": torch.__version__,
            "versions/lightning": lightning.__version__,
            "git_commit": _git_commit(),
            **({"init_from": history.warm_start.origin(names_of(data.exclude_clients))} if history.warm_start else {}),
            **({"changes_on_resume": history.changes} if history.changes else {}),
            **({} if attackers is None else {"attackers": len(attackers)}),
        }


def _reason_to_stop(trainer: Trainer) -> str:
    """The reason why a callback ended the run."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        if isinstance(callback, EarlyStopping) and callback.stopping_reason_message:
            return callback.stopping_reason_message.removesuffix(" Signaling Trainer to stop.").rstrip(".")
        if isinstance(callback, Timer) and (callback.time_remaining() or 1) <= 0:
            return f"the time limit was reached after {timedelta(seconds=int(callback.time_elapsed()))}"
    return "a callback asked for it"


def _git_commit() -> str | None:
    """Commit of lit_fed, if it runs from a checkout."""
    package = Path(__file__).resolve().parents[1]
    if not (package.parent / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(package), "rev-parse", "HEAD"]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def print_table(results: dict[str, float], split: str, hit: str, chosen: Sequence[str] = ()) -> None:
    """Print the statistics over clients of one split, a line for each population; chosen metrics in a table ahead.

    Args:
        results: the statistics, by key.
        split: what the clients were measured on.
        hit: `accuracy` or `mse`.
        chosen: names of the chosen metrics.
    """
    printed = {suffix: one for suffix, one in STATISTICS.items() if one.printed and one.of is not None}
    shown = {f"{hit}{suffix}": one for suffix, one in printed.items()} | {"loss": printed[""]}
    rows = []
    for population in REPORTED:
        found = {key: results.get(f"{split}/{population}/{key}") for key in shown}
        if found[hit] is not None:
            rows.append([population, *_cells(found, shown, "")])
    if not rows:
        sys.stdout.write(f"{split}: no client has samples in this split, so nothing was measured\n")
        return
    if chosen:  # asked for, so first
        _print_chosen(results, split, chosen)
    headings = [key if key in (hit, "loss") else one.heading for key, one in shown.items()]
    print_rows(split, ["clients", *headings], rows)


def _cells(found: dict[str, float | None], shown: dict[str, Statistic], missing: str) -> list[str]:
    """Statistics as text, in the order of the columns."""
    return [missing if found[key] is None else f"{found[key]:.{one.digits}f}" for key, one in shown.items()]


def _print_chosen(results: dict[str, float], split: str, names: Sequence[str]) -> None:
    """Print a line for each chosen metric and population."""
    shown = {suffix: one for suffix, one in STATISTICS.items() if one.printed}
    rows = []
    for name, population in itertools.product(names, REPORTED):
        found = {suffix: results.get(f"{split}/{population}/{name}{suffix}") for suffix in shown}
        if found[""] is not None or found["_undefined"] is not None:  # else the population was not measured
            rows.append([name, population, *_cells(found, shown, "–")])
    headings = ["metric", "clients", *(one.heading for one in shown.values())]
    if rows:
        print_rows(f"{split}, chosen metrics", headings, rows, words=2)
