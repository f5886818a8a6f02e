"""The points of a sweep: proposed by Optuna, kept in a file that outlives any kill."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from lit_fed.command_line.sweeping.sweep_file import Point, Sweep

__all__ = ["Search"]


class Search:
    """Asks Optuna for points and tells it how good they are.

    A point that was asked for and not told of is unfinished, whether it was cut off or failed.

    Args:
        sweep: what to search.
        folder: gets the file `study.log`.
    """

    def __init__(self, sweep: Sweep, folder: Path) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.sweep = sweep
        storage = JournalStorage(JournalFileBackend(str(_mended(folder / "study.log"))))
        self.study = optuna.create_study(
            storage=storage,
            study_name="sweep",
            direction=StudyDirection[sweep.goal.upper()],
            load_if_exists=True,
            sampler=RandomSampler(),
        )
        for trial in self.study.get_trials(states=[TrialState.RUNNING]):
            if len(trial.params) < len(sweep.parameters):  # killed while it was asked for
                self.study.tell(trial.number, state=TrialState.FAIL)
        if sweep.method == "grid":
            self._enqueue_grid()

    def _enqueue_grid(self) -> None:
        """Let Optuna propose the points of the grid that are not proposed yet, in the order of the file."""
        trials = [one for one in self.study.get_trials() if one.state != TrialState.FAIL]
        known = [one.params or one.system_attrs["fixed_params"] for one in trials]
        keys, distributions = zip(*self.sweep.parameters.items(), strict=True)
        for values in itertools.product(*(one.choices for one in distributions)):
            point = dict(zip(keys, values, strict=True))
            if point not in known:
                self.study.enqueue_trial(point)

    def asked(self) -> dict[int, Point]:
        """The points proposed so far, by number."""
        states = [TrialState.RUNNING, TrialState.COMPLETE]
        return {one.number: self._point(one.params) for one in self.study.get_trials(states=states)}

    def finished(self) -> set[int]:
        """The numbers of those whose result is known."""
        return {one.number for one in self.study.get_trials(states=[TrialState.COMPLETE])}

    def ask(self) -> tuple[int, Point]:
        """A new point and its number; the same one wherever a sweep was cut off, if Optuna knows the same results."""
        self.study.sampler = self._sampler(len(self.study.get_trials(deepcopy=False)))
        trial = self.study.ask(dict(self.sweep.parameters))
        return trial.number, self._point(trial.params)

    def tell(self, number: int, value: float) -> FrozenTrial:
        """Report the result of a point."""
        return self.study.tell(number, value)

    def _sampler(self, seed: int) -> BaseSampler:
        return TPESampler(seed=seed) if self.sweep.method == "bayes" else RandomSampler(seed=seed)

    def _point(self, params: dict[str, Any]) -> Point:
        kinds = self.sweep.parameters
        return {
            key: json.loads(params[key]) if isinstance(kinds[key], CategoricalDistribution) else params[key]
            for key in kinds
        }


def _mended(path: Path) -> Path:
    """The file without a line that a kill cut off, and without the lock of a process that is no more."""
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    if path.is_file():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            path.write_bytes(whole)
    return path
