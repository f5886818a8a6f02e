import math

import pytest
import torch

from lit_fed.metrics import client_statistics, summarise
from lit_fed.metrics.gathered import ClientTable
from lit_fed.metrics.scores import STATISTICS, ClientScores, outlier
from lit_fed.pictures.style import percent


def statistics(values, num_samples=None):
    num_samples = [1] * len(values) if num_samples is None else num_samples
    return client_statistics(torch.tensor(values), torch.tensor(num_samples), "accuracy")


BY_HAND = {"": (0.5 + 3 + 1 + 1.5) / 10, "_decile": 0.25, "_worst": 0.25, "_std": (5 / 64) ** 0.5, "_unweighted": 0.625}
"""Every statistic of accuracies 0.5, 1, 0.25 and 0.75 of clients with 1, 3, 4 and 2 samples."""


def test_statistics_by_hand():
    found = statistics([0.5, 1.0, 0.25, 0.75], [1, 3, 4, 2])
    assert found == pytest.approx({f"accuracy{suffix}": value for suffix, value in BY_HAND.items()}, abs=1e-12)


@pytest.mark.parametrize("suffix", STATISTICS)
def test_a_statistic_of_accuracies_is_in_percent_if_it_is_in_their_unit(suffix):
    assert (percent(f"accuracy{suffix}")[0] == 100) == STATISTICS[suffix].in_its_unit


def test_without_a_direction_no_client_is_the_worst():
    values, num_samples = torch.tensor([0.5, 1.0]), torch.tensor([1, 3])
    found = client_statistics(values, num_samples, "speed", larger_is_better=None)
    assert {"speed", "speed_std"} < found.keys()
    assert not {"speed_decile", "speed_worst"} & found.keys()


@pytest.mark.parametrize(
    ("num_clients", "place"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (100, 10), (539, 53)]
)
def test_decile_is_the_tenth_part_from_below(num_clients, place):
    values = torch.randperm(num_clients).double()
    assert statistics(values.tolist())["accuracy_decile"] == place - 1


def test_clients_without_samples_take_no_part():
    with_empty = statistics([0.5, 0.0, 1.0, 0.0], [2, 0, 2, 0])
    assert with_empty == statistics([0.5, 1.0], [2, 2])
    assert with_empty["accuracy_worst"] == 0.5
    assert statistics([0.0, 0.0], [0, 0]) == {}


def test_one_client_has_no_spread():
    found = statistics([0.5], [7])
    assert found["accuracy_std"] == 0
    assert found["accuracy"] == found["accuracy_decile"] == found["accuracy_worst"] == 0.5


def scores(rows, **columns):
    return ClientScores.of_rows(torch.tensor(rows, dtype=torch.float64), **columns)


def test_summary_of_a_classification():
    found = summarise(scores([[4, 2, 3], [0, 0, 0], [1, 3, 0]]))
    assert found["loss"] == 1.0
    assert found["accuracy"] == 0.6
    assert found["accuracy_worst"] == 0.0
    assert found["accuracy_unweighted"] == 0.375


def test_summary_of_a_regression_ranks_by_the_largest_error():
    found = summarise(scores([[2, squared, 2 * squared] for squared in range(1, 21)]), "mse")  # errors 1 … 20
    assert set(found) == {"loss", *(f"mse{suffix}" for suffix in BY_HAND)}
    assert found["loss"] == pytest.approx(5.25)
    assert found["mse"] == found["mse_unweighted"] == pytest.approx(10.5)
    assert found["mse_worst"] == 20
    assert found["mse_decile"] == 19
    assert found["mse_std"] == pytest.approx((399 / 12) ** 0.5)


def test_summary_of_nothing():
    assert summarise(scores([[0, 0, 0]])) == summarise(scores([[0, 0, 0]]), "mse") == {}


def test_columns_have_names():
    rows = [[4, 2, 3, 0.5, 0.25, 7], [0, 0, 0, 0.5, 0.75, 8]]
    one = scores(rows, num_components=2, names=["auroc"])
    assert one.rows().tolist() == rows
    assert one.columns("accuracy")["num_test"] == [4, 0]
    means = one.means("accuracy")
    assert {name: column[0] for name, column in means.items()} == {"accuracy": 0.75, "loss": 0.5, "auroc": 7}
    assert all(column[1].isnan() for column in means.values())  # without samples
    assert one.weights() == {"pi_0": [0.5, 0.5], "pi_1": [0.25, 0.75]}


def test_table_adds_up_and_resets():
    table, first, second = ClientTable(3, num_components=2), [2, 1, 1, 0.5, 0.5], [4, 3, 2, 1, 0]
    table.update(torch.tensor([2, 0]), scores([first, second], num_components=2))
    table.update(torch.tensor([1]), scores([second], num_components=2))
    table.scores().hits.zero_()  # no view of the state
    assert table.scores().rows().dtype == torch.float64
    assert table.scores().rows().tolist() == [second, second, first]
    table.reset()
    assert (table.rows == 0).all()


@pytest.mark.parametrize(
    ("values", "floor", "expected"),
    [
        ([1, 2, 3e6], 0, (2, 3e6, 2)),
        ([1, 2, 2e6], 0, None),  # not beyond
        ([1, 3e6], 0, (1, 3e6, 1)),  # the median of two is the smaller
        ([3e6], 0, None),
        ([0, 0, 5], 0, None),  # nothing to compare with
        ([0, 0, 5], 1e-3, None),
        ([0, 1e-9, 5e4], 1e-3, (2, 5e4, 1e-3)),
        ([1, math.inf, 1], 0, (1, math.inf, 1)),
        ([1, math.nan, 1], 0, None),
    ],
)
def test_outlier(values, floor, expected):
    assert outlier(torch.tensor(values, dtype=torch.float64), floor) == expected
