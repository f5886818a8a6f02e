"""Attacks by files that tools read: run folders, records and tasks of others. Each is refused by file and entry."""

import gzip
import io
import json
import os
import random
import re
import resource
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torchvision
import yaml
from attacks_in_settings import FORBIDDEN
from invented_records import invented
from test_compare import config, write_run
from watched import watch

from lit_fed.benchmark import command, records
from lit_fed.benchmark.task import read_task
from lit_fed.cli import UntestedCLI
from lit_fed.command_line.arguments import configs_folder
from lit_fed.command_line.compare import compare, comparison_table
from lit_fed.command_line.report import write_report
from lit_fed.data.data_sets import rows as rows_of_tables
from lit_fed.data.data_sets.image_folder import ImageFolder
from lit_fed.data.data_sets.npz import read_npz
from lit_fed.data.data_sets.rows import read_rows
from lit_fed.data.data_sets.table import Table
from lit_fed.data.data_sets.torch_dataset import TorchDataset
from lit_fed.errors import ConfigError
from lit_fed.pictures import style
from lit_fed.system import foreign_files, machine
from lit_fed.system.whitelist import Whitelist
from lit_fed.training.finished_runs import grouped, metric_of, named, read_run

BOMB = "\n".join(["a: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))])
"""700 bytes of YAML aliases: 2⁴⁰ values."""

CLIENTS = "client,population,num_train,num_test,accuracy,loss\n"


def others(seen, *places):
    """What was done beside opening files in these places."""
    return [one for one in seen if not one.startswith(tuple(f"open {os.path.realpath(place)}" for place in places))]


def read(folder):
    """What `compare` and `report` make of a run before they draw."""
    run = read_run(folder)
    metric = metric_of([run], None)
    comparison_table(named(grouped([run])), metric)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.yaml", BOMB, "line 2 has an alias, .a0"), ("config.yaml", "[" * 5000, "config.yaml cannot be read"),
        ("config.yaml", "model: 3", "model is not an object"), ("config.yaml", "data: []", "data is not an object"),
        ("config.yaml", "model: {solver: null}", "model.solver is not an object"),
        ("config.yaml", "x: !!binary aGk=", "x is not a text, a boolean or a number"),
        ("config.yaml", "[1]: 2", "config.yaml cannot be read"),
        ("config.yaml", "x: !!python/name:os.system", "could not determine a constructor"),
        ("config.yaml", "x: \x00", "config.yaml"),
        ("summary.json", "[]", "is not an object"), ("summary.json", '{"rounds": null}', "rounds is not a number"),
        ("summary.json", '{"test/seen/accuracy": "1"}', "test/seen/accuracy is not a number"),
        ("summary.json", '{"seconds": 1' + "0" * 400 + "}", "seconds is not .* at most 64 bits"),
        ("summary.json", '{"larger_is_better/accuracy": 3}', "accuracy is not True or False"),
        ("summary.json", "{}", "no result of the clients"), ("summary.json", b"\xff\xfe\x00", "summary.json cannot be"),
        ("summary.json", "[" * 100000, "summary.json cannot be read"),
        ("clients.csv", "client\nann\n", "no column population"), ("clients.csv", "", "clients.csv cannot be read"),
        ("clients.csv", CLIENTS + "ann,seen,1,1,high,1\n", "'accuracy' holds something else than numbers"),
        ("clients.csv", CLIENTS + "ann,seen,-1,1,1,1\n", "num_train holds something else than whole numbers"),
        ("clients.csv", CLIENTS + "ann,seen,1,1,1,1,7\n", "rows are longer than its header"),
        ("metrics.csv", "step\nlast\n", "column step holds something else than whole numbers"),
        ("metrics.csv", "step,comm/bytes_up,comm/bytes_down\n1,1,1\n1,1,1\n", "step 1 is there twice"),
        ("metrics.csv", "step,loss\n1,=1+1\n", "'loss' holds something else than numbers"),
    ],
)  # fmt: skip
def test_files_of_a_run_have_a_form(tmp_path, name, content, said):
    run = write_run(tmp_path / "run", config())
    (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with watch(FORBIDDEN) as seen, pytest.raises(ConfigError, match=said) as refused:
        read(run)
    assert str(run) in str(refused.value)
    assert not others(seen, run)


def test_files_have_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_files, "MOST_BYTES", 1000)
    monkeypatch.setattr(foreign_files, "MOST_OF_TABLE", 1000)
    for name in ("summary.json", "config.yaml", "clients.csv", "metrics.csv"):
        run = write_run(tmp_path / name, config())
        with (run / name).open("a") as file:
            file.write(" " * 1000)
        with pytest.raises(ConfigError, match=rf"{name} has 1,\d+ bytes, and at most 1,000 are read"):
            read(run)
    packed = tmp_path / "x.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"algorithm": "FedAvg", "task": "heart"}\n' * 100))
    with pytest.raises(ConfigError, match="unpacks to more than 1,000 bytes"):
        records.read_records(packed)


def damaged(rng, value):
    """A copy of plain values in which one, drawn by chance, is another."""
    others = (None, True, -1, 10**30, 1e308, float("nan"), "x", "\x1b[2J", [], {}, [[]], {"class_path": 3})
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        changed = value.copy()
        changed[key] = damaged(rng, value[key])
        return changed
    return rng.choice(others)


def changed_table(rng, text):
    rows = [line.split(",") for line in text.splitlines()]
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = rng.choice(["", "x", "-1", "1e999", "nan", "True", "0x10", '"', "1,2", "9" * 30])
    return "\n".join(map(",".join, rows))


def changed_values(rng, text):
    return json.dumps(damaged(rng, yaml.safe_load(text)))


def test_fuzz_run_folders(tmp_path):
    """Whatever is changed in them, they are read or refused."""
    rng = random.Random(3)
    run = write_run(tmp_path / "run", config())
    read(run)
    kept = {path: path.read_text() for path in run.iterdir()}
    refused = 0
    for _ in range(150):
        path = rng.choice(sorted(kept))
        path.write_text(changed_table(rng, kept[path]) if path.suffix == ".csv" else changed_values(rng, kept[path]))
        said = None
        try:
            read(run)
        except ConfigError as error:
            said = str(error)
        refused += said is not None
        assert said is None or str(run) in said
        path.write_text(kept[path])
    assert refused > 50


def test_a_text_in_a_checkpoint_with_aliases_is_a_configuration():
    """It is refused without being read: merged mappings of aliases take as long as their size."""
    merged = "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 40))])
    known = Whitelist(Path("x.ckpt"), (), bool, (), ())
    assert known.holds_configuration(merged, "anything")
    assert not known.holds_configuration("*.weight", "names")


# ---------------------------------------------------------------------- records and tasks
@pytest.fixture
def record():
    return invented(read_task("digits_label_groups"))


@pytest.fixture
def canary(tmp_path, monkeypatch):
    (tmp_path / "canary.py").write_text("raise SystemExit('run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    assert "canary" not in sys.modules


@pytest.mark.parametrize("change", [{"algorithm": "canary.K"}, {"task": "{}/other.yaml"}, {"task": "/dev/zero"}])
def test_a_record_imports_and_opens_nothing(canary, record, capsys, change):
    change = {name: text.format(canary) for name, text in change.items()}
    path = canary / "digits_label_groups.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(record | change).encode()))
    with watch(FORBIDDEN) as seen, pytest.raises(SystemExit) as stopped:
        command.run_benchmark(["submit-check", str(path)], UntestedCLI)
    assert stopped.value.code == 1
    assert not others(seen, path)
    said = capsys.readouterr().out
    assert ("add --trust canary" in said) if "algorithm" in change else ("give its file by --tasks" in said)


def test_showing_a_record_imports_nothing(canary, record, capsys):
    records.write_record(canary, record | {"algorithm": "canary.K"})
    with watch(FORBIDDEN) as seen:
        command.run_benchmark(["show", "--tasks", "digits_label_groups", "--output", str(canary)], UntestedCLI)
    assert not others(seen, configs_folder(), records.stored_folder(), canary / "digits_label_groups.jsonl.gz")
    assert "the trials of the record of canary.K are not checked" in capsys.readouterr().err


def test_a_trusted_module_is_imported(tmp_path, record, monkeypatch, capsys):
    (tmp_path / "trusted_one.py").write_text("from lit_fed.algorithms.fedavg import FedAvg\nclass K(FedAvg): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    records.write_record(tmp_path, record | {"algorithm": "trusted_one.K"})
    line = ["submit-check", str(tmp_path / "digits_label_groups.jsonl.gz"), "--trust", "trusted_one"]
    with pytest.raises(SystemExit):
        command.run_benchmark(line, UntestedCLI)
    assert "class_path differs from the task" in capsys.readouterr().out
    assert sys.modules.pop("trusted_one")


def test_fuzz_records(record):
    """Each changed record has a problem in words, or none; what is shown of one without problems can be computed."""
    rng, task = random.Random(5), read_task("digits_label_groups")
    assert not list(records.problems(record, task, None))
    found = 0
    for _ in range(300):
        changed = damaged(rng, record)
        if isinstance(changed, dict) and {"algorithm", "task"} <= changed.keys():
            wrong = list(records.problems(changed, task, None))
            found += bool(wrong)
            if not wrong:
                command._table(task, {"FedAvg": records.with_clients(changed, task)}, "FedAvg")
    assert found > 150


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{}", "content.0..algorithm is not there"),
        (b'{"algorithm": 3, "task": "x"}', "algorithm is not a printable"),
        (b"\x1f\x8bnothing", "cannot be read"), (b"[" * 100000, "cannot be read"), (b"3", "is not an object"),
    ],
)  # fmt: skip
def test_a_file_of_records_has_a_form(tmp_path, content, said):
    (tmp_path / "x.jsonl.gz").write_bytes(content if content[:1] == b"\x1f" else gzip.compress(content))
    with pytest.raises(ConfigError, match=rf"x\.jsonl\.gz.*{said}"):
        records.read_records(tmp_path / "x.jsonl.gz")


OTHER_CLIENTS = json.dumps(
    {"cut": 0, "digests": {"a": ["0", "1", "2"]}, "test_samples": {}, "test_persons": {}, "unseen": []}
)

TASK = {"metric": "accuracy", "rounds": 2, "network": {"class_path": "Linear"}, "dataset": {"class_path": "Table"}}


@pytest.mark.parametrize(
    ("change", "digests", "said"),
    [
        (BOMB, "", "has an alias"), ({"cuts": 10**9}, "", "cuts is 1000000000; give a whole number >= 1, at most"),
        ({"rounds": True}, "", "rounds is True"), ({}, '{"cut": 0}', "content.0..digests is not there"),
        ({}, OTHER_CLIENTS, "has other clients in"),
    ],
)  # fmt: skip
def test_a_task_has_a_form(tmp_path, change, digests, said):
    (tmp_path / "t.yaml").write_text(change if isinstance(change, str) else yaml.safe_dump(TASK | change))
    (tmp_path / "t.samples.jsonl").write_text(digests)
    with pytest.raises(ConfigError, match=said):
        read_task(str(tmp_path / "t.yaml")).known_clients()


# ---------------------------------------------------------------------- data
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n(/tmp/x) (w) file\n"


def test_a_picture_starts_no_program(tmp_path):
    """PostScript under the name of a picture, read by lit_fed, and by a data set of another library."""
    for client in ("ann", "ben"):
        for label in ("cat", "dog"):
            (tmp_path / client / label).mkdir(parents=True)
            (tmp_path / client / label / "a.png").write_bytes(EPS)
    with watch(FORBIDDEN) as seen, pytest.raises(ConfigError, match=r"a\.png: cannot be read as an image"):
        ImageFolder(str(tmp_path), image_size=8, channels=3, cache_dir=None).load()
    assert not others(seen, tmp_path)
    pictures = torchvision.datasets.ImageFolder(str(tmp_path / "ann"))
    with watch(FORBIDDEN) as seen, pytest.raises(ConfigError, match="sample 0 of ImageFolder cannot be read"):
        TorchDataset(pictures).load()
    assert not others(seen, tmp_path)


def test_packed_files_have_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(foreign_files, "ALWAYS", 2**16)
    np.savez_compressed(tmp_path / "a.npz", x_train=np.zeros(2**20), y_train=np.zeros(1))
    with pytest.raises(ConfigError, match=r"a\.npz unpacks to more than .* bytes, 100 times its own; .*numpy\.savez"):
        read_npz(tmp_path / "a.npz", ("x_train",), ())
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"who,y\n" + b"ann,1\n" * 2**18))
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as book:
        book.writestr("xl/worksheets/sheet1.xml", b"<c/>" * 2**20)
    (tmp_path / "a.CSV.GZ").write_bytes((tmp_path / "a.csv.gz").read_bytes())
    for name in ("a.csv.gz", "a.CSV.GZ", "a.xlsx"):
        with pytest.raises(ConfigError, match=f"{name} unpacks to more than .* save it as .csv"):
            Table(str(tmp_path / name), client_column="who", label_column="y").load()


def test_a_file_of_arrow_fits_into_memory(tmp_path, monkeypatch):
    """A text of a megabyte that 1000 rows repeat, and half a gigabyte of zeros, each in less than 100 kB."""
    arrow, parquet, feather = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet", "pyarrow.feather"))
    rows = arrow.DictionaryArray.from_arrays(np.zeros(1000, np.int32), ["x" * 2**20])
    parquet.write_table(arrow.table({"who": rows}), tmp_path / "a.parquet", store_schema=False)
    feather.write_feather(arrow.table({"x": np.zeros(2**26)}), tmp_path / "a.feather", "zstd", chunksize=2**26)
    monkeypatch.setattr(machine, "available_memory", lambda: 2**28)
    for path in (tmp_path / "a.parquet", tmp_path / "a.feather"):
        assert path.stat().st_size < 1e5
        with pytest.raises(ConfigError, match=r"what it unpacks to does not fit into the free memory; save fewer rows"):
            read_rows([(str(path), "--data.dataset.path")])
    limits = [resource.getrlimit(one) for one in (resource.RLIMIT_DATA, resource.RLIMIT_AS)]
    assert limits == [(resource.RLIM_INFINITY,) * 2] * 2


@pytest.mark.parametrize(
    "rows",
    [
        '<row r="2000000000"><c r="A2000000000"><v>1</v></c></row>',
        '<row r="9999"><c r="XFD9999"><v>1</v></c></row>',
        "".join(f'<row r="{n}"><c r="XFD{n}"><v>1</v></c></row>' for n in range(4, 2000)),
    ],
    ids=["far row", "far cell", "far column"],
)
def test_cells_of_a_workbook_are_not_far_apart(tmp_path, monkeypatch, rows):
    """pandas would make a table of all cells between them: up to 17 billion."""
    monkeypatch.setattr(rows_of_tables, "MOST_ROWS", 10_000)
    pd.DataFrame({"who": ["a", "b"], "y": [0, 1]}).to_excel(tmp_path / "plain.xlsx", index=False)
    with zipfile.ZipFile(tmp_path / "plain.xlsx") as plain, zipfile.ZipFile(tmp_path / "a.xlsx", "w") as book:
        for name in plain.namelist():
            changed = plain.read(name).replace(b"</sheetData>", f"{rows}</sheetData>".encode())
            book.writestr(name, changed if name.endswith("sheet1.xml") else plain.read(name))
    with pytest.raises(ConfigError, match=r"a\.xlsx: sheet 'Sheet1' reaches to row .* delete those that are far away"):
        read_rows([(str(tmp_path / "a.xlsx"), "--data.dataset.path")])


# ---------------------------------------------------------------------- names
NAMES = ["$\\frac{$x$", "_hidden", "<script>alert(1)</script>", "[x](javascript:alert(1))", "x;=HYPERLINK(1)", "＝1"]


def test_names_are_shown_as_they_are(tmp_path, capsys):
    """In figures, tables, Markdown and HTML: names of clients, of runs and their folders, and settings."""
    runs = [write_run(tmp_path / f"{n} `[/b]` {name.replace('/', '')}", config(lr=n), (0.5,) * 6, names=NAMES)
            for n, name in enumerate(NAMES)]  # fmt: skip
    compare(runs, tmp_path / "out", None, ["svg"], NAMES)
    shown = capsys.readouterr().out
    page = (tmp_path / "out/comparison.md").read_text()
    assert not re.search(r"(?<!\\)(<script|\[x\]|\$)", page)
    assert pd.read_csv(tmp_path / "out/comparison.csv")["name"].tolist()[4:] == ["x;'=HYPERLINK(1)", "'＝1"]
    assert "[x](javascript:alert(1))" in shown
    write_report(runs, tmp_path / "report.html", names=NAMES)
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_shows_a_name(name):
    """As matplotlib takes it apart when it draws; a line has its place in the legend."""
    figure = style.new_figure(2, 2)
    axes = figure.subplots()
    axes.plot([0, 1], label=style.short_name(name, 100))
    style.legend_above(figure)
    figure.savefig(io.BytesIO(), format="svg")
    (text,) = figure.legends[0].get_texts()
    drawn, is_formula = text._preprocess_math(text.get_text())
    assert (drawn.strip(), is_formula) == (name, False)
