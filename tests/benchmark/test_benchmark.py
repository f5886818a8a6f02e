"""The benchmark: a user-defined algorithm on a user-defined task from a CSV, and records that break the protocol."""

import copy
import dataclasses
import itertools
import json
import math
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import intervals
import joining
import leaderboard
import numpy as np
import pytest
import torch
import yaml
from invented_records import invented
from sklearn.metrics import roc_auc_score

from lit_fed.algorithms.ditto import Ditto
from lit_fed.algorithms.fedavg import FedAvg
from lit_fed.algorithms.moon import MOON
from lit_fed.benchmark import command, measures, protocol, ranks, records, runs
from lit_fed.benchmark.comparison import cost_to_match, other_results, paired, ranked_score, row_of, share_worse
from lit_fed.benchmark.cut import Cut, _ids, forget_data, rows_of
from lit_fed.benchmark.method import Method, method_of
from lit_fed.benchmark.task import read_task, suites, task_files
from lit_fed.cli import UntestedCLI, main
from lit_fed.core.types import Split
from lit_fed.data.data_sets.base import PooledDataSet, Samples
from lit_fed.data.data_sets.table import Table
from lit_fed.errors import ConfigError
from lit_fed.metrics.paired import Difference, weighted_mean
from lit_fed.system.discovery import import_named
from lit_fed.system.trials import Outcome

TASK = {
    "metric": "accuracy", "rounds": 2, "cuts": 2, "network": {"class_path": "Linear"}, "batch_size": 0,
    "dataset": {
        "class_path": "Table",
        "init_args": {"path": "{root}/my.csv", "client_column": "who", "label_column": "y"},
    },
}  # fmt: skip

MINE = '''
from dataclasses import dataclass
from lit_fed.algorithms.fedavg import FedAvg
from lit_fed.algorithms.local import Local
from lit_fed.core import tree
from lit_fed.core.algorithm import tuned

@dataclass(frozen=True)
class Mine(Local):
    """Local training, of which a setting is tuned."""

    unused: float = tuned(0.5, 0.5, 2.0)

@dataclass(frozen=True)
class Overflowing(Local):
    """Finite models that predict NaN from a learning rate of 0.1 on."""

    def log_prob(self, ctx, shared, state, x, outputs):
        found = super().log_prob(ctx, shared, state, x, outputs)
        return found * float("nan") if ctx.solver.rate >= 0.1 else found

@dataclass(frozen=True)
class Broken(Local):
    """A mistake."""

    def client_final(self, ctx, shared, work, data):
        raise RuntimeError("the size of a must match the size of b")

@dataclass(frozen=True)
class Worse(FedAvg):
    """Models that predict the opposite of what they learned."""

    def client_final(self, ctx, shared, work, data):
        result = super().client_final(ctx, shared, work, data)
        value = tree.map_leaves(lambda leaf: -1000 * leaf, result.message.value)
        return result._replace(message=result.message._replace(value=value))
'''


def write_table(path, clients=6, samples=16):
    rng = np.random.default_rng(3)
    lines = ["who,a,b,y"]
    for client in range(clients):
        for a, b in rng.normal(size=(samples, 2)):
            lines.append(f"c{client},{a:.3f},{b:.3f},{int(a + (client - 2) * b > 0)}")
    path.write_text("\n".join(lines) + "\n")


def benchmark(folder, action, *arguments):
    place = ["--tasks", str(folder / "my.yaml"), "--data.root", str(folder), "--output", str(folder / "records")]
    main(["benchmark", action, *arguments, *place])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a task and an algorithm, and records of two baselines and of the algorithm."""
    place = tmp_path_factory.mktemp("mine")
    write_table(place / "my.csv")
    (place / "my.yaml").write_text(yaml.safe_dump(TASK))
    (place / "mine_bench.py").write_text(MINE)
    sys.path.insert(0, str(place))
    calls = []

    def killed(arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return UntestedCLI(arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lit_fed.cli.UntestedCLI", killed)
        with pytest.raises(SystemExit):
            benchmark(place, "run", "--algorithms", "FedAvg", "Local")
        benchmark(place, "run", "--algorithms", "FedAvg", "Local")
        assert len(calls) == 2 * (8 + 2) + 1  # the run that was killed is made again, and no other
        benchmark(place, "run", "--algorithms", "mine_bench.Mine", "Local")
        benchmark(place, "run", "--algorithms", "mine_bench.Mine")
        assert len(calls) == 3 * (8 + 2) + 1  # a record is not made again
    yield place
    sys.path.remove(str(place))
    sys.modules.pop("mine_bench", None)


@pytest.fixture
def record(folder):
    found = {one["algorithm"]: one for one in records.read_records(folder / "records/my.jsonl.gz")}
    return copy.deepcopy(found["FedAvg"])


def wrong_in(folder, record):
    task = read_task(str(folder / "my.yaml"))
    return list(records.problems(record, task, Method(FedAvg).points))


def test_settings_of_a_section_are_tuned_with_an_algorithm(folder, tmp_path):
    place = ["--tasks", str(folder / "my.yaml"), "--data.root", str(folder), "--output", str(tmp_path)]
    main(["benchmark", "run", "--algorithms", "FedAvg+serving", *place])
    (record,) = records.read_records(tmp_path / "my.jsonl.gz")
    tried = [one["serving.fine_tune_epochs"] for one in record["tuning"]["points"]]
    assert sorted(tried) == [0, 0, 1, 1, 5, 5, 10, 10]
    best = max(range(8), key=lambda trial: (record["tuning"]["scores"][trial] or -1, -trial))
    assert record["arguments"]["model"]["serving"] == {"fine_tune_epochs": tried[best]}
    task = read_task(str(folder / "my.yaml"))
    points = json.loads(json.dumps(method_of("FedAvg+serving").points))
    assert list(records.problems(record, task, points)) == []
    # seen clients fine-tune, too: more epochs at a large rate score otherwise than none
    entry, lr = runs.entry_of(task, method_of("FedAvg+serving")), 0.316
    few, many = (json.dumps({"lr": lr, "serving.fine_tune_epochs": one}) for one in (0, 10))
    made = [runs.make_run(UntestedCLI, folder, runs.Work(entry, None, one, 0)) for one in (few, many)]
    alone = runs.make_run(UntestedCLI, folder, runs.Work(runs.entry_of(task, Method(FedAvg)), None, '{"lr": 0.316}', 0))
    assert made[0]["test"] == alone["test"]
    assert made[1]["test"]["seen"] != alone["test"]["seen"]


def test_predictions_that_are_nan_count_as_diverged(folder, tmp_path):
    place = ["--tasks", str(folder / "my.yaml"), "--data.root", str(folder), "--output", str(tmp_path)]
    main(["benchmark", "run", "--algorithms", "mine_bench.Overflowing", *place])
    (record,) = records.read_records(tmp_path / "my.jsonl.gz")
    rates = [point["lr"] for point in record["tuning"]["points"]]
    assert [score is None for score in record["tuning"]["scores"]] == [rate >= 0.1 for rate in rates]
    assert all(run["test_reads"] == 1 for run in record["runs"])


def test_a_mistake_of_an_algorithm_ends_its_own_runs_alone(folder, tmp_path, capsys):
    place = ["--tasks", str(folder / "my.yaml"), "--data.root", str(folder), "--output", str(tmp_path)]
    main(["benchmark", "run", "--algorithms", "mine_bench.Broken", *place])
    assert "my mine_bench.Broken: no record: " in capsys.readouterr().out
    assert "the size of a must match" in records.read_refusals(tmp_path)["my"]["mine_bench.Broken"]


def test_a_run_that_learns_nothing_is_said_and_the_record_is_as_it_was(folder, tmp_path, capsys):
    entry = runs.entry_of(read_task(str(folder / "my.yaml")), method_of("mine_bench.Worse"))
    unfinished, work = runs.Unfinished(tmp_path / "unfinished", [entry]), runs.trials_of(entry)[0]
    result = runs.make_run(UntestedCLI, folder, work)
    assert re.search("training loss ended at .*, above the first round .* clients above guessing", result["said"])
    unfinished.keep(work, Outcome(dict(result)))
    assert f"validation {result['score']}; {result['said']}" in capsys.readouterr().out
    (kept,) = (json.loads(path.read_text()) for path in (tmp_path / "unfinished").iterdir())
    assert kept.keys() == result.keys() - {"said"}


def test_a_new_algorithm_stands_beside_stored_records(folder, capsys):
    benchmark(folder, "show")
    assert "mine_bench.Mine" in capsys.readouterr().out
    benchmark(folder, "compare", "FedAvg", "mine_bench.Mine")
    shown = capsys.readouterr().out
    assert "Pairs, unseen 10" in shown
    assert "training seeds 1 to 2, one for each cut" in shown
    benchmark(folder, "compare", "FedAvg", "Local", "mine_bench.Mine", "--format", "latex")
    table = capsys.readouterr().out
    assert re.search(
        r"my & FedAvg & mine\\_bench.Mine & [+-][\d.]+ & [+-][\d.]+ & [+-][\d.]+ & \d+ & [01].\d{3}", table
    )
    assert "corrected for the 3 comparisons of this table (Holm)" in table
    benchmark(folder, "submit-check", str(folder / "records/my.jsonl.gz"), "--trust", "mine_bench")
    assert capsys.readouterr().out.count("keeps to the protocol") == 3
    assert not (folder / "records/unfinished").exists()
    kept = records.read_records(folder / "records/my.jsonl.gz")
    assert [one["algorithm"] for one in kept] == ["FedAvg", "Local", "mine_bench.Mine"]


def test_of_an_algorithm_with_a_record_nothing_runs_unless_it_is_asked_for(folder, tmp_path, capsys):
    place = tmp_path / "mine"
    shutil.copytree(folder, place)
    benchmark(place, "run", "--algorithms", "FedAvg", "mine_bench.Mine")
    shown = capsys.readouterr().out
    for name in ("FedAvg", "mine_bench.Mine"):
        assert f"{name} on my: the stored record is shown, nothing ran; --again runs it\n" in shown
    path = place / "records/my.jsonl.gz"
    before = {one["algorithm"]: one for one in records.read_records(path)}
    benchmark(place, "run", "--again", "--algorithms", "FedAvg")
    shown = capsys.readouterr().out
    assert "FedAvg on my: run again, it equals the record\n" in shown
    assert "my FedAvg trial 1 of 8: validation" in shown
    after = {one["algorithm"]: one for one in records.read_records(path)}
    assert after["Local"] == before["Local"]
    assert after["FedAvg"]["runs"][0]["test"] == before["FedAvg"]["runs"][0]["test"]
    task, other = read_task(str(folder / "my.yaml")), copy.deepcopy(before["FedAvg"])
    other["tuning"]["scores"][0] += 0.1
    assert "trial" in next(command._changes(*(records.with_clients(one, task) for one in (before["FedAvg"], other))))


CLUSTER = """
from dask.distributed import Client

def executor():
    return Client(n_workers=1, threads_per_worker=1, dashboard_address=None).get_executor()
"""


@pytest.mark.filterwarnings("ignore")  # of dask, at its end
def test_runs_of_a_cluster_give_the_same_record(folder, tmp_path, monkeypatch, capsys):
    """By an executor of dask, as the guide has it: its worker is another process."""
    pytest.importorskip("distributed")
    (folder / "my_cluster.py").write_text(CLUSTER)
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(__file__).resolve().parents[2]}")
    place = ["--tasks", str(folder / "my.yaml"), "--data.root", str(folder), "--output", str(tmp_path)]
    main(["benchmark", "run", "--algorithms", "FedAvg", *place, "--jobs", "2", "--executor", "my_cluster.executor"])
    assert "10 runs, 2 at a time: 10 of tasks without a record" in capsys.readouterr().out
    (record,) = records.read_records(tmp_path / "my.jsonl.gz")
    before = {one["algorithm"]: one for one in records.read_records(folder / "records/my.jsonl.gz")}["FedAvg"]
    assert record["tuning"]["scores"] == before["tuning"]["scores"]
    assert [run["test"] for run in record["runs"]] == [run["test"] for run in before["runs"]]


def test_the_time_of_runs_is_that_of_stored_records(folder, tmp_path):
    entry = runs.entry_of(read_task(str(folder / "my.yaml")), Method(FedAvg))
    assert runs.Unfinished(tmp_path / "unfinished", [entry]).announcement(2).startswith("10 runs, 2 at a time: 10 of")
    record = {"algorithm": "FedAvg", "task": "my", "runs": [{"cpu_seconds": 59.0}, {"cpu_seconds": 60.4}, {}]}
    records.write_record(tmp_path, record)
    said = runs.Unfinished(tmp_path / "unfinished", [entry] * 12).announcement(2)
    assert said == "120 runs, 2 at a time: about 60 minutes by stored records"


def test_a_record_holds_every_client_once_for_each_split(folder, record):
    assert not {"clients", "samples"} & record["runs"][0]["test"]["seen"].keys()  # the task's file has them
    for run in records.with_clients(record, read_task(str(folder / "my.yaml")))["runs"]:
        seen, unseen = (set(run["test"][name]["clients"]) for name in ("seen", "unseen_10"))
        assert (len(seen), len(unseen), len(seen | unseen)) == (5, 1, 6)
        assert run["test"]["unseen_0"] == run["test"]["unseen_100"]  # FedAvg does not adapt
        assert [done for done, _, _ in run["curve"]] == [1, 2]
        assert run["bytes_up"] > 0


def test_a_record_of_another_version_of_the_file_is_refused(folder, capsys):
    path = folder / "mine_bench.py"
    try:
        path.write_text(MINE + "# changed")
        with pytest.raises(SystemExit):
            benchmark(folder, "submit-check", str(folder / "records/my.jsonl.gz"), "--trust", "mine_bench")
        assert "Mine is refused: it is of another version" in capsys.readouterr().out
    finally:
        path.write_text(MINE)


def by_test(record):
    scores = record["tuning"]["scores"]
    other = next(place for place, score in enumerate(scores) if score < max(scores))
    record["chosen"] = record["tuning"]["points"][other]


def more_trials(record):
    record["tuning"]["points"].append({"lr": 0.05})
    record["tuning"]["scores"].append(0.0)


def other_division(record):
    record["runs"][1]["samples"] = record["runs"][0]["samples"]


def best_round(record):
    record["runs"][0]["round"] = 1


def other_network(record):
    record["arguments"]["model"]["network"] = {"class_path": "MLP"}


def read_twice(record):
    record["runs"][0]["test_reads"] = 2


def fewer_clients(record):
    for scores in record["runs"][0]["test"].values():
        scores["score"] = scores["score"][1:]


def other_metric(record):
    record["score"] = "pooled"


def no_results(record):
    del record["runs"][0]["test"]["unseen_0"]


def trial_scores(record):
    """Another point looks the best one."""
    scores = record["tuning"]["scores"]
    best = scores.index(max(scores))
    scores[best], scores[best - 1] = scores[best - 1], scores[best] + 0.2
    record["chosen"] = record["tuning"]["points"][best - 1]
    record["arguments"]["model"]["solver"]["lr"] = record["chosen"]["lr"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_metric, r"judged by accuracy \(pooled\)"), (no_results, "lacks results"),
        (trial_scores, "the same trial"), (by_test, "not the best of its trials by validation"),
        (more_trials, "9 trials are not the 8"),
        (other_division, "not those of the task"), (best_round, "judged after round 1"),
        (other_network, "model.network.class_path differs"), (read_twice, "read 2 times"),
        (fewer_clients, "lacks results"),
    ],
)  # fmt: skip
def test_a_record_that_breaks_the_protocol_is_refused(folder, record, tmp_path, capsys, change, said):
    assert wrong_in(folder, record) == []
    change(record)
    assert re.search(said, wrong_in(folder, record)[0])
    records.write_record(tmp_path, record)
    with pytest.raises(SystemExit) as stop:
        benchmark(folder, "submit-check", str(tmp_path / "my.jsonl.gz"))
    assert stop.value.code == 1
    assert re.search(said, capsys.readouterr().out)


def test_a_pooled_score_without_the_influence_of_a_unit_is_refused():
    task = dataclasses.replace(read_task("digits_label_groups"), score="pooled")
    record = invented(task)
    assert list(records.problems(record, task, None)) == []
    record["runs"][3]["test"]["unseen_0"]["influence"].pop()
    assert list(records.problems(record, task, None)) == ["cut 3: it lacks results of some clients"]


def test_test_samples_that_differ_between_cuts_are_refused(tmp_path):
    """As in files of protocol 1."""
    shutil.copy(read_task("digits_label_groups").path, tmp_path / "old.yaml")
    task = read_task(str(tmp_path / "old.yaml"))
    known = read_task("digits_label_groups").known_clients()
    known[1].digests["0"][2] = "0" * 16
    task.write_clients(known)
    with pytest.raises(
        ConfigError, match=r"old.samples.jsonl: test samples or unseen clients differ between cuts; res"
    ):
        task.known_clients()


def other_scores(run):
    run["test"]["unseen_10"]["score"] = [one - 0.02 for one in run["test"]["unseen_10"]["score"]]


def better_pooled(run):
    run["test"]["seen"]["pooled"] += 0.02


def fewer_bytes(run):
    run["bytes_up"] /= 2


def diverged(run):
    """A bad cut that is left out of the mean."""
    kept = {name: run[name] for name in ("cut", "samples")}
    run.clear()
    run |= kept | {"diverged": "round 1: a loss is not finite"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_scores, "has mean .* on unseen_10 clients, and it says"), (better_pooled, "has pooled"),
        (fewer_bytes, "sends .* bytes, not"), (diverged, "did not diverge"),
    ],
)  # fmt: skip
def test_results_that_a_run_does_not_have_are_refused(folder, record, tmp_path, capsys, change, said):
    for run in record["runs"]:
        change(run)
    assert wrong_in(folder, record) == []
    records.write_record(tmp_path, record)
    with pytest.raises(SystemExit):
        benchmark(folder, "submit-check", str(tmp_path / "my.jsonl.gz"))
    assert re.search("cut [01] run again " + said, capsys.readouterr().out)


def test_trials_that_were_not_as_good_are_refused(folder, record, tmp_path, capsys):
    tuning = record["tuning"]
    tuning["scores"] = [
        score if point == record["chosen"] else score - 0.1
        for point, score in zip(tuning["points"], tuning["scores"], strict=True)
    ]
    assert wrong_in(folder, record) == []
    with pytest.MonkeyPatch.context() as patch:
        other = next(place for place, point in enumerate(tuning["points"]) if point != record["chosen"])
        patch.setattr(command.secrets, "randbelow", lambda number: other)
        records.write_record(tmp_path, record)
        with pytest.raises(SystemExit):
            benchmark(folder, "submit-check", str(tmp_path / "my.jsonl.gz"))
    assert re.search("trial . run again has .* on validation samples, and it says", capsys.readouterr().out)


def test_a_changed_sample_is_refused_before_any_run(folder, capsys):
    path = folder / "my.csv"
    kept = path.read_text()
    try:
        path.write_text(kept.replace(kept.splitlines()[1], "c0,9.125,0.5,1"))
        with pytest.raises(SystemExit):
            benchmark(folder, "run", "--algorithms", "Ditto")
        assert "the samples of client 'c0' differ" in capsys.readouterr().err
    finally:
        path.write_text(kept)
        forget_data()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"score": "worst"}, "choose from clients, pooled"),
        ({"trials": 20}, "there is no field 'trials'"), ({"metric": "f1"}, "choose from accuracy"),
        ({"rounds": 0}, "whole number >= 1"), ({"network": None}, "network is missing"),
    ],
)  # fmt: skip
def test_a_task_decides_nothing_of_the_protocol(tmp_path, change, said):
    given = {name: value for name, value in (TASK | change).items() if value is not None}
    (tmp_path / "t.yaml").write_text(yaml.safe_dump(given))
    with pytest.raises(ConfigError, match=said):
        read_task(str(tmp_path / "t.yaml"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "needs --algorithms"), (["run", "--algorithms", "FedAvgg"], "did you mean FedAvg"),
        (["run", "--algorithms", "FedAvg+server"], "no section 'server' has settings to tune; .*serving"),
        (["run", "--algorithms", "no_file.Mine"], "No module named 'no_file'.*; correct the path, and start in"),
        (["race"], "'submit-check'.*Got value: race"), (["compare", "FedAvg"], "different algorithms"),
        (["compare", "FedAvg", "FedAvg"], "different algorithms"),
        (["show", "--tasks", "parkinson"], "did you mean parkinsons"), (["submit-check"], "needs a file"),
        (["show", "--again"], "takes no --again"),
    ],
)  # fmt: skip
def test_wrong_commands_are_explained(arguments, said):
    with pytest.raises(ConfigError, match=said):
        command.run_benchmark(arguments, UntestedCLI)


# ---------------------------------------------------------------------- protocol
def test_trials_are_the_same_for_all_and_balanced():
    points = {cls: Method(cls).points for cls in (FedAvg, Ditto, MOON)}
    rates = [one["lr"] for one in points[FedAvg]]
    assert sorted(rates) == list(protocol.LEARNING_RATES)
    assert all([one["lr"] for one in each] == rates for each in points.values())
    counts = [[one["mu"] for one in points[MOON]].count(value) for value in (0.1, 1.0, 5.0, 10.0)]
    assert counts == [2, 2, 2, 2]
    assert {len(one) for one in points[MOON]} == {3}
    assert protocol.chosen([1, 2, 3], [None, 0.5, 0.5]) == 2
    assert protocol.chosen([1], [math.nan]) is None


def test_a_cut_is_stratified_and_disjoint(tmp_path):
    write_table(tmp_path / "t.csv", clients=10, samples=40)
    data = Table(str(tmp_path / "t.csv"), "who", "y")
    first, second = (Cut(data, cut=cut).load() for cut in (0, 1))
    assert len(first.unseen) == 2
    assert ((first.split == 2) == (second.split == 2)).all()
    assert (first.split != second.split).any()
    for number in range(10):
        own = first.owner == number
        assert np.bincount(first.split[own]).tolist() == [24, 8, 8]
        for label in (0, 1):
            count = (first.y[own] == label).sum()
            assert abs((first.split[own & (first.y == label)] == 2).sum() - count / 5) < 1
    digests = Cut(data).clients().digests
    assert len({one for each in digests.values() for one in each}) == 30
    assert digests == Cut(data).clients().digests != Cut(data, cut=1).clients().digests
    assert Cut(data).clients().tested == Cut(data, cut=1).clients().tested


class Studies(PooledDataSet):
    """400 samples of 8 clients, by 60 persons, whom several clients share, or at 10 times of each client."""

    natural = True

    def __init__(self, kind):
        self.kind = kind

    def load(self):
        rng = np.random.default_rng(1)
        owner, x = np.arange(400) % 8, rng.normal(size=(400, 2)).astype(np.float32)
        persons, times = rng.integers(60, size=400), np.arange(400) // 40
        more = {"groups": persons} if self.kind == "persons" else {"order": times.astype(float)}
        return Samples(x, (x[:, 0] > 0).astype(np.int64), owner, [f"c{one}" for one in range(8)], **more)


AT_HAND = {"Digits", "Synthetic", "RTable"}
"""Data sets that every machine has."""

TASKS_AT_HAND = [name for name in task_files() if read_task(name).given["dataset"]["class_path"] in AT_HAND]


def test_digests_and_records_are_of_tasks():
    """Files of a task that is no more would be packed into every wheel."""
    names, root = task_files().keys(), Path(__file__).parents[2]
    files = [*(root / "configs/benchmark").glob("*.samples.jsonl"), *(root / "docs/benchmark").glob("*.jsonl.gz")]
    assert len(files) > 60
    assert {file.name.partition(".")[0] for file in files} <= names


@pytest.mark.parametrize("case", ["persons", "times", *TASKS_AT_HAND])
def test_no_sample_that_is_tested_was_seen_by_tuning_or_by_any_training(case):
    """By row number, over all cuts; and a person is on one side, and no training sample is later than a test sample."""
    if case in TASKS_AT_HAND:
        task = read_task(case)
        given = [json.dumps(task.arguments("FedAvg", {"lr": 0.1}, cut)["data"]["dataset"]) for cut in task.cuts]
        cuts = list(map(runs._cut_of, given))
        known = task.known_clients()
        assert all(
            one.clients().digests == known[cut].digests for cut, one in zip(task.cuts, cuts, strict=True) if known
        )
    else:
        data = Studies(case)
        cuts = [Cut(data, cut=cut) for cut in range(5)]
    each = list(map(rows_of, cuts))
    seen = [
        {*np.concatenate([rows for rows, name in zip(one.rows, one.names, strict=True) if name not in one.unseen])}
        for one in each
    ]
    tested = [{*np.flatnonzero(one.split == 2)} for one in each]
    outside = [{*np.concatenate(one.rows)} - known for one, known in zip(each, seen, strict=True)]
    learned = [known & {*np.flatnonzero(one.split < 2)} for one, known in zip(each, seen, strict=True)]
    for one, other in itertools.product(range(5), repeat=2):
        assert not learned[one] & (tested[other] | outside[other])
    assert all(one == tested[0] for one in tested)
    assert all(one.unseen == each[0].unseen for one in each)
    assert len({tuple(one.split) for one in each}) == 5  # training and validation samples differ
    for cut in cuts if case in ("persons", "times") else ():
        samples, split = cut.dataset.load(), rows_of(cut).split
        if case == "persons":
            sides = [{*samples.groups[split == one]} for one in (0, 1, 2)]
            assert not any(one & other for one, other in itertools.combinations(sides, 2))
            assert 40 < (split == 2).sum() < 120
        for client in range(8 if case == "times" else 0):
            own = samples.owner == client
            assert samples.order[own & (split < 2)].max() < samples.order[own & (split == 2)].min()
            assert (split[own] == 2).sum() == 10


def test_a_client_of_one_person_is_refused():
    """All of its samples are on one side."""
    data = Studies("persons")
    samples = data.load()
    lonely = samples._replace(groups=np.where(samples.owner == 3, 99, samples.groups))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Studies, "load", lambda self: lonely)
        with pytest.raises(
            ConfigError, match=r"client 'c3' has no (val|test|train) samples, since persons and times stay"
        ):
            rows_of(Cut(data))


def test_unseen_clients_adapt_on_a_part_of_their_samples():
    train = Split.of([(torch.arange(20.0)[:, None], torch.zeros(20)), (torch.arange(5.0)[:, None], torch.ones(5))])
    assert measures._part(train, 10, 0).sizes.tolist() == [2, 1]
    assert measures._part(train, 0, 0).sizes.tolist() == [0, 0]
    part = measures._part(train, 40, 0)
    assert part.y.tolist() == [0] * 8 + [1] * 2


# ---------------------------------------------------------------------- measures
def test_scores_of_clients():
    rng = np.random.default_rng(0)
    labels, chance = rng.integers(2, size=200), rng.integers(10, size=200) / 10
    log = np.log(np.stack([1 - chance, chance], 1) + 1e-9)
    assert measures.area(labels, log) == pytest.approx(roc_auc_score(labels, chance))
    assert measures.area(labels * 0, log) is None
    quantities = measures.scores_of(["a"], [(torch.tensor([1.0, -1.0]), torch.tensor([[0.5], [-1.0]]))], "r2")
    assert quantities.score == [1 - 0.25 / 2]
    assert quantities.pooled == pytest.approx(1 - 0.125)


def test_a_pooled_score_has_the_influence_of_each_client_or_of_each_person_if_clients_are_few():
    """Of a mean, (n − 1)(mean − mean without one) is that one's distance to the mean."""
    parts = [(torch.tensor([0, 1, 1]), torch.log(torch.tensor([[0.9, 0.1]] * 3)))] * 2
    persons = {"a": np.array([5, 7, 7]), "b": np.array([0, 1, 2])}
    found = measures.scores_of(["a", "b"], parts, "accuracy", persons.__getitem__)
    assert found.pooled == pytest.approx(1 / 3)
    without = [1 / 5, 2 / 4, 1 / 5, 2 / 5, 2 / 5]  # persons 5 and 7 of a; three of b
    assert found.influence == pytest.approx([4 * (1 / 3 - one) for one in without])
    many = measures.scores_of(list("abcde"), parts[:1] * 5, "accuracy", persons.__getitem__)
    assert many.influence == pytest.approx([0] * 5)
    assert measures.scores_of(["a"], parts[:1], "accuracy").influence is None


def made(scores, curve=((10, 0.5, 4e6),)):
    def run(cut, values):
        held = {"clients": list("abcd")[: len(values)], "samples": [1, 1, 2, 4][: len(values)], "score": values}
        return {"cut": cut, "test": {"seen": held | {"pooled": 0.5, "ece": None}}, "curve": list(curve), "score": 0.5}

    return {"score": "clients", "runs": [run(cut, values) for cut, values in enumerate(scores)]}


def test_differences_are_paired_by_client():
    first, second = made([[0.5, 0.7, None, 0.9], [0.6, 0.6, 0.6, 0.6]]), made([[0.4, 0.6, 0.1, 0.8], [0.5] * 4])
    found = paired(first, second)
    assert found.is_clear
    assert (found.mean, found.low, found.high) == pytest.approx((0.1, 0.1, 0.1))
    assert paired(first, second, comparisons=9).comparisons == 9
    assert share_worse(first, second) == 0
    assert share_worse(second, first) == 1
    mixed = paired(made([[0.5, 0.5, 0.5, 0.1]]), made([[0.1, 0.1, 0.1, 0.5]]))
    assert mixed.mean == pytest.approx(0)
    assert mixed.low < -0.1 < 0.1 < mixed.high
    assert not mixed.is_clear


def test_the_deviation_over_cuts_divides_by_one_less():
    """0.5, 0.6 and 0.8 from their mean 19/30: √(Σ/2); of one cut it is unknown, and the page says none."""
    costs = {"bytes_up": 0, "bytes_down": 0, "cpu_seconds": 1.0, "peak_bytes": 1}

    def row(scores):
        record = made([[score] for score in scores])
        for run in record["runs"]:
            populations = "seen", "unseen_0", "unseen_10", "unseen_100"
            run |= costs | {"test": dict.fromkeys(populations, run["test"]["seen"])}
        return row_of(record)

    assert row([0.5, 0.6, 0.8]).spread == pytest.approx((sum((x - 19 / 30) ** 2 for x in (0.5, 0.6, 0.8)) / 2) ** 0.5)
    assert math.isnan(row([0.5]).spread)
    assert row([0.5]).mean == 0.5
    result = SimpleNamespace(task=SimpleNamespace(cuts=(0,)), standings={"FedAvg": (row([0.5]), None, 0.1, 0.2)})
    assert "| 50.0 |" in leaderboard.task_table(result)[-1]


def test_exchanged_scores_of_clients_are_noticed():
    first, second, third = (made([values])["runs"][0] for values in ([0.5, 0.7], [0.7, 0.5], [0.51, 0.69]))
    assert other_results(first, third) is None
    assert "other scores of single seen clients" in other_results(first, second)
    for run, influence in ((first, [0.1, -0.1]), (third, [-0.1, 0.1])):
        run["test"]["seen"]["influence"] = influence
    assert "other influences of single seen clients" in other_results(first, third)


def test_a_pooled_score_has_an_interval_over_its_units():
    first, second = made([[0.5], [0.5]]), made([[0.9], [0.9]])
    for record, pooled in ((first, 0.8), (second, 0.7)):
        record["score"] = "pooled"
        for run in record["runs"]:
            run["test"]["seen"] |= {"pooled": pooled, "influence": [pooled, -pooled, 0.0]}
    found = paired(first, second)
    assert found.mean == pytest.approx(0.1)
    assert found.error == pytest.approx(math.sqrt(3 / 2 * 2 * (0.1 / 3) ** 2))
    assert found.freedom == pytest.approx(2)
    assert share_worse(first, second) == 1  # single clients


def test_a_cut_on_which_one_diverged_is_compared_for_neither():
    first, second = made([[0.5, 0.7], [0.6, 0.8]]), made([[0.4, 0.6], [0.1, 0.1]])
    del second["runs"][1]["test"]
    assert paired(first, second).mean == pytest.approx(0.1)
    assert share_worse(second, first) == 1
    del second["runs"][0]["test"]
    assert paired(first, second) is None
    assert ranked_score(second) == -math.inf


def test_the_cost_to_match_is_the_first_round_that_reaches_it():
    curve = ((1, 0.2, 1e6), (2, 0.5, 2e6), (3, 0.4, 3e6))
    assert cost_to_match(made([[1.0]], curve), made([[1.0]])) == (2, 2)
    assert cost_to_match(made([[1.0]], curve[:1]), made([[1.0]])) == (math.inf, math.inf)


# ---------------------------------------------------------------------- what is shipped
@pytest.mark.parametrize("name", sorted(task_files()))
def test_shipped_tasks_and_their_records_are_whole(name):
    task = read_task(name)
    known = sorted(task.known_clients())  # refuses test samples that differ between cuts
    pinned = {"paper", "natural"} & {*task.given["suites"]}  # data are not public, or their file has a digest
    assert known == list(task.cuts) or (known == [] and pinned)
    for record in records.read_records(records.stored_folder() / f"{name}.jsonl.gz"):
        points = method_of(record["algorithm"]).points
        assert list(records.problems(record, task, json.loads(json.dumps(points)))) == []
        least = -math.inf if task.metric == "r2" else 0  # R² of a fit that is worse than the mean is negative
        assert least < row_of(records.with_clients(record, task)).mean <= 1


LEVELS = {"FedEM": 0.8, "ResponsibilityFedEM": 0.79, "FedAvgPlus": 0.7, "Local": 0.6, "FedAvg": 0.5}


@pytest.fixture(scope="module")
def results():
    """Invented results of three tasks of two sources."""
    names = ("mnist_by_writer", "mnist_label_permutations", "digits_label_groups")
    return [
        leaderboard.results_of(
            task,
            {
                name: records.with_clients(invented(task, level, seed, name), task)
                for seed, (name, level) in enumerate(LEVELS.items())
            },
            {},
        )
        for task in map(read_task, names)
    ]


def test_the_leaderboard_is_what_the_records_give():
    results = leaderboard.all_results()
    assert leaderboard.PAGE.read_text() == leaderboard.page(results)
    everybody = {name for one in results for name in one.records}
    for one in results:
        assert (leaderboard.PAGES / f"{one.task.name}.md").read_text() == leaderboard.task_page(one, everybody)
    assert len(list(leaderboard.PAGES.glob("*.md"))) == len(results)


def test_without_records_the_page_says_so():
    page = leaderboard.page([])
    assert "**There are no records of protocol 2 yet.**" in page
    assert "digits_label_groups" in page
    assert "average rank," not in page
    assert "## Every algorithm" not in page


def test_the_page_says_who_is_level_with_the_best(results):
    page = leaderboard.page(results)
    assert "**FedEM has the best average rank, 1.0, of 5 algorithms on 3 tasks of 2 sources.**" in " ".join(
        page.split()
    )
    for one in results:
        assert next(iter(one.standings)) == "FedEM"
        gaps = {name: paired(one.records["FedEM"], record) for name, record in one.records.items() if name != "FedEM"}
        wide = {name: gap._replace(comparisons=4) for name, gap in gaps.items()}
        assert set(one.level) == {"FedEM"} | {name for name, gap in wide.items() if not gap.is_clear}
        assert all(one.standings[name].gap == gap for name, gap in wide.items())
    told = " ".join(" ".join(leaderboard.findings(results)[1]).split())
    assert "(`FedEM`) is clearly ahead of `FedAvgPlus` on 3 of 3 tasks" in told


def test_an_algorithm_that_diverged_is_last_and_refusals_have_their_reasons(results):
    task, records_, *_ = results[0]
    best = copy.deepcopy(records_["FedEM"])
    best["runs"][2] = {"cut": 2, "samples": "", "diverged": "round 3"}
    result = leaderboard.results_of(task, {**records_, "FedEM": best}, {"my_file.Mine": "needs\na graph"})
    assert list(result.standings)[-1] == "FedEM"
    assert "FedEM" not in result.level
    page = leaderboard.task_page(result, {"my_file.Mine", "Other", *records_})
    assert "1 of 5 cuts diverged" in page
    assert "## Not run\n\n- my_file.Mine: needs a graph\n- Other\n" in page
    assert leaderboard.linked("my_file.Mine") == r"my\_file.Mine"


def test_medians_over_sources_have_intervals_by_ranks():
    gaps = {
        f"t{number}": (Difference(value / 100, 0.01, 4), f"s{number // 2}") for number, value in enumerate(range(40))
    }
    means = [2 * source + 0.5 for source in range(20)]
    assert leaderboard.over_sources(gaps) == f"+19.5 [{means[5]:+.1f}, {means[14]:+.1f}]"  # of the sign test, 95.9 %
    few = {name: gaps[name] for name in ("t0", "t2", "t4")}
    assert leaderboard.over_sources(few) == "+2.0 [+0.0, +4.0]"


def test_who_gains_is_counted_by_training_samples(results):
    """LEVELS put each algorithm above Local for nearly every client, FedAvg below."""
    head, _, *lines = leaderboard.by_size(results)
    assert head.startswith("| training samples | clients, over cuts | [FedAvg]")
    for line in lines:
        cells = [one.strip() for one in line.strip("|").split("|")]
        if cells[2]:
            assert float(cells[2].rstrip(" %")) < 0 < float(cells[4].rstrip(" %"))
    clients = sum(int(line.split("|")[2].replace(",", "")) for line in lines)
    tested = [one.records["FedAvg"]["runs"] for one in results]
    assert clients == sum(len(run["test"]["seen"]["score"]) for runs_ in tested for run in runs_)


def test_what_fine_tuning_explains_is_its_share_of_the_best_gain(results):
    said = leaderboard.what_tuning_explains(results)  # FedEM is 30 points ahead of FedAvg, FedAvgPlus 20
    whole, tuned, share = (float(one) for one in re.findall(r"[\d.]+(?= points ahead|: \d| % of the gain)", said))
    assert whole == pytest.approx(30, abs=1.5)
    assert tuned == pytest.approx(20, abs=1.5)
    assert share == pytest.approx(100 * tuned / whole, abs=0.7)


def test_natural_clients_are_told_apart_from_made_groups(results):
    assert [one.task.name for one in leaderboard.natural_tasks(results)] == ["mnist_by_writer"]


def test_tasks_of_one_source_count_once(results):
    """Three tasks, of which two share their images: their ranks are averaged first."""
    assert {one.task.source for one in results} == {"mnist", "digits_label_groups"}
    _, critical = leaderboard.ranks_of(results)
    assert critical == ranks.critical_difference(5, 2)
    ahead, behind = {"a": 2.0, "b": 1.0}, {"a": 1.0, "b": 2.0}
    found, _ = ranks.average_ranks({"x": [ahead, ahead, behind], "y": [ahead]})
    assert found == pytest.approx({"a": (4 / 3 + 1) / 2, "b": (5 / 3 + 2) / 2})


@pytest.mark.usefixtures("rendered")
def test_algorithms_are_compared_on_several_tasks_with_a_diagram(tmp_path, capsys):
    names, tasks = ["FedEM", "Local", "FedAvg"], ["digits_label_groups", "mnist_by_writer", "mnist_label_permutations"]
    for task, name in itertools.product(tasks, names):
        records.write_record(tmp_path, invented(read_task(task), LEVELS[name], names.index(name), name))
    line = ["benchmark", "compare", *names, "--output", str(tmp_path), "--format", "csv", "--tasks"]
    main([*line, *tasks, "--diagram", str(tmp_path / "ranks.svg")])
    rows = [one.split(",") for one in capsys.readouterr().out.splitlines()]
    pairs = [row for row in rows if row[0] in tasks and row[1] in names]
    assert len(pairs) == 4 * 3 * 3  # populations, tasks, pairs
    assert all(float(row[4]) < float(row[3]) < float(row[5]) for row in pairs)
    assert (tmp_path / "ranks.svg").read_text().count("<svg") == 1
    for arguments, said in (
        ([*tasks, "--diagram", str(tmp_path / "ranks.gif")], "--diagram is .*ranks.gif; give a file that ends in .png"),
        ([*tasks[1:], "--diagram", str(tmp_path / "ranks.svg")], "needs three algorithms or more, and tasks of two so"),
    ):
        with pytest.raises(SystemExit):
            main([*line, *arguments])
        assert re.search(said, capsys.readouterr().err)


def test_the_page_of_intervals_is_that_of_its_record_and_they_hold():
    record = json.loads(intervals.RESULTS.read_text())
    assert intervals.RESULTS.with_suffix(".md").read_text() == intervals.page(record)
    for score in ("clients", "pooled"):
        assert 1 <= intervals._share([one for one in record["same"] if one["score"] == score], "clear", "pairs") <= 7
    assert 93 <= intervals._share(record["halves"], "covered", "halves") <= 97


def test_the_page_of_joining_is_that_of_its_record():
    record = json.loads(joining.RESULTS.read_text())
    assert joining.RESULTS.with_suffix(".md").read_text() == joining.page(record)
    for line in record["tasks"]:
        means = line["seen"]["means"]
        assert set(line["candidates"]) | set(joining.WAYS) == set(means)
        assert means["validation"] <= max(means[one] for one in line["candidates"]) + 0.05  # it changes by cut


def test_halves_of_clients_have_the_means_of_their_clients():
    whole = weighted_mean(np.arange(12.0).reshape(2, 6), np.tile([1.0, 2.0, 1.0, 1.0, 1.0, 2.0], (2, 1)))
    part = intervals._part(whole, np.array([True, True, False, False, False, True]))
    assert part.score == pytest.approx([(0 + 2 + 10) / 5, (6 + 14 + 22) / 5])
    assert np.nansum(part.parts, 1) == pytest.approx([0, 0])
    values = np.array([[0.0, np.nan, 2.0, 4.0]])
    part = intervals._part(weighted_mean(values, np.ones((1, 4))), np.array([True, True, False, True]))
    assert part.score == pytest.approx([2.0])  # an undefined client is in neither half


def test_the_classes_that_a_task_names_are_imported(monkeypatch):
    """A process that has just begun knows none of them."""
    texts = []
    monkeypatch.setattr(runs, "import_named", lambda text: (texts.append(text), import_named(text)))
    task = read_task("digits_label_groups")
    given = task.arguments("FedAvg", {"lr": 0.1}, 0)["data"]["dataset"]
    runs._cut_of.__wrapped__(json.dumps(given))
    assert len(texts) == 1
    assert all(name in texts[0] for name in ("Cut", "Digits", "LabelGroups"))


def test_suites_are_those_of_the_guide():
    assert {name: len(tasks) for name, tasks in suites().items()} == {
        "small": 7,
        "text": 1,
        "images": 2,
        "paper": 3,
        "natural": 31,
    }


def test_the_critical_difference_is_the_published_one():
    """Four classifiers on fourteen data sets: 1.25, the example of Demsar 2006, Section 3.2.4."""
    assert ranks.critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)


def test_a_client_may_have_no_sample_on_a_side():
    assert list(_ids(np.zeros((0, 3)), np.zeros(0))) == []
