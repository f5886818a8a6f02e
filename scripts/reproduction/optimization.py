"""Rates of convergence of the algorithms of the slides on optimisation: FedAvg's kin and ADMM on one convex problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from reproduction.pictures import DASHES, MARKERS, panels, save
from reproduction.runs import Kept, Record, Run
from reproduction.settings import algorithm, solver
from reproduction.tables import Method, Scale, Setting, Table, grid, wrap

__all__ = ["TABLES"]

TARGETS = (1e-2, 1e-4, 1e-6)
STALLED = 1e-7
"""A gap above this, and hardly smaller than some rounds before, is a bias: rounding alone ends far below."""

exact = {"local_solve": "exact"}
graph = ("--model.algorithm.topology", "Bipartite")
METHODS = (
    Method("fedsgd", "FedSGD", (*algorithm("FedSGD"), *solver(lr=4.0))),
    Method("fedavg", "FedAvg, rate 1", algorithm("FedAvg")),
    Method("fedavg_small", "FedAvg, rate 0.1", (*algorithm("FedAvg"), *solver(lr=0.1))),
    Method("fedavgm", "FedAvgM", (*algorithm("FedAvgM", server_momentum=0.5), *solver(lr=0.5))),
    Method("fedadam", "FedAdam", (*algorithm("FedAdam", server_lr=0.1), *solver(lr=0.5))),
    Method("fedprox", "FedProx", algorithm("FedProx", prox_weight=0.1)),
    Method("scaffold", "SCAFFOLD", algorithm("SCAFFOLD")),
    Method("consensus_admm", "consensus ADMM", algorithm("ConsensusADMM", penalty_weight=0.1, **exact)),
    Method("gadmm", "GADMM", algorithm("GADMM", penalty_weight=0.2, **exact)),
    Method(
        "ggadmm", "GGADMM",
        (*algorithm("CQGGADMM", penalty_weight=0.05, **exact, bits=0, censor_threshold=0.0), *graph),
    ),
    Method(
        "cqggadmm", "CQ-GGADMM",
        (*algorithm("CQGGADMM", penalty_weight=0.05, **exact, bits=2, censor_decay=0.9), *graph),
    ),
)  # fmt: skip
BIASED = ("fedavg", "fedavg_small", "fedavgm", "fedadam", "fedprox")
"""Those whose local steps pull each client to its own minimiser, so that they stop beside the common one."""

FULL = Setting(
    "optimization_convex",
    "Logistic regression",
    "optimization_convex",
    METHODS,
    ("--trainer.callbacks+=reproduction.objective.ObjectiveGap",),
    ("objective",),
    draws_data=False,
)
SHORT = FULL._replace(arguments=(*FULL.arguments, "--trainer.max_epochs", "4", "--data.dataset.dimension", "5"))


def _setting(scale: Scale) -> Setting:
    """The slides name no experiment, so that `paper` is the same."""
    return SHORT if scale == "smoke" else FULL


def convex_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of all algorithms."""
    return _setting(scale).runs(seeds)


def convex_body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """Rounds and megabits to each gap, and who stops short of the minimum."""
    found = _found(kept, scale, seeds)
    lines = _problem(found)
    head = ["algorithm", *(f"{target:.0e}: rounds / megabits" for target in TARGETS), "gap in the end", "disagreement"]
    rows = [_row(one, found.get(one.name)) for one in METHODS]
    lines += ["", *grid(head, rows), "", *_findings(found), *_explained()]
    return lines


def _found(kept: Kept, scale: Scale, seeds: Sequence[int]) -> dict[str, Record]:
    """The measure of each algorithm's run with the first seed; the others differ in the initial model alone."""
    records = {one.name: kept.all(_setting(scale).runs(seeds[:1], [one.name])) for one in METHODS}
    return {name: some[0]["objective"] for name, some in records.items() if some}


def _problem(found: Mapping[str, Record]) -> list[str]:
    text = (
        "f(θ) − min f after each round, f the mean loss of 12 clients in a logistic regression with 20 inputs "
        "(configs/experiment/optimization_convex.yaml). θ is the server's model, or without a server the mean of the "
        "clients' models; disagreement is then the largest distance of a client's model from it. Nothing is random "
        "but the quantiser: all clients take part, and a step sees all samples of a client. There is no weight decay, "
        "which the exact local solves of ADMM know nothing of; the labels are noisy enough for a unique minimiser. "
        "Megabits are what all clients send and receive: without a server, a message counts once where it is sent and "
        "once for each neighbour that hears it. ADMM takes exact local solves, FedSGD one step in a round, and the "
        "others ten. Models are in float32, the gap is taken in float64."
    )
    if found:
        one = next(iter(found.values()))
        low, high = one["curvature"]
        text += (
            f" min f = {one['minimum']:.6f}, where the gradient is {one['slope']:.0e} and the Hessian's eigenvalues "
            f"lie between {low:.3f} and {high:.3f}."
        )
    return wrap(text)


def _row(method: Method, record: Record | None) -> list[str]:
    if record is None:
        return [method.label, *["not run"] * (len(TARGETS) + 2)]
    cells = [_reached(record, target) for target in TARGETS]
    apart = record["disagreement"][-1]
    return [method.label, *cells, f"{record['gap'][-1]:.1e}", f"{apart:.1e}" if apart else ""]


def _reached(record: Record, target: float) -> str:
    """The first round after which the gap stays that small, and the megabits up to then."""
    above = [number for number, gap in enumerate(record["gap"]) if gap > target]
    first = above[-1] + 1 if above else 0
    if first == len(record["gap"]):
        return "never"
    return f"{first + 1} / {record['megabits'][first]:.2f}"


def _findings(found: Mapping[str, Record]) -> list[str]:
    """Whether each kind of algorithm ends where theory says."""
    labels = {one.name: one.label for one in METHODS}
    if not found or len(next(iter(found.values()))["gap"]) < 100:
        return []
    stalled = {name for name, one in found.items() if _stalls(one["gap"])}
    texts = [
        f"Theory says that {_names(BIASED, labels, found)} stop at a bias, and that "
        f"{_names([name for name in found if name not in BIASED], labels, found)} do not. Gaps that stand still above "
        f"{STALLED:.0e} here: {_names(list(stalled), labels, found) or 'none'}."
    ]
    if {"fedavg", "fedavg_small"} <= found.keys():
        large, small = (found[name]["gap"][-1] for name in ("fedavg", "fedavg_small"))
        texts.append(
            f"A tenth of the rate divides FedAvg's final gap by {large / small:.0f}: the distance to the minimiser "
            "grows with the rate, and the gap with its square. A small rate takes more rounds."
        )
    if {"ggadmm", "cqggadmm"} <= found.keys():
        plain, saving = (_reached(found[name], TARGETS[-1]) for name in ("ggadmm", "cqggadmm"))
        texts.append(
            f"Censoring and quantisation on the same graph, to {TARGETS[-1]:.0e} in rounds / megabits: {saving} with "
            f"them, {plain} without."
        )
    return [line for text in texts for line in wrap(text, bullet=True)]


def _stalls(gaps: Sequence[float]) -> bool:
    """Whether the last tenth of the rounds brings less than a tenth."""
    earlier = gaps[-max(1, len(gaps) // 10) - 1]
    return gaps[-1] > STALLED and gaps[-1] > 0.9 * earlier


def _names(names: Sequence[str], labels: Mapping[str, str], found: Mapping[str, Record]) -> str:
    return "; ".join(labels[one.name] for one in METHODS if one.name in names and one.name in found)


def _explained() -> list[str]:
    return wrap(
        "Rates and penalties are the best of one to three tried by hand for each algorithm, and FedAvg is shown with "
        "two. The servers of FedAvgM and FedAdam cannot mend what local steps get wrong: their average vanishes beside "
        "the minimiser, and only a smaller rate, fewer steps or a proximal term bring that point nearer.",
        bullet=True,
    )


def convex_picture(kept: Kept, scale: Scale, seeds: Sequence[int], path: Path) -> None:
    """The gap by rounds and by megabits."""
    found = _found(kept, scale, seeds)
    figure, axes = panels(["by rounds", "by megabits"], width=5.0, height=4.4)
    for number, one in enumerate(METHODS):
        if one.name not in found:
            continue
        record = found[one.name]
        look = {
            "linestyle": DASHES[number % len(DASHES)], "marker": (MARKERS + "h")[number], "markersize": 4,
            "markevery": (number, 15), "label": one.label, "color": f"C{number}" if number < 10 else "black",
        }  # fmt: skip
        gaps = [max(gap, 1e-16) for gap in record["gap"]]
        axes["by rounds"].plot(range(1, len(gaps) + 1), gaps, **look)
        axes["by megabits"].plot(record["megabits"], gaps, **look)
    axes["by rounds"].set(xlabel="round", ylabel="f(θ) − min f", yscale="log")
    axes["by megabits"].set(xlabel="megabits sent and received by all clients", yscale="log", xscale="log")
    figure.legend(*axes["by rounds"].get_legend_handles_labels(), loc="outside right center", fontsize=8, frameon=False)
    save(figure, path)


TABLES = [
    Table("optimization-convex", convex_runs, convex_body, convex_picture),
]
