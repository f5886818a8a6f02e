"""Several runs side by side: names, figures and errors; reports of them."""

import csv
import html
import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import yaml

from lit_fed.cli import main
from lit_fed.pictures.comparison import comparison_figures
from lit_fed.training.finished_runs import differences, find_run, grouped, named, read_run, without_seeds

BASE = {
    "seed_everything": 0,
    "trainer": {"max_epochs": 3, "default_root_dir": "runs", "callbacks": None},
    "model": {
        "algorithm": {"class_path": "lit_fed.FedEM", "init_args": {"num_components": 3}},
        "solver": {"lr": 0.1},
        "init_seeds": None,
    },
    "data": {"dataset": {"class_path": "lit_fed.Digits"}, "seed": 0},
    "name": "quickstart",
    "ckpt_path": None,
}


def config(algorithm="FedEM", seed=0, lr=0.1, name="quickstart", data_seed=0, **init_args):
    init_args = {"num_components": 3} | init_args if algorithm == "FedEM" else init_args
    chosen = {"class_path": f"lit_fed.{algorithm}"} | ({"init_args": init_args} if init_args else {})
    model = BASE["model"] | {"algorithm": chosen, "solver": {"lr": lr}}
    data = BASE["data"] | {"seed": data_seed}
    return BASE | {"seed_everything": seed, "model": model, "data": data, "name": name}


def write_run(
    folder, a_config, accuracies=(0.5, 1.0), hit="accuracy", bytes_of_round=1000.0, last=0.75, names=None, larger=None
):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(a_config))
    rows = {"step": [0, 1, 2], "comm/bytes_up": bytes_of_round, "comm/bytes_down": bytes_of_round}
    rows[f"test/seen/{hit}"] = [last / 2, None, last]
    rows["test/seen/loss"] = [2.0, None, 1.0]
    pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False)
    clients = {"client": names or range(len(accuracies)), "population": "seen", hit: accuracies, "loss": 1.0}
    clients |= {"num_train": 1, "num_test": 1}
    pd.DataFrame(clients).to_csv(folder / "clients.csv", index=False)
    summary = {f"test/seen/{hit}": last, f"test/seen/{hit}_decile": min(accuracies), "test/seen/loss": 1.0, "rounds": 3}
    summary |= {} if larger is None else {f"larger_is_better/{hit}": larger}
    sent = {f"comm/total_bytes_{way}": 3 * bytes_of_round for way in ("up", "down")}
    (folder / "summary.json").write_text(json.dumps({**summary, **sent, "seconds": 2.5}))
    return folder


def test_clients_of_a_run_keep_their_written_names(tmp_path):
    names = ["01", "1", "1e3", "NA"]
    run = write_run(tmp_path / "run", {}, (0.1,) * 4, names=names)
    assert read_run(run).clients["client"].tolist() == names


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["compare", *map(str, arguments)])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


@pytest.fixture
def runs(tmp_path):
    """FedEM with two seeds and FedAvg with one."""
    return [
        write_run(tmp_path / "runs/em/version_0", config(seed=0), last=0.7),
        write_run(tmp_path / "runs/em/version_1", config(seed=1, data_seed=1, name="again"), last=0.8),
        write_run(tmp_path / "runs/avg/version_0", config("FedAvg"), bytes_of_round=400.0),
    ]


@pytest.mark.usefixtures("rendered")
def test_seeds_are_one_row_with_mean_and_deviation(runs, tmp_path, capsys):
    main(["compare", *map(str, runs), "--output", str(tmp_path / "out"), "--formats", "png", "pdf"])
    said = capsys.readouterr().out
    assert "75.00 ± 7.07" in said
    table = pd.read_csv(tmp_path / "out/comparison.csv").set_index("name")
    assert table.index.tolist() == ["FedEM", "FedAvg"]
    assert table["runs"].tolist() == [2, 1]
    assert table["test/seen/accuracy"].tolist() == pytest.approx([0.75, 0.75])
    assert table.loc["FedEM", "test/seen/accuracy (std)"] == pytest.approx(np.std([0.7, 0.8], ddof=1))
    assert np.isnan(table.loc["FedAvg", "test/seen/accuracy (std)"])
    assert table["bytes"].tolist() == [6000, 2400]
    assert table.loc["FedEM", "folders"].split() == list(map(str, runs[:2]))
    page = (tmp_path / "out/comparison.md").read_text()
    assert "| FedEM | 2 | 75.00 ± 7.07 | 50.00 ± 0.00 | 3 | 6 kB | 2 |" in page
    assert "| FedAvg | 1 | 75.00 | 50.00 | 3 | 2.4 kB | 2 |" in page
    pictures = {path.name for path in (tmp_path / "out").iterdir()} - {"comparison.csv", "comparison.md"}
    names = ("accuracy_vs_rounds", "accuracy_vs_bytes", "client_accuracy")
    assert pictures == {f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")}


def drawn(runs, *, bytes_sent):
    groups = named(grouped([read_run(folder) for folder in runs]))
    return comparison_figures(groups, "accuracy")[f"accuracy_vs_{'bytes' if bytes_sent else 'rounds'}"].axes[0]


@pytest.mark.parametrize(("bytes_sent", "places"), [(False, [1, 3]), (True, [2, 6])])
def test_curves_are_means_at_the_evaluated_rounds_with_a_band(runs, bytes_sent, places):
    axes = drawn(runs, bytes_sent=bytes_sent)
    em, avg = axes.lines
    assert em.get_xdata().tolist() == places
    assert em.get_ydata().tolist() == pytest.approx([37.5, 75])
    assert (em.get_linestyle(), em.get_marker()) != (avg.get_linestyle(), avg.get_marker())
    band = axes.collections[0].get_paths()[0].vertices
    assert band[:, 1].max() == pytest.approx(75 + 100 * np.std([0.7, 0.8], ddof=1))


def test_a_run_that_sends_nothing_is_a_level_line(runs, tmp_path):
    local = write_run(tmp_path / "runs/local/version_0", config("Local"), bytes_of_round=0.0, last=0.6)
    line = drawn([*runs, local], bytes_sent=True).lines[-1]
    assert line.get_label() == "Local (sends nothing)"
    assert set(line.get_ydata()) == {60.0}


@pytest.mark.usefixtures("rendered")
def test_a_run_that_was_never_evaluated_has_no_curve(runs, tmp_path):
    history = pd.read_csv(runs[2] / "metrics.csv").drop(columns="test/seen/accuracy")
    history.to_csv(runs[2] / "metrics.csv", index=False)
    assert [line.get_label() for line in drawn(runs, bytes_sent=False).lines] == ["FedEM"]
    main(["compare", str(runs[2]), "--output", str(tmp_path / "out")])
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["client_accuracy.png"]


def test_a_name_stands_for_its_newest_version(runs, tmp_path):
    for number in (2, 10):
        write_run(tmp_path / f"runs/em/version_{number}", config(seed=number))
    assert find_run(tmp_path / "runs/em").name == "version_10"


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ([config(), config("FedAvg"), config("Local")], ["FedEM", "FedAvg", "Local"]),
        ([config(lr=0.1), config(lr=0.01)], ["lr=0.1", "lr=0.01"]),
        ([config(), config(num_components=5), config("FedAvg")],
         ["FedEM, num_components=3", "FedEM, num_components=5", "FedAvg"]),
        ([config(seed=1), config(seed=2)], ["", ""]),
        ([config(), config(lr=0.2) | {"resume_with_changes": True}], ["lr=0.1", "lr=0.2"]),
    ],
)  # fmt: skip
def test_names_are_what_differs(configs, expected):
    assert differences([without_seeds(one) for one in configs]) == expected


def test_too_many_differences_leave_the_names_of_the_runs(tmp_path, capsys):
    first = write_run(tmp_path / "runs/one/version_0", config())
    other = config(lr=0.3)
    other["data"] = {"dataset": {"class_path": "lit_fed.Sine"}, "batch_size": 7, "num_clients": 3}
    other["trainer"] = other["trainer"] | {"max_epochs": 9}
    second = write_run(tmp_path / "runs/two/version_0", other)
    arguments = [str(first), str(second), "--output", str(tmp_path / "out")]
    assert "two is on other data than one" in refused(capsys, *arguments)
    main(["compare", *arguments, "--different_data"])
    assert pd.read_csv(tmp_path / "out/comparison.csv")["name"].tolist() == ["one", "two"]
    page = (tmp_path / "out/comparison.md").read_text()
    assert "Rows also differ in dataset, lr, max_epochs, batch_size, num_clients.\n" in page


def test_an_algorithm_names_a_row_and_a_line_says_what_else_differs(tmp_path, capsys):
    """A blend has settings of its own that nothing reads, such as one round; names say all that they can."""
    blend = config("lit_fed.wrappers.blend.Blend", lr=None, name="mixed")
    blend["trainer"] = blend["trainer"] | {"max_epochs": 1}
    given = [config(), config("FedAvg", lr=0.2), blend]
    runs = [str(write_run(tmp_path / f"runs/{place}/version_0", one)) for place, one in enumerate(given)]
    main(["compare", *runs, "--output", str(tmp_path / "out")])
    assert pd.read_csv(tmp_path / "out/comparison.csv")["name"].tolist() == ["FedEM", "FedAvg", "Blend"]
    assert "Rows also differ in lr." in capsys.readouterr().out
    page = reported(tmp_path, *runs)
    assert "<h1>Report: FedEM, FedAvg, Blend</h1>" in page
    assert "Rows also differ in lr." in page
    named_by_all = [str(write_run(tmp_path / "runs/other/version_0", config(lr=0.3))), *runs[:2]]
    main(["compare", *named_by_all, "--output", str(tmp_path / "more")])
    names = pd.read_csv(tmp_path / "more/comparison.csv")["name"].tolist()
    assert names == ["FedEM, lr=0.3", "FedEM, lr=0.1", "FedAvg, lr=0.2"]
    assert "Rows also differ" not in capsys.readouterr().out


NATURAL = {"class_path": "lit_fed.data.partitions.Natural", "init_args": {"drop": None}}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"dataset": {"class_path": "lit_fed.data.Sine", "init_args": {"seed": 1}}},
            "data.dataset: Sine, and Digits there",
        ),
        ({"partition": NATURAL}, "data.partition: Natural, and null there"),
        ({"num_clients": 7}, "data.num_clients: 7, and 5 there"),
        ({"seed": 3}, "the seeds of the data: data.seed 3, and data.seed 0 there"),
        ({"batch_size": 7}, "seen client 2: no such client, and 1 training and 1 test samples there"),
    ],
    ids=["data set", "partition", "clients", "cut", "samples"],
)
@pytest.mark.parametrize("command", ["compare", "report"])
def test_runs_on_different_data_are_refused_by_name(tmp_path, capsys, settings, said, command):
    runs = []
    for name, own in (("one", {}), ("two", settings)):
        given = config("FedAvg" if own else "FedEM")
        given["data"] = given["data"] | {"partition": None, "num_clients": 5} | own
        runs.append(str(write_run(tmp_path / name, given, (0.5, 0.6) if "batch_size" in own else (0.5, 0.6, 0.7))))
    with pytest.raises(SystemExit):
        main([command, *runs, "--names", "a", "b", "--output", str(tmp_path / "out.html")])
    text = f"b is on other data than a: {said}; compare them apart, or add --different_data"
    assert text in capsys.readouterr().err


def test_a_row_that_shares_only_some_cuts_is_named(runs, tmp_path, capsys):
    main(["compare", *map(str, runs), "--output", str(tmp_path / "out")])
    said = "FedEM is over data with data.seed 0; data.seed 1, and FedAvg over data with data.seed 0: their means"
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("rendered")
def test_clients_without_a_value_are_counted_beside_the_figure(tmp_path, capsys):
    runs = [write_run(tmp_path / name, config(name), hit="auroc") for name in ("FedEM", "FedAvg")]
    for run, number in zip(runs, (3, 0), strict=True):
        summary = json.loads((run / "summary.json").read_text())
        summary |= {"test/seen/auroc_undefined": number, "test/unseen/auroc": 0.5, "test/unseen/auroc_undefined": 0}
        (run / "summary.json").write_text(json.dumps(summary))
    main(["compare", *map(str, runs), "--metric", "auroc", "--output", str(tmp_path / "out")])
    page = (tmp_path / "out/comparison.md").read_text()
    assert "| run | seen | worst decile | undefined | unseen | rounds |" in page
    assert "| FedEM | 0.7500 | 0.5000 | 3 | 0.5000 |" in page
    assert "| FedAvg | 0.7500 | 0.5000 | 0 | 0.5000 |" in page


def test_runs_of_python_programs_bear_their_own_names(runs, tmp_path, capsys):
    for run in runs[1:]:
        (run / "config.yaml").unlink()
    main(["compare", *map(str, runs[1:]), "--output", str(tmp_path / "out")])
    assert pd.read_csv(tmp_path / "out/comparison.csv")["name"].tolist() == ["em", "avg"]
    main(["compare", str(runs[0]), str(runs[2]), "--output", str(tmp_path / "mixed")])
    other = write_run(tmp_path / "runs/other/version_0", config(), names=["x", "y"])
    (other / "config.yaml").unlink()
    capsys.readouterr()
    assert "other is on other data than em: seen client 0: no such client" in refused(capsys, *runs[1:2], other)
    (runs[2] / "summary.json").unlink()
    assert refused(capsys, *runs[1:]).endswith("has no summary.json; trainer.test(model, data) writes it\n")


def test_wrong_input_is_said_in_one_line(runs, tmp_path, capsys):
    assert "nothing: no such folder; give the folder of a run" in refused(capsys, tmp_path / "nothing")
    assert "holds no run" in refused(capsys, tmp_path)
    (runs[0] / "summary.json").unlink()
    said = refused(capsys, *runs)
    assert f"{runs[0]} is not finished" in said
    assert said.endswith(f"finish it with: python -m lit_fed fit --config {runs[0]}/config.yaml\n")
    (runs[0] / "checkpoints").mkdir()
    (runs[0] / "checkpoints/last.ckpt").touch()
    assert refused(capsys, *runs).endswith("config.yaml --ckpt_path last\n")
    (runs[1] / "clients.csv").unlink()
    assert "has no clients.csv" in refused(capsys, runs[1])


def test_different_metrics_are_refused_unless_one_is_shared(runs, tmp_path, capsys):
    squared = write_run(tmp_path / "runs/mse/version_0", config(lr=0.5), hit="mse")
    said = refused(capsys, runs[0], squared)
    assert "has accuracy and loss" in said
    assert "has mse and loss; compare them apart, or with --metric loss" in said
    assert "has accuracy and loss; give one of these" in refused(capsys, runs[0], "--metric", "mse")
    main(["compare", str(runs[0]), str(squared), "--metric", "loss", "--output", str(tmp_path / "out")])
    assert (tmp_path / "out/loss_vs_rounds.png").is_file()
    assert pd.read_csv(tmp_path / "out/comparison.csv")["test/seen/loss"].tolist() == [1.0, 1.0]


def test_the_same_run_twice_is_refused(runs, tmp_path, capsys):
    again = write_run(tmp_path / "runs/em/version_7", config(seed=0, name="other"))
    assert "have the same configuration and seeds; give one" in refused(capsys, runs[0], again)


def test_an_earlier_comparison_is_not_overwritten(runs, tmp_path, capsys):
    output = tmp_path / "out"
    main(["compare", str(runs[0]), "--output", str(output)])
    before = {path.name: path.read_bytes() for path in output.iterdir()}
    capsys.readouterr()
    assert f"--output {output} exists and is not empty; choose a new folder" in refused(
        capsys, runs[1], "--output", output
    )
    assert {path.name: path.read_bytes() for path in output.iterdir()} == before


def test_rows_may_be_named(runs, tmp_path, capsys):
    said = refused(capsys, *runs, "--names", "mixture")
    assert "--names is mixture; give a different name for each of 2 rows: FedEM, FedAvg" in said
    main(["compare", *map(str, runs), "--output", str(tmp_path / "out"), "--names", "mixture", "one model"])
    assert pd.read_csv(tmp_path / "out/comparison.csv")["name"].tolist() == ["mixture", "one model"]


def test_clients_are_paired_and_the_table_says_what_varied(runs, tmp_path):
    """FedAvg has the division of the first seed of FedEM alone; its clients are 0.1 better and 0.2 worse."""
    avg = write_run(tmp_path / "runs/pair/version_0", config("FedAvg", lr=0.2), (0.6, 0.8))
    main(["compare", *map(str, [*runs[:2], avg]), "--output", str(tmp_path / "out")])
    page = (tmp_path / "out/comparison.md").read_text()
    assert "seeds of data and training. Seeds: 0, 1 (training), 0, 1 (data). Rows also differ in lr.\n" in page
    assert "| FedAvg | FedEM | -5.00 | -195.59 | +185.59 | 1 | 2 | 0.795 |" in page  # by two clients


@pytest.mark.parametrize("form", ["latex", "csv", "md"])
def test_tables_are_printed_for_papers(runs, tmp_path, capsys, form):
    """All pairs with corrected p-values; the caption has the seeds."""
    more = write_run(tmp_path / "runs/other/version_0", config("Local", lr=0.3), (0.5, 0.9))
    main(["compare", *map(str, [*runs[:1], runs[2], more]), "--output", str(tmp_path / "out"), "--format", form])
    shown = capsys.readouterr().out
    assert "comparison:" not in shown
    assert shown.count("FedEM") == 1 + 2  # its row, and its pairs with the two others
    if form == "csv":
        rows = list(csv.reader(shown.splitlines()))
        pairs = [[name.partition(",")[0] for name in row[:2]] for row in rows[-3:]]
        assert pairs == [["FedAvg", "FedEM"], ["Local", "FedEM"], ["Local", "FedAvg"]]
        assert all(0 <= float(row[-1]) <= 1 for row in rows[-3:])
        return
    assert "corrected for all pairs (Holm)" in shown
    assert "(training)" in shown
    if form == "latex":
        assert shown.count("\\begin{tabular}") == shown.count("\\bottomrule") == 2
        assert "difference (\\%)" in shown


# ---------------------------------------------------------------------- reports
NAMES = ["<script>", "=ben & co", "c", "d"]


@pytest.fixture
def rivals(tmp_path):
    """FedEM with two seeds, in the mean (0.9, 0.5, 0.4, 0.7), and Local."""
    local, first, second = (0.5, 0.7, 0.4, 0.8), (0.8, 0.7, 0.2, 0.7), (1.0, 0.3, 0.6, 0.7)
    return [
        write_run(tmp_path / "runs/em/version_0", config(seed=0), first, names=NAMES),
        write_run(tmp_path / "runs/em/version_1", config(seed=1), second, names=NAMES),
        write_run(tmp_path / "runs/local/version_0", config("Local"), local, bytes_of_round=0.0, names=NAMES),
    ]


def reported(tmp_path, *arguments):
    main(["report", *map(str, arguments), "--output", str(tmp_path / "report.html")])
    return (tmp_path / "report.html").read_text()


class Tags(HTMLParser):
    """The elements and attributes of a page; what is open at its end."""

    def __init__(self, page):
        super().__init__()
        self.found, self.attributes, self.open = set(), [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.add(tag)
        self.attributes += attrs
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.usefixtures("rendered")
def test_a_report_names_the_clients_that_lose_and_loads_nothing(rivals, tmp_path):
    page = reported(tmp_path, *rivals)
    assert (
        "FedEM is worse than Local for 2 of 4 seen clients, clearly or by chance." in page
    )  # clients of equal results lose nothing
    assert "Local is worse" not in page
    rows = re.findall(r'<tr><td class="words">([^<]*) \(seen\)</td><td>([^<]*)</td>', page)
    assert rows == [("=ben &amp; co", "-20.0"), ("d", "-10.0")]
    assert "Mean difference of seen clients (%): +2.5, 95 % interval" in page
    assert "<td>6 kB</td>" in page
    assert "<script" not in page
    tags = Tags(page)
    assert not tags.open
    assert not tags.found & {"script", "link", "iframe", "object"}
    sources = [value for key, value in tags.attributes if key in ("src", "href", "srcset")]
    assert len(sources) == 3
    assert all(one.startswith("data:image/svg+xml;base64,") for one in sources)
    assert "url(" not in page
    assert "@import" not in page


def test_an_anonymous_report_has_no_names(rivals, tmp_path):
    page = reported(tmp_path, *rivals, "--anonymous")
    assert not any(html.escape(name) in page for name in NAMES[:2])
    assert "client 2 (seen)" in page
    assert "init_args" not in page


def test_no_row_of_an_anonymous_report_is_named_by_settings_of_the_data(tmp_path):
    """They hold paths and names of unseen clients."""
    runs = []
    for name in ("st_mary", "st_john"):
        settings = config()
        settings["data"]["unseen_clients"] = [name]
        runs.append(write_run(tmp_path / f"runs/run_{len(runs)}/version_0", settings))
    assert "st_mary" in reported(tmp_path, *runs, "--different_data")
    page = reported(tmp_path, *runs, "--different_data", "--anonymous")
    assert "st_mary" not in page
    assert "run_0, run_1" in page


def test_a_report_escapes_all_that_comes_from_outside(rivals, tmp_path):
    """Names of losing clients, of runs and of settings."""
    table = pd.read_csv(rivals[0] / "clients.csv").assign(accuracy=0.0)
    table.to_csv(rivals[0] / "clients.csv", index=False)
    evil = write_run(tmp_path / "runs/<b>evil/version_0", config(lr=0.5, name="<img src=x>"), (0.1,) * 4, names=NAMES)
    settings = yaml.safe_load((evil / "config.yaml").read_text())
    settings["data"]["dataset"] = {"class_path": "lit_fed.Table<i>", "init_args": {"path": "<u>"}}
    (evil / "config.yaml").write_text(yaml.safe_dump(settings))
    page = reported(tmp_path, evil, rivals[0], rivals[2], "--different_data")
    assert "&lt;script&gt; (seen)" in page
    assert not {"b", "i", "u", "script"} & Tags(page).found
    assert page.count("Table&lt;i&gt;") >= 2


@pytest.mark.parametrize(
    ("metric", "larger", "said"),
    [
        ("mse", None, "FedEM is worse than Local for 2 of 3 seen clients, "),
        ("own", True, "FedEM is worse than Local for 1 of 3 seen clients, "),
        ("own", False, "FedEM is worse than Local for 2 of 3 seen clients, "),
        ("own", None, "Not known: give runs of Local"),  # a run that does not say
    ],
)
def test_runs_say_whether_larger_is_better(tmp_path, metric, larger, said):
    em = write_run(tmp_path / "em/version_0", config(), (1.0, 2.0, 9.0), hit=metric, larger=larger)
    local = write_run(tmp_path / "local/version_0", config("Local"), (2.0, 1.0, 1.0), hit=metric, larger=larger)
    assert said in reported(tmp_path, em, local, "--metric", metric)


def test_other_divisions_and_missing_baselines_are_not_paired(rivals, tmp_path, capsys):
    other = write_run(tmp_path / "runs/other/version_0", config("Local", data_seed=1), names=NAMES[:2])
    for runs in ([rivals[0], other], rivals[:2]):
        assert "Not known: give runs of Local or FedAvgPlus" in reported(tmp_path, *runs, "--different_data")
    with pytest.raises(SystemExit):
        main(["report", str(other), "--output", str(tmp_path / "report.pdf")])
    assert "end its name in .html" in capsys.readouterr().err


def test_the_report_of_a_private_run_is_the_owners(rivals, tmp_path):
    private = config(lr=0.3)
    private["model"]["privacy"] = {"noise_multiplier": 1.0}
    page = reported(tmp_path, write_run(tmp_path / "runs/private/version_0", private))
    assert "does not cover what this page says about single clients" in page
    assert (tmp_path / "report.html").stat().st_mode & 0o077 == 0
