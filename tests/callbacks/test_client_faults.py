"""What a run says of clients that are missed: in metrics.csv, on the terminal, in summary.json, and after a resume."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from fed_runs import run_cli

from lit_fed.clients import SequentialTrainer
from lit_fed.core import tree
from lit_fed.wrappers.faults.wrapper import drops_out

BROKEN = 4
"""A client that computes NaN from the second round on."""


def fit(out, *arguments):
    """Fit six clients, of whom the last cannot be reached; what was said, metrics.csv and summary.json."""
    np.save(out / "trace.npy", np.arange(6)[None] < 5)
    said = run_cli(
        ["fit", "--data.num_clients", "6", "--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(out),
         "--trainer.enable_progress_bar", "false", "--model.algorithm", "FedAvg", "--model.faults.dropout", "0.3",
         "--model.client_trainer", "sequential", "--model.faults.on_bad_client", "drop",
         "--model.faults.trace", str(out / "trace.npy"), *arguments]
    )  # fmt: skip
    folder = Path(out) / "FedAvg/version_0"
    summary = json.loads((folder / "summary.json").read_text())
    return said, pd.read_csv(folder / "metrics.csv").dropna(subset=["lr"]), summary


def test_a_run_names_who_was_missed(tmp_path, capsys, monkeypatch):
    inner = SequentialTrainer._one

    def one(trainer, job, row, client_id):
        result, optimizer = inner(trainer, job, row, client_id)
        factor = float("nan") if client_id == BROKEN and job.ctx.round_idx else 1.0
        message = result.message._replace(value=tree.scale(result.message.value, factor))
        return result._replace(message=message), optimizer

    monkeypatch.setattr(SequentialTrainer, "_one", one)
    fit(tmp_path, "--trainer.max_epochs", "2")
    said, metrics, summary = fit(tmp_path, "--trainer.max_epochs", "3", "--ckpt_path", "last")
    dropped = [int(drops_out(0, one, np.arange(5), np.full(5, 0.3)).sum()) for one in range(3)]
    assert metrics["faults/dropped"].tolist() == dropped
    assert metrics["faults/non_finite"].tolist() == [0, 1, 1]
    found = {name: value for name, value in summary.items() if name.startswith("faults/")}
    assert found == {
        "faults/dropped": sum(dropped), "faults/late": 0, "faults/non_finite": 2, "faults/errors": 0,
        "faults/empty_rounds": 0, "faults/failed_clients": {str(BROKEN): [1, 2]},
    }  # fmt: skip
    counts = f"faults: {sum(dropped)} dropped, 0 late, 2 non finite, 0 errors, 0 empty rounds"
    assert f"{counts}\n  client {BROKEN} failed in rounds 1, 2\n" in said
    assert f"lit_fed: left out of this round: client {BROKEN}, round 2, client_final: " in capsys.readouterr().err
