"""Tools of bench.py's rows: medians in turns, rounds without Lightning, separate processes, clocks of rounds."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.core.blocks import serving_blocks
from lit_fed.data.module import FederatedDataModule
from lit_fed.rounds import FederatedRounds, InMemoryServer
from lit_fed.serving import measure


def medians(repetitions: int, **functions: tuple[Callable[[], Any], int]) -> dict[str, float]:
    """Median process CPU seconds of each function, with its calls per turn; in turns all see the same load."""
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, (function, times) in functions.items():
            for _ in range(times):
                start = time.process_time()
                function()
                seconds[name].append(time.process_time() - start)
    return {name: float(np.median(measured)) for name, measured in seconds.items()}


def with_ratios(row: dict[str, float], yardstick: str = "textbook") -> dict[str, float]:
    """The row with ratios of the yardstick's CPU seconds and the others'."""
    others = [name for name in row if name != yardstick]
    return row | {f"{yardstick} / {name}": row[yardstick] / row[name] for name in others}


class PlainLoop:
    """Rounds of a module without a trainer, on data that are set up; `bf16`: under autocast, as with bf16-mixed."""

    def __init__(self, data: FederatedDataModule, module: FederatedModule, *, bf16: bool = False) -> None:
        self.data, self.module, self.bf16 = data, module, bf16
        module.build(data.facts(weighting="samples", seed=0, num_rounds=10_000), *data.populations)
        built = module.federation
        server = InMemoryServer(built.terms.task, module.shared, module.device)
        self.federation = FederatedRounds(built.algorithm, built.terms, server, lambda _: built.client_trainer)
        self.federation.store = module.store
        self.serving = serving_blocks(data.seen.test, data.seen.train, clients_per_block=data.clients_per_block)

    @torch.no_grad()
    def round(self) -> None:
        """One round over the cohort."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            cohort = self.data._draw(seed=0, round_idx=self.federation.server.rounds_done)
            self.federation.round(self.data.seen.train, cohort)

    @torch.no_grad()
    def evaluate(self) -> None:
        """One evaluation over all clients."""
        table = self.module.tables["seen"]
        for block in self.serving:
            for positions, rows in measure(self.federation, block, seen=True):
                table.update(positions, rows)
        table.reset()


def in_process(function: Callable[..., dict[str, float]]) -> Callable[..., dict[str, float]]:
    """Run a function in a process of its own on one thread; `environment` is added to that of this process."""

    @wraps(function)
    def call(*given: Any, environment: dict[str, str] | None = None, **options: Any) -> dict[str, float]:
        module, name = Path(function.__code__.co_filename).stem, function.__name__
        program = (
            f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import torch, {module}; "
            f"torch.set_num_threads(1); print(json.dumps({module}.{name}.__wrapped__(*{given!r}, **{options!r})))"
        )
        env = {**os.environ, **(environment or {})}
        out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)
        if out.returncode:
            raise RuntimeError(out.stderr)
        return json.loads(out.stdout.splitlines()[-1])  # type: ignore[no-any-return]

    return call


class RoundClock(Callback):
    """Seconds from the start of each round to the start of the next."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        self.clock, self.seconds = clock, []  # type: ignore[var-annotated]
        self._since: float | None = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """A round starts where the last one ended."""
        now = self.clock()
        if self._since is not None:
            self.seconds.append(now - self._since)
        self.between_rounds()
        self._since = self.clock()

    def between_rounds(self) -> None:
        """Work that does not count."""


def fit(
    data: FederatedDataModule, module: FederatedModule, folder: str | None = None, **options: Any
) -> FederatedTrainer:
    """Train on a CPU without a progress bar; with a folder log and keep checkpoints there, else neither."""
    kept = (
        {"logger": False, "enable_checkpointing": False} if folder is None else {"logger": RoundLogger(folder, "bench")}
    )
    trainer = FederatedTrainer(accelerator="cpu", enable_progress_bar=False, **kept | options)
    trainer.fit(module, datamodule=data)
    return trainer


def peak_gigabytes() -> float:
    """Peak memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
