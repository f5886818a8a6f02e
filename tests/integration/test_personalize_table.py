"""New clients from a table: which rows are adapted on, predicted and measured, and what is said of it."""

import numpy as np
import pandas as pd
import pytest
from running import folder
from test_predict import CPU, refused

from lit_fed.cli import main


def frame(seed, names, size=20):
    """Rows of some shops, about evenly of two kinds."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(names) * size, 2))
    kind = np.where(x[:, 0] + x[:, 1] > 0, "dear", "cheap")
    return pd.DataFrame({"shop": np.repeat(names, size), "a": x[:, 0], "b": x[:, 1], "town": "Oslo", "kind": kind})


@pytest.fixture(scope="module")
def last(tmp_path_factory):
    """A checkpoint of FedAvg, whose training knew no column of splits."""
    root = tmp_path_factory.mktemp("table")
    frame(0, ["a", "b", "c"]).to_csv(root / "train.csv", index=False)
    main(["fit", *CPU, "--model.algorithm", "FedAvg", "--model.solver.lr", "1", "--data.dataset", "Table",
          "--data.dataset.path", str(root / "train.csv"), "--data.dataset.client_column", "shop",
          "--data.dataset.label_column", "kind", "--trainer.max_epochs", "20",
          "--trainer.default_root_dir", str(root)])  # fmt: skip
    return folder(root, "FedAvg") / "checkpoints/last.ckpt"


def served(last, table, output, *arguments):
    table.to_csv(output.with_suffix(".csv"), index=False)
    main(["personalize", *CPU, "--ckpt_path", str(last), "--clients", str(output.with_suffix(".csv")),
          "--output", str(output), *arguments])  # fmt: skip
    return pd.read_csv(output / "clients.csv"), pd.read_csv(output / "predictions.csv")


def test_a_fully_labelled_table_is_measured_on_rows_that_are_held_out(tmp_path, capsys, last):
    clients, predictions = served(last, frame(1, ["x", "y"]), tmp_path / "served")
    assert (clients["num_train"].tolist(), clients["num_test"].tolist()) == ([16, 16], [4, 4])
    assert (clients["accuracy"] > 0.7).all()
    assert predictions["label"].notna().all()
    said = capsys.readouterr().out
    assert "served: 2 clients, with 32 samples to adapt on; 8 samples predicted, 8 of them measured" in said
    assert "every row has a label, so 20% of each client's were held out and measured; a column `split`" in said


def test_a_column_of_splits_that_the_training_lacked(tmp_path, capsys, last):
    table = frame(1, ["x", "y"]).assign(split=["train"] * 15 + ["test"] * 25)
    table = pd.concat([table, frame(2, ["y"], 10).assign(split="train")])
    clients, predictions = served(last, table, tmp_path / "served")
    assert (clients["num_train"].tolist(), clients["num_test"].tolist()) == ([15, 10], [5, 20])
    assert predictions["label"].tolist() == table.loc[table["split"] == "test", "kind"].tolist()
    assert predictions["row"].tolist() == (np.flatnonzero(table["split"] == "test") + 1).tolist()
    said = capsys.readouterr().out
    assert "25 samples predicted, 25 of them measured" in said
    assert "held out" not in said


@pytest.mark.parametrize("column", [{"split": "train"}, {"split": "north"}, {}])
def test_what_is_said_where_nothing_or_all_is_predicted(tmp_path, capsys, last, column):
    """A column that says `train` of all rows is obeyed; one of other words is none of splits."""
    table = frame(1, ["x", "y"]).assign(**column)
    if not column:
        table.loc[table.index[1::2], "kind"] = ""
    clients, _ = served(last, table, tmp_path / "served")
    said = capsys.readouterr().out
    expected = {"train": [0, 0], "north": [4, 4]}.get(column.get("split"), [10, 10])
    assert clients["num_test"].tolist() == expected
    assert ("no client has samples to be predicted" in said) == (column == {"split": "train"})
    assert ("20 samples predicted, 0 of them measured" in said) == (not column)


def test_one_client_needs_no_column_of_clients(tmp_path, capsys, last):
    """Its name is the file's, and one line says so."""
    clients, predictions = served(last, frame(1, ["x"]).drop(columns=["shop", "kind"]).head(1), tmp_path / "ann")
    assert clients["client"].tolist() == predictions["client"].tolist() == ["ann"]
    assert predictions["row"].tolist() == [1]
    assert "ann.csv has no column 'shop': all rows belong to one client, 'ann'" in capsys.readouterr().err


@pytest.fixture(scope="module", params=["group_column", "time_column"])
def by_units(request, tmp_path_factory):
    """A checkpoint of a training by persons or times, four rows of each, and the role of the column."""
    root = tmp_path_factory.mktemp("units")
    frame(0, ["a", "b", "c"]).assign(unit=np.arange(60) // 4, day=np.arange(60)).to_csv(root / "train.csv", index=False)
    main(["fit", *CPU, "--model.algorithm", "FedAvg", "--model.solver.lr", "1", "--data.dataset", "Table",
          "--data.dataset.path", str(root / "train.csv"), "--data.dataset.client_column", "shop",
          "--data.dataset.label_column", "kind", f"--data.dataset.{request.param}", "unit", "--trainer.max_epochs", "1",
          *(["--data.split", "time"] if "time" in request.param else ["--data.dataset.time_column", "day"]),
          "--data.dataset.ignored_columns", "unit",
          "--trainer.default_root_dir", str(root)])  # fmt: skip
    return folder(root, "FedAvg") / "checkpoints/last.ckpt", request.param


def test_what_the_training_kept_together_stays_so_at_later_clients(tmp_path, capsys, by_units):
    """Rows of one person that are adapted on and measured would flatter the figures of new clients."""
    last, role = by_units
    table = frame(1, ["x", "y"]).assign(unit=np.tile(np.arange(20) // 4, 2))
    table["day"] = np.tile(np.arange(20) * 7 % 20, 2)  # the time of the training by persons, an input of the other one
    _, predictions = served(last, table, tmp_path / "served")
    tested = table["unit"].iloc[predictions["row"] - 1].tolist()
    assert len(tested) == 8
    assert len({*tested[:4]}) == len({*tested[4:]}) == 1  # all four rows of a unit
    if role == "time_column":
        assert {*tested} == {4}  # the last one
    served(last, table.drop(columns="unit"), tmp_path / "without")
    assert "without.csv has no column 'unit': its rows are taken " in capsys.readouterr().err


def test_texts_of_no_training_row(tmp_path, capsys, last):
    table = frame(1, ["x", "y"]).assign(town=["Oslo", "Bern"] * 20)
    table.to_csv(tmp_path / "bern.csv", index=False)
    given = [*CPU, "--ckpt_path", str(last), "--clients", str(tmp_path / "bern.csv")]
    said = refused(capsys, ["personalize", *given, "--output", str(tmp_path / "refused")])
    assert "'Bern' is in no training sample of a seen client" in said
    advice = ("--unknown_categories", "zeros")
    assert " ".join(advice) in said
    clients, _ = served(last, table, tmp_path / "served", *advice)
    assert clients["num_test"].tolist() == [4, 4]
    main(["export", *given, "--client", "y", "--output", str(tmp_path / "y.pt2"), *advice])
    assert (tmp_path / "y.pt2").is_file()


def test_columns_in_another_unit_are_named_without_a_row_of_them(tmp_path, capsys, last):
    table = frame(1, ["x", "y"])
    table.loc[table["shop"] == "y", "b"] = 1234.5
    served(last, table, tmp_path / "served")
    said = capsys.readouterr().err
    assert "more than 6 deviations from the mean of the training: b at client 'y' (100 % of 20 rows); are" in said
    assert "1234" not in said
    assert "1234" not in "".join(path.read_text() for path in tmp_path.glob("served/*.csv"))
    served(last, frame(1, ["x", "y"]), tmp_path / "usual")
    assert "deviations" not in capsys.readouterr().err
