"""Figures and appendices of the FedEM paper, https://arxiv.org/abs/2108.10252: components, mixtures, images."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from lit_fed.pictures.style import draw_mean, look, save
from reproduction.fedem import TABLE2, TABLE3, THEIRS, at_rate, settings_or_one, unseen
from reproduction.markdown import Part, grid, section
from reproduction.pictures import Curve, curves, panels
from reproduction.runs import Record, Run
from reproduction.settings import LABELS, published, runs_of, settings_of
from reproduction.tables import ACCURACY, Method, Results, Scale, Setting, Table, accuracies, mean, plus_minus


def synthetic_or_cifar10(scale: Scale) -> Setting:
    """The paper's CIFAR-10, or what stands for it."""
    return settings_of("fedem", scale)["cifar10" if scale == "paper" else "synthetic"]


RATES: dict[Scale, Sequence[float]] = dict.fromkeys(("reduced", "paper"), (0.1, 0.2, 0.5, 1.0)) | {"smoke": (0.2, 1.0)}
NUMBERS: dict[Scale, Sequence[int]] = {"smoke": (1, 3), "reduced": (1, 2, 3, 4, 6, 8), "paper": (1, 2, 3, 4, 6)}
SAMPLED = ("fedavg_plus", "fedem")


def with_components(number: int) -> str:
    """The method that is FedEM with so many components."""
    return "fedem" if number == 3 else f"fedem_{number}"


def figure1_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of both panels."""
    setting = synthetic_or_cifar10(scale)
    sampled = [run for rate in RATES[scale] for run in at_rate(setting, rate).runs(seeds, SAMPLED)]
    return sampled + setting.runs(seeds, [with_components(number) for number in NUMBERS[scale]])


def by_rate(found: Results, name: str) -> dict[float, list[Record]]:
    """The records of a method at each client sampling rate."""
    setting = synthetic_or_cifar10(found.scale)
    return {rate: found.of(at_rate(setting, rate), name) for rate in RATES[found.scale]}


def by_number(found: Results) -> dict[float, list[Record]]:
    """FedEM's records with each number of components."""
    setting = synthetic_or_cifar10(found.scale)
    return {number: found.of(setting, with_components(number)) for number in NUMBERS[found.scale]}


def figure1_body(found: Results) -> dict[str, Part]:
    """Both panels as tables, and what the paper reads from them."""
    sampled, numbers, costs = {name: by_rate(found, name) for name in SAMPLED}, by_number(found), []
    rate_rows = [[f"{rate:g}", *(found.cell(sampled[name][rate]) for name in SAMPLED)] for rate in RATES[found.scale]]
    for name, at in sampled.items():
        least, most = at[min(at)], at[max(at)]
        costs += [f"{LABELS[name]} {mean(least) - mean(most):+.1f} points"] if least and most else []
    made = [number for number, records in numbers.items() if records]
    gains = [f"{one} to {next_} {mean(numbers[next_]) - mean(numbers[one]):+.1f}" for one, next_ in pairwise(made)]
    return {
        "data": synthetic_or_cifar10(found.scale).label,
        "by_share": grid(["share", *(LABELS[name] for name in SAMPLED)], rate_rows),
        "costs": ", ".join(costs) or None,
        "by_number": grid(["components", "FedEM"], [[str(one), found.cell(some)] for one, some in numbers.items()]),
        "gains": ", ".join(gains) or None,
        "truth": "" if found.scale == "paper" else f" {found.words['truth']}",
    }


def figure1_picture(found: Results, path: Path) -> None:
    """The picture of both panels."""
    rates = [line(LABELS[name], by_rate(found, name)) for name in SAMPLED]
    lines = {"Clients in each round": rates, "Components": [line("FedEM", by_number(found))]}
    labels = {"Clients in each round": "share of all clients", "Components": "number of components"}
    curves(lines, labels, "test accuracy in percent", path)


def line(label: str, records: Mapping[float, list[Record]]) -> Curve:
    """A curve over the settings that have records, with as many seeds as all of these have."""
    settings = [one for one, found in records.items() if found]
    common = min((len(records[one]) for one in settings), default=0)
    values = {one: accuracies(found) for one, found in records.items()}
    return label, settings, [[values[one][row] for one in settings] for row in range(common)]


LARGER = {"smoke": ["leafcnn-32"], "reduced": ["leafcnn-32", "leafcnn-128"], "paper": ["resnet-18", "resnet-34"]}


def larger_setting(scale: Scale) -> Setting:
    """FedAvg with the setting's network and with larger ones, and FedEM."""
    setting = settings_of("fedem", scale)["cifar10_dirichlet" if scale == "reduced" else "cifar10"]
    return setting.only("fedavg", *(f"fedavg_{name}" for name in LARGER[scale]), "fedem")


def larger_body(found: Results) -> dict[str, Part]:
    """Accuracy beside the number of parameters, and where each larger network stands between FedAvg and FedEM."""
    setting = larger_setting(found.scale)
    each = found.each(setting)
    rows = [[one.label, _size(each[one.name], each["fedavg"]), found.cell(each[one.name])] for one in setting.methods]
    reached = None
    if each["fedavg"] and each["fedem"]:
        plain, fedem = mean(each["fedavg"]), mean(each["fedem"])
        text = "{}: {:+.1f} points against FedAvg's usual network, {:+.1f} against FedEM."
        larger = [(one.label, mean(each[one.name])) for one in setting.methods[1:-1] if each[one.name]]
        reached = " ".join(text.format(label, one - plain, one - fedem) for label, one in larger)
    return {"data": setting.label, "table": grid(["algorithm", "parameters", "accuracy"], rows), "reached": reached}


def _size(records: Sequence[Record], plain: Sequence[Record]) -> str:
    """Parameters beside FedAvg's, from what the server sent in each round to the same clients."""
    if not (records and plain):
        return ""
    sent, usual = (one[0]["summary"]["comm/total_bytes_down"] / one[0]["summary"]["rounds"] for one in (records, plain))
    return f"{sent / usual:.2f}×"


UNSEEN = "test/unseen/accuracy"


def figure2_setting(scale: Scale) -> Setting:
    """The setting of Table 3, in which a fifth of the clients is not seen in training."""
    return unseen(synthetic_or_cifar10(scale))


def figure2_body(found: Results) -> dict[str, Part]:
    """Accuracy at each share, and from where on it hardly grows."""
    setting = figure2_setting(found.scale)
    others = [[LABELS[one], found.cell(found.of(setting, one), UNSEEN)] for one in TABLE3[:2]]
    parts: dict[str, Part] = {"data": setting.label, "others": grid(["algorithm", "unseen clients"], others)}
    records = found.of(setting, "fedem")
    if not records:
        return parts | {"shares": None, "half_way": None}
    shares, accuracy = _by_share(records)
    rows = [[f"{share:g}", plus_minus(accuracy[:, column].tolist())] for column, share in enumerate(shares)]
    return parts | {"shares": grid(["share", "FedEM"], rows), "half_way": _half_way(shares, accuracy.mean(axis=0))}


def _by_share(records: Sequence[Record]) -> tuple[list[float], np.ndarray]:
    """Shares, and accuracies in percent [seeds, shares]."""
    measured = [one["accuracy_by_share"] for one in records]
    return measured[0]["shares"], 100 * np.array([one["accuracy"] for one in measured])


def _half_way(shares: Sequence[float], accuracy: np.ndarray) -> str:
    """How much of the whole gain each share brings."""
    gain = accuracy[-1] - accuracy[0]
    if gain <= 0:
        return "All samples bring no more than uniform weights do."
    brought = zip(shares[1:-1], 100 * (accuracy[1:-1] - accuracy[0]) / gain, strict=True)
    parts = ", ".join(f"{part:.0f} % at a share of {share:g}" for share, part in brought)
    return f"All samples bring {gain:.1f} points over uniform weights. Of these there are {parts}."


def figure2_picture(found: Results, path: Path) -> None:
    """The curve, with FedAvg's and FedAvg+'s levels."""
    setting = figure2_setting(found.scale)
    records = found.of(setting, "fedem")
    if not records:
        return
    shares, accuracy = _by_share(records)
    percent = [100 * share for share in shares]
    drawn: list[Curve] = [("FedEM", percent, accuracy.tolist())]
    for name in TABLE3[:2]:
        levels = accuracies(found.of(setting, name), UNSEEN)
        drawn += [(LABELS[name], percent, [[level] * len(percent) for level in levels])] if levels else []
    curves({setting.label: drawn}, "training samples adapted on, in percent", "test accuracy in percent", path)


def entropy_settings(scale: Scale) -> list[Setting]:
    """Where FedEM's runs measure the entropy."""
    if scale == "paper":
        return [unseen(one) for one in settings_of("fedem", scale).values()]
    return [figure2_setting(scale)]


def entropy_body(found: Results) -> dict[str, Part]:
    """Entropies of old and new clients, and which are smaller."""
    rows, said = [], []
    for setting in entropy_settings(found.scale):
        records = found.of(setting, "fedem")
        old, new = ([one["mixture_entropy"][who] for one in records] for who in ("seen", "unseen"))
        rows.append([setting.label, *(plus_minus(values) if records else "not run" for values in (old, new))])
        lower = sum(one < other for one, other in zip(old, new, strict=True))
        text = f"{setting.label}: old clients have the lower entropy with {lower} of {len(records)} seeds."
        said += [text] if records else []
    return {"table": grid(["data", "old clients", "new clients"], rows), "lower": " ".join(said)}


def cluster_settings(scale: Scale) -> list[Setting]:
    """Synthetic data whose clients have one component each, of two or of three."""
    settings, synthetic = [], settings_of("fedem", scale)["synthetic"]
    for number in (2, 3):
        drawn = ("--data.dataset.one_hot_mixtures", "true", "--data.dataset.num_components", str(number))
        setting = synthetic.varied(f"clusters_{number}", *drawn).only(with_components(number))
        settings.append(setting._replace(measures=("recovery",)))
    return settings


def clusters_body(found: Results) -> dict[str, Part]:
    """What is found of the truth, seed by seed."""
    rows = []
    for number, setting in zip((2, 3), cluster_settings(found.scale), strict=True):
        for seed in found.seeds:
            rows += [[str(number), str(seed), *_recovered(one)] for one in found.kept.all(setting.runs([seed]))]
    whole = sum(row[4] == "100.0" for row in rows)
    head = ["clusters", "seed", "cosines of the components", "L1 error of the weights", "clients", "accuracy"]
    said = f"All clients are in their clusters in {whole} of {len(rows)} runs." if rows else "Not run."
    return {"table": grid(head, rows), "in_place": said}


def _recovered(record: Record) -> list[str]:
    found = record["recovery"]
    cosines = ", ".join(f"{value:.3f}" for value in found["cosines"])
    accuracy = 100 * record["summary"][ACCURACY]
    return [cosines, f"{found['mixture_l1']:.4f}", f"{100 * found['clusters']:.1f}", f"{accuracy:.2f}"]


QUANTITIES = {
    "training loss": ("train/seen/loss@served",) * 2, "training accuracy": ("train/seen/accuracy",) * 2,
    "test loss": ("test/seen/loss", "val/seen/loss"), "test accuracy": ("test/seen/accuracy", "val/seen/accuracy"),
}  # fmt: skip
"""Keys of a run's curve; the second where it measured the rounds on validation samples."""


def convergence_body(found: Results) -> dict[str, Part]:
    """How far each method is at half of the rounds."""
    lines: list[str] = []
    for setting in settings_or_one(found.scale):
        rows = []
        for name in (one for one in TABLE2 if setting.method(one)):
            records = found.of(setting, name)
            rows.append([LABELS[name], *(_on_the_way(records) if records else ("not run", "", ""))])
        lines += section(setting.label, grid(["algorithm", "round", "accuracy there", "at the end"], rows))
    return {"settings": lines[1:]}


def _on_the_way(records: Sequence[Record]) -> tuple[str, str, str]:
    rounds, values = evaluated(records, "test accuracy")
    if not rounds:
        return "not kept", "", ""
    middle = int(np.abs(np.array(rounds) - rounds[-1] / 2).argmin())
    accuracy = 100 * np.mean(values, axis=0)
    return str(rounds[middle]), f"{accuracy[middle]:.2f}", f"{accuracy[-1]:.2f}"


def evaluated(records: Sequence[Record], quantity: str) -> tuple[list[int], list[list[float]]]:
    """Rounds up to the last, and values [seeds][rounds], of the records that have the quantity."""
    found = [series for record in records if (series := _series(record, quantity))]
    same = [one for one in found if list(one) == list(found[0])]
    return (list(found[0]), [list(one.values()) for one in same]) if found else ([], [])


def _series(record: Record, quantity: str) -> dict[int, float]:
    """A quantity by rounds; {} where the run has none."""
    validated = "validation_curve" in record
    curve, key = record["validation_curve" if validated else "curve"], QUANTITIES[quantity][validated]
    last = record["summary"]["rounds"]
    pairs = zip(curve.get("rounds", ()), curve.get(key, ()), strict=False)
    return {number: value for number, value in pairs if number <= last}


def convergence_picture(found: Results, path: Path) -> None:
    """A row of four panels for each data set; a method looks the same in all of them."""
    settings = settings_or_one(found.scale)
    looks = [{"color": f"C{position}", "markersize": 4, **look(position)} for position in range(len(TABLE2))]
    figure, axes = panels([f"{one.label}: {quantity}" for one in settings for quantity in QUANTITIES], columns=4)
    for setting in settings:
        for quantity in QUANTITIES:
            axis = axes[f"{setting.label}: {quantity}"]
            axis.set(xlabel="round", ylabel="nats" if "loss" in quantity else "percent")
            for position, name in enumerate(TABLE2):
                rounds, values = evaluated(found.of(setting, name), quantity)
                if rounds:
                    each = np.array(values) * (1 if "loss" in quantity else 100)
                    draw_mean(axis, rounds, each, **looks[position])
            if not axis.lines:
                axis.set_axis_off()
                axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes)
    handles = [
        figure.axes[0].plot([], [], label=LABELS[name], **one)[0] for one, name in zip(looks, TABLE2, strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(TABLE2))
    save(figure, path)


# ---------------------------------------------------------------------- real images, all clients and rounds
SEEN = (ACCURACY, "test/seen/accuracy_decile")
TRAINED = "train/seen/accuracy"
SHOWN = (20, 40, 60, 100, 200)  # rounds whose mixtures are shown


def images_runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """All methods in all settings, and the short runs; a run through has one setting, which stands for the others."""
    settings = [*settings_of("images", scale).values(), *settings_of("tuning", scale).values()]
    return [run for one in (settings[:1] if scale == "smoke" else settings) for run in one.runs(seeds)]


def images_body(found: Results) -> dict[str, Part]:
    """The tables of accuracies, the mixture over the rounds, and the short runs."""
    wide, *narrow, mnist, writers = settings_of("images", found.scale).values()
    columns = {"cnn": ([wide], "cifar10"), "lenet5": (narrow, "cifar10"), "writers": ([writers], "femnist")}
    tables = {name: _with_unseen(*column, found) for name, column in columns.items()}
    return {**tables, "mnist": _mnist(mnist, found), "mixture": _mixture(found), "rates": _rates(found)}


def rate_of(method: Method) -> str:
    """The learning rate of a method; of FedAvg+ that of its fine-tuning."""
    return method.option("--model.algorithm.fine_tune_lr") or method.option("--model.solver.lr") or ""


def plainly(name: str) -> str:
    """A method without the way in which it is trained."""
    return name.removesuffix("_clipped").removesuffix("_adam")


def _with_unseen(settings: Sequence[Setting], column: str, found: Results) -> list[str]:
    theirs, unseen, rows = published("fedem")[column], published("fedem_unseen")[column], []
    for setting, method in ((one, method) for one in settings for method in one.methods):
        records, as_theirs = found.of(setting, method.name), THEIRS[plainly(method.name)]
        ended = [at for at in map(found.kept.diverged, setting.runs(found.seeds, [method.name])) if at is not None]
        beside = "{} / {}".format(*theirs[as_theirs]) if as_theirs else "–"
        beside += f"; {unseen[as_theirs][0]}" if as_theirs in unseen else ""
        seen = f"diverged in round {ended[0]}" if ended else found.cell(records, *SEEN)
        others = [found.cell(records, key) for key in ("test/unseen/accuracy", TRAINED)]
        rows.append([method.label, rate_of(method), seen, *others, beside])
    head = ["algorithm", "rate", "seen: mean / decile", "unseen", "training samples", "the paper: seen; unseen"]
    return grid(head, rows)


def _mnist(setting: Setting, found: Results) -> list[str]:
    rows = []
    for method in setting.methods:
        records, theirs = found.of(setting, method.name), published("fedem")["emnist"][method.name]
        ours = [found.cell(records, *SEEN), found.cell(records, TRAINED)]
        rows.append([method.label, rate_of(method), *ours, "{} / {}".format(*theirs)])
    return grid(["algorithm", "rate", "seen: mean / decile", "training samples", "the paper, EMNIST"], rows)


def _mixture(found: Results) -> list[str]:
    rows = []
    for setting in settings_of("images", found.scale).values():
        for method in (one for one in setting.methods if plainly(one.name) == "fedem"):
            for row in (row for record in found.of(setting, method.name)[:1] for row in record["mixture_curve"]):
                alone = ", ".join(f"{100 * value:.1f}" for value in row["components"])
                numbers = (row["entropy_of_clients"], row["entropy_of_samples"], row["largest_weight"])
                cells = [str(row["round"]), *(f"{value:.2f}" for value in numbers), alone]
                rows += [[setting.label, method.label, *cells]] if row["round"] in SHOWN else []
    head = ["data", "algorithm", "round", "entropy of π", "entropy of q", "largest weight", "each alone, in percent"]
    return grid(head, rows)


def _rates(found: Results) -> list[str]:
    reached: dict[tuple[str, str], list[str]] = {}
    for setting in settings_of("tuning", found.scale).values():
        for method in setting.methods:
            (run,) = setting.runs([1], [method.name])
            record, ended = found.kept.find(run), found.kept.diverged(run)
            said = reached.setdefault((setting.label, method.label), [])
            if record is not None:
                accuracy = record["validation_curve"]["val/seen/accuracy"][-1]
                said.append(f"{rate_of(method)}: {100 * accuracy:.1f}")
            elif ended is not None:
                said.append(f"{rate_of(method)}: diverged in round {ended}")
    rows = [[*row, ", ".join(said) or "not run"] for row, said in reached.items()]
    return grid(["data", "algorithm", "rate: accuracy"], rows)


def images_picture(found: Results, path: Path) -> None:
    """Accuracy over the rounds on test and training samples."""
    groups: dict[str, list[Curve]] = {}
    for setting in settings_of("images", found.scale).values():
        for split, said in (("test", "test"), ("train", "training")):
            lines = groups.setdefault(f"{setting.label}, {said} samples", [])
            for name, records in found.each(setting).items():
                values = [[100 * value for value in one["curve"][f"{split}/seen/accuracy"]] for one in records]
                lines += [(LABELS[name], records[0]["curve"]["rounds"], values)] if records else []
    curves(groups, "round", "accuracy in percent", path, columns=2)


TABLES = [
    Table("fedem-figure1", figure1_runs, figure1_body, figure1_picture),
    Table("fedem-resnet", runs_of(lambda scale: [larger_setting(scale)]), larger_body),
    Table("fedem-figure2", runs_of(lambda scale: [figure2_setting(scale)], TABLE3), figure2_body, figure2_picture),
    Table("fedem-entropy", runs_of(entropy_settings, ["fedem"]), entropy_body),
    Table("fedem-clusters", runs_of(cluster_settings), clusters_body),
    Table("fedem-convergence", runs_of(settings_or_one, TABLE2), convergence_body, convergence_picture),
    Table("fedem-images", images_runs, images_body, images_picture),
]
