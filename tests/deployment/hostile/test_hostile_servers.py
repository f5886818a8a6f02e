"""What a hostile server may ask: a node answers by a code and writes nowhere else. One line is one attack."""

import json
import shutil

import pytest
from attacked import all_finite, every, facts, header_of, inside, leaf, raw, trees
from in_process import InProcess, InProcessFederation, make_nodes, node_folders
from test_hostile_nodes import ESCAPES, GARBAGE, cases
from test_runs import fit, module_of
from watched import watched

from lit_fed.deployment.messages import REFUSALS, session_name
from lit_fed.deployment.node import Node
from lit_fed.deployment.wire import Packet, from_bytes, to_bytes

UP = "../../../evil"


def sent(*path, to):
    """Other settings of the training, under their proper name."""
    change = inside("settings", *path, to=to)

    def changed(honest):
        whole, payload = header_of(change(honest))
        whole["facts"]["session"] = session_name(whole["facts"]["settings"])
        return raw(whole, payload)

    return changed


ASKED = {  # in the place of any question about a round
    "kind: none": facts(kind=...),
    "kind: unknown": facts(kind="shell"),
    "kind: a list": facts(kind=["train"]),
    "kind: escape sequences": facts(kind=ESCAPES),
    "facts: one more": facts(more=1),
    "session: none": facts(session=...),
    "session: a number": facts(session=5),
    "session: a path": facts(session=UP),
    "run: a path": facts(run=UP),
    "run: a number in a text": facts(run="5"),
    "run: negative": facts(run=-1),
    "run: a fraction": facts(run=1.5),
    "run: true": facts(run=True),
    "round: a path": facts(round=UP),
    "round: negative": facts(round=-1),
    "round: 2**40": facts(round=2**40),
    "horizon: a text": facts(horizon="10"),
    "rounds: none at all": facts(num_rounds=0),
    "clients: nobody": facts(clients=[]),
    "clients: no list": facts(clients=4),
    "clients: another's": facts(clients=[3, 0]),
    "clients: twice": inside("clients", to=[2, 2]),
    "clients: 2**62": facts(clients=[2**62, 3]),
    "clients: texts": facts(clients=["2", "3"]),
    "versions: a path": facts(versions=[UP, UP]),
    "versions: one more": facts(versions=[-1] * 4),
    "versions: -2": facts(versions=[-2, -2]),
    "versions: 2**63": facts(versions=[2**63 - 1, 0]),
    "versions: states that are missing": facts(versions=[7, 7]),
    "phase: a path": facts(phase=UP),
    "phase: a list": facts(phase=["train"]),
    "phase: long": facts(phase="x" * 65),
    "needed: a list": facts(needed=[1]),
    "needed: another's": facts(needed={"0": []}),
    "needed: no number": facts(needed={"x": []}),
    "needed: numbers in other letters": facts(needed={"٢": []}),
    "needed: a path": facts(needed={"2": [UP]}),
    "trees: none": lambda honest: raw(header_of(honest)[0] | {"trees": {}}),
    "trees: another name": trees(lambda found: found.update(other=found.pop("shared"))),
    "trees: one more": trees(lambda found: found.update(other=found["shared"])),
    "trees: a leaf less": trees(lambda found: found["shared"].pop()),
    "trees: another type": trees(lambda found: found["shared"].__setitem__(0, found["shared"][0].double())),
    "trees: another shape": trees(lambda found: found["shared"].__setitem__(0, found["shared"][0][..., :1])),
    "size: 2**47 rows": leaf([0, 2**47, 2**47]),
}  # fmt: skip

TRAIN = {
    "version: a path": facts(version=UP),
    "version: a path from the root": facts(version=f"/{UP}"),
    "version: a number in a text": facts(version="5"),
    "version: negative": facts(version=-5),
    "version: none": facts(version=...),
    "work: none": facts(work=...),
    "work: a text": facts(work="rm -rf"),
    "work: one more": inside("work", "more", to=1),
    "work: minus one epoch": inside("work", "epochs", to=-1),
    "work: 2**40 epochs": inside("work", "epochs", to=2**40),
    "work: a batch of text": inside("work", "batch_size", to="4"),
    "work: half a batch": inside("work", "batches_per_step", to=0.5),
    "work: a rate of 2": inside("work", "sample_rate", to=2),
    "work: a stage of text": inside("work", "stages", to=["first"]),
    "work: a stage with a path": inside("work", "stages", to=[[UP, 1, None, False]]),
    "work: endless stages": inside("work", "stages", to=[["a", 1, None, False]] * 17),
    "present: another's of 2**40": facts(present=[2**40]),
    "present: more than there are": facts(present=[4]),
    "present: a text": facts(present="all"),
    "draws: too few": facts(draws=[1]),
    "draws: negative": facts(draws=[-1, 1, 1, 1]),
    "draws: texts": facts(draws=["1"] * 4),
    "multiplicity: one more": facts(multiplicity=[1.0] * 3),
    "multiplicity: negative": facts(multiplicity=[-1.0, 1.0]),
    "multiplicity: texts": facts(multiplicity=["1", "1"]),
    "weight: a text": facts(drawn_weight="1"),
    "weight: 1e300": facts(drawn_weight=1e300),
    "clients: unseen": facts(clients=[4], versions=[-1], multiplicity=[1.0]),
}  # fmt: skip

MEASURE = {
    "population: unknown": facts(population="all"),
    "population: of others": facts(population="unseen"),
    "split: unknown": facts(split="__class__"),
    "split: a list": facts(split=["test"]),
    "sets: a number": facts(sets=1),
    "sets: of a training without": facts(sets=True),
}  # fmt: skip

KEEP = {"clients: one is left out": facts(clients=[2], versions=[-1])}

SESSION = {
    "settings: no object": facts(settings=5),
    "settings: under another name": inside("settings", "data_seed", to=99),
    "settings: one more": sent("more", to=1),
    "settings: no model": sent("model", to=[1]),
    "settings: a seed of text": sent("data_seed", to="x"),
    "settings: a fraction of 2": sent("val_fraction", to=2),
    "settings: NaN by division": sent("start", to=["NaN"]),
    "start: another": sent("start", to=[0.1]),
    "start: of a million": sent("start", to=[0.5] * 300_000),
    "solvers: of others": sent("solvers", to={"a1": {"client_lr": 1.0}}),
    "solvers: a list": sent("solvers", to={"b1": [1.0]}),
    "solvers: another option": sent("solvers", to={"b1": {"lr": 1.0}}),
    "solvers: an option of one client": sent("solvers", to={"b1": {"client_lr": 1.0}, "b2": {}}),
    "solvers: a rate below 0": sent("solvers", to={"b1": {"client_lr": -1.0}}),
    "solvers: more work than there is": sent("solvers", to={"b1": {"client_work": 2.0}}),
    "solvers: half a sample": sent("solvers", to={"b1": {"client_batch_size": 0.5}}),
    "solvers: no object": sent("solvers", to=[1.0]),
    "ids: nobody's": sent("ids", to={}),
    "ids: a path": sent("ids", to={"b1": UP, "b2": 3, "b9": 4}),
    "ids: a name of a path": sent("ids", to={UP: 1, "b1": 2, "b2": 3, "b9": 4}),
    "ids: one number for two": sent("ids", to={"b1": 2, "b2": 2, "b9": 4}),
    "ids: in another order": sent("ids", to={"b1": 3, "b2": 2, "b9": 4}),
    "ids: 2**40": sent("ids", to={"b1": 2**40, "b2": 2**41, "b9": 4}),
    "sizes: 2**40 clients": sent("facts", "num_clients", to=2**40),
    "sizes: inputs of 2**40 numbers": sent("facts", "input_shape", to=[2**20, 2**20]),
    "sizes: other inputs": sent("facts", "input_shape", to=[17]),
    "sizes: negative inputs": sent("facts", "input_shape", to=[-16]),
    "sizes: 2**40 classes": sent("facts", "target", 1, to=2**40),
    "sizes: labels of positions": sent("facts", "label_shape", to=[2**20]),
    "facts: none": sent("facts", to=None),
    "facts: one less": sent("facts", "seed", to=...),
    "facts: one more": sent("facts", "more", to=1),
    "facts: an unknown target": sent("facts", "target", 0, to="code"),
    "facts: a type of inputs that is a function": sent("facts", "input_type", to="load"),
    "facts: a seed of text": sent("facts", "seed", to="x"),
    "facts: groups": sent("facts", "groups", to=[1, 2]),
    "facts: columns with a file": sent("facts", "columns", to={"path": "/etc/passwd"}),
    "facts: transforms of no picture": sent("facts", "augment", to="__import__('os').system('touch evil')"),
    "facts: transforms of another module": sent("facts", "augment", to="os.system('touch evil')"),
    "facts: constants of text": sent("facts", "normalisation", to=[["x"], ["y"]]),
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Folders of nodes, and ben's questions of a whole run by kind; the first has the settings."""
    place, module = tmp_path_factory.mktemp("recorded"), module_of()
    folders = node_folders(place / "data", {"anna": ["a1", "a2"], "ben": ["b1", "b2", "b9"]})
    transport = InProcess(make_nodes(folders, place / "states", settings=module.settings))
    fit(place / "run", InProcessFederation(transport), module, rounds=2)
    asked = {}
    for node, question, answer in transport.log:
        if node == "ben" and "needs" not in from_bytes(answer).facts:
            asked.setdefault(from_bytes(question).facts["kind"], question)
    return folders, asked, module.settings


@pytest.fixture
def node(recorded, tmp_path):
    """Ben, who has answered the first question of the run."""
    folders, asked, settings = recorded
    shutil.copytree(folders["ben"], tmp_path / "data")
    made = Node(tmp_path / "data", tmp_path / "states", settings=settings)
    made.handle(asked["train"])
    return made


def is_refused(node, data, capsys, tmp_path):
    """Whether a node says no, and no more than that."""
    before = sorted(path for path in tmp_path.rglob("*"))
    capsys.readouterr()
    with watched(tmp_path) as touched:
        answer = node.handle(data)
    assert not touched
    found = from_bytes(answer)
    assert found.facts in [{"needs": "session"}, *({"refused": code} for code in REFUSALS)]
    assert not found.trees
    assert len(answer) < 100
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert said.replace("\n", "").isprintable()
    assert ("refused" in found.facts) == (said.count("\n") == 1), "the text is in the node's log"
    after = sorted(path for path in tmp_path.rglob("*"))
    assert before == after
    return found.facts.get("refused") or "session"


@pytest.mark.parametrize(
    "case",
    cases("train", GARBAGE, ASKED, TRAIN) + cases("measure", ASKED, MEASURE) + cases("keep", ASKED, KEEP)
    + cases("facts", GARBAGE),
)  # fmt: skip
def test_a_false_question_has_no_answer(case, recorded, node, capsys, tmp_path):
    kind, lie = case
    data = lie(recorded[1][kind])
    code = is_refused(node, data, capsys, tmp_path)
    assert code in ("packet", "states missing", "session")
    honest = from_bytes(node.handle(recorded[1]["train"])).facts  # and the node goes on
    assert honest["clients"] == [3, 2]


@pytest.mark.parametrize("case", cases("train", SESSION))
def test_false_settings_make_no_training(case, recorded, capsys, tmp_path):
    folders, asked, settings = recorded
    shutil.copytree(folders["ben"], tmp_path / "data")
    fresh = Node(tmp_path / "data", tmp_path / "states", settings=settings)
    fresh.handle(to_bytes(Packet({"kind": "facts", "version": "x"})))
    assert is_refused(fresh, case[1](asked["train"]), capsys, tmp_path) in ("packet", "start", "session", "clients")
    assert not list((tmp_path / "states").glob("*/session.json"))


def test_models_of_numbers_without_end_fail_a_client_and_no_more(recorded, node, capsys):
    for value in (float("nan"), float("inf"), 3e38):
        found = from_bytes(node.handle(every(value)(recorded[1]["train"])))
        assert {tuple(one[:1]) for one in found.facts["failed"].values()} == {("not finite",)}
        assert all_finite([])
    said = capsys.readouterr().err
    assert "b1: client 2, round 0" in said, "the text of the error is in the node's log"
    assert "Traceback" not in said


def test_settings_of_a_server_are_compared_and_never_made(recorded, tmp_path, capsys):
    """The answer is the same whatever it names, and whether there is such a module."""
    folders, asked, settings = recorded
    answers = set()
    for path in ("xml.dom.Node", "nowhere.to.be.Found", "lit_fed.models.Nothing", "os.system", {"class_path": UP}):
        fresh = Node(folders["ben"], tmp_path / "states", settings, {"network": "Linear"})
        question = sent("model", to={"network": path})(asked["train"])
        with watched(tmp_path, folders["ben"]) as touched:
            answers.add(fresh.handle(question))
        assert not touched
        assert "--model.network is " in capsys.readouterr().err
    assert {json.dumps(from_bytes(one).facts) for one in answers} == {'{"refused": "settings"}'}
    assert not (tmp_path / "states").exists() or not list((tmp_path / "states").glob("*/session.json"))


def test_states_that_are_missing_are_not_new(recorded, node, capsys, tmp_path):
    """A node that should have a version of a state says that it has none, and which; it does not begin anew."""
    question = from_bytes(recorded[1]["train"])
    version = question.facts["version"]
    second = facts(versions=[version, version], version=version + 1, round=1, needed=None)(recorded[1]["train"])
    assert "clients" in from_bytes(node.handle(second)).facts
    (lost,) = (tmp_path / "states").glob(f"*/b1.{version}.pt")
    damaged = lost.with_name(f"b2.{version}.pt")
    shutil.move(lost, tmp_path / "aside.pt")
    for kind in ("train", "measure", "keep"):
        ids = [2, 3, 4] if kind == "keep" else [2, 3]
        asked = facts(clients=ids, versions=[version, version, -1][: len(ids)], needed=None)(recorded[1][kind])
        assert from_bytes(node.handle(asked)).facts == {"refused": "states missing"}
    assert f"b1.{version}.pt: No such file" in capsys.readouterr().err
    shutil.move(tmp_path / "aside.pt", lost)
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert from_bytes(node.handle(second)).facts == {"refused": "states damaged"}


def test_a_session_file_that_was_changed_is_asked_for_again(recorded, node, tmp_path):
    _, asked, settings = recorded
    bare = facts(settings=...)(asked["train"])
    (kept,) = (tmp_path / "states").glob("*/session.json")
    again = Node(tmp_path / "data", tmp_path / "states", settings=settings)
    assert "clients" in from_bytes(again.handle(bare)).facts
    for text in ("", "[]", "{}", "null", json.dumps({"facts": 1}), "[" * 100_000):
        kept.write_text(text)
        again = Node(tmp_path / "data", tmp_path / "states", settings=settings)
        assert from_bytes(again.handle(bare)).facts == {"needs": "session"}
