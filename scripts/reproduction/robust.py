"""Attackers on MNIST under rules that were published with figures, and what they do to mixtures and clusters."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from lit_fed.pictures.style import COLOURS, save
from reproduction.markdown import Part, grid, section, wrap
from reproduction.pictures import panels
from reproduction.runs import Record, Run
from reproduction.settings import facts, published, runs_of, settings_of
from reproduction.tables import ACCURACY, Results, Scale, Setting, Table


def mnist(scale: Scale) -> dict[str, Setting]:
    """The setting at each momentum; at the paper's scale all in float32, without the cells by the authors' seeds."""
    found = {name.rpartition("_")[2]: one for name, one in settings_of("attacked", scale).items()}
    if scale != "paper":
        return found
    for beta, one in found.items():
        ours = [method.name for method in one.methods if "_as_run_" not in method.name]
        found[beta] = one.without("--trainer.precision").only(*ours)
    return found


MORE_SEEDS = {("0", one): (2, 3) for one in ("cclip_flip", "median_labels", "median_ipm")} | {
    ("0.9", f"median_{attack}_as_run_{seed}"): (2,) for attack in ("labels", "mimic") for seed in range(3)
}
"""Cells that one seed decides by several points, by momentum and method."""


def _seeds(beta: str, name: str, scale: Scale, seeds: Sequence[int]) -> tuple[int, ...]:
    more = MORE_SEEDS.get((beta, name), ()) if scale == "reduced" else ()
    return tuple(dict.fromkeys((*seeds, *more)))


def mnist_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All runs, momentum by momentum."""
    found: list[Run] = []
    for beta, setting in mnist(scale).items():
        for name in (method.name for method in setting.methods):
            found += setting.runs(_seeds(beta, name, scale, seeds), [name])
    return found


def last_five(record: Record) -> float:
    """The mean over the last five evaluations, in percent, on the samples of all clients."""
    return 100 * statistics.mean(record["curve"][ACCURACY][-5:])


def mnist_body(found: Results) -> dict[str, Part]:
    """A table for each momentum, with the published figures beside ours."""
    lines: list[str] = []
    for beta, setting in mnist(found.scale).items():
        lines += section(f"Momentum {beta}", _mnist_table(setting, beta, found)) + _as_run_table(setting, beta, found)
    return {"settings": lines[1:]}


def _mnist_table(setting: Setting, beta: str, found: Results) -> list[str]:
    rows, below, attacks = [], [], setting.choices["attack"]
    for rule, label in setting.choices["rule"].items():
        cells = []
        for number, (attack, of) in enumerate(attacks.items()):
            name = f"{rule}_{attack}"
            runs = setting.runs(_seeds(beta, name, found.scale, found.seeds), [name])
            reached = [last_five(one) for one in found.kept.all(runs)]
            theirs = published("attacked")[beta].get(rule)
            ended = [f"NaN in round {at}" for at in map(found.kept.diverged, runs) if at is not None]
            said = [f"{statistics.mean(reached):.1f}"] if reached else []
            beside = f" ({theirs[number]:.1f})" if theirs else ""
            cells.append((" / ".join([*said, *ended]) or "not run") + beside)
            if len(reached) > len(found.seeds):
                below.append(f"{label} under {of}, by seed: {_listed(reached)}.")
        rows.append([label, *cells])
    plain = [last_five(one) for one in found.of(setting, "mean_none")]
    below += [f"Nobody attacks, mean: {statistics.mean(plain):.1f}."] if plain else []
    lines = grid(["rule", *attacks.values()], rows)
    return [*lines, "", *wrap(" ".join(below))] if below else lines


def _as_run_table(setting: Setting, beta: str, found: Results) -> list[str]:
    """Cells with the authors' initial models and masks, seed by seed of theirs."""
    rows = []
    for name, theirs in facts()["attacked_as_run"][float(beta)].items():
        runs = [f"{name}_as_run_{seed}" for seed in range(len(theirs))]
        each = [found.kept.all(setting.runs(_seeds(beta, one, found.scale, [1]), [one])) for one in runs]
        if all(each):
            reached = [[last_five(one) for one in records] for records in each]
            shown = [f"{_listed(ours)} ({logged:.1f})" for ours, logged in zip(reached, theirs, strict=True)]
            ours = statistics.mean(map(statistics.mean, reached))
            rule, _, attack = name.partition("_")
            labels = f"{setting.choices['rule'][rule]}, {setting.choices['attack'][attack]}"
            rows.append([labels, *shown, f"{ours:.1f} ({statistics.mean(theirs):.1f})"])
    head = ["rule, attack", *(f"seed {seed}" for seed in range(3)), "mean"]
    return ["", *wrap(found.words["as_run"]), "", *grid(head, rows)] if rows else []


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{one:.1f}" for one in values)


def mixed(scale: Scale) -> Setting:
    """The setting, whose methods are named by algorithm, rule, attack and share of attackers."""
    return settings_of("attacked_mixtures", scale)["robust_mixtures"]


def worst(setting: Setting) -> dict[str, str]:
    """Nobody, and each attack with the largest share of attackers; without the share in the label."""
    attacks = setting.choices["attack"].items()
    return {name: label.rpartition(", ")[0] or label for name, label in attacks if not name.endswith("_0.1")}


def mixed_body(found: Results) -> dict[str, Part]:
    """A table for each algorithm, and which components attackers poison."""
    setting, lines, poisoned = mixed(found.scale), list[str](), []
    keys = ("test/honest/accuracy", "test/honest/accuracy_decile", "test/unseen/accuracy")
    rules = setting.choices["rule"]
    for name, label in setting.choices["algorithm"].items():
        rows = []
        for attack, said in setting.choices["attack"].items():
            each = [found.of(setting, f"{name}_{rule}_{attack}") for rule in rules]
            rows += [[said, *(found.cell(one, *keys) for one in each)]] if any(each) else []
        lines += section(label, grid(["attack", *rules.values()], rows)) if rows else []
        for attack, said in worst(setting).items():
            measured = [one["poisoned_components"] for one in found.of(setting, f"{name}_mean_{attack}")]
            cells = [_three(measured, key) for key in ("attackers", "honest", "alone")]
            poisoned += [[label, said, *cells]] if measured else []
    head = ["algorithm", "attack", "π of attackers", "π of honest clients", "alone"]
    table = grid(head, poisoned) if poisoned else None
    return {"algorithms": lines[1:], "poisoned": table, "if_poisoned": "" if poisoned else None}


def _three(measured: Sequence[Mapping[str, list[float]]], key: str) -> str:
    means = [statistics.mean(values) for values in zip(*(one[key] for one in measured), strict=True)]
    return " / ".join(f"{100 * value:.1f}" if key == "alone" else f"{value:.2f}" for value in means)


def mixed_picture(found: Results, path: Path) -> None:
    """A panel for each algorithm: accuracy of honest clients under each attack, a bar for each rule."""
    setting = mixed(found.scale)
    rules, attacks = setting.choices["rule"], worst(setting)
    figure, axes = panels(list(setting.choices["algorithm"].values()), width=4.6, height=3.0)
    for name, title in setting.choices["algorithm"].items():
        axis, named = axes[title], set[str]()
        for place, (rule, label) in enumerate(rules.items()):
            for column, attack in enumerate(attacks):
                records = found.of(setting, f"{name}_{rule}_{attack}")
                if records:
                    height = statistics.mean(100 * one["summary"]["test/honest/accuracy"] for one in records)
                    at_x = column + 0.16 * (place - (len(rules) - 1) / 2)
                    axis.bar(at_x, height, 0.15, color=COLOURS[place], label=None if rule in named else label)
                    named.add(rule)
        axis.set_xticks(range(len(attacks)), list(attacks.values()), fontsize=7)
        axis.set(ylabel="test accuracy (%), 20 % attack", ylim=(30, 85))
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=6, frameon=False, ncols=3, loc="upper center")
    save(figure, path)


TABLES = [
    Table("robust-mnist", mnist_runs, mnist_body),
    Table("robust-mixtures", runs_of("attacked_mixtures"), mixed_body, mixed_picture),
]
