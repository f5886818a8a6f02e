"""Metrics of the user's choice in a run: those of the predictions that it saves, in every file, and to be monitored.

That two ranks and a resumed run find the same is tested with FedEM in `tests/integration/test_ranks.py` and
`tests/training/test_fit.py`, that `personalize` does in `tests/integration/test_personalize.py`.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fed_runs import run_cli
from federated_round import Tagger
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from quiet import quiet_trainer
from sklearn import metrics as sk

from lit_fed import FedAvg, FedEM, FederatedModule, LocalSolver, personalize
from lit_fed.callbacks import TrainingSplitEvaluation
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.data import ClientFolder, Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError


def save_clients(root, *, numbers=False, one_class=(), seen=5, unseen=2):
    """Clients of two classes, or of numbers; those named are tested on one class alone."""
    generator = np.random.default_rng(0)
    direction = generator.normal(size=3)
    for position in range(seen + unseen):
        folder = root / ("seen" if position < seen else "unseen")
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {}
        for split, size in (("train", 20), ("test", 12 + position)):
            x = generator.normal(size=(size, 3)).astype(np.float32)
            y = x @ direction + generator.normal(size=size)
            y = y.astype(np.float32) if numbers else (y > 0).astype(np.int64)
            arrays |= {f"x_{split}": x, f"y_{split}": y}
        if position in one_class:
            arrays["y_test"] *= 0
        np.savez(folder / f"client_{position}.npz", **arrays)
    return str(root)


def fit(root, out, metrics, algorithm=None, *, rounds=2, callbacks=(), **settings):
    seed_everything(0, verbose=False)
    data = FederatedDataModule(ClientFolder(root), **settings)
    module = FederatedModule(algorithm or FedAvg(), LocalSolver(lr=0.1), client_trainer="sequential", metrics=metrics)
    trainer = quiet_trainer(rounds, out, callbacks=list(callbacks))
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data)
    return module, data, trainer


def saved_predictions(module, data, trainer, out):
    """Labels and predictions of each client, by its name, of seen and unseen ones."""
    found = {}
    for population in ("seen", "unseen"):
        table = trainer.predict(module, datamodule=data, population=population, output=str(out / f"{population}.csv"))
        found[population] = dict(iter(table.groupby("client")))
    return found


def expected_statistics(values, sizes, *, larger_is_better=True):
    """Those of fewer than 20 clients, by the end of their key."""
    worst = np.min(values) if larger_is_better else np.max(values)
    mean = np.average(values, weights=sizes)
    return {
        "": mean, "_decile": worst, "_worst": worst, "_std": np.std(values), "_unweighted": np.mean(values),
        "_undefined": 0,
    }  # fmt: skip


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2)])
def test_numbers_are_those_of_scikit_learn_on_the_predictions(tmp_path, algorithm, capsys):
    root = save_clients(tmp_path / "data")
    module, data, trainer = fit(root, tmp_path, ["AUROC", "F1Score", {"brier": "HingeLoss"}], algorithm)
    folder = Path(trainer.log_dir)
    clients = pd.read_csv(folder / "clients.csv").set_index("client")
    summary = json.loads((folder / "summary.json").read_text())
    with (folder / "metrics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    for population, tables in saved_predictions(module, data, trainer, tmp_path).items():
        for name, score in (("auroc", sk.roc_auc_score), ("f1_score", lambda y, p: sk.f1_score(y, p > 0.5))):
            values = [score(table["label"], table["p_1"]) for table in tables.values()]
            assert clients.loc[list(tables), name].tolist() == pytest.approx(values, rel=1e-6)
            expected = expected_statistics(values, [len(table) for table in tables.values()])
            for suffix, value in expected.items():
                key = f"test/{population}/{name}{suffix}"
                assert summary[key] == module.results[key] == pytest.approx(value, rel=1e-6)
                assert float(last[key]) == pytest.approx(value, rel=1e-6)
            every = pd.concat(tables.values())
            pooled = score(every["label"], every["p_1"])
            assert summary[f"test/{population}/{name}_pooled"] == pytest.approx(pooled, rel=1e-6)
    last = str(next(folder.rglob("last.ckpt")))
    fresh = FederatedModule(
        algorithm, LocalSolver(lr=0.1), client_trainer="sequential", metrics=module.settings.metrics
    )
    capsys.readouterr()
    personalize(quiet_trainer(1, tmp_path), fresh, last, clients=f"{root}/unseen", output=str(tmp_path / "later"))
    said = capsys.readouterr().out
    for name in ("auroc", "f1_score", "brier"):
        row = next(line for line in said.splitlines() if f" {name} " in line)
        assert f"{summary[f'test/unseen/{name}_pooled']:.4f}" in row
    columns = ["client_id", "population", "num_train", "num_test", "accuracy", "loss", "auroc", "f1_score", "brier"]
    assert list(clients)[:9] == columns
    assert list(clients)[9:] == [f"pi_{m}" for m in range(algorithm.num_models) if algorithm.num_models > 1]
    assert module.client_scores["seen"].mixture.shape == (5, algorithm.num_models if algorithm.num_models > 1 else 0)
    assert list(module.client_scores["unseen"].metrics) == columns[-3:]
    assert not any(key.startswith(("tables", "chosen")) for key in module.state_dict())


def test_numbers_of_a_regression(tmp_path, capsys):
    root = save_clients(tmp_path / "data", numbers=True)
    module, data, trainer = fit(root, tmp_path, "R2Score,MeanAbsoluteError,PearsonCorrCoef")
    summary = json.loads((Path(trainer.log_dir) / "summary.json").read_text())
    for population, tables in saved_predictions(module, data, trainer, tmp_path).items():
        for name, score in (("r2_score", sk.r2_score), ("mean_absolute_error", sk.mean_absolute_error)):
            values = [score(table["label"], table["prediction"]) for table in tables.values()]
            sizes = [len(table) for table in tables.values()]
            expected = expected_statistics(values, sizes, larger_is_better=name == "r2_score")
            found = {suffix: summary[f"test/{population}/{name}{suffix}"] for suffix in expected}
            assert found == pytest.approx(expected, rel=1e-5)
    assert "test/seen/pearson_corr_coef_std" in summary
    assert "test/seen/pearson_corr_coef_worst" not in summary
    stored = [summary[f"larger_is_better/{name}"] for name in ("r2_score", "mse", "pearson_corr_coef")]
    assert stored == [True, False, None]
    out, said = capsys.readouterr()
    sentence = "PearsonCorrCoef does not say whether larger is better, so pearson_corr_coef has no worst client"
    assert said.count(sentence) == 1
    assert out.count("test, chosen metrics") == 1


def test_three_rows_that_are_the_accuracy_are_said_once(capsys):
    data = FederatedDataModule(Digits(), num_clients=3)
    module = FederatedModule(FedAvg(), LocalSolver(lr=0.1), metrics="Precision,Recall,F1Score,AUROC")
    trainer = quiet_trainer(2)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data)
    results, said = module.results, capsys.readouterr().err
    assert results["test/seen/f1_score"] == pytest.approx(results["test/seen/accuracy"])
    assert said.count("precision, recall, f1_score: averaged over samples (micro), which is the accuracy again") == 1


def test_all_client_trainers_find_the_same(tmp_path):
    root = save_clients(tmp_path / "data")
    module, data, trainer = fit(root, tmp_path, "AUROC,CalibrationError", FedEM(num_components=2))
    before = dict(module.client_scores)
    for client_trainer in (VectorizedTrainer(), VectorizedTrainer(rows_per_pass=7), SequentialTrainer(rows_per_pass=5)):
        module.federation.client_trainer = client_trainer
        module.client_scores.clear()
        trainer.test(module, datamodule=data)
        for name, scores in module.client_scores.items():
            torch.testing.assert_close(scores.metrics, before[name].metrics, rtol=1e-6, atol=1e-7)


def test_a_sample_of_the_clients_is_measured(tmp_path):
    root = save_clients(tmp_path / "data", one_class={0, 1, 2, 3, 4})
    module, _, trainer = fit(root, tmp_path, "AUROC", eval_clients=3)
    assert module.client_scores["seen"].metrics["auroc"].isnan().tolist() == [True] * 3
    assert module.results["test/seen/auroc_undefined"] == 3
    assert "test/seen/auroc" not in module.results
    assert len(pd.read_csv(Path(trainer.log_dir) / "clients.csv")) == 5


def test_undefined_clients_take_no_part_and_are_said_once(tmp_path, capsys):
    root = save_clients(tmp_path / "data", one_class={1, 3, 6})
    module, _, trainer = fit(root, tmp_path, "AUROC", callbacks=[TrainingSplitEvaluation()])
    said = capsys.readouterr().err
    assert said.count("auroc is undefined for") == 1
    sentence = (
        "auroc is undefined for 2 of 5 seen clients, for 'client_1', say, since its samples are of one class; "
        "its statistics leave them out, and test/seen/auroc_undefined counts them"
    )
    assert sentence in said
    clients = pd.read_csv(Path(trainer.log_dir) / "clients.csv")
    assert clients["auroc"].isna().tolist() == [False, True, False, True, False, False, True]
    defined = clients[clients["auroc"].notna() & (clients["population"] == "seen")]
    results = module.results
    assert results["test/seen/auroc"] == pytest.approx(np.average(defined["auroc"], weights=defined["num_test"]))
    assert (results["test/seen/auroc_undefined"], results["test/unseen/auroc_undefined"]) == (2, 1)
    assert results["test/seen/auroc_unweighted"] == pytest.approx(defined["auroc"].mean())
    assert np.isfinite(list(results.values())).all()
    assert {"train/seen/auroc", "train/unseen/auroc_worst", "train/seen/loss@served"} < results.keys()
    assert results["train/seen/auroc_undefined"] == 0


def test_a_key_is_monitored(tmp_path):
    root = save_clients(tmp_path / "data")
    stopping = EarlyStopping("val/seen/auroc", mode="max", patience=1, min_delta=2.0)  # nothing is better by that
    best = ModelCheckpoint(tmp_path / "best", monitor="val/unseen/f1_score_worst", mode="max", filename="best")
    module, _, _ = fit(root, tmp_path, "AUROC,F1Score", rounds=5, callbacks=[stopping, best], val_fraction=0.3)
    assert module.num_rounds_done == 2
    assert (tmp_path / "best/best.ckpt").is_file()
    assert 0 <= best.best_model_score <= 1
    with pytest.raises(
        ConfigError, match=r"monitor is val/seen/auroc, which this run does not log; give one of .*f1_sc"
    ):
        fit(root, tmp_path, "F1Score", callbacks=[EarlyStopping("val/seen/auroc")], val_fraction=0.3)


def test_what_does_not_suit_the_labels_is_refused_before_training(tmp_path):
    root = save_clients(tmp_path / "data", numbers=True)
    with pytest.raises(
        ConfigError, match="AUROC measures classes, but the labels are numbers; choose for example R2Score"
    ):
        fit(root, tmp_path, "AUROC")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_brings_its_metrics_and_takes_others(tmp_path):
    root = save_clients(tmp_path / "data")
    start = ["--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(tmp_path), "--name", "run"]
    arguments = [*start, "--data.dataset", "ClientFolder", "--data.dataset.root", root, "--trainer.max_epochs", "1"]
    run_cli(["fit", *arguments, "--model.metrics", "[AUROC, {F1Score: {threshold: 0.4}}]"])
    checkpoint = ["--ckpt_path", str(tmp_path / "run/version_0/checkpoints/last.ckpt")]
    said = run_cli(["test", *start, *checkpoint])
    assert "auroc" in said
    assert "f1_score" in said
    said = run_cli(["test", *start, *checkpoint, "--model.metrics", "CalibrationError"])
    assert "calibration_error" in said
    assert "auroc" not in said
    run_cli(["fit", *arguments, "--ckpt_path", "last", "--trainer.max_epochs", "2", "--model.metrics+", "Specificity"])


def test_the_perplexity_of_all_positions_together_is_that_of_their_mean_loss(tmp_path):
    """exp(`loss`) for texts of one length, and not the mean of the clients' perplexities; it can be monitored."""
    rng = np.random.default_rng(0)
    clients = {}
    for name, size, most in (("ann", 12, 2), ("bob", 20, 3)):
        tokens = rng.integers(most, size=(size, 4))
        clients[name] = (tokens, tokens)
    data = FederatedDataModule.from_clients(clients, test_fraction=0.25, val_fraction=0.25)
    module = FederatedModule(FedAvg(), LocalSolver(lr=0.5), network=Tagger, metrics="Perplexity")
    stop = EarlyStopping("val/seen/perplexity_pooled")
    trainer = quiet_trainer(3, tmp_path, callbacks=[stop], check_val_every_n_epoch=1)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data)
    found = module.results
    assert found["test/seen/perplexity_pooled"] == pytest.approx(np.exp(found["test/seen/loss"]), rel=1e-5)
    assert abs(found["test/seen/perplexity_pooled"] - found["test/seen/perplexity"]) > 1e-4
