"""A constant that is added to a column or to the labels of a table changes no result."""

import numpy as np
import pandas as pd
import pytest
import torch

from lit_fed import (
    FedAvg,
    FederatedDataModule,
    FederatedModule,
    FederatedTrainer,
    LocalSolver,
    Quantiles,
    personal_model,
)
from lit_fed.data.data_sets.fills import learned_fills
from lit_fed.data.new_clients import NewClients

METRICS = ["R2Score", "PearsonCorrCoef", "ExplainedVariance", "MeanAbsoluteError", "ConcordanceCorrCoef"]


def frame(column=0.0, label=0.0):
    rng = np.random.default_rng(0)
    x = np.round(8 * rng.normal(0, 10, (90, 2))) / 8  # which float64 holds exactly beside the constants
    y = np.round(8 * (x @ [0.5, -0.25] + rng.normal(size=90))) / 8
    return pd.DataFrame(
        {"who": np.repeat(["ann", "bob", "cat"], 30), "a": x[:, 0] + column, "b": x[:, 1], "y": y + label}
    )


def fit(rows, target=None):
    data = FederatedDataModule.from_frame(rows, client="who", label="y", table={"impute": "median"}, batch_size=16)
    module = FederatedModule(FedAvg(), LocalSolver(lr=0.5), metrics=METRICS, **({"target": target} if target else {}))
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=10, logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    trainer.fit(module, data)
    trainer.test(module, data)
    return module, data


@pytest.mark.parametrize("target", [None, Quantiles()], ids=["regression", "quantiles"])
@pytest.mark.parametrize(("column", "label"), [(1.7e12, 0.0), (0.0, 1e8), (0.0, 1e9), (-(2.0**33), 2.0**30)])
def test_a_constant_changes_no_result(capsys, column, label, target):
    plain, plain_data = fit(frame(), target)
    said = f"predictions and {'mse' if target is None else 'mae'} are in units of the column"
    assert said in capsys.readouterr().err
    moved, moved_data = fit(frame(column, label), target)
    torch.testing.assert_close(moved_data.seen.train.x, plain_data.seen.train.x, rtol=0, atol=1e-4)
    torch.testing.assert_close(moved_data.seen.train.y, plain_data.seen.train.y, rtol=0, atol=1e-4)
    measured = {key for key in plain.results if key.startswith("test/seen/")}
    assert {"test/seen/r2_score", "test/seen/loss", "test/seen/r2_score_pooled"} <= measured
    for key in measured:
        assert moved.results[key] == pytest.approx(plain.results[key], rel=1e-3, abs=1e-4, nan_ok=True), key
    assert plain.results["test/seen/r2_score"] > 0.75


def test_labels_that_are_apart_in_float64_alone_stay_apart():
    module, data = fit(frame(label=1e8))
    labels = data.target.in_units(data.seen.train.y)
    assert labels.dtype == torch.float64
    assert set((8 * (labels - 1e8)).round().tolist()) <= set((8 * frame()["y"]).tolist())
    assert (8 * labels - (8 * labels).round()).abs().max() < 1e-4
    assert module.results["test/seen/mean_absolute_error"] < 2


def test_a_program_takes_the_same_mean_off():
    shown = []
    for column, label in ((0.0, 0.0), (1.7e12, 1e8)):
        rows = frame(column, label)
        module, data = fit(rows)
        model = personal_model(module.trainer, module, data, client="ann")
        x = torch.tensor(rows[["a", "b"]].to_numpy()[:5])
        assert model(x).dtype == torch.float64
        shown.append(model(x) - label)
    torch.testing.assert_close(*shown, rtol=0, atol=1e-3)


def test_clients_that_come_later_lose_the_same_mean(tmp_path):
    data = fit(frame(1.7e12, 1e8))[1]
    later = pd.concat(
        [frame(1.7e12, 1e8).assign(who="dan", split="train"), frame(1.7e12, 1e8).assign(who="dan", split="test")]
    )
    later.to_csv(tmp_path / "later.csv", index=False)
    served = NewClients(str(tmp_path / "later.csv"), data.facts(weighting="samples", seed=0, num_rounds=1)).unseen
    found = (data.facts(weighting="samples", seed=0, num_rounds=1), served.test)
    own = {tuple(one) for one in np.round(data.seen.train.x.numpy(), 3).tolist()}
    assert own <= {tuple(one) for one in np.round(found[1].x.numpy(), 3).tolist()}
    assert set(np.round(data.seen.train.y.numpy(), 3).tolist()) <= set(np.round(served.test.y.numpy(), 3).tolist())


@pytest.mark.parametrize("name", ["x", "y"])
def test_arrays_whose_differences_float32_rounds_off_are_named(capsys, name):
    x, y = np.random.default_rng(0).normal(size=(2, 60, 3))
    moved = {"x": (x + 1e7 * (np.arange(3) == 1), y[:, 0]), "y": (x, y[:, 0] + 1e7)}[name]
    parts = {"ann": [one[:30] for one in moved], "bob": [one[30:] for one in moved]}
    FederatedDataModule.from_clients(parts, labels="regression").setup()
    place = 1 if name == "x" else 0
    said = capsys.readouterr().err
    assert f"{'inputs' if name == 'x' else 'labels'} at place {place} of a sample lie between 99999" in said
    assert "where float32 has steps of 1: take their mean off before" in said


def test_a_client_whose_numbers_are_near_to_each_other_is_none(capsys):
    """It stands still, others do not; and a constant column has no differences."""
    x = np.random.default_rng(0).normal(size=(60, 2)) * [1, 0] + [0, 7.1]
    x[:30, 0] = 52.37 + 1e-7 * x[:30, 0]
    FederatedDataModule.from_clients({"ann": (x[:30], [0, 1] * 15), "bob": (x[30:], [0, 1] * 15)}).setup()
    assert "float32" not in capsys.readouterr().err


def test_medians_are_those_of_float64():
    rng = np.random.default_rng(1)
    clients = [1e12 + rng.normal(size=(size, 2)) * [1, 1e-3] for size in (4, 9, 2)]
    clients[1][3, 0] = np.nan
    known = np.concatenate(clients)
    assert learned_fills("median", clients).tolist() == np.nanmedian(known, axis=0).tolist()
    assert learned_fills("median", [-one for one in clients]).tolist() == (-np.nanmedian(known, axis=0)).tolist()
