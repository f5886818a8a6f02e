"""`lit-fed choose`: from a table to a verdict for each client."""

import html
import os
import re
import shlex
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from running import folder, run, start

import lit_fed.choosing.blend
import lit_fed.choosing.choose
from lit_fed.core.blocks import serving_blocks
from lit_fed.core.types import Split
from lit_fed.metrics.verdict import COLUMNS, EVIDENCE
from lit_fed.training.output import write_table

CANDIDATES = ["FedAvg", "FedEM", "MixedEffects"]

PRIVACY = [
    "--model.privacy", "ClientPrivacy", "--model.privacy.noise_multiplier", "0.3", "--model.privacy.clip_norm", "1",
    "--model.privacy.delta", "1e-3", "--data.client_sampling", "poisson",
]  # fmt: skip


def subjects(path, kinds=2):
    """Ten clients with lines of their own slope and height."""
    rng, rows = np.random.default_rng(0), []
    for client in range(10):
        slope, height = (1 if client % kinds else -1) + 0.1 * rng.normal(), rng.normal()
        x = rng.normal(size=24)
        rows += [(f"c{client}", a, height + slope * a + 0.5 * rng.normal()) for a in x]
    pd.DataFrame(rows, columns=["client", "x", "y"]).to_csv(path, index=False)


def command(root, *more, candidates=CANDIDATES):
    return [
        "choose", "--candidates", *candidates, "--data.dataset", "Table", "--data.dataset.path", str(root / "rows.csv"),
        "--data.dataset.client_column", "client", "--data.dataset.label_column", "y", "--data.unseen_fraction", "0.2",
        "--trainer.max_epochs", "4", "--trainer.accelerator", "cpu", "--jobs", "1",
        "--output", str(root / "chosen"), *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    root = tmp_path_factory.mktemp("choose")
    subjects(root / "rows.csv")
    done = run(command(root), timeout=300)
    assert done.returncode == 0, done.stderr
    return root, done


def test_each_client_is_told_its_gain(chosen):
    root, done = chosen
    place = folder(root, "chosen")
    table, clients = pd.read_csv(place / "verdict.csv"), pd.read_csv(place / "clients.csv")
    seen = clients.query("population == 'seen'")
    assert table["client"].tolist() == seen["client"].tolist()
    alone = pd.read_csv(folder(root / "chosen" / "candidates", "Local") / "clients.csv").query("population == 'seen'")
    np.testing.assert_allclose(table["mse_served"], seen["mse"], rtol=1e-4)
    np.testing.assert_allclose(table["mse_alone"], alone["mse"], rtol=1e-4)
    np.testing.assert_allclose(table["gain"], table["mse_alone"] - table["mse_served"], rtol=1e-3, atol=1e-6)
    kept = table["served"] == "alone"
    assert ((seen["pi_Local"].to_numpy() == 1) == kept).all()
    assert (table.loc[kept, "gain"] == 0).all()
    assert ((table["chance"] > EVIDENCE) == ~kept).all()
    assert "joining: mse" in done.stdout
    assert "4 candidates of 4 rounds each" in done.stdout
    said = "the learning rate of each is searched among 0.01, 0.0464, 0.215, 1, by 6 further rounds; 0 are done"
    assert said in done.stdout
    tried = [set(pd.read_csv(one)["lr"]) for one in (root / "chosen" / "candidates").rglob("learning_rates.csv")]
    assert tried == 3 * [{0.01, 0.0464, 0.215, 1.0}]  # MixedEffects uses no rate


def test_a_best_rate_at_an_end_of_those_searched_is_said(chosen, tmp_path, capsys):
    """One line for all candidates; the wider list that it names is one of the option."""
    root, done = chosen
    files = (root / "chosen" / "candidates").rglob("learning_rates.csv")
    best = {one.parts[-3]: pd.read_csv(one).groupby("lr", as_index=False).last() for one in files}
    best = {name: table.loc[table["loss"].idxmin(), "lr"] for name, table in best.items()}
    lines = [one for one in done.stdout.splitlines() if one.startswith("the best rate ")]
    assert len(lines) == any(rate in (0.01, 1.0) for rate in best.values())
    for losses, name in (([1, 2, 3], "A"), ([3, 1, 2], "B"), ([3, 2, 1], "C"), ([3, np.inf, 1], "D")):
        (tmp_path / name / "version_0").mkdir(parents=True)
        table = pd.DataFrame({"lr": [0.1, 0.2, 1.0], "rounds": 3, "loss": losses})
        write_table(table, tmp_path / name / "version_0" / "learning_rates.csv")

    def said(*names):
        lit_fed.choosing.choose._say_ends([tmp_path / name for name in names], (0.2, 0.1, 1.0))
        return capsys.readouterr().out

    beyond = "give more --trainer.max_epochs, or --model.solver.lr"
    assert said("B", "Nothing") == ""
    assert said("B", "C", "D") == f"the best rate of C, D is the largest tried, 1: {beyond} '[0.1, 0.2, 1.0, 5.0]'\n"
    lit_fed.choosing.choose._say_ends([tmp_path / "D"], (0.0, 1.0))
    assert capsys.readouterr().out == ""
    both = "the best rate of A is the smallest tried, 0.1, and that of C is the largest tried, 1"
    assert said("A", "B", "C") == f"{both}: {beyond} '[0.05, 0.1, 0.2, 1.0, 5.0]'\n"


def test_the_command_that_a_fit_of_natural_clients_names_works(chosen, tmp_path):
    """As it is printed: without options that choose refuses, and without the rates of one algorithm."""
    root, _ = chosen
    of_fit = [
        "--model.algorithm=FedEM", "--model.algorithm.num_components", "2", "--trainer.default_root_dir", str(tmp_path),
        "--name", "a run", "--seed_everything", "1", "--model.solver.lr", "0.1",
    ]  # fmt: skip
    fit = ["fit", *command(root)[5:-4]]
    done = run([*fit, *of_fit])
    assert done.returncode == 0, done.stderr
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("      lit-fed choose ")]
    given = shlex.split(said)[1:]
    assert given[1:] == [*fit[1:], "--seed_everything", "1"]
    own = ["--candidates", "FedAvg", "--jobs", "1", "--output", str(tmp_path / "chosen")]
    again = run([*given, *own], timeout=300)
    assert again.returncode == 0, again.stderr
    assert "the learning rate of each is searched" in again.stdout
    (tmp_path / "own.yaml").write_text("model: {solver: {lr: 0.1}}\n")
    config, auto = ["--config", str(tmp_path / "own.yaml")], ["--model.solver.lr", "auto"]
    for more, kept in (
        ([*config, "--model.algorithm", "FedAvg"], [*config, *auto]),
        (["--model.algorithm", "FedAvg", "--data.val_fraction", "0.2", "--model.solver.lr", "[0.1, 0.2]"], None),
        (["--model.algorithm", "FedAvg", *PRIVACY, "--model.solver.lr", "0.1"], None),
    ):
        done = run([*fit, *more, "--trainer.default_root_dir", str(tmp_path)])
        assert done.returncode == 0, done.stderr
        wanted = shlex.join(["choose", *fit[1:], *(more[2:] if kept is None else kept)])
        assert f"      lit-fed {wanted}\n" in done.stdout
    for more in (
        ["--model.algorithm", "FedAvg", "--model.network", "MLP", "--model.personal", "[head]"],
        ["--model.algorithm", "FedAvg", *PRIVACY],  # whose rate cannot be searched
    ):
        done = run([*fit, *more, "--trainer.default_root_dir", str(tmp_path)])
        assert done.returncode == 0, done.stderr
        assert "lit-fed choose" not in done.stdout


def test_training_alone_no_better_than_a_constant_is_said(tmp_path):
    """On the terminal and in the report, with the figures of the table."""
    subjects(tmp_path / "rows.csv")
    done = run(command(tmp_path, "--model.solver.lr", "1e-6", candidates=["MixedEffects"]), timeout=300)
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(folder(tmp_path, "chosen") / "verdict.csv")
    alone, constant = table["mse_alone"].mean(), table["mse_constant"].mean()
    said = f"training alone: mse {alone:.4g}, no better than {constant:.4g} of always predicting a client's"
    assert alone > constant
    assert f"\n{said}" in done.stdout
    done = run(["report", str(tmp_path / "chosen"), "--output", str(tmp_path / "r.html")])
    assert done.returncode == 0, done.stderr
    assert f"<p><strong>{html.escape(said)}" in (tmp_path / "r.html").read_text()


def test_what_a_configuration_says_is_used_or_a_line_says_that_it_is_not(tmp_path):
    subjects(tmp_path / "rows.csv")
    given = (
        "data: {val_fraction: 0.4}\nmodel:\n  algorithm:\n    class_path: FedEM\n    init_args: {num_components: 2}\n"
    )
    (tmp_path / "own.yaml").write_text(given)
    options = ["--config", str(tmp_path / "own.yaml"), "--model.solver.lr", "0.1"]
    done = run(command(tmp_path, *options, candidates=["FedEM"]), timeout=300)
    assert done.returncode == 0, done.stderr
    said = (
        "own.yaml, line 3: --model.algorithm: choose trains FedEM, Local (--candidates); its options go to those that"
    )
    assert said in done.stderr
    config = yaml.safe_load((folder(tmp_path / "chosen" / "candidates", "FedEM") / "config.yaml").read_text())
    assert config["data"]["val_fraction"] == 0.4
    assert config["model"]["algorithm"]["init_args"]["num_components"] == 2


@pytest.mark.parametrize("more", [["--trainer.max_epochs", "5"], ["--data.seed", "3"]], ids=["rounds", "data"])
def test_runs_of_another_choice_are_not_taken(chosen, more):
    root, _ = chosen
    done = run(command(root, *more))
    assert done.returncode == 2
    assert "holds another choice: options of fit changed since; choose a new folder" in done.stderr
    assert not done.stdout


def test_a_choice_is_reported_in_the_words_of_its_verdict(chosen, tmp_path):
    """Candidates by their algorithms and the rates that were found; the verdict stands in for Local."""
    root, _ = chosen
    page, runs = tmp_path / "report.html", [str(folder(root / "chosen" / "candidates", one)) for one in CANDIDATES]
    done = run(["report", str(root / "chosen"), *runs, "--output", str(page)])
    assert done.returncode == 0, done.stderr
    text = html.unescape(page.read_text())
    assert f"<h1>Report: {', '.join(['Blend', *CANDIDATES])}</h1>" in text
    for name, place in zip(CANDIDATES[:2], runs, strict=False):
        (rate,) = set(pd.read_csv(f"{place}/metrics.csv")["lr"].dropna())
        facts = re.search(rf"<td[^>]*>{name}</td><td[^>]*>{name}</td>.*", text)[0]
        assert f"<td>{rate:g}</td>" in facts
    verdict = pd.read_csv(folder(root, "chosen") / "verdict.csv")
    worse = (verdict["mse_served"] > verdict["mse_alone"]).sum()
    assert f"Blend is worse than training alone for {worse} of 8 seen clients, clearly or by chance." in text
    assert f"{(verdict['verdict'] == 'loses').sum()} clearly lose" in text
    assert "on average over 8 clients, each counting once" in text
    assert "Not known" not in text
    for name, meaning in COLUMNS.items():
        said = meaning.replace("`", "")
        assert f"{'mse' if name[0] == '_' else ''}{name}: {said}." in text
    done = run(["report", str(root / "chosen"), *runs, str(root / "chosen/candidates/Local"), "--output", str(page)])
    assert done.returncode == 0, done.stderr
    assert "worse than Local" in page.read_text()
    assert "worse than training alone" not in page.read_text()


def test_the_page_explains_every_column_of_a_verdict(chosen):
    root, _ = chosen
    page = (Path(__file__).parents[2] / "docs/guides/choose.md").read_text()
    for meaning in COLUMNS.values():
        assert f"| {meaning} |" in page
    known = {one for name in COLUMNS for one in name.split(", ")}
    named = [re.sub("^mse_", "_", one) for one in pd.read_csv(folder(root, "chosen") / "verdict.csv")]
    assert named[0] == "client"
    assert set(named[1:]) == known


def test_a_report_begins_with_the_verdict(chosen, tmp_path):
    root, chose = chosen
    page = tmp_path / "report.html"
    done = run(["report", str(root / "chosen"), "--output", str(page)])
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    (said,) = [line for line in chose.stdout.splitlines() if line.startswith("joining: ")]
    assert html.escape(said) in text
    assert text.index("Does it pay to join?") < text.index("What was run")
    assert "c1</td>" in text
    assert re.findall("<figcaption>([^<]*)", text) == ["client mse"]  # its one round measured no curve
    run(["report", str(root / "chosen"), "--output", str(page), "--anonymous"])
    assert "c1</td>" not in page.read_text()


def test_a_verdict_is_read_as_it_was_written(chosen, tmp_path):
    """Names that a spreadsheet would run, and that read as numbers or as missing."""
    root, _ = chosen
    shutil.copytree(folder(root, "chosen"), tmp_path / "run")
    names = dict(zip([f"c{place}" for place in range(10)], ["=cmd", "01", "NA", *"defghij"], strict=True))
    for file in ("verdict.csv", "clients.csv"):
        table = pd.read_csv(tmp_path / "run" / file)
        write_table(table.assign(client=table["client"].map(names)), tmp_path / "run" / file)
    done = run(["report", str(tmp_path / "run"), "--output", str(tmp_path / "r.html")])
    assert done.returncode == 0, done.stderr
    first = (tmp_path / "r.html").read_text().split("</table>")[0]
    seen = pd.read_csv(folder(root, "chosen") / "verdict.csv")["client"]
    assert re.findall(r'<tr><td class="words">([^<]*)', first) == [names[one] for one in seen]


def test_the_command_of_a_finished_choice_trains_nothing(chosen):
    root, _ = chosen
    before = {one: one.stat().st_mtime_ns for one in (root / "chosen").rglob("*") if one.name != ".lock"}
    done = run(command(root))
    assert done.returncode == 0, done.stderr
    said = f"--output {root / 'chosen'}: this choice is finished; lit-fed report {root / 'chosen'} shows its verdict\n"
    assert done.stdout == said
    assert {one: one.stat().st_mtime_ns for one in (root / "chosen").rglob("*") if one.name != ".lock"} == before


def test_a_choice_cut_off_after_its_trainings_makes_the_same_run(chosen, tmp_path):
    root, _ = chosen
    shutil.copytree(root / "chosen", tmp_path / "chosen")
    whole = tmp_path / "chosen" / "version_0" / "verdict.csv"
    wanted = whole.read_text()
    whole.unlink()
    done = run(command(root, "--output", str(tmp_path / "chosen")), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "4 are done" in done.stdout
    assert whole.read_text() == wanted
    assert not (tmp_path / "chosen" / "version_1").exists()


def test_a_killed_choice_goes_on(chosen, tmp_path):
    root, _ = chosen
    subjects(tmp_path / "rows.csv")
    process = start(command(tmp_path))
    place = tmp_path / "chosen" / "candidates" / "FedEM" / "version_0" / "checkpoints" / "last.ckpt"
    until = time.monotonic() + 120
    while not place.is_file() and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(60)
    assert place.is_file()
    assert not (tmp_path / "chosen" / "version_0").exists()
    done = run(command(tmp_path), timeout=300)
    assert done.returncode == 0, done.stderr
    whole, found = (pd.read_csv(folder(one, "chosen") / "verdict.csv") for one in (root, tmp_path))
    pd.testing.assert_frame_equal(found, whole)


def test_rates_weights_and_verdict_use_other_rows():
    """Of each client's validation samples every second searches the rate, and the others find the weights."""
    split = Split.of([(np_tensor(size, 10 * size), np_tensor(size, 10 * size)[:, 0]) for size in (1, 2, 5)])
    first, second = split.every_other(0), split.every_other(1)
    assert first.sizes.tolist() == [1, 1, 3]
    assert second.sizes.tolist() == [0, 1, 2]
    assert sorted([*first.y.tolist(), *second.y.tolist()]) == sorted(split.y.tolist())
    assert first.client(2).all_y.tolist() == [50, 52, 54]


def np_tensor(size, begin):
    return torch.arange(begin, begin + size).unsqueeze(1)


def test_the_number_of_components_is_chosen_on_rows_that_find_no_weights(tmp_path, monkeypatch):
    subjects(tmp_path / "rows.csv")
    monkeypatch.setattr(lit_fed.choosing.choose, "COMPONENTS", (1, 3))
    measured = []

    def blocks(data, *rest, **options):
        measured.append({tuple(one) for one in data.x.tolist()})
        return serving_blocks(data, *rest, **options)

    monkeypatch.setattr(lit_fed.choosing.blend, "serving_blocks", blocks)
    done = run(command(tmp_path, "--components", "auto", "--model.solver.lr", "0.1", candidates=["Local", "FedEM"]))
    assert done.returncode == 0, done.stderr
    assert "3 candidates of 4 rounds each: FedEM_1, FedEM_3, Local; learning rate 0.1" in done.stdout
    (said,) = [line for line in done.stdout.splitlines() if line.startswith("validation loss: ")]
    losses = {name: float(loss) for name, loss in re.findall(r"(FedEM_\d) ([\d.]+)", said)}
    best = min(losses, key=losses.get)
    assert len(losses) == 2
    assert said.endswith(f"; {best} is a candidate")
    table = pd.read_csv(folder(tmp_path, "chosen") / "clients.csv")
    assert [name for name in table if name.startswith("pi_")] == [f"pi_{best}", "pi_Local"]
    of_components, of_weights, *_ = measured
    assert len(of_components) > 8
    assert len(of_weights) > 8
    assert not of_components & of_weights


def test_private_candidates_are_compared_with_training_alone(tmp_path):
    subjects(tmp_path / "rows.csv")
    done = run(command(tmp_path, *PRIVACY))
    assert done.returncode == 2
    assert "the ε of a private run does not cover it; give a number" in done.stderr
    done = run(command(tmp_path, *PRIVACY, "--model.solver.lr", "0.1", candidates=["FedAvg"]))
    assert done.returncode == 0, done.stderr
    assert "joining: mse" in done.stdout
    assert "privacy: ε covers the training samples alone" in done.stdout


def test_what_choose_decides_is_refused(tmp_path):
    subjects(tmp_path / "rows.csv")
    for more, said in (
        (["--model.algorithm", "FedEM"], "--model.algorithm is decided by choose; leave it out: give --candidates"),
        (["--model.algorithm.mu=1"], "--model.algorithm is decided by choose"),
        (["--name", "x"], "--name is decided by choose; leave it out: give --output\n"),
        (["--seeds", "3"], "--seeds is decided by choose; leave it out: a choice has one seed, --seed_everything"),
        (
            ["--init_from", "x"],
            "--init_from is decided by choose; leave it out: each candidate starts from fresh models",
        ),
        (["--data.dataset.path", "nothing.csv"], "nothing.csv: there is no such file; correct --data.dataset.path"),
        (["--data.batch_sise", "3"], "--data.batch_size"),
    ):
        done = run(command(tmp_path, *more))
        assert done.returncode == 2
        assert said in done.stderr
    assert not [*(tmp_path / "chosen").glob("[a-z]*")]
