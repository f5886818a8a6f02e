"""What the rows of bench.py measure with: medians in turn, rounds without Lightning, processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lit_fed import FederatedModule
from lit_fed.core.blocks import serving_blocks
from lit_fed.data.module import FederatedDataModule
from lit_fed.rounds import FederatedRounds, InMemoryServer
from lit_fed.serving import measure

__all__ = ["PlainLoop", "in_process", "medians", "with_ratios"]


def medians(repetitions: int, **functions: tuple[Callable[[], Any], int]) -> dict[str, float]:
    """Median process CPU seconds of each function.

    Args:
        repetitions: how often the functions are measured in turn, so that all see the machine in the same moods.
        functions: name -> function and how often it runs in each turn.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repetitions):
        for name, (function, times) in functions.items():
            for _ in range(times):
                start = time.process_time()
                function()
                seconds[name].append(time.process_time() - start)
    return {name: float(np.median(measured)) for name, measured in seconds.items()}


def with_ratios(row: dict[str, float], yardstick: str = "textbook") -> dict[str, float]:
    """The row with how many times fewer CPU seconds everything else takes than the yardstick."""
    others = [name for name in row if name != yardstick]
    return row | {f"{yardstick} / {name}": row[yardstick] / row[name] for name in others}


class PlainLoop:
    """Rounds of a module without a trainer.

    Args:
        data: the data, set up.
        module: the module; its state is built here.
        bf16: run under bf16 autocast, as Lightning does with bf16-mixed.
    """

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


def in_process(module: str, call: str, environment: dict[str, str] | None = None) -> dict[str, float]:
    """Run `module.call` in a process of its own; it prints its row as JSON in the last line.

    Args:
        module: a file of this folder, without ending.
        call: a call of one of its functions.
        environment: variables to be set.
    """
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import {module}; {module}.{call}"
    env = {**os.environ, **(environment or {})}
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=env)
    if out.returncode:
        raise RuntimeError(out.stderr)
    return json.loads(out.stdout.splitlines()[-1])
