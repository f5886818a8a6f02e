"""Does it pay to join, and what is a blend worth? Candidates of the benchmark, and ways to serve clients by them.

    python scripts/joining.py --data.root DIR [--tasks natural small] [--jobs 2]

The candidates of `lit-fed choose` run with the points that the benchmark's records chose, and are combined: the best
one by validation samples, for all clients or for each; equal weights; a blend; a blend with the fallback to Local. Two
controls: a blend of five seeds of the chosen one, and the chosen one trained on validation samples as well. How much
evidence the fallback asks for is compared on halves of the validation samples alone: the other halves found weights.
Cuts that are done lie in runs/joining, and are not made again. Makes docs/results/joining.md from
docs/results/joining.json.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch import Trainer
from reproduction.markdown import grid
from scipy.stats import binom, t
from torch import Tensor
from trials import facts, keep, written

from lit_fed.benchmark.comparison import mean_score, paired
from lit_fed.benchmark.cut import Cut
from lit_fed.benchmark.measures import Scores, primary, rounded, scores_of
from lit_fed.benchmark.records import Record, read_records, records_file, stored_folder, with_clients
from lit_fed.benchmark.task import Task, read_task, suites
from lit_fed.choosing.blend import TakesRuns, Weights, predictions
from lit_fed.cli import UntestedCLI
from lit_fed.core.blocks import serving_blocks
from lit_fed.data.data_sets.base import Samples
from lit_fed.data.module import FederatedDataModule
from lit_fed.metrics.paired import LEVEL, holm
from lit_fed.metrics.verdict import EVIDENCE
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.blend import calibrated, negative_log_likelihood

RESULTS = Path(__file__).resolve().parents[1] / "docs/results/joining.json"

CANDIDATES = ("FedAvg", "FedAvgPlus", "FedEM", "ResponsibilityFedEM", "MixedEffects", "PartialPooling", "Local")
"""Local is the last one: clients fall back to it. MixedEffects stands for a linear network where it is not refused,
PartialPooling for others."""

SEEDS = 5

WAYS = {
    "validation": "one for all clients, by validation", "client": "one for each client, by validation",
    "equal": "equal weights", "blend": "a blend", "choose": "a blend or Local", "seeds": "a blend of five seeds",
    "refit": "trained on validation samples too",
}  # fmt: skip

GAPS = (
    ("validation", "Local"), ("choose", "Local"), ("blend", "validation"), ("choose", "validation"),
    ("client", "validation"), ("equal", "validation"), ("blend", "seeds"), ("blend", "refit"),
)  # fmt: skip
"""Ways that are compared, the first one minus the second."""

EVIDENCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Probabilities of a gain that the fallback may ask for."""

SIZES = (0, 5, 10, 20, 50, 10**9)
"""Limits of the numbers of validation samples by which clients are counted."""


class Trained(NamedTuple):
    """A run."""

    module: FederatedModule
    data: FederatedDataModule


@dataclass(frozen=True)
class Whole(Cut):
    """A cut whose validation samples train."""

    def load(self) -> Samples:
        samples = super().load()
        assert samples.split is not None
        return samples._replace(split=np.where(samples.split == 1, 0, samples.split))


# ---------------------------------------------------------------------- runs
def fit(task: Task, root: Path, arguments: dict[str, Any], *, whole: bool = False, seed: int = 0) -> Trained:
    """Run `fit`, without a test and in memory."""
    given = task.at(root, arguments)
    given["seed_everything"] += 1000 * seed
    if whole:
        given["data"]["dataset"]["class_path"] = "joining.Whole"
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        cli = UntestedCLI(["fit", "--config", json.dumps(given)])
    return Trained(cli.model, cli.datamodule)


class Blending(UntestedCLI):
    """A fit whose only round takes the states of other runs."""

    taken: TakesRuns

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        trainer = super().instantiate_trainer(**kwargs)
        trainer.callbacks.insert(0, self.taken)  # type: ignore[attr-defined]
        return trainer


def blended(task: Task, root: Path, configurations: Sequence[dict[str, Any]], taken: TakesRuns) -> Trained:
    """The blend of finished runs, which serves unseen clients."""
    models = [one["model"] for one in configurations]
    names = [one["algorithm"]["class_path"] for one in models]
    each = zip(names, models, strict=True)
    candidates = [{"name": name, "algorithm": one["algorithm"], "solver": one["solver"]} for name, one in each]
    options = {"candidates": candidates, "prior_weight": taken.found.prior_weight}
    algorithm = {"class_path": "lit_fed.wrappers.blend.Blend", "init_args": options}
    first = json.loads(json.dumps(configurations[0]))
    first["model"]["algorithm"], first["trainer"]["max_epochs"] = algorithm, 1
    Blending.taken = taken
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        cli = Blending(["fit", "--config", json.dumps(task.at(root, first))])
    return Trained(cli.model, cli.datamodule)


Clients = dict[int, tuple[Tensor, Tensor]]
"""Outputs [n, K, ...] of candidates and labels [n] by client."""

Parts = dict[int, tuple[Tensor, Tensor]]
"""Labels and predictions by client."""


def outputs_of(
    each: Sequence[FederatedModule], data: FederatedDataModule, population: str, split: str, half: int | None = None
) -> Clients:
    """What candidates predict for the clients of a population, on all samples of a split or on a half of them."""
    scored_on, train = data.splits(population, split)  # type: ignore[arg-type]
    scored_on = scored_on if half is None else scored_on.every_other(half)
    blocks = serving_blocks(scored_on, train, clients_per_block=data.block_size)
    return {client: (found, y) for client, found, y in predictions(each, blocks, seen=population == "seen")}


# ---------------------------------------------------------------------- one cut
def make_cut(name: str, cut: int, root: Path) -> dict[str, Any]:
    """Scores of all ways on a cut, by population and way; clients below Local, and sizes of validation splits."""
    torch.set_num_threads(1)
    task = read_task(name)
    records = {one["algorithm"]: one for one in read_records(records_file(stored_folder(), name))}
    names = [one for one in CANDIDATES if one in records and all("test" in run for run in records[one]["runs"])]
    if "MixedEffects" in names and "PartialPooling" in names:
        names.remove("PartialPooling" if task.given["network"]["class_path"] == "Linear" else "MixedEffects")
    configurations = [task.arguments(one, records[one]["chosen"], cut) for one in names]
    runs = [fit(task, root, one) for one in configurations]
    modules, data = [one.module for one in runs], runs[0].data
    target, metric = modules[0].target, task.metric
    val, test = (outputs_of(modules, data, "seen", split) for split in ("val", "test"))
    fixed: dict[str, Any] = {"prior_weight": None, "private": False}
    found, halved = (Weights.of(modules, data, **fixed, half=half, falls_back=False) for half in (False, True))
    sure, sure_half = (Weights.of(modules, data, **fixed, half=half, falls_back=True) for half in (False, True))
    spread, clients = found.spread, data.populations[0].names

    def shown(held: Clients, weights: Tensor, spread: Tensor) -> Parts:
        return {one: (y, target.mix(weights[one], calibrated(target, out, spread))) for one, (out, y) in held.items()}

    def measure(parts: Parts, names: Sequence[str], first: int = 0) -> Scores:
        order = sorted(parts)
        persons = data.dataset.persons if task.score == "pooled" else None
        return scores_of([names[one - first] for one in order], [parts[one] for one in order], metric, persons)

    number, plain = len(names), torch.ones(len(names))
    single = torch.eye(number).unsqueeze(1).expand(-1, len(clients), -1)

    def falling_back(blend: Weights, chance: Tensor | None, evidence: float) -> Tensor:
        assert chance is not None
        return torch.where((chance > evidence).unsqueeze(1), blend.mixture, single[-1])

    on_val = [primary(measure(shown(val, one, plain), clients), task.score) for one in single]
    best = int(np.argmax(on_val))
    of_client = single[best].clone()
    for one, (out, y) in val.items():
        losses = negative_log_likelihood(target, out, y, torch.ones(len(y)), spread)
        of_client[one] = torch.eye(number)[losses.mean(0).argmin()]
    ways = {one: single[k] for k, one in enumerate(names)} | {"validation": single[best]}
    held = {way: shown(test, one, plain) for way, one in ways.items()}
    held |= {
        way: shown(test, one, spread)
        for way, one in {
            "client": of_client, "equal": torch.full_like(of_client, 1 / number), "blend": found.mixture,
            **{f"choose {one}": falling_back(found, sure.chance, one) for one in EVIDENCES},
        }.items()
    }  # fmt: skip
    more = () if names[best] == "MixedEffects" else range(1, SEEDS)  # which draws nothing
    others = [runs[best], *(fit(task, root, configurations[best], seed=one) for one in more)]
    seeds = Weights.of([one.module for one in others], data, **fixed, half=False, falls_back=False)
    held["seeds"] = shown(outputs_of([one.module for one in others], data, "seen", "test"), seeds.mixture, seeds.spread)
    refit = fit(task, root, configurations[best], whole=True)
    one = torch.ones(1)
    held["refit"] = shown(outputs_of([refit.module], refit.data, "seen", "test"), one.expand(len(clients), 1), one)
    other_half = outputs_of(modules, data, "seen", "val", half=0)
    halves = {one: shown(other_half, falling_back(halved, sure_half.chance, one), halved.spread) for one in EVIDENCES}
    local = shown(other_half, single[-1], plain)
    sizes = {client: len(val[place][1]) if place in val else 0 for place, client in enumerate(clients)}
    return {
        "names": names, "best": names[best], "val": sizes,
        "chance": sure.chance.tolist(),
        "halves": {
            one: {
                "alone": float((sure_half.chance <= one).double().mean()), "below": _below(target, parts, local),
                "gain": primary(measure(parts, clients), task.score) - primary(measure(local, clients), task.score),
            }
            for one, parts in halves.items()
        },
        "seen": {way: rounded(measure(one, clients)) for way, one in held.items()},
        "below": {way: _below(target, one, held["Local"]) for way, one in held.items() if way != "Local"},
        "unseen": _unseen(task, root, configurations, runs, found, names[best], measure),
    }  # fmt: skip


def _unseen(
    task: Task, root: Path, configurations: list[dict[str, Any]], runs: list[Trained], found: Weights, best: str,
    measure: Callable[[Parts, Sequence[str], int], Scores],
) -> dict[str, Any]:  # fmt: skip
    """Scores of unseen clients, which adapt on their training samples."""
    data = runs[0].data
    unseen = data.populations[1]
    assert unseen is not None
    target, held = runs[0].module.target, outputs_of([one.module for one in runs], data, "unseen", "test")
    blend = blended(task, root, configurations, TakesRuns([one.module for one in runs], found))
    by_blend = outputs_of([blend.module], blend.data, "unseen", "test")
    first, number, plain = min(held), len(runs), torch.ones(1)

    def shown(held: Clients, weights: Tensor, spread: Tensor) -> Parts:
        return {one: (y, target.mix(weights, calibrated(target, out, spread))) for one, (out, y) in held.items()}

    names = [one["model"]["algorithm"]["class_path"] for one in configurations]
    parts = {way: shown(held, one, torch.ones(number)) for way, one in zip(names, torch.eye(number), strict=True)}
    parts["validation"] = parts[best]
    parts["equal"] = shown(held, torch.full((number,), 1 / number), found.spread)
    parts["blend"] = shown(by_blend, plain, plain)
    return {way: rounded(measure(one, unseen.names, first)) for way, one in parts.items()}


def _below(target: Any, served: Parts, alone: Parts) -> list[float]:
    """The one-sided p-value of each client that it is not below Local, by its test samples.

    Quantities by Student's t of squared errors; hits by the sign test, with the middle p-value.
    """
    found = []
    for one in sorted(served):
        first, second = (target.score(out, y)[1].double().numpy() for y, out in (served[one], alone[one]))
        gap = (second - first) if target.continuous else (first - second)  # errors, or hits
        if target.continuous:
            error = gap.std(ddof=1) / math.sqrt(len(gap)) if len(gap) > 1 else 0.0
            found.append(float(t.cdf(gap.mean() / error, len(gap) - 1)) if error > 0 else 0.5)
        else:
            more, all_pairs = int((gap > 0).sum()), int((gap != 0).sum())
            found.append(float(binom.cdf(more, all_pairs, 0.5) - binom.pmf(more, all_pairs, 0.5) / 2))
    return found


# ---------------------------------------------------------------------- all cuts
def made(tasks: Sequence[str], root: Path, runs: Path, jobs: int) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The cuts of each task; missing ones are made."""
    runs.mkdir(parents=True, exist_ok=True)
    wanted = [(name, cut, runs / f"{name}-{cut}.json") for name in tasks for cut in read_task(name).cuts]
    with ProcessPoolExecutor(jobs) as executor:
        started = {path: executor.submit(make_cut, name, cut, root) for name, cut, path in wanted if not path.is_file()}
        for path, one in started.items():
            path.write_text(json.dumps(one.result()))
    for name in tasks:
        yield name, [json.loads(path.read_text()) for one, _, path in wanted if one == name]


def as_record(task: Task, cuts: Sequence[dict[str, Any]], way: str) -> Record:
    """A way to serve clients in the form of a record of the benchmark."""
    runs = []
    for number, one in enumerate(cuts):
        test = {"seen": one["seen"][way], **({"unseen_100": one["unseen"][way]} if way in one["unseen"] else {})}
        runs.append({"cut": number, "test": test})
    return with_clients({"score": task.score, "metric": task.metric, "runs": runs}, task)


def line_of(name: str, cuts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the page needs of a task."""
    task = read_task(name)
    cuts = [_as_chosen(one) for one in cuts]
    candidates = cuts[0]["names"]
    held: dict[str, Any] = {"task": name, "source": task.source, "metric": task.metric, "candidates": candidates}
    for population in ("seen", "unseen_100"):
        ways = [*candidates, *(way for way in WAYS if population == "seen" or way in cuts[0]["unseen"])]
        records = {way: as_record(task, cuts, way) for way in ways}
        means = {way: mean_score(records[way], population) for way in ways}
        gaps = {f"{way} - {base}": _gap(records, way, base, population) for way, base in GAPS if way in records}
        held[population] = {"means": means, "gaps": gaps}
    served = [way for way in cuts[0]["below"] if not way.startswith("choose ")]
    below = {way: [p for one in cuts for p in one["below"][way]] for way in served}
    held["below"] = {way: [sum(p < LEVEL for p in each), len(each)] for way, each in below.items()}
    held["sizes"] = _by_size(task, cuts)
    chances = np.concatenate([one["chance"] for one in cuts])
    held["alone"] = [int((chances <= EVIDENCE).sum()), len(chances)]
    held["halves"] = [_of_halves([one["halves"][str(evidence)] for one in cuts]) for evidence in EVIDENCES]
    return held


def _as_chosen(cut: dict[str, Any]) -> dict[str, Any]:
    """A cut whose way `choose` asks for `EVIDENCE`."""
    return cut | {part: cut[part] | {"choose": cut[part][f"choose {EVIDENCE}"]} for part in ("seen", "below")}


def _of_halves(cuts: Sequence[dict[str, Any]]) -> list[float]:
    """Gain over Local, share of clients that are served alone, and of those clearly below Local."""
    below = np.concatenate([one["below"] for one in cuts])
    gain, alone = (float(np.mean([one[key] for one in cuts])) for key in ("gain", "alone"))
    return [gain, alone, float((below < LEVEL).mean())]


def _gap(records: Mapping[str, Record], way: str, base: str, population: str) -> list[float] | None:
    """Difference, its interval and its p-value; None without one."""
    found = None if base not in records else paired(records[way], records[base], population)
    return None if found is None else [found.mean, found.low, found.high, found.p]


def _by_size(task: Task, cuts: Sequence[dict[str, Any]]) -> list[list[float]]:
    """For each range of `SIZES`: sum of the clients' gains of a blend over the choice by validation, and number."""
    sums = [[0.0, 0] for _ in SIZES[1:]]
    known = task.known_clients()
    for number, one in enumerate(cuts):
        names = known[number].of("seen")
        each = zip(one["seen"]["blend"]["score"], one["seen"]["validation"]["score"], names, strict=True)
        for blend, single, name in each:
            if blend is not None and single is not None:
                place = next(k for k, most in enumerate(SIZES[1:]) if one["val"][name] < most)
                sums[place][0] += blend - single
                sums[place][1] += 1
    return sums


# ---------------------------------------------------------------------- the page
def page(record: dict[str, Any]) -> str:
    """The page of a record."""
    lines = record["tasks"]
    parts: dict[str, Any] = {"date": record["date"], "torch": record["torch"], "tasks": str(len(lines))}
    parts["sources"] = str(len({one["source"] for one in lines}))
    for population, name in (("seen", "seen"), ("unseen_100", "unseen")):
        parts[name] = _table(lines, population)
        parts[f"{name}_gaps"] = _gaps(lines, population)
    parts |= {"evidence": str(EVIDENCE), "halves": _halves(lines)}
    parts |= {"below": _below_local(lines), "sizes": _sizes(lines), "alone": _alone(lines), "lead": _lead(lines)}
    return written(__file__, parts)


def _lead(lines: Sequence[dict[str, Any]]) -> str:
    """The finding."""
    joining, clear, behind = _summary(lines, "seen", "choose - Local")
    single, *_ = _summary(lines, "seen", "validation - Local")
    blend, ahead, after = _summary(lines, "seen", "choose - validation")
    return (
        f"**Clients served as `lit-fed choose` does, by a blend or alone, have {joining:+.1f} points more than alone "
        f"(median), clearly more on {clear} of {len(lines)} tasks, less on {behind}. The one candidate that validation "
        f"chooses has {single:+.1f}; against it choose is {blend:+.1f}, clearly ahead on {ahead} tasks, behind on "
        f"{after}.**"
    )


def _summary(lines: Sequence[dict[str, Any]], population: str, gap: str) -> tuple[float, int, int]:
    """The median over sources of a difference x 100, and on how many tasks it is clearly above and below 0 (Holm)."""
    held = [(one["source"], one[population]["gaps"].get(gap)) for one in lines]
    known = [(source, found) for source, found in held if found is not None]
    mean = 100 * _over_sources([(source, found[0]) for source, found in known])
    p = holm([found[3] for _, found in known])
    signs = [math.copysign(1, found[0]) for (_, found), each in zip(known, p, strict=True) if each < LEVEL]
    return mean, signs.count(1), signs.count(-1)


def _gaps(lines: Sequence[dict[str, Any]], population: str) -> list[str]:
    rows = []
    for gap in (f"{way} - {base}" for way, base in GAPS):
        if any(one[population]["gaps"].get(gap) for one in lines):
            mean, above, below = _summary(lines, population, gap)
            first, second = (WAYS.get(one, one) for one in gap.split(" - "))
            rows.append([first, second, f"{mean:+.2f}", str(above), str(below)])
    return grid(["way", "compared with", "difference", "clearly ahead", "clearly behind"], rows)


def _table(lines: Sequence[dict[str, Any]], population: str) -> list[str]:
    ways = [way for way in WAYS if way in lines[0][population]["means"]]
    rows = []
    for one in lines:
        means, names = one[population]["means"], one["candidates"]
        best = max(names, key=lambda name: means[name])
        alone, single = f"{100 * means['Local']:.1f}", f"{100 * means[best]:.1f} ({best})"
        rows.append([one["task"], one["metric"], alone, single, *(f"{100 * means[way]:.1f}" for way in ways)])
    return grid(["task", "metric", "Local", "best candidate, in hindsight", *(WAYS[way] for way in ways)], rows)


def _below_local(lines: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for way in ("FedAvg", "FedAvgPlus", "FedEM", "ResponsibilityFedEM", "validation", "client", "blend", "choose"):
        each = [one["below"][way] for one in lines if way in one["below"]]
        share = 100 * float(np.mean([below / number for below, number in each]))
        rows.append([WAYS.get(way, way), f"{share:.1f} %", f"{max(0.0, share - 100 * LEVEL):.1f} %"])
    return grid(["served by", "below Local", "less the 5 % of chance"], rows)


def _sizes(lines: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for place, (least, most) in enumerate(itertools.pairwise(SIZES)):
        total, number = (sum(one["sizes"][place][k] for one in lines) for k in (0, 1))
        if number:
            said = f"{least} to {most - 1}" if most < SIZES[-1] else f"{least} and more"
            rows.append([said, f"{number:,}", f"{100 * total / number:+.2f}"])
    return grid(["validation samples", "clients, over cuts", "gain of a blend over one for all"], rows)


def _halves(lines: Sequence[dict[str, Any]]) -> list[str]:
    rows = []
    for place, evidence in enumerate(EVIDENCES):
        gain = 100 * _over_sources([(one["source"], one["halves"][place][0]) for one in lines])
        alone, below = (100 * float(np.mean([one["halves"][place][k] for one in lines])) for k in (1, 2))
        rows.append([str(evidence), f"{gain:+.2f}", f"{alone:.0f} %", f"{below:.1f} %"])
    return grid(["evidence", "gain over Local", "served alone", "below Local"], rows)


def _over_sources(held: Sequence[tuple[str, float]]) -> float:
    """The median over sources of the means of their tasks."""
    sources = {source: [value for name, value in held if name == source] for source, _ in held}
    return float(np.median([np.mean(each) for each in sources.values()]))


def _alone(lines: Sequence[dict[str, Any]]) -> str:
    alone, number = (sum(one["alone"][k] for one in lines) for k in (0, 1))
    return f"{100 * alone / number:.0f}"


def main() -> None:
    """Make the runs, the record and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data.root", dest="root", type=Path, default=Path("data"))
    parser.add_argument("--tasks", nargs="+", default=["natural"])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/joining"))
    given = parser.parse_args()
    names = [one for name in given.tasks for one in suites().get(name, [name])]
    lines = [line_of(*each) for each in made(names, given.root.absolute(), given.runs, given.jobs)]
    keep(RESULTS, page, tasks=lines, **facts())


if __name__ == "__main__":
    main()
