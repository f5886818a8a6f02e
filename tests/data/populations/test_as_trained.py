"""Clients in the terms of an earlier training: same names mean the same inputs and classes, other names are refused."""

import numpy as np
import pandas as pd
import pytest
import torch

from lit_fed import FederatedDataModule
from lit_fed.core.targets import MultiLabel, Regression
from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.populations.as_trained import as_trained, check_same_labels
from lit_fed.data.populations.checks import far_inputs
from lit_fed.data.populations.drawn_clients import DrawnSplit
from lit_fed.errors import ConfigError


def frame(towns=("Bari", "Oslo", "Rome"), kinds=("cheap", "dear"), scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(5, 2, 60), rng.normal(-3, 0.5, 60)
    town, kind = np.resize(towns, 60), np.resize(np.repeat(kinds, 2), 60)
    return pd.DataFrame({"shop": np.repeat(["x", "y"], 30), "a": a * scale, "town": town, "b": b, "kind": kind})


def read(rows, **table):
    data = FederatedDataModule.from_frame(rows, client="shop", label="kind", table=table, test_fraction=0.0)
    data.setup()
    return data


def facts_of(data):
    return data.facts(weighting="samples", seed=0, num_rounds=1)


def converted(rows, facts, **table):
    """The clients of a table in the terms of a training, and what is said."""
    said = []
    return as_trained(read(rows, **table).seen, facts, "--init_from x.ckpt", None, said), said


@pytest.fixture(scope="module")
def facts():
    return facts_of(read(frame()))


def test_equal_terms_change_nothing(facts):
    seen = read(frame()).seen
    assert as_trained(seen, facts, "here", None, []) is seen


@pytest.mark.parametrize(
    ("change", "table"),
    [
        (lambda rows: rows[["shop", "b", "town", "a", "kind"]], {}),
        (lambda rows: rows.assign(a=1000 * rows["a"]), {}),
        (lambda rows: rows[rows["town"] != "Bari"], {}),
        (lambda rows: rows.replace("Bari", "Lima"), {"unknown_categories": "zeros"}),
        (lambda rows: rows, {"standardize": False}),
    ],
    ids=["order", "scale", "missing category", "new category", "not standardised"],
)
def test_inputs_are_those_of_the_training(facts, change, table):
    rows = change(frame(seed=1))
    seen, (said,) = converted(rows, facts, **table)
    assert said.startswith("--init_from x.ckpt: ")
    towns = np.stack([rows["town"] == one for one in ("Bari", "Oslo", "Rome")], 1)
    raw = np.column_stack([rows["a"], towns, rows["b"]])
    wanted = (raw - np.array(facts.normalisation.mean)) / np.array(facts.normalisation.std)
    order = np.argsort(wanted[:, 0])
    found = seen.train.x.double().numpy()
    np.testing.assert_allclose(found[np.argsort(found[:, 0])], wanted[order], rtol=1e-5, atol=1e-5)
    assert (seen.normalisation, seen.columns.input_names) == (facts.normalisation, facts.columns.input_names)


def test_classes_have_the_numbers_of_the_training():
    facts = facts_of(read(frame(kinds=("a", "b", "c", "d"))))
    seen, said = converted(frame(kinds=("d", "b")), facts)
    assert seen.class_names == ("a", "b", "c", "d")
    assert seen.train.y.unique().tolist() == [1, 3]
    assert said[-1].endswith("the classes are those of that training")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            frame().replace("Rome", "Lima"),
            r"column 'town' has 'Lima', and in that training only 'Bari', 'Oslo', 'Rome'",
        ),
        (frame(kinds=("cheap", "new")), r"'new' is no class of that training, whose classes are 'cheap', 'dear'"),
        (frame().drop(columns="b"), r"was trained on the column 'b', which is missing here"),
        (frame().assign(c=1.0), r"was not trained on the column 'c'"),
        (frame().assign(b="low"), r"column 'b' holds categories, and held numbers"),
    ],
    ids=["category", "class", "missing column", "new column", "kind"],
)
def test_what_the_training_did_not_have_is_refused_by_name(facts, rows, said):
    with pytest.raises(ConfigError, match=f"--init_from x.ckpt.*{said}"):
        converted(rows, facts)


def test_units_of_labels_are_those_of_the_training():
    rows = frame().assign(kind=np.linspace(0, 1, 60))
    facts = facts_of(read(rows))
    seen, _ = converted(rows.assign(kind=390 + 10 * rows["kind"]), facts)
    assert seen.label_scale == facts.label_scale
    mean, std = facts.label_scale
    wanted = (390 + 10 * np.linspace(0, 1, 60) - mean) / std
    np.testing.assert_allclose(np.sort(seen.train.y), wanted, rtol=1e-5)


def test_what_is_guessed_is_said(facts):
    arrays = FederatedDataModule.from_clients({"x": (np.eye(4, 5), [0, 1, 0, 1])}, test_fraction=0.0)
    arrays.setup()
    said = []
    assert as_trained(arrays.seen, facts, "x.ckpt", None, said) is not arrays.seen
    assert "inputs of these data have no names; they are taken for a, town=Bari, town=Oslo, town=Rome, b" in said[0]
    assert "classes of these data have no names; they are taken for cheap, dear" in said[1]
    rows = frame().assign(a=np.where(frame().index < 5, np.nan, frame()["a"]))
    _, said = converted(rows, facts_of(read(frame(), impute="median")), impute="median")
    assert "missing values of 'a' are filled in by" in said[0]


PICTURES = np.arange(16.0).reshape(4, 1, 2, 2) / 16


def test_pictures_take_the_constants_of_the_training(facts):
    data = FederatedDataModule.from_clients({"x": (PICTURES, [0, 1, 0, 1])}, test_fraction=0.0)
    data.setup()
    for before, (mean, std) in ((Normalisation((0.25,), (0.5,)), (0.25, 0.5)), (None, (0.0, 1.0))):
        earlier = facts_of(data)._replace(normalisation=before)
        seen = as_trained(data.seen, earlier, "x.ckpt", Normalisation((0.5,), (0.5,)), [])
        torch.testing.assert_close(seen.train.x, ((data.seen.train.x * 0.5 + 0.5) - mean) / std)


def test_names_of_several_labels_move_their_columns(facts):
    seen = read(frame()).seen._replace(class_names=("c", "a"))
    seen = seen.with_splits(lambda split: type(split)(split.x, torch.tensor([[1, 0]] * len(split.x)), split.offsets))
    earlier = facts._replace(class_names=("a", "b", "c"), target=MultiLabel(3))
    assert as_trained(seen, earlier, "x.ckpt", None, []).train.y[0].tolist() == [0, 0, 1]


def test_what_cannot_be_changed_is_refused(facts):
    seen = read(frame(scale=2.0)).seen
    lazy = seen.with_splits(lambda split: DrawnSplit(lambda _: None, split.sizes, split.x[:0], split.y[:0], "here"))
    with pytest.raises(ConfigError, match="means and deviations of the inputs differ, and these samples are read when"):
        as_trained(lazy, facts, "x.ckpt", None, [])
    with pytest.raises(ConfigError, match="its labels are binary, and here they are regression"):
        check_same_labels(Regression(), facts, "x.ckpt")
    with pytest.raises(ConfigError, match="stored as uint8, those of that training as float32"):
        as_trained(seen._replace(stored_type="uint8"), facts._replace(stored_type="float32"), "x.ckpt", None, [])


def test_clients_far_from_the_training_are_named(capsys):
    rows = pd.concat([frame(), frame(seed=1).assign(shop="z", a=lambda rows: rows["a"] * 1000)])
    FederatedDataModule.from_frame(rows, client="shop", label="kind", unseen=["z"]).setup()
    assert "from the mean of the training: a at client 'z' (100 % of 60 rows); are the units" in capsys.readouterr().err
    data = FederatedDataModule.from_clients({"x": (9 + PICTURES, [0, 1, 0, 1])}, test_fraction=0.0)
    data.setup()
    said = far_inputs(data.seen, Normalisation((0.1,), (0.3,)), None)
    assert said.startswith("more than 6 deviations from the mean of the training: channel 0 at client 'x' (100 % of 4")


def test_other_tokens_and_columns_are_refused(facts):
    for own, before in (("tokens of bytes", "tokens 12ab"), ("columns b, a", "columns a, b")):
        seen = read(frame()).seen._replace(stored_type=own)
        with pytest.raises(ConfigError, match=f"inputs are {own}, and in that training {before}; give the same"):
            as_trained(seen, facts._replace(stored_type=before), "x.ckpt", None, [])
