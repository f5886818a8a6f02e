"""Parts of a report that read predictions.csv: calibration, thresholds, groups of samples; every client and metric."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import yaml
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, precision_score, recall_score, roc_auc_score
from test_compare import config, write_run

from lit_fed.cli import main
from lit_fed.command_line.report_predictions import BINS, Predictions
from lit_fed.errors import ConfigError
from lit_fed.training.output import write_table


def predicted(n=400):
    rng = np.random.default_rng(0)
    chance = rng.uniform(size=n).round(6)
    ill = rng.uniform(size=n) < chance**2
    return pd.DataFrame({
        "client": np.where(np.arange(n) < n // 2, "north", "south"), "client_id": 0, "sample": np.arange(n),
        "label": np.where(ill, "yes", "no"), "prediction": np.where(chance >= 0.5, "yes", "no"), "p_no": 1 - chance,
        "p_yes": chance, "sex": rng.choice(["f", "m"], n), "age": rng.integers(20, 90, n),
    })  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A run's folder with predictions."""
    folder = write_run(tmp_path / "runs/ill/version_0", config(), (0.5, 0.75), names=["north", "south"])
    predicted().to_csv(folder / "predictions.csv", index=False)
    return folder


def page_of(tmp_path, *arguments):
    main(["report", *map(str, arguments), "--output", str(tmp_path / "r.html")])
    return (tmp_path / "r.html").read_text()


def table_below(page, heading):
    """The rows of the first table below a heading."""
    body = page.split(heading, 1)[1].split("</table>", 1)[0]
    return [re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", line) for line in body.splitlines() if line.startswith("<tr>")]


def test_thresholds_and_calibration_are_those_of_scikit_learn(run):
    found, frame = Predictions.of(run), predicted()
    y, chance = (frame["label"] == "yes").to_numpy(), frame["p_yes"].to_numpy()
    headings, rows = found.thresholds()
    assert headings[0] == "from"
    for limit, *cells in rows[:-1]:
        said = chance >= float(limit)
        expected = [
            recall_score(y, said), recall_score(~y, ~said), precision_score(y, said), precision_score(~y, ~said),
            accuracy_score(y, said),
        ]  # fmt: skip
        assert cells == [f"{100 * one:.1f}" for one in expected]
    assert rows[-1] == ["always 'no'", "", "", "", "", f"{100 * (1 - y.mean()):.1f}"]
    share, mean = calibration_curve(y, chance, n_bins=BINS)
    np.testing.assert_allclose(found.calibration()[0], mean, rtol=1e-9)
    np.testing.assert_allclose(found.calibration()[1], share, rtol=1e-9)


@pytest.mark.usefixtures("rendered")
def test_a_page_has_groups_calibration_and_every_client(run, tmp_path):
    page, frame = page_of(tmp_path, run, "--by", "sex"), predicted()
    head, *rows = table_below(page, "by sex</h2>")
    assert head == ["sex", "samples", "accuracy (%)", "AUROC (%)", "&#x27;yes&#x27; (%)"]
    for name, samples, accuracy, auroc, share in rows:
        own = frame if name == "all" else frame[frame["sex"] == name]
        y = own["label"] == "yes"
        assert samples == str(len(own))
        assert accuracy == f"{100 * (own['label'] == own['prediction']).mean():.1f}"
        assert auroc == f"{100 * roc_auc_score(y, own['p_yes']):.1f}"
        assert share == f"{100 * y.mean():.1f}"
    assert [one[0] for one in rows] == ["f", "m", "all"]
    assert 'alt="calibration"' in page
    _, *clients = table_below(page, "<h2>All clients</h2>")
    assert [one[0] for one in clients] == ["north", "south"]
    assert "<h3>loss</h3>" in page  # every metric of the run
    quarters = table_below(page_of(tmp_path, run, "--by", "age"), "by age</h2>")[1:]
    assert [round(int(one[1]) / 100) for one in quarters] == [1, 1, 1, 1, 4]


def test_several_columns_have_a_table_each(run, tmp_path):
    page = page_of(tmp_path, run, "--by", "sex, client")
    assert [one[0] for one in table_below(page, "by sex</h2>")[1:]] == ["f", "m", "all"]
    assert [one[0] for one in table_below(page, "by client</h2>")[1:]] == ["north", "south", "all"]


def add(run, name, **entries):
    path = run / name
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_groups_say_how_often_sets_and_intervals_hold_the_label(run, tmp_path):
    """Of a run with prediction sets: a column `set` may also be the user's own."""
    frame = predicted().assign(set=["yes", "no", "no|yes", ""] * 100)
    frame.to_csv(run / "predictions.csv", index=False)
    assert "coverage" not in table_below(page_of(tmp_path, run, "--by", "sex"), "by sex</h2>")[0]
    add(run, "summary.json", **{"test/seen/coverage": 0.9})
    head, *rows = table_below(page_of(tmp_path, run, "--by", "sex"), "by sex</h2>")
    assert head[-1] == "coverage (%)"
    frame["covered"] = [label in held.split("|") for label, held in zip(frame["label"], frame["set"], strict=True)]
    shares = [frame.loc[frame["sex"] == one, "covered"].mean() for one in "fm"]
    assert [one[-1] for one in rows] == [f"{100 * one:.1f}" for one in (*shares, frame["covered"].mean())]
    numbers = frame.drop(columns=["p_no", "p_yes", "set"]).assign(label=1.0, prediction=1.0, lower=0.0)
    numbers.assign(upper=np.arange(400) % 4 + 0.5).to_csv(run / "predictions.csv", index=False)
    assert table_below(page_of(tmp_path, run, "--by", "client"), "by client</h2>")[-1][-1] == "75.0"


def test_classes_and_clients_are_named_as_they_are(run, tmp_path):
    """A label that a spreadsheet would run, and one that reads as a number."""
    names = {"yes": "=cmd", "no": "01"}
    frame = predicted().rename(columns={"p_yes": "p_=cmd", "p_no": "p_01"}).drop(columns="client")
    frame = frame.assign(label=frame["label"].map(names), prediction=frame["prediction"].map(names), client="=cmd")
    frame["set"] = frame["label"]
    write_table(frame, run / "predictions.csv")
    add(run, "summary.json", **{"test/seen/coverage": 1.0})
    page = page_of(tmp_path, run, "--by", "label, client")
    rows = table_below(page, "by label</h2>")[1:]
    assert [one[0] for one in rows] == ["01", "=cmd", "all"]
    assert [one[-1] for one in rows] == ["100.0"] * 3
    assert rows[-1][2] == f"{100 * (frame['label'] == frame['prediction']).mean():.1f}"
    assert table_below(page, "by client</h2>")[1][0] == "=cmd"


@pytest.mark.parametrize(
    ("data", "entries", "column", "said"),
    [
        ({}, {}, None, "this run has none; train with --data.val_fraction 0.2, then predict --split val."),
        ({"val_fraction": 0.2}, {}, None, ": predict --split val."),
        ({}, {}, "val/seen/loss", ": predict --split val."),
        ({}, {"test/seen/coverage": 0.9}, None, ": predict --split calibration."),
    ],
)
def test_a_threshold_is_chosen_on_a_split_that_exists(run, tmp_path, data, entries, column, said):
    settings = config()
    settings["data"] = settings["data"] | data
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    add(run, "summary.json", **entries)
    if column is not None:
        pd.read_csv(run / "metrics.csv").assign(**{column: 1.0}).to_csv(run / "metrics.csv", index=False)
    assert f"Choose a threshold on other samples: {said.removeprefix(': ')}" in page_of(tmp_path, run)


def test_a_page_says_which_classes_are_covered_and_whose_thresholds_do_not_know_them(run, tmp_path):
    table = pd.DataFrame({
        "population": "seen", "client": ["north"] * 2 + ["south"] * 2, "class": ["no", "rare"] * 2,
        "num_calibration": [20, 0, 20, 1], "num_test": [40, 0, 40, 4], "coverage": [0.9, np.nan, 1.0, 0.25],
    })  # fmt: skip
    table.to_csv(run / "coverage.csv", index=False)
    add(run, "summary.json", **{"undercovered/seen": "seen clients: sets cover clearly less"})
    page = page_of(tmp_path, run)
    assert "<strong>ill: seen clients: sets cover clearly less.</strong>" in page.replace("FedEM", "ill")
    head, *rows = table_below(page, "prediction sets by class</h2>")
    assert head == ["clients", "class", "test samples", "covered (%)", "unknown to"]
    assert rows == [["seen", "rare", "4", "25.0", "1 of 2"], ["seen", "no", "80", "95.0", "0 of 2"]]
    each = table_below(page, "covered test samples of each client</summary>")
    assert each == [["client", "no", "rare"], ["north", "36 of 40", "unknown"], ["south", "40 of 40", "1 of 4"]]
    anonymous = table_below(page_of(tmp_path, run, "--anonymous"), "of each client</summary>")
    assert [one[0] for one in anonymous] == ["client", "client 1", "client 2"]


def test_quantities_have_errors_by_group(run, tmp_path):
    frame = predicted().drop(columns=["p_no", "p_yes"]).assign(label=2.0, prediction=np.arange(400) % 2 + 1.0)
    frame.to_csv(run / "predictions.csv", index=False)
    page = page_of(tmp_path, run, "--by", "client")
    assert table_below(page, "by client</h2>")[1:] == [
        ["north", "200", "0.5", "-0.5"], ["south", "200", "0.5", "-0.5"], ["all", "400", "0.5", "-0.5"]
    ]  # fmt: skip
    assert "thresholds</h2>" not in page


def test_wrong_columns_and_missing_predictions_are_explained(run, tmp_path):
    with pytest.raises(SystemExit):
        main(["report", str(run), "--by", "ward", "--output", str(tmp_path / "r.html")])
    with pytest.raises(ConfigError, match=r"no such column; choose from client, sex, age, or keep it by .*--keep"):
        Predictions.of(run).groups("ward")
    anonymous = page_of(tmp_path, run, "--by", "sex", "--anonymous")
    assert "north" not in anonymous
    with pytest.raises(SystemExit):
        main(["report", str(run), "--by", "client", "--anonymous", "--output", str(tmp_path / "r.html")])
    (run / "predictions.csv").unlink()
    assert "writes predictions, by which calibration" in page_of(tmp_path, run)
    with pytest.raises(SystemExit):
        main(["report", str(run), "--by", "sex", "--output", str(tmp_path / "r.html")])


@pytest.mark.usefixtures("rendered")
def test_a_client_sees_who_shares_its_components(tmp_path):
    names = ["north", "south", "east", "west"]
    folder = write_run(tmp_path / "runs/mix/version_0", config(), (0.5,) * 4, names=names)
    table = pd.read_csv(folder / "clients.csv").assign(pi_0=[0.9, 0.1, 0.8, np.nan], pi_1=[0.1, 0.9, 0.2, np.nan])
    table.to_csv(folder / "clients.csv", index=False)
    head, *rows = table_below(page_of(tmp_path, folder, "--like", "north"), "clients like north</h2>")
    assert head == ["client", "apart", "component 0", "component 1"]
    assert rows == [
        ["north", "", "0.900", "0.100"],
        ["east", "0.100", "0.800", "0.200"],
        ["south", "0.800", "0.100", "0.900"],
    ]
    for refused in (["--like", "west"], ["--like", "nobody"], ["--like", "north", "--anonymous"]):
        with pytest.raises(SystemExit):
            main(["report", str(folder), *refused, "--output", str(tmp_path / "r.html")])
