"""The soak: what it does is drawn from its seed, what it finds equal is equal, and what is lost it reports."""

import json
import random
import signal

import pytest
import soak
from running import folder
from soak import KINDS, RUNS, Life, Sample, described, grown


def soaked(out, *arguments):
    with pytest.raises(SystemExit) as ended:
        soak.main([*arguments, "--rounds", "4", "--out", str(out / "soak.json")])
    return ended.value.code


def test_troubles_and_their_page(tmp_path, capsys):
    kinds = ["killed in a checkpoint", "two writers", "deleted between"]
    assert soaked(tmp_path, "--cases", "3", "--seed", "713", "--kinds", *kinds) == 0, capsys.readouterr().out
    record = json.loads((tmp_path / "soak.json").read_text())
    assert (record["cases"], record["exact"], record["failures"]) == (3, 3, [])
    assert list(record["kinds"]) == kinds
    assert record["kinds"]["killed in a checkpoint"]["ended"] == {str(-signal.SIGKILL): 1}
    assert record["kinds"]["two writers"]["ended"]["2"] >= 1, "the second was refused"
    page = (tmp_path / "soak.md").read_text()
    assert "**3 of 3 runs" in page
    assert all(f"| {kind} | {described(kind)} |" in page for kind in kinds)


def test_what_is_lost_is_reported_with_the_command_that_does_it_again(tmp_path, capsys, monkeypatch):
    def wrong_digit(life):
        life.end(life.begin(), "the run", (0,))
        table = folder(life.runs.parent, "run") / "metrics.csv"
        life.rng.random()
        lines = table.read_text().splitlines()
        lines[1] = f"{lines[1][:-1]}{(int(lines[1][-1]) + 1) % 10}"
        table.write_text("\n".join(lines) + "\n")

    monkeypatch.setitem(KINDS, "killed", wrong_digit)
    assert soaked(tmp_path, "--cases", "1", "--seed", "1", "--kinds", "killed") == 1
    (failure,) = json.loads((tmp_path / "soak.json").read_text())["failures"]
    assert failure["lost"][0].startswith("metrics.csv: ['0', ")
    assert "NOT EXACT: metrics.csv: ['0', " in capsys.readouterr().out
    assert "python scripts/soak.py --seed 1 --only 0" in " ".join((tmp_path / "soak.md").read_text().split())


def test_the_page_is_what_the_record_gives():
    assert soak.RESULTS.with_suffix(".md").read_text() == soak.page(json.loads(soak.RESULTS.read_text()))


def test_a_case_is_drawn_from_its_seed_and_number():
    kinds = list(KINDS)
    drawn = [soak.draw(3, number, kinds) for number in range(40)]
    assert [one[1:] for one in drawn] == [soak.draw(3, number, kinds)[1:] for number in range(40)]
    assert [one[0].random() for one in drawn] == [soak.draw(3, number, kinds)[0].random() for number in range(40)]
    assert {one[1] for one in drawn} == set(RUNS)
    assert {len(one[2]) for one in drawn} == {1, 2, 3}
    assert [one[2][0] for one in drawn[: len(kinds)]] == kinds
    assert [one[1:] for one in drawn] != [soak.draw(4, number, kinds)[1:] for number in range(40)]


def test_rows_that_were_deleted_are_the_only_ones_that_may_be_missing(tmp_path):
    life = Life(RUNS["FedEM"], tmp_path, 3, 0.1, random.Random(0))
    whole = {"metrics.csv": [["step", "a", "b"], ["0", "1", ""], ["1", "2", "5"], ["2", "3", ""]]}
    fewer = {"metrics.csv": [["step", "a"], ["2", "3"]]}
    wrong = {"metrics.csv": [["step", "a"], ["1", "2"], ["2", "3"]]}
    assert life.differences(whole, whole) == []
    assert life.differences(fewer, whole) != []
    life.rows_lost = True
    assert life.differences(fewer, whole) == []
    assert life.differences(wrong, whole) == ["metrics.csv: {'step': '1', 'a': '2'} in place of "
                                              "{'step': '1', 'a': '2', 'b': '5'}"]  # fmt: skip


def test_growth_is_noticed_and_what_is_there_from_the_start_is_not():
    flat = [Sample(100 * number, 600.0 + 0.1 * number, 12 + number % 2) for number in range(1, 21)]
    assert grown([Sample(10, 500.0, 3), *flat]) == []
    assert grown([*flat, Sample(2100, 620.0, 12)]) == ["memory grew by 19.7 MB, more than 6.0"]
    assert grown([*flat, Sample(2100, 602.0, 40)]) == ["27 more files are open"]
