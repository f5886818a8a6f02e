"""`lit-fed blend`: finished runs as one, and all commands that take a run."""

import json
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
import torch
from running import SMALL, folder, run

import lit_fed.choosing.blend
from lit_fed.core.blocks import serving_blocks
from lit_fed.wrappers.feature import features

CANDIDATES = {"FedAvg": [], "FedEM": ["--model.algorithm.num_components", "2"], "Local": []}
COLUMNS = [f"pi_{name}" for name in CANDIDATES]
DATA = [*SMALL, "--data.val_fraction", "0.3", "--trainer.max_epochs", "2"]


def fit(root, name, *more, algorithm=None):
    done = run(
        [
            "fit",
            *DATA,
            "--model.algorithm",
            algorithm or name,
            "--name",
            name,
            "--trainer.default_root_dir",
            str(root),
            *more,
        ]
    )
    assert done.returncode == 0, done.stderr
    return folder(root, name)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("blend")
    return root, [fit(root, name, *more) for name, more in CANDIDATES.items()]


@pytest.fixture(scope="module")
def blend(runs):
    root, folders = runs
    done = run(["blend", *map(str, folders), "--output", str(root / "blend"), "--prior_weight", "2"])
    assert done.returncode == 0, done.stderr
    return folder(root, "blend"), done


def test_it_is_a_run_whose_columns_are_weights_of_the_runs(runs, blend):
    place, done = blend
    table = pd.read_csv(place / "clients.csv")
    weights = table[COLUMNS].to_numpy()
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
    assert ((weights == 0) | (weights >= 0.01)).all()
    assert set(table["population"]) == {"seen", "unseen"}
    for one in COLUMNS:
        assert one in done.stdout
    assert "component" not in done.stdout
    entries = json.loads((place / "summary.json").read_text())
    _, folders = runs
    each = [json.loads((one / "summary.json").read_text()) for one in folders]
    for cost in ("seconds", "comm/total_bytes_up", "comm/total_bytes_down"):  # those of the runs together
        assert entries[cost] == pytest.approx(sum(one[cost] for one in each))
    assert entries["test/seen/accuracy"] == pytest.approx(
        float(
            np.average(
                table["accuracy"][table["population"] == "seen"],
                weights=table["num_test"][table["population"] == "seen"],
            )
        )
    )


def test_all_commands_take_it(blend, tmp_path):
    place, _ = blend
    last = str(place / "checkpoints" / "last.ckpt")
    done = run(["test", "--ckpt_path", last])
    assert done.returncode == 0, done.stderr
    again = run(["predict", "--ckpt_path", last, "--output", str(tmp_path / "all.csv")])
    assert again.returncode == 0, again.stderr
    predicted = pd.read_csv(tmp_path / "all.csv")
    clients = pd.read_csv(place / "clients.csv").query("population == 'seen'")
    hits = (predicted["label"] == predicted["prediction"]).groupby(predicted["client_id"]).mean()
    np.testing.assert_allclose(hits[clients["client_id"]], clients["accuracy"], atol=1e-6)
    name = str(clients["client"][0])
    done = run(["export", "--ckpt_path", last, "--client", name, "--output", str(tmp_path / "one.pt2")])
    assert done.returncode == 0, done.stderr
    program = torch.export.load(tmp_path / "one.pt2").module()
    assert program(torch.zeros(2, 1, 8, 8)).sum(1).tolist() == pytest.approx([1, 1], abs=1e-5)
    x = np.random.default_rng(0).random((12, 1, 8, 8)).astype(np.float32)
    (tmp_path / "new").mkdir()
    np.savez(tmp_path / "new" / "zoe.npz", x_train=x, y_train=np.arange(12) % 10, x_test=x)
    served = [
        "personalize",
        "--ckpt_path",
        last,
        "--clients",
        str(tmp_path / "new"),
        "--output",
        str(tmp_path / "served"),
    ]
    done = run(served)
    assert done.returncode == 0, done.stderr
    assert pd.read_csv(tmp_path / "served" / "clients.csv")[COLUMNS].sum(axis=1)[0] == pytest.approx(1)


def test_a_blend_cannot_be_trained_from_its_configuration(blend, tmp_path):
    place, _ = blend
    done = run(["fit", "--config", str(place / "config.yaml"), "--trainer.default_root_dir", str(tmp_path)])
    assert done.returncode == 2
    assert "Blend trains nothing: `lit-fed blend` makes it of finished runs" in done.stderr


def test_the_strength_of_the_prior_is_the_best_on_held_out_samples(runs, tmp_path, monkeypatch):
    """And it is said, and what serves unseen clients."""
    _, folders = runs
    losses = torch.tensor([5.0, 4.0, 1.0, 2.0, 3.0]).unsqueeze(1)

    def held_out(target, outputs, y, prior, spread, strengths):
        assert strengths.tolist() == [1, 3, 10, 30, 100]
        return losses.expand(-1, len(y))

    monkeypatch.setattr(lit_fed.choosing.blend, "held_out", held_out)
    done = run(["blend", *map(str, folders), "--output", str(tmp_path / "out")])
    assert done.returncode == 0, done.stderr
    assert "count for 10 samples of a client" in done.stdout
    assert "prior_weight: 10.0" in (folder(tmp_path, "out") / "config.yaml").read_text()


NOISE = ["--model.privacy.noise_multiplier", "0.3", "--model.privacy.clip_norm", "1", "--model.privacy.delta", "1e-3"]
ON_MESSAGES = {
    "Median": ["--model.robust_aggregation", "Median"],
    "TopK": ["--model.compression", "TopK", "--model.downlink_compression", "QSGD"],
    "QSGD": ["--model.compression", "QSGD", "--model.compression_feedback", "ef21"],
    "SecureSum": ["--model.secure_aggregation", "SecureSum"],
    "ClientPrivacy": ["--model.privacy", "ClientPrivacy", *NOISE, "--data.client_sampling", "poisson"],
    "faults": ["--model.faults.dropout", "0.3"],
    "PowerOfChoice": ["--model.selection", "PowerOfChoice", "--model.selection.candidates", "5"],
    "ExamplePrivacy": ["--model.privacy", "ExamplePrivacy", *NOISE, "--model.privacy.sample_rate", "0.3"],
}  # fmt: skip


def test_every_feature_that_acts_on_messages_is_tried():
    given = {
        option.split(".")[1] for options in ON_MESSAGES.values() for option in options if option.startswith("--model.")
    }
    for one in features():
        assert one.acts_on_messages == any(field.name in given for field in fields(one)), one


@pytest.mark.parametrize("feature", ON_MESSAGES)
def test_a_run_whose_messages_changed_is_served_as_it_is(feature, tmp_path):
    """A blend of a run with itself serves seen and unseen clients as the run does."""
    mixes = feature in ("TopK", "QSGD")  # whose clients keep errors beside their weights
    place = fit(tmp_path, "one", *ON_MESSAGES[feature], algorithm="FedEM" if mixes else "FedAvg")
    done = run(["blend", str(place), str(place), "--output", str(tmp_path / "two")])
    assert done.returncode == 0, done.stderr
    files = [folder(tmp_path, name) / "clients.csv" for name in ("one", "two")]
    alone, blended = map(pd.read_csv, files)
    shown = [one for one in alone if one in blended]
    assert {"accuracy", "loss", "num_test"} < {*shown}
    pd.testing.assert_frame_equal(blended[shown], alone[shown], rtol=1e-4)
    is_private = feature.endswith("Privacy")
    assert (files[1].stat().st_mode & 0o077 == 0) == is_private
    assert ("privacy: ε covers the training samples alone" in done.stdout) == is_private
    if is_private:
        assert blended[["pi_one_0", "pi_one_1"]].to_numpy() == pytest.approx(0.5)


def test_private_weights_follow_from_samples_of_the_client_alone(runs, tmp_path):
    """Prior, its weight and temperatures do not depend on the clients."""
    _, folders = runs
    place = fit(tmp_path, "private", *ON_MESSAGES["ClientPrivacy"], algorithm="FedAvg")
    done = run(["blend", str(place), *map(str, folders[1:]), "--output", str(tmp_path / "out")])
    assert done.returncode == 0, done.stderr
    states = torch.load(folder(tmp_path, "out") / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    (prior,) = [value for name, value in states.items() if name.endswith("prior")]
    (spread,) = [value for name, value in states.items() if name.endswith("spread")]
    assert prior.tolist() == pytest.approx([1 / 3] * 3)
    assert spread.tolist() == [1.0] * 3
    assert "prior_weight: 1.0" in (folder(tmp_path, "out") / "config.yaml").read_text()
    page = tmp_path / "report.html"
    done = run(["report", str(tmp_path / "out"), "--output", str(page)])
    assert done.returncode == 0, done.stderr
    assert page.stat().st_mode & 0o077 == 0


def test_what_cannot_be_blended_is_refused(runs, tmp_path):
    _, folders = runs
    first = str(folders[0])
    others = {
        "other seed": (["--data.seed", "7"], "differ: data.seed is 7 and"),
        "other network": (["--model.network", "MLP"], "differ: model.network is"),
        "no validation": (["--data.val_fraction", "0"], "differ: data.val_fraction is 0.0 and 0.3"),
    }
    cases = [([first], "a blend needs at least two runs"), ([first, str(tmp_path)], str(tmp_path))]
    cases += [
        ([first, str(fit(tmp_path, f"run{n}", *more, algorithm="FedAvg"))], said)
        for n, (more, said) in enumerate(others.values())
    ]
    none = [
        str(fit(tmp_path, f"none{n}", "--data.val_fraction", "0", algorithm=one))
        for n, one in enumerate(("FedAvg", "Local"))
    ]
    cases.append((none, "the runs have no validation samples, which weights are found on"))
    parts = fit(tmp_path, "parts", "--model.network", "MLP", "--model.personal", "[head]", algorithm="FedAvg")
    last = str(folders[0] / "checkpoints" / "last.ckpt")
    warm = fit(tmp_path, "warm", "--init_from", last, algorithm="FedAvg")
    cases.append(([str(warm), first], "started from --init_from, which no blend serves yet"))
    frozen = ["--model.network", "MLP", "--model.trainable", "[head]", "--seed_everything"]
    head = [fit(tmp_path, f"head{seed}", *frozen, seed, algorithm="FedAvg") for seed in "12"]
    cases.append(([*map(str, head)], "froze other numbers of their network"))
    cases.append(([first, "--alone", first], "is a run of FedAvg, which learns from other clients; give one of Local"))
    for given, said in cases:
        done = run(["blend", *given, "--output", str(tmp_path / "out")])
        assert done.returncode == 2, done.stdout
        assert said in done.stderr
    assert "is not set" in run(["blend", first, first]).stderr
    done = run(["blend", str(parts), str(parts), "--output", str(tmp_path / "out")])
    assert "parts/version_0 has PersonalFeature, which no blend serves" in done.stderr
    assert not (tmp_path / "out").exists()


def test_weights_are_found_on_samples_that_searched_no_rate(runs, tmp_path, monkeypatch):
    _, folders = runs
    measured = []

    def blocks(data, *rest, **options):
        measured.append(data.num_samples)
        return serving_blocks(data, *rest, **options)

    monkeypatch.setattr(lit_fed.choosing.blend, "serving_blocks", blocks)
    auto = fit(tmp_path, "auto", "--model.solver.lr", "auto", algorithm="FedAvg")
    for first, name in ((folders[0], "all"), (auto, "half")):
        done = run(["blend", str(first), str(folders[2]), "--output", str(tmp_path / name)])
        assert done.returncode == 0, done.stderr
    everything, half = measured
    assert everything // 2 - 6 <= half <= everything // 2
    assert "lr: auto" not in (folder(tmp_path, "half") / "config.yaml").read_text()
