"""`fit --seeds`: several fits of one command, and their row."""

import json
import re

import pandas as pd
import pytest

from lit_fed.cli import main

QUICK = ["fit", "--data.dataset", "Digits", "--data.num_clients", "4", "--trainer.max_epochs", "2", "--name", "few"]


@pytest.mark.usefixtures("rendered")
def test_seeds_are_fits_of_their_own_and_nothing_is_made_twice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main([*QUICK, "--seeds", "2"])
    said = capsys.readouterr().out
    assert "2 fits in runs/few: 0 are done" in said
    assert re.findall(r"seed_\d is trained \(\d:\d\d:\d\d left\)", said)[1].endswith("(0:00:00 left)")
    last = [json.loads((tmp_path / f"runs/few/seed_{one}/version_0/summary.json").read_text()) for one in range(2)]
    scores = pd.Series([one["test/seen/accuracy"] for one in last])
    (row,) = pd.read_csv("runs/few/comparison/comparison.csv").to_dict("records")
    assert (row["name"], row["runs"]) == ("few", 2)
    assert row["test/seen/accuracy"] == pytest.approx(scores.mean())
    assert row["test/seen/accuracy (std)"] == pytest.approx(scores.std())
    assert f"{100 * scores.mean():.2f} ± {100 * scores.std():.2f}" in said
    before = (tmp_path / "runs/few/seed_0/version_0/summary.json").stat().st_mtime_ns
    main([*QUICK, "--seeds=2"])
    assert "2 are done" in capsys.readouterr().out
    assert (tmp_path / "runs/few/seed_0/version_0/summary.json").stat().st_mtime_ns == before
    main(["compare", "runs/few", "runs/few/seed_1", "--output", "all"])
    (row,) = pd.read_csv("all/comparison.csv").to_dict("records")
    assert (row["runs"], row["test/seen/accuracy"]) == (2, pytest.approx(scores.mean()))
    main(["report", "runs/few", "--output", "few.html"])
    assert "0, 1 (training)" in (tmp_path / "few.html").read_text()
    main([*QUICK, "--seed_everything", "1", "--name", "alone"])  # a seed of the series is the fit with that seed
    alone = json.loads((tmp_path / "runs/alone/version_0/summary.json").read_text())
    assert alone["test/seen/accuracy"] == last[1]["test/seen/accuracy"]


def test_the_folder_of_another_run_is_refused_by_the_option_that_names_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/few/version_0").mkdir(parents=True)
    with pytest.raises(SystemExit):
        main([*QUICK, "--seeds", "2"])
    assert "--name runs/few holds something that is no series; choose a new folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--seeds", "2", "--seed_everything", "1"], "--seed_everything is of a single fit, and --seeds is given"),
        (["--seeds", "2", "--ckpt_path", "last"], "--ckpt_path"), (["--seeds", "0"], "seeds"),
        (["--seeds", "2", "--model.algorithm", "FedAvgg"], "did you mean FedAvg"),
    ],
)  # fmt: skip
def test_what_several_fits_do_not_share_is_refused(tmp_path, monkeypatch, capsys, more, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main([*QUICK, *more])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs/few/seed_0").exists()
