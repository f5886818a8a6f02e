"""What the predictions of a table say of each of its rows: its number, other columns, and whose component it is."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from quiet import quiet_trainer
from running import folder
from test_export_command import sites
from test_predict import CPU, refused

from lit_fed import FederatedDataModule, FederatedModule
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.cli import main
from lit_fed.core.targets import Sequences
from lit_fed.errors import ConfigError
from lit_fed.training.output import prediction_table


@pytest.fixture(scope="module")
def last(tmp_path_factory):
    """The checkpoint of a run on a table, one client of which is excluded."""
    out = tmp_path_factory.mktemp("table")
    data = sites(out / "sites.csv")
    main(["fit", *CPU, *data, "--data.dataset.feature_columns", "a,b", "--trainer.default_root_dir", str(out),
          "--trainer.max_epochs", "2", "--data.exclude_clients", "bo"])  # fmt: skip
    return folder(out, "FedEM") / "checkpoints/last.ckpt"


@pytest.mark.parametrize("split", ["train", "test"])
def test_rows_are_those_of_the_table(last, tmp_path, split):
    main(["predict", *CPU, "--ckpt_path", str(last), "--split", split, "--keep", "b,site", "--output",
          str(tmp_path / "p.csv")])  # fmt: skip
    table, rows = pd.read_csv(tmp_path / "p.csv"), pd.read_csv(last.parents[3] / "sites.csv")
    assert table.columns.tolist()[:6] == ["client", "client_id", "sample", "row", "b", "site"]
    assert set(table["client"]) == {"ann", "cy"}
    there = rows.iloc[table["row"] - 1]
    assert there["site"].tolist() == table["client"].tolist() == table["site"].tolist()
    assert there["ill"].tolist() == table["label"].tolist()
    np.testing.assert_allclose(there["b"], table["b"])


@pytest.mark.parametrize(
    ("keep", "parts"),
    [("age", ["--keep 'age'", "no such column"]), ("label", ["--keep 'label'", "no such column"])],
)
def test_columns_that_are_not_there(last, tmp_path, capsys, keep, parts):
    output = ["--output", str(tmp_path / "p.csv")]
    said = refused(capsys, ["predict", *CPU, "--ckpt_path", str(last), "--keep", keep, *output])
    for part in parts:
        assert part in said


def fitted(algorithm):
    module = FederatedModule(algorithm)
    trainer, data = quiet_trainer(3), FederatedDataModule(num_clients=4)
    trainer.fit(module, datamodule=data)
    return trainer, module, data


def test_responsibilities_are_the_posteriors_of_the_components():
    """q_m = π_m p_m(y | x) / Σ_k π_k p_k(y | x), by NumPy from the outputs of each component."""
    trainer, module, data = fitted(FedEM(num_components=2))
    table = trainer.predict(module, datamodule=data, responsibilities=True)
    for client in range(4):
        rows, own = table[table["client_id"] == client], data.seen.test.client(client)
        ctx = module.federation.context("evaluate")
        with torch.no_grad():
            each = ctx.task.outputs(module.shared.models, own.x).softmax(-1).numpy()  # [B, M, C]
        joint = module.mixture_weights[client].numpy() * each[np.arange(len(rows)), :, own.y.numpy()]
        expected = joint / joint.sum(1, keepdims=True)
        np.testing.assert_allclose(rows[["q_0", "q_1"]], expected, rtol=0, atol=1e-5)
    assert table["q_0"].std() > 1e-3
    assert not [one for one in trainer.predict(module, datamodule=data) if one.startswith("q_")]


def test_what_an_algorithm_or_data_do_not_have():
    trainer, module, data = fitted(FedAvg())
    with pytest.raises(ConfigError, match="components of a mixture, and FedAvg predicts by none"):
        trainer.predict(module, datamodule=data, responsibilities=True)
    with pytest.raises(ConfigError, match="--keep copies columns of a table, and the data are Digits"):
        trainer.predict(module, datamodule=data, keep="age")


class Texts:
    """Predictions of 2 texts of 2 tokens among 30."""

    client_ids, sizes, posteriors, thresholds = torch.tensor([0]), torch.tensor([2]), None, None
    labels = torch.tensor([[3, 29], [-100, 0]])
    log_prob = torch.full((2, 2, 30), 0.01).scatter(2, torch.tensor([[[3], [5]], [[3], [0]]]), 0.71).log()


def test_texts_have_the_probability_of_their_label_and_of_the_best_token():
    facts = SimpleNamespace(target=Sequences(30, ignore_index=-100), class_names=None, label_shape=(2,), texts=None)
    table = prediction_table(Texts(), {0: "ann"}, facts)
    assert table.columns.tolist()[-4:] == ["label", "prediction", "p_label", "p_prediction"]
    assert table["prediction"].tolist() == [3, 5, 3, 0]
    np.testing.assert_allclose(table["p_label"], [0.71, 0.01, np.nan, 0.71], rtol=1e-5)
    np.testing.assert_allclose(table["p_prediction"], 0.71, rtol=1e-5)
