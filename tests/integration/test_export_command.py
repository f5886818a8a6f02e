"""The command `export`, and its file where lit_fed is not there."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from running import folder
from test_personalize import export as write_clients
from test_personalize import fit, personalize, pictures
from test_predict import CPU, P, digits, refused

from lit_fed.cli import main

PAGE = Path(__file__).parents[2] / "docs/guides/export.md"
NOWHERE = "import sys; sys.modules.update(dict.fromkeys(['lit_fed', 'lightning', 'torchvision']))\n"
"""Makes an import of these packages an error."""


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of a run of FedAvg+, whose served models differ from all that is stored."""
    out = tmp_path_factory.mktemp("runs")
    fit(out, "FedAvgPlus")
    return out


def export(out, *arguments):
    root = ["--trainer.default_root_dir", str(out), "--name", "FedAvgPlus", "--ckpt_path", "last"]
    main(["export", *CPU, *root, *arguments])


def predictions(out, tmp_path, population):
    main(["predict", *CPU, "--trainer.default_root_dir", str(out), "--name", "FedAvgPlus", "--ckpt_path", "last",
          "--population", population, "--output", str(tmp_path / "p.csv")])  # fmt: skip
    return pd.read_csv(tmp_path / "p.csv")


@pytest.mark.parametrize("population", ["seen", "unseen"])
def test_a_client_is_found_by_its_name(out, tmp_path, population, capsys):
    table = predictions(out, tmp_path, population)
    name = table["client"].iloc[-1]
    path = tmp_path / "deep/client.pt2"
    export(out, "--client", str(name), "--output", str(path))
    assert str(path) in capsys.readouterr().out
    assert list(path.parent.iterdir()) == [path]
    rows = table[table["client"] == name]
    x = getattr(digits(), population).test.client(int(rows["client_id"].iloc[0])).x
    found = torch.export.load(path).module()(x).detach()
    np.testing.assert_allclose(found, rows[P], rtol=0, atol=1e-6)


def test_the_five_lines_of_the_documentation_need_no_lit_fed(out, tmp_path):
    export(out, "--client", "0", "--output", str(tmp_path / "client.pt2"))
    (lines,) = re.findall(r"Five lines .*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in lines.splitlines() if line]) == 5
    finished = subprocess.run(
        [sys.executable, "-c", NOWHERE + lines + "import lit_fed"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert finished.stdout.startswith("torch.Size([3, 10]) tensor([")
    assert "ModuleNotFoundError: import of lit_fed" in finished.stderr.splitlines()[-1]  # the line after the five


def test_unseen_clients_from_files(out, tmp_path):
    clients = write_clients(digits().unseen, tmp_path / "clients")
    last = folder(out, "FedAvgPlus") / "checkpoints/last.ckpt"
    personalize(last, clients, tmp_path / "served")
    export(out, "--clients", str(clients), "--client", "client_1", "--output", str(tmp_path / "client.pt2"))
    expected = pd.read_csv(tmp_path / "served/predictions.csv").query("client == 'client_1'")[P]
    x = torch.from_numpy(np.load(clients / "client_1.npz")["x_test"])
    found = torch.export.load(tmp_path / "client.pt2").module()(x).detach()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_all_unseen_clients_from_files(out, tmp_path):
    clients = write_clients(digits().unseen, tmp_path / "clients")
    last = folder(out, "FedAvgPlus") / "checkpoints/last.ckpt"
    personalize(last, clients, tmp_path / "served")
    export(out, "--clients", str(clients), "--client", "all", "--output", str(tmp_path / "all"))
    table, program = (
        pd.read_csv(tmp_path / "served/predictions.csv"),
        torch.export.load(tmp_path / "all/model.pt2").module(),
    )
    files = sorted((tmp_path / "all/clients").iterdir())
    assert [one.stem for one in files] == [one.stem for one in sorted(clients.iterdir())]
    for one in files:
        own = {name: torch.from_numpy(leaf) for name, leaf in np.load(one).items()}
        x = torch.from_numpy(np.load(clients / one.name)["x_test"])
        expected = table[table["client"] == one.stem][P]
        np.testing.assert_allclose(program(x, client=own), expected, rtol=0, atol=1e-6)


def test_inputs_are_numbers_in_0_to_1(tmp_path):
    """The program normalises as the training did."""
    data = ["--data.dataset", "test_personalize.Pixels", "--data.num_clients", "3", "--trainer.max_epochs", "1"]
    main(["fit", *CPU, *data, "--trainer.default_root_dir", str(tmp_path), "--model.algorithm", "Local"])
    last = folder(tmp_path, "Local") / "checkpoints/last.ckpt"
    known = ["--ckpt_path", str(last), "--trust", "test_personalize"]
    main(["predict", *CPU, *known, "--output", str(tmp_path / "p.csv")])
    main(["export", *CPU, *known, "--client", "1", "--output", str(tmp_path / "client.pt2")])
    program = torch.export.load(tmp_path / "client.pt2").module()
    table = pd.read_csv(tmp_path / "p.csv").query("client == 1")
    probabilities = program(torch.from_numpy(pictures()[0] / np.float32(255))).detach().numpy()
    for row in table[["p_0", "p_1", "p_2"]].to_numpy():
        assert np.abs(probabilities - row).max(1).min() < 1e-6  # one of the pictures is this sample


def sites(path):
    """A table of three clients with names, and two features."""
    rng = np.random.default_rng(0)
    x, site = rng.normal(size=(120, 2)), np.repeat(["ann", "bo", "cy"], 40)
    table = pd.DataFrame(x, columns=["a", "b"]).assign(site=site, ill=(x.sum(1) > 0).astype(int))
    table.to_csv(path, index=False)
    return ["--data.dataset", "Table", "--data.dataset.path", str(path), "--data.dataset.client_column", "site",
            "--data.dataset.label_column", "ill"]  # fmt: skip


def test_a_seen_client_needs_the_checkpoint_alone(tmp_path, capsys):
    """The file of all clients is gone, and the program is the same."""
    data = sites(tmp_path / "sites.csv")
    main(["fit", *CPU, *data, "--trainer.default_root_dir", str(tmp_path), "--trainer.max_epochs", "2"])
    last = str(folder(tmp_path, "FedEM") / "checkpoints/last.ckpt")
    main(["predict", *CPU, "--ckpt_path", last, "--output", str(tmp_path / "p.csv")])
    (tmp_path / "sites.csv").rename(tmp_path / "gone.csv")
    main(["export", *CPU, "--ckpt_path", last, "--client", "bo", "--output", str(tmp_path / "bo.pt2")])
    said = capsys.readouterr().err
    assert "lit_fed: bo is served without data: the shared state and the client's own" in said
    table, rows = pd.read_csv(tmp_path / "p.csv").query("client == 'bo'"), pd.read_csv(tmp_path / "gone.csv")
    found = torch.export.load(tmp_path / "bo.pt2").module()(
        torch.from_numpy(rows.query("site == 'bo'")[["a", "b"]].to_numpy())
    )
    for row in table[["p_0", "p_1"]].to_numpy():
        assert np.abs(found.detach().numpy() - row).max(1).min() < 1e-6  # one of the rows is this sample


def test_a_client_that_is_adapted_needs_data(out, tmp_path, capsys):
    export(out, "--client", "0", "--output", str(tmp_path / "client.pt2"))
    said = "FedAvgPlus adapts to a client's samples whenever it serves it; the run's data are read"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--client", "zoe"], ["--client zoe", "seen: ", "unseen: ", "more"]),
        ([], ["--client is not set"]),
        (["--client", "0", "--output", "c.pt"], ["c.pt", ".pt2"]),
        (["--client", "0", "--format", "onnx"], ["c.pt2", ".onnx"]),
        (["--client", "0", "--format", "tar"], ["format", "tar"]),
        (["--client", "0", "--output", ""], ["--output is not set"]),
        (["--client", "all", "--format", "peft"], ["peft with --client all", "pt or onnx"]),
        (["--client", "0", "--clients", "nowhere"], ["nowhere"]),
        (["--client", "0", "--model.algorithm", "FedAvg"], ["FedAvg", "FedAvgPlus"]),
    ],
)
def test_wrong_arguments(out, tmp_path, monkeypatch, capsys, arguments, parts):
    monkeypatch.chdir(tmp_path)
    last = str(folder(out, "FedAvgPlus") / "checkpoints/last.ckpt")
    said = refused(capsys, ["export", *CPU, "--ckpt_path", last, "--output", "c.pt2", *arguments])
    for part in parts:
        assert part in said, said
    assert not list(tmp_path.iterdir())


def test_an_unseen_client_that_is_not_there(out, tmp_path, capsys):
    clients = write_clients(digits().unseen, tmp_path / "clients")
    last = str(folder(out, "FedAvgPlus") / "checkpoints/last.ckpt")
    output = ["--output", str(tmp_path / "c.pt2")]
    said = refused(capsys, ["export", *CPU, "--ckpt_path", last, "--clients", str(clients), "--client", "zoe", *output])
    assert "--client zoe" in said
    assert "client_0, client_1" in said


def test_a_checkpoint_is_needed(capsys):
    assert "--ckpt_path" in refused(capsys, ["export", *CPU, "--client", "0", "--output", "c.pt2"])
