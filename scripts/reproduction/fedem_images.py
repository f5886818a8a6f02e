"""Real images by the protocol of the FedEM paper, https://arxiv.org/abs/2108.10252, with all its clients and rounds."""

from collections.abc import Sequence
from pathlib import Path

from reproduction.fedem import THEIRS
from reproduction.markdown import Part, grid
from reproduction.pictures import Curve, curves
from reproduction.runs import Run
from reproduction.settings import LABELS, published, settings_of
from reproduction.tables import ACCURACY, Method, Results, Scale, Setting, Table

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


TABLES = [Table("fedem-images", images_runs, images_body, images_picture)]
