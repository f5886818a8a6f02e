"""Prediction sets of runs: thresholds by calibration samples alone, the same by every way to them."""

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from quiet import quiet_trainer

from lit_fed import FederatedDataModule, FederatedModule, Poisson, client_table, export, personal_model, personalize
from lit_fed.algorithms import FedAvg, FedAvgPlus, FedEM, Local
from lit_fed.callbacks.prediction_sets import PredictionSets
from lit_fed.cli import main
from lit_fed.core import conformal
from lit_fed.core.conformal import check_target
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Multiclass
from lit_fed.core.types import SPLITS
from lit_fed.errors import ConfigError
from lit_fed.training.checkpoint import CHECKPOINT_KEY, load_checkpoint
from lit_fed.wrappers import ClientPrivacy, ExamplePrivacy

SIZES = {"a": 120, "b": 90, "c": 30, "d": 100, "e": 70}
"""c has 30·0.8·0.3 = 7 calibration samples, too few for a threshold of its own."""


def samples(size, seed, quantities=False):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 3)).astype(np.float32)
    noisy = x.sum(1) + rng.normal(size=size)
    return x, (10 * noisy).astype(np.float32) if quantities else np.digitize(noisy, [-1.0, 1.0])


def clients(quantities=False):
    return {name: samples(size, seed, quantities) for seed, (name, size) in enumerate(SIZES.items())}


def data_of(quantities=False, **settings):
    settings = {"test_fraction": 0.2, "calibration_fraction": 0.3, "unseen_fraction": 0.2} | settings
    return FederatedDataModule.from_clients(clients(quantities), **settings)


def fitted(out, algorithm=FedEM(num_components=2), rounds=3, data=None, ckpt_path=None, **settings):  # noqa: B008
    data = data or data_of()
    module = FederatedModule(algorithm, LocalSolver(lr=0.1), **{"conformal": 0.9} | settings)
    trainer = quiet_trainer(rounds, out)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module, data, trainer


def last_of(trainer):
    return f"{trainer.log_dir}/checkpoints/last.ckpt"


def by_numpy(scores, coverage=0.9):
    k = math.ceil(round((len(scores) + 1) * coverage, 9))
    return np.sort(scores)[k - 1] if k <= len(scores) else math.inf


def scores_of(table):
    """1 − p of the label, by the columns of a table of predictions."""
    p = table.filter(regex="^p_").to_numpy(np.float64)
    return 1 - p[np.arange(len(table)), table["label"]]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    module, data, trainer = fitted(tmp_path_factory.mktemp("run"))
    trainer.test(module, datamodule=data)
    return module, data, trainer


def predicted(run, **options):
    module, data, trainer = run
    return trainer.predict(module, datamodule=data, **options)


def test_calibration_samples_are_in_no_other_split():
    """And without them every other split is the same, bit for bit, but for the training samples."""
    plain, data = data_of(calibration_fraction=0.0), data_of()
    for one in (plain, data):
        one.setup()
    for before, now in zip(plain.populations, data.populations, strict=True):
        assert before.calibration is None
        assert torch.equal(before.test.x, now.test.x)
        rows = torch.cat([now.train.x, now.calibration.x])
        assert sorted(rows.tolist()) == sorted(before.train.x.tolist())
        assert now.calibration.sizes.tolist() == (before.train.sizes * 0.3).round().long().tolist()
        assert not {tuple(row) for row in now.calibration.x.tolist()} & {tuple(row) for row in now.train.x.tolist()}


def test_a_persons_samples_stay_in_one_split(tmp_path):
    rng, size = np.random.default_rng(0), 300
    frame = pd.DataFrame({"x": rng.normal(size=size), "y": rng.integers(0, 2, size), "z": rng.integers(0, 40, size)})
    frame["site"] = rng.integers(0, 3, size)
    module = FederatedDataModule.from_frame(
        frame, client="site", label="y", features=["x"], table={"group_column": "z"}, calibration_fraction=0.3,
        val_fraction=0.2,
    )  # fmt: skip
    module.setup()
    seen = module.populations[0]
    persons = [{*frame["z"].to_numpy()[rows.numpy()]} for rows in seen.rows]
    assert len(persons) == len(SPLITS)
    assert sum(map(len, persons)) == len(set.union(*persons)) == 40
    assert sum(len(rows) for rows in seen.rows) == size
    assert seen.calibration.num_samples > 30


def test_thresholds_are_quantiles_of_calibration_samples(run):
    module, data, _ = run
    table = predicted(run, split="calibration")
    own = table.groupby("client_id").apply(lambda part: by_numpy(scores_of(part)), include_groups=False)
    assert module.thresholds.ids.tolist() == own.index.tolist()
    assert module.thresholds.own.tolist() == own.tolist()
    small = [*data.seen.names].index("c")
    assert math.isinf(own[small])
    assert own.drop(small).between(0, 1).all()
    assert module.thresholds.shared == by_numpy(scores_of(table))
    assert not np.isin(module.thresholds.shared, own)


@pytest.mark.parametrize("population", ["seen", "unseen"])
def test_tables_hold_what_sets_cover(run, population):
    """The columns of clients.csv follow from those of predictions, whose sets follow from thresholds."""
    module, data, trainer = run
    table, clients = predicted(run, population=population), client_table(trainer)
    clients = clients[clients["population"] == population].set_index("client_id")
    if population == "unseen":
        held = predicted(run, population="unseen", split="calibration")
        assert clients["threshold"].tolist() == [by_numpy(scores_of(held))]
    else:
        own = torch.where(module.thresholds.own.isinf(), module.thresholds.shared, module.thresholds.own)
        assert clients["threshold"].tolist() == own.tolist()
        assert clients["own_threshold"].tolist() == [one != "c" for one in data.seen.names]
    p = table.filter(regex="^p_").to_numpy(np.float64)
    limit = table["client_id"].map(clients["threshold"]).to_numpy()
    held = 1 - p <= limit[:, None]
    assert table["set"].tolist() == ["|".join(map(str, np.flatnonzero(row))) for row in held]
    table["covered"], table["size"] = held[np.arange(len(table)), table["label"]], held.sum(1)
    means = table.groupby("client_id")[["covered", "size"]].mean()
    assert np.allclose(clients["coverage"], means["covered"])
    assert np.allclose(clients["set_size"], means["size"])
    assert np.isclose(module.results[f"test/{population}/coverage"], table["covered"].mean())
    assert np.isclose(module.results[f"test/{population}/set_size"], table["size"].mean())


@pytest.mark.parametrize("population", ["seen", "unseen"])
def test_coverage_by_class_follows_from_the_predictions(run, population):
    """Behind the shared threshold are the calibration samples of all seen clients."""
    _, _, trainer = run
    found = pd.read_csv(Path(trainer.log_dir) / "coverage.csv").query("population == @population")
    table, clients = predicted(run, population=population), client_table(trainer).set_index("client")
    held = predicted(run, population=population, split="calibration")
    pooled = predicted(run, split="calibration")["label"]
    assert found["client"].tolist() == [one for one in table["client"].unique() for _ in range(3)]
    for row in found.itertuples():
        own = table[(table["client"] == row.client) & (table["label"] == row[3])]
        assert row.num_test == len(own)
        hits = [str(label) in sets.split("|") for label, sets in zip(own["label"], own["set"], strict=True)]
        assert row.coverage == pytest.approx(np.mean(hits) if hits else np.nan, nan_ok=True)
        behind = held.loc[held["client"] == row.client, "label"] if clients.loc[row.client, "own_threshold"] else pooled
        assert row.num_calibration == (behind == row[3]).sum()


def rare(tmp_path):
    """Every client but the first has a rare class, which its inputs do not predict."""
    rng, each = np.random.default_rng(0), {}
    for place, name in enumerate("abcde"):
        x = rng.normal(size=(400, 3)).astype(np.float32)
        y = (x.sum(1) > 0).astype(np.int64)
        each[name] = (x, np.where(rng.random(400) < (0.06 if place else 0), 2, y))
    data = FederatedDataModule.from_clients(each, test_fraction=0.3, calibration_fraction=0.3)
    return fitted(tmp_path, FedAvg(), rounds=8, data=data)


def test_a_class_that_sets_miss_is_named_once(tmp_path, capsys):
    module, data, trainer = rare(tmp_path)
    trainer.test(module, datamodule=data)
    (said,) = [line for line in capsys.readouterr().out.splitlines() if "clearly less" in line]
    table = trainer.predict(module, datamodule=data)
    cases = table[table["label"] == 2]
    share = np.mean(["2" in one.split("|") for one in cases["set"]])
    assert share < 0.6
    assert len(cases) > 10
    wanted = f"sets cover clearly less than 90.0% of class 2 ({share:.1%} of {len(cases)} test samples)"
    assert said == f"seen clients: {wanted}"
    assert json.loads((Path(trainer.log_dir) / "summary.json").read_text())["undercovered/seen"] == said
    first = pd.read_csv(Path(trainer.log_dir) / "coverage.csv").query("client == 'a'").set_index("class")
    assert first.loc[2, ["num_calibration", "num_test"]].tolist() == [0, 0]


def test_a_class_is_named_by_chance_in_at_most_one_run_of_forty():
    """Eight clients with thresholds of their own and two with the shared one; classes that are covered alike."""
    rng, number, shares = np.random.default_rng(0), 400, [0.5, 0.46, 0.04]
    sizes, named = np.array([20] * 8 + [6] * 2), 0
    for _ in range(number):
        n = np.where(sizes < 9, sizes.sum(), sizes)
        k = np.array([conformal.rank(int(one), 0.9) for one in n])
        chance = rng.beta(k, n + 1 - k)
        chance[8:] = chance[8]
        cases = rng.multinomial(30, shares, size=len(sizes))
        sets = PredictionSets()
        sets._found["seen"] = {
            "threshold": torch.ones(len(sizes), dtype=torch.float64), "own": torch.from_numpy(sizes > 9).double(),
            "held": torch.from_numpy(rng.multinomial(sizes, shares)).double(),
            "cases": torch.from_numpy(cases).double(),
            "hits": torch.from_numpy(rng.binomial(cases, chance[:, None])).double(),
        }  # fmt: skip
        named += bool(sets._undercovered(sets._found["seen"], 0.9, "abc"))
    assert 0 < named <= number / 40


def test_intervals_of_quantities(tmp_path):
    module, data, trainer = fitted(tmp_path, FedAvg(), data=data_of(quantities=True))
    held = trainer.predict(module, datamodule=data, split="calibration")
    error = (held["label"] - held["prediction"]).abs()
    own = error.groupby(held["client_id"]).apply(by_numpy)
    assert np.allclose(module.thresholds.own, own, rtol=1e-6)
    trainer.test(module, datamodule=data)
    table, clients = trainer.predict(module, datamodule=data), client_table(trainer).set_index("client_id")
    threshold = table["client_id"].map(clients["threshold"])
    assert np.allclose(table["prediction"] - threshold, table["lower"])
    assert np.allclose(table["prediction"] + threshold, table["upper"])
    covered = table["label"].between(table["lower"], table["upper"]).groupby(table["client_id"]).mean()
    seen = clients[clients["population"] == "seen"]
    assert np.allclose(seen["coverage"], covered)
    assert np.allclose(seen["width"], 2 * seen["threshold"])
    assert not (Path(trainer.log_dir) / "coverage.csv").exists()


def test_counts_have_intervals_from_zero(tmp_path):
    rng = np.random.default_rng(0)
    each = {name: (x := rng.normal(size=(80, 2)).astype(np.float32), rng.poisson(np.exp(x[:, 0]))) for name in "abc"}
    data = FederatedDataModule.from_clients(each, calibration_fraction=0.3)
    module, data, trainer = fitted(tmp_path, FedAvg(), data=data, target=Poisson())
    table = trainer.predict(module, datamodule=data)
    assert (table["lower"] >= 0).all()
    assert (table["lower"] == 0).any()
    assert (table["upper"] > table["prediction"]).all()


@pytest.mark.parametrize(
    "algorithm", [FedEM(num_components=2), FedAvgPlus(), Local()], ids=lambda one: type(one).__name__
)
def test_clients_one_by_one_and_at_once(tmp_path, algorithm):
    found = [
        fitted(tmp_path / how, algorithm, client_trainer=how)[0].thresholds for how in ("sequential", "vectorized")
    ]
    assert torch.allclose(found[0].own, found[1].own, atol=1e-5)
    assert math.isclose(found[0].shared, found[1].shared, abs_tol=1e-5)


def test_a_resumed_run_has_the_thresholds_of_one_that_was_not_interrupted(run, tmp_path):
    _, _, first = fitted(tmp_path, rounds=1)
    again, _, trainer = fitted(tmp_path, rounds=3, ckpt_path=last_of(first))
    for found, wanted in zip(again.thresholds, run[0].thresholds, strict=True):
        assert torch.equal(found, wanted) if isinstance(found, torch.Tensor) else found == wanted
    kept = load_checkpoint(Path(last_of(trainer)))[CHECKPOINT_KEY]["thresholds"]
    assert (kept["shared"], kept["own"].tolist()) == (again.thresholds.shared, again.thresholds.own.tolist())


def test_a_checkpoint_holds_the_thresholds_of_its_own_round(tmp_path):
    """A test of it in another process finds none other."""
    module, _, trainer = fitted(tmp_path, rounds=1)
    before = module.thresholds
    fresh, data = FederatedModule(FedEM(num_components=2), LocalSolver(lr=0.1), conformal=0.9), data_of()
    quiet_trainer(1, tmp_path).test(fresh, datamodule=data, ckpt_path=last_of(trainer))
    assert fresh.thresholds.own.tolist() == before.own.tolist()
    other = FederatedModule(FedEM(num_components=2), LocalSolver(lr=0.1), conformal=0.8)
    quiet_trainer(1, tmp_path).test(other, datamodule=data_of(), ckpt_path=last_of(trainer))
    assert other.thresholds.coverage == 0.8
    assert (other.thresholds.own < before.own)[~before.own.isinf()].all()


def folder(root, **sizes):
    root.mkdir()
    for seed, (name, size) in enumerate(sizes.items()):
        x, y = samples(size + 40, 100 + seed)
        arrays = {"x_train": x[40:], "y_train": y[40:]} if size else {}
        np.savez(root / f"{name}.npz", x_test=x[:40], y_test=y[:40], **arrays)
    return str(root)


def later(run, clients, out, conformal=0.9, **options):
    _, _, trainer = run
    module = FederatedModule(FedEM(num_components=2), LocalSolver(lr=0.1), conformal=conformal)
    table = personalize(quiet_trainer(1, out), module, last_of(trainer), clients, str(out / "served"), **options)
    return table.set_index("client"), pd.read_csv(out / "served/predictions.csv"), module


def test_new_clients_have_thresholds_of_their_own_or_the_shared_one(run, tmp_path, capsys):
    table, predictions, module = later(run, folder(tmp_path / "new", anna=60, ben=20, carl=0), tmp_path)
    assert table["own_threshold"].tolist() == [True, False, False]
    assert table["num_train"].tolist() == [42, 20, 0]  # 0.3 of them are set apart where these are 9 or more
    assert table["threshold"].tolist()[1:] == [run[0].thresholds.shared] * 2
    assert table.loc["anna", "threshold"] not in (module.thresholds.shared, math.inf)
    predictions["covered"] = [
        str(label) in str(held) for label, held in zip(predictions["label"], predictions["set"], strict=True)
    ]
    covered = predictions.groupby("client")["covered"].mean()
    assert np.allclose(table["coverage"], covered[table.index])
    said = "2 of 3 clients have no threshold by 9 calibration samples of their own; the shared threshold"
    assert f"{said} {module.thresholds.shared:.4g}" in capsys.readouterr().out


def test_another_coverage_than_the_trainings_has_no_shared_threshold(run, tmp_path, capsys):
    table, *_ = later(run, folder(tmp_path / "new", anna=60, ben=9), tmp_path, conformal=0.8)
    assert np.isfinite(table.loc["anna", "threshold"])
    assert np.isinf(table.loc["ben", "threshold"])
    assert table.loc["ben", "set_size"] == 3
    assert (
        "1 of 2 clients have no threshold by 4 calibration samples of their own, and there is no shared one"
        in capsys.readouterr().out
    )


def test_seen_clients_keep_their_thresholds(run, tmp_path):
    """Their samples trained the model, so that none of them decides anew."""
    table, *_ = later(run, folder(tmp_path / "known", a=50, c=50), tmp_path, use_states=True)
    module, data, _ = run
    kept = dict(zip(data.seen.names, module.thresholds.own.tolist(), strict=True))
    assert table["threshold"].tolist() == [kept["a"], module.thresholds.shared]
    assert table["num_train"].tolist() == [50, 50]


@pytest.mark.parametrize("client", ["a", "c"])
def test_programs_hold_their_threshold(run, tmp_path, client, capsys):
    module, data, trainer = run
    fresh = FederatedModule(FedEM(num_components=2), LocalSolver(lr=0.1), conformal=0.9)
    alone = export(
        quiet_trainer(1, tmp_path), fresh, data_of(), last_of(trainer), client=client, output=str(tmp_path / "c.pt2")
    )
    assert f"{client} is served without data" in capsys.readouterr().err
    notes = {"about.json": ""}
    program = torch.export.load(tmp_path / "c.pt2", extra_files=notes).module()
    sets = json.loads(notes["about.json"])["sets"]
    assert sets == alone.about["sets"] == personal_model(trainer, module, data, client=client).about["sets"]
    assert sets["own_threshold"] == {client: client == "a"}
    table = predicted(run)
    mine = table[table["client"] == client]
    x = data.seen.test.client(int(mine["client_id"].iloc[0])).x
    held = (1 - program(x).double() <= sets["thresholds"][client]).numpy()
    assert ["|".join(map(str, np.flatnonzero(row))) for row in held] == mine["set"].tolist()


def test_a_program_of_all_clients_names_the_threshold_of_each(run, tmp_path):
    module, data, trainer = run
    model = export(trainer, module, data, client="all", output=str(tmp_path / "all"))
    clients = client_table(trainer).set_index("client")
    assert model.about["sets"]["thresholds"] == clients["threshold"].to_dict()
    assert model.about["sets"]["own_threshold"] == clients["own_threshold"].to_dict()


def test_fine_tuned_serving_has_thresholds_of_the_tuned_models(run, tmp_path):
    """The checkpoint's are of other predictions."""
    from lit_fed.core.fine_tuning import FineTuning

    tuned = FederatedModule(FedEM(num_components=2), LocalSolver(lr=0.1), conformal=0.9, serving=FineTuning(5, 0.1))
    data, trainer = data_of(), quiet_trainer(1, tmp_path)
    trainer.test(tuned, datamodule=data, ckpt_path=last_of(run[2]))
    held = trainer.predict(tuned, datamodule=data, split="calibration")
    own = held.groupby("client_id").apply(lambda part: by_numpy(scores_of(part)), include_groups=False)
    assert tuned.thresholds.own.tolist() == own.tolist()
    assert tuned.thresholds.own.tolist() != run[0].thresholds.own.tolist()


NOISE = {"noise_multiplier": 1.0, "clip_norm": 1.0, "delta": 1e-3, "noise_seed": 0}


@pytest.mark.parametrize(
    ("privacy", "options"),
    [(ClientPrivacy(**NOISE), {"client_sampling": "poisson"}), (ExamplePrivacy(sample_rate=0.1, **NOISE), {})],
    ids=["of clients", "of samples"],
)
def test_a_private_training_has_no_shared_threshold(tmp_path, privacy, options, capsys):
    """It would be a release that ε does not cover."""
    module, data, trainer = fitted(tmp_path, FedAvg(), privacy=privacy, data=data_of(**options))
    assert math.isinf(module.thresholds.shared)
    trainer.test(module, datamodule=data)
    table = client_table(trainer).set_index("client")
    assert (table.loc["c", "set_size"], table.loc["c", "coverage"]) == (3, 1)
    file = Path(trainer.log_dir) / "coverage.csv"
    assert pd.read_csv(file).query("client == 'c'")["num_calibration"].tolist() == [0, 0, 0]  # behind no threshold
    assert file.stat().st_mode & 0o077 == 0
    assert np.isfinite(table.loc["a", "threshold"])
    assert "1 none" in capsys.readouterr().out


def test_a_few_evaluated_clients(tmp_path):
    """The others have thresholds when they are served."""
    module, data, trainer = fitted(tmp_path, data=data_of(eval_clients=2))
    assert module.thresholds.ids.tolist() == data.seen.measured.tolist()
    other = next(name for place, name in enumerate(data.seen.names) if place not in data.seen.measured and name != "c")
    found = personal_model(trainer, module, data, client=other).about["sets"]["thresholds"][other]
    assert 0 < found < 1
    assert found not in module.thresholds.own


# ---------------------------------------------------------------------- what is refused
@pytest.mark.parametrize("value", [0.0, 1.0, 90.0, -0.1])
def test_a_coverage_is_a_share(value):
    with pytest.raises(ConfigError, match=rf"--model.conformal is {value}; give a number above 0 and below 1"):
        FederatedModule(FedAvg(), conformal=value)


def test_thresholds_need_samples(tmp_path):
    with pytest.raises(ConfigError, match=r"no samples are set apart .*; train with --data.calibration_fraction 0.2"):
        fitted(tmp_path, data=data_of(calibration_fraction=0.0))


def test_samples_need_a_reader(run, tmp_path):
    with pytest.raises(ConfigError, match=r"--data.calibration_fraction is 0.3, .*; give --model.conformal 0.9"):
        fitted(tmp_path, conformal=None)
    plain = FederatedModule(FedEM(num_components=2), LocalSolver(lr=0.1), conformal=None)
    table = quiet_trainer(1, tmp_path).predict(plain, datamodule=data_of(), ckpt_path=last_of(run[2]))
    wanted = predicted(run)
    assert "set" not in table
    pd.testing.assert_frame_equal(table, wanted[table.columns])


@pytest.mark.parametrize("value", [1.0, -0.2])
def test_a_fraction_is_a_share(value):
    with pytest.raises(ConfigError, match=rf"calibration_fraction = {value}; choose a number from 0"):
        data_of(calibration_fraction=value).setup()


def test_labels_of_another_kind_are_refused_before_training(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(2, 20, 3)).astype(np.float32)
    for fraction in (0.3, 0.0):  # the labels are named ahead of samples that would not help
        data = FederatedDataModule.from_clients({"a": (x, y), "b": (x, y)}, calibration_fraction=fraction)
        with pytest.raises(ConfigError, match=r"--model.conformal is 0.9, and labels are vectorregression"):
            fitted(tmp_path, FedAvg(), data=data)


def test_a_checkpoint_without_calibration_serves_no_sets(tmp_path):
    _, _, trainer = fitted(tmp_path, conformal=None, data=data_of(calibration_fraction=0.0))
    with pytest.raises(ConfigError, match="set no samples apart; leave it out"):
        later((None, None, trainer), folder(tmp_path / "new", anna=60), tmp_path)


def test_a_column_of_the_table_is_not_replaced(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=200), "y": rng.integers(0, 2, 200), "set": rng.integers(0, 4, 200)})
    frame["site"] = rng.integers(0, 3, 200)
    data = FederatedDataModule.from_frame(frame, client="site", label="y", features=["x"], calibration_fraction=0.3)
    module, data, trainer = fitted(tmp_path, FedAvg(), data=data)
    assert "set" in trainer.predict(module, datamodule=data, keep="x")
    with pytest.raises(ConfigError, match=r"--keep set: --model.conformal writes a column of this name"):
        trainer.predict(module, datamodule=data, keep="set")


def test_a_set_holds_every_class_without_a_threshold():
    assert conformal.sets(torch.tensor([[-1e4, 0.0]]), torch.tensor([math.inf])).all()


def test_new_clients_of_a_training_by_persons_take_the_shared_threshold(tmp_path, monkeypatch):
    """Their tables do not name persons, and rows of one person on both sides would make sets too small."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)

    def table(names):
        frames = [
            pd.DataFrame({"site": name, "person": [f"{name}{row // 2}" for row in range(60)], "x": rng.normal(size=60)})
            for name in names
        ]
        whole = pd.concat(frames)
        return whole.assign(y=whole["x"] + rng.normal(size=len(whole)))

    table("abc").to_csv("old.csv", index=False)
    table("d").drop(columns="person").to_csv("new.csv", index=False)
    main(["fit", "--data.dataset", "Table", "--data.dataset.path", "old.csv", "--data.dataset.client_column", "site",
          "--data.dataset.label_column", "y", "--data.dataset.group_column", "person", "--data.calibration_fraction",
          "0.3", "--model.conformal", "0.8", "--model.algorithm", "FedAvg", "--trainer.max_epochs", "2", "--name", "p",
          "--trainer.accelerator", "cpu"])  # fmt: skip
    seen = pd.read_csv("runs/p/version_0/clients.csv")
    assert seen["own_threshold"].all()
    main(["personalize", "--ckpt_path", "runs/p/version_0/checkpoints/last.ckpt", "--clients", "new.csv", "--output",
          "served", "--trainer.accelerator", "cpu"])  # fmt: skip
    (row,) = pd.read_csv("served/clients.csv").to_dict("records")
    assert not row["own_threshold"]
    assert row["threshold"] not in set(seen["threshold"])
    assert np.isfinite(row["threshold"])


def test_a_class_whose_name_would_make_sets_ambiguous_is_refused():
    with pytest.raises(ConfigError, match=r"whose sets are written as a\|b; rename class 'a\|b'"):
        check_target(Multiclass(num_classes=2), 0.9, ("a", "a|b"))
