"""Keeps a machine busy with runs of the tables of reproduce.py: several processes at a time, most urgent first.

    python scripts/run_queue.py PLAN --records DIR --data.root DIR [--slots 12] [--gpu_memory_gb 70]

PLAN is a JSON list of [table, run, place, GB on the device]; place is gpu or cpu, a run's name may end in *. It is read
again every second, so that it can be changed under way. A run whose learning rate is being chosen in
fedem-images-tuning waits for those runs; the best rate is then written where fedem_images.py reads it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.process
import os
import sys
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

__all__ = ["Entry", "main"]

SCALE = os.environ.get("RUN_QUEUE_SCALE", "reduced")
TUNING = "fedem-images-tuning"
RATES = ROOT / "scripts/reproduction/image_rates.json"


class Entry(NamedTuple):
    """A run of the plan."""

    table: str
    run: str
    place: str
    gigabytes: float
    scale: str = SCALE
    seed: int = 1
    instead_of: str = ""  # a run of the plan: this one is made only if that one failed


def entries(plan: Path, records: Path) -> Iterator[Entry]:
    """The plan with its stars written out, without what has a record."""
    import importlib

    import reproduction.fedem_images as images
    from reproduction import registry, when_mixtures_help
    from reproduction.runs import Kept

    rates = json.loads(RATES.read_text())
    if rates != images.RATES:
        importlib.reload(images), importlib.reload(when_mixtures_help), importlib.reload(registry)
    for line in json.loads(plan.read_text()):
        entry = Entry(*line)
        runs = registry.TABLES[entry.table].runs(entry.scale, [entry.seed])
        chosen = (one for one in runs if fnmatch(one.name, entry.run))
        yield from (
            entry._replace(run=one.name) for one in chosen if not Kept(records / entry.scale).path(one).is_file()
        )


def needed(entry: Entry) -> set[str]:
    """Settings and methods whose rates a run takes."""
    if entry.table == "when-mixtures-help":
        return {f"images_cifar10/{one}" for one in ("local", "fedavg", "fedavg_plus", "fedem")}
    return {entry.run.rpartition("-")[0]} if entry.table == "fedem-images" else set()


def work(entry: Entry, records: Path, data: Path) -> None:
    """Make one run in this process."""
    from reproduce import _folder_of_data
    from reproduction.registry import TABLES
    from reproduction.runs import Kept, make

    runs = TABLES[entry.table].runs(entry.scale, [entry.seed])
    run = next(one for one in runs if one.name == entry.run)
    extra = (
        *_folder_of_data(run, entry.scale, data), "--trainer.accelerator", entry.place,
        "--trainer.enable_checkpointing", "false", "--model.client_memory_gb", "64",
    )  # fmt: skip
    if entry.place == "gpu":
        extra = (*extra, "--model.client_trainer", os.environ.get("RUN_QUEUE_TRAINER", "sequential"))
        extra = (*extra, *os.environ.get("RUN_QUEUE_MORE", "").split())
    Kept(records / entry.scale).write(run, make(run, extra))


def begin(entry: Entry, chosen: argparse.Namespace) -> None:
    """Make a run in a process that was forked for it, with its output in a file."""
    log = chosen.records / "logs" / f"{entry.run.replace('/', '__')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    work(entry, chosen.records, chosen.root)


def load() -> None:
    """Import what runs need, so that a forked process begins at once; nothing here touches a device."""
    import reproduction.measures  # noqa: F401
    import torchvision.datasets  # noqa: F401
    from reproduction.data_only import DataCLI  # noqa: F401

    import lit_fed.cli  # noqa: F401


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the plan asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--data.root", dest="root", type=Path, default=Path("data"))
    parser.add_argument("--slots", type=int, default=12)
    parser.add_argument("--gpu_memory_gb", type=float, default=70)
    Queue(parser.parse_args(arguments)).run()


class Queue:
    """Processes side by side.

    Args:
        chosen: the arguments of the command line.
    """

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.running: dict[Entry, tuple[multiprocessing.process.BaseProcess, float]] = {}
        self.ended: dict[Entry, float] = {}
        self.failed: set[str] = set()

    def run(self) -> None:
        """Start what fits until nothing is left."""
        load()
        while True:
            waiting = self._waiting()
            for entry in waiting:
                if self._fits(entry):
                    self._start(entry)
            if not self.running and not waiting:
                self._log("all done")
                return
            time.sleep(1)
            self._reap()

    def _waiting(self) -> list[Entry]:
        planned = list(entries(self.chosen.plan, self.chosen.records))
        ended = {entry.run for entry in self.ended}
        open_rates = {
            entry.run.replace("_tuning", "").rpartition("_")[0]
            for entry in planned
            if entry.table == TUNING and entry.run not in ended
        }
        known = {entry.run for entry in (*self.ended, *self.running)}
        new = [entry for entry in planned if entry.run not in known]
        new = [entry for entry in new if not entry.instead_of or entry.instead_of in self.failed]
        return [entry for entry in new if not open_rates & needed(entry)]

    def _choose(self) -> None:
        from reproduction.fedem_images import best_rates
        from reproduction.runs import Kept

        best = json.dumps(best_rates(Kept(self.chosen.records / SCALE), SCALE), indent=1) + "\n"
        if best != RATES.read_text():
            RATES.write_text(best)

    def _fits(self, entry: Entry) -> bool:
        taken = sum(one.gigabytes for one in self.running)
        return len(self.running) < self.chosen.slots and taken + entry.gigabytes <= self.chosen.gpu_memory_gb

    def _start(self, entry: Entry) -> None:
        process = multiprocessing.get_context("fork").Process(target=begin, args=(entry, self.chosen))
        process.start()
        self.running[entry] = process, time.monotonic()
        self._log(f"begins {entry.run}")

    def _reap(self) -> None:
        for entry, (process, started) in list(self.running.items()):
            if process.exitcode is not None:
                del self.running[entry]
                self.ended[entry] = time.monotonic() - started
                if process.exitcode:
                    self.failed.add(entry.run)
                if entry.table == TUNING:
                    self._choose()
                self._log(f"ended {entry.run} {process.exitcode} after {self.ended[entry]:.0f} s")

    def _log(self, text: str) -> None:
        self.chosen.records.mkdir(parents=True, exist_ok=True)
        with (self.chosen.records / "queue.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {text}\n")


if __name__ == "__main__":
    main()
