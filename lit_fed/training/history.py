"""What tells a run from others, and what was changed when it went on."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.rounds import FederatedRounds
from lit_fed.training.checkpoint import CHECKPOINT_KEY, refuse_other_run, refuse_other_terms, schedule_rounds
from lit_fed.training.resume import changes_on_resume, note_after_schedule
from lit_fed.training.warm_start import WarmStart
from lit_fed.wrappers.faults.wrapper import faults_of
from lit_fed.wrappers.privacy.settings import privacy_of, spent_by, whole_guarantee

__all__ = ["RunHistory"]


@dataclass
class RunHistory:
    """The history of a run, as its checkpoints tell it.

    Args:
        arguments: the arguments that the command line gave, nested; {} without one.
        fingerprint: of the data.
        changes: settings that were changed when the run went on, oldest first, see `changes_on_resume`.
        resume_with_changes: whether a fit may go on with some other settings.
        warm_start: models of another run that this one started from.
        noise: name of the secret that noise came from before the run went on; "": not known.
        asks_otherwise: whether it asks its clients otherwise than in a round that may have been interrupted.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    changes: list[dict[str, Any]] = field(default_factory=list)
    resume_with_changes: bool = False
    warm_start: WarmStart | None = None
    noise: str = ""
    asks_otherwise: bool = False

    def begin(
        self,
        ckpt_path: str | Path | None,
        init_from: str | None,
        *,
        resume_with_changes: bool,
        num_models: int,
        is_built: bool,
    ) -> str:
        """Take the arguments of a fit that say what it goes on from; returns what is to be said of them.

        Args:
            ckpt_path: checkpoint of the run itself.
            init_from: checkpoint of another run.
            resume_with_changes: whether it may go on with some other settings.
            num_models: M of the algorithm.
            is_built: whether the module has a state already.

        Raises:
            ConfigError: if they do not go together, or another run's checkpoint cannot be read.
        """
        if resume_with_changes and ckpt_path is None:
            raise ConfigError("--resume_with_changes is of a run that goes on; give its checkpoint by --ckpt_path")
        self.resume_with_changes = resume_with_changes
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

    def guarantee(self, federation: FederatedRounds, exact: bool = True) -> dict[str, Any]:
        """What differential privacy promises of the run's models, those included that it started from; {} without."""
        warm, ctx = self.warm_start, federation.context("plan")
        spent = None if warm is None else warm.spent
        return whole_guarantee(
            federation.algorithm, ctx, federation.shared, spent, starts=warm is not None, exact=exact
        )

    def identity(self, federation: FederatedRounds) -> dict[str, Any]:
        """What a resumed run must share with its checkpoint, where no command line says more."""
        criterion, faults = federation.terms.task.criterion, faults_of(federation.algorithm)
        files = {} if faults is None else faults.files
        return {
            "algorithm": repr(federation.algorithm),
            "solver": repr(federation.terms.solver),
            "clients": federation.terms.num_clients,
            "client states in files": federation.store.in_files,
            "data (fingerprint)": self.fingerprint,
            "seed": federation.terms.seed,
            "loss": repr(None if criterion is None else criterion.loss),
            "data.augment": None if federation.terms.augmentation is None else federation.terms.augmentation.said,
        } | {f"{option.removeprefix('--')} (contents)": digest for option, digest in files.items()}

    def entry(self, federation: FederatedRounds, facts: TrainingFacts, results: dict[str, float]) -> dict[str, Any]:
        """What a checkpoint keeps of the run beside its state, as plain types.

        Args:
            federation: the algorithm with its server and its clients.
            facts: what it was built from, which serving unseen clients takes to know.
            results: the latest metrics.
        """
        terms, store = federation.terms, federation.store
        horizon = terms.solver.schedule_rounds or federation.schedule_rounds or terms.num_rounds
        per_block = min(facts.clients_per_block, store.clients_per_block or facts.clients_per_block)
        frozen = federation.server.frozen_part.entry()  # type: ignore[attr-defined] # of a `ModuleServer`
        return ({} if frozen is None else {"frozen": frozen}) | {
            "identity": self.identity(federation),
            "arguments": self.arguments,
            "num_rounds": terms.num_rounds,
            "schedule_rounds": horizon,
            "changes": self.changes,
            "results": dict(results),
            "client_files": store.location,
            "init_from": None if self.warm_start is None else self.warm_start.plain(),
            "spent": spent_by(self.guarantee(federation, exact=False)),
            "noise": "" if terms.secret is None else terms.secret.name,
            "serving": facts._replace(num_rounds=terms.num_rounds, clients_per_block=per_block).plain(),
        }

    def restore(
        self, checkpoint: dict[str, Any], federation: FederatedRounds, trainer: Trainer | None
    ) -> dict[str, float]:
        """Take over the history of a checkpoint, as `load`, and say what there is to be said; returns the metrics."""
        goes_on = trainer is not None and bool(trainer.training)
        results, note = self.load(
            checkpoint, federation, None if trainer is None else trainer.ckpt_path, goes_on=goes_on
        )
        if note and (trainer is None or trainer.is_global_zero):
            sys.stderr.write(note)
        return results

    def load(
        self, checkpoint: dict[str, Any], federation: FederatedRounds, path: str | Path | None, *, goes_on: bool
    ) -> tuple[dict[str, float], str]:
        """Take over the history of a checkpoint, and find the client files that it needs.

        Args:
            checkpoint: its content.
            federation: the algorithm with its server and its clients; gets number of rounds and schedule.
            path: of the checkpoint; None where that is not known.
            goes_on: the run is a fit, which may be told to go on with changes.

        Returns:
            The latest metrics, and what to say of rounds that come after the end of the schedule.

        Raises:
            ConfigError: if the checkpoint is of another run or another frozen part, files are missing, or no round is
                left to be trained with the changes.
        """
        stored, terms = checkpoint.get(CHECKPOINT_KEY), federation.terms
        settings = {"algorithm": federation.algorithm, "solver": terms.solver}
        differences = refuse_other_run(
            stored, self.arguments, self.identity(federation), settings, goes_on=goes_on,
            with_changes=self.resume_with_changes,
        )  # fmt: skip
        assert stored is not None
        if goes_on and privacy_of(federation.algorithm) is not None:  # without a command line no argument tells
            refuse_other_terms(stored.get("serving", {}), terms)
        federation.server.frozen_part.load(stored.get("frozen"), checkpoint["state_dict"])  # type: ignore[attr-defined]
        federation.store.find(checkpoint["state_dict"], path, stored.get("client_files"))
        self.warm_start = WarmStart.found_in(stored)
        if self.warm_start is not None:
            self.warm_start.restart(federation)
        self.changes, federation.schedule_rounds = list(stored.get("changes", [])), schedule_rounds(stored)
        self.noise, note = stored.get("noise", ""), ""
        if goes_on:
            rounds = checkpoint["global_step"], terms.num_rounds
            cut_off = rounds[0] < stored["num_rounds"] != rounds[1]
            self.asks_otherwise = self.resume_with_changes or cut_off
            if self.resume_with_changes:
                self.changes = changes_on_resume(stored, differences, *rounds)
            note = note_after_schedule(terms.solver, federation.schedule_rounds, *rounds)
        else:
            federation.terms = terms._replace(num_rounds=stored["num_rounds"])
        return dict(stored["results"]), note  # what a finished run has to report without another round
