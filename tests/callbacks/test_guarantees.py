"""What a private run says of its guarantee: before it begins, in metrics.csv, on the terminal, in summary.json."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
from fed_runs import run_cli

from lit_fed.callbacks.guarantees import guarantee_in_words
from lit_fed.core.privacy import accountant
from lit_fed.core.privacy.accountant import epsilon_of_local_messages, epsilon_of_releases
from lit_fed.wrappers.privacy import NOT_COVERED

pytest.importorskip("dp_accounting")

PRIVATE = ["--model.privacy.clip_norm", "1", "--model.privacy.delta", "1e-3"]
LAST = "FedEM/version_0/checkpoints/last.ckpt"
CENTRAL = ["--model.privacy", "ClientPrivacy", *PRIVATE, "--data.client_sampling", "poisson",
           "--data.client_fraction", "0.5"]  # fmt: skip


def run(out, arguments):
    said = run_cli(
        ["fit", "--data.num_clients", "10", "--trainer.max_epochs", "2", "--trainer.accelerator", "cpu",
         "--trainer.enable_progress_bar", "false", "--trainer.default_root_dir", str(out), *arguments]
    )  # fmt: skip
    folder = Path(out) / "FedEM/version_0"
    summary = json.loads((folder / "summary.json").read_text())
    private = {key: value for key, value in summary.items() if key.startswith("privacy/")}
    return said, pd.read_csv(folder / "metrics.csv").dropna(subset=["lr"]), private


def test_a_run_of_central_privacy(tmp_path, capsys):
    said, metrics, summary = run(tmp_path, [*CENTRAL, "--model.privacy.noise_multiplier", "1"])
    expected = [epsilon_of_releases(0.5, 1.0, count, 1e-3) for count in (1, 2)]
    said_before = capsys.readouterr().err
    assert said_before.startswith(
        f"lit_fed: a noise multiplier of 1 gives ε {expected[1]:.4g} at δ 0.001 after 2 rounds"
    )
    assert metrics["privacy/epsilon"].tolist() == pytest.approx(expected, abs=5e-3)
    assert metrics["privacy/delta"].tolist() == [1e-3, 1e-3]
    assert metrics["privacy/clip_norm"].tolist() == [1, 1]
    assert all(0 <= share <= 1 for share in metrics["privacy/clipped_share"])
    assert all(0 < share < 2 for share in metrics["privacy/noise_share"])
    assert not any(key.startswith("train/seen/privacy") for key in metrics)
    assert summary.pop("privacy/noise_share") == metrics["privacy/noise_share"].iloc[-1]
    assert summary.pop("privacy/clipped_share") == metrics["privacy/clipped_share"].iloc[-1]
    assert summary == {
        "privacy/epsilon": expected[1],
        "privacy/epsilon_rdp": epsilon_of_releases(0.5, 1.0, 2, 1e-3, "rdp"),
        "privacy/delta": 1e-3,
        "privacy/accountant": "PLD, dp-accounting 0.6.0",
        "privacy/unit": "a client with all of its samples",
        "privacy/adjacency": "add or remove one",
        "privacy/sampling_probability": 0.5,
        "privacy/noise_multiplier": 1.0,
        "privacy/releases": 2,
        "privacy/clip_norm": 1.0,
        "privacy/not_covered": NOT_COVERED,
    }
    assert f"privacy: ε {expected[1]:.4g}, δ 0.001 after 2 releases (PLD, dp-accounting 0.6.0)\n" in said
    assert f"not for: {NOT_COVERED}\n" in said


def test_what_was_spent_on_the_models_that_a_run_starts_from(tmp_path, capsys):
    """A run without privacy is refused or declared public; ε and δ of a private one are added."""
    plain, first = tmp_path / "plain", tmp_path / "first"
    run(plain, [])
    local = ["--model.privacy", "LocalPrivacy", *PRIVATE, "--model.privacy.noise_multiplier", "5"]
    _, _, spent = run(first, local)
    start, after = ["--init_from", f"{plain}/{LAST}"], ["--init_from", f"{first}/{LAST}"]
    with pytest.raises(SystemExit):
        run(tmp_path / "refused", local + start)
    said = capsys.readouterr().err
    assert "holds models that were trained without privacy, and ε of --model.privacy LocalPrivacy would not" in said
    assert "--model.privacy.public_start true" in said
    with pytest.raises(SystemExit):
        run(tmp_path / "refused", [*CENTRAL, "--model.privacy.noise_multiplier", "1", *after])
    assert "with privacy of the data of a client, whoever sees what it sends" in capsys.readouterr().err
    _, _, summary = run(tmp_path / "public", [*local, *start, "--model.privacy.public_start", "true"])
    assert f"{LAST} counts as public" in capsys.readouterr().err
    assert summary["privacy/epsilon"] == spent["privacy/epsilon"]
    assert summary["privacy/not_covered"] == f"{NOT_COVERED}, and the data that the models of --init_from learned from"
    _, metrics, summary = run(tmp_path / "second", local + after)
    assert f"has spent ε {spent['privacy/epsilon']:.4g} at δ 0.001, which are added" in capsys.readouterr().err
    assert summary["privacy/epsilon"] == metrics["privacy/epsilon"].iloc[-1] == 2 * spent["privacy/epsilon"]
    assert (summary["privacy/delta"], summary["privacy/epsilon_of_start"]) == (2e-3, spent["privacy/epsilon"])
    third = ["--init_from", f"{tmp_path}/second/{LAST}"]
    _, _, summary = run(tmp_path / "third", local + third)
    assert summary["privacy/epsilon"] == pytest.approx(3 * spent["privacy/epsilon"])


def test_a_run_without_noise(tmp_path):
    said, metrics, summary = run(tmp_path, [*CENTRAL, "--model.privacy.noise_multiplier", "0"])
    assert "privacy: ε infinite, since there is no noise, δ 0.001 after 2 releases" in said
    assert summary["privacy/epsilon"] is summary["privacy/epsilon_rdp"] is None
    assert "privacy/epsilon" not in metrics


def test_a_run_of_local_privacy(tmp_path):
    said, metrics, summary = run(
        tmp_path, ["--model.privacy", "LocalPrivacy", *PRIVATE, "--model.privacy.noise_multiplier", "5"]
    )
    epsilon = epsilon_of_local_messages(5.0, 2, 1e-3)
    assert summary["privacy/epsilon"] == metrics["privacy/epsilon"].iloc[-1] == epsilon
    assert f"privacy: ε {epsilon:.4g}, δ 0.001 after 2 releases (exact Gaussian, dp-accounting 0.6.0)" in said


def test_the_package_is_asked_for_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    for cached in (accountant._divergences, accountant._loss_distribution):
        cached.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    for noise in ("1", "0"):
        with pytest.raises(SystemExit):
            run(tmp_path, [*CENTRAL, "--model.privacy.noise_multiplier", noise])
        assert 'pip install "lit-fed[privacy]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_privacy_nothing_is_said():
    assert guarantee_in_words({}) == ""


def test_an_imitated_population_is_called_that():
    found = {
        "privacy/epsilon_of_larger_cohort": 2.0, "privacy/delta": 1e-3, "privacy/releases": 3,
        "privacy/accountant": "PLD", "privacy/unit": "a client", "privacy/adjacency": "add or remove one",
        "privacy/not_covered": "metrics",
    }  # fmt: skip
    assert guarantee_in_words(found).startswith(
        "privacy: ε 2, for a larger population that is imitated, δ 0.001 after 3"
    )
