"""Clients measured on their training samples: by hand from models and arrays, and in every file of a run.

That two ranks find the same is tested for every algorithm in `tests/integration/test_ranks.py`.
"""

import json

import numpy as np
import pandas as pd
import pytest
from fed_runs import run_cli
from fit_all import fit
from running import folder, history, numbers

from lit_fed.callbacks import TrainingSplitEvaluation
from lit_fed.metrics import scores
from lit_fed.models import MLP

CALLBACK = "--trainer.callbacks+=TrainingSplitEvaluation"
SMALL = [
    "--data.num_clients", "8", "--data.unseen_fraction", "0.25", "--data.val_fraction", "0.2", "--model.algorithm",
    "FedEM", "--trainer.accelerator", "cpu", "--trainer.check_val_every_n_epoch", "2",
]  # fmt: skip
STATISTICS = [f"accuracy{suffix}" for suffix, one in scores.STATISTICS.items() if one.of is not None]


def fit_cli(out, rounds, *arguments):
    run_cli(["fit", *SMALL, *arguments, "--trainer.max_epochs", str(rounds), "--trainer.default_root_dir", str(out)])


def summary_of(path):
    return json.loads((path / "summary.json").read_text())


def probabilities(models, x):
    """p(class | x, θ_m) under each of M networks of fully connected layers with ReLU between them, [n, M, C]."""
    leaves = [leaf.numpy().astype(np.float64) for leaf in models.parameters.values()]  # weight, bias, layer by layer
    hidden = x[:, None]
    for weight, bias in zip(leaves[::2], leaves[1::2], strict=True):
        outputs = np.einsum("nmd,mkd->nmk", np.broadcast_to(hidden, (len(x), len(weight), weight.shape[2])), weight)
        outputs += bias
        hidden = np.maximum(outputs, 0)
    exponentials = np.exp(outputs - outputs.max(2, keepdims=True))
    return exponentials / exponentials.sum(2, keepdims=True)


def fitted_weights(probability, y):
    """Mixture weights of a client after one E-step from uniform ones."""
    joint = probability[np.arange(len(y)), :, y]
    return (joint / joint.sum(1, keepdims=True)).mean(0)


def expected(module, split, weights=None):
    """Loss and statistics over the clients of a split, with their mixture weights or those of unseen clients."""
    sizes, hits, losses = [], [], []
    for position in range(split.num_clients):
        rows = slice(int(split.offsets[position]), int(split.offsets[position + 1]))
        x, y = split.x[rows].numpy().reshape(rows.stop - rows.start, -1).astype(np.float64), split.y[rows].numpy()
        each = probabilities(module.shared.models, x)
        pi = fitted_weights(each, y) if weights is None else weights[position]
        mixed = np.einsum("m,nmc->nc", pi, each)
        sizes.append(len(y))
        hits.append((mixed.argmax(1) == y).mean())
        losses.append(-np.log(mixed[np.arange(len(y)), y]).sum())
    return {
        "loss@served": sum(losses) / sum(sizes),
        "accuracy": np.average(hits, weights=sizes),
        "accuracy_decile": np.min(hits),  # there are fewer than 20 clients
        "accuracy_worst": np.min(hits),
        "accuracy_std": np.std(hits),
        "accuracy_unweighted": np.mean(hits),
    }


@pytest.mark.parametrize(("name", "network"), [("FedAvg", {"network": MLP}), ("FedEM", {})])
def test_numbers_are_those_of_the_arrays(tmp_path, name, network):
    module, trainer = fit(name, tmp_path, callbacks=[TrainingSplitEvaluation()], model=network)
    data, found = trainer.datamodule, summary_of(folder(tmp_path, name))
    seen = module.mixture_weights.double().numpy() if name == "FedEM" else np.ones((6, 1))
    for population, weights in (("seen", seen), ("unseen", None)):
        split = getattr(data, population).train
        assert split.num_clients < 20
        for key, value in expected(module, split, weights).items():
            assert found[f"train/{population}/{key}"] == pytest.approx(value, rel=1e-5), key


def test_clients_that_adapt_are_measured_adapted(tmp_path):
    """FedAvg+ tunes its model on the samples that it is measured on, in training and afterwards."""
    for name in ("FedAvg", "FedAvgPlus"):
        fit(name, tmp_path, callbacks=[TrainingSplitEvaluation()])
    plain, tuned = (summary_of(folder(tmp_path, name)) for name in ("FedAvg", "FedAvgPlus"))
    assert tuned["train/seen/loss"] == plain["train/seen/loss"]
    for population in ("seen", "unseen"):
        assert tuned[f"train/{population}/loss@served"] < plain[f"train/{population}/loss@served"] - 0.05


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    fit_cli(out, 5, CALLBACK)
    return out


def test_every_evaluated_round_has_them_and_no_other(whole):
    rows = pd.read_csv(folder(whole, "FedEM") / "metrics.csv").set_index("step")
    measured = {f"train/{one}/{key}" for one in ("seen", "unseen") for key in [*STATISTICS, "loss@served"]}
    assert {key for key in rows if key.startswith("train/")} == measured | {"train/seen/loss"}
    assert rows["train/seen/loss"].notna().tolist() == [True] * 5 + [False]
    for key in measured:
        assert rows.index[rows[key].notna()].tolist() == [1, 3, 5], key  # rounds 2 and 4, and the final test
    summary = summary_of(folder(whole, "FedEM"))
    assert {key: summary[key] for key in measured} == pytest.approx(rows.loc[5, sorted(measured)].to_dict())


def test_nothing_else_changes(whole, tmp_path):
    fit_cli(tmp_path, 5)
    having, plain = (folder(out, "FedEM") for out in (whole, tmp_path))
    assert (having / "clients.csv").read_text() == (plain / "clients.csv").read_text()
    summary, other = numbers(having), numbers(plain)
    assert {key: summary[key] for key in other} == other
    rows, others = (pd.read_csv(one / "metrics.csv") for one in (having, plain))
    kept = [key for key in others if not key.startswith("time/")]
    pd.testing.assert_frame_equal(rows[kept], others[kept])
    assert {path.name for path in (having / "plots").iterdir()} == {path.name for path in (plain / "plots").iterdir()}


def test_a_resumed_run_goes_on(whole, tmp_path):
    fit_cli(tmp_path, 3, CALLBACK)
    fit_cli(tmp_path, 5, CALLBACK, "--ckpt_path", "last")
    one, two = (folder(out, "FedEM") for out in (whole, tmp_path))
    assert history(one) == history(two)
    assert numbers(one) == numbers(two)


def test_regression_has_squared_errors(tmp_path):
    _, trainer = fit("SharingADMM", tmp_path, callbacks=[TrainingSplitEvaluation()])
    found = summary_of(folder(tmp_path, "SharingADMM"))
    assert trainer.datamodule.unseen is None
    keys = {key.removeprefix("train/seen/") for key in found if key.startswith("train/")}
    assert keys == {key.replace("accuracy", "mse") for key in STATISTICS} | {"loss", "loss@served"}
    assert found["train/seen/mse"] != found["test/seen/mse"]
