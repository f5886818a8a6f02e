"""Measures what lit_fed costs against two yardsticks in the same run, and writes docs/results/speed.json.

    python scripts/bench.py                     # all rows
    python scripts/bench.py fedem_round         # some rows

All figures are process CPU seconds on one thread, medians over turns, and ratios within one run: machines are noisy,
ratios less so. The yardsticks are a textbook loop (`DataLoader(TensorDataset)` of batch 128 for each client, an
E-step pass, one training pass per component, torch's SGD) and the same loop over tensors by index.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import lightning
import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lit_fed.algorithms import FedEM
from lit_fed.callbacks import with_defaults
from lit_fed.core import tree
from lit_fed.core.local import LocalSolver
from lit_fed.core.types import Split
from lit_fed.data import Synthetic
from lit_fed.data.module import FederatedDataModule, round_blocks, serving_blocks
from lit_fed.training import FederatedModule, FederatedTrainer, RoundLogger

ROOT = Path(__file__).resolve().parents[1]
BATCH, M = 128, 3


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


# ---------------------------------------------------------------------- yardsticks
def loader_batches(x: Tensor, y: Tensor, shuffle: bool) -> Any:
    """Batches as a textbook makes them."""
    return DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=shuffle)


def index_batches(x: Tensor, y: Tensor, shuffle: bool) -> Any:
    """Batches of tensors by index."""
    order = torch.randperm(len(y)) if shuffle else torch.arange(len(y))
    for lo in range(0, len(y), BATCH):
        yield x[order[lo : lo + BATCH]], y[order[lo : lo + BATCH]]


class Yardstick:
    """FedEM on linear models with binary labels, one client and one component after another."""

    def __init__(self, batches: Callable[[Tensor, Tensor, bool], Any], data: Split) -> None:
        self.batches, self.data = batches, data
        dimension = data.x.shape[1]
        self.components = [nn.Linear(dimension, 1) for _ in range(M)]
        self.local = [nn.Linear(dimension, 1) for _ in range(M)]
        self.mixture = torch.full((data.num_clients, M), 1 / M)
        self.loss = nn.BCEWithLogitsLoss(reduction="none")

    def client(self, client_id: int) -> tuple[Tensor, Tensor]:
        """Samples and labels of one client."""
        lo, hi = int(self.data.offsets[client_id]), int(self.data.offsets[client_id + 1])
        return self.data.x[lo:hi], self.data.y[lo:hi].float()

    def e_step(self, client_id: int, x: Tensor, y: Tensor) -> Tensor:
        """Responsibilities of one client; its mixture weights are updated."""
        with torch.no_grad():
            parts = [
                torch.stack([self.loss(one(some_x)[:, 0], some_y) for one in self.components], 1)
                for some_x, some_y in self.batches(x, y, False)
            ]
            q = torch.softmax(self.mixture[client_id].log() - torch.cat(parts), 1)
            self.mixture[client_id] = q.mean(0)
        return q

    def round(self) -> None:
        """One round over all clients."""
        sums = [[torch.zeros_like(p) for p in one.parameters()] for one in self.components]
        total = len(self.data.y)
        for client_id in range(self.data.num_clients):
            x, y = self.client(client_id)
            q = self.e_step(client_id, x, y)
            for m, model in enumerate(self.local):
                model.load_state_dict(self.components[m].state_dict())
                sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
                labelled = torch.stack([y, q[:, m]], 1)
                for some_x, some_y in self.batches(x, labelled, True):
                    loss = (self.loss(model(some_x)[:, 0], some_y[:, 0]) * some_y[:, 1]).mean()
                    sgd.zero_grad()
                    loss.backward()
                    sgd.step()
                for total_p, p in zip(sums[m], model.parameters(), strict=True):
                    total_p.add_(p.detach(), alpha=len(y) / total)
        for model, averaged in zip(self.components, sums, strict=True):
            for p, mean in zip(model.parameters(), averaged, strict=True):
                p.data.copy_(mean)

    def evaluate(self, clients: int) -> float:
        """Accuracy over the first clients."""
        correct = 0.0
        with torch.no_grad():
            for client_id in range(clients):
                x, y = self.client(client_id)
                for some_x, some_y in self.batches(x, y, False):
                    parts = [torch.sigmoid(one(some_x)[:, 0]) for one in self.components]
                    p = torch.stack(parts, 1) @ self.mixture[client_id]
                    correct += float(((p > 0.5) == (some_y > 0.5)).sum())
        return correct


# ---------------------------------------------------------------------- lit_fed without Lightning
class PlainLoop:
    """Rounds of a module without a trainer."""

    def __init__(self, data: FederatedDataModule, module: FederatedModule) -> None:
        self.data, self.module = data, module
        module.build(data.target, data.input_shape, data.seen, batch_size=BATCH)
        module.num_rounds = 10_000
        self.serving = serving_blocks(data.seen.test, data.seen.train, clients_per_block=data.clients_per_block)

    @torch.no_grad()
    def round(self) -> None:
        """One round over the cohort."""
        module = self.module
        cohort = self.data._draw(module.seed, module.num_rounds_done)
        blocks = round_blocks(module.phases(cohort), self.data.seen.train, batch_size=BATCH, clients_per_block=1024)
        for block in blocks:
            module.training_step(block, 0)
            if block.ends_phase:
                reduced = module.reduce_messages()
                module.exchange_states()
                module.server_step(reduced)
        for name, leaf in zip(module._leaf_names, tree.leaves(module.shared), strict=True):
            getattr(module, name).data.copy_(leaf)
        module._staged_shared = None
        module.store.commit()
        module.rounds += 1

    @torch.no_grad()
    def evaluate(self) -> None:
        """One evaluation over all clients."""
        for block in self.serving:
            self.module.measure(block, "seen")
        self.module.tables["seen"].reset()


def synthetic(test_size: int) -> FederatedDataModule:
    """The paper's synthetic data."""
    data = FederatedDataModule(Synthetic(test_size=test_size), batch_size=BATCH)
    data.setup()
    return data


def solver() -> LocalSolver:
    """The settings of the FedEM scripts."""
    return LocalSolver(momentum=0.9, weight_decay=5e-4)


# ---------------------------------------------------------------------- rows
def fedem_round() -> dict[str, float]:
    """FedEM on the synthetic data: CPU seconds of one round."""
    data = synthetic(test_size=1)
    ours = PlainLoop(data, FederatedModule(FedEM(), solver()))
    own_shuffles = PlainLoop(data, FederatedModule(FedEM(shuffle_per_component=True), solver()))
    textbook, by_index = Yardstick(loader_batches, data.seen.train), Yardstick(index_batches, data.seen.train)
    for warm_up in (ours.round, own_shuffles.round, by_index.round):
        warm_up()
    row = medians(
        3,
        textbook=(textbook.round, 1),
        by_index=(by_index.round, 1),
        lit_fed=(ours.round, 10),
        lit_fed_shuffle_per_component=(own_shuffles.round, 5),
    )
    return with_ratios(row)


def evaluation() -> dict[str, float]:
    """Evaluation of all 1.5 million test points by mixtures of three models: CPU seconds."""
    data = synthetic(test_size=5000)
    ours = PlainLoop(data, FederatedModule(FedEM(), solver()))
    textbook, by_index = Yardstick(loader_batches, data.seen.test), Yardstick(index_batches, data.seen.test)
    ours.evaluate()
    row = medians(
        3,
        textbook=(lambda: textbook.evaluate(300), 1),
        by_index=(lambda: by_index.evaluate(300), 1),
        lit_fed=(ours.evaluate, 5),
    )
    return with_ratios(row)


def with_ratios(row: dict[str, float]) -> dict[str, float]:
    """How many times fewer CPU seconds than the yardsticks."""
    return row | {
        "ratio": row["textbook"] / row["lit_fed"],
        "ratio to by_index": row["by_index"] / row["lit_fed"],
    }


def lightning_overhead() -> dict[str, float]:
    """What Lightning adds to a round with logging and checkpoints: a fit minus the same plain rounds, median rounds."""
    rounds = 150
    seconds: dict[str, list[float]] = {"fit": [], "plain": []}
    data = synthetic(test_size=1)
    for _ in range(3):  # in turn, so that both see the machine in the same moods
        plain = PlainLoop(data, FederatedModule(FedEM(), solver()))
        for _ in range(rounds):
            start = time.process_time()
            plain.round()
            seconds["plain"].append(time.process_time() - start)
        with tempfile.TemporaryDirectory() as folder:
            trainer = FederatedTrainer(
                accelerator="cpu",
                max_epochs=rounds,
                limit_val_batches=0,
                logger=RoundLogger(folder, "bench"),
                callbacks=[*with_defaults([], progress=False), Clock(seconds["fit"])],
                enable_progress_bar=False,
                enable_model_summary=False,
            )
            trainer.fit(FederatedModule(FedEM(), solver()), datamodule=data)
    fit, plain_loop = (float(np.median(seconds[how])) for how in ("fit", "plain"))
    return {"fit": fit, "plain": plain_loop, "milliseconds per round": 1000 * (fit - plain_loop)}


class Clock(lightning.pytorch.Callback):
    """CPU seconds from the start of each round to the start of the next."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.start: float | None = None

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """A round begins where the one before ended."""
        now = time.process_time()
        if self.start is not None:
            self.seconds.append(now - self.start)
        self.start = now


def start_up() -> dict[str, float]:
    """Wall seconds from the command to the end of the first quickstart round (median of three)."""
    program = (
        "import sys, time; from lightning.pytorch import Callback\n"
        "import lit_fed.training.module as m\n"
        "done = m.FederatedModule.commit_round\n"
        "def commit(self):\n    done(self); sys.stdout.write('FIRST ROUND\\n'); sys.stdout.flush(); sys.exit(0)\n"
        "m.FederatedModule.commit_round = commit\n"
        "from lit_fed.cli import main; main()"
    )
    seconds = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            config = ROOT / "configs/experiment/quickstart.yaml"
            command = [sys.executable, "-c", program, "fit", "--config", str(config)]
            start = time.perf_counter()
            out = subprocess.run(
                [*command, "--trainer.default_root_dir", folder], capture_output=True, text=True, check=False
            )
            seconds.append(time.perf_counter() - start)
            assert "FIRST ROUND" in out.stdout, out.stderr
    return {"wall seconds": float(np.median(seconds))}


def memory() -> dict[str, float]:
    """Peak gigabytes over the data: 10,000 synthetic clients, 100 sampled per round, in a process of its own."""
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import bench; bench.memory_child()"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout.splitlines()[-1])


def memory_child() -> None:
    """Train three rounds with an evaluation and print the peak."""
    dataset = Synthetic(num_clients=10_000, test_size=50)
    data = FederatedDataModule(dataset, batch_size=BATCH, clients_per_round=100)
    with tempfile.TemporaryDirectory() as folder:
        trainer = FederatedTrainer(
            accelerator="cpu", max_epochs=3, logger=RoundLogger(folder, "bench"),
            callbacks=with_defaults([], progress=False), enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(FederatedModule(FedEM(), solver()), datamodule=data)
    splits = (data.seen.train, data.seen.val, data.seen.test)
    held = sum(split.x.nbytes + split.y.nbytes for split in splits) / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    sys.stdout.write(json.dumps({"data GB": held, "peak GB": peak, "peak over data GB": peak - held}) + "\n")


ROWS = {function.__name__: function for function in (fedem_round, evaluation, lightning_overhead, start_up, memory)}


def main() -> None:
    """Measure the rows asked for and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help=f"of {', '.join(ROWS)}; all without")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/speed.json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(chosen.out.read_text()) if chosen.out.is_file() else {}
    for name in chosen.rows or ROWS:
        start = time.time()
        row = {key: float(f"{value:.4g}") for key, value in ROWS[name]().items()}
        kept[name] = {
            "what": (ROWS[name].__doc__ or "").strip(), **row,
            "load": round(os.getloadavg()[0], 2), "torch": torch.__version__, "lightning": lightning.__version__,
            "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
        }  # fmt: skip
        print(f"{name} ({time.time() - start:.0f} s): {json.dumps(row)}", flush=True)
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main()
