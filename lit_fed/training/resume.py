"""Going on with a run: how its schedule ends, and what may be changed on the way."""

from __future__ import annotations

from typing import Any

from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError
from lit_fed.training.checkpoint import Difference

__all__ = ["changes_on_resume", "note_after_schedule"]


def note_after_schedule(solver: LocalSolver, horizon: int, done: int, num_rounds: int) -> str:
    """What to say of rounds that come after the end of the schedule; empty if there are none.

    Args:
        solver: how clients train.
        horizon: rounds that the schedule was laid out for, where the solver does not say it.
        done: rounds that the run has behind it.
        num_rounds: rounds that it will have at its end.
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
    """All changes of a run that goes on with some, oldest first, as plain types.

    Args:
        stored: what the checkpoint says of its run.
        differences: settings that are other ones from now on.
        done: rounds that the run has behind it.
        num_rounds: rounds that it will have at its end.

    Returns:
        For each change the setting, its value before and from now on, and the rounds done at that time.

    Raises:
        ConfigError: if no round is left that would be trained with the changes.
    """
    if differences and done >= num_rounds:
        raise ConfigError(
            f"--resume_with_changes changes {differences[0].setting}, and all {num_rounds} rounds are done; give a "
            "larger --trainer.max_epochs, or leave it out"
        )
    if stored["num_rounds"] != num_rounds:
        differences = [*differences, Difference("trainer.max_epochs", stored["num_rounds"], num_rounds)]
    new = [{"after_rounds": done, "setting": one.setting, "from": one.before, "to": one.now} for one in differences]
    return [*stored.get("changes", []), *new]
