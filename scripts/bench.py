"""Measure lit_fed's costs beside yardsticks in the same run; writes docs/results/speed.json and speed.md.

    python scripts/bench.py                     # all rows
    python scripts/bench.py fedem_round         # some rows

Values are process CPU seconds on one thread unless a row says otherwise, medians over turns; ratios within one run are
less noisy. The yardstick is a textbook loop (`Textbook` in scripts/measuring.py).
"""

import argparse
import inspect
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import bench_networks
import lightning
import numpy as np
import torch
from measuring import (
    PlainLoop,
    RoundClock,
    Textbook,
    fit,
    in_process,
    index_batches,
    medians,
    peak_gigabytes,
    with_ratios,
)  # fmt: skip
from torch import Tensor, nn
from trials import written

from lit_fed import FederatedModule, rounds
from lit_fed.algorithms import Ditto, FedAvg, FedEM, OfficialFedEM
from lit_fed.core.graphs.fastest_mixing import certified
from lit_fed.core.graphs.mixing import second_eigenvalue, weights_of
from lit_fed.core.graphs.topology import ErdosRenyi, adjacency
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.reduce import Accumulator
from lit_fed.core.seeds import uniforms
from lit_fed.core.targets import Multiclass
from lit_fed.core.task import Task
from lit_fed.core.types import Message, Split
from lit_fed.data import Synthetic
from lit_fed.data.module import FederatedDataModule
from lit_fed.models import LeafCNN
from lit_fed.rounds import FederatedRounds
from lit_fed.wrappers.base import AlgorithmWrapper
from lit_fed.wrappers.compression import codecs as kinds
from lit_fed.wrappers.compression.wrapper import Compressed
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.robust.rules import CenteredClipping
from lit_fed.wrappers.robust.wrapper import RobustAverage
from lit_fed.wrappers.secure.wrapper import SecureSum

ROOT = Path(__file__).resolve().parents[1]
BATCH = 128


def synthetic(test_size: int) -> FederatedDataModule:
    """The paper's synthetic data."""
    data = FederatedDataModule(Synthetic(test_size=test_size), batch_size=BATCH)
    data.setup()
    return data


def solver() -> LocalSolver:
    """The settings of the FedEM scripts."""
    return LocalSolver(momentum=0.9, weight_decay=5e-4)


def textbooks(data: Split) -> tuple[Textbook, Textbook]:
    """Rounds of the textbook on linear models with binary labels, with PyTorch's loader and with indexed tensors."""
    build, sgd = partial(nn.Linear, data.x.shape[1], 1), {"momentum": 0.9, "weight_decay": 5e-4}
    textbook = partial(Textbook, build, data, batch_size=BATCH, sgd=sgd)
    return textbook(), textbook(batches=index_batches)


# ---------------------------------------------------------------------- rows
def fedem_round() -> dict[str, float]:
    """FedEM on the synthetic data: CPU seconds of one round."""
    data = synthetic(test_size=1)
    ours = PlainLoop(data, FederatedModule(FedEM(), solver()))
    own_shuffles = PlainLoop(data, FederatedModule(OfficialFedEM(), solver()))
    textbook, by_index = textbooks(data.seen.train)
    for warm_up in (ours.round, own_shuffles.round, by_index.round):
        warm_up()
    timed = {"textbook": (textbook.round, 1), "by_index": (by_index.round, 1), "lit_fed": (ours.round, 10)}
    return with_ratios(medians(3, **timed, lit_fed_shuffle_per_component=(own_shuffles.round, 5)))


def evaluation() -> dict[str, float]:
    """Evaluation of all 1.5 million test points by mixtures of three models: CPU seconds."""
    data = synthetic(test_size=5000)
    ours = PlainLoop(data, FederatedModule(FedEM(), solver()))
    textbook, by_index = (partial(one.evaluate, 300) for one in textbooks(data.seen.test))
    ours.evaluate()
    return with_ratios(medians(3, textbook=(textbook, 1), by_index=(by_index, 1), lit_fed=(ours.evaluate, 5)))


def lightning_overhead() -> dict[str, float]:
    """Time that Lightning adds to a round with logging and checkpoints: a fit minus plain rounds, medians of rounds."""
    number = 150
    seconds: dict[str, list[float]] = {"fit": [], "plain": []}
    data = synthetic(test_size=1)
    for _ in range(3):
        plain = PlainLoop(data, FederatedModule(FedEM(), solver()))
        for _ in range(number):
            start = time.process_time()
            plain.round()
            seconds["plain"].append(time.process_time() - start)
        clock, module = RoundClock(), FederatedModule(FedEM(), solver())
        with tempfile.TemporaryDirectory() as folder:
            fit(data, module, folder, max_epochs=number, limit_val_batches=0, callbacks=[clock])
        seconds["fit"] += clock.seconds
    whole, plain_loop = (float(np.median(seconds[how])) for how in ("fit", "plain"))
    return {"fit": whole, "plain": plain_loop, "milliseconds per round": 1000 * (whole - plain_loop)}


def start_up() -> dict[str, float]:
    """From the command to the end of the first quickstart round: seconds, medians of five."""
    command = [sys.executable, "-m", "lit_fed", "fit", "--config", str(ROOT / "configs/experiment/quickstart.yaml")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "scripts")])}
    seconds: dict[str, list[float]] = {"wall seconds": [], "CPU seconds": []}
    for _ in range(5):
        with tempfile.TemporaryDirectory() as folder:
            given = ["--trainer.default_root_dir", folder, "--trainer.callbacks+=first_round.FirstRound"]
            start, used = time.perf_counter(), sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
            out = subprocess.run([*command, *given], capture_output=True, text=True, check=False, env=environment)
            seconds["wall seconds"].append(time.perf_counter() - start)
            seconds["CPU seconds"].append(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - used)
            assert "FIRST ROUND" in out.stdout, out.stderr
    return {what: float(np.median(measured)) for what, measured in seconds.items()}


@in_process
def memory() -> dict[str, float]:
    """Peak gigabytes over the data: 10,000 synthetic clients, 100 sampled per round, in a separate process."""
    dataset = Synthetic(num_clients=10_000, test_size=50)
    data = FederatedDataModule(dataset, batch_size=BATCH, clients_per_round=100)
    with tempfile.TemporaryDirectory() as folder:
        fit(data, FederatedModule(FedEM(), solver()), folder, max_epochs=3)
    splits = (data.seen.train, data.seen.val, data.seen.test)
    held = sum(split.x.nbytes + split.y.nbytes for split in splits) / 1e9
    peak = peak_gigabytes()
    return {"data GB": held, "peak GB": peak, "peak over data GB": peak - held}


def fmmc() -> dict[str, float]:
    """Fastest mixing weights of 300 clients, half of all edges: CPU seconds, and a bound on the gap to the optimum."""
    edges = adjacency(ErdosRenyi(0.5), 300, 0, 0)
    row = medians(3, lit_fed=(lambda: certified(edges), 1))
    found = certified(edges)
    metropolis = second_eigenvalue(weights_of(edges, "metropolis"))
    return row | {"SLEM": found.upper, "lower bound": found.lower, "SLEM of Metropolis weights": metropolis}


# ---------------------------------------------------------------------- wrappers and codecs
CLIENTS, CLASSES = 2, 10

AROUND: dict[str, Any] = {  # little noise, since much would stop the training, and costs the same
    "Around": AlgorithmWrapper,
    "ClientPrivacy": ClientPrivacy(1e-4, delta=1e-3, clip_norm=1.0).around,
    "LocalPrivacy": LocalPrivacy(1e-4, delta=1e-3, clip_norm=1.0).around,
    "SecureSum": SecureSum().around,
    "FloatCast": lambda inner: Compressed(inner, kinds.FloatCast()),
    "QSGD": lambda inner: Compressed(inner, kinds.QSGD()),
    "TopK with EF14": lambda inner: Compressed(inner, kinds.TopK(), "ef14"),
    "CenteredClipping": lambda inner: RobustAverage(inner, CenteredClipping()),
}

MESSAGES, NUMBERS = 20, 2**20


def federation(algorithm: Any, images: int, batch_size: int) -> tuple[FederatedRounds, Split]:
    """LEAF's network on random images of two clients, so many of each, which take an epoch."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(CLIENTS * images, 1, 28, 28, generator=rng)
    y = torch.randint(CLASSES, (CLIENTS * images,), generator=rng)
    train = Split(x, y, torch.arange(CLIENTS + 1) * images)
    task = Task.create(lambda: LeafCNN((1, 28, 28), CLASSES, dropout=0.0), Multiclass(CLASSES), 0)
    found = rounds.start(
        algorithm, task, train, solver=LocalSolver(lr=0.01), client_trainer="sequential", batch_size=batch_size,
        num_rounds=100, weighting="uniform",
    )  # fmt: skip
    return found, train


@torch.no_grad()
def wrappers() -> dict[str, float]:
    """A client's round of FedAvg with LEAF's network: CPU seconds, and the time inside wrappers in multiples of that.

    With 128 images in batches of 16, and with 500 in batches of 10, the least local work of FedAvg's paper.
    """
    row = {}
    for images, batch_size in ((128, 16), (500, 10)):
        algorithms = {"plain": FedAvg()} | {name: around(FedAvg()) for name, around in AROUND.items()}
        running = {name: federation(one, images, batch_size) for name, one in algorithms.items()}
        for one, train in running.values():
            one.round(train)
        functions = {name: (lambda one=one, train=train: one.round(train), 1) for name, (one, train) in running.items()}
        found = medians(7, **functions)
        row[f"plain, {images} images"] = found["plain"] / CLIENTS
        row |= {f"{name} / plain, {images} images": found[name] / found["plain"] for name in AROUND}
    return row


# ---------------------------------------------------------------------- codecs
MEASURED: dict[str, kinds.Codec] = {
    "FloatCast": kinds.FloatCast(), "Uniform": kinds.Uniform(), "QSGD": kinds.QSGD(),
    "QSGD, sparse": kinds.QSGD(coding="sparse"), "TernGrad": kinds.TernGrad(), "ScaledSign": kinds.ScaledSign(),
    "TopK, 1 %": kinds.TopK(), "RandomK, 1 %": kinds.RandomK(), "Drive": kinds.Drive(),
    "LowRank, rank 2": kinds.LowRank(),
}  # fmt: skip


def codecs() -> dict[str, float]:
    """A message of 2^20 numbers: CPU seconds to add it up at the server, and the time of each codec in multiples of it.

    Codecs that need random numbers get them; drawing them is a separate row. The sum is that of 20 messages in blocks
    of one, in float64, with the final division.
    """
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(MESSAGES, NUMBERS, generator=generator)
    chances = torch.rand(NUMBERS, generator=generator, dtype=torch.float64)
    one, client = torch.ones(1, dtype=torch.float64), torch.tensor(3)

    def server() -> None:
        accumulator = Accumulator("sum")
        for row in values.split(1):
            accumulator.add(Message({"w": row}, one, one, one), one, {})
        accumulator.reduce(torch.arange(MESSAGES), [MESSAGES])

    def client_with(codec: kinds.Codec) -> None:
        message: Tensor = values[0].view(1024, -1) if codec.keeps_shape else values[0]
        codec.encode(message, lambda count: chances[:count])

    functions = {name: (lambda codec=codec: client_with(codec), 5) for name, codec in MEASURED.items()}
    functions["random numbers"] = (lambda: uniforms(0, 1, client, "bench", NUMBERS), 5)
    row = medians(3, weighted_mean=(server, 1), **functions)
    mean = row.pop("weighted_mean") / MESSAGES
    return {"weighted mean": mean} | {f"{name} / weighted mean": seconds / mean for name, seconds in row.items()}


# ---------------------------------------------------------------------- a million clients
ROUNDS = 12


def many_clients() -> dict[str, float]:
    """FedEM, clients generated on demand, 100 of 1,000 or of 1,000,000 per round: costs of a round.

    A round includes its evaluation of 100 clients, its log and its checkpoint.
    """
    return _few_and_many("FedEM", 1_000_000)


def many_models() -> dict[str, float]:
    """Ditto, each client with a personal model in files, 100 of 1,000 or of 100,000 per round.

    A round includes its evaluation of 100 clients, its log and its checkpoint; a model is 1.2 kB. `files` is the
    largest number of files that a round writes.
    """
    return _few_and_many("Ditto", 100_000)


def _few_and_many(algorithm: str, most: int) -> dict[str, float]:
    """Values for a thousand clients and for many more, in turns of separate processes."""
    turns = [[costs_of_round(algorithm, number) for number in (1_000, most)] for _ in range(3)]
    row: dict[str, float] = {}
    for figure in turns[0][0]:
        for position, number in enumerate((1_000, most)):
            row[f"{figure}, {number:,} clients"] = float(np.median([turn[position][figure] for turn in turns]))
    name = "CPU seconds of a round"
    row[f"{name}, {most:,} / 1,000"] = row[f"{name}, {most:,} clients"] / row[f"{name}, 1,000 clients"]
    return row


@in_process
def costs_of_round(algorithm: str, num_clients: int) -> dict[str, float]:
    """The costs of some rounds."""
    whole_models = algorithm == "Ditto"
    sizes: dict[str, Any] = {"dimension": 300, "test_size": 5} if whole_models else {"test_size": 50}
    dataset = Synthetic(num_clients=num_clients, variant="corrected", on_demand=True, **sizes)
    data = FederatedDataModule(dataset, batch_size=128, clients_per_round=100, eval_clients=100)
    chosen, memory_gb = (Ditto(), 0.0) if whole_models else (FedEM(), 2.0)
    module = FederatedModule(chosen, LocalSolver(), client_memory_gb=memory_gb)
    with tempfile.TemporaryDirectory() as folder:
        watch = Watch(Path(folder))
        fit(data, module, folder, max_epochs=ROUNDS, callbacks=[watch])
        (last,) = Path(folder).rglob("last.ckpt")
        row = {"CPU seconds of a round": float(np.median(watch.seconds[1:])), "peak GB": peak_gigabytes()}
        row["checkpoint MB"] = last.stat().st_size / 1e6
    return row | ({"files": float(max(watch.written))} if whole_models else {})


class Watch(RoundClock):
    """CPU seconds of each round, and the number of client files it wrote."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.written: list[int] = []
        self._known: set[str] = set()

    def between_rounds(self) -> None:
        """Count files."""
        found = {path.name for path in self._folder.rglob("clients/*.pt")}
        self.written.append(len(found - self._known))
        self._known = found


OWN = (fedem_round, evaluation, lightning_overhead, start_up, memory, fmmc, many_clients, many_models)
ROWS = {one.__name__: one for one in (*OWN, *bench_networks.ROWS, codecs, wrappers)}


def page(rows: dict[str, dict[str, Any]]) -> str:
    """docs/results/speed.md, whose words are in bench.md."""
    lines: list[str] = []
    for name in [one for one in ROWS if one in rows]:
        row = dict(rows[name])
        facts = {key: row.pop(key) for key in FACTS}
        lines += ["", f"## {name}", "", inspect.cleandoc(facts.pop("what")), "", "| figure | value |", "|---|---|"]
        lines += [f"| {key} | {value:g} |" for key, value in row.items()]
        lines += ["", ", ".join(f"{key} {value}" for key, value in facts.items()) + "."]
    return written(__file__, {"findings": findings(rows), "rows": lines[1:]})


def findings(rows: dict[str, dict[str, Any]]) -> list[str]:
    """The findings at the top of the page."""
    told = {
        "fedem_round": "A round of FedEM with 300 clients takes {lit_fed:.2g} CPU seconds, {textbook / lit_fed:.0f} "
        "times less than a textbook program.",
        "lightning_overhead": "Lightning adds {milliseconds per round:.2g} milliseconds to a round.",
        "start_up": "A run starts in {CPU seconds:.2g} CPU seconds, the first round of the quickstart included, "
        "in fresh processes with compiled modules.",
    }
    found = [text.format(**rows[name]) for name, text in told.items() if name in rows]
    return [f"**{one}**" for one in found]


FACTS = ("what", "load", "torch", "lightning", "python", "date")  # facts kept with the values of a row


def main() -> None:
    """Measure the requested rows and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", choices=[*ROWS, []], help=f"of {', '.join(ROWS)}; all without")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/speed.json")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(chosen.out.read_text()) if chosen.out.is_file() else {}
    for name in chosen.rows or ROWS:
        start, load = time.time(), os.getloadavg()[0]
        row = {key: float(f"{value:.4g}") for key, value in ROWS[name]().items()}
        kept[name] = {
            "what": (ROWS[name].__doc__ or "").strip(), **row,
            "load": round(load, 2), "torch": torch.__version__, "lightning": lightning.__version__,
            "python": platform.python_version(), "date": time.strftime("%Y-%m-%d"),
        }  # fmt: skip
        print(f"{name} ({time.time() - start:.0f} s): {json.dumps(row)}", flush=True)
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(kept, indent=2) + "\n")
        chosen.out.with_suffix(".md").write_text(page(kept))


if __name__ == "__main__":
    main()
