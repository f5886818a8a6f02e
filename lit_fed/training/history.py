"""What tells a run from others, and what was changed when it went on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lit_fed.data.facts import TrainingFacts
from lit_fed.rounds import Federation
from lit_fed.training.checkpoint import CHECKPOINT_KEY, refuse_other_run, schedule_rounds
from lit_fed.training.resume import changes_on_resume, note_after_schedule

__all__ = ["RunHistory"]


@dataclass
class RunHistory:
    """The history of a run, as its checkpoints tell it.

    Args:
        arguments: the arguments that the command line gave, nested; {} without one.
        fingerprint: of the data.
        changes: settings that were changed when the run went on, oldest first, see `changes_on_resume`.
        resume_with_changes: whether a fit may go on with some other settings.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    fingerprint: str = ""
    changes: list[dict[str, Any]] = field(default_factory=list)
    resume_with_changes: bool = False

    def identity(self, federation: Federation) -> dict[str, Any]:
        """What a resumed run must share with its checkpoint, where no command line says more."""
        return {
            "algorithm": repr(federation.algorithm),
            "solver": repr(federation.terms.solver),
            "clients": federation.terms.num_clients,
            "client states in files": federation.store.in_files,
            "data (fingerprint)": self.fingerprint,
            "seed": federation.terms.seed,
            "data.augment": None if federation.terms.augmentation is None else federation.terms.augmentation.said,
        }

    def entry(self, federation: Federation, facts: TrainingFacts, results: dict[str, float]) -> dict[str, Any]:
        """What a checkpoint keeps of the run beside its state, as plain types.

        Args:
            federation: the algorithm with its server and its clients.
            facts: what it was built from, which serving unseen clients takes to know.
            results: the latest metrics.
        """
        terms, store = federation.terms, federation.store
        horizon = terms.solver.schedule_rounds or federation.schedule_rounds or terms.num_rounds
        per_block = min(facts.clients_per_block, store.clients_per_block or facts.clients_per_block)
        return {
            "identity": self.identity(federation),
            "arguments": self.arguments,
            "num_rounds": terms.num_rounds,
            "schedule_rounds": horizon,
            "changes": self.changes,
            "results": dict(results),
            "client_files": store.location,
            "serving": facts._replace(num_rounds=terms.num_rounds, clients_per_block=per_block).plain(),
        }

    def load(
        self, checkpoint: dict[str, Any], federation: Federation, path: str | Path | None, *, goes_on: bool
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
            ConfigError: if the checkpoint is of another run, files are missing, or no round is left to be trained with
                the changes.
        """
        stored, terms = checkpoint.get(CHECKPOINT_KEY), federation.terms
        settings = {"algorithm": federation.algorithm, "solver": terms.solver}
        differences = refuse_other_run(
            stored, self.arguments, self.identity(federation), settings, goes_on=goes_on,
            with_changes=self.resume_with_changes,
        )  # fmt: skip
        assert stored is not None
        federation.store.find(checkpoint["state_dict"], path, stored.get("client_files"))
        self.changes, federation.schedule_rounds = list(stored.get("changes", [])), schedule_rounds(stored)
        note = ""
        if goes_on:
            rounds = checkpoint["global_step"], terms.num_rounds
            if self.resume_with_changes:
                self.changes = changes_on_resume(stored, differences, *rounds)
            note = note_after_schedule(terms.solver, federation.schedule_rounds, *rounds)
        else:
            federation.terms = terms._replace(num_rounds=stored["num_rounds"])
        return dict(stored["results"]), note  # what a finished run has to report without another round
