"""Draws of clients and persons from a table; persons and times of its samples."""

import numpy as np
import pandas as pd
import pytest

from lit_fed.data.data_sets.drawn_rows import drawn_rows
from lit_fed.data.data_sets.in_memory import data_set_of_frame
from lit_fed.errors import ConfigError

OWNER = np.repeat(np.arange(6), [2, 5, 9, 9, 30, 30])
ALONE = np.arange(len(OWNER))
PERSONS = np.arange(len(OWNER)) // 3  # some of two clients


def test_a_draw_keeps_large_clients_and_whole_persons():
    kept = drawn_rows(OWNER, PERSONS, 4, 1, 4, 40, 0)
    sizes = np.bincount(OWNER[kept], minlength=6)
    assert kept.tolist() == sorted({*kept.tolist()})
    assert 20 < len(kept) <= 40
    assert (sizes > 0).sum() <= 4
    assert sizes[0] == 0
    assert min(sizes[sizes > 0]) >= 4
    drawn = np.isin(OWNER, np.flatnonzero(sizes))
    of_person = pd.Series(np.isin(np.arange(len(OWNER)), kept)[drawn]).groupby(PERSONS[drawn])
    assert of_person.nunique().max() == 1


def test_a_draw_is_of_its_seed_alone():
    draws = [drawn_rows(OWNER, ALONE, 1, 1, 5, 50, seed).tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert len(draws[0]) == 50


def test_nothing_is_drawn_from_what_is_small_enough():
    assert drawn_rows(OWNER, PERSONS, 1, 1, 6, len(OWNER), 0).tolist() == list(range(len(OWNER)))
    assert set(OWNER[drawn_rows(OWNER, ALONE, 9, 1, None, None, 0)]) == {2, 3, 4, 5}


def test_clients_of_few_persons_are_left_out():
    assert set(OWNER[drawn_rows(OWNER, PERSONS, 1, 4, None, None, 0)]) == {2, 3, 4, 5}
    kept = drawn_rows(OWNER, PERSONS, 1, 3, None, 40, 1)
    assert min(len({*PERSONS[kept][OWNER[kept] == client]}) for client in {*OWNER[kept]}) >= 3


FRAME = pd.DataFrame(
    {
        "who": ["b", "a", "a", "b", "c"],
        "person": ["x", "y", None, "x", None],
        "when": ["2024-01-03", "2024-01-01", "2024-01-02", "2024-01-05", "2024-01-01"],
        "year": [3, 1, 2, 5, 1],
        "age": [1.0, 2.0, 3.0, 4.0, 5.0],
        "y": [0.5, 1.5, 2.5, 3.5, 4.5],
    }
)


def of_frame(**options):
    return data_set_of_frame(FRAME, "who", "y", **options)


def test_persons_and_times_are_of_the_samples():
    samples = of_frame(group_column="person", time_column="when", ignored_columns="year").load()
    groups = samples.groups.tolist()
    assert groups[0] == groups[3]
    assert len({*groups}) == 4, "a row without a person is a person"
    assert np.diff(samples.order).tolist() == [-2, 1, 3, -4]
    assert [one.name for one in samples.encode.columns.features] == ["age"]
    samples = of_frame(time_column="year", features=["year", "age"]).load()
    assert samples.order.tolist() == FRAME["year"].tolist()
    assert [one.name for one in samples.encode.columns.features] == ["year", "age"]
    assert samples.groups is None


def test_drawn_rows_keep_their_labels_persons_and_places():
    samples = of_frame(group_column="person", time_column="year", min_rows=2, ignored_columns="when").load()
    assert samples.y.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert (samples.names, samples.order.tolist()) == (["a", "b"], [3, 1, 2, 5])
    assert samples.groups[0] == samples.groups[3]
    rows = samples.encode.rows.taken(np.array([1, 3]))
    assert rows.place(1) == "the frame: row 3"


def test_rows_of_files_are_counted_anew(tmp_path):
    from lit_fed.data import Table
    from lit_fed.data.module import FederatedDataModule

    FRAME.iloc[[0, 1, 3]].to_csv(tmp_path / "one.csv", index=False)
    FRAME.iloc[[2, 4, 4]].assign(who=["d", "c", "c"]).to_csv(tmp_path / "two.csv", index=False)
    options = {"label_column": "y", "ignored_columns": "when,person", "min_rows": 2}
    data = FederatedDataModule(
        Table(str(tmp_path / "one.csv"), "who", unseen_path=str(tmp_path / "two.csv"), **options), test_fraction=0
    )
    data.setup()
    assert (data.seen.names, data.unseen.names) == (["b"], ["c"])
    named = Table(str(tmp_path), **options, max_rows=4).load()
    assert len(named.y) == np.isin(named.owner, [0, 1]).sum() <= 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_column": "persn"}, "group_column 'persn': the frame has no such column"),
        ({"time_column": "tim"}, "time_column 'tim': the frame has no such column"),
        ({"time_column": "person", "ignored_columns": "when"}, "column 'person': 'x' is no date"),
        ({"group_column": "who"}, "group_column is 'who', and so is one of client_column"),
        ({"group_column": "person", "features": ["person"]}, "is 'person', and so is one of feature_columns"),
        ({"min_rows": 0}, "min_rows is 0"),
        ({"min_groups": 2}, "min_groups is 2, which needs a group_column; give min_rows"),
        (
            {"min_groups": 3, "group_column": "person"},
            "no client has 1 rows of 3 persons; lower",
        ),
        ({"max_rows": 0}, "max_rows is 0; give a whole number >= 1"),
        ({"max_clients": -1}, "max_clients is -1"),
        ({"draw_seed": -1}, "draw_seed is -1"),
        ({"min_rows": 9}, "no client has 9 rows; lower --data.dataset.min_rows"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ConfigError) as caught:
        of_frame(**options).load()
    assert message in str(caught.value)


def test_a_draw_needs_clients():
    with pytest.raises(ConfigError, match=r"max_clients and max_rows are about clients; set client_column"):
        data_set_of_frame(FRAME, None, "y", max_rows=3)
