"""Walks of first users from their files to what they keep, each command on what the one before left."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from test_predict import CPU

from lit_fed.cli import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def clinics(path, names, seed=0):
    """Patients of clinics, some without a value; disease follows from age and a marker, otherwise in each clinic."""
    rng = np.random.default_rng(seed)
    frames = []
    for place, name in enumerate(names):
        age, marker = rng.integers(20, 90, 120), rng.normal(0, 1, 120)
        ill = rng.uniform(size=120) < 1 / (1 + np.exp(-((age - 55) / 10 + (-1) ** place * 2 * marker)))
        sex, marker = rng.choice(["f", "m"], 120), np.where(rng.uniform(size=120) < 0.1, np.nan, marker)
        frames.append(pd.DataFrame({"clinic": name, "sex": sex, "age": age, "marker": marker, "ill": ill.astype(int)}))
    table = pd.concat(frames)
    table.to_csv(path, index=False)
    return table


def test_a_hospital_from_its_table_to_a_clinic_without_labels(here, capsys):
    """Fit, what single patients are told, a report by sex, and a new clinic that knows no outcome yet."""
    table = clinics("patients.csv", ["north", "south", "east", "west"])
    data = [
        "--data.dataset", "Table", "--data.dataset.path", "patients.csv", "--data.dataset.client_column", "clinic",
        "--data.dataset.label_column", "ill", "--data.dataset.feature_columns", "age,marker,sex",
    ]  # fmt: skip
    fit = ["fit", *CPU, *data, "--model.algorithm", "FedEM", "--model.algorithm.num_components", "2", "--name", "ill",
           "--trainer.max_epochs", "5"]  # fmt: skip
    with pytest.raises(SystemExit):
        main(fit)
    assert "marker in 53 have none: give --data.dataset.impute median" in capsys.readouterr().err
    main([*fit, "--data.dataset.impute", "median"])
    version = here / "runs/ill/version_0"
    last = str(version / "checkpoints/last.ckpt")
    main(["predict", *CPU, "--ckpt_path", last, "--keep", "sex", "--responsibilities", "true"])
    rows = pd.read_csv(version / "predictions.csv")
    there = table.iloc[rows["row"] - 1]
    assert there["clinic"].tolist() == rows["client"].tolist()
    assert there["ill"].tolist() == rows["label"].tolist()
    np.testing.assert_allclose(rows["q_0"] + rows["q_1"], 1, atol=1e-5)
    main(["report", "runs/ill", "--by", "sex", "--output", "ill.html"])
    page = (here / "ill.html").read_text()
    assert re.search(r"by sex</h2>.*<td class=\"words\">f</td>", page, re.DOTALL)
    new = clinics("new.csv", ["hill"], seed=1)
    new.drop(columns="ill").to_csv("new.csv", index=False)
    capsys.readouterr()
    main(["personalize", *CPU, "--ckpt_path", last, "--clients", "new.csv", "--output", "hill"])
    assert "no labelled samples and are served by the mean mixture of the seen clients" in capsys.readouterr().out
    weights = pd.read_csv(version / "clients.csv").filter(regex="^pi_")
    (own,) = pd.read_csv("hill/clients.csv").filter(regex="^pi_").to_numpy()
    np.testing.assert_allclose(own, weights.mean(), atol=1e-5)


def test_an_engineer_ships_every_clients_model_and_a_program_without_lit_fed_serves_it(here):
    main(["fit", *CPU, "--data.dataset", "Digits", "--data.num_clients", "5", "--data.unseen_fraction", "0.2",
          "--model.algorithm", "FedEM", "--trainer.max_epochs", "2", "--name", "digits"])  # fmt: skip
    last = "runs/digits/version_0/checkpoints/last.ckpt"
    main(["export", *CPU, "--ckpt_path", last, "--client", "all", "--output", "models"])
    main(["predict", *CPU, "--ckpt_path", last, "--output", "rows.csv"])
    rows, model = pd.read_csv("rows.csv"), torch.export.load("models/model.pt2").module()
    from sklearn.datasets import load_digits

    images = torch.from_numpy(load_digits().images).float().unsqueeze(1) / 16
    for client, own in rows.groupby("client"):
        held = {name: torch.from_numpy(leaf) for name, leaf in np.load(f"models/clients/{client}.npz").items()}
        shown = model(images, client=held).numpy()
        expected = own.filter(regex=r"^p_\d").to_numpy()
        gaps = np.abs(shown[None] - expected[:, None]).max(-1).min(-1)  # each row is some digit, served alike
        assert gaps.max() < 1e-5
