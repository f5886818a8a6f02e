"""Do prediction sets cover? Split-conformal sets and intervals of clients on natural tables.

    python scripts/coverage.py --data.root DIR [--tasks tv16 ames ...] [--cuts 5]

Four algorithms run with the points that the benchmark's records chose, on the tables of `TASKS`, whose rows have no
order in time; a share of each client's training samples decides its threshold. Makes docs/results/coverage.md from
docs/results/coverage.json.
"""

import argparse
import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from reproduction.markdown import grid
from scipy.stats import betabinom
from trials import facts, keep, written

from lit_fed.benchmark.records import read_records, records_file, stored_folder
from lit_fed.benchmark.task import Task, read_task
from lit_fed.cli import UntestedCLI
from lit_fed.commands import client_table
from lit_fed.core.conformal import rank

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/coverage.json"

TASKS = (
    "benefits", "contraception", "mplsstops", "politicalinformation", "thornton_hiv", "tuna", "tv16", "ames", "amis",
    "chem97", "exam", "french_fries", "sacramento",
)  # fmt: skip
ALGORITHMS = ("FedAvg", "FedAvgPlus", "FedEM", "Local")

COVERAGE, FRACTION, WITHIN = 0.9, 0.3, 0.95


def measured(task: Task, algorithm: str, cut: int, root: Path) -> list[dict[str, Any]]:
    """Seen and unseen clients of a run with their coverage, and whether it lies within its limits."""
    records = {one["algorithm"]: one for one in read_records(records_file(stored_folder(), task.name))}
    given = task.at(root, task.arguments(algorithm, records[algorithm]["chosen"], cut))
    given["model"]["conformal"], given["data"]["calibration_fraction"] = COVERAGE, FRACTION
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        cli = UntestedCLI(["fit", "--config", json.dumps(given)])
        cli.trainer.test(cli.model, datamodule=cli.datamodule)
    table = client_table(cli.trainer).rename(columns={"set_size": "size", "width": "size"})
    held = [one.calibration.sizes.numpy() for one in cli.datamodule.populations if one is not None]
    table["n"] = np.concatenate(held)
    table = table[table["num_test"] > 0]
    covered = (table["coverage"] * table["num_test"]).round()
    k = np.array([rank(n, COVERAGE) for n in table["n"]])
    law = betabinom(table["num_test"], k, (table["n"] + 1 - k).clip(lower=1))
    low, high = law.ppf((1 - WITHIN) / 2), law.ppf((1 + WITHIN) / 2)
    table["below"], table["above"] = covered < low, covered > high
    columns = ["population", "num_test", "coverage", "size", "own_threshold", "below", "above"]
    rows: list[dict[str, Any]] = json.loads(table[columns].to_json(orient="records"))
    return rows


def line_of(task: Task, root: Path, cuts: int) -> dict[str, Any]:
    """What the page needs of a task: means over clients and cuts, by algorithm, population and whose threshold."""
    found: dict[str, Any] = {}
    for algorithm in ALGORITHMS:
        table = pd.DataFrame([row for cut in list(task.cuts)[:cuts] for row in measured(task, algorithm, cut, root)])
        whose = table["population"] + np.where(table["own_threshold"], "/own", "/shared")
        parts = [*table.groupby(whose), *table.groupby("population")]
        found[algorithm] = {name: _means(part) for name, part in parts}
    return {"task": task.name, "metric": task.metric, "algorithms": found}


def _means(table: pd.DataFrame) -> dict[str, Any]:
    weights = table["num_test"] / table["num_test"].sum()
    means = {name: float((table[name] * weights).sum()) for name in ("coverage", "size")}
    counts = {"clients": len(table), "below": int(table["below"].sum()), "above": int(table["above"].sum())}
    return {**counts, **means, "lowest": float(table["coverage"].quantile(0.1))}


# ---------------------------------------------------------------------- the page
def page(record: dict[str, Any]) -> str:
    """The page of a record."""
    lines = record["tasks"]
    parts: dict[str, Any] = {"date": record["date"], "torch": record["torch"], "tasks": str(len(lines))}
    parts |= {"cuts": str(record["cuts"]), "lead": _lead(lines), "own": _table(lines, "seen/own")}
    return written(__file__, parts | {"others": _others(lines), "sizes": _sizes(lines)})


def _sums(lines: Sequence[dict[str, Any]], algorithm: str, part: str) -> dict[str, float]:
    """Clients of all tasks, and means over the tasks, weighted by their clients."""
    held = [one["algorithms"][algorithm][part] for one in lines if part in one["algorithms"][algorithm]]
    counts = {name: sum(one[name] for one in held) for name in ("clients", "below", "above")}
    weights = [one["clients"] for one in held]
    means = {name: [one[name] for one in held] for name in ("coverage", "lowest")}
    return counts | {name: float(np.average(each, weights=weights)) for name, each in means.items()}


def _ratios(lines: Sequence[dict[str, Any]], algorithm: str) -> list[float]:
    """Mean size beside that of Local on each task, of seen clients."""
    both = [[one["algorithms"][name]["seen"]["size"] for name in (algorithm, "Local")] for one in lines]
    return [own / alone for own, alone in both]


def _lead(lines: Sequence[dict[str, Any]]) -> str:
    """The finding."""
    held = [_sums(lines, name, "seen/own") for name in ALGORITHMS]
    within = [100 * (1 - (one["below"] + one["above"]) / one["clients"]) for one in held]
    means = [100 * one["coverage"] for one in held]
    best = {name: float(np.exp(np.mean(np.log(_ratios(lines, name))))) for name in ALGORITHMS[:-1]}
    name = min(best, key=lambda one: best[one])
    return (
        f"**Sets and intervals that promise 90 % cover {min(means):.1f} to {max(means):.1f} % of the test samples; the "
        f"coverage of {min(within):.1f} to {max(within):.1f} % of the clients lies within its 95 % limits. By {name} "
        f"they are {best[name]:.2f} times as large as by Local (geometric mean over {len(lines)} tables).**"
    )


def _table(lines: Sequence[dict[str, Any]], part: str) -> list[str]:
    rows = []
    for name in ALGORITHMS:
        one = _sums(lines, name, part)
        within = 1 - (one["below"] + one["above"]) / one["clients"]
        shares = [f"{100 * value:.1f} %" for value in (one["coverage"], within, one["below"] / one["clients"])]
        rows.append([name, f"{one['clients']:,.0f}", *shares, f"{100 * one['lowest']:.1f} %"])
    head = ["algorithm", "clients, over cuts", "mean coverage", "within 95 % limits", "below them", "10th percentile"]
    return grid(head, rows)


def _others(lines: Sequence[dict[str, Any]]) -> list[str]:
    said = {"seen/shared": "seen, shared", "unseen/own": "unseen, own", "unseen/shared": "unseen, shared"}
    rows = []
    for part, words in said.items():
        each = [_sums(lines, name, part) for name in ALGORITHMS]
        rows.append([words, f"{each[0]['clients']:,.0f}", *(f"{100 * one['coverage']:.1f} %" for one in each)])
    return grid(["clients, threshold", "number", *ALGORITHMS], rows)


def _sizes(lines: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for one in lines:
        local = one["algorithms"]["Local"]["seen"]["size"]
        ratios = [f"{_ratios([one], name)[0]:.2f}" for name in ALGORITHMS[:-1]]
        coverages = [f"{100 * one['algorithms'][name]['seen']['coverage']:.1f} %" for name in ALGORITHMS]
        rows.append([one["task"], "width" if one["metric"] == "r2" else "classes", f"{local:.4g}", *ratios, *coverages])
    means = [f"{np.exp(np.mean(np.log(_ratios(lines, name)))):.2f}" for name in ALGORITHMS[:-1]]
    rows.append(["geometric mean", "", "", *means, *[""] * len(ALGORITHMS)])
    head = ["task", "size", "Local", *(f"{name} / Local" for name in ALGORITHMS[:-1])]
    return grid([*head, *(f"{name} covers" for name in ALGORITHMS)], rows)


def main() -> None:
    """Make the runs, the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data.root", dest="root", type=Path, default=Path("data"))
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--cuts", type=int, default=5)
    given = parser.parse_args()
    tasks = list(map(read_task, given.tasks))
    lines = []
    for task in tasks:
        lines.append(line_of(task, given.root.absolute(), given.cuts))
        print(task.name, flush=True)
    keep(RESULTS, page, tasks=lines, cuts=given.cuts, **facts())


if __name__ == "__main__":
    main()
