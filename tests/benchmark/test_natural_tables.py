"""Tasks of natural tables: their page, their columns and their floors, from the tables themselves."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from lit_fed.benchmark import task as task_module
from lit_fed.benchmark.cut import Cut
from lit_fed.benchmark.task import read_task, suites
from lit_fed.core.seeds import generator
from lit_fed.data import RTable
from lit_fed.errors import ConfigError

PAGE = (Path(__file__).parents[2] / "docs/natural_tables.md").read_text()
TASKS = suites()["natural"]
FOLDS = 5


@cache
def table(name):
    given = read_task(name).given["dataset"]
    assert given["class_path"] == "RTable"
    return RTable(**given["init_args"])


@cache
def samples(name):
    return table(name).load()


def test_there_are_enough_tables_of_enough_packages():
    packages = [table(name).package for name in TASKS]
    assert len(TASKS) >= 25
    assert len({*packages}) >= 10
    assert max(map(packages.count, packages)) <= 4


def test_the_first_run_of_a_shipped_task_writes_the_digests_of_all_cuts(tmp_path, monkeypatch):
    path = tmp_path / "benchmark/exam.yaml"
    path.parent.mkdir()
    path.write_bytes(read_task("exam").path.read_bytes())
    monkeypatch.setattr(task_module, "configs_folder", lambda: tmp_path)
    task = read_task(str(path))
    first = task.check_samples(Cut(table("exam"), cut=0))
    assert sorted(task.known_clients()) == list(task.cuts)
    assert task.check_samples(Cut(table("exam"), cut=1)) != first
    lines = task.digests_path.read_text().splitlines(keepends=True)
    task.digests_path.write_text("".join(lines[:-1]))
    with pytest.raises(ConfigError, match=r"exam\.samples\.jsonl has no digests of cut 4; the task is not complete"):
        task.check_samples(Cut(table("exam"), cut=4))


@pytest.mark.parametrize("name", TASKS)
def test_every_column_is_an_input_or_has_a_role_or_a_reason(name):
    columns, data = table(name), samples(name)
    frame = data.encode.rows.frame
    inputs = [one.name for one in data.encode.columns.features]
    roles = {*columns.roles.values(), columns.time_column} - {None}
    left_out = [one for names in read_task(name).given.get("left_out", {}).values() for one in names]
    assert len(left_out) == len({*left_out})
    assert not {*left_out} & {*inputs, *roles}
    assert {*inputs, *left_out} | roles == {*frame.columns}


@pytest.mark.parametrize("name", TASKS)
def test_sizes_are_those_of_the_rule(name):
    sizes = np.bincount(samples(name).owner)
    assert 10 <= len(sizes) <= 100
    assert 500 <= sizes.sum() <= 5000
    assert sizes.min() >= 10
    assert table(name).sha256 is not None


def folds(data):
    """Numbers of the rows of each test fold, of all clients: the last fifth of the times, or five parts of persons."""
    persons = np.arange(len(data.y)) if data.groups is None else data.groups
    parts = [[] for _ in range(FOLDS if data.order is None else 1)]
    for client in range(len(data.names)):
        own = np.flatnonzero(data.owner == client)
        if data.order is not None:
            times = np.unique(data.order[own])
            parts[0] += own[data.order[own] >= times[-max(1, len(times) // FOLDS)]].tolist()
            continue
        names, person = np.unique(persons[own], return_inverse=True)
        place = generator(0, 0, client, "floor").permutation(len(names))[person] % FOLDS
        for fold, part in enumerate(parts):
            part += own[place == fold].tolist()
    return [np.array(part, dtype=np.int64) for part in parts]


def floor(data, metric):
    """The score of each client's own mean, majority or share, from its rows outside the fold."""
    y, found, tested = data.y, np.full(len(data.y), np.nan), np.zeros(len(data.y), dtype=bool)
    classes = 0 if data.class_names is None else len(data.class_names)
    for test in folds(data):
        for client in range(len(data.names)):
            own = np.flatnonzero(data.owner == client)
            known, asked = np.setdiff1d(own, test), np.intersect1d(own, test)
            if len(known):
                counts = np.bincount(y[known], minlength=classes) if classes else None
                found[asked] = counts.argmax() if metric == "accuracy" else y[known].mean()
                tested[asked] = True
    if metric == "r2":
        return 1 - np.square(y[tested] - found[tested]).mean() / y[~tested if data.order is not None else tested].var()
    return roc_auc_score(y[tested], found[tested]) if metric == "auroc" else (y == found)[tested].mean()


def row(name):
    """The row of a task in the page's table."""
    task, columns, data = read_task(name), table(name), samples(name)
    sizes = np.bincount(data.owner)
    spread = f"{len(sizes)}; {sizes.min()} / {np.median(sizes):.0f} / {sizes.max()}"
    split = f", persons `{columns.group_column}`" if columns.group_column else ""
    split = f", in order of `{columns.time_column}`" if columns.time_column else split
    inputs, of = data.encode.columns.features, task.given.get("left_out", {})
    left = "; ".join(f"{', '.join(f'`{one}`' for one in names)}: {why}" for why, names in of.items())
    score = {"r2": "R²", "auroc": "AUROC", "accuracy": f"accuracy, {len(data.class_names or ())} classes"}[task.metric]
    cells = [
        f"[{name}](../configs/benchmark/{name}.yaml)", f"{columns.package}/{columns.item}",
        f"`{columns.client_column}` {spread}{split}", f"`{columns.label_column}`, {score}", f"{len(inputs)}", left,
        task.given["licence"], f"{round(floor(data, task.metric), 2) + 0.0:.2f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("name", TASKS)
def test_the_page_says_what_the_task_is(name):
    assert row(name) in PAGE.splitlines()


def test_the_page_has_no_other_rows():
    assert sum(line.startswith("| [") for line in PAGE.splitlines()) == len(TASKS)
    assert f"{len(TASKS)} tables of {len({table(name).package for name in TASKS})} R packages" in PAGE
