"""Tables are read as text first: names stay as they are written, and what else cells may mean is said."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest

from lit_fed.core.likelihood import Ranking
from lit_fed.core.targets import Multiclass, Regression
from lit_fed.data import Table
from lit_fed.data.data_sets.table import read_later
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError


def loaded(data, **settings):
    data = data if isinstance(data, FederatedDataModule) else FederatedDataModule(data, test_fraction=0, **settings)
    data.setup()
    return data


def table(tmp_path, text, name="t.csv", **options):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return Table(str(tmp_path / name), **{"client_column": "who", "label_column": "y"} | options)


def rows(clients, labels=("no", "yes")):
    """Two rows of each client."""
    return "who,x,y\n" + "".join(f"{one},{row}.5,{labels[row % len(labels)]}\n" for one in clients for row in range(2))


def frame_of(clients, labels=("no", "yes"), **more):
    table = {"who": np.repeat(clients, 2), "x": np.arange(2.0 * len(clients)), "y": [*labels] * len(clients)}
    return pd.DataFrame(table | more)


def of_frame(frame, **options):
    return loaded(FederatedDataModule.from_frame(frame, client="who", label="y", test_fraction=0, table=options))


def facts_of(data):
    return TrainingFacts.from_plain(data.facts(weighting="samples", seed=0, num_rounds=1).plain())


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (["1", "01", "001"], ["001", "01", "1"]),
        (["1e3", "1000"], ["1000", "1e3"]),
        (["12345678901234567", "12345678901234568"], ["12345678901234567", "12345678901234568"]),
        (["1234567890123456789012", "1234567890123456789013"], ["1234567890123456789012", "1234567890123456789013"]),
        (["10", "9", "2"], ["2", "9", "10"]),
        (["2.0", "10.0"], ["2", "10"]),
        (["true", "True", "False"], ["False", "True", "true"]),
        (["DE", "NA", "nan"], ["DE", "NA", "nan"]),
    ],
)
def test_clients_are_called_as_they_are_written(tmp_path, written, names):
    assert loaded(table(tmp_path, rows(written))).seen.names == names


def test_what_becomes_one_name_and_what_is_a_name_is_said(tmp_path, capsys):
    assert loaded(table(tmp_path, rows(["1", "1.0", "2"]))).seen.names == ["1", "2"]
    assert "column 'who': '1', '1.0' are one name" in capsys.readouterr().err
    data = loaded(table(tmp_path, rows(["a", "NA", "b"], ["01", "2"]).replace("a,1.5,2", "a,1.5,1")))
    said = capsys.readouterr().err
    assert (data.seen.names, data.seen.class_names) == (["NA", "a", "b"], ("1", "2"))
    assert "column 'who': 'NA' is a name in 2 rows; only empty cells are missing" in said
    assert "column 'y': '01', '1' are one name" in said


def test_a_class_may_be_called_na(tmp_path, capsys):
    data = loaded(table(tmp_path, rows(["a", "b"], ["NA", "yes"])))
    assert data.seen.class_names == ("NA", "yes")
    assert "'NA' is a name in 2 rows" in capsys.readouterr().err
    facts = facts_of(data)
    (tmp_path / "new.csv").write_text("who,x,y\nc,1,NA\nc,2,yes\nc,3,\n")
    assert read_later(tmp_path / "new.csv", facts.columns, facts.class_names).labelled.tolist() == [True, True, False]
    other = read_later(tmp_path / "new.csv", facts.columns, ("maybe", "yes"))
    assert other.labelled.tolist() == [False, True, False]


def test_a_client_is_found_again_by_its_written_name(tmp_path):
    facts = facts_of(loaded(table(tmp_path, rows(["01", "07"]))))
    (tmp_path / "new.csv").write_text(rows(["01", "1", "8"]))
    names = read_later(tmp_path / "new.csv", facts.columns, facts.class_names).names
    assert (names, facts.took_part(names)) == (["01", "1", "8"], ["01"])


def test_categories_stay_as_they_are_written(tmp_path):
    text = "who,zip,y\na,01,no\na,1,yes\nb,?,no\nb,1,yes\n"
    data = loaded(table(tmp_path, text, category_columns="zip", missing_values="?", impute="most_frequent"))
    assert data.seen.columns.input_names == ["zip=01", "zip=1"]
    text = "who,zip,y\na,3.0,no\na,7.0,yes\nb,?,no\nb,7.0,yes\n"
    data = loaded(table(tmp_path, text, category_columns="zip", missing_values="?", impute="most_frequent"))
    assert data.seen.columns.input_names == ["zip=3", "zip=7"]


@pytest.mark.parametrize("ending", ["csv", "parquet", "feather", "xlsx"])
@pytest.mark.parametrize("clients", [[1, 2, 10], ["01", "2", "10"], [True, False]])
def test_every_format_gives_the_same_clients(tmp_path, clients, ending):
    pytest.importorskip({"xlsx": "openpyxl", "csv": "pandas"}.get(ending, "pyarrow"))
    frame = frame_of(clients)
    write = {"csv": frame.to_csv, "xlsx": frame.to_excel, "parquet": frame.to_parquet, "feather": frame.to_feather}
    write[ending](tmp_path / f"t.{ending}", **{"index": False} if ending in ("csv", "xlsx") else {})
    data = loaded(Table(str(tmp_path / f"t.{ending}"), client_column="who", label_column="y"))
    wanted = of_frame(frame)
    assert (data.seen.names, data.fingerprint) == (wanted.seen.names, wanted.fingerprint)


def test_files_of_one_name_are_refused_and_other_files_named(tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        table(tmp_path / name, "x,y\n1,no\n2,yes\n", name="oslo.csv")
    with pytest.raises(ConfigError, match="two files are called 'oslo', and name their clients; rename one"):
        loaded(Table(f"{tmp_path / 'a/oslo.csv'}, {tmp_path / 'b/oslo.csv'}", label_column="y"))
    (tmp_path / "a/rome.xls").write_bytes(b"")
    (tmp_path / "a/bern.csv").write_text("x,y\n1,no\n2,yes\n")
    assert loaded(Table(str(tmp_path / "a"), label_column="y")).seen.names == ["bern", "oslo"]
    assert "rome.xls: no table, and left out" in capsys.readouterr().err


def test_values_that_become_one_name_in_a_frame_are_said(capsys):
    assert of_frame(frame_of(["a", "b"]).assign(who=[1, "1", 2, 2])).seen.names == ["1", "2"]
    assert "column 'who': values of different types are one name, such as 1 and '1'" in capsys.readouterr().err


def test_files_of_different_types_keep_long_numbers(tmp_path):
    pytest.importorskip("pyarrow")
    frame_of([12345678901234567, 12345678901234569]).to_parquet(tmp_path / "a.parquet")
    frame_of([1.0, 2.0]).to_parquet(tmp_path / "b.parquet")
    data = loaded(Table(str(tmp_path), client_column="who", label_column="y"))
    assert data.seen.names == ["1", "2", "12345678901234567", "12345678901234569"]


# ---------------------------------------------------------------------- headers, indices, sheets
def test_two_columns_of_one_name_are_refused(tmp_path):
    text = "who,x1,y,y\n" + "a,1,no,no\nb,2,yes,yes\n" * 5
    for header in ("who,x1,y,y", "who,x1,y, y", "who,x1,y,y "):
        with pytest.raises(ConfigError, match="two columns are called 'y'; rename one"):
            loaded(table(tmp_path, text.replace("who,x1,y,y", header)))


def test_spaces_around_names_of_columns_are_left_out(tmp_path):
    data = loaded(table(tmp_path, rows(["a", "b"]).replace("who,x,y", " who, x ,y ")))
    assert (data.seen.names, data.seen.columns.input_names) == (["a", "b"], ["x"])
    assert of_frame(frame_of(["a", "b"]).rename(columns={"who": "who "})).seen.names == ["a", "b"]


def test_an_index_with_a_name_is_a_column(tmp_path):
    pytest.importorskip("pyarrow")
    frame = frame_of(["a", "b"]).set_index("who")
    frame.to_parquet(tmp_path / "t.parquet")
    stored = loaded(Table(str(tmp_path / "t.parquet"), client_column="who", label_column="y"))
    assert stored.seen.names == of_frame(frame).seen.names == ["a", "b"]
    with pytest.raises(ConfigError, match="two columns are called 'who'"):
        of_frame(frame.assign(who=1))


def test_a_workbook_of_several_sheets_is_refused_by_their_names(tmp_path):
    pytest.importorskip("openpyxl")
    frame = frame_of(["a", "b"])
    for names in (["north", "south"], ["north", "empty"]):
        with pd.ExcelWriter(tmp_path / "t.xlsx") as file:
            for name in names:
                (frame.iloc[:0, :0] if name == "empty" else frame).to_excel(file, sheet_name=name, index=False)
        data = Table(str(tmp_path / "t.xlsx"), client_column="who", label_column="y")
        if "empty" in names:
            assert loaded(data).seen.names == ["a", "b"]
            continue
        with pytest.raises(ConfigError, match="has 2 sheets, north, south; save the one to read"):
            loaded(data)


# ---------------------------------------------------------------------- encodings, lines, separators
@pytest.mark.parametrize(
    ("make", "message", "options"),
    [
        (lambda text: text.encode("utf-16"), "--data.dataset.encoding utf-16", {"encoding": "utf-16"}),
        (lambda text: text.encode("latin-1"), "--data.dataset.encoding latin-1", {"encoding": "latin-1"}),
        (
            lambda text: f"# exported, today\n{text}".encode(),
            "the first row has more cells than the header; correct it, quote cells with separators, or set "
            "--data.dataset.skip_lines 1 if a line is ahead of the header",
            {"skip_lines": 1},
        ),
        (lambda text: text.replace("0.5,no", "0.5,no,9", 1).encode(), "the first row has more cells", None),
        (lambda text: text.replace("1.5,yes", "1.5,yes,9", 1).encode(), "line 3 has more cells", None),
    ],
)
def test_files_that_are_read_with_an_option_name_it(tmp_path, make, message, options):
    content = make(rows(["Köln", "Bonn"]))
    with pytest.raises(ConfigError) as caught:
        loaded(table(tmp_path, content))
    assert message in str(caught.value)
    if options is not None:
        data = loaded(table(tmp_path, content, **options))
        assert data.seen.names == ["Bonn", "Köln"]
        facts = facts_of(data)
        assert read_later(tmp_path / "t.csv", facts.columns, facts.class_names).names == ["Bonn", "Köln"]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_separators_are_recognised(tmp_path, capsys, separator):
    text = rows(["a", "b"]).replace(",", separator).replace(".5", ",5")
    data = loaded(table(tmp_path, text, decimal=",", standardize=False))
    assert sorted(data.seen.train.x[:, 0].tolist()) == [0.5, 0.5, 1.5, 1.5]
    assert f"its values are separated by {separator!r}" in capsys.readouterr().err


# ---------------------------------------------------------------------- other notations, other types
@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (['"1,5"', '"2,5"', '"3,25"', "none"], "75% of its texts are numbers in another notation, such as '1,5'"),
        (["10 %", "20 %"], "100% of its texts are numbers in another notation, such as '10 %'"),
        (["€3", "12.50 EUR"], "numbers in another notation, such as '€3'"),
        (["31.01.2024", "28.02.2024"], "100% of its texts are dates or times, such as '31.01.2024'"),
        (["3 May 2024", "5 June 2024"], "dates or times"),
        (["2024-01-31", "2024-02-28"], "name dates in --data.dataset.date_columns"),
        (["10-20", "20-30"], None),
        (["10.0.0.1", "10.0.0.2"], None),
        (["1.2.3", "1.10.0"], None),
        (['"1 234,5"', "12'000"], "numbers in another notation"),
        (["A1", "B2"], None),
    ],
)
def test_texts_that_stand_for_quantities_are_said_and_refused_as_labels(tmp_path, capsys, cells, said):
    text = "who,x,y\n" + "".join(f"{'ab'[row % 2]},{one},{row % 3 % 2}\n" for row, one in enumerate(cells * 3))
    loaded(table(tmp_path, text))
    found = capsys.readouterr().err
    assert (said or "") in found
    assert ("of its texts" in found) == (said is not None)
    as_label = {"label_column": "x", "feature_columns": "y"}
    if said is not None:
        with pytest.raises(ConfigError, match=r"of its texts.*give --data.dataset.task classification"):
            loaded(table(tmp_path, text, **as_label))
    assert loaded(table(tmp_path, text, **as_label, task="classification")).seen.class_names is not None


def test_quantities_are_read_by_the_options_that_are_named(tmp_path):
    text = "who;x;day;y\na;1,5;31.01.1970;no\na;2;01.02.1970;yes\nb;-0,25;01.01.1970;no\nb;3;02.01.1970;yes\n"
    with pytest.raises(ConfigError, match=r"row 1, column 'x': '1,5' is not a number.*set --data.dataset.decimal ,"):
        loaded(table(tmp_path, text))
    options = {"decimal": ",", "date_columns": "day", "date_format": "%d.%m.%Y", "standardize": False}
    data = loaded(table(tmp_path, text, **options))
    wanted = [[-0.25, 0], [1.5, 30], [2, 31], [3, 1]]
    assert sorted(data.seen.train.x.tolist()) == wanted
    facts = facts_of(data)
    assert sorted(read_later(tmp_path / "t.csv", facts.columns, facts.class_names).x.tolist()) == wanted
    with pytest.raises(ConfigError, match=r"'31.01.1970' is no date; write .* or set --data.dataset.date_format"):
        loaded(table(tmp_path, text, **options | {"date_format": "ISO8601"}))
    with pytest.raises(ConfigError, match="there is a column 'day month' already; rename it"):
        loaded(table(tmp_path, text.replace("x;", "day month;"), **options, date_parts="month"))
    with pytest.raises(ConfigError, match=r"row 1, column 'day': '31.01.1970' is no date; write it as %Y"):
        loaded(table(tmp_path, text, **options | {"date_format": "%Y"}))


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        (pd.Series([0, 1, 2, 3], dtype=object), [0, 1, 2, 3]),
        (pd.Series([decimal.Decimal(one) / 4 for one in range(4)]), [0, 0.25, 0.5, 0.75]),
        (pd.Series([True, None, False, True], dtype=object), [0, 0, 1, 1]),
        (pd.Series(pd.Categorical([0, 1, 1, 10])), ["x=0", "x=1", "x=10"]),
        (pd.Series([None] * 4, dtype=object), "no training row has a value of x; leave the column out"),
        (pd.Series([{"a": 1}] * 4), "a dict is neither number nor text"),
        (pd.Series([datetime.time(1)] * 4), "a time is neither number nor text"),
        (pd.Series(pd.to_timedelta([1, 2, 3, 4], unit="s")), "holds timedelta64"),
    ],
)
def test_other_types_are_used_or_refused(cells, wanted):
    options = {"impute": "constant", "standardize": False}
    if isinstance(wanted, str):
        with pytest.raises(ConfigError, match=wanted):
            of_frame(frame_of(["a", "b"]).assign(x=cells), **options)
        return
    seen = of_frame(frame_of(["a", "b"]).assign(x=cells), **options).seen
    assert wanted == (sorted(seen.train.x[:, 0].tolist()) if wanted[0] == 0 else seen.columns.input_names)


def test_types_of_arrow():
    arrow = pytest.importorskip("pyarrow")
    frame = frame_of(["a", "b"]).assign(
        flag=pd.Series([True, None, False, True], dtype="bool[pyarrow]"),
        price=pd.Series([decimal.Decimal("0.25"), None, 1, 2], dtype=pd.ArrowDtype(arrow.decimal128(5, 2))),
        town=pd.Series(["Rome", "", None, "Oslo"], dtype=pd.ArrowDtype(arrow.string())),
    )
    seen = of_frame(frame.drop(columns="x"), impute="constant", standardize=False).seen
    assert seen.columns.input_names == ["flag", "price", "town=Oslo", "town=Rome"]
    assert sorted(seen.train.x.tolist()) == [[0, 0, 0, 0], [0, 1, 0, 0], [1, 0.25, 0, 1], [1, 2, 1, 0]]


def test_labels_of_decimals_are_quantities():
    y = [decimal.Decimal(one) / 8 for one in range(4)]
    assert of_frame(frame_of(["a", "b"]).assign(y=y), standardize_labels=False).target == Regression()
    assert of_frame(frame_of(["a", "b"]).assign(y=pd.Categorical([3, 1, 2, 3]))).target == Multiclass(3)


def test_numbers_of_queries_that_float32_cannot_hold_are_refused():
    frame = frame_of(["a", "b"], (1.0, 2.0)).assign(q=[16777216, 16777217, 1, 1])
    data = FederatedDataModule.from_frame(frame, client="who", label="y", table={"query_column": "q"})
    data.given_target = Ranking(relevance="graded")
    with pytest.raises(ConfigError, match=r"column 'q': 16777217.0 is inexact in float32; count from 0"):
        data.setup()


# ---------------------------------------------------------------------- columns that never vary within a client
def test_columns_that_never_vary_within_a_client_are_named(capsys):
    frame = frame_of(["a", "b", "c"]).assign(arm=[0, 0, 1, 1, 1, 1], kind=list("uuvvvv"), one=7)
    of_frame(frame)
    assert (
        "the frame: arm, kind never vary within a client: their effects cannot be told from the client's"
        in capsys.readouterr().err
    )
    of_frame(frame.drop(columns="kind"))
    assert (
        "the frame: arm never varies within a client: its effect cannot be told from the client's"
        in capsys.readouterr().err
    )
    of_frame(frame[["who", "x", "y", "one"]])
    assert "within a client" not in capsys.readouterr().err
