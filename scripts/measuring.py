"""Tools of bench.py's rows: medians in turns, rounds without Lightning, separate processes, clocks, a textbook."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.core.blocks import serving_blocks
from lit_fed.core.types import Split
from lit_fed.data.module import FederatedDataModule
from lit_fed.rounds import FederatedRounds, InMemoryServer
from lit_fed.serving import measure
from lit_fed.system.machine import peak_memory


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


def with_ratios(row: dict[str, float]) -> dict[str, float]:
    """The row with ratios of the textbook's CPU seconds and the others'."""
    return row | {f"textbook / {name}": row["textbook"] / row[name] for name in row if name != "textbook"}


class PlainLoop:
    """Rounds of a module without a trainer, on data that are set up; `bf16`: under autocast, as with bf16-mixed."""

    def __init__(self, data: FederatedDataModule, module: FederatedModule, *, bf16: bool = False) -> None:
        self.data, self.module, self.bf16 = data, module, bf16
        module.build(data.facts(weighting="samples", seed=0, num_rounds=10_000), *data.populations)
        built = module.federation
        server = InMemoryServer(module.shared, module.device)
        self.federation = FederatedRounds(built.algorithm, built.terms, server, lambda _: built.client_trainer)
        self.federation.store = module.store
        self.serving = serving_blocks(data.seen.test, data.seen.train, clients_per_block=data.clients_per_block)

    @torch.no_grad()
    def round(self) -> None:
        """One round over the cohort."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            cohort = self.data.cohort(seed=0, round_idx=self.federation.server.rounds_done)
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
    kept = {"logger": RoundLogger(folder, "bench")} if folder else {"logger": False, "enable_checkpointing": False}
    trainer = FederatedTrainer(accelerator="cpu", enable_progress_bar=False, **kept | options)
    trainer.fit(module, datamodule=data)
    return trainer


def peak_gigabytes() -> float:
    """Peak memory of this process."""
    return peak_memory() / 1e9


# ---------------------------------------------------------------------- the yardstick
Batches = Callable[[tuple[Tensor, ...], int, bool], Iterator[tuple[Tensor, ...]]]


def loader_batches(arrays: tuple[Tensor, ...], batch_size: int, shuffle: bool) -> Iterator[tuple[Tensor, ...]]:
    """Batches as a textbook makes them."""
    return iter(DataLoader(TensorDataset(*arrays), batch_size=batch_size, shuffle=shuffle))


def index_batches(arrays: tuple[Tensor, ...], batch_size: int, shuffle: bool) -> Iterator[tuple[Tensor, ...]]:
    """Batches of tensors by index."""
    total = len(arrays[0])
    order = torch.randperm(total) if shuffle else torch.arange(total)
    for lo in range(0, total, batch_size):
        yield tuple(array[order[lo : lo + batch_size]] for array in arrays)


class Textbook:
    """FedEM as a textbook would write it, the yardstick: one client, one component, one batch after another.

    Every client has a `DataLoader(TensorDataset)`, takes an E-step pass, and trains each component in a pass of its own
    with torch's SGD; the server averages state dicts.
    """

    def __init__(
        self, build: Callable[[], nn.Module], data: Split, *, batch_size: int = 128, batches: Batches = loader_batches,
        num_components: int = 3, sgd: dict[str, float] | None = None, keep_momentum: bool = False,
    ) -> None:  # fmt: skip
        self.data, self.batch_size, self.batches = data, batch_size, batches
        self.sgd = {"lr": 0.1} | (sgd or {})
        self.components = [build() for _ in range(num_components)]
        self.local = [build() for _ in range(num_components)]
        self.keep_momentum = keep_momentum
        self.momentum: dict[tuple[int, int], list[Tensor]] = {}
        self.mixture = torch.full((data.num_clients, num_components), 1 / num_components)

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log-loss of each sample, [B]: one logit, C logits or C logits at each position."""
        if outputs.shape[-1] == 1:
            return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.float(), reduction="none")
        each = nn.functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="none")
        return each.view(len(y), -1).mean(1)

    def e_step(self, client_id: int, x: Tensor, y: Tensor) -> Tensor:
        """Responsibilities [n, M] of one client; its mixture weights are updated."""
        for model in self.components:
            model.eval()
        with torch.no_grad():
            parts = []
            for some_x, some_y in self.batches((x, y), self.batch_size, False):
                parts.append(torch.stack([self.losses(model(some_x), some_y) for model in self.components], 1))
        q = torch.softmax(self.mixture[client_id].log() - torch.cat(parts), 1)
        self.mixture[client_id] = q.mean(0)
        return q

    def round(self) -> None:
        """One round over all clients."""
        sums = [{name: torch.zeros_like(leaf) for name, leaf in one.state_dict().items()} for one in self.components]
        total = len(self.data.y)
        for client_id in range(self.data.num_clients):
            client = self.data.client(client_id)
            q = self.e_step(client_id, client.x, client.y)
            for m, model in enumerate(self.local):
                model.load_state_dict(self.components[m].state_dict())
                model.train()
                optimizer = torch.optim.SGD(model.parameters(), **self.sgd)
                for leaf, kept in zip(model.parameters(), self.momentum.get((client_id, m), ()), strict=False):
                    optimizer.state[leaf]["momentum_buffer"] = kept
                arrays = (client.x, client.y, q[:, m])
                for x, y, weight in self.batches(arrays, self.batch_size, True):
                    loss = (self.losses(model(x), y) * weight).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                if self.keep_momentum:
                    buffers = [optimizer.state[leaf]["momentum_buffer"] for leaf in model.parameters()]
                    self.momentum[client_id, m] = buffers
                for name, leaf in model.state_dict().items():
                    if leaf.is_floating_point():
                        sums[m][name].add_(leaf, alpha=len(client.y) / total)
        for model, averaged in zip(self.components, sums, strict=True):
            model.load_state_dict(averaged)

    def evaluate(self, clients: int) -> float:
        """Hits over the samples of the first clients."""
        hits = 0.0
        with torch.no_grad():
            for client_id in range(clients):
                client = self.data.client(client_id)
                for x, y in self.batches((client.x, client.y), self.batch_size, False):
                    parts = torch.stack([torch.sigmoid(model(x)[:, 0]) for model in self.components], 1)
                    hits += float(((parts @ self.mixture[client_id] > 0.5) == (y > 0.5)).sum())
        return hits
