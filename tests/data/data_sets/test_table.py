import gzip

import numpy as np
import pandas as pd
import pytest
import torch
from federated_round import facts as facts_of_training

from lit_fed.core.likelihood import Ranking
from lit_fed.core.targets import Binary, Multiclass, Regression
from lit_fed.data import IID, Dirichlet, Normalisation, Table
from lit_fed.data.data_sets.columns import Feature, TableColumns, standardisation
from lit_fed.data.data_sets.fills import learned_fills
from lit_fed.data.data_sets.rows import read_rows, rows_of_frame
from lit_fed.data.data_sets.table import read_later
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.new_clients import NewClients
from lit_fed.errors import ConfigError

ONE = TableColumns((Feature("x"),), "y", None, None, ",", "error")
NAMES = {"client_column": "who", "label_column": "kind"}
LINES = """who,age,town,fold,kind
ann,30,Rome,train,yes
ann,40,Oslo,train,no
ann,50,Rome,test,no
bob,20,Oslo,train,yes
bob,60,Rome,val,no
bob,70,Rome,test,yes
cy,80,Oslo,train,no
cy,35,Oslo,test,yes
"""


def table(tmp_path, text=LINES, **options):
    (tmp_path / "table.csv").write_text(text, encoding="utf-8")
    return Table(str(tmp_path / "table.csv"), **(NAMES | options))


def data_of(data_set, **settings):
    data = FederatedDataModule(data_set, **settings)
    data.setup()
    return data


def refused(message, make):
    with pytest.raises(ConfigError) as caught:
        data_of(make())
    assert message in str(caught.value)


def test_names_are_given_alone_or_with_commas(tmp_path):
    zeros = {"unknown_categories": "zeros"}
    data = data_of(table(tmp_path, split_column="fold", unseen_clients="ann,cy", ignored_columns="town"))
    assert (data.seen.names, data.unseen.names, data.input_shape) == (["bob"], ["ann", "cy"], (1,))
    assert (
        data_of(table(tmp_path, feature_columns="age", category_columns="age", **zeros)).seen.columns.features[0].name
        == "age"
    )
    frame = pd.read_csv(tmp_path / "table.csv")
    made = FederatedDataModule.from_frame(frame, client="who", label="kind", features="age", unseen="cy")
    made.setup()
    assert (made.unseen.names, made.input_shape) == (["cy"], (1,))


def test_a_compressed_table_is_read_as_the_plain_one(tmp_path):
    plain = data_of(table(tmp_path, split_column="fold"))
    with gzip.open(tmp_path / "table.csv.gz", "wt", encoding="utf-8") as file:
        file.write(LINES)
    packed = data_of(Table(str(tmp_path / "table.csv.gz"), **NAMES, split_column="fold"))
    assert packed.fingerprint == plain.fingerprint
    columns = packed.seen.columns._replace(client_column=None)
    assert read_later(tmp_path / "table.csv.gz", columns, packed.seen.class_names).names == ["table"]


def test_splits_clients_and_classes_are_those_of_the_columns(tmp_path):
    data = data_of(table(tmp_path, split_column="fold", unseen_clients=("cy",), standardize=False))
    seen, unseen = data.populations
    assert (seen.names, unseen.names) == (["ann", "bob"], ["cy"])
    assert [one.sizes.tolist() for one in (seen.train, seen.val, seen.test)] == [[2, 1], [0, 1], [1, 1]]
    assert (data.target, seen.class_names, unseen.class_names) == (Binary(), ("no", "yes"), ("no", "yes"))
    # age, town=Oslo, town=Rome
    assert seen.train.x.tolist() == [[30, 0, 1], [40, 1, 0], [20, 1, 0]]
    assert seen.train.y.tolist() == [1, 0, 1]
    assert (unseen.train.x.tolist(), unseen.test.x.tolist()) == ([[80, 1, 0]], [[35, 1, 0]])
    assert data.normalisation is None


def test_numbers_are_standardised_by_the_training_rows_of_the_seen(tmp_path):
    data = data_of(table(tmp_path, split_column="fold", unseen_clients=("cy",)))
    mean, std = 30.0, float(np.sqrt(200 / 3))
    assert data.normalisation == Normalisation((mean, 0.0, 0.0), (std, 1.0, 1.0))
    ages = {name: getattr(data.seen, name).x[:, 0].tolist() for name in ("train", "val", "test")}
    assert ages["train"] == pytest.approx([0, 10 / std, -10 / std], abs=1e-6)
    assert (ages["val"], ages["test"]) == ([pytest.approx(30 / std)], pytest.approx([20 / std, 40 / std]))
    assert data.unseen.train.x[0].tolist() == [pytest.approx(50 / std), 1, 0]


def test_sums_of_clients_keep_digits_far_from_zero():
    rng = np.random.default_rng(0)
    clients = [rng.normal(1e9, 1, size=(n, 1)) for n in (3, 50, 7)]
    found = standardisation(clients, ONE)
    rows = np.concatenate(clients) - 1e9
    assert found.mean[0] - 1e9 == pytest.approx(rows.mean(), abs=1e-6)
    assert standardisation([one - 1e9 for one in clients], ONE).std[0] == pytest.approx(rows.std())
    assert standardisation([np.full((4, 1), 0.1)], ONE).std == (1.0,)


def test_fractions_divide_what_no_column_does(tmp_path):
    lines = LINES.splitlines()[:1] + LINES.splitlines()[1:] * 5
    data = data_of(table(tmp_path, "\n".join(lines), ignored_columns=("fold",)), val_fraction=0.2, test_fraction=0.2)
    assert data.seen.names == ["ann", "bob", "cy"]
    assert [one.sizes.tolist() for one in (data.seen.train, data.seen.val, data.seen.test)] == [
        [9, 9, 6], [3, 3, 2], [3, 3, 2],
    ]  # fmt: skip
    train = data.seen.train.x[:, 0]
    assert (train.mean().abs() < 1e-6, train.std(correction=0)) == (True, pytest.approx(1))
    no_test = "\n".join(lines).replace("test", "train")
    data = data_of(table(tmp_path, no_test, split_column="fold"), val_fraction=0.5, test_fraction=0.2)
    sizes = [one.sizes.tolist() for one in (data.seen.train, data.seen.val, data.seen.test)]
    assert sizes == [[12, 8, 8], [0, 5, 0], [3, 2, 2]]


def test_the_same_table_in_another_format_and_from_a_frame(tmp_path):
    pytest.importorskip("pyarrow")
    whole = data_of(table(tmp_path, split_column="fold"))
    frame = pd.read_csv(tmp_path / "table.csv")
    frame.to_parquet(tmp_path / "table.parquet")
    (tmp_path / "table.csv").write_text("\ufeff" + LINES.replace(",", ";"), encoding="utf-8")
    others = [
        data_of(Table(str(tmp_path / "table.parquet"), split_column="fold", **NAMES)),
        data_of(Table(str(tmp_path / "table.csv"), split_column="fold", separator=";", **NAMES)),
        FederatedDataModule.from_frame(frame, client="who", label="kind", table={"split_column": "fold"}),
    ]
    others[-1].setup()
    assert [one.fingerprint for one in others] == [whole.fingerprint] * 3


def test_a_second_file_holds_the_unseen(tmp_path):
    (tmp_path / "new.csv").write_text("kind,who,age,town\nno,dan,1,Rome\nyes,dan,2,Oslo\n")
    text = "\n".join(line.replace(f",{fold},", ",") for line in LINES.splitlines()
                     for fold in [line.split(",")[3]])  # fmt: skip
    data = data_of(table(tmp_path, text, unseen_path=str(tmp_path / "new.csv"), standardize=False), test_fraction=0.5)
    assert (data.seen.names, data.unseen.names) == (["ann", "bob", "cy"], ["dan"])
    (tmp_path / "new.csv").write_text("kind,who,age,town\nno,dan,1,Paris\nyes,dan,2,Oslo\n")
    again = table(tmp_path, text, unseen_path=str(tmp_path / "new.csv"))
    refused("new.csv: row 1, column 'town': 'Paris' is in no training sample of a seen client", lambda: again)
    both = table(tmp_path, text, unseen_path=str(tmp_path / "table.csv"))
    refused("client 'ann' has rows in", lambda: both)


def test_without_clients_a_partition_divides_the_rows(tmp_path):
    lines = LINES.splitlines()[:1] + LINES.splitlines()[1:] * 5
    data = data_of(
        table(tmp_path, "\n".join(lines), client_column=None, ignored_columns=("who",), split_column="fold"),
        partition=IID(), num_clients=4,
    )  # fmt: skip
    assert data.seen.names == ["0", "1", "2", "3"]
    assert [one.num_samples for one in (data.seen.train, data.seen.val, data.seen.test)] == [20, 5, 15]


@pytest.mark.parametrize(
    ("labels", "task", "target", "names"),
    [
        ((1, 2, 3), None, Multiclass(3), ("1", "2", "3")),
        ((10, 9, 10), None, Binary(), ("9", "10")),
        ((0.5, 1.0, 2.0), None, Regression(), None),
        ((1.0, 2.0, 2.0), "classification", Binary(), ("1", "2")),
        ((1, 2, 3), "regression", Regression(), None),
        ((True, False, True), None, Binary(), ("False", "True")),
        (("a", "7", "a"), "classification", Binary(), ("7", "a")),
    ],
)
def test_labels(labels, task, target, names):
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0], "y": labels})
    data = FederatedDataModule.from_frame(
        frame, client=None, label="y", table={"task": task, "standardize_labels": False}, partition=IID(), num_clients=1
    )
    data.setup()
    assert (data.target, data.seen.class_names) == (target, names)


def test_clients_of_a_boolean_column():
    frame = pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": list("abab"), "urban": [True, True, False, False]})
    data = FederatedDataModule.from_frame(frame, client="urban", label="y", test_fraction=0)
    data.setup()
    assert (data.seen.names, data.seen.train.sizes.tolist()) == (["False", "True"], [2, 2])


def test_categories_of_no_training_row_are_zeros_where_asked(tmp_path):
    text = LINES.replace("50,Rome", "50,Bern")
    refused(
        "table.csv: row 3, column 'town': 'Bern' is in no training", lambda: table(tmp_path, text, split_column="fold")
    )
    data = data_of(table(tmp_path, text, split_column="fold", unknown_categories="zeros"))
    assert data.seen.test.x[0, 1:].tolist() == [0, 0]
    assert data.seen.columns.input_names == ["age", "town=Oslo", "town=Rome"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "bob,20",
            "bob,",
            "row 4, column 'age': no value; of 8 rows age in 1 have none: give --data.dataset.impute median",
        ),
        (
            "bob,20",
            "bob,NA",
            "row 4, column 'age': no value; of 8 rows age in 1 have none: give --data.dataset.impute median",
        ),
        ("bob,20", "bob,2o", "row 4, column 'age': '2o' is not a number, but other values are"),
        ("bob,20", "bob,inf", "row 4, column 'age': inf is too large"),
        ("bob,20", ",20", "row 4, column 'who': no value"),
        ("train,yes", "train,", "row 1, column 'kind': no value"),
        ("val", "valid", "row 5, column 'fold': 'valid' is not a split; write train, val or test"),
        ("bob,20,Oslo,train", "bob,20,Oslo,test", "seen client 'bob' has no training samples"),
        ("bob,20", "bob,20,4", "cannot be read"),
        ("age", "Unnamed: 0", "a column has no name"),
        (LINES, "", "the file is empty; it needs a line of column names"),
        (LINES, "who,age,town,fold,kind\n", "has no rows; add some"),
        ("yes", "no", "all labels in column 'kind' are 'no'; give two classes"),
    ],
)
def test_wrong_files(tmp_path, old, new, message):
    refused(message, lambda: table(tmp_path, LINES.replace(old, new), split_column="fold"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "path is not set; pass --data.dataset.path FILE"),
        ({"path": "no.csv"}, "no.csv"),
        ({"path": "table.docx"}, "not a table; give a file that ends in .csv, .csv.gz, .tsv, .tsv.gz, .parquet"),
        ({"client_column": "whom"}, "client_column 'whom'"),
        ({"label_column": ""}, "label_column is not set; give one of the columns who, age, town, fold, kind"),
        ({"label_column": "kinds"}, "has no such column; it has who, age, town, fold, kind"),
        ({"feature_columns": ("age", "size")}, "feature_columns 'size'"),
        ({"feature_columns": ("age", "kind")}, "label_column is 'kind', and so is one of feature_columns"),
        ({"client_column": "kind"}, "label_column is 'kind', and so is one of client_column"),
        ({"client_column": None, "unseen_clients": ("cy",)}, "which needs a client_column"),
        ({"unseen_clients": ("zoe",)}, "is of a client 'zoe'; there are ann, bob, cy"),
        ({"unseen_clients": ("ann", "bob", "cy")}, "all clients are named as unseen;"),
        ({"separator": ", "}, "separator is ', '; give one character"),
        ({"ignored_columns": ("age", "town", "fold")}, "no input column is left"),
    ],
)
def test_wrong_options(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "table.csv").write_text(LINES)
    refused(message, lambda: Table(**({"path": "table.csv"} | NAMES | options)))


def test_clients_of_a_column_are_not_divided_anew(tmp_path):
    with pytest.raises(ConfigError, match="partition Dirichlet: Table comes with its clients"):
        data_of(table(tmp_path), partition=Dirichlet())
    with pytest.raises(ConfigError, match="has its own unseen clients; leave unseen_fraction at 0"):
        data_of(table(tmp_path, unseen_clients=("cy",)), unseen_fraction=0.5)
    with pytest.raises(ConfigError, match="Table comes with its clients"):
        data_of(table(tmp_path), num_clients=3)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pd.date_range("2024", periods=30), "column 'x' holds datetime64"),
        ([[1]] * 30, "column 'x': a list is neither number nor text"),
        (np.arange(30) * 1j, "column 'x' holds complex128"),
        ([str(one) for one in range(30)], "index 'a0', column 'x': '0' is a number stored as text"),
        ([1e300] * 30, "index 'a0', column 'x': 1e+300 is too large for float32"),
    ],
)
def test_wrong_columns_of_a_frame(column, message):
    frame = pd.DataFrame({"x": column, "y": [0, 1] * 15}, index=[f"a{one}" for one in range(30)])
    with pytest.raises(ConfigError) as caught:
        FederatedDataModule.from_frame(frame, client=None, label="y", num_clients=2).setup()
    assert message in str(caught.value).replace("the frame: row", "index")


def test_too_many_texts_and_numbers_are_asked_about():
    frame = pd.DataFrame({"x": [f"name {one}" for one in range(150)], "y": [0, 1] * 75, "age": range(150)})

    def data(label="y", **options):
        made = FederatedDataModule.from_frame(frame, client=None, label=label, table=options, num_clients=2)
        made.setup()
        return made

    with pytest.raises(ConfigError, match=r"column 'x' holds 1.. different texts.*ignored_columns, or name it"):
        data(unknown_categories="zeros")
    assert data(unknown_categories="zeros", category_columns=("x",)).input_shape[0] > 100
    with pytest.raises(ConfigError, match=r"hold 1.* different whole numbers; give --data.dataset.task classification"):
        data("age", ignored_columns=("x",))
    with pytest.raises(ConfigError, match="a table from a frame has no field tsak; choose from category_columns"):
        data(tsak="regression")


@pytest.mark.parametrize("rows", [300, 3000])
def test_the_bound_on_classes_does_not_grow_with_the_table(rows):
    """Scores from 1 to 70 became 70 classes where there were 350 rows."""
    frame = pd.DataFrame({"x": np.linspace(0, 1, rows), "score": 1 + np.arange(rows) % 70})

    def target(label="score", **table):
        data = FederatedDataModule.from_frame(
            frame, client=None, label=label, num_clients=2, table=table, partition=IID()
        )
        data.setup()
        return data.target

    with pytest.raises(ConfigError, match=r"hold 70 different whole numbers; give .*task classification"):
        target()
    assert target(task="classification") == Multiclass(70)
    assert target(task="regression", standardize_labels=False) == Regression()
    frame["grade"] = frame["score"] % 3 + 0.0
    with pytest.raises(ConfigError, match=r"hold 3 whole numbers \(0.0, 1.0, 2.0\); .* with .*task classification"):
        target("grade", ignored_columns="score")
    assert target("grade", ignored_columns="score", task="classification") == Multiclass(3)


def test_what_labels_were_taken_for_is_said(tmp_path, capsys):
    text = LINES.replace("yes", "1").replace("no", "0")
    for options, said in (
        ({}, ["2 classes, as whole numbers (set --data.dataset.task regression"]),
        ({"task": "classification"}, []),
    ):
        data_of(table(tmp_path, text, **options), test_fraction=0)
        assert [one in capsys.readouterr().err for one in said] == [True] * len(said)
    data_of(table(tmp_path), test_fraction=0)
    assert "labels are taken" not in capsys.readouterr().err


def test_what_a_checkpoint_keeps_reads_other_tables_alike(tmp_path, capsys):
    data = data_of(table(tmp_path, ignored_columns=("fold",), standardize=False))
    facts = TrainingFacts.from_plain(data.facts(weighting="samples", seed=0, num_rounds=1).plain())
    assert facts.columns == TableColumns(
        (Feature("age"), Feature("town", ("Oslo", "Rome"))), "kind", "who", None, ",", "error"
    )
    file = tmp_path / "new.csv"
    file.write_text("town,who,age,kind\nRome,eve,1,yes\nOslo,dan,2,no\nRome,eve,3,\nOslo,dan,4,no\n")
    new = NewClients(str(file), facts)
    assert (new.unseen.names, new.labelled.tolist(), new.held_out) == (["dan", "eve"], [True, False], False)
    assert (new.unseen.train.sizes.tolist(), new.unseen.train.y.tolist()) == ([2, 1], [0, 0, 1])
    assert (new.unseen.train.x[2].tolist(), new.unseen.test.x.tolist()) == ([1, 0, 1], [[3, 0, 1]])
    for line, message in [
        ("Bern,dan,2,no", "new.csv: row 2, column 'town': 'Bern' is in no training sample"),
        ("Oslo,dan,2,nope", "new.csv: row 2, column 'kind': 'nope' is not a class of the training (no, yes)"),
        ("Oslo,dan,,no", "new.csv: row 2, column 'age': no value"),
        ("Oslo,d/n,2,no", "client 'd/n' names a file"),
    ]:
        file.write_text(f"town,who,age,kind\nRome,eve,1,yes\n{line}\n")
        with pytest.raises(ConfigError) as caught:
            NewClients(str(file), facts)
        assert message in str(caught.value)
    file.write_text("town,who,age,kind\nRome,eve,1,yes\nOslo,dan,2,\n")
    assert NewClients(str(file), facts).unseen.train.sizes.tolist() == [0, 1]  # refused by an algorithm that adapts
    file.write_text("town,who,age\nRome,eve,1\nOslo,dan,2\n")
    bare = NewClients(str(file), facts)
    assert (bare.unseen.train.sizes.tolist(), bare.unseen.test.x[:, 0].tolist()) == ([0, 0], [2, 1])
    assert "new.csv has no column 'kind': its rows have no label, and are predicted" in capsys.readouterr().err
    file.write_text("who,age,kind\neve,1,yes\n")
    with pytest.raises(
        ConfigError, match=r"'town': .*new.csv has no such column; it has who, age, kind\. The .* add it"
    ):
        NewClients(str(file), facts)


def test_splits_of_clients_that_come_later(tmp_path):
    file = tmp_path / "new.csv"
    columns = TableColumns((Feature("age"),), "y", None, "fold", ",", "error")
    facts = facts_of_training(Regression(), (1,))._replace(columns=columns)
    file.write_text("age,fold,y\n1,train,0.5\n2,test,1.5\n3,val,2.5\n4,test,3.5\n")
    unseen = NewClients(str(file), facts).unseen
    assert unseen.names == ["new"]
    assert (unseen.train.x.tolist(), unseen.train.y.tolist()) == ([[1]], [0.5])
    assert (unseen.test.x.tolist(), unseen.test.y.tolist()) == ([[2], [4]], [1.5, 3.5])
    file.write_text("age,fold,y\n1,train,0.5\n2,test,1.5\n4,test,\n")
    with pytest.raises(ConfigError, match="only some of its test samples have a label"):
        NewClients(str(file), facts)
    file.write_text("age,fold,y\n1,train,\n")
    with pytest.raises(ConfigError, match="row 1: a training row without a label"):
        NewClients(str(file), facts)


def test_frames_are_frames(tmp_path):
    with pytest.raises(ConfigError, match="the frame is a dict; give a pandas DataFrame"):
        rows_of_frame({"x": [1]})
    with pytest.raises(ConfigError, match="two columns are called 'x'"):
        rows_of_frame(pd.DataFrame([[1, 2]], columns=["x", "x"]))
    assert rows_of_frame(pd.DataFrame({0: [1]})).frame["0"].tolist() == [1]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    pytest.importorskip("pyarrow")
    with pytest.raises(ConfigError, match=r"--data.dataset.path .*broken.parquet: cannot be read"):
        read_rows([(str(tmp_path / "broken.parquet"), "--data.dataset.path")])


def test_files_of_several_sites_name_the_clients(tmp_path):
    frame = pd.DataFrame({"age": [1.5, 2, 3, 4], "kind": list("abab")})
    folder = tmp_path / "sites"
    folder.mkdir()
    frame.to_csv(folder / "oslo.tsv", sep="\t", index=False)
    frame.to_feather(folder / "rome.feather")
    (folder / "notes.txt").write_text("no table")
    both = f"{folder / 'oslo.tsv'}, {folder / 'rome.feather'}"
    for path in (str(folder), both):
        data = data_of(Table(path, label_column="kind", standardize=False), test_fraction=0)
        assert (data.seen.names, data.seen.train.sizes.tolist()) == (["oslo", "rome"], [4, 4])
        assert sorted(data.seen.train.x[:, 0].tolist()) == [1.5, 1.5, 2, 2, 3, 3, 4, 4]
    assert data_of(Table(both, label_column="kind", unseen_clients="rome")).unseen.names == ["rome"]
    refused("the folder has no table", lambda: Table(str(tmp_path), label_column="kind"))


# ---------------------------------------------------------------------- missing values
GAPS = """who,age,town,fold,kind
ann,30,Rome,train,yes
ann,,Oslo,train,no
ann,90,,test,no
bob,?,Oslo,train,yes
bob,20,Oslo,train,no
bob,25,Oslo,train,no
bob,20,Bern,test,yes
cy,80,Oslo,train,no
cy,,Rome,test,yes
"""


def inputs(tmp_path, **options):
    options = {"split_column": "fold", "missing_values": "?", "unseen_clients": ("cy",), "standardize": False} | options
    return data_of(table(tmp_path, GAPS, **{"unknown_categories": "zeros"} | options))


@pytest.mark.parametrize(
    ("impute", "by", "ann", "bob", "cy"),
    [
        ("mean", "all", 25, 25, 25),
        ("median", "all", 25, 25, 25),
        ("most_frequent", "all", 20, 20, 20),
        ("constant", "all", -1, -1, -1),
        ("mean", "client", 30, 22.5, 80),
        ("median", "client", 30, 22.5, 80),
    ],
)
def test_missing_numbers_are_filled_in_from_training_rows(tmp_path, impute, by, ann, bob, cy):
    value = {"impute_value": -1.0} if impute == "constant" else {}
    data = inputs(tmp_path, impute=impute, impute_by=by, **value)
    ages = data.seen.train.x[:, 0].tolist()
    assert (ages[1], ages[2], data.unseen.test.x[0, 0].item()) == (ann, bob, cy)
    assert ages[0] == 30


def test_indicators_and_texts_that_are_missing(tmp_path):
    data = inputs(tmp_path, impute="mean", indicators=True)
    assert data.seen.columns.input_names == ["age", "age is missing", "town=Oslo", "town=Rome"]
    assert data.seen.train.x[:, 1].tolist() == [0, 1, 1, 0, 0]
    assert data.seen.test.x[0].tolist() == [90, 0, 0, 0]  # no town
    assert inputs(tmp_path, impute="most_frequent").seen.test.x[0].tolist() == [90, 1, 0]
    assert "what fills in missing values" in data.seen.learned


def test_a_site_without_any_value_of_a_column(tmp_path, capsys):
    rows = [f"ann,{age},{age % 3},yes" for age in range(12)] + [f"bob,{age},,no" for age in range(12)]
    text = "\n".join(["who,age,ca,kind", *rows])
    data = data_of(table(tmp_path, text, impute="median", impute_by="client"), test_fraction=0)
    assert data.seen.train.x.isfinite().all()
    assert "columns with one value at a client: ca at bob (empty)" in capsys.readouterr().err


def test_a_checkpoint_fills_in_what_later_clients_lack(tmp_path):
    for by, wanted in (("all", 25.0), ("client", 7.0)):
        data = inputs(tmp_path, impute="mean", impute_by=by)
        facts = TrainingFacts.from_plain(data.facts(weighting="samples", seed=0, num_rounds=1).plain())
        lines = "who,age,town,fold,kind", "dan,7,,train,yes", "dan,?,Oslo,train,no", "dan,,Oslo,test,"
        (tmp_path / "new.csv").write_text("\n".join(lines))
        dan = read_later(tmp_path / "new.csv", facts.columns, facts.class_names)
        assert (dan.x[:, 0].tolist(), dan.labelled.tolist()) == ([7, wanted, wanted], [True, True, False])


def test_medians_of_clients_are_those_of_all_rows():
    rng = np.random.default_rng(0)
    for total in (1, 2, 7, 40):
        rows = (rng.normal(size=(total, 3)) * [1e-30, 1, 1e30]).astype(np.float32)
        rows[rng.random(rows.shape) < 0.3] = np.nan
        rows[0] = [0.0, -0.0, -1e30]
        found = learned_fills("median", np.array_split(rows, 3))
        assert found == pytest.approx(np.nanmedian(rows.astype(np.float64), axis=0), rel=1e-12, abs=0)


def test_the_most_frequent_number_of_all_clients():
    clients = [np.array([[1.0], [1.0], [7.0]]), np.array([[7.0], [7.0], [np.nan]]), np.array([[2.0]])]
    assert learned_fills("most_frequent", clients).tolist() == [7]
    assert learned_fills("most_frequent", [*clients, np.array([[1.0]])]).tolist() == [1]  # of equally frequent ones


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"indicators": True}, "indicators is True, but impute is null; give --data.dataset.impute median"),
        ({"impute": "constant", "impute_by": "client"}, "impute_by is client, but impute is constant"),
        (
            {"missing_values": "height=0"},
            "missing_values 'height=0': 'height' is no input column; choose from age, town",
        ),
        ({"missing_values": "age=30,age=80,age=20,age=25,?", "impute": "mean"}, "no training row has a value of age"),
        ({}, "row 2, column 'age': no value; of 9 rows age in 3, town in 1 have none"),
    ],
)
def test_wrong_settings_of_missing_values(tmp_path, options, message):
    given = {"missing_values": "?", "split_column": "fold", "unknown_categories": "zeros"} | options
    refused(message, lambda: table(tmp_path, GAPS, **given))


def test_marks_of_one_column_leave_the_others_alone(tmp_path):
    text = "who,chol,old,kind\nann,0,0,yes\nann,5,1,no\nbob,7,0,yes\nbob,0,1,no\n"
    data = data_of(table(tmp_path, text, missing_values="chol=0", impute="mean", standardize=False), test_fraction=0)
    assert data.seen.train.x[:, 0].unique().tolist() == [5, 6, 7]
    assert data.seen.train.x[:, 1].unique().tolist() == [0, 1]


DATED = """site,visit,dose,y
ann,2024-01-01,1,0.5
ann,2024-01-03 12:00,2,3.5
bob,1970-01-02,3,0.25
bob,2024-02-29,4,11.0
"""


def test_dates_are_days_or_parts(tmp_path):
    options = {"client_column": "site", "label_column": "y", "date_columns": "visit", "standardize": False}
    seen = data_of(table(tmp_path, DATED, **options), test_fraction=0).seen
    assert seen.columns.input_names == ["visit", "dose"]
    assert sorted(seen.train.x[:, 0].tolist()) == [1, 19723, 19725.5, 19782]
    seen = data_of(table(tmp_path, DATED, **options, date_parts="month,weekday"), test_fraction=0).seen
    assert seen.columns.input_names == ["visit month", "visit weekday", "dose"]
    assert sorted(seen.train.x[:, 0].tolist()) == [1, 1, 1, 2]
    assert sorted(seen.train.x[:, 1].tolist()) == [0, 2, 3, 4]
    refused(
        "row 3, column 'visit': 'May 4' is no date; write",
        lambda: table(tmp_path, DATED.replace("1970-01-02", "May 4"), **options),
    )
    refused(
        "row 1, column 'dose': 1 is no date",
        lambda: table(tmp_path, DATED, **options | {"date_columns": "dose"}),
    )
    refused("date_parts is 'moon'; give some of year", lambda: table(tmp_path, DATED, **options, date_parts="moon"))
    new = tmp_path / "new.csv"
    new.write_text("extra,dose,visit,site,y\n1,5,2024-03-01,cy,1.0\n")
    assert read_later(new, seen.columns, None).x.tolist() == [[3, 4, 5]]


def test_labels_of_a_regression_are_standardised_by_the_training_rows(tmp_path, capsys):
    options = {"client_column": "site", "label_column": "y", "ignored_columns": "visit"}
    data = data_of(table(tmp_path, DATED, **options), test_fraction=0)
    standard = data.seen.train.y
    assert (float(standard.mean()), float(standard.std(correction=0))) == pytest.approx((0, 1), abs=1e-6)
    mean, std = data.target.label_scale
    y = data.target.in_units(standard)
    assert sorted(round(one, 5) for one in y.tolist()) == [0.25, 0.5, 3.5, 11.0]
    assert "labels are standardised by the mean 3.812 and deviation 4.34" in capsys.readouterr().err
    outputs = torch.tensor([[0.5], [-1.0], [0.0], [2.0]])
    torch.testing.assert_close(data.target.losses(outputs, standard), 0.5 * (outputs[:, 0] - standard).square())
    loss, square = data.target.score(outputs, standard)
    shown = data.target.in_units(data.target.shown(outputs))
    torch.testing.assert_close(shown, mean + std * outputs[:, 0].double())
    torch.testing.assert_close(loss, 0.5 * (outputs[:, 0] - standard).square())
    torch.testing.assert_close(square.double(), (shown - y).square())
    facts = data.facts(weighting="samples", seed=0, num_rounds=1)
    assert TrainingFacts.from_plain(facts.plain()).target == data.target != Regression()
    assert "mean and standard deviation of labels" in facts.learned
    plain = data_of(
        table(tmp_path, DATED.replace(".5", "5").replace("11.0", "900.5"), **options, standardize_labels=False),
        test_fraction=0,
    )
    assert plain.target == Regression()
    assert "the deviation of the training labels is 4" in capsys.readouterr().err


def test_queries_stand_beside_labels(tmp_path):
    options = {"client_column": "site", "label_column": "y", "query_column": "dose", "ignored_columns": "visit"}
    text = (
        DATED.replace("visit,dose", "visit,dose,x")
        .replace(",1,", ",1,7,")
        .replace(",2,", ",2,8,")
        .replace(",3,", ",3,9,")
        .replace(",4,", ",4,6,")
    )
    data = FederatedDataModule(table(tmp_path, text, **options), test_fraction=0)
    data.given_target = Ranking(relevance="graded")
    data.setup()
    assert sorted(data.seen.train.y[:, 1].tolist()) == [1, 2, 3, 4]
    assert data.input_shape == (1,)


def test_a_rare_class_is_named_with_the_accuracy_of_guessing(tmp_path, capsys):
    rng = np.random.default_rng(0)

    def said(rare):
        kinds = np.array(["no"] * (200 - rare) + ["yes"] * rare)
        frame = pd.DataFrame({"who": list("ab") * 100, "age": rng.normal(size=200), "kind": kinds})
        frame.to_csv(tmp_path / "rare.csv", index=False)
        data_of(Table(str(tmp_path / "rare.csv"), "who", "kind"), test_fraction=0)
        return capsys.readouterr().err

    assert "4 % of the training labels are 'yes', and always guessing 'no' has an accuracy of 0.960" in said(8)
    assert "always guessing" not in said(12)
