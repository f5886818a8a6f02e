"""The simulated time of whole runs."""

import json

import numpy as np
import pandas as pd
import pytest
from fed_runs import run_cli
from fit_all import fit
from running import folder

from lit_fed.callbacks import SimulatedTime
from lit_fed.callbacks.simulated_time import RoundTime, harmonic_number
from lit_fed.core.types import PhaseTraffic
from lit_fed.errors import ConfigError

SMALL = [
    "--data.num_clients", "6", "--trainer.accelerator", "cpu", "--trainer.callbacks+=SimulatedTime",
    "--trainer.callbacks.uplink_ratio=4", "--trainer.callbacks.compute_mean=1",
]  # fmt: skip


def times_of(path):
    return pd.read_csv(path / "metrics.csv")["time/simulated"].dropna().tolist()


def total_of(path):
    return json.loads((path / "summary.json").read_text())["time/simulated"]


@pytest.mark.parametrize(
    ("algorithm", "models", "weights"), [("FedAvg", 1, 0), ("FedEM", 3, 0), ("ResponsibilityFedEM", 3, 3)]
)
def test_the_command_line_knows_it(tmp_path, algorithm, models, weights):
    run_cli(
        ["fit", "--model.algorithm", algorithm, "--trainer.max_epochs", "3", *SMALL,
         "--trainer.default_root_dir", str(tmp_path)]
    )  # fmt: skip
    path = folder(tmp_path, algorithm)
    one_round = RoundTime(4.0, 1.0, 1.0).expected_slowest(6) + models + 4 * 6 * (models + weights / 650)
    assert times_of(path) == pytest.approx([one_round, 2 * one_round, 3 * one_round])
    assert total_of(path) == pytest.approx(3 * one_round)
    assert (path / "plots/accuracy_vs_time.png").is_file()


def test_personal_models_are_sent_one_by_one(tmp_path):
    run_cli(
        ["fit", "--model.algorithm", "UCFL", "--model.algorithm.num_streams", "personal",
         "--model.algorithm.warmup_rounds", "1", "--trainer.max_epochs", "4", *SMALL,
         "--trainer.default_root_dir", str(tmp_path)]
    )  # fmt: skip
    compute, scalar = RoundTime(4.0, 1.0, 1.0).expected_slowest(6), 1 / (64 * 10 + 10)
    own = 1 + 2 * scalar  # a model, and the client's number in eight bytes
    plain, apart = compute + own + 4 * 6, compute + 6 * own + 4 * 6
    rounds = [plain, plain + own + 4 * 6 * (1 + scalar), apart, apart]
    assert times_of(folder(tmp_path, "UCFL")) == pytest.approx(pd.Series(rounds).cumsum().tolist())


@pytest.mark.parametrize("name", ["Local", "DFedEM", "ClusteredFL", "Oracle"])
def test_every_kind_of_algorithm_has_a_time(tmp_path, name):
    module, _ = fit(name, tmp_path, rounds=2, callbacks=[SimulatedTime(compute_min=2.0)])
    path = folder(tmp_path, name)
    bits = 8 * pd.read_csv(path / "metrics.csv")[["comm/bytes_up", "comm/bytes_down"]].dropna() / one_model(module)
    count = module.record.phases[0].num_clients
    payloads = [one.num_payloads for one in module.record.phases]
    assert payloads == [{"Local": 1, "DFedEM": 0, "ClusteredFL": 1}.get(name, payloads[0])]
    expected = 2 + bits["comm/bytes_up"] + payloads[0] * bits["comm/bytes_down"] / count
    if name != "Oracle":  # whose number of groups may change with the cohort
        assert times_of(path) == pytest.approx(expected.cumsum().tolist())
    assert total_of(path) == times_of(path)[-1] > 4 - 1e-9


def one_model(module):
    parts = module.federation.terms.task.init(1, 0)
    return 8 * sum(leaf.numel() * leaf.element_size() for part in parts for leaf in part.values())


def test_it_survives_a_resume(tmp_path):
    def callbacks():
        return [SimulatedTime(compute_mean=1.0)]

    fit("FedAvg", tmp_path / "whole", rounds=4, callbacks=callbacks())
    fit("FedAvg", tmp_path / "cut", rounds=2, callbacks=callbacks())
    last = folder(tmp_path / "cut", "FedAvg") / "checkpoints/last.ckpt"
    fit("FedAvg", tmp_path / "cut", rounds=4, callbacks=callbacks(), ckpt_path=str(last), version=0, keep_rounds=2)
    whole, cut = (folder(tmp_path / one, "FedAvg") for one in ("whole", "cut"))
    assert times_of(whole) == times_of(cut)
    assert len(times_of(whole)) == 4
    assert total_of(whole) == total_of(cut)


def test_several_systems_in_one_run_keep_their_times_apart(tmp_path):
    def callbacks():
        return [SimulatedTime(), SimulatedTime(uplink_ratio=4.0, name="slow"), SimulatedTime(2.0, name="fast")]

    fit("FedAvg", tmp_path, rounds=2, callbacks=callbacks())
    last = folder(tmp_path, "FedAvg") / "checkpoints/last.ckpt"
    module, _ = fit("FedAvg", tmp_path, rounds=3, callbacks=callbacks(), ckpt_path=str(last), version=0, keep_rounds=2)
    path = folder(tmp_path, "FedAvg")
    table, summary = pd.read_csv(path / "metrics.csv"), json.loads((path / "summary.json").read_text())
    for key, ratio in (("time/simulated", 1), ("time/simulated/slow", 4), ("time/simulated/fast", 2)):
        one_round = 1 + 1 + ratio * module.record.phases[0].num_clients
        assert table[key].dropna().tolist() == pytest.approx([one_round, 2 * one_round, 3 * one_round])
        assert summary[key] == pytest.approx(3 * one_round)


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match=r"SimulatedTime\.uplink_ratio is -1"):
        SimulatedTime(uplink_ratio=-1.0)


MODEL = 320.0
SCENARIOS = {"a": RoundTime(4.0, 1.0, 1.0), "b": RoundTime(2.0, 1.0, 0.0), "c": RoundTime(1.0, 1.0, 0.0)}
"""The three systems of the paper's Figure 3."""


def traffic(m=100, payloads=1, models_up=1.0, models_down=1.0, trains=True):
    return PhaseTraffic(m, trains, payloads, m * models_up * MODEL, m * models_down * MODEL)


@pytest.mark.parametrize(("m", "expected"), [(1, 1.0), (2, 1.5), (20, 3.59774), (100, 5.18738)])
def test_harmonic_numbers(m, expected):
    assert harmonic_number(m) == pytest.approx(expected, abs=5e-6)


def test_the_slowest_of_twenty_clients():
    speeds = RoundTime(compute_min=1.0, compute_mean=0.5)
    assert speeds.expected_slowest(20) == pytest.approx(2.7989, abs=5e-5)
    drawn = 1.0 + 0.5 * np.random.default_rng(0).exponential(size=(20000, 20)).max(1)
    assert drawn.mean() == pytest.approx(2.7989, abs=0.02)


def test_without_chance_all_clients_take_the_least_time():
    assert RoundTime(compute_min=3.0).expected_slowest(100) == 3


@pytest.mark.parametrize(
    ("scenario", "payloads", "expected"),
    [("a", 1, 1 + 5.18738 + 1 + 400), ("b", 1, 1 + 1 + 200), ("b", 4, 1 + 4 + 200), ("c", 100, 1 + 100 + 100)],
)
def test_rounds_of_one_model_each_way(scenario, payloads, expected):
    assert SCENARIOS[scenario].phase(traffic(payloads=payloads), MODEL) == pytest.approx(expected, abs=1e-5)


def test_a_phase_without_clients_takes_no_time():
    assert SCENARIOS["a"].phase(PhaseTraffic(0, True, 0, 0.0, 0.0), MODEL) == 0


def test_the_extra_payloads_of_personal_models_matter_less_where_uplinks_are_slow():
    more = [one.phase(traffic(payloads=100), MODEL) / one.phase(traffic(), MODEL) for one in SCENARIOS.values()]
    assert more == sorted(more)
    assert more[0] < 1.25
    assert more[2] > 1.9


def test_what_is_longer_than_a_model_takes_longer():
    one = RoundTime(uplink_ratio=2.0).transfers(traffic(m=10, payloads=1, models_up=3.0, models_down=3.0), MODEL)
    assert one == 3 + 2 * 10 * 3


def test_without_a_server_only_sending_counts():
    assert RoundTime(uplink_ratio=2.0).transfers(traffic(m=10, payloads=0, models_down=4.0, models_up=4.0), MODEL) == 80


def test_a_phase_without_local_work_takes_no_computing():
    speeds = RoundTime(compute_min=7.0, compute_mean=1.0)
    assert speeds.phase(traffic(trains=False), MODEL) == speeds.transfers(traffic(), MODEL)
    assert speeds.phase(traffic(models_up=0.0, models_down=0.0), MODEL) == speeds.expected_slowest(100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uplink_ratio": -1.0}, "uplink_ratio is -1.0; give a number >= 0"),
        ({"compute_min": -1.0}, "compute_min is -1.0"),
        ({"compute_mean": -0.5}, "compute_mean is -0.5"),
    ],
)
def test_wrong_speeds_are_refused(settings, message):
    with pytest.raises(ConfigError, match=f"SimulatedTime.{message}"):
        RoundTime(**settings)
