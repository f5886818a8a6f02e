"""Every kind of target from a folder of clients to the run's results: the kind follows the data."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from lit_fed.cli import main
from lit_fed.models import Network

CLIENTS = ("ann", "bob", "cem")


class TinyTagger(Network):
    """A class for each position of a sequence of tokens."""

    def __init__(self, input_shape, num_outputs, width=4):
        super().__init__()
        self.embed = nn.Embedding(6, width)
        self.out = nn.Linear(width, num_outputs)

    def forward(self, x):
        return self.out(self.embed(x))


def arrays(kind, size, rng):
    x = rng.normal(size=(size, 4)).astype(np.float32)
    if kind == "regression":
        return x, (x @ [1.0, -1.0, 0.5, 0.0]).astype(np.float32)
    if kind == "binary":
        return x, (x[:, 0] > 0).astype(np.int64)
    if kind == "multiclass":
        return x, x[:, :3].argmax(1)
    tokens = rng.integers(0, 6, size=(size, 5))
    return tokens, (tokens * 2) % 6


@pytest.fixture
def folder(tmp_path):
    def make(kind):
        rng = np.random.default_rng(1)
        for place in (*(f"seen/{name}" for name in CLIENTS), "unseen/dan"):
            file = tmp_path / kind / f"{place}.npz"
            file.parent.mkdir(parents=True, exist_ok=True)
            x, y = arrays(kind, int(rng.integers(30, 60)), rng)
            np.savez(file, x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
        return tmp_path / kind

    return make


@pytest.mark.parametrize("client_trainer", ["sequential", "vectorized"])
@pytest.mark.parametrize("kind", ["regression", "binary", "multiclass", "sequences"])
def test_kind(folder, tmp_path, kind, client_trainer):
    out = tmp_path / "out"
    network = "test_kinds.TinyTagger" if kind == "sequences" else "Linear"
    main(
        ["fit", "--data.dataset", "ClientFolder", "--data.dataset.root", str(folder(kind)), "--model.network", network,
         "--model.client_trainer", client_trainer, "--trainer.max_epochs", "30", "--trainer.accelerator", "cpu",
         "--model.solver.lr", "0.3", "--data.batch_size", "8", "--trainer.check_val_every_n_epoch", "10",
         "--trainer.default_root_dir", str(out)]
    )  # fmt: skip
    run = out / "FedEM/version_0"
    summary = json.loads((run / "summary.json").read_text())
    table = pd.read_csv(run / "clients.csv")
    assert table["client"].tolist() == [*CLIENTS, "dan"]
    if kind == "regression":
        assert summary["test/seen/mse"] < 0.1
        assert summary["test/seen/loss"] == pytest.approx(summary["test/seen/mse"] / 2, rel=1e-6)
        assert summary["test/seen/mse_worst"] >= summary["test/seen/mse"] > 0
        assert (run / "plots/client_mse.png").is_file()
    else:
        assert summary["test/seen/accuracy"] > 0.85
        assert summary["test/unseen/accuracy"] > 0.75
    networks = {"regression": 1, "binary": 1, "multiclass": 3, "sequences": 5}
    state = torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    outputs = state["models__parameters__out_bias" if kind == "sequences" else "models__parameters__linear_bias"]
    assert outputs.shape == (3, networks[kind])
