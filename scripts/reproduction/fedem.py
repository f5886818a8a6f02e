"""Tables of the FedEM paper: Marfoq, Neglia, Bellet, Kameni, Vidal, NeurIPS 2021, https://arxiv.org/abs/2108.10252."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from reproduction.markdown import Part, grid, order, ranked, section, wrap
from reproduction.pictures import bars
from reproduction.runs import ROOT, Record, Run
from reproduction.settings import LABELS, facts, published, runs_of, settings_of, some_settings
from reproduction.tables import ACCURACY, Results, Scale, Setting, Table, accuracies, mean

DECILE = (ACCURACY, "test/seen/accuracy_decile")
TRAINED = "train/unseen/accuracy"
TABLE2 = ("local", "fedavg", "fedprox", "fedavg_plus", "clustered_fl", "pfedme", "prox_avg", "fedem")
TABLE3 = ("fedavg", "fedavg_plus", "fedem", "fedem_steps")
THEIRS = {name: name for name in TABLE2} | {"prox_avg": "pfedme", "pfedme": ""}
"""What the paper calls a method: its pFedMe is prox_avg."""

STANDS_FOR = {
    "mnist_by_writer": "femnist", "cifar10_dirichlet": "cifar10", "cifar100_pachinko": "cifar100",
    "shakespeare_roles": "shakespeare",
}  # fmt: skip
"""Which data set of the paper a reduced setting is compared with."""


def published_column(setting: Setting) -> str:
    """The data set of the paper that a setting is compared with."""
    return STANDS_FOR.get(setting.name, setting.name)


def settings_or_one(scale: Scale, wanted: Sequence[str] | None = None) -> list[Setting]:
    """The settings of a scale, or some of them; `smoke` has one."""
    settings = settings_of("fedem", scale)
    some = ("synthetic",) if scale == "smoke" else settings if scale == "paper" or wanted is None else wanted
    return [settings[name] for name in some]


def unseen(setting: Setting) -> Setting:
    """A fifth of the clients is kept out of training; the reduced settings do so anyway.

    FedEM is measured for Figure 2 and Appendix J.3, too.
    """
    if setting.name in STANDS_FOR:
        return setting
    measures = {"fedem": ("accuracy_by_share", "mixture_entropy")}
    methods = tuple(one._replace(measures=measures.get(one.name, ())) for one in setting.methods)
    return setting.varied("unseen", "--data.unseen_fraction", "0.2")._replace(methods=methods, draws_data=True)


def at_rate(setting: Setting, rate: float) -> Setting:
    """A share of the clients takes part in each round."""
    return setting if rate == 1 else setting.varied(f"rate_{rate:g}", "--data.client_fraction", f"{rate:g}")


def table1_settings(scale: Scale) -> list[Setting]:
    """The paper's data at every scale, since nothing is trained; those of the reduced tables too."""
    paper = settings_of("fedem", "smoke" if scale == "smoke" else "paper")
    ours = settings_of("fedem", "reduced").items() if scale == "reduced" else []
    return [*paper.values(), *(one for name, one in ours if name not in paper)]


def table1_run(setting: Setting, scale: Scale, seed: int) -> Run:
    """Loads and divides the data of a setting."""
    random = ("--model.network.weights", "null") if setting.name in ("cifar10", "cifar100") else ()
    whole = some_settings("", "reduced")[setting.name]
    arguments = setting.arguments[len(whole.arguments) :] if scale == "smoke" else random
    drawn = ("--data.seed", str(seed)) if setting.draws_data else ()
    return Run(f"data/{setting.name}-{seed}", setting.config, (*arguments, *drawn), ("data_statistics",), fit=False)


def table1_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of all settings."""
    return [table1_run(setting, scale, seed) for seed in seeds for setting in table1_settings(scale)]


def table1_body(found: Results) -> dict[str, Part]:
    """A row for each data set, and which of them have the paper's numbers of clients and samples."""
    theirs, rows, made, same = facts()["fedem_counts"], [], 0, []
    for setting in table1_settings(found.scale):
        record = found.kept.find(table1_run(setting, found.scale, found.seeds[0]))
        paper = theirs.get(setting.name)
        beside = f"{paper[0]} / {paper[1]:,}" if paper else ""
        rows.append([setting.label, setting.config, *_counts(record), beside])
        if record is not None and paper:
            sizes = record["data_statistics"]["samples"]
            made, same = made + 1, same + [setting.label] * ([len(sizes), sum(sizes)] == paper)
    head = ["data", "config", "clients / samples", "of a client: least / median / most", "classes", "parameters"]
    counted = f"{len(same)} of the paper's {made} that were loaded have its counts: {', '.join(same)}."
    compared = counted if made and found.scale != "smoke" else None
    return {"data": grid([*head, "the paper: clients / samples"], rows), "published": compared}


def _counts(record: Record | None) -> list[str]:
    if record is None:
        return ["not run", "", "", ""]
    counted: dict[str, Any] = record["data_statistics"]
    sizes = counted["samples"]
    spread = f"{min(sizes):,} / {statistics.median(sizes):,.0f} / {max(sizes):,}"
    return [f"{len(sizes)} / {sum(sizes):,}", spread, str(counted["classes"]), f"{counted['parameters']:,}"]


def table2_body(found: Results) -> dict[str, Part]:
    """A table for each data set beside the published figures, both orders, and a remark."""
    lines: list[str] = []
    for setting in settings_of("fedem", found.scale).values():
        column, ours, rows = published_column(setting), {}, []
        theirs = published("fedem")[column]
        for name, records in found.each(setting, TABLE2).items():
            beside = "{} / {}".format(*theirs[THEIRS[name]]) if THEIRS[name] in theirs else ""
            rows.append([LABELS[name], found.cell(records, *DECILE), beside])
            ours |= {LABELS[name]: mean(records)} if records else {}
        means = {LABELS["prox_avg" if name == "pfedme" else name]: one[0] for name, one in theirs.items()}
        compared = order(ours, means)
        table = grid(["algorithm", "here", f"the paper, {column}"], rows)
        lines += section(setting.label, table, wrap(compared and f"Order: {compared}"), wrap(_remark(setting, found)))
    return {"settings": lines[1:]}


def _remark(setting: Setting, found: Results) -> str:
    """The remark on a setting with the means of our runs, once all that it names are there."""
    text = found.words["remarks"].get(setting.name, "")
    if not text or (setting.name not in STANDS_FOR and len(found.seeds) == 1):
        return ""
    records = {name: found.of(setting, name) for _, name, _, _ in Formatter().parse(text) if name}
    if any(len(some) < len(found.seeds) for some in records.values()):
        return ""
    return text.format_map({name: f"{mean(some):.1f}" for name, some in records.items()})  # type: ignore[no-any-return]


def table2_picture(found: Results, path: Path) -> None:
    """Bars for each data set, the paper's figures as marks."""
    panels = {}
    for setting in settings_of("fedem", found.scale).values():
        theirs = published("fedem")[published_column(setting)]
        label = f"{setting.label}, beside FEMNIST" if setting.name == "mnist_by_writer" else setting.label
        beside = {name: theirs.get(THEIRS[name], (None,))[0] for name in TABLE2}
        each = found.each(setting, TABLE2).items()
        panels[label] = [(LABELS[name], accuracies(records), beside[name]) for name, records in each]
    bars(panels, "test accuracy in percent", path)


def table3_settings(scale: Scale) -> list[Setting]:
    """All settings with a fifth of the clients unseen."""
    return [unseen(one) for one in settings_of("fedem", scale).values()]


def table3_body(found: Results) -> dict[str, Part]:
    """Accuracy of unseen clients on their test samples, and on those that they adapted on."""
    lines: list[str] = []
    for setting in settings_of("fedem", found.scale).values():
        column, rows, ours = published_column(setting), [], {}
        theirs = published("fedem_unseen")[column]
        for name in (one for one in TABLE3 if setting.method(one)):
            records = found.of(unseen(setting), name)
            adapted = found.cell([one for one in records if TRAINED in one["summary"]], TRAINED)
            cells = [found.cell(records, "test/unseen/accuracy"), adapted.replace("not run", "not measured")]
            beside = "{} ({})".format(*theirs[name]) if name in theirs else ""
            rows.append([LABELS[name], *cells, found.cell(records), beside])
            ours |= {LABELS[name]: mean(records, "test/unseen/accuracy")} if records else {}
        head = ["algorithm", "unseen", "unseen, training samples", "seen", f"the paper, {column}"]
        compared = order(ours, {LABELS[name]: one[0] for name, one in theirs.items()})
        lines += section(setting.label, grid(head, rows), wrap(compared and f"Order: {compared}"))
    return {"settings": lines[1:]}


def table4_body(found: Results) -> dict[str, Part]:
    """Seconds of a FedEM run."""
    rows = []
    for setting in settings_of("fedem", found.scale).values():
        summaries = [one["summary"] for one in found.of(setting, "fedem")]
        rounds = ", ".join(map(str, {one["rounds"] for one in summaries}))
        seconds = sum(one["seconds"] for one in summaries) / max(1, len(summaries))
        took = f"{seconds:.0f} s for {rounds} rounds" if summaries else "not run"
        rows.append([setting.label, took, facts()["fedem_hours"][published_column(setting)]])
    return {"times": grid(["data", "here, one thread", "the paper, 200 rounds (Shakespeare 80)"], rows)}


DECENTRALIZED = (*TABLE2, "dfedem")


def decentralized_body(found: Results) -> dict[str, Part]:
    """A column for each data set, and how D-FedEM compares."""
    settings = settings_or_one(found.scale)
    each = {one.name: found.each(one, DECENTRALIZED) for one in settings}
    rows = [[LABELS[name], *(found.cell(each[one.name][name]) for one in settings)] for name in DECENTRALIZED]
    standing = [said for one in settings if (said := _standing(one, each[one.name]))]
    table = grid(["algorithm", *(one.label for one in settings)], rows)
    writers = each.get("mnist_by_writer", {}).get("dfedem")
    return {"table": table, "standing": standing, "if_writers": "" if writers else None}


def _standing(setting: Setting, found: Mapping[str, list[Record]]) -> str:
    """How many of the other algorithms D-FedEM is above, and its distance to FedEM."""
    if not found["dfedem"]:
        return ""
    own = mean(found["dfedem"])
    others = {one: mean(records) for one, records in found.items() if records and one not in ("dfedem", "fedem")}
    said = [f"above {sum(value < own for value in others.values())} of the {len(others)} others"] if others else []
    said += [f"{own - mean(found['fedem']):+.2f} points against FedEM"] if found["fedem"] else []
    return f"{setting.label}: D-FedEM is {', '.join(said)}." if said else ""


TIMED = ("synthetic", "mnist_by_writer", "cifar10_dirichlet")


def rounds_of(setting: Setting) -> int:
    """Rounds of a run."""
    given = dict(zip(setting.arguments, setting.arguments[1:], strict=False)).get("--trainer.max_epochs")
    config = yaml.safe_load((ROOT / f"configs/experiment/{setting.config}.yaml").read_text())
    return int(given or config["trainer"]["max_epochs"])


def third(setting: Setting) -> Setting:
    """The setting with a third of its rounds, over which the learning rate falls as it does over all."""
    return setting.varied("third", "--trainer.max_epochs", str(max(1, rounds_of(setting) // 3)))


def timed_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """FedEM with a third of the rounds, and the runs of Table 2."""
    settings = settings_or_one(scale, TIMED)
    return [run for one in settings for run in [*one.runs(seeds, TABLE2), *third(one).runs(seeds, ["fedem"])]]


def timed_body(found: Results) -> dict[str, Part]:
    """A column for each data set, and whether FedEM is still the best."""
    settings = settings_or_one(found.scale, TIMED)
    each = {one.name: found.each(one, TABLE2) for one in settings}
    short = {one.name: found.of(third(one), "fedem") for one in settings}
    rows = [[LABELS[name], *(found.cell(each[one.name][name]) for one in settings)] for name in TABLE2]
    rows.append(["FedEM, a third", *(found.cell(short[one.name]) for one in settings)])
    said, best = [], 0
    for setting in settings:
        others = {name: mean(one) for name, one in each[setting.name].items() if one and name != "fedem"}
        if short[setting.name] and others:
            name = max(others, key=lambda one: others[one])
            ahead = mean(short[setting.name]) - others[name]
            best += ahead > 0
            text = f"FedEM with a third of the rounds is {ahead:+.2f} points against {LABELS[name]}, the best other."
            said.append(f"{setting.label}: {text}")
    head = ["algorithm", *(f"{one.label}, {rounds_of(one)} rounds" for one in settings)]
    total = [f"It is the best on {best} of {len(said)}."] if said else []
    return {"table": grid(head, rows), "still_best": [*said, *total]}


SAMPLED = ("fedavg", "fedavg_plus", "apfl", "fedem")


def sampled_settings(scale: Scale) -> tuple[list[Setting], list[Setting]]:
    """Settings in which a fifth of the clients takes part in each round, and the same with all clients."""
    whole = settings_or_one(scale, ("synthetic",))
    return [at_rate(one, 0.2) for one in whole], whole


def sampled_body(found: Results) -> dict[str, Part]:
    """Each data set with a fifth of the clients per round, and with all."""
    lines: list[str] = []
    for some, whole in zip(*sampled_settings(found.scale), strict=True):
        rows = [[LABELS[name], *(found.cell(found.of(one, name)) for one in (some, whole))] for name in SAMPLED]
        ours = {LABELS[name]: mean(records) for name, records in found.each(some, SAMPLED).items() if records}
        table = grid(["algorithm", "a fifth of the clients", "all clients"], rows)
        lines += section(some.label, table, wrap(f"Order: {ranked(ours)}." if ours else ""))
    return {"settings": lines[1:]}


LINEAR = (*TABLE2[:-1], "mocha", "fedem")


def mocha_body(found: Results) -> dict[str, Part]:
    """All methods on the synthetic data, and MOCHA's rank."""
    each = found.each(settings_of("fedem", found.scale)["synthetic"], LINEAR)
    rows = [[LABELS[name], found.cell(records)] for name, records in each.items()]
    ours = {LABELS[name]: mean(records) for name, records in each.items() if records}
    said = f"Order: {ranked(ours)}. {_rank(ours)}" if ours else None
    return {"table": grid(["algorithm", "accuracy"], rows), "order": said}


def _rank(values: Mapping[str, float]) -> str:
    """MOCHA's rank among those that were run."""
    if "MOCHA" not in values:
        return ""
    above = [name for name in values if values[name] > values["MOCHA"]]
    rank = f"MOCHA is number {len(above) + 1} of {len(values)}"
    if "Clustered FL" not in above:
        return f"{rank}."
    theirs = published("fedem")["synthetic"]["clustered_fl"][0]
    return f"{rank}; Clustered FL stands above it with thresholds that let it split, and had {theirs} in the paper."


TABLES = [
    Table("fedem-table1", table1_runs, table1_body),
    Table("fedem-table2", runs_of("fedem", TABLE2), table2_body, table2_picture),
    Table("fedem-table3", runs_of(table3_settings, TABLE3), table3_body),
    Table("fedem-table4", runs_of("fedem", ["fedem"]), table4_body),
    Table("fedem-decentralized", runs_of(settings_or_one, DECENTRALIZED), decentralized_body),
    Table("fedem-time-constrained", timed_runs, timed_body),
    Table("fedem-client-sampling", runs_of(lambda scale: chain(*sampled_settings(scale)), SAMPLED), sampled_body),
    Table("fedem-mocha", runs_of(lambda scale: [settings_of("fedem", scale)["synthetic"]], LINEAR), mocha_body),
]
