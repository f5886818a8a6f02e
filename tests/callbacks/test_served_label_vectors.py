"""Tables of predictions of samples with several labels, and of vectors."""

from types import SimpleNamespace

import torch

from lit_fed.core.targets import MultiLabel, VectorRegression
from lit_fed.training.output import prediction_table

CLIENTS = {"client_ids": torch.tensor([4, 5]), "sizes": torch.tensor([1, 1])}


def test_each_label_has_its_columns():
    log_prob = torch.tensor([[[0.25, 0.75], [0.5, 0.5]], [[1.0, 0.0], [0.25, 0.75]]]).log()
    served = SimpleNamespace(labels=torch.tensor([[1, 0], [0, 0]]), log_prob=log_prob, **CLIENTS)
    table = prediction_table(served, ["ann", "bob"], 4, MultiLabel(2), ("rain", "wind"))
    assert table.to_dict("list") == {
        "client": ["ann", "bob"], "client_id": [4, 5], "sample": [0, 0], "label_rain": [1, 0], "label_wind": [0, 0],
        "prediction_rain": [1, 0], "prediction_wind": [0, 1], "p_rain": [0.75, 0.0], "p_wind": [0.5, 0.75],
    }  # fmt: skip


def test_each_entry_of_a_vector_has_its_columns():
    values = torch.tensor([[1.5, 2.5], [3.0, 4.0]])
    served = SimpleNamespace(labels=values + 1, log_prob=values, **CLIENTS)
    table = prediction_table(served, ["ann", "bob"], 4, VectorRegression(2)).drop(columns=["client", "client_id"])
    assert table.to_dict("list") == {
        "sample": [0, 0], "label_0": [2.5, 4.0], "label_1": [3.5, 5.0], "prediction_0": [1.5, 3.0],
        "prediction_1": [2.5, 4.0],
    }  # fmt: skip
