"""Tables of predictions, against literal rows."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from lit_fed.callbacks.served_clients import ServedClients
from lit_fed.core.segmentation import Segmentation
from lit_fed.core.targets import Binary, Multiclass, MultiLabel, Regression, Sequences, VectorRegression
from lit_fed.core.tree import stack
from lit_fed.core.types import ModelState
from lit_fed.metrics.scores import ClientScores
from lit_fed.serving import BlockPredictions
from lit_fed.training.output import prediction_table, write_predictions

TRAINER = SimpleNamespace(
    is_global_zero=True,
    strategy=SimpleNamespace(barrier=lambda name: None),
    datamodule=SimpleNamespace(
        unseen=SimpleNamespace(names=["ann", "bob"], train=SimpleNamespace(positions=lambda client_ids: client_ids - 4))
    ),
)


def facts(target, class_names=None, label_shape=()):
    return SimpleNamespace(target=target, class_names=class_names, label_shape=label_shape, texts=None)


def block(client_ids, sizes, labels, log_prob, states=()):
    return BlockPredictions(
        torch.tensor(client_ids), states, ClientScores.of_rows(torch.zeros(len(client_ids), 3)), torch.tensor(sizes),
        torch.tensor(labels), torch.tensor(log_prob),
    )  # fmt: skip


def served(*blocks, states=None):
    callback = ServedClients(states)
    callback.on_predict_start(TRAINER, None)
    for position, one in enumerate(blocks):
        callback.on_predict_batch_end(TRAINER, None, one, None, position)
    callback.on_predict_end(TRAINER, None)
    return callback


def test_rows_stand_in_the_order_of_clients_and_samples():
    log_prob = np.log(np.array([[0.25, 0.75], [0.5, 0.5], [0.9, 0.1]], np.float32))
    callback = served(block([5], [2], [1, 0], log_prob[:2]), (), block([4], [1], [1], log_prob[2:]))
    table = prediction_table(callback, {4: "ann", 5: "bob"}, facts(Binary()))
    assert table.columns.tolist() == ["client", "client_id", "sample", "label", "prediction", "p_0", "p_1"]
    assert table["client"].tolist() == ["ann", "bob", "bob"]
    assert table["client_id"].tolist() == [4, 5, 5]
    assert table["sample"].tolist() == [0, 0, 1]
    assert table["label"].tolist() == [1, 1, 0]
    assert table["prediction"].tolist() == [0, 1, 0]  # of equal probabilities the first
    np.testing.assert_allclose(table[["p_0", "p_1"]], [[0.9, 0.1], [0.25, 0.75], [0.5, 0.5]], rtol=1e-6)


def test_sequences_have_a_row_for_each_position():
    shares = np.array([[[0.1, 0.2, 0.7], [0.6, 0.3, 0.1]]] * 2, np.float32)
    callback = served(block([5, 4], [1, 1], [[2, 1], [0, 0]], np.log(shares)))
    table = prediction_table(callback, {4: "ann", 5: "bob"}, facts(Sequences(3)))
    assert table.columns.tolist()[:6] == ["client", "client_id", "sample", "position", "label", "prediction"]
    assert table["client"].tolist() == ["ann", "ann", "bob", "bob"]
    assert table["sample"].tolist() == [0, 0, 0, 0]
    assert table["position"].tolist() == [0, 1, 0, 1]
    assert table["label"].tolist() == [0, 0, 2, 1]
    assert table["prediction"].tolist() == [2, 0, 2, 0]
    np.testing.assert_allclose(table["p_1"], [0.2, 0.3, 0.2, 0.3], rtol=1e-6)


def test_regression_has_predicted_values():
    callback = served(block([4], [2], [0.5, -1.0], [[0.25], [2.0]]))
    table = prediction_table(callback, {4: "ann", 5: "bob"}, facts(Regression()))
    assert table.columns.tolist() == ["client", "client_id", "sample", "label", "prediction"]
    assert table["label"].tolist() == [0.5, -1.0]
    assert table["prediction"].tolist() == [0.25, 2.0]


@pytest.mark.parametrize("keep", [True, False])
def test_states_are_written_as_nested_dicts(tmp_path, keep):
    models = [ModelState({"w.a": torch.full((1, 2), float(one))}, {}) for one in range(2)]
    states = stack([(one, {"drift": torch.tensor(3)}) for one in models])
    served(
        block([5, 4], [0, 0], [0][:0], torch.zeros(0).tolist(), states), states=tmp_path / "states" if keep else None
    )
    assert (tmp_path / "states").exists() == keep
    if keep:
        state = torch.load(tmp_path / "states/ann.pt", weights_only=True)
        assert state["1"] == {"drift": torch.tensor(3)}
        assert state["0"]["buffers"] == {}
        assert state["0"]["parameters"]["w.a"].tolist() == [[1.0, 1.0]]
        assert sorted(path.name for path in (tmp_path / "states").iterdir()) == ["ann.pt", "bob.pt"]


@pytest.mark.parametrize("target", [Multiclass(3), Regression()])
def test_clients_who_adapted_on_all_that_they_have_leave_a_header_alone(target):
    served = ServedClients()
    served.client_ids, served.sizes = torch.tensor([5]), torch.tensor([0])
    served.labels, served.log_prob = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    table = prediction_table(served, {5: "anna"}, facts(target))
    assert list(table) == ["client", "client_id", "sample", "label", "prediction"]
    assert not len(table)


# ---------------------------------------------------------------------- labels that are vectors
CLIENTS = {"client_ids": torch.tensor([4, 5]), "sizes": torch.tensor([1, 1]), "posteriors": None, "thresholds": None}


def test_each_label_has_its_columns():
    log_prob = torch.tensor([[[0.25, 0.75], [0.5, 0.5]], [[1.0, 0.0], [0.25, 0.75]]]).log()
    served = SimpleNamespace(labels=torch.tensor([[1, 0], [0, 0]]), log_prob=log_prob, **CLIENTS)
    table = prediction_table(served, {4: "ann", 5: "bob"}, facts(MultiLabel(2), ("rain", "wind")))
    assert table.to_dict("list") == {
        "client": ["ann", "bob"], "client_id": [4, 5], "sample": [0, 0], "label_rain": [1, 0], "label_wind": [0, 0],
        "prediction_rain": [1, 0], "prediction_wind": [0, 1], "p_rain": [0.75, 0.0], "p_wind": [0.5, 0.75],
    }  # fmt: skip


def test_each_entry_of_a_vector_has_its_columns():
    values = torch.tensor([[1.5, 2.5], [3.0, 4.0]])
    served = SimpleNamespace(labels=values + 1, log_prob=values, **CLIENTS)
    table = prediction_table(served, {4: "ann", 5: "bob"}, facts(VectorRegression(2)))
    assert table.drop(columns=["client", "client_id"]).to_dict("list") == {
        "sample": [0, 0], "label_0": [2.5, 4.0], "label_1": [3.5, 5.0], "prediction_0": [1.5, 3.0],
        "prediction_1": [2.5, 4.0],
    }  # fmt: skip


# ---------------------------------------------------------------------- masks
MASKS = Segmentation(3, ignore_index=255)
NAMED = {4: "ann", 5: "b/ob"}


def masks():
    """A mask of 2 x 1 pixels for each of two clients: one pixel is not labelled."""
    log_prob = torch.tensor([[0, 2], [1, 1]]).unsqueeze(-1) == torch.arange(3)
    labels = torch.tensor([[0, 1], [1, 255]])
    return SimpleNamespace(labels=labels, log_prob=log_prob.float().log(), **CLIENTS)


def test_masks_have_a_row_for_each_image():
    table = prediction_table(masks(), NAMED, facts(MASKS, label_shape=(2, 1)))
    assert table.columns.tolist() == ["client", "client_id", "sample", "label", "prediction", "accuracy"]
    assert [one.tolist() for one in table["prediction"]] == [[[0], [2]], [[1], [1]]]
    assert [one.tolist() for one in table["label"]] == [[[0], [1]], [[1], [255]]]
    assert table["accuracy"].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("files", "written"),
    [
        (None, ["p_masks/ann/0.png", "p_masks/client 5/0.png"]),
        (["ann/images/a.jpg", "bob/images/c.png"], ["p_masks/ann/a.png", "p_masks/client 5/c.png"]),
    ],
)
def test_masks_are_written_as_classes(tmp_path, files, written):
    source = None if files is None else pd.DataFrame({"file": files})
    table = prediction_table(masks(), NAMED, facts(MASKS, label_shape=(2, 1)), source)
    write_predictions(table, tmp_path / "p.csv")
    found = pd.read_csv(tmp_path / "p.csv")
    assert found["prediction"].tolist() == written
    assert "label" not in found
    assert ("file" in found) == (files is not None)
    pictures = [Image.open(tmp_path / one) for one in written]
    assert [(one.mode, np.asarray(one).tolist()) for one in pictures] == [("L", [[0], [2]]), ("L", [[1], [1]])]


def test_classes_beyond_a_byte_take_two(tmp_path):
    labels = torch.tensor([[299, 0]])
    log_prob = torch.nn.functional.one_hot(labels, 300).float().log()
    one = SimpleNamespace(
        client_ids=torch.tensor([4]), sizes=torch.tensor([1]), posteriors=None, thresholds=None, labels=labels,
        log_prob=log_prob,
    )  # fmt: skip
    write_predictions(
        prediction_table(one, NAMED, facts(Segmentation(300), label_shape=(1, 2))), tmp_path / "p.parquet"
    )
    assert pd.read_parquet(tmp_path / "p.parquet")["accuracy"].tolist() == [1.0]
    assert np.asarray(Image.open(tmp_path / "p_masks/ann/0.png")).tolist() == [[299, 0]]
