"""Runs the settings of published tables by their authors' programs and by ours; writes docs/results/published.md.

    python scripts/published.py --data DIR --flamby CHECKOUT --pfllib CHECKOUT   # all that has no record yet
    python scripts/published.py --data DIR                                       # Fed-Heart-Disease's files alone

DIR holds heart/processed.HOSPITAL.data, MNIST/raw and cifar-10-batches-py; checkouts are those of REPOSITORIES. The
clients' files are written below --files, where the configurations of ours look for them. Then theirs and ours run, and
ours and theirs once more from the same start on the same batches, which tells a difference in the algorithm from one in
its random numbers.
"""

import argparse
import csv
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one run, one core; before torch is imported

import numpy as np
from reproduction.markdown import grid
from reproduction.runs import ROOT, Kept, Record, Run, make_missing
from reproduction.settings import published, words
from reproduction.tables import plus_minus
from trials import facts, keep, written

REPOSITORIES = {
    "flamby": "https://github.com/owkin/FLamby at edacf54d5211",
    "pfllib": "https://github.com/TsingZ0/PFLlib at d832e76f6a23",
}
PACKAGES = (
    "opacus==1.5.4", "opt_einsum==3.4.0", "seaborn==0.13.2", "ujson==6.1.0", "h5py==3.16.0", "calmsize==0.1.3",
    "cvxpy==1.9.3",
)  # fmt: skip
"""What the authors' programs import beside this project's own dependencies."""
PEERS = Path(__file__).resolve().parent / "peers"


class Method(NamedTuple):
    """A row of a table."""

    label: str
    ours: tuple[str, ...]  # arguments of `fit`
    theirs: str  # its name in their results, with options of their command line
    options: Mapping[str, Any] | None = None  # of theirs on given batches; None: it is not run so
    files: str = ""  # folder of the clients, where it is not that of the setting


class Setting(NamedTuple):
    """Data, network and budget of a table."""

    label: str
    config: str  # of configs/experiment
    methods: dict[str, Method]
    arguments: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    theirs: tuple[str, ...] = ()  # arguments of their program

    def runs(self, name: str) -> list[Run]:
        """Our runs, method by method."""
        return [
            Run(f"{name}/{key}-{seed}", self.config, (*self.arguments, *one.ours, "--seed_everything", str(seed)))
            for key, one in self.methods.items() for seed in self.seeds
        ]  # fmt: skip


ALONE = "| optimizer=adam local_steps=null local_epochs=50 --trainer.max_epochs=1 --trainer.check_val_every_n_epoch=1"
SERVER = "tau=1e-8 beta1=0.9"
HEART = Setting(
    "Fed-Heart-Disease", "flamby_heart", seeds=(42, 43, 44, 45, 46),
    methods={
        "pooled": Method(
            "Pooled training", words(f"FedAvg {ALONE}", {}), "Pooled Training", {"learning_rate": 0.001, "nrounds": 1},
            "heart_pooled",
        ),
        "local": Method("Local, each on its own centre", words(f"Local {ALONE}", {}), "Local", files="heart_alone"),
        "fedavg": Method("FedAvg", words("FedAvg", {}), "FedAvg", {"learning_rate": 0.001}),
        "fedprox": Method(
            "FedProx", words("FedProx prox_weight=0.01", {}), "FedProx", {"learning_rate": 0.001, "mu": 0.01}
        ),
        "scaffold": Method(
            "Scaffold", words("SCAFFOLD --model.weighting samples", {}), "Scaffold",
            {"learning_rate": 0.001, "server_learning_rate": 1.0},
        ),
        "fedadam": Method(
            "FedAdam", words(f"FedAdam server_lr=0.01 beta2=0.999 {SERVER} | lr=0.01", {}), "FedAdam",
            {"learning_rate": 0.01, "server_learning_rate": 0.01, "tau": 1e-8},
        ),
        "fedyogi": Method(
            "FedYogi", words(f"FedYogi server_lr=0.01 beta2=0.999 {SERVER} | lr=0.003162", {}), "FedYogi",
            {"learning_rate": 0.003162, "server_learning_rate": 0.01, "tau": 1e-8},
        ),
        "fedadagrad": Method(
            "FedAdagrad", words(f"FedAdagrad server_lr=0.316228 {SERVER} | lr=0.003162", {}), "FedAdagrad",
            {"learning_rate": 0.003162, "server_learning_rate": 0.316228, "tau": 1e-8},
        ),
    },
)  # fmt: skip

IMAGES = {
    "fedavg": Method("FedAvg", words("FedAvg", {}), "FedAvg", {}),
    "fedprox": Method("FedProx, μ 0.1", words("FedProx prox_weight=0.1", {}), "FedProx -mu 0.1", {"mu": 0.1}),
    "local": Method("Local", words("Local", {}), "Local", {}),
    "ditto": Method("Ditto, λ 0.1", words("Ditto prox_weight=0.1", {}), "Ditto -mu 0.1", {"mu": 0.1}),
    "fedper": Method("FedPer", words("FedPer", {}), "FedPer", {}),
    "fedrep": Method(
        "FedRep", words("FedRep head_epochs=1 body_steps=null --model.weighting samples", {}), "FedRep", {}
    ),
}  # fmt: skip
PFLLIB = {
    "mnist": Setting(
        "MNIST, pathological", "pfllib_images", {name: IMAGES[name] for name in ("fedavg", "local", "ditto", "fedrep")},
        words(
            "--model.network MLP --model.network.hidden_sizes=[100] --trainer.max_epochs 20 "
            "--trainer.check_val_every_n_epoch 5", {},
        ),
        theirs=("-data", "MNIST", "-m", "DNN", "-gr", "20", "-eg", "5"),
    ),
    "cifar10": Setting(
        "CIFAR-10, Dir(0.1)", "pfllib_images", IMAGES,
        theirs=("-data", "Cifar10", "-m", "CNN", "-gr", "10", "-eg", "1"),
    ),
}  # fmt: skip
EVERY = {"mnist": 1, "cifar10": 10}
"""Every how many images one is taken."""
PARTITIONS = {"mnist": "pat", "cifar10": "dir"}
"""The last argument of their generator."""
MATCHED_ROUNDS = 2
"""Rounds on the same batches with the images."""


# ---------------------------------------------------------------------- the clients' files
def heart_clients(root: Path) -> dict[str, dict[str, np.ndarray]]:
    """Patients of each hospital by FLamby's rule, before any standardisation: x_train [n, 13], y_train [n], ….

    The columns 10 to 12 are left out, then patients with a missing value; a label is 1 for narrowed vessels. 66 percent
    of a hospital's patients train, drawn by scikit-learn with seed 43, by label if both have more than two patients.
    Chest pain and resting ECG are categories, without their first one.
    """
    import pandas as pd
    from sklearn.model_selection import train_test_split

    from lit_fed.data.data_sets.uci import HOSPITALS

    read = [pd.read_csv(root / f"processed.{one}.data", header=None, na_values="?") for one in HOSPITALS]
    tables = [table.drop(columns=[10, 11, 12]).dropna() for table in read]
    whole = pd.concat(tables, keys=HOSPITALS)
    x = pd.get_dummies(whole.drop(columns=13), columns=[2, 6], drop_first=True).astype(np.float32)
    y = (whole[13] > 0).astype(np.int64)
    clients = {}
    for one in HOSPITALS:
        own_x, own_y = x.loc[one].to_numpy(), y.loc[one].to_numpy()
        counts = np.unique(own_y, return_counts=True)[1]
        by = own_y if len(counts) > 1 and counts.min() > 2 else None
        train, test = train_test_split(
            np.arange(len(own_y)), train_size=0.66, test_size=1 - 0.66, random_state=43, stratify=by
        )
        parts = {"train": np.sort(train), "test": np.sort(test)}
        clients[one] = {f"x_{part}": own_x[rows] for part, rows in parts.items()}
        clients[one] |= {f"y_{part}": own_y[rows] for part, rows in parts.items()}
    return clients


def standardised(client: Mapping[str, np.ndarray], train: np.ndarray) -> dict[str, np.ndarray]:
    """A client by mean and deviation of training inputs [n, 13]; a constant input is divided by 1e-9."""
    mean, deviation = train.mean(0), train.std(0, ddof=1) + np.float32(1e-9)
    return {name: (one - mean) / deviation if name.startswith("x") else one for name, one in client.items()}


def heart_files(root: Path, out: Path) -> None:
    """Write each hospital by its own statistics, and all patients by those of all as a client of its own.

    In `heart` the pooled test patients are an unseen client, in `heart_pooled` the hospitals' are.
    """
    clients = heart_clients(root)
    everyone = {name: np.concatenate([one[name] for one in clients.values()]) for name in next(iter(clients.values()))}
    pooled = standardised(everyone, everyone["x_train"])
    own = {name: standardised(one, one["x_train"]) for name, one in clients.items()}
    _save(out / "heart", own, {"pooled": _test_of(pooled)})
    _save(out / "heart_alone", own, {})  # for models that fit no other client
    _save(out / "heart_pooled", {"pooled": pooled}, {name: _test_of(one) for name, one in own.items()})


def _test_of(client: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: one for name, one in client.items() if name.endswith("_test")}


def _save(folder: Path, seen: Mapping[str, Any], unseen: Mapping[str, Any]) -> None:
    for kind, clients in {"seen": seen, "unseen": unseen}.items():
        for name, arrays in clients.items():
            (folder / kind).mkdir(parents=True, exist_ok=True)
            np.savez(folder / kind / f"{name}.npz", **arrays)


def image_files(theirs: Path, out: Path) -> None:
    """Write the clients of PFLlib's folder, whose pickled files no reader of ours takes, as arrays."""
    clients = {}
    for path in theirs.glob("train/*.npz"):
        held = {part: _unpickled(theirs / part / path.name) for part in ("train", "test")}
        named = {f"{name}_{part}": array for part, arrays in held.items() for name, array in arrays.items()}
        clients[f"{int(path.stem):02d}"] = named  # sorted by name they are in the order of their numbers
    _save(out, clients, {})


def _unpickled(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=True) as file:  # which this program had written
        return file["data"].item()  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- theirs, as they are
class Theirs:
    """Runs the authors' programs: their checkout, and a folder for what they read and write."""

    def __init__(self, checkout: Path, files: Path) -> None:
        self.checkout, self.place, self.packages = checkout.absolute(), files / "theirs", files / "packages"
        for folder in ("dataset", "run"):
            (self.place / folder).mkdir(parents=True, exist_ok=True)
        if not self.packages.is_dir():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(self.packages)]
            subprocess.run([*install, *PACKAGES], check=True)

    def run(self, program: str, *arguments: str, folder: str = "run") -> str:
        """What a program of scripts/peers/ prints."""
        found = os.pathsep.join([str(self.checkout), str(self.packages)])
        done = subprocess.run(
            [sys.executable, str(PEERS / f"{program}.py"), *arguments], cwd=self.place / folder, check=False,
            env=os.environ | {"PYTHONPATH": found}, capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} {' '.join(arguments)}: {done.stderr[-2000:]}")
        return done.stdout

    def benchmark(self, data: Path, seed: int) -> dict[str, float]:
        """FLamby's benchmark with a seed."""
        with tempfile.TemporaryDirectory() as folder:
            self.run("flamby_heart", "benchmark", str(data), str(seed), f"{folder}/out.csv")
            return benchmark_figures(Path(folder) / "out.csv")

    def generate(self, data: Path, name: str, every: int, partition: str) -> Path:
        """PFLlib's files of a data set."""
        raw = self.place / "dataset" / name / "rawdata"
        link, held = {
            "MNIST": (raw / "MNIST/raw", data / "MNIST/raw"),
            "Cifar10": (raw / "cifar-10-batches-py", data / "cifar-10-batches-py"),
        }[name]
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to(held.absolute())
        self.run("pfllib_images", "generate", str(self.checkout), name, str(every), partition, folder="dataset")
        return raw.parent


def benchmark_figures(path: Path) -> dict[str, float]:
    """Accuracies of FLamby's results: `METHOD/TEST` -> accuracy."""
    with path.open(newline="") as file:
        return {f"{row['Method']}/{row['Test']}": float(row["Metric"]) for row in csv.DictReader(file)}


def over_centres(figures: Mapping[str, float], method: str, pooled: bool = False) -> float:
    """The mean accuracy over the centres' tests, or that of the pooled test, in percent.

    Local models are measured on their own centre.
    """
    if pooled:
        return 100 * figures[f"{_named(method, 0)}/Pooled Test"]
    return 100 * statistics.mean(figures[f"{_named(method, i)}/client_test_{i}"] for i in range(4))


def _named(method: str, centre: int) -> str:
    return {"Local": f"Local {centre}", "Pooled Training": method}.get(method, f"{method}100")


def system_figures(printed: str) -> list[float]:
    """Test accuracies that PFLlib prints, in percent: of each evaluation the last, which is that of personal models."""
    rounds = re.split(r"-Round number: \d+-", printed)[1:]
    return [100 * float(re.findall(r"Averaged Test Accuracy: ([\d.]+)", one)[-1]) for one in rounds]


# ---------------------------------------------------------------------- both on the same batches
def fitted(run: Run, root: Path, *more: str) -> Any:
    """Our command after a run."""
    from lit_fed.cli import FederatedCLI

    config = str(ROOT / f"configs/experiment/{run.config}.yaml")
    with tempfile.TemporaryDirectory() as folder:
        given = ["--data.dataset.root", str(root), "--trainer.default_root_dir", folder, *more]
        return FederatedCLI(
            ["fit", "--config", config, *run.arguments, *given, "--trainer.enable_progress_bar", "false"]
        )


def passes(command: Any, root: Path, rounds: int) -> list[list[list[list[int]]]]:
    """The rows of every step: [client][stage of each round][step][row]."""
    import torch

    from lit_fed.core.plan import plan_of

    sizes = [len(np.load(path)["y_train"]) for path in sorted(root.glob("seen/*.npz"))]
    ids, federation = range(len(sizes)), command.model.federation
    found: list[list[list[list[int]]]] = [[] for _ in ids]
    for round_idx in range(rounds):
        ctx = federation.context("train")._replace(round_idx=round_idx)
        (phase,) = federation.algorithm.phases(ctx, torch.tensor(ids))
        for stage, work in phase.work.by_stage:
            plan = plan_of(ctx._replace(stage=stage), work, ids, sizes)
            for client, rows in enumerate(found):
                steps = zip(plan.index[client, :, 0].tolist(), plan.counts[client].tolist(), strict=True)
                rows.append([row[:count] for row, count in steps if count])
    return found


def leaves(models: Any) -> list[np.ndarray]:
    """The parameters of a single model, in the network's order."""
    return [leaf[0].detach().numpy() for leaf in models.parameters.values()]


def matched(theirs: Theirs, setting: Setting, key: str, root: Path) -> Record:
    """Ours and theirs from one start on the same batches: how far weights and, of images, accuracies are apart.

    PFLlib runs again `without` the batches that are not full, which it drops by itself.
    """
    method, heart = setting.methods[key], setting is HEART
    options: dict[str, Any] = {"nrounds": 15, "num_updates": 100}
    if not heart:
        options = {"mu": 0.0, "local_learning_rate": 0.005, "batch_size": 10, "network": setting.theirs[3]}
        options["global_rounds"] = MATCHED_ROUNDS - 1  # theirs trains once more
    options |= method.options or {}
    rounds = options["nrounds"] if heart else MATCHED_ROUNDS
    run = next(run for run in setting.runs("") if run.name.startswith(f"/{key}-"))
    often = ("--trainer.max_epochs", str(rounds), "--trainer.check_val_every_n_epoch", str(rounds))
    command = fitted(run, root, *often)
    terms, plans = command.model.federation.terms, passes(command, root, rounds)
    if key == "ditto":  # both models take the batches of a round
        plans = [[steps for steps in own for _ in range(2)] for own in plans]
    start, ours = leaves(terms.task.init(1, terms.seed)), leaves(command.model.shared.models)
    given = {"options": json.dumps(options), **{f"start_{i}": leaf for i, leaf in enumerate(start)}}
    shared, accuracy = _on_batches(theirs, setting, method, root, given, plans)
    record: Record = {"rounds": rounds, "apart": _largest(ours, shared), "moved": _largest(ours, start)}
    if heart:
        return record
    full = [[[rows for rows in steps if len(rows) == 10] for steps in own] for own in plans]
    without = _on_batches(theirs, setting, method, root, given, full)[1]
    measured = 100 * float(command.trainer.callback_metrics["test/seen/accuracy"])
    return record | {"ours": measured, "theirs": accuracy, "without": without}


def _on_batches(
    theirs: Theirs, setting: Setting, method: Method, root: Path, given: Mapping[str, Any], plans: Any
) -> tuple[list[np.ndarray], float]:
    """Their shared model after these batches, and their accuracy on test samples in percent, 0 where unknown."""
    with tempfile.TemporaryDirectory() as folder:
        place, out, name = f"{folder}/given.npz", f"{folder}/out.npz", method.theirs
        np.savez(place, plans=json.dumps(plans), **given)
        if setting is HEART:
            theirs.run("flamby_heart", "strategy", str(root.absolute()), place, name, out)
        else:
            files, name = setting.theirs[1], name.split()[0]
            theirs.run("pfllib_images", "batches", str(theirs.checkout), files, place, name, out)
        with np.load(out) as found:
            shared = [found[name] for name in found.files if name.startswith("shared_")]
            hits = found["hits"].sum() / found["sizes"].sum() if "hits" in found else 0
        return shared, 100 * float(hits)


def _largest(ours: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float:
    """The largest difference of a parameter; a head that only one of them sends is at the end."""
    return max(float(np.abs(one - other).max()) for one, other in zip(ours, others, strict=False))


# ---------------------------------------------------------------------- the page
RESULTS = ROOT / "docs/results/published.json"
KEPT = Kept(ROOT / "docs/results/runs/published")
TESTS = {"mean": "test/seen/accuracy_unweighted", "pooled": "test/unseen/accuracy"}
"""Of a model of all hospitals: the mean over their tests, and the pooled test, as our runs call them."""
POOLED_TESTS = {"mean": "test/unseen/accuracy_unweighted", "pooled": "test/seen/accuracy"}


def page(record: Mapping[str, Any]) -> str:
    """docs/results/published.md, whose words are in published.md beside this program."""
    rows = [*heart_rows(record, "mean"), *(row for name in PFLLIB for row in image_rows(record, name))]
    head = ["setting", "method", "published", "theirs, run here", "ours", "ours − theirs", "cause of the difference"]
    pooled = [row[1:-1] for row in heart_rows(record, "pooled")]
    same, every = record["equal"]
    apart = max(one["apart"] for one in record["matched"].values())
    parts = {
        "table": grid(head, rows), "pooled": grid(head[1:-1], pooled), "matched": grid(
            ["setting", "method", "rounds", "largest change of a weight", "ours and theirs apart", "ours", "theirs",
             "theirs without the last batch"], matched_rows(record["matched"]),
        ),
        "best": grid(["setting", "method", "theirs: best", "last", "ours: best", "last"], best_rows(record)),
        "same": str(same), "every": str(every), "apart": f"{apart:.0e}", "date": record["date"],
        "torch": record["torch"], **REPOSITORIES,
    }  # fmt: skip
    return written(__file__, parts)


def heart_rows(record: Mapping[str, Any], test: str) -> Iterator[list[str]]:
    """A row for each method of Fed-Heart-Disease: accuracies with their standard deviation over seeds."""
    for key, method in HEART.methods.items():
        if (key, test) == ("local", "pooled"):
            continue  # four models
        told, theirs = (record[kind][key][test] for kind in ("published", "heart"))
        name = (POOLED_TESTS if key == "pooled" else TESTS)[test]
        ours = [100 * one["summary"][name] for one in _records("heart", HEART, key)]
        cells = [plus_minus(values) if values else "not run" for values in (told, theirs, ours)]
        difference = f"{statistics.mean(ours) - statistics.mean(theirs):+.2f}" if ours else ""
        yield [HEART.label, method.label, *cells, difference, _cause(record, f"heart/{key}")]


def image_rows(record: Mapping[str, Any], name: str) -> Iterator[list[str]]:
    """A row for each method of a setting of PFLlib: the best round on test samples, as its tables count."""
    told = published("pfllib")[name]
    for key, method in PFLLIB[name].methods.items():
        theirs, ours = curves(record, name, key)
        figure = f"{told[key][0]:.2f}" if key in told else "–"
        best = [f"{max(one):.2f}" if one else "not run" for one in (theirs, ours)]
        difference = f"{max(ours) - max(theirs):+.2f}" if theirs and ours else ""
        if theirs or ours:
            cause = _cause(record, f"cifar10/{key}")
            yield [PFLLIB[name].label, method.label, figure, *best, difference, cause]


def curves(record: Mapping[str, Any], name: str, key: str) -> tuple[list[float], list[float]]:
    """Test accuracies of the evaluated rounds of theirs and of ours, without the untrained model; empty if not run."""
    ours = [one["curve"]["test/seen/accuracy"] for one in _records(name, PFLLIB[name], key)]
    return record["images"].get(f"{name}/{key}", [])[1:], [100 * value for value in ours[0]] if ours else []


def best_rows(record: Mapping[str, Any]) -> Iterator[list[str]]:
    """The best evaluated round on test samples and the last one, of theirs and of ours."""
    for name, setting in PFLLIB.items():
        for key, method in setting.methods.items():
            both = curves(record, name, key)
            if all(both):
                cells = [f"{value:.2f}" for one in both for value in (max(one), one[-1])]
                yield [setting.label, method.label, *cells]


def matched_rows(record: Mapping[str, Record]) -> Iterator[list[str]]:
    """A row for each pair of runs on the same batches."""
    for place, one in record.items():
        name, _, key = place.partition("/")
        setting = HEART if name == "heart" else PFLLIB[name]
        cells = [f"{one[kind]:.2f}" if kind in one else "" for kind in ("ours", "theirs", "without")]
        changes = [f"{one['moved']:.2f}", f"{one['apart']:.0e}"] if one["moved"] else ["none is shared", ""]
        yield [setting.label, setting.methods[key].label, str(one["rounds"]), *changes, *cells]


def _cause(record: Mapping[str, Any], place: str) -> str:
    one = record["matched"].get(place)
    if one is None:
        return "start and batches (not run on the same)"
    dropped = ", and the last batch of a pass, which they drop" if "without" in one else ""
    equal = f"accuracies {abs(one['ours'] - one['theirs']):.2f} apart" if not one["moved"] else ""  # nothing is shared
    same = equal or f"{one['apart']:.0e}"
    return f"start and batches (with the same: {same}){dropped}"


def _records(name: str, setting: Setting, key: str) -> list[Record]:
    return KEPT.all([run for run in setting.runs(name) if run.name.startswith(f"{name}/{key}-")])


# ---------------------------------------------------------------------- the runs
def heart(theirs: Theirs, data: Path, files: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """The published figures, theirs as it runs and ours, and both on the same batches."""
    told, found = [], []
    for seed in HEART.seeds:
        print(f"FLamby's benchmark, seed {seed}", flush=True)
        found.append(theirs.benchmark(data / "heart", seed))
        kept = f"flamby/results/results_benchmark_fed_heart_disease/heart_seed{seed}.csv"
        told.append(benchmark_figures(theirs.checkout / kept))
    equal = [abs(one[key] - other[key]) < 1e-9 for one, other in zip(told, found, strict=True) for key in one]
    _ours("heart", HEART, files)
    both = {
        key: matched(theirs, HEART, key, files / (one.files or "heart"))
        for key, one in HEART.methods.items() if one.options
    }  # fmt: skip
    return {
        "published": _heart_figures(told), "heart": _heart_figures(found), "equal": [sum(equal), len(equal)],
        "matched": record.get("matched", {}) | {f"heart/{key}": one for key, one in both.items()},
    }  # fmt: skip


def _heart_figures(seeds: Sequence[Mapping[str, float]]) -> dict[str, dict[str, list[float]]]:
    """The mean over the centres and the pooled test of each method and seed; local models have no pooled test."""
    return {
        key: {
            test: [over_centres(one, method.theirs, test == "pooled") for one in seeds]
            for test in TESTS if (key, test) != ("local", "pooled")
        }
        for key, method in HEART.methods.items()
    }  # fmt: skip


def images(theirs: Theirs, data: Path, files: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Theirs as it runs and ours, and both on the same batches."""
    found, both = dict(record.get("images", {})), dict(record.get("matched", {}))
    for name, setting in PFLLIB.items():
        written = theirs.generate(data, setting.theirs[1], EVERY[name], PARTITIONS[name])
        image_files(written, files / name)
        for key, method in setting.methods.items():
            if f"{name}/{key}" not in found:
                print(f"PFLlib's {method.label}, {setting.label}", flush=True)
                options = ("-dev", "cpu", *setting.theirs, "-algo", *method.theirs.split())
                found[f"{name}/{key}"] = system_figures(
                    theirs.run("pfllib_images", "system", str(theirs.checkout), *options)
                )
        _ours(name, setting, files)
    for key in IMAGES:
        if f"cifar10/{key}" not in both:
            both[f"cifar10/{key}"] = matched(theirs, PFLLIB["cifar10"], key, files / "cifar10")
    return {"images": found, "matched": both}


def _ours(name: str, setting: Setting, files: Path) -> None:
    """Make our runs that have no record."""

    def root(run: Run) -> tuple[str, str]:
        key = run.name.partition("/")[2].rpartition("-")[0]
        return "--data.dataset.root", str((files / (setting.methods[key].files or name)).absolute())

    make_missing(setting.runs(name), KEPT, root, 1, lambda run: print(f"{run.name} is done", flush=True))


# ---------------------------------------------------------------------- the command
def main(arguments: Sequence[str] | None = None) -> None:
    """Make what has no record, then the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--flamby", type=Path, help=f"checkout of {REPOSITORIES['flamby']}")
    parser.add_argument("--pfllib", type=Path, help=f"checkout of {REPOSITORIES['pfllib']}")
    parser.add_argument("--files", type=Path, default=ROOT / "data/published")
    given = parser.parse_args(arguments)
    heart_files(given.data / "heart", given.files)
    record = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for checkout, make in ((given.flamby, heart), (given.pfllib, images)):
        if checkout:
            record |= make(Theirs(checkout, given.files), given.data, given.files, record)
            keep(RESULTS, lambda _: "", **record)
    if given.flamby or given.pfllib:
        keep(RESULTS, page, **facts())


if __name__ == "__main__":
    main()
