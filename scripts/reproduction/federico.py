"""Tables and figures of the FedeRiCo paper: Sui, Wen, Lau, Ross, Cresswell, 2022, https://arxiv.org/abs/2210.06597."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lit_fed.pictures.style import save
from reproduction.markdown import Part, grid, order, ranked, section, wrap
from reproduction.pictures import Curve, Share, Shares, bars, curves, shares
from reproduction.runs import Record
from reproduction.settings import LABELS, published, runs_of, settings_of
from reproduction.tables import ACCURACY, Results, Scale, Setting, Table, accuracies, mean, plus_minus

METHODS = ("fedavg", "fedavg_plus", "local", "clustered_fl", "fedem", "fedfomo", "federico")


def only(group: str, scale: Scale) -> Setting:
    """The setting of a group that has one."""
    return next(iter(settings_of(group, scale).values()))


def table1_settings(scale: Scale) -> dict[str, dict[str, Setting]]:
    """For each data set the settings of Table 1, by the number of groups."""
    found: dict[str, dict[str, Setting]] = {}
    for name, setting in settings_of("federico", scale).items():
        found.setdefault(name.partition("_label_groups")[0], {})[name.rpartition("_")[2]] = setting
    return found


def table1_columns(scale: Scale) -> list[Setting]:
    """The settings of Table 1, the columns with most groups first."""
    return [one[groups] for one in table1_settings(scale).values() for groups in sorted(one)[::-1]]


def table1_body(found: Results) -> dict[str, Part]:
    """A table for each data set, and both orders; at the reduced scale differences of methods."""
    lines: list[str] = []
    for name, settings in table1_settings(found.scale).items():
        lines += section(next(iter(settings.values())).label, _columns(name, settings, found))
    pairs = {"to_local": ("federico", "local"), "to_fedem": ("federico", "fedem"), "fedavg_to_local": METHODS[:3:2]}
    parts: dict[str, Part] = {"data": lines[1:], **dict.fromkeys(("fedavg", *pairs))}
    if found.scale != "reduced":
        return parts
    each = [found.each(one, METHODS) for one in table1_settings("reduced")["cifar10"].values()]
    if all(one[name] for one in each for pair in pairs.values() for name in pair):
        for key, (first, second) in pairs.items():
            parts[key] = ", ".join(f"{mean(one[first]) - mean(one[second]):+.1f}" for one in each)
    return parts | ({"fedavg": f"{mean(each[-1]['fedavg']):.1f}"} if each[-1]["fedavg"] else {})


def _columns(name: str, settings: dict[str, Setting], found: Results) -> list[str]:
    """All methods on a data set beside the published figures, and both orders."""
    each = {groups: found.each(setting, METHODS) for groups, setting in settings.items()}
    theirs = {groups: published("federico")[f"{name}_{groups}"] for groups in settings}
    rows = []
    for one in METHODS:
        beside = ("{:.2f} ± {:.2f}".format(*theirs[groups][one]) for groups in each)
        rows.append([LABELS[one], *(found.cell(records[one]) for records in each.values()), *beside])
    lines = grid(["algorithm", *(f"{groups} groups" for groups in each), *(f"{one}, the paper" for one in each)], rows)
    for groups, records in each.items():
        means = {LABELS[one]: mean(some) for one, some in records.items() if some}
        compared = order(means, {LABELS[one]: theirs[groups][one][0] for one in METHODS})
        lines += ["", *wrap(f"{groups} groups: {compared}")] if compared else []
    return lines


def table1_picture(found: Results, path: Path) -> None:
    """Bars for each number of groups, the paper's figures as marks."""
    shown = {}
    for name, setting in settings_of("federico", found.scale).items():
        groups, each = name.rpartition("_")[2], found.each(setting, METHODS).items()
        theirs = published("federico")[f"{name.partition('_label_groups')[0]}_{groups}"]
        rows = [(LABELS[one], accuracies(records), theirs[one][0]) for one, records in each]
        shown[f"{setting.label}, {groups} groups"] = rows
    bars(shown, "test accuracy in percent", path)


def table2_body(found: Results) -> dict[str, Part]:
    """Mean and spread over clients."""
    setting, theirs, rows, ours = only("mixed_labels", found.scale), published("federico")["mixed_labels"], [], {}
    for name, records in found.each(setting, METHODS).items():
        summaries = [one["summary"] for one in records]
        cells = [f"{100 * one[ACCURACY]:.2f} ± {100 * one['test/seen/accuracy_std']:.2f}" for one in summaries]
        rows.append([LABELS[name], ", ".join(cells) or "not run", "{:.2f} ± {:.2f}".format(*theirs[name])])
        ours |= {LABELS[name]: mean(records)} if records else {}
    compared = order(ours, {LABELS[name]: one[0] for name, one in theirs.items()})
    head = ["algorithm", f"{setting.label}, here", "Office-Home, the paper"]
    return {"table": grid(head, rows), "order": compared or None}


KINDS = ("its own model", "the others of its group", "other groups")
COMMON = ("in common, one group, percent", "different groups, percent")


def kinds(record: Record) -> np.ndarray:
    """Weights of each client for its own model, for the others of its group and for other groups, [R, T, 3]."""
    kept = record["client_weights"]
    weights, groups = np.array(kept["collaboration"]), np.array(kept["groups"])
    own = np.eye(len(groups), dtype=bool)
    fellows = (groups[:, None] == groups) & ~own
    return np.stack([(weights * mask).sum(-1) for mask in (own, fellows, ~own & ~fellows)], axis=-1)


def in_common(record: Record) -> np.ndarray:
    """The mean weight that two clients have in common, of one group and of different ones, [R, 2]: who works together.

    It tells groups apart even where clients of one group take the model of a client of another, as may happen, since
    all models start at random and depend on no client's data.
    """
    kept = record["client_weights"]
    weights, groups = np.array(kept["collaboration"]), np.array(kept["groups"])
    overlap = np.minimum(weights[:, :, None], weights[:, None]).sum(-1)
    same = groups[:, None] == groups
    pairs = (same & ~np.eye(len(groups), dtype=bool), ~same)
    return np.stack([(overlap * mask).sum((1, 2)) / max(1, mask.sum()) for mask in pairs], axis=-1)


def weight_lines(record: Record, client: int) -> Shares:
    """The weights of a client over the rounds; its own model has a thick line."""
    kept = record["client_weights"]
    weights, groups = np.array(kept["collaboration"])[:, client], map(int, kept["groups"])
    lines = []
    for other, group in enumerate(groups):
        lines.append(Share(f"a client of group {group}", weights[:, other].tolist(), group, group, other == client))
    return kept["rounds"], lines


def percent(values: Sequence[float]) -> list[str]:
    """Weights as they are shown in tables."""
    return [f"{100 * value:.1f}" for value in values]


def four_groups(scale: Scale) -> Setting:
    """Table 1's column of four groups."""
    name = "cifar10_label_groups_4" if scale == "reduced" else "cifar100_label_groups_paper_4"
    return settings_of("federico", scale)[name]


def clients_body(found: Results) -> dict[str, Part]:
    """How each client divides its weight in the end."""
    lines: list[str] = []
    for record in found.of(four_groups(found.scale), "federico"):
        divided, rounds = kinds(record), record["client_weights"]["rounds"]
        groups = record["client_weights"]["groups"]
        rows = [[f"{i}", f"{int(groups[i])}", *percent(row)] for i, row in enumerate(divided[-1])]
        first, last = (percent(divided[when].mean(0)) for when in (0, -1))
        within, across = percent(in_common(record)[-1])
        lines += ["", *grid(["client", "its group", *(f"{kind}, percent" for kind in KINDS)], rows), ""]
        lines += wrap(
            f"After {rounds[-1]:.0f} rounds clients give on average {last[0]} percent of the weight to their own "
            f"model, {last[1]} to the others of their group and {last[2]} to other groups; after {rounds[0]:.0f} "
            f"rounds it was {first[0]}, {first[1]} and {first[2]}. Two clients of one group have {within} percent of "
            f"their weight in common, two of different groups {across}."
        )
    return {"data": four_groups(found.scale).label, "clients": lines[1:]}


def clients_picture(found: Results, path: Path) -> None:
    """A panel for each client of the first seed that was run."""
    record = found.of(four_groups(found.scale), "federico")[0]
    groups = record["client_weights"]["groups"]
    shown = {f"client {i}, group {int(group)}": weight_lines(record, i) for i, group in enumerate(groups)}
    shares(shown, "weight", path)


def components_body(found: Results) -> dict[str, Part]:
    """Which components the clients use in the end."""
    lines: list[str] = []
    for record in found.of(four_groups(found.scale), "fedem"):
        weights, groups = np.array(record["client_weights"]["mixture"])[-1], record["client_weights"]["groups"]
        rows = [[f"{i}", f"{int(groups[i])}", *percent(row)] for i, row in enumerate(weights)]
        head = ["client", "its group", *(f"component {m}, percent" for m in range(weights.shape[1]))]
        lines += ["", *grid(head, rows), "", *wrap(_use(weights, np.array(groups)))]
    return {"data": four_groups(found.scale).label, "clients": lines[1:]}


def _use(weights: np.ndarray, groups: np.ndarray) -> str:
    """How many components are used, and whether by groups."""
    favourite = weights.argmax(1)
    by_group = [set(favourite[groups == group].tolist()) for group in np.unique(groups)]
    alone = sum(len(one) == 1 and all(not one & other for other in by_group if other is not one) for one in by_group)
    return (
        f"{len(set(favourite.tolist()))} of {weights.shape[1]} components have the largest weight of some client, and "
        f"{sum(weights.max(0) >= 0.1)} a weight of at least 0.1. {sum(len(one) == 1 for one in by_group)} of "
        f"{len(by_group)} groups agree on the component of largest weight, and {alone} have it to themselves."
    )


def components_picture(found: Results, path: Path) -> None:
    """A panel for each client of the first seed that was run."""
    record, shown = found.of(four_groups(found.scale), "fedem")[0]["client_weights"], {}
    for client, group in enumerate(map(int, record["groups"])):
        values = enumerate(np.array(record["mixture"])[:, client].T)
        lines = [Share(f"component {m}", one.tolist(), m, group) for m, one in values]
        shown[f"client {client}, group {group}"] = (record["rounds"], lines)
    shares(shown, "weight", path)


def tracking_body(found: Results) -> dict[str, Part]:
    """How the weights are spread, early and late."""
    setting, rows = only("tracking", found.scale), []
    for one in setting.methods:
        records = found.of(setting, one.name)
        rows += [[one.label, *cells] for cells in _spread(records)] if records else [[one.label, "not run"]]
    head = ["weights from", "rounds", *(f"{kind}, percent" for kind in KINDS), *COMMON, "models", "accuracy in the end"]
    return {"data": setting.label, "table": grid(head, [[*row, *[""] * (len(head) - len(row))] for row in rows])}


def _spread(records: Sequence[Record]) -> list[list[str]]:
    """A row for the first kept round, for one soon after, and for the last."""
    rounds = records[0]["client_weights"]["rounds"]
    weights = np.array([one["client_weights"]["collaboration"] for one in records])
    effective = np.exp(-(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)).mean((0, 2))
    divided = np.mean([kinds(one) for one in records], axis=(0, 2))
    common = np.mean([in_common(one) for one in records], axis=0)
    rows = []
    for at in sorted({0, min(4, len(rounds) - 1), len(rounds) - 1}):
        shown = percent([*divided[at], *common[at]])
        rows.append([f"{rounds[at]:.0f}", *shown, f"{effective[at]:.2f}", f"{mean(records):.2f}"])
    return rows


def tracking_picture(found: Results, path: Path) -> None:
    """A client of each group, of the first seed that was run, for both."""
    setting, shown = only("tracking", found.scale), dict[str, Shares]()
    for one in setting.methods:
        for record in found.of(setting, one.name)[:1]:
            shown |= {f"{one.label}, client {client}": weight_lines(record, client) for client in (0, 1)}
    shares(shown, "weight", path)


VALUES: dict[str, tuple[float, ...]] = {
    "explore_probability": (0, 0.1, 0.3, 0.6, 1),
    "num_neighbours": (0, 1, 3, 5, 7),
    "loss_momentum": (0.1, 0.3, 0.6, 0.9),
}
USUAL = {"explore_probability": 0.3, "num_neighbours": 3, "loss_momentum": 0.6}
SIGNS = {"explore_probability": "ε", "num_neighbours": "M", "loss_momentum": "β"}


def option_setting(scale: Scale, option: str, name: str = "") -> Setting:
    """Where a hyper-parameter is varied, with the methods of its values; all three share the run with the usual ones.

    A name is that of the methods in the place of the hyper-parameter's.
    """
    settings = list(settings_of("hyper_parameters", scale).values())
    return settings[-1 if option == "num_neighbours" else 0].only(*option_methods(scale, option, name).values())


def option_methods(scale: Scale, option: str, name: str = "") -> dict[float, str]:
    """The methods with the values that are tried."""
    values = VALUES[option] if scale != "smoke" else (VALUES[option][0], USUAL[option])
    usual = None if name else USUAL[option]
    return {value: "usual" if value == usual else f"{name or option}_{value:g}" for value in values}


def by_value(found: Results, option: str, name: str = "") -> dict[float, list[Record]]:
    """The records of each value."""
    setting = option_setting(found.scale, option, name)
    return {value: found.of(setting, one) for value, one in option_methods(found.scale, option, name).items()}


def accuracy_curve(record: Record, option: str) -> tuple[list[int], list[float]]:
    """Rounds, and the accuracy in percent of all clients, or of client 0 where β varies."""
    kept = record["client_accuracies"]
    if option == "loss_momentum":
        return kept["rounds"], [100 * row[0] for row in kept["accuracies"]]
    curve = dict(zip(record["curve"]["rounds"], record["curve"][ACCURACY], strict=True))
    return kept["rounds"], [100 * curve[one] for one in kept["rounds"]]


def figure6_body(found: Results) -> dict[str, Part]:
    """For each hyper-parameter the accuracy in the end, and on the way there."""
    lines: list[str] = []
    for option, sign in SIGNS.items():
        rows, speed, end = [], {}, {}
        for value, records in by_value(found, option).items():
            reached = [accuracy_curve(one, option)[1] for one in records]
            rows.append([f"{value:g}", *_cells(reached)])
            if records:
                speed[f"{value:g}"] = float(np.mean(reached))
                end[f"{value:g}"] = float(np.mean([one[-1] for one in reached]))
        both = f"In the end: {ranked(end)}. Mean over the rounds: {ranked(speed)}." if len(speed) > 1 else ""
        table = grid([sign, "in the end", "mean over the rounds"], rows)
        title = f"{sign} (`{option}`), {option_setting(found.scale, option).label}"
        lines += section(title, wrap(found.words["words"][option]), table, wrap(both))
    return {"options": lines[1:]}


def _cells(curves: Sequence[Sequence[float]]) -> list[str]:
    """Last value and mean over the rounds, each with its spread over seeds."""
    both = [one[-1] for one in curves], [float(np.mean(one)) for one in curves]
    return [plus_minus(values) if values else "not run" for values in both]


def figure6_picture(found: Results, path: Path) -> None:
    """A panel for each hyper-parameter."""
    lines: dict[str, list[Curve]] = {}
    for option, sign in SIGNS.items():
        title = f"{sign}, {option_setting(found.scale, option).label}" + (", client 0" * (option == "loss_momentum"))
        lines[title] = []
        for value, records in by_value(found, option).items():
            pairs = [accuracy_curve(one, option) for one in records]
            lines[title] += [(f"{sign} = {value:g}", pairs[0][0], [one for _, one in pairs])] if pairs else []
    curves(lines, "round", "test accuracy in percent", path)


def figure7_body(found: Results) -> dict[str, Part]:
    """How much the weights of client 0 move, and where they end."""
    rows = []
    for value, records in by_value(found, "loss_momentum", "mean").items():
        if records:
            moved = np.mean([_movement(one) for one in records], axis=0)
            last = np.mean([kinds(one)[-1, 0] for one in records], axis=0)
            rows.append([f"{value:g}", f"{moved[0]:.2f}", f"{moved[1]:.2f}", *percent(last)])
    head = ["β", "movement", "in the first half", *(f"{kind} in the end, percent" for kind in KINDS)]
    label = option_setting(found.scale, "loss_momentum").label
    return {"data": label, "table": grid(head, rows) if rows else ["not run"]}


def _movement(record: Record) -> tuple[float, float]:
    """Movement of the weights of client 0 over all kept rounds, and over the first half of them."""
    weights = np.array(record["client_weights"]["collaboration"])[:, 0]
    steps = 0.5 * np.abs(np.diff(weights, axis=0)).sum(1)
    return float(steps.sum()), float(steps[: len(steps) // 2].sum())


def figure7_picture(found: Results, path: Path) -> None:
    """A panel for each β, of the first seed that was run."""
    each = by_value(found, "loss_momentum", "mean")
    shares({f"β = {value:g}": weight_lines(some[0], 0) for value, some in each.items() if some}, "weight", path)


LINES = {"fedavg": (":", "#8a8a8a"), "local": ("--", "#d1701f"), "federico": ("-", "#1b4f8a")}


def sine_found(found: Results) -> dict[str, Record]:
    """The record of the first seed that was run, for each algorithm."""
    return {name: some[0] for name, some in found.each(only("sine", found.scale), list(LINES)).items() if some}


def sine_body(found: Results) -> dict[str, Part]:
    """How far the lines are from the curve, and whom FedeRiCo's clients work with."""
    records = sine_found(found)
    errors = {name: f"{record['sine_lines']['error']:.3f}" for name, record in records.items()}
    rows = [[LABELS[name], errors.get(name, "not run")] for name in LINES]
    parts: dict[str, Part] = {"table": grid(["algorithm", "squared distance"], rows), "near": None, "far": None}
    if "federico" not in records:
        return parts
    # what near and far clients have in common; whose models they are says little, as all start at random
    weights = np.array(records["federico"]["client_weights"]["collaboration"])[-1]
    overlap = np.minimum(weights[:, None], weights[None]).sum(-1)
    apart = np.abs(np.subtract.outer(range(len(weights)), range(len(weights))))
    near, far = (f"{100 * overlap[mask].mean():.0f}" for mask in (apart == 1, apart >= 5))
    return parts | {"near": near, "far": far}


def sine_picture(found: Results, path: Path) -> None:
    """The lines of all clients, and FedeRiCo's weights."""
    from matplotlib.figure import Figure

    records = sine_found(found)
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_lines(left, records)
    if "federico" in records:
        image = right.imshow(records["federico"]["client_weights"]["collaboration"][-1], cmap="Blues", vmin=0)
        figure.colorbar(image, ax=right)
    ticks = range(0, 20, 5)
    right.set(xlabel="whose model", ylabel="client", title="weights of FedeRiCo", xticks=ticks, yticks=ticks)
    save(figure, path)


def _draw_lines(axis: Any, records: dict[str, Record]) -> None:
    any_of_them = next(iter(records.values()))["sine_lines"]
    x, curve = np.array(any_of_them["x"]), np.array(any_of_them["curve"])
    axis.plot(x.ravel(), curve.ravel(), color="#b03a8a", label="sine curve")
    axis.plot(any_of_them["train_x"], any_of_them["train_y"], ".", color="#333333", label="training points")
    for name, record in records.items():
        dash, colour = LINES[name]
        for client, line in enumerate(record["sine_lines"]["lines"]):
            label = f"{LABELS[name]}, squared distance {record['sine_lines']['error']:.2f}" if client == 0 else None
            axis.plot(x[client], line, dash, color=colour, label=label)
    axis.spines[["top", "right"]].set_visible(False)
    axis.set(xlabel="input", ylabel="output, in units of the noise")
    axis.legend(fontsize=8, frameon=False)


CLIENTS, COMPONENTS = (runs_of(lambda scale: [four_groups(scale)], [one]) for one in ("federico", "fedem"))
OPTIONS = runs_of(lambda scale: [option_setting(scale, one) for one in VALUES])
MOMENTUM = runs_of(lambda scale: [option_setting(scale, "loss_momentum", "mean")])
TABLES = [
    Table("federico-table1", runs_of(table1_columns), table1_body, table1_picture),
    Table("federico-table2", runs_of("mixed_labels"), table2_body),
    Table("federico-figure1", runs_of("sine"), sine_body, sine_picture),
    Table("federico-figure3", CLIENTS, clients_body, clients_picture),
    Table("federico-figure4", COMPONENTS, components_body, components_picture),
    Table("federico-figure5", runs_of("tracking"), tracking_body, tracking_picture),
    Table("federico-figure6", OPTIONS, figure6_body, figure6_picture),
    Table("federico-figure7", MOMENTUM, figure7_body, figure7_picture),
    Table("federico-figure8", CLIENTS, clients_body, clients_picture),
    Table("federico-figure9", CLIENTS, clients_body, clients_picture),
]
