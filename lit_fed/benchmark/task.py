"""Tasks: YAML files of data, network, rounds and metric, and the command line of each run of one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from lit_fed.benchmark.cut import Cut, CutClients, samples_digest
from lit_fed.benchmark.measures import METRICS, SCORES
from lit_fed.benchmark.method import model_arguments
from lit_fed.benchmark.protocol import CUTS, Point
from lit_fed.command_line.arguments import configs_folder
from lit_fed.errors import ConfigError
from lit_fed.system.files import write_atomically
from lit_fed.system.foreign_files import json_lines, read_file, yaml_value
from lit_fed.system.names import did_you_mean
from lit_fed.system.readers import FormError, keyed, list_of, plain, record, text, whole

__all__ = ["Task", "read_task", "suites", "task_files"]

NEEDED = ("metric", "rounds", "dataset", "network")
OF_CUT = ("dataset", "partition", "num_clients", "most_clients", "min_samples")
FIELDS = {
    *NEEDED, *OF_CUT, "score", "title", "data", "licence", "source", "suites", "cuts", "batch_size", "local_epochs",
    "clients_per_round", "accelerator", "left_out",
}  # fmt: skip

MOST = 10**6
"""Upper limit of rounds, cuts and samples of a batch, and of clients."""

ROOT = "{root}"
"""Stands for `--data.root` in a task."""

FIXED = {
    "devices": 1, "limit_val_batches": 0, "logger": False, "enable_checkpointing": False,
    "enable_progress_bar": False, "enable_model_summary": False,
}  # fmt: skip
"""Arguments of the trainer in every run: what is measured, the benchmark measures."""


@dataclass(frozen=True, eq=False)
class Task:
    """A task of the benchmark."""

    name: str
    path: Path
    given: dict[str, Any]  # the file
    metric: str  # the primary one
    score: str  # what it is judged by: `clients` or `pooled`
    rounds: int  # of each run
    cuts: range  # their numbers

    @property
    def source(self) -> str:
        """Name of its data; ranks count tasks of one source once."""
        return str(self.given.get("source", self.name))

    @property
    def digests_path(self) -> Path:
        """The file of the digests, beside the task."""
        return self.path.with_suffix(".samples.jsonl")

    def arguments(self, method: str, point: Point, cut: int) -> dict[str, Any]:
        """The configuration of a run, without the place of the data; the cut also decides the training seed."""
        lr, settings = point["lr"], {name: value for name, value in point.items() if name != "lr"}
        of_cut = {name: self.given[name] for name in OF_CUT if name in self.given}
        epochs, per_round = self.given.get("local_epochs", 1), self.given.get("clients_per_round")
        return {
            "seed_everything": 1 + cut,
            "model": {
                **model_arguments(method, settings),
                "solver": {"lr": lr, "schedule": "constant", "local_epochs": epochs},
                "network": self.given["network"],
            },
            "data": {
                "dataset": {"class_path": f"{Cut.__module__}.Cut", "init_args": {**of_cut, "cut": cut}},
                "batch_size": self.given.get("batch_size", 32),
                "seed": cut,
                **({"clients_per_round": per_round} if per_round else {}),
            },
            "trainer": {**FIXED, "accelerator": self.given.get("accelerator", "cpu"), "max_epochs": self.rounds},
        }

    def at(self, root: Path, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments with the place of the data in them."""
        return cast("dict[str, Any]", json.loads(json.dumps(arguments).replace(ROOT, str(root))))

    def check_samples(self, cut: Cut) -> str:
        """The digest of a cut's samples, if every client has the ones that the task names.

        Raises:
            ConfigError: naming the first client whose samples are others.
        """
        found, known = cut.clients(), self.known_clients()
        is_shipped = self.path.parent == configs_folder() / "benchmark"
        if cut.cut not in known:
            if is_shipped and known:
                raise ConfigError(f"{self.digests_path} has no digests of cut {cut.cut}; the task is not complete")
            missing = {cut.cut, *self.cuts} - known.keys()
            known |= {number: replace(cut, cut=number).clients() for number in missing}
            self.write_clients(known)
        one, other, where = found.digests, known[cut.cut].digests, self.digests_path
        for name in sorted(one.keys() | other.keys()):
            if one.get(name) != other.get(name):
                fix = "" if is_shipped else ", or delete that file and the records of the task"
                wrong = f"task {self.name}, cut {cut.cut}: the samples of client {name!r} differ from those in"
                raise ConfigError(f"{wrong} {where}; restore the data{fix}")
        return samples_digest(found.digests)

    def known_clients(self) -> dict[int, CutClients]:
        """The clients of each cut.

        Raises:
            ConfigError: naming the file of digests, and the entry that is none.
        """
        path, fix = self.digests_path, "restore it, or delete it and the records of the task"
        lines = read_file(path, json_lines, list_of(_cut, MOST), fix) if path.is_file() else []
        known = {line.pop("cut"): CutClients(**line) for line in lines}
        if len({json.dumps(one.tested, sort_keys=True) for one in known.values()}) > 1:
            raise ConfigError(f"{path}: test samples or unseen clients differ between cuts; {fix}")
        return known

    def write_clients(self, clients: Mapping[int, CutClients]) -> None:
        """Write the clients of each cut beside the task."""
        rows = [{"cut": cut, **clients[cut]._asdict()} for cut in sorted(clients)]
        lines = [json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows]
        write_atomically(self.digests_path, "".join(lines))


def task_files() -> dict[str, Path]:
    """The benchmark's own tasks by name."""
    return {path.stem: path for path in sorted((configs_folder() / "benchmark").glob("*.yaml"))}


def suites() -> dict[str, list[str]]:
    """Names of the tasks of each suite."""
    found: dict[str, list[str]] = {}
    for name in task_files():
        for suite in read_task(name).given.get("suites", ()):
            found.setdefault(suite, []).append(name)
    return found


def read_task(name: str) -> Task:
    """A task by its name, or from a YAML file.

    Raises:
        ConfigError: naming the file, the field and the fix.
    """
    own = task_files()
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else own.get(name)
    if path is None:
        near = did_you_mean(name, own, f"choose from {', '.join(own)}")
        raise ConfigError(f"--tasks: there is no task {name!r}\n{near}")
    given = read_file(path, yaml_value, plain(), "correct it, or give another one to --tasks")
    if not isinstance(given, dict):
        raise ConfigError(f"--tasks {path}: a task is a mapping with {', '.join(NEEDED)}")
    if lacks := [field for field in NEEDED if field not in given]:
        raise ConfigError(f"--tasks {path}: {lacks[0]} is missing; add it")
    if others := [field for field in given if field not in FIELDS]:
        fix = f"the protocol decides all but {', '.join(sorted(FIELDS))}"
        raise ConfigError(f"--tasks {path}: there is no field {others[0]!r}; {fix}")
    _check_values(path, given)
    score, cuts = given.get("score", SCORES[0]), range(given.get("cuts", CUTS))
    return Task(path.stem, path.absolute(), given, given["metric"], score, given["rounds"], cuts)


def _check_values(path: Path, given: dict[str, Any]) -> None:
    for field, choices in {"metric": METRICS, "score": SCORES}.items():
        if given.get(field, choices[0]) not in choices:
            raise ConfigError(f"--tasks {path}: {field} is {given[field]!r}; choose from {', '.join(choices)}")
    for field, least in {"rounds": 1, "cuts": 1, "batch_size": 0, "local_epochs": 1}.items():
        value = given.get(field, 1)
        if type(value) is not int or not least <= value <= MOST:
            raise ConfigError(f"--tasks {path}: {field} is {value!r}; give a whole number >= {least}, at most {MOST:,}")


def _cut(value: Any, place: str) -> dict[str, Any]:
    """Read a line of the file of digests."""
    name = plain(1)  # of a client
    digests, counts = keyed(name, list_of(text(64), 3, 3), MOST), keyed(name, whole(), MOST)
    fields = {"cut": whole(most=MOST), "digests": digests, "unseen": list_of(name, MOST)}
    found: dict[str, Any] = record(fields | {"test_samples": counts, "test_persons": counts})(value, place)
    counted = found["test_samples"].keys(), found["test_persons"].keys()
    if not all(found["digests"].keys() == one >= set(found["unseen"]) for one in counted):
        raise FormError(f"{place} has other clients in digests than in test_samples, test_persons or unseen")
    return found
