"""Coefficients of linear models in the units of a table."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fed_runs import run_cli
from quiet import quiet_trainer
from references.mixed_effects_numpy import design, error_covariance, fitted, posterior

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg, FedAvgPlus, FedEM, Local, MixedEffects
from lit_fed.callbacks.coefficients import coefficient_table
from lit_fed.callbacks.report import populations_of
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data.module import FederatedDataModule

SLEEP = Path(__file__).parents[1] / "algorithms/sleepstudy.csv"
"""Reaction times (ms) of 18 subjects after 0 to 9 days of little sleep, of R's lme4: Belenky et al., 2003."""


def fit_sleep(out, *arguments):
    run_cli([
        "fit", "--data.dataset", "Table", "--data.dataset.path", str(SLEEP), "--data.dataset.client_column", "Subject",
        "--data.dataset.label_column", "Reaction", "--data.dataset.standardize", "false", "--data.test_fraction", "0",
        "--model.algorithm", "MixedEffects", "--trainer.max_epochs", "20", "--trainer.accelerator", "cpu",
        "--trainer.default_root_dir", str(out), "--name", "sleep", *arguments,
    ])  # fmt: skip
    return pd.read_csv(out / "sleep/version_0/coefficients.csv")


def test_sleepstudy_by_one_command(tmp_path, capsys):
    """Estimates by lme4 and statsmodels: `Reaction ~ Days + (Days || Subject)`."""
    table = fit_sleep(tmp_path, "--model.algorithm.estimate", "reml")
    assert "add rounds" not in capsys.readouterr().err
    common, deviation = (table[table["population"] == one].set_index("column") for one in ("common", "deviation"))
    wanted = {"(intercept)": 251.405105, "Days": 10.467286}
    assert common["coefficient"].to_dict() == pytest.approx(wanted, rel=3e-6)
    wanted = {"(intercept)": 25.05134, "Days": 5.98817, "(residual)": 25.56529}
    assert deviation["coefficient"].to_dict() == pytest.approx(wanted, rel=3e-6)
    assert common["standard_error"].to_dict() == pytest.approx({"(intercept)": 6.885381, "Days": 1.559566}, rel=1e-5)
    frame = pd.read_csv(SLEEP)
    clients = [(one[["Days"]].to_numpy(float), one["Reaction"].to_numpy()) for _, one in frame.groupby("Subject")]
    expected = fitted(clients, rounds=20, estimate="reml")
    seen = table[table["population"] == "seen"]
    assert seen["client"].tolist() == [one for one in frame["Subject"].unique() for _ in range(2)]
    assert seen["client_id"].tolist() == [one for one in range(18) for _ in range(2)]
    rows = [(design(x), y, expected, False) for x, y in clients]
    theta = np.concatenate([posterior(*one)[0] for one in rows])
    errors = np.concatenate([np.sqrt(np.diag(error_covariance(*one))) for one in rows])
    np.testing.assert_allclose(seen["coefficient"], theta, rtol=1e-5)
    np.testing.assert_allclose(seen["standard_error"], errors, rtol=1e-5)
    ends = theta[:, None] + np.outer(errors, [-1.959964, 1.959964])
    np.testing.assert_allclose(seen[["low", "high"]], ends, rtol=1e-4)


def test_the_chosen_structure_and_missing_rounds_are_said(tmp_path, capsys):
    table = fit_sleep(tmp_path, "--model.algorithm.random", "choose", "--trainer.max_epochs", "3")
    said = capsys.readouterr().err
    assert "lit_fed: random effects: slopes, which has the least loss of held-out rows: none " in said
    assert "lit_fed: the variances of MixedEffects changed by 12% in the last round; add rounds, by --trainer" in said
    assert (table.loc[table["population"] == "deviation", "coefficient"] > 0).all()


def farms(labels):
    """Rows of four farms, one of them unseen; a column is nearly constant beside its mean, another a text."""
    rng = np.random.default_rng(0)
    rows = 200
    frame = pd.DataFrame(
        {
            "farm": rng.integers(4, size=rows).astype(str),
            "year": 2000 + rng.integers(9, size=rows),
            "price": rng.normal(0.02, 0.001, rows),
            "soil": rng.choice(["clay", "loam", "sand"], rows),
        }
    )
    score = 3 * (frame["year"] - 2004) + 5000 * (frame["price"] - 0.02) + 4 * (frame["soil"] == "clay")
    score = score + rng.normal(size=rows)
    classes = {2: ["poor", "rich"], 3: ["fair", "poor", "rich"]}.get(labels)
    frame["yield"] = 40 + score if classes is None else np.array(classes)[np.digitize(score, [-4, 4][: labels - 1])]
    return frame


@pytest.mark.parametrize(
    ("algorithm", "labels"),
    [
        (FedAvg(), "numbers"),
        (FedEM(2), "numbers"),
        (FedAvgPlus(), 2),
        (Local(), 3),
        (MixedEffects(), "numbers"),
        (MixedEffects("intercept"), 2),
    ],
    ids=lambda one: getattr(one, "__class__", one).__name__ if not isinstance(one, int | str) else str(one),
)
def test_coefficients_predict_from_the_columns_as_they_are(algorithm, labels, tmp_path):
    data = FederatedDataModule.from_frame(farms(labels), client="farm", label="yield", unseen=["3"])
    module = FederatedModule(algorithm, LocalSolver(lr=0.1))
    trainer = quiet_trainer(2, default_root_dir=str(tmp_path))
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data)
    table = coefficient_table(populations_of(data), module)
    for population in ("seen", "unseen"):
        predicted = trainer.predict(module, datamodule=data, population=population)
        own, clients = table[table["population"] == population], getattr(data, population)
        assert set(own["client_id"]) == set(predicted["client_id"])
        for client_id, rows in predicted.groupby("client_id"):
            x = clients.test.client(client_id).x.double().numpy() * data.normalisation.std + data.normalisation.mean
            mine = own[own["client_id"] == client_id]
            assert mine["column"].tolist()[:6] == [*data.seen.columns.input_names, "(intercept)"]
            found = design(x) @ mine["coefficient"].to_numpy().reshape(-1, x.shape[1] + 1).T
            if labels == "numbers":
                expected = rows[["prediction"]].to_numpy()
            else:
                log_p = np.log(rows.filter(regex="^p_").to_numpy(dtype=float))
                expected = log_p[:, 1:] - log_p[:, :1]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    if labels == 3:
        assert set(table["class"]) == {"poor", "rich"}


def test_a_mixture_of_classifiers_has_none(tmp_path):
    data = FederatedDataModule.from_frame(farms(2), client="farm", label="yield")
    trainer, module = quiet_trainer(2, default_root_dir=str(tmp_path)), FederatedModule(FedEM(2))
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data)
    assert coefficient_table(populations_of(data), module) is None
