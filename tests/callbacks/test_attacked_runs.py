"""What a run with attackers leaves: honest clients measured apart, attackers listed and counted, an open back door."""

import contextlib
import io
import json

import pandas as pd
import pytest
import torch
from lightning.pytorch import seed_everything
from quiet import quiet_trainer
from running import history, numbers

from lit_fed import FedAvg, FedEM, FederatedModule, LocalSolver
from lit_fed.callbacks import RunReport, TrainingSplitEvaluation
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.poison import Backdoor, LabelFlip
from lit_fed.errors import ConfigError
from lit_fed.wrappers.robust.attacks import Gaussian, ModelReplacement

SIZE, CLASS = 3, 7


def fit(out, algorithm, attack=None, *, rounds=3, ckpt_path=None, done=0, callbacks=(), tested=True, **options):
    seed_everything(0, verbose=False)
    data = FederatedDataModule(Digits(), num_clients=12, unseen_fraction=0.25, batch_size=32, **options)
    module = FederatedModule(algorithm, LocalSolver(lr=0.2), attack=attack)
    callbacks = [RunReport(pictures=False), *callbacks]
    trainer = quiet_trainer(rounds, out, version=0, keep_rounds=done, callbacks=callbacks)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        if tested:
            trainer.test(module, datamodule=data)
    return module, data, out / "run/version_0", said.getvalue()


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory):
    poison = Backdoor(SIZE, CLASS, 1.0)
    return fit(
        tmp_path_factory.mktemp("runs"), FedAvg(), ModelReplacement(1.0), attackers=3, poison=poison,
        callbacks=[TrainingSplitEvaluation()],
    )  # fmt: skip


def test_attackers_are_listed_and_counted(left_behind):
    _, data, folder, _ = left_behind
    table = pd.read_csv(folder / "clients.csv", dtype={"client": str})
    assert table[table["attacker"]]["client"].tolist() == [data.seen.names[one] for one in data.seen.attackers]
    assert table[table["attacker"]]["population"].tolist() == ["seen"] * 3
    assert json.loads((folder / "summary.json").read_text())["attackers"] == 3


def test_honest_clients_are_measured_apart(left_behind):
    _, _, folder, said = left_behind
    summary = json.loads((folder / "summary.json").read_text())
    table = pd.read_csv(folder / "clients.csv")
    seen = table[table["population"] == "seen"]
    for name, some in (("seen", seen), ("honest", seen[~seen["attacker"]])):
        for metric in ("accuracy", "loss"):
            weighted = (some[metric] * some["num_test"]).sum() / some["num_test"].sum()
            assert summary[f"test/{name}/{metric}"] == pytest.approx(weighted)
        assert summary[f"test/{name}/accuracy_worst"] == pytest.approx(some["accuracy"].min())
        assert f"│ {name:<7} │   {summary[f'test/{name}/accuracy']:.4f} │" in said
        assert f"train/{name}/accuracy" in summary
    assert summary["test/honest/loss"] != summary["test/seen/loss"]
    assert {key.replace("honest", "seen") for key in summary if "/honest/" in key} <= summary.keys()
    assert pd.read_csv(folder / "metrics.csv")["test/honest/accuracy"].notna().sum() >= 3  # each evaluation


def test_success_is_the_share_of_marked_pictures_of_other_classes(left_behind):
    module, data, folder, said = left_behind
    seen, unseen = data.populations
    summary = json.loads((folder / "summary.json").read_text())
    named = {"success": (seen, seen.honest.nonzero()[:, 0]), "unseen_success": (unseen, torch.arange(3))}
    weight, bias = module.shared.inner.models.parameters.values()
    for key, (population, positions) in named.items():
        hits = samples = 0
        for position in positions.tolist():
            rows = slice(*population.test.offsets[position : position + 2].tolist())
            x, y = population.test.x[rows].clone(), population.test.y[rows]
            x[..., -SIZE:, -SIZE:] = seen.train.x.max()
            outputs = x.flatten(1) @ weight[0].T + bias[0]
            hits += int((outputs.argmax(1)[y != CLASS] == CLASS).sum())
            samples += int((y != CLASS).sum())
        assert summary[f"attack/{key}"] == pytest.approx(hits / samples)
    assert 0.02 < summary["attack/success"] < 0.98  # else it would not matter which pictures count
    assert f"back door: honest clients take {summary['attack/success']:.1%} of their pictures" in said


def test_unseen_clients_and_test_samples_are_not_poisoned(left_behind, tmp_path):
    _, data, _, _ = left_behind
    clean = FederatedDataModule(Digits(), num_clients=12, unseen_fraction=0.25, batch_size=32)
    clean.setup()
    assert torch.equal(clean.unseen.train.y, data.unseen.train.y)
    assert torch.equal(clean.unseen.train.x, data.unseen.train.x)
    assert torch.equal(clean.seen.test.x, data.seen.test.x)
    assert not torch.equal(clean.seen.train.x, data.seen.train.x)
    assert clean.fingerprint != data.fingerprint


def test_a_run_goes_on_with_the_same_attackers(tmp_path):
    options = {"attackers": 0.3, "poison": LabelFlip(), "client_fraction": 0.6}
    whole, _, one, _ = fit(tmp_path / "one", FedEM(2), Gaussian(0.1), rounds=4, **options)
    _, _, two, _ = fit(tmp_path / "two", FedEM(2), Gaussian(0.1), rounds=2, tested=False, **options)
    last = str(two / "checkpoints/last.ckpt")
    resumed, *_ = fit(tmp_path / "two", FedEM(2), Gaussian(0.1), rounds=4, ckpt_path=last, done=2, **options)
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0, equal_nan=True)
    assert numbers(one) == numbers(two)
    assert history(one) == history(two)


def test_runs_without_attackers_say_nothing_of_them(tmp_path):
    _, _, folder, said = fit(tmp_path, FedAvg(), rounds=1)
    assert "attacker" not in pd.read_csv(folder / "clients.csv")
    summary = json.loads((folder / "summary.json").read_text())
    assert not [key for key in summary if "honest" in key or "attack" in key]
    assert "honest" not in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"poison": LabelFlip()}, "--data.poison is LabelFlip, which needs --data.attackers"),
        ({"attackers": 1, "poison": Backdoor(9)}, "--data.poison.size is 9, the images have 8 × 8 pixels"),
    ],
)
def test_poison_that_has_no_meaning_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        FederatedDataModule(Digits(), num_clients=12, **options).setup()
