"""Keeps a machine busy with runs of the tables of reproduce.py: several processes at a time, most urgent first.

    python scripts/run_queue.py PLAN --records docs/results/runs --data.root DIR [--slots 3] [--gpu_memory_gb 70]

PLAN is a JSON list of objects: `table`, `run`, a name that may hold stars, `place`, gpu or cpu, `gigabytes` that it
may take of the device, `scale`, `seed`, and `instead_of`, another run without whose failure this one is not made. It is
read again every second, so that it can be changed under way; what has a record is not made again. Processes are forked
from one that has loaded everything. PYTORCH_NVML_BASED_CUDA_CHECK=1 keeps that one from touching the device.
"""

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

from reproduce import folder_of_data
from reproduction.registry import TABLES
from reproduction.runs import Kept, make


class Entry(NamedTuple):
    """A run of the plan."""

    table: str
    run: str
    place: str = "cpu"
    gigabytes: float = 0.0
    scale: str = "reduced"
    seed: int = 1
    instead_of: str = ""


def entries(plan: Path, records: Path) -> Iterator[Entry]:
    """The plan with its stars written out, without what has a record."""
    for line in json.loads(plan.read_text()):
        entry = Entry(**line)
        for run in TABLES[entry.table].runs(entry.scale, [entry.seed]):  # type: ignore[arg-type]
            if fnmatch(run.name, entry.run) and Kept(records / entry.scale).find(run) is None:
                yield entry._replace(run=run.name)


def begin(entry: Entry, chosen: argparse.Namespace) -> None:
    """Make a run in a process that was forked for it, with its output in a file."""
    log = chosen.records / "logs" / f"{entry.run.replace('/', '__')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    runs = TABLES[entry.table].runs(entry.scale, [entry.seed])  # type: ignore[arg-type]
    run = next(one for one in runs if one.name == entry.run)
    extra = (
        *folder_of_data(run, entry.scale, chosen.root), "--trainer.accelerator", entry.place,  # type: ignore[arg-type]
        "--trainer.enable_checkpointing", "false", "--model.client_memory_gb", "64",
    )  # fmt: skip
    if entry.place == "gpu":
        extra = (*extra, "--model.client_trainer", chosen.client_trainer)
    Kept(chosen.records / entry.scale).write(run, make(run, extra))


def load() -> None:
    """Import what runs need, so that a forked process begins at once; nothing here touches a device."""
    import reproduction.measures  # noqa: F401
    import torchvision.datasets  # noqa: F401

    import lit_fed.cli  # noqa: F401


class Queue:
    """Processes side by side.

    Args:
        chosen: the arguments of the command line.
    """

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.chosen = chosen
        self.running: dict[Entry, tuple[BaseProcess, float]] = {}
        self.ended: set[str] = set()
        self.failed: set[str] = set()

    def run(self) -> None:
        """Start what fits, until nothing is left."""
        self.chosen.records.mkdir(parents=True, exist_ok=True)
        load()
        while waiting := self.waiting() or self.running:
            for entry in waiting:
                if entry not in self.running and self._fits(entry):
                    self._start(entry)
            time.sleep(1)
            self._reap()
        self._log("all done")

    def waiting(self) -> list[Entry]:
        """What may begin, most urgent first."""
        known = self.ended | {entry.run for entry in self.running}
        planned = [entry for entry in entries(self.chosen.plan, self.chosen.records) if entry.run not in known]
        return [entry for entry in planned if not entry.instead_of or entry.instead_of in self.failed]

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
                self.ended.add(entry.run)
                if process.exitcode:
                    self.failed.add(entry.run)
                self._log(f"ended {entry.run} {process.exitcode} after {time.monotonic() - started:.0f} s")

    def _log(self, text: str) -> None:
        with (self.chosen.records / "queue.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {text}\n")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the plan asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--records", type=Path, required=True, help="where records and logs go")
    parser.add_argument("--data.root", dest="root", type=Path, default=Path("data"), help="where the data sets lie")
    parser.add_argument("--slots", type=int, default=3, help="processes at a time")
    parser.add_argument("--gpu_memory_gb", type=float, default=70, help="what all together may take of the device")
    parser.add_argument("--client_trainer", default="graphed", help="of runs on a GPU")
    Queue(parser.parse_args(arguments)).run()


if __name__ == "__main__":
    main()
