import math

import pytest
import torch

from lit_fed.metrics import client_statistics, summarise
from lit_fed.metrics.client_table import outlier
from lit_fed.metrics.gathered import ClientTable
from lit_fed.metrics.scores import ClientScores


def statistics(values, num_samples=None):
    num_samples = [1] * len(values) if num_samples is None else num_samples
    return client_statistics(torch.tensor(values), torch.tensor(num_samples), "accuracy")


def test_statistics_by_hand():
    found = statistics([0.5, 1.0, 0.25, 0.75], [1, 3, 4, 2])
    assert found == pytest.approx(
        {
            "accuracy": (0.5 + 3 + 1 + 1.5) / 10,
            "accuracy_decile": 0.25,
            "accuracy_worst": 0.25,
            "accuracy_std": (5 / 64) ** 0.5,
            "accuracy_unweighted": 0.625,
        },
        abs=1e-12,
    )


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
    assert statistics([0.5], [7]) == {
        "accuracy": 0.5,
        "accuracy_decile": 0.5,
        "accuracy_worst": 0.5,
        "accuracy_std": 0.0,
        "accuracy_unweighted": 0.5,
    }


def test_summary_of_a_classification():
    rows = torch.tensor([[4.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 3.0, 0.0]], dtype=torch.float64)
    found = summarise(ClientScores.of_rows(rows))
    assert found["loss"] == 1.0
    assert found["accuracy"] == 0.6
    assert found["accuracy_worst"] == 0.0
    assert found["accuracy_unweighted"] == 0.375


def test_summary_of_a_regression_ranks_by_the_largest_error():
    squared = torch.arange(1.0, 21.0, dtype=torch.float64)  # mean squared errors 1 … 20
    rows = torch.stack([torch.full_like(squared, 2), squared, 2 * squared], dim=1)
    found = summarise(ClientScores.of_rows(rows), "mse")
    assert set(found) == {"loss", "mse", "mse_decile", "mse_worst", "mse_std", "mse_unweighted"}
    assert found["loss"] == pytest.approx(5.25)
    assert found["mse"] == found["mse_unweighted"] == pytest.approx(10.5)
    assert found["mse_worst"] == 20
    assert found["mse_decile"] == 19
    assert found["mse_std"] == pytest.approx((399 / 12) ** 0.5)


def test_summary_of_nothing():
    nothing = ClientScores.of_rows(torch.zeros(3, 3))
    assert summarise(nothing) == summarise(nothing, "mse") == {}


def test_columns_have_names():
    rows = torch.tensor([[4.0, 2.0, 3.0, 0.5, 0.25, 7.0], [0.0, 0.0, 0.0, 0.5, 0.75, 8.0]], dtype=torch.float64)
    scores = ClientScores.of_rows(rows, num_components=2, names=["auroc"])
    assert torch.equal(scores.rows(), rows)
    assert scores.columns("accuracy")["num_test"] == [4, 0]
    assert {name: column[0] for name, column in scores.means("accuracy").items()} == {
        "accuracy": 0.75, "loss": 0.5, "auroc": 7.0,
    }  # fmt: skip
    assert all(column[1].isnan() for column in scores.means("accuracy").values())  # without samples
    assert scores.weights() == {"pi_0": [0.5, 0.5], "pi_1": [0.25, 0.75]}


def test_table_adds_up_and_resets():
    table = ClientTable(3, num_components=2)
    rows = torch.tensor([[2.0, 1.0, 1.0, 0.5, 0.5], [4.0, 3.0, 2.0, 1.0, 0.0]])
    table.update(torch.tensor([2, 0]), ClientScores.of_rows(rows, 2))
    table.update(torch.tensor([1]), ClientScores.of_rows(rows[:1] * 10, 2))
    found = table.scores().rows()
    assert found.dtype == torch.float64
    assert torch.equal(found, torch.stack([rows[1], rows[0] * 10, rows[0]]).double())
    table.reset()
    assert (table.rows == 0).all()


def test_result_is_no_view_of_the_state():
    table = ClientTable(1)
    table.update(torch.tensor([0]), ClientScores.of_rows(torch.ones(1, 3)))
    table.scores().hits.zero_()
    assert table.scores().rows().tolist() == [[1, 1, 1]]


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
