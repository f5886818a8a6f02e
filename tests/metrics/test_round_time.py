import numpy as np
import pytest

from lit_fed.core.types import PhaseTraffic
from lit_fed.errors import ConfigError
from lit_fed.metrics.round_time import RoundTime, harmonic_number

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
    rng = np.random.default_rng(0)
    drawn = [speeds.drawn_slowest(20, rng) for _ in range(20000)]
    assert np.mean(drawn) == pytest.approx(2.7989, abs=0.02)
    assert min(drawn) > 1


def test_without_chance_all_clients_take_the_least_time():
    speeds = RoundTime(compute_min=3.0)
    assert speeds.expected_slowest(100) == speeds.drawn_slowest(100, np.random.default_rng(0)) == 3


@pytest.mark.parametrize(
    ("scenario", "payloads", "expected"),
    [("a", 1, 1 + 5.18738 + 1 + 400), ("b", 1, 1 + 1 + 200), ("b", 4, 1 + 4 + 200), ("c", 100, 1 + 100 + 100)],
)
def test_rounds_of_one_model_each_way(scenario, payloads, expected):
    assert SCENARIOS[scenario].phase(traffic(payloads=payloads), MODEL) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("rng", [None, np.random.default_rng(0)], ids=["expected", "drawn"])
def test_a_phase_without_clients_takes_no_time(rng):
    assert SCENARIOS["a"].phase(PhaseTraffic(0, True, 0, 0.0, 0.0), MODEL, rng) == 0


def test_the_extra_payloads_of_personal_models_matter_less_where_uplinks_are_slow():
    more = [one.phase(traffic(payloads=100), MODEL) / one.phase(traffic(), MODEL) for one in SCENARIOS.values()]
    assert more == sorted(more)
    assert more[0] < 1.25
    assert more[2] > 1.9


def test_clients_may_send_all_at_once():
    speeds = RoundTime(uplink_ratio=4.0, uplink="parallel")
    assert speeds.transfers(traffic(models_up=2.0), MODEL) == 1 + 4 * 2


def test_what_is_longer_than_a_model_takes_longer():
    one = RoundTime(uplink_ratio=2.0).transfers(traffic(m=10, payloads=1, models_up=3.0, models_down=3.0), MODEL)
    assert one == 3 + 2 * 10 * 3


def test_without_a_server_only_sending_counts():
    assert RoundTime(uplink_ratio=2.0).transfers(traffic(m=10, payloads=0, models_down=4.0, models_up=4.0), MODEL) == 80


def test_a_phase_without_local_work_takes_no_computing():
    speeds = RoundTime(compute_min=7.0, compute_mean=1.0)
    rng = np.random.default_rng(0)
    assert speeds.phase(traffic(trains=False), MODEL, rng) == speeds.transfers(traffic(), MODEL)
    assert speeds.phase(traffic(models_up=0.0, models_down=0.0), MODEL) == speeds.expected_slowest(100)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"uplink_ratio": -1.0}, "uplink_ratio is -1.0; give a number >= 0"),
        ({"compute_min": -1.0}, "compute_min is -1.0"),
        ({"compute_mean": -0.5}, "compute_mean is -0.5"),
        ({"uplink": "both"}, "uplink is both; give serial or parallel"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=f"SimulatedTime.{message}"):
        RoundTime(**settings)
