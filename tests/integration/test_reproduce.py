"""Every table and figure runs through at the smallest scale, goes on where it stopped, and is what its records give."""

import json
import re

import pytest
import reproduce
from lightning.pytorch import Callback
from reproduce import TABLES
from reproduction import runs
from reproduction.markdown import fill, order
from reproduction.runs import Kept, Run, make, make_missing, read_records
from reproduction.settings import LABELS, settings_of, words
from reproduction.tables import Table, mean, page
from running import forking

from lit_fed.cli import FederatedCLI

ASKED_FOR = {
    *(f"fedem-table{number}" for number in (1, 2, 3, 4)),
    *("fedem-figure1", "fedem-figure2", "fedem-decentralized", "fedem-time-constrained", "fedem-client-sampling"),
    *("fedem-mocha", "fedem-entropy", "fedem-clusters", "fedem-resnet", "fedem-convergence"),
    *("ucfl-table1", "ucfl-figure2", "ucfl-figure3", "federico-table1", "federico-table2", "federico-figure1"),
    *(f"federico-figure{number}" for number in range(3, 10)),
    *("privacy", "compression"),
}
RESULTS = reproduce.ROOT / "docs/results"


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """One folder for all tables: what they have in common is run once."""
    return tmp_path_factory.mktemp("smoke")


def test_everything_asked_for_is_there():
    assert set(TABLES) >= ASKED_FOR


class Instantiated(FederatedCLI):
    """A command line that makes its objects, and runs nothing."""

    def _run_subcommand(self, subcommand):
        pass


MADE = {}
"""The record of the first run of each setting."""
READ = set()
"""Command lines, with 0 for each number: what differs in numbers alone is read once."""


def setting(run):
    """What runs that differ in their algorithm alone have in common; weights of clients are those of an algorithm."""
    words, kept, algorithm = iter(run.arguments), [], None
    for word in words:
        if word.startswith(("--model.algorithm", "--model.solver")):
            value = next(words)
            algorithm = value if word == "--model.algorithm" and "client_weights" in run.measures else algorithm
        else:
            kept.append(word)
    return run.config, run.measures, run.fit, algorithm, tuple(kept)


@pytest.fixture
def one_run_of_each_setting(monkeypatch):
    """Run one algorithm in each setting; the others' records are copies of its own.

    Their arguments are read, and their objects made: whole runs of every algorithm are the conformance tests' affair.
    Clients that train alone send nothing, which a table divides by: FedAvg runs in their place.
    """
    make = runs.make

    def copied(run, extra, unfinished):
        first, alone = setting(run) not in MADE, "Local" in run.arguments
        if first:
            talks = run._replace(arguments=(*setting(run)[-1], "--model.algorithm", "FedAvg"))
            MADE[setting(run)] = make(talks if alone else run, extra, unfinished)
        line = ("--config", str(runs.ROOT / f"configs/experiment/{run.config}.yaml"), *run.arguments)
        kind = re.sub(r"\d+(\.\d+)?", "0", " ".join(line))
        if (alone or not first) and kind not in READ:
            Instantiated(["fit", *line])
            READ.add(kind)
        return MADE[setting(run)] | {"arguments": list(run.arguments)}

    monkeypatch.setattr(runs, "make", copied)


@pytest.mark.usefixtures("rendered", "one_run_of_each_setting")
@pytest.mark.parametrize("name", TABLES)
def test_smoke(name, output, monkeypatch):
    table, place = TABLES[name], output / f"{name}.md"
    reproduce.main([name, "--scale", "smoke", "--output", str(output)])
    text = place.read_text()
    listed = table.runs("smoke", (1,))
    assert listed
    assert len(Kept(output / "runs/smoke").all(listed)) == len(listed)
    assert "## Not run" not in text
    assert place.with_suffix(".png").is_file() == (table.picture is not None)

    def refuse(*given):
        raise AssertionError("a run that is done was made again")

    monkeypatch.setattr("reproduction.runs.make", refuse)
    reproduce.main([name, "--scale", "smoke", "--output", str(output)])
    assert place.read_text() == text


@pytest.mark.parametrize("name", TABLES)
def test_page_is_what_the_records_give(name):
    kept = reproduce.kept_of("reduced", RESULTS)
    assert (RESULTS / f"{name}.md").read_text() == reproduce.page(TABLES[name], kept, "reduced", TABLES[name].seeds)


def test_a_page_of_stored_records_says_that_nothing_was_run(capsys, monkeypatch):
    monkeypatch.setattr(reproduce, "write", lambda *_: "the page")
    monkeypatch.setattr(reproduce, "make_missing", lambda runs, kept, *_: None)
    reproduce.main(["quickstart"])
    assert re.search(
        r"quickstart: drew the stored records of all \d+ runs in .*, and ran nothing; --output DIR runs them",
        capsys.readouterr().out,
    )


def test_index_is_what_the_records_give():
    assert (RESULTS / "README.md").read_text() == reproduce.index(reproduce.kept_of("reduced", RESULTS))


@pytest.mark.parametrize(
    "setting",
    [one for name, one in settings_of("fedem", "reduced").items() if name != "synthetic"],
    ids=lambda one: one.name,
)
def test_recipe_names_what_it_reaches(setting):
    kept = reproduce.kept_of("reduced", RESULTS)
    header = (reproduce.ROOT / f"configs/experiment/{setting.config}.yaml").read_text().replace("\n# ", " ")
    for method in ("fedem", "fedavg", "fedavg_plus", "local"):
        records = kept.all(setting.runs((1, 2, 3), [method]))
        assert records
        decile = mean(records, "test/seen/accuracy_decile")
        assert f"{LABELS[method]} {mean(records):.1f} / {decile:.1f}" in header


def test_every_record_is_of_a_run():
    kept = reproduce.kept_of("reduced", RESULTS)
    runs = [run for table in TABLES.values() for run in table.runs("reduced", table.seeds)]
    current = {run.name for run in set(runs) - set(kept.missing(runs))}
    names = [name for path in kept.folder.iterdir() for name in read_records(path)]
    assert sorted(names) == sorted(current)


def test_records_are_sorted_lines(tmp_path):
    """Another record of a run takes the place of the first; a file lists its runs in order, each on a line."""
    kept, runs = Kept(tmp_path), [Run(*one) for one in ("ya", "xb", "xa", "ya")]
    for number, run in enumerate(runs):
        kept.write(run, {"arguments": [], "number": number})
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a.jsonl.gz", "b.jsonl.gz"]
    kept = read_records(tmp_path / "a.jsonl.gz")
    assert [(one["run"], one["number"]) for one in kept.values()] == [("x", 2), ("y", 3)]


def test_commands_of_a_page_are_printed(capsys):
    reproduce.main(["fedem-mocha", "--commands"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 27
    assert {line.split()[5] for line in lines} == {"configs/experiment/synthetic_fedavg.yaml"}
    assert lines[0] in " ".join((RESULTS / "fedem-mocha.md").read_text().replace("\\\n", " ").split())


@pytest.mark.parametrize("name", TABLES)
def test_runs_of_one_name_are_one_run(name):
    for scale in ("smoke", "reduced", "paper"):
        runs = {run for table in TABLES.values() for run in table.runs(scale, (1, 2, 3))}
        assert len({run.name for run in runs}) == len(runs)


def test_a_record_with_other_settings_does_not_count(tmp_path):
    kept, run = Kept(tmp_path), Run("a/b-1", "quickstart", ("--x", "1"))
    kept.write(run, {"arguments": ["--x", "1"], "summary": {}, "curve": {}})
    assert kept.find(run) is not None
    assert kept.find(run._replace(arguments=("--x", "2"))) is None
    assert kept.find(run._replace(config="other")) is None
    assert kept.find(run._replace(measures=("client_weights",))) is None


@forking()
def test_processes_give_the_same_records(tmp_path):
    """Two processes at a time, and one after another here."""
    rounds = ("--trainer.max_epochs", "2", "--trainer.check_val_every_n_epoch", "1")
    runs = [Run(f"digits/local-{seed}", "quickstart", (*rounds, "--seed_everything", str(seed))) for seed in (1, 2)]
    places = Kept(tmp_path / "here"), Kept(tmp_path / "there")
    for kept, jobs in zip(places, (1, 2), strict=True):
        told = []
        make_missing(runs, kept, lambda run: (), jobs, told.append)
        assert sorted(told) == sorted(runs)
    here, there = ([kept.find(run) for run in runs] for kept in places)
    for one, other in zip(here, there, strict=True):
        assert one["curve"] == other["curve"]
        assert one["curve"]["rounds"] == [1, 2]
    assert here[0]["curve"] != here[1]["curve"]


def test_runs_that_fail_leave_the_others_alone(tmp_path, capsys):
    short = ("--trainer.max_epochs", "2")
    runs = [
        Run("digits/refused-1", "quickstart", ("--data.num_clients", "0")),
        Run("digits/diverges-1", "quickstart", ("--model.solver.lr", "1e30", *short)),
        Run("digits/local-1", "quickstart", ("--model.algorithm", "Local", *short)),
    ]
    kept, told = Kept(tmp_path), []
    make_missing(runs, kept, lambda run: (), 1, told.append)
    assert told == runs[2:]
    assert kept.all(runs) == [kept.find(runs[2])]
    assert list(map(kept.diverged, runs)) == [None, 0, None]
    said = capsys.readouterr().err
    assert "digits/refused-1 is not run: num_clients = 0" in said
    assert "digits/diverges-1 diverged: client" in said


def test_a_run_that_diverged_is_told_and_not_made_again(tmp_path, monkeypatch):
    run = Run("digits/diverges-1", "quickstart", ("--model.solver.lr", "1e30"))
    kept = Kept(tmp_path)
    kept.write(run, {"arguments": list(run.arguments), "diverged": 36, "reason": "client 3"})
    monkeypatch.setattr(runs, "make", None)
    make_missing([run], kept, lambda run: (), 1, print)
    table = Table("fedem-mocha", lambda *given: [run], lambda found: {"table": None, "order": None})
    text = " ".join(page(table, kept, "paper", (1,)).split())
    assert "0 of 1 runs were made. `digits/diverges-1` ended with NaN in round 36." in text
    assert "## Not run" not in text
    assert "--model.solver.lr 1e30" in text


class Cut(Callback):
    """Ends a run in its third round."""

    def on_train_epoch_start(self, trainer, pl_module):
        if trainer.current_epoch == 2:
            raise RuntimeError("cut short")


def test_a_run_that_was_cut_short_goes_on(tmp_path):
    """Its record is that of a run that nothing cut short, and its folder is gone."""
    watched = ("--trainer.callbacks+=reproduction.measures.MixtureCurve", "--model.algorithm", "FedEM")
    rounds = ("--trainer.max_epochs", "4", "--trainer.check_val_every_n_epoch", "1")
    run = Run("digits/fedem-1", "quickstart", (*watched, *rounds), ("mixture_curve",))
    whole, kept = make(run, ()), Kept(tmp_path / "records")
    with pytest.raises(RuntimeError, match="cut short"):
        make_missing([run], kept, lambda run: (f"--trainer.callbacks+={__name__}.Cut",), 1, print, tmp_path / "runs")
    assert list(tmp_path.rglob("last.ckpt"))
    make_missing([run], kept, lambda run: (), 1, print, tmp_path / "runs")
    found = kept.find(run)
    for one in (whole, found):
        for machine in ("seconds", "round_seconds"):
            one["summary"].pop(machine, None)
    assert found == {"run": run.name} | json.loads(json.dumps(whole))
    assert len(found["mixture_curve"]) == 4
    assert not list((tmp_path / "runs").rglob("*.*"))


def test_a_method_is_its_command_line_in_short():
    known = {"rate": 0.1, "solver": "lr={rate} momentum=0.9", "callback": "--trainer.callbacks+=A"}
    given = words("FedEM num_components=3 | {solver} {callback} --model.init_seeds '[1, 2]'", known)
    assert given == (
        "--model.algorithm", "FedEM", "--model.algorithm.num_components", "3", "--model.solver.lr", "0.1",
        "--model.solver.momentum", "0.9", "--trainer.callbacks+=A", "--model.init_seeds", "[1, 2]",
    )  # fmt: skip


def test_parts_of_a_page_take_the_place_of_their_names():
    text = "# {title}\n\nA line,\nand {number}.\n\n{table}\n\n{gone} is gone.\n\n- {said}\n- one\n  more\n- no {gone}"
    parts = {"title": "T", "number": "2", "table": ["| a |", "| b |"], "gone": None, "said": ["x", "y"]}
    assert fill(text, parts) == ["# T", "", "A line, and 2.", "", "| a |", "| b |", "", "- x", "- y", "- one more"]


def test_order_names_the_pairs_that_stand_the_other_way_round():
    text = order({"A": 3.0, "B": 2.0, "C": 1.0}, {"A": 30.0, "B": 10.0, "C": 20.0})
    assert text == "in the paper A > C > B; here A > B > C. 2 of 3 pairs agree; not B and C (+1.0 here, -10.0)."


def test_list_names_every_table(capsys):
    reproduce.main(["--list"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in TABLES)
