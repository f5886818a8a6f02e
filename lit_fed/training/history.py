"""The history of a run: its identity, what may change on resume, and what its checkpoints keep of both."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lightning.pytorch import Trainer

from lit_fed.core.local_solver import LocalSolver, is_searched
from lit_fed.core.networks.start import digest_of
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.rounds import FederatedRounds
from lit_fed.system.names import same_class
from lit_fed.training.checkpoint import CHECKPOINT_KEY, keep_harmless
from lit_fed.training.warm_start import WarmStart
from lit_fed.wrappers.feature import Feature

__all__ = [
    "Difference", "RunHistory", "compare_arguments", "content_of", "plain_settings", "refuse_other_run",
]  # fmt: skip

CHANGEABLE = {f"solver.{name}" for name in ("lr", "adapt_lr", "schedule", "schedule_rounds", "clip_norm")}
"""Settings that may change on resume: the size of the clients' steps, not what they compute."""

NO_NUMBER = {
    "model.metrics",
    "model.conformal",
    *(f"data.dataset.{name}" for name in ("listen", "tls", "nodes", "num_nodes", "seconds", "patience")),
}
"""Settings that change no number of a training: what is measured of it, and how nodes are reached."""


# ---------------------------------------------------------------------- comparing two runs
class Difference(NamedTuple):
    """A setting that differs between a checkpoint and the run that reads it."""

    setting: str  # its name on the command line, without the dashes
    before: Any
    now: Any

    @property
    def may_change(self) -> bool:
        """Whether `--resume_with_changes` accepts the new value."""
        return self.setting.removeprefix("model.") in CHANGEABLE or self.setting.startswith("model.serving.")

    def decides_serving(self, algorithm: Any) -> bool:
        """Whether the setting affects only how clients of this algorithm are served."""
        owner, _, name = self.setting.removeprefix("model.").replace(".inner", "").rpartition(".")
        serving = {"algorithm": algorithm.serving_settings, "solver": ("adapt_lr",)}
        return owner == "serving" or name in serving.get(owner, ())

    def keeps_the_horizon(self, stored: dict[str, Any]) -> bool:
        """Whether the schedule ends in the same round: one side names it, the other leaves it to the checkpoint."""
        return self.setting.endswith("solver.schedule_rounds") and self.now in (None, stored["schedule_rounds"])

    def __str__(self) -> str:
        """The difference as part of a message."""
        return f"{self.setting} is {self.now}, in the checkpoint {self.before}"


def plain_settings(value: Any) -> Any:
    """Settings in types that a checkpoint may hold; dataclasses become dicts with their class in `class_path`.

    A wrapper that changes serving alone is left out.

    Example:
        >>> from lit_fed.algorithms import FedEM
        >>> plain_settings(FedEM(num_components=2))["num_components"]
        2
    """
    if getattr(type(value), "only_serves", False):
        return plain_settings(value.inner)
    if is_dataclass(value):
        shown = {one.name: plain_settings(getattr(value, one.name)) for one in fields(value) if one.repr}
        return {"class_path": type(value).__name__} | shown
    if isinstance(value, dict):
        return {str(name): plain_settings(one) for name, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(plain_settings, value))
    if isinstance(value, float) and not math.isfinite(value):  # NaN would differ from itself
        return repr(value)
    return value if value is None or type(value) in (bool, int, float, str) else repr(value)


def compare_arguments(stored: dict[str, Any], given: dict[str, Any], prefix: str = "") -> list[Difference]:
    """Settings that differ between two nested dicts, empty if one of them is; of another class, the class alone.

    Settings that only `given` holds are ignored, entries of a user's dict, such as `client_lr`, are not.

    Example:
        >>> [str(one) for one in compare_arguments({"lr": 0.1}, {"lr": 0.2}, "model.solver.")]
        ['model.solver.lr is 0.2, in the checkpoint 0.1']
    """
    if not stored or not given:
        return []
    classes = [one.get("class_path") for one in (stored, given)]
    if classes[0] != classes[1] and None not in classes and not same_class(*classes):
        return [Difference(prefix.removesuffix(".").replace(".init_args.", "."), *classes)]
    found = []
    for key, before in stored.items():
        name, now = f"{prefix}{key}", given.get(key, {} if key == "init_args" else None)  # a class without options
        setting = name.replace(".init_args.", ".").replace(".class_path", "")
        if setting in NO_NUMBER:
            continue
        if isinstance(before, dict) and isinstance(now, dict) and not _is_users(key, stored, before, now):
            found += compare_arguments(before, now, f"{name}.")
        elif before != now and not (key == "class_path" and same_class(before, now)):
            found.append(Difference(setting, before, now))
    return found


def _is_users(key: str, owner: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether entries of these dicts are a user's: no names of settings, of which a later version may have more.

    In `plain_settings` these are dicts without a class within one with a class. In arguments sections have no class
    either, but they are not empty.
    """
    if key == "init_args":
        return False
    return not (before and now) or ("class_path" in owner and "class_path" not in before | now)


def refuse_other_run(
    stored: dict[str, Any] | None, arguments: dict[str, Any], identity: dict[str, Any], algorithm: Any, *,
    goes_on: bool = False, with_changes: bool = False, place: str = "the checkpoint",
) -> list[Difference]:  # fmt: skip
    """Compare the run of a checkpoint with the run that reads it.

    Args:
        stored: entry of the checkpoint under `CHECKPOINT_KEY`.
        arguments: this run's arguments from the command line; {} without one.
        identity: this run's identity, compared with or without a command line.
        algorithm: this run's algorithm.
        goes_on: the run is a fit.
        with_changes: `--resume_with_changes` was given.
        place: the checkpoint, for messages.

    Returns:
        The accepted changes; without `with_changes` none.

    Raises:
        ConfigError: naming what differs.
    """
    if stored is None:
        raise ConfigError("the checkpoint was not written by lit_fed; give one of a run's checkpoints folder")
    found = compare_arguments(stored["arguments"], arguments), compare_arguments(stored["identity"], identity)
    found = _rates(found[0], *(one.get("solver", {}).get("lr") for one in (stored["identity"], identity))), found[1]
    given, inside = ([one for one in each if not one.keeps_the_horizon(stored)] for each in found)
    if not goes_on:
        given, inside = ([one for one in each if not one.decides_serving(algorithm)] for each in (given, inside))
    refused = [one for one in given + inside if not one.may_change]
    if goes_on and with_changes:
        _refuse(refused, place)
    else:
        _refuse(given or inside, place, may_change=goes_on and not refused)
    return given or inside


def _rates(differences: list[Difference], known: float | None, own: float | None) -> list[Difference]:
    """Differences of arguments; a searched rate means the one that was found, null the default.

    Args:
        differences: differences of arguments.
        known: the rate of the solver in the checkpoint.
        own: that of this run's solver.
    """
    found = []
    for one in differences:
        now = own if one.now is None else one.now
        if one.setting != "model.solver.lr":
            found.append(one)
        elif not is_searched(now) and now != known:
            before = f"{one.before}, which was {known}" if is_searched(one.before) else known
            found.append(one._replace(before=before, now=now))
    return found


def _refuse(differences: list[Difference], place: str, *, may_change: bool = False) -> None:
    """Raise a `ConfigError` that names the first differences, if any, and with `may_change` how to accept them."""
    if differences:
        way_out = "add --resume_with_changes to go on with the new ones, " if may_change else ""
        raise ConfigError(
            f"{place} is of another run: {'; '.join(map(str, differences[:4]))}. Give the same values, {way_out}"
            "or start a new run without --ckpt_path"
        )


# ---------------------------------------------------------------------- rounds that are added
def note_after_schedule(solver: LocalSolver, horizon: int, done: int, num_rounds: int) -> str:
    """A notice about rounds after the end of the schedule; empty if there are none.

    Args:
        solver: the local solver.
        horizon: length of the schedule in rounds, where the solver does not set it.
        done: completed rounds.
        num_rounds: rounds of the whole run.
    """
    horizon = solver.schedule_rounds or horizon
    first = max(done, horizon) + 1
    if not solver.has_horizon or first > num_rounds:
        return ""
    return (
        f"lit_fed: the schedule {solver.schedule} ends with round {horizon}; rounds {first} to {num_rounds} keep its "
        f"last learning rate, {float(solver.lr_at(num_rounds - 1, horizon)):.4g}; --resume_with_changes "
        "--model.solver.schedule_rounds sets another end\n"
    )


def changes_on_resume(
    stored: dict[str, Any], differences: list[Difference], done: int, num_rounds: int
) -> list[dict[str, Any]]:
    """All changes of a resumed run, oldest first, as plain types: setting, old and new value, rounds done by then.

    Args:
        stored: entry of the checkpoint under `CHECKPOINT_KEY`.
        differences: the new changes.
        done: completed rounds.
        num_rounds: rounds of the whole run.

    Raises:
        ConfigError: if no round is left to train with the changes.
    """
    if differences and done >= num_rounds:
        raise ConfigError(
            f"--resume_with_changes changes {differences[0].setting}, and all {num_rounds} rounds are done; give a "
            "larger --trainer.max_epochs, or leave it out"
        )
    if stored["num_rounds"] != num_rounds:
        differences = [*differences, Difference("trainer.max_epochs", stored["num_rounds"], num_rounds)]
    new = [{"after_rounds": done, "setting": one.setting, "from": one.before, "to": one.now} for one in differences]
    return [*stored["changes"], *new]


def content_of(checkpoint: dict[str, Any]) -> tuple[int | str, ...]:
    """Everything that the next round depends on: the same noise under another round could be removed."""
    own = checkpoint[CHECKPOINT_KEY]
    start = own["init_from"] or {"parameters": {}, "buffers": {}}
    models = {f"start/{name}": leaf for name, leaf in (start["parameters"] | start["buffers"]).items()}
    return digest_of(checkpoint["state_dict"] | models), checkpoint["global_step"], own["schedule_rounds"]


@dataclass
class RunHistory:
    """The history of a run, as its checkpoints keep it.

    Args:
        arguments: arguments of the command line, nested; {} without one.
        fingerprint: fingerprint of the data.
        changes: settings changed on resume, oldest first, see `changes_on_resume`.
        resume_with_changes: whether a fit may resume with other settings.
        resumes: whether the fit goes on from a checkpoint of the run.
        warm_start: models of another run that this one started from.
        noise: name of the noise secret in the checkpoint; "" if unknown.
        content: what the name stands for, see `content_of`.
        asks_otherwise: whether its questions to clients differ from those of a round that may have been interrupted.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    changes: list[dict[str, Any]] = field(default_factory=list)
    resume_with_changes: bool = False
    resumes: bool = False
    warm_start: WarmStart | None = None
    noise: str = ""
    content: tuple[int | str, ...] = ()
    asks_otherwise: bool = False

    def begin(
        self, ckpt_path: str | Path | None, init_from: str | None, *, resume_with_changes: bool, num_models: int,
        is_built: bool,
    ) -> str:  # fmt: skip
        """Take the arguments of a fit that name where it starts; returns a notice, or "".

        Args:
            ckpt_path: checkpoint of the run itself.
            init_from: checkpoint of another run.
            resume_with_changes: whether the run may resume with other settings.
            num_models: M of the algorithm.
            is_built: whether the module has a state already.

        Raises:
            ConfigError: if they contradict each other, or another run's checkpoint cannot be read.
        """
        if resume_with_changes and ckpt_path is None:
            raise ConfigError("--resume_with_changes is of a run that goes on; give its checkpoint by --ckpt_path")
        self.resume_with_changes, self.resumes = resume_with_changes, ckpt_path is not None
        if init_from is None:
            return ""
        if ckpt_path is not None:
            raise ConfigError(
                "--init_from begins a new run, and --ckpt_path goes on with one; leave one of them out (where a "
                "configuration says it, by --init_from null): a run that began so goes on from its own checkpoint alone"
            )
        if is_built:
            raise ConfigError("--init_from begins a new run, and this FederatedModule has been trained; pass a new one")
        self.warm_start = WarmStart.read(init_from)
        if not self.warm_start.num_models == 1 < num_models:
            return ""
        return (
            f"lit_fed: --init_from {init_from} has one model, from which all {num_models} start; the last layer of "
            "each is fresh, since equal models would stay equal\n"
        )

    def identity(self, federation: FederatedRounds) -> dict[str, Any]:
        """Identity that a resumed run must share with its checkpoint, with or without a command line."""
        criterion = federation.terms.task.criterion
        return {
            "algorithm": plain_settings(federation.algorithm),
            "solver": plain_settings(federation.terms.solver.given),
            "selection": plain_settings(federation.selection),
            "clients": federation.terms.num_clients,
            "client states in files": federation.store.in_files,
            "data (fingerprint)": self.fingerprint,
            "seed": federation.terms.seed,
            "loss": repr(None if criterion is None else criterion.loss),
            "loss.in_e_step": criterion is not None and criterion.loss.in_e_step,
            "target": repr(federation.terms.task.target),
            "data.augment": None if federation.terms.augmentation is None else federation.terms.augmentation.said,
        } | {f"{option.removeprefix('--')} (contents)": digest for option, digest in federation.algorithm.files.items()}

    def spent(self, federation: FederatedRounds, features: Sequence[Feature]) -> dict[str, Any] | None:
        """The privacy guarantee so far, with that of the models that the run started from; None: there is none."""
        warm = self.warm_start
        start = None if warm is None else warm.spent
        spent = (one.spent(federation, start, starts=warm is not None) for one in features)
        return next((one for one in spent if one is not None), None)

    def entry(self, federation: FederatedRounds, facts: TrainingFacts) -> dict[str, Any]:
        """What all checkpoints of a fit hold under `CHECKPOINT_KEY`, in plain types: all but metrics and guarantee.

        Args:
            federation: the algorithm with its server and its clients.
            facts: what it was built from, needed to serve unseen clients.
        """
        terms, store, warm = federation.terms, federation.store, self.warm_start
        per_block = min(facts.clients_per_block, store.clients_per_block)
        return {
            "identity": self.identity(federation),
            "arguments": self.arguments,
            "num_rounds": terms.num_rounds,
            "schedule_rounds": terms.solver.schedule_rounds or federation.schedule_rounds or terms.num_rounds,
            "changes": self.changes,
            "client_files": store.location,
            "init_from": None if warm is None else warm._asdict(),
            "noise": "",
            "serving": facts._replace(num_rounds=terms.num_rounds, clients_per_block=per_block).plain(),
            "frozen": federation.server.frozen_part.entry(),  # type: ignore[attr-defined] # of a `ModuleServer`
        }

    def restore(
        self, checkpoint: dict[str, Any], federation: FederatedRounds, features: Sequence[Feature],
        trainer: Trainer | None,
    ) -> dict[str, float]:  # fmt: skip
        """Take over the history of a checkpoint, find its client files and write a notice; returns the metrics.

        Args:
            checkpoint: its content, which is reduced to what Lightning may restore.
            federation: the algorithm with its server and its clients; gets number of rounds and schedule.
            features: around the algorithm.
            trainer: trainer of the run; None outside a run.

        Raises:
            ConfigError: if the checkpoint is of another run or another frozen part, files are missing, or no round is
                left to train with the changes.
        """
        goes_on = trainer is not None and bool(trainer.training)
        path = None if trainer is None else trainer.ckpt_path
        stored, terms = checkpoint.get(CHECKPOINT_KEY), federation.terms
        place = "the checkpoint" if path is None else f"--ckpt_path {path}"
        differences = refuse_other_run(
            stored, self.arguments, self.identity(federation), federation.algorithm, goes_on=goes_on,
            with_changes=self.resume_with_changes, place=place,
        )  # fmt: skip
        assert stored is not None
        for one in features if goes_on else ():  # without a command line no argument tells
            one.check_terms(stored["serving"], terms)
        federation.server.frozen_part.check(stored["frozen"])  # type: ignore[attr-defined] # of a `ModuleServer`
        if trainer is not None:
            keep_harmless(checkpoint, trainer, place)
        federation.store.find(checkpoint["state_dict"], path, stored["client_files"])
        self.warm_start = WarmStart.found_in(stored)
        if self.warm_start is not None:
            self.warm_start.restart(federation)
        self.changes, federation.schedule_rounds = list(stored["changes"]), int(stored["schedule_rounds"])
        self.noise, self.content = stored["noise"], content_of(checkpoint) if stored["noise"] else ()
        if not goes_on:
            federation.terms = terms._replace(num_rounds=stored["num_rounds"])
        else:
            rounds = checkpoint["global_step"], terms.num_rounds
            cut_off = rounds[0] < stored["num_rounds"] != rounds[1]
            self.asks_otherwise = self.resume_with_changes or cut_off
            if self.resume_with_changes:
                self.changes = changes_on_resume(stored, differences, *rounds)
            if trainer is not None and trainer.is_global_zero:
                sys.stderr.write(note_after_schedule(terms.solver, federation.schedule_rounds, *rounds))
        return dict(stored["results"])  # so that a finished run can report without another round
