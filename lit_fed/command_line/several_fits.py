"""Several fits of one command, each in a process of its own: what is over is not repeated, what was cut off goes on."""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lit_fed.callbacks.defaults import keep_notices_out
from lit_fed.callbacks.progress import time_left
from lit_fed.system.trials import CoreExecutor, Outcome, independent, run_trials
from lit_fed.training.output import print_line
from lit_fed.training.stopping import CutShort

__all__ = ["DECIDED", "Fit", "made"]

DECIDED = {
    "--model.algorithm": "give --candidates",
    "--name": "give --output",
    "--trainer.default_root_dir": "give --output",
    "--ckpt_path": "the same choose goes on after an interrupt",
    "--resume_with_changes": "each candidate is a new run",
    "--init_from": "each candidate starts from fresh models",
    "--seeds": "a choice has one seed, --seed_everything",
    "--trainer.logger": "each candidate leaves its folder",
}
"""Options of `fit` that `choose` does not take, and what stands in their place."""


class Fit(NamedTuple):
    """A fit."""

    arguments: tuple[str, ...]  # of the command `fit`, without a name and a folder
    folder: Path  # of its versions
    group: str = ""  # of several in one group, one is kept

    @property
    def name(self) -> str:
        """The name of its folder."""
        return self.folder.name

    @property
    def is_over(self) -> bool:
        """Whether it has left its summary, which is written last."""
        return (self.folder / "version_0" / "summary.json").is_file()


def made(fits: Sequence[Fit], run: Callable[[list[str]], Any], jobs: int, left_out: str) -> dict[str, str]:
    """Make the fits that are not over, some at a time; one that fails ends no other.

    Args:
        fits: the fits.
        run: runs a command line; other processes import it by its name.
        jobs: number of fits at a time.
        left_out: what is said of one that fails, behind its name.

    Returns:
        The last line of the error of each that failed, by name.

    Raises:
        CutShort: after Ctrl-C.
    """
    errors: dict[str, str] = {}
    waiting, ended, began = [one for one in fits if not one.is_over], list[Fit](), time.monotonic()

    def keep(fit: Fit, outcome: Outcome) -> None:
        ended.append(fit)
        if outcome.error is not None:
            errors[fit.name] = outcome.error
        said = f"{fit.name} is trained" if outcome.error is None else f"{fit.name} {left_out}: {outcome.error}"
        print_line(f"{said} ({time_left(len(ended), len(waiting), time.monotonic() - began)} left)")

    os.environ["OMP_NUM_THREADS"] = "1"  # one run, one core: for the processes that are started
    try:
        with CoreExecutor(jobs) as executor:
            run_trials(
                (independent([one]) for one in waiting), partial(_train, run), executor, jobs, keep=keep,
                failures=(Exception,),
            )  # fmt: skip
    except KeyboardInterrupt as error:
        raise CutShort("interrupted; the same command goes on from the last finished rounds", 130) from error
    return errors


def _train(run: Callable[[list[str]], Any], fit: Fit) -> bool:
    """Run a fit with one thread, from its last finished round."""
    import torch

    torch.set_num_threads(1)
    keep_notices_out()
    begun = (fit.folder / "version_0" / "checkpoints" / "last.ckpt").is_file()
    if not begun:
        shutil.rmtree(fit.folder / "version_0", ignore_errors=True)  # cut off before its first round was over
    fit.folder.mkdir(parents=True, exist_ok=True)
    with (fit.folder / "log.txt").open("a") as file, redirect_stdout(file), redirect_stderr(file):
        try:
            run([
                "fit", *fit.arguments, f"--trainer.default_root_dir={fit.folder.parent}", f"--name={fit.name}",
                "--trainer.enable_progress_bar=false", *(["--ckpt_path=last"] if begun else []),
            ])  # fmt: skip
        except Exception:
            traceback.print_exc()
            raise
    return True
