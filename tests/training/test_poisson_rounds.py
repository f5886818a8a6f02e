"""Whole runs with cohorts drawn client by client, in some of whose rounds nobody takes part."""

import json
import math
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from federated_round import same_bits
from fit_all import solver_of
from lightning.pytorch import seed_everything
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from quiet import assert_same_state, quiet_trainer
from running import folder, history, in_two_ranks, numbers

from lit_fed import FederatedModule
from lit_fed.algorithms import AFL, FedAvg, FedEM
from lit_fed.callbacks import SimulatedTime, TrainingSplitEvaluation
from lit_fed.core import tree
from lit_fed.core.blocks import draw_cohort
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

SEED, FRACTION = 6, 0.15
COHORTS = [[1, 3], [], [], [0, 2], [], [4]]
"""Of six clients; of two ranks one has no client in the last round."""


@dataclass
class Run:
    """What a run leaves."""

    module: FederatedModule
    stopping: EarlyStopping
    folder: str

    @property
    def state(self):
        return self.module.state_dict()

    @property
    def kept(self):
        return self.module.store.table


def fit(out, rounds=6, *, seed=SEED, algorithm=None, data=None, model=None, **trainer_arguments):
    """Fit and test on digits."""
    seed_everything(seed, verbose=False)
    data = FederatedDataModule(
        Digits(), num_clients=8, unseen_fraction=0.25, batch_size=32, clients_per_block=1,
        **{"client_sampling": "poisson", "client_fraction": FRACTION} | (data or {}),
    )  # fmt: skip
    algorithm, solver = algorithm or FedEM(num_components=2), solver_of("FedEM", lr=0.1)
    module = FederatedModule(algorithm, solver, **{"client_trainer": "sequential"} | (model or {}))
    stopping = EarlyStopping("train/seen/loss", patience=9, strict=False)
    callbacks = [SimulatedTime(compute_mean=1.0), TrainingSplitEvaluation(), stopping]
    ckpt_path, logger = trainer_arguments.pop("ckpt_path", None), trainer_arguments.pop("logger", {})
    callbacks += trainer_arguments.pop("callbacks", [])
    trainer = quiet_trainer(
        rounds, out, None, check_val_every_n_epoch=2, callbacks=callbacks, **logger, **trainer_arguments
    )
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    trainer.test(module, datamodule=data)
    return Run(module, stopping, folder(out, type(algorithm).__name__))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of six rounds; nobody takes part in three of them."""
    return fit(tmp_path_factory.mktemp("whole"))


def test_the_cohorts_are_these():
    options = {"fraction": FRACTION, "sampling": "poisson", "seed": SEED}
    assert [draw_cohort(6, np.ones(6), round_idx=one, **options).tolist() for one in range(6)] == COHORTS


def test_a_round_without_clients_sends_nothing_takes_no_time_and_has_no_loss(whole):
    rows = pd.read_csv(whole.folder / "metrics.csv").iloc[: len(COHORTS)]
    present = [bool(cohort) for cohort in COHORTS]
    assert rows["train/seen/loss"].notna().tolist() == present
    model = 2 * (64 * 10 + 10) * 4
    for key in ("comm/bytes_up", "comm/bytes_down"):
        assert rows[key].tolist() == [model * len(cohort) for cohort in COHORTS]
    assert (np.diff(rows["time/simulated"], prepend=0) > 0).tolist() == present
    assert rows["lr"].notna().all()
    assert rows["test/seen/loss"].notna().tolist() == [False, True] * 3
    summary = json.loads((whole.folder / "summary.json").read_text())
    assert summary["rounds"] == 6
    assert all(math.isfinite(value) for value in summary.values() if isinstance(value, float))
    assert summary["train/seen/loss"] == pytest.approx(rows["train/seen/loss"].iloc[-1])


def test_clients_know_their_probability(whole):
    assert whole.module.facts.sampling_probability == FRACTION
    assert whole.module.federation.terms.sampling_probability == FRACTION


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"client_sampling": "poisson", "client_fraction": 1.0}, 1.0),
        ({"client_sampling": "poisson", "client_fraction": 1.0, "clients_per_round": 3}, 0.5),
        ({"client_sampling": "uniform", "client_fraction": 0.4}, 2 / 6),
        ({"client_sampling": "uniform", "client_fraction": 1.0}, 1.0),
        ({"client_sampling": "size", "client_fraction": 1.0, "clients_per_round": 9}, 1.5),
    ],
)
def test_the_probability_of_each_way_to_draw(options, expected):
    data = FederatedDataModule(Digits(), num_clients=6, **options)
    data.setup()
    assert data.sampling_probability == pytest.approx(expected, rel=1e-15)


def test_a_run_that_goes_on_in_a_round_without_clients_is_the_whole_one(whole, tmp_path):
    first = fit(tmp_path, rounds=2)
    (first.folder / "summary.json").unlink()
    again = {"ckpt_path": str(first.folder / "checkpoints/last.ckpt"), "logger": {"version": 0, "keep_rounds": 2}}
    resumed = fit(tmp_path, **again)
    compare(whole, resumed)
    assert resumed.stopping.state_dict() == whole.stopping.state_dict()
    assert resumed.stopping.wait_count == 2


def compare(one, other):
    assert numbers(one.folder) == numbers(other.folder)
    assert history(one.folder) == history(other.folder)
    assert (one.folder / "clients.csv").read_text() == (other.folder / "clients.csv").read_text()
    assert same_bits(one.kept, other.kept)
    assert same_bits(tree.leaves(one.module.shared), tree.leaves(other.module.shared))


def test_states_in_files(whole, tmp_path):
    files = fit(tmp_path, model={"client_memory_gb": 0})
    compare(whole, files)
    assert len(list((files.folder / "clients").iterdir())) == 5
    assert files.state["store.versions"].tolist()[5] == -1


def in_a_rank(out):
    """The run, in a process that is one of two ranks."""
    run = fit(out, devices=2, strategy="fed_ddp")
    if run.module.trainer.is_global_zero:
        torch.save(run.state, out / "state.pt")


def test_two_ranks(whole, tmp_path):
    in_two_ranks(partial(in_a_rank, tmp_path))
    two, state = folder(tmp_path, "FedEM"), torch.load(tmp_path / "state.pt", weights_only=True)
    assert numbers(two) == numbers(whole.folder)
    assert history(two) == history(whole.folder)
    assert state.keys() == whole.state.keys()
    assert_same_state(whole.state, state)


@pytest.mark.usefixtures("rendered")
def test_rounds_without_any_client_at_all(tmp_path, capsys):
    run = fit(tmp_path, 2, algorithm=FedAvg(), data={"client_fraction": 1e-9})
    assert same_bits(run.module.shared, run.module.federation.server.initial_shared)
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["rounds"], summary["time/simulated"], summary["comm/total_bytes_up"]) == (2, 0, 0)
    assert "train/seen/loss" not in summary
    assert "train/seen/loss" not in pd.read_csv(run.folder / "metrics.csv")
    assert {path.name for path in (run.folder / "plots").iterdir()} == {
        "accuracy_vs_rounds.png", "accuracy_vs_time.png", "client_accuracy.png", "test_samples.png"
    }  # fmt: skip
    assert "worst client" in capsys.readouterr().out


# ---------------------------------------------------------------------- refused
@pytest.mark.parametrize("kind", [EarlyStopping, ModelCheckpoint])
def test_a_loss_that_is_watched_and_not_there_yet(tmp_path, kind):
    said = rf"{kind.__name__}\.monitor is train/seen/loss, and nobody takes part in the first round; give one of"
    with pytest.raises(ConfigError, match=said):
        fit(tmp_path, 2, seed=1, callbacks=[kind(monitor="train/seen/loss", mode="max")])


def test_metrics_of_the_algorithm_are_known_behind_the_first_round_with_clients(tmp_path):
    wrong = EarlyStopping("train/seen/nothing", strict=False)
    with pytest.raises(ConfigError, match=r"monitor is train/seen/nothing, which this run does not log"):
        fit(tmp_path, 5, seed=1, callbacks=[wrong])
    assert len(pd.read_csv(folder(tmp_path, "FedEM") / "metrics.csv")) == 4


def test_an_algorithm_that_needs_all_clients_is_refused_before_training(tmp_path):
    with pytest.raises(ConfigError, match=r"^--data\.client_sampling is poisson, .* probability 0\.15, and AFL needs"):
        fit(tmp_path, algorithm=AFL())
    assert not list(tmp_path.iterdir())
    fit(tmp_path, 1, algorithm=AFL(), data={"client_fraction": 1.0})


def test_more_clients_than_there_are(tmp_path):
    with pytest.raises(ConfigError, match="clients per round = 7, but there are only 6 clients; draw fewer"):
        fit(tmp_path, data={"client_fraction": 1.0, "clients_per_round": 7})
