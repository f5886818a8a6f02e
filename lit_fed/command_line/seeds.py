"""`lit-fed fit --seeds N`: the same fit with several training seeds, and a table of means and deviations."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from lit_fed.command_line.arguments import divided, options_in
from lit_fed.command_line.compare import compare_runs
from lit_fed.command_line.several_fits import Fit, made
from lit_fed.errors import ConfigError
from lit_fed.system.folder_lock import claimed
from lit_fed.system.machine import cores
from lit_fed.training.output import check_writable, print_line

__all__ = ["fit_with_seeds"]

DECIDED = ("--seed_everything", "--ckpt_path", "--trainer.logger", "--report")
"""Options that several fits do not share."""


def fit_with_seeds(
    arguments: list[str], parse: Callable[[list[str]], Namespace], run: Callable[[list[str]], Any]
) -> None:
    """Run the command.

    Args:
        arguments: arguments of the command line, with `fit`.
        parse: parses the arguments of a run, without running it.
        run: runs a command line; other processes import it by its name.

    Raises:
        ConfigError: naming a refused argument; nothing has been run then.
        CutShort: after Ctrl-C.
        SystemExit: with status 1, if a fit failed.
    """
    with redirect_stderr(StringIO()):  # each fit says its notices itself
        config = parse(arguments).fit
    given = {option for option, _ in options_in(arguments)}
    if decided := [one for one in DECIDED if one in given]:
        raise ConfigError(f"{decided[0]} is of a single fit, and --seeds is given; leave one of them out")
    _, kept = divided(arguments[1:], ["--seeds"])
    folder = Path(config.trainer.default_root_dir) / config.name
    check_writable(folder, "--trainer.default_root_dir")
    fits = [Fit((*kept, f"--seed_everything={seed}"), folder / f"seed_{seed}") for seed in range(config.seeds)]
    jobs = min(len(cores()), len(fits))
    done = sum(one.is_over for one in fits)
    print_line(f"{len(fits)} fits in {folder}: {done} are done, {jobs} at a time; their output is in seed_N/log.txt")
    with claimed(folder, "series", {"options of fit": kept}, "--name"):
        errors = made(fits, run, jobs, "failed")
    over = [str(one.folder) for one in fits if one.is_over]
    if len(over) > 1:
        shutil.rmtree(folder / "comparison", ignore_errors=True)  # of an earlier start of this command
        compare_runs([*over, "--output", str(folder / "comparison"), "--names", config.name])
    if errors:
        raise SystemExit(1)
