import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import TensorDataset

from lit_fed.core.targets import Binary, Multiclass, Regression, Sequences, VectorRegression
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

X, Y = np.arange(30.0).reshape(10, 3), np.arange(10) % 2


def data_of(*arguments, **settings):
    data = FederatedDataModule.from_clients(*arguments, **settings)
    data.setup()
    return data


def test_clients_keep_their_order_and_names():
    data = data_of({"zoe": (X, Y), 7: (X[:5].tolist(), Y[:5].tolist())}, {"ann": (torch.tensor(X), torch.tensor(Y))})
    assert (data.seen.names, data.unseen.names, data.target) == (["zoe", "7"], ["ann"], Binary())
    assert [one.sizes.tolist() for one in (data.seen.train, data.seen.test)] == [[8, 4], [2, 1]]
    assert sorted(data.unseen.train.x[:, 0].tolist() + data.unseen.test.x[:, 0].tolist()) == X[:, 0].tolist()
    assert data.seen.class_names is None


def test_data_sets_have_the_name_of_lightning_s_method():
    samples = TensorDataset(torch.randn(6, 2), torch.tensor([0, 1] * 3))
    data = FederatedDataModule.from_datasets({"ann": samples}, unseen={"bob": samples}, test_fraction=0.5)
    data.setup("fit")
    assert [one.names for one in data.populations] == [["ann"], ["bob"]]
    with pytest.raises(ConfigError, match="clients are a TensorDataset; give a dict"):
        FederatedDataModule.from_datasets(samples)


def test_types_of_labels_and_inputs():
    pixels = {"ann": (255 * np.eye(4, dtype=np.uint8).reshape(4, 1, 2, 2), ["dog", "cat", "dog", "emu"])}
    data = data_of(pixels, test_fraction=0)
    assert data.seen.class_names == ("cat", "dog", "emu")
    assert (data.seen.train.x.unique().tolist(), data.seen.train.y.sort().values.tolist()) == ([0, 1], [0, 1, 1, 2])
    assert data_of({"ann": (torch.tensor(X).bfloat16(), torch.tensor(Y) / 3)}).target == Regression()
    assert data_of({"ann": (Y[:, None], np.stack([Y, Y, Y], 1))}).target == Sequences(2)


def test_names_are_compared(capsys):
    with pytest.raises(ConfigError, match="clients 'ann' and 'ann ' differ only in spaces"):
        data_of({"ann": (X, Y)}, {"ann ": (X, Y)})
    with pytest.raises(ConfigError, match="classes ' no' and 'no' differ only in spaces"):
        data_of({"ann": (X, ["no", " no"] * 5)})
    with pytest.raises(ConfigError, match="client '7' is among clients and among unseen, or named by a text and a num"):
        data_of({7: (X, Y), "7": (X, Y)})
    frame = pd.DataFrame({"a": range(10), "A": range(10), "of": ["u", "v"] * 5, "y": ["no", "yes"] * 5})
    data = FederatedDataModule.from_frame(frame, client=None, label="y", num_clients=2)
    data.setup()
    assert "columns 'a' and 'A' differ only in case" in capsys.readouterr().err
    data = FederatedDataModule.from_frame(frame.replace("v", "u "), client=None, label="y", num_clients=2)
    with pytest.raises(ConfigError, match="categories of column 'of' 'u' and 'u ' differ only in spaces"):
        data.setup()


def test_equal_inputs_are_refused_or_said(capsys):
    same = np.ones((4, 3, 2, 2))
    with pytest.raises(ConfigError, match=r"all 8 training inputs are equal, 1, 1, 1, .* in their transparency alone"):
        data_of({"ann": (same, Y[:4]), "bob": (same, Y[:4])}, test_fraction=0)
    data_of({"ann": (same, Y[:4]), "bob": (np.arange(60.0).reshape(5, 3, 2, 2), Y[:5])}, test_fraction=0)
    assert "all inputs are equal in the train split of seen client 'ann'; pictures" in capsys.readouterr().err
    data_of({"ann": (X, Y), "bob": (X[:1], Y[:1])}, {"cy": (X * 0, Y)})
    assert (
        "equal in the train split of unseen client 'cy', test split of unseen client 'cy'\n" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("y", "choices"),
    [
        (np.stack([Y, 1 - Y], 1), r"Sequences \(a class at each of two positions\), MultiLabel, VectorRegression"),
        (
            np.stack([Y + 0.5, Y], 1),
            r"as in \[0.5, 0.0\]; .* by --model.target: VectorRegression \(two numbers\), or a Li",
        ),
    ],
)
def test_labels_of_two_columns_are_asked_about(y, choices):
    with pytest.raises(ConfigError, match=choices):
        data_of({"ann": (X, y)})
    tokens = data_of({"ann": (np.stack([Y, Y], 1), np.stack([Y, Y], 1))})
    assert tokens.target == Sequences(2)  # inputs have the same positions


@pytest.mark.parametrize(
    ("clients", "unseen", "message"),
    [
        ({}, None, "there are no clients; give a dict of (x, y), or of data sets, by name"),
        ([(X, Y)], None, "clients are a list; give a dict of (x, y), or of data sets, by name"),
        ({"ann": X}, None, "client 'ann' is a ndarray; give a pair of inputs and labels, (x, y)"),
        ({"ann": (X, Y[:3])}, None, "client 'ann': x_train has 10 samples and y_train has 3"),
        ({"ann": (X, Y), "bob": (X[:, :2], Y)}, None, "client 'bob': samples of x_train are float32 of shape [2]"),
        ({"ann": (X, Y), "bob": (X, Y + 0.5)}, None, "client 'bob': samples of y_train are float32 of shape []"),
        ({"ann": (X * np.nan, Y)}, None, "client 'ann': array x_train contains NaN or infinity (first in sample 0)"),
        ({"ann": ([[1], [2, 3]], [0, 1])}, None, "client 'ann': its samples cannot become an array"),
        ({"ann": (X, ["a"] * 10), "bob": (X, Y)}, None, "client 'bob': its labels are not texts, but those of others"),
        ({"ann": (X, ["a"] * 10)}, None, "the class names are ('a',); give at least two"),
        ({"ann": (X, Y)}, {"ann": (X, Y)}, "client 'ann' is among clients and among unseen"),
        ({"ann": (X[:0], Y[:0])}, None, "client 'ann': x_train is empty"),
    ],
)
def test_wrong_clients(clients, unseen, message):
    with pytest.raises(ConfigError) as caught:
        data_of(clients, unseen)
    assert message in str(caught.value)


def test_pixels_beside_floats_are_refused():
    """One client's would be scaled to 0..1, and the other's not."""
    pixels, y = np.arange(12, dtype=np.uint8).reshape(4, 3), np.array([0, 1, 0, 1])
    clients = {"ann": (pixels / 255, y), "bob": (pixels, y)}
    for seen, unseen in ((clients, None), ({"ann": clients["ann"]}, {"bob": clients["bob"]})):
        with pytest.raises(
            ConfigError, match="client 'bob': x_train is stored as uint8, but x_train in client 'ann' as f"
        ):
            FederatedDataModule.from_clients(seen, unseen)
    data = FederatedDataModule.from_clients({"ann": (pixels, y), "bob": (pixels[::-1], y)})
    data.setup()
    assert data.facts(weighting="samples", seed=0, num_rounds=1).stored_type == "uint8"


COUNTS = np.arange(60) % 30


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            np.arange(60) % 3.0,
            r"floating and hold 3 whole numbers \(0.0, 1.0, 2.0\); store integers if they are classes",
        ),
        (np.stack([np.arange(60) % 2.0] * 2, 1), "several labels per sample, with --data.dataset.labels multilabel"),
        (
            COUNTS,
            "30 different whole numbers; give --data.dataset.num_classes 30 if .*, or .*labels regression",
        ),
        (
            COUNTS + 1,
            r"label 30 means 31 classes, but no sample has class 0.* \(quantities: --data.dataset.labels regre",
        ),
    ],
)
def test_labels_that_may_be_classes_or_quantities_are_asked_about(y, message):
    x = np.random.default_rng(0).normal(size=(60, 3))
    with pytest.raises(ConfigError, match=message):
        data_of({"ann": (x, y)}, test_fraction=0)
    data = data_of({"ann": (x, y)}, labels="regression", test_fraction=0)
    assert data.target == (Regression() if y.ndim == 1 else VectorRegression(2))
    assert data.seen.train.y.sort(0).values.tolist() == np.sort(y, 0).tolist()
    assert data_of({"ann": (x, COUNTS)}, num_classes=30).target == Multiclass(30)


def test_what_labels_were_taken_for_is_said(capsys):
    x = np.random.default_rng(0).normal(size=(60, 3))
    for y, said in (
        (np.arange(60) % 3, "labels are taken for 3 classes, as whole numbers (set --data.dataset.labels regression"),
        (x[:, 0], "labels are taken for quantities, a regression"),
        (np.array(["a", "b"] * 30), ""),
    ):
        data_of({"ann": (x, y)})
        lines = capsys.readouterr().err.splitlines()
        assert [line.startswith(f"lit_fed: {said}") for line in lines] == [True] * bool(said)
