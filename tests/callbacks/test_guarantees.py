"""What a private run says of its guarantee: before it begins, in metrics.csv, on the terminal, in summary.json."""

import json
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from fed_runs import run_cli

from lit_fed import FedAvg, FederatedModule, FederatedTrainer
from lit_fed.callbacks.guarantees import guarantee_in_words
from lit_fed.core.seeds import Secret
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.wrappers.privacy import accountant
from lit_fed.wrappers.privacy.accountant import epsilon_of_local_messages, epsilon_of_releases
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.privacy.settings import NOT_COVERED

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
    assert f"lit_fed: a noise multiplier of 1 gives ε {expected[1]:.4g} at δ 0.001 after 2 rounds" in said_before
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


KINDS = {
    "central": [*CENTRAL, "--model.privacy.noise_multiplier", "0.3"],
    "local": ["--model.privacy", "LocalPrivacy", *PRIVATE, "--model.privacy.noise_multiplier", "0.3"],
    "steps": ["--model.privacy", "ExamplePrivacy", *PRIVATE, "--model.privacy.noise_multiplier", "0.3",
              "--model.privacy.sample_rate", "0.5", "--model.privacy.mixture_noise", "1"],
}  # fmt: skip


def parameters(out):
    state = torch.load(out / LAST, weights_only=True)["state_dict"]
    return {name: leaf for name, leaf in state.items() if name.startswith("models")}


def same(one, other):
    return all(torch.equal(leaf, other[name]) for name, leaf in one.items())


@pytest.mark.parametrize("kind", KINDS)
def test_the_secret_of_the_noise_makes_a_resumed_run_exact(tmp_path, capsys, kind):
    whole, half, rounds = tmp_path / "whole", tmp_path / "half", ["--trainer.max_epochs", "1"]
    run(half, [*KINDS[kind], *rounds])
    secret = half / LAST.replace("last.ckpt", "noise.secret")
    assert secret.stat().st_mode & 0o777 == 0o600
    shutil.copytree(half, whole)
    run(half, [*KINDS[kind], "--ckpt_path", "last"])
    run(whole, [*KINDS[kind], "--ckpt_path", "last"])
    assert same(parameters(half), parameters(whole)), "both go on with the same noise"
    other = tmp_path / "other"
    _, _, summary = run(other, KINDS[kind])
    assert not same(parameters(half), parameters(other)), "another run has another secret"
    assert summary["privacy/releases"]
    folder = half / "FedEM/version_0"
    modes = [(folder / name).stat().st_mode & 0o077 for name in ("clients.csv", "weights.npz", "plots", LAST[16:])]
    assert modes == [0, 0, 0, 0], "mixture weights and states are for their owner"
    for path in half.rglob("*"):
        if path.is_file() and path != secret:
            content = path.read_bytes()
            assert secret.read_bytes()[:32] not in content
            assert bytes.fromhex(secret.read_text()[:32]) not in content


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_without_its_secret_charges_the_interrupted_round_twice(tmp_path, capsys, kind):
    _, _, before = run(tmp_path, [*KINDS[kind], "--trainer.max_epochs", "1"])
    (tmp_path / LAST.replace("last.ckpt", "noise.secret")).unlink()
    _, _, summary = run(tmp_path, [*KINDS[kind], "--ckpt_path", "last"])
    assert "noise.secret is not beside it: noise is drawn anew, and the round that" in capsys.readouterr().err
    assert summary["privacy/releases"] == 3 * before["privacy/releases"], "two rounds, and one that may be out twice"


def test_a_run_that_goes_on_with_changes_has_other_noise(tmp_path, capsys):
    run(tmp_path, [*KINDS["local"], "--trainer.max_epochs", "1"])
    secret = tmp_path / LAST.replace("last.ckpt", "noise.secret")
    first = secret.read_text()
    changed = ["--ckpt_path", "last", "--resume_with_changes", "true", "--model.solver.lr", "0.02"]
    _, _, summary = run(tmp_path, [*KINDS["local"], *changed])
    assert "noise.secret is not used with other settings: noise is drawn anew" in capsys.readouterr().err
    assert (summary["privacy/releases"], secret.read_text() == first) == (3, False)


@pytest.mark.parametrize(("attempts", "often"), [(0, "twice"), (1, "3 times"), (2, "4 times")])
def test_a_secret_serves_only_checkpoints_that_were_written_with_it(tmp_path, capsys, attempts, often):
    """A fit with changes that ends before its first checkpoint leaves its secret beside one with other settings.

    Each such attempt may have released the round once more.
    """
    run(tmp_path, [*KINDS["local"], "--trainer.max_epochs", "1"])
    secret = tmp_path / LAST.replace("last.ckpt", "noise.secret")
    secret.write_text(f"{Secret.fresh().key.hex()} {attempts}")
    capsys.readouterr()
    _, _, summary = run(tmp_path, [*KINDS["local"], "--ckpt_path", "last"])
    said = capsys.readouterr().err
    assert "noise.secret beside it is that of another checkpoint, or this one was changed: noise is drawn anew" in said
    assert f"the round that was interrupted is charged {often}" in said
    assert summary["privacy/releases"] == 3 + attempts
    assert secret.read_text().endswith(f" {attempts + 1}\n")
    with pytest.raises(SystemExit):
        run(tmp_path, [*KINDS["local"], "--ckpt_path", str(tmp_path / LAST.replace("last", "previous"))])
    assert (
        "another checkpoint, or this one was changed, and rounds after this checkpoint may have"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("kind", ["central", "local"])
def test_a_checkpoint_that_was_changed_has_other_noise(tmp_path, capsys, kind):
    """Else the difference of the two rounds would be without noise, and charged once."""

    def last_round(change):
        out = tmp_path / change
        shutil.copytree(tmp_path / "run", out)
        content = torch.load(out / LAST, weights_only=True)
        name = next(one for one, leaf in content["state_dict"].items() if one.startswith("models") and leaf.numel() > 9)
        if change == "model":
            content["state_dict"][name][0] += 1e-3
        if change == "schedule":
            content["lit_fed"]["schedule_rounds"] += 1
        if change == "name":
            content["lit_fed"]["noise"] = ""
        torch.save(content, out / LAST)
        _, _, summary = run(out, [*KINDS[kind], "--ckpt_path", "last"])
        return "noise is drawn anew" in capsys.readouterr().err, summary["privacy/releases"]

    run(tmp_path / "run", [*KINDS[kind], "--trainer.max_epochs", "1"])
    capsys.readouterr()
    assert last_round("nothing") == (False, 2)
    for change in ("model", "schedule", "name"):
        assert last_round(change) == (True, 3)


def fit_again(out, privacy, *, module=None, rounds=3, ckpt_path=None, **data):
    """A fit without a command line, whose arguments nothing compares; its module."""
    rng = np.random.default_rng(0)
    clients = {f"c{one}": (rng.normal(size=(20, 4)).astype(np.float32), rng.integers(0, 2, 20)) for one in range(6)}
    datamodule = FederatedDataModule.from_clients(clients, labels="classes", **data)
    module = module or FederatedModule(FedAvg(), privacy=privacy)
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=rounds, default_root_dir=str(out), enable_progress_bar=False
    )
    trainer.fit(module, datamodule, ckpt_path=ckpt_path)
    return module


@pytest.mark.parametrize(
    "privacy",
    [
        ClientPrivacy(target_epsilon=5, clip_norm=1, delta=1e-5),
        LocalPrivacy(target_epsilon=20, clip_norm=1, delta=1e-5),
        ExamplePrivacy(target_epsilon=5, clip_norm=1, delta=1e-5, sample_rate=0.2),
    ],
    ids=lambda one: type(one).__name__,
)
def test_rounds_of_a_second_fit_come_after_those_of_the_first(tmp_path, privacy):
    module = fit_again(tmp_path, privacy, client_sampling="poisson")
    with pytest.raises(ConfigError, match=r"(6 rounds|30 steps)"):
        fit_again(tmp_path, privacy, module=module, client_sampling="poisson")
    assert module.num_rounds_done == 3


def test_a_pickled_module_goes_on_with_the_noise_that_was_asked_for(tmp_path):
    privacy = ClientPrivacy(noise_multiplier=1, clip_norm=1, delta=1e-5, noise_seed=3)
    module = fit_again(tmp_path, privacy, client_sampling="poisson")
    copy = pickle.loads(pickle.dumps(module))
    for one in (module, copy):
        fit_again(tmp_path, privacy, module=one, client_sampling="poisson")
    assert same(module.state_dict(), copy.state_dict())


@pytest.mark.parametrize("other", [{"client_fraction": 0.9}, {"batch_size": 5}], ids=str)
@pytest.mark.parametrize("resumed", [True, False])
def test_a_private_run_goes_on_under_the_same_terms_without_a_command_line(tmp_path, resumed, other):
    """ε would count all rounds with the new probability, and the same noise would lie on other messages."""
    privacy = ClientPrivacy(noise_multiplier=1, clip_norm=1, delta=1e-5)
    terms = {"client_sampling": "poisson", "client_fraction": 0.1, "batch_size": 20}
    module = fit_again(tmp_path, privacy, **terms)
    goes_on = {"ckpt_path": next(tmp_path.rglob("last.ckpt"))} if resumed else {"module": module}
    with pytest.raises(ConfigError, match="privacy counts on the same terms in all rounds"):
        fit_again(tmp_path, privacy, rounds=4, **goes_on, **(terms | other))
    assert fit_again(tmp_path, privacy, rounds=4, **goes_on, **terms).num_rounds_done == (4 if resumed else 7)


def test_a_damaged_secret_is_refused(tmp_path, capsys):
    run(tmp_path, [*KINDS["local"], "--trainer.max_epochs", "1"])
    (tmp_path / LAST.replace("last.ckpt", "noise.secret")).write_text("0x12 0")
    with pytest.raises(SystemExit):
        run(tmp_path, [*KINDS["local"], "--ckpt_path", "last"])
    assert "noise.secret is not what was written; restore it, or delete it" in capsys.readouterr().err


def test_repeatable_noise_is_called_that(tmp_path, capsys):
    for out in ("one", "other"):
        run(tmp_path / out, [*KINDS["central"], "--model.privacy.noise_seed", "3"])
    assert "--model.privacy.noise_seed makes the noise repeatable, so it gives no protection" in capsys.readouterr().err
    assert same(parameters(tmp_path / "one"), parameters(tmp_path / "other"))
    assert not (tmp_path / "one" / LAST.replace("last.ckpt", "noise.secret")).exists()


def test_constants_that_are_learned_without_noise_are_named_or_public(tmp_path, capsys):
    rows = "site,age,sex,outcome\n" + "".join(
        f"{site},{30 + (7 * row) % 40},{'fm'[row % 2]},{'yn'[(row // 2) % 2]}\n" for site in "ab" for row in range(20)
    )
    (tmp_path / "private.csv").write_text(rows)
    (tmp_path / "public.csv").write_text("age,sex,outcome\n50,f,y\n70,m,n\n60,x,n\n")
    table = ["--data.dataset", "Table", "--data.dataset.path", str(tmp_path / "private.csv"), "--data.num_clients",
             "null", "--data.dataset.client_column", "site", "--data.dataset.label_column", "outcome",
             "--data.client_sampling", "poisson", *KINDS["local"]]  # fmt: skip
    learned = "the categories of sex and means and standard deviations of inputs and the classes"
    _, _, summary = run(tmp_path / "own", table)
    assert summary["privacy/not_covered"] == f"{NOT_COVERED}, and {learned}, learned without noise"
    assert f"ε does not cover {learned}, which are learned from the clients' samples" in capsys.readouterr().err
    given = ["--data.dataset.constants", str(tmp_path / "public.csv")]
    _, _, summary = run(tmp_path / "given", [*table, *given])
    assert summary["privacy/not_covered"] == NOT_COVERED
    assert "ε does not cover" not in capsys.readouterr().err
    facts = torch.load(tmp_path / "given" / LAST, weights_only=True)["lit_fed"]["serving"]
    mean, std = facts["normalisation"]
    assert (mean, std[0]) == ((60.0, 0.0, 0.0, 0.0), pytest.approx((200 / 3) ** 0.5))
    assert facts["columns"]["features"][1][:2] == ("sex", ("f", "m", "x")), "x is in no private row"
    (tmp_path / "public.csv").write_text("age,sex,outcome\n50,f,n\n70,m,n\n60,x,n\n")
    with pytest.raises(SystemExit):
        run(tmp_path / "refused", [*table, *given])
    assert "row 1, column 'outcome': 'y' is no label in" in capsys.readouterr().err


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
    _, _, summary = run(tmp_path / "later", [*local, "--init_from", f"{tmp_path}/public/{LAST}"])
    assert summary["privacy/epsilon"] == 2 * spent["privacy/epsilon"]
    assert "the models of --init_from learned from" in summary["privacy/not_covered"], "as little as before"
    capsys.readouterr()
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
    accountant._divergences.cache_clear()
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    for noise in ("1", "0"):
        with pytest.raises(SystemExit):
            run(tmp_path, [*CENTRAL, "--model.privacy.noise_multiplier", noise])
        assert 'pip install "lit-fed[privacy]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_without_privacy_nothing_is_said():
    assert guarantee_in_words({}) == ""
