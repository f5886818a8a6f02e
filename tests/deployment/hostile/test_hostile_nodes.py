"""Everything that a hostile node may answer: the server goes on, and names it. One line is one attack."""

import copy
import time

import pytest
import torch
from attacked import WithLiar, all_finite, cell, cut, entry, every, facts, garbage, header, inside, leaf, raw, trees
from in_process import InProcessFederation, make_nodes, same
from test_conformance import sides

from lit_fed import FedEM, FederatedModule
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.deployment.wire import Packet, to_bytes
from lit_fed.errors import ClientError, ConfigError, LostNodesError
from lit_fed.wrappers.faults.wrapper import Faults

BOMB = b'{"facts":{},"trees":{}}' + b" " * 2**26
LISTS = b'{"facts":{"a":[' + b"[]," * 2**22 + b'[]]}, "trees":{}}'
DEEP = b'{"facts":{"a":' + b"[" * 500 + b"]" * 500 + b'},"trees":{}}'
FAILED = ["error", "client_step", "ValueError"]
ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\nlit_fed: all is well"

GARBAGE = {  # no packets at all, whatever was asked
    "bytes: none": garbage(b""),
    "bytes: one": garbage(b"\0"),
    "bytes: only the magic": garbage(b"litfed1\n"),
    "bytes: another magic": cut(8, None, b""),
    "bytes: random": garbage(bytes(range(256)) * 40),
    "bytes: an HTTP reply": garbage(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"),
    "length: cut in the middle": lambda honest: honest[: len(honest) // 2],
    "length: one byte less": cut(stop=-1),
    "length: one byte more": cut(more=b"\0"),
    "length: header beyond the end": garbage(b"litfed1\n" + b"\xff" * 8 + b"x" * 100),
    "length: header of none": garbage(b"litfed1\n" + b"\0" * 100),
    "compression: broken": lambda honest: honest[:16] + b"\xff" * 20 + honest[36:],
    "compression: a bomb": garbage(raw(BOMB)),
    "compression: two streams": lambda honest: raw({"facts": {}, "trees": {}}) + raw({})[16:],
    "JSON: a list": garbage(raw([])),
    "JSON: a number": garbage(raw(5)),
    "JSON: null": garbage(raw(None)),
    "JSON: no JSON": garbage(raw(b"{'facts': 1}")),
    "JSON: no text": garbage(raw(b"\xff\xfe\xfd" * 10)),
    "JSON: NaN": garbage(raw(b'{"facts":{"a":NaN},"trees":{}}')),
    "JSON: Infinity": garbage(raw(b'{"facts":{"a":-Infinity},"trees":{}}')),
    "JSON: a float beyond float64": garbage(raw(b'{"facts":{"a":1e999},"trees":{}}')),
    "JSON: 5000 digits": garbage(raw(b'{"facts":{"a":' + b"9" * 5000 + b'},"trees":{}}')),
    "JSON: a large whole number": garbage(raw(b'{"facts":{"a":9223372036854775808},"trees":{}}')),
    "JSON: nested 500 deep": garbage(raw(DEEP)),
    "JSON: nested 100,000 deep": garbage(raw(b"[" * 100_000)),
    "JSON: four million lists": garbage(raw(LISTS)),
    "JSON: more than facts and trees": header(more=1),
    "JSON: no facts": garbage(raw({"trees": {}})),
    "JSON: facts as a list": header(facts=[1]),
    "JSON: trees as a list": header(trees=[1]),
    "text: escape sequences as a name": header(facts={ESCAPES: 1}),
    "text: escape sequences as a refusal": header(facts={"refused": ESCAPES}),
    "text: no surrogate": garbage(raw(b'{"facts":{"refused":"\\ud800"},"trees":{}}')),
    "text: right to left": header(facts={"refused": "\u202eerror"}),
    "text: a long refusal": header(facts={"refused": "x" * 10_000}),
    "text: a refusal with a file": header(facts={"refused": "/etc/shadow cannot be read"}),
    "refusal: no text": header(facts={"refused": 5}),
    "refusal: two": header(facts={"refused": "error", "needs": "session"}),
    "refusal: of other needs": header(facts={"needs": "your key"}),
    "refusal: settings needed again": header(facts={"needs": "session"}),
    "refusal: honest": garbage(to_bytes(Packet({"refused": "error"}))),
    "form: unknown type": header(trees={"0": [["complex128", [1]]]}),
    "form: a type that is a list": header(trees={"0": [[["float32"], [1]]]}),
    "form: no pair": header(trees={"0": [5]}),
    "form: no leaves": header(trees={"0": 5}),
    "form: a negative shape": header(trees={"0": [["float32", [-1]]]}),
    "form: a shape of fractions": header(trees={"0": [["float32", [1.5]]]}),
    "form: a shape of truths": header(trees={"0": [["float32", [True]]]}),
    "form: many axes": header(trees={"0": [["float32", [1] * 64]]}),
    "size: an empty tensor of 2**47 rows": header(trees={"0": [["float32", [0, 2**47, 2**47]]]}),
    "size: an empty tensor of 2**62 rows": header(trees={"0": [["float32", [0, 2**62]]]}),
    "size: more than there are bytes": header(trees={"0": [["float32", [2**40]]]}),
    "size: a product beyond 64 bits": header(trees={"0": [["float32", [2**33, 2**33]]]}),
    "size: a million empty tensors": header(trees={"0": [["float32", [0]]] * 1_000_000}),
}  # fmt: skip

TRAINED = {  # packets in the place of what a client made of a phase
    "size: one leaf of 2**47 rows": leaf([0, 2**47, 2**47]),
    "facts: none": facts(clients=..., failed=...),
    "facts: one more": facts(more=1),
    "facts: those of another question": facts(kept=[4]),
    "clients: no list": facts(clients=7),
    "clients: another's": facts(clients=[0]),
    "clients: nobody": facts(clients=[]),
    "clients: as text": facts(clients=["4"]),
    "clients: as truth": facts(clients=[True]),
    "clients: twice": facts(clients=[4, 4]),
    "failures: a number": facts(failed=5),
    "failures: a number of a client": facts(failed={"5": 5}),
    "failures: of a client": facts(failed={"4": 5}),
    "failures: of another's client": facts(failed={"0": FAILED}),
    "failures: besides its message": facts(failed={"4": FAILED}),
    "failures: an unknown kind": facts(failed={"4": ["dead", "client_step", "x"]}),
    "failures: too short": facts(failed={"4": ["error"]}),
    "failures: a long text": facts(failed={"4": ["error", "client_step", "x" * 65]}),
    "failures: escape sequences": facts(failed={"4": ["error", "client_step", ESCAPES]}),
    "failures: a path": facts(failed={"4": ["error", "../../x", "ValueError"]}),
    "failures: no whole number": facts(failed={"٤": FAILED}),
    "trees: of another's client alone": garbage(to_bytes(Packet({"clients": []}, {"0": [torch.zeros(3)]}))),
    "types: numbers": garbage(to_bytes(Packet({"clients": 7, "failed": 3}))),
    "trees: of nobody": header(trees={}),
    "trees: of another's client": trees(lambda found: found.update({"0": found.pop("4")})),
    "trees: of a client more": trees(lambda found: found.update({"0": found["4"]})),
    "trees: a leaf less": trees(lambda found: found["4"].pop()),
    "trees: a leaf more": trees(lambda found: found["4"].append(found["4"][0])),
    "trees: another shape": trees(lambda found: found["4"].__setitem__(0, found["4"][0][:1])),
    "trees: another type": trees(lambda found: found["4"].__setitem__(0, found["4"][0].double())),
    "trees: in another order": trees(lambda found: found["4"].reverse()),
    "answer: of measurements": lambda honest: to_bytes(Packet({"clients": [4]}, {"rows": []})),
}  # fmt: skip

BELIEVED = {  # well-formed updates that no client computes
    "update: NaN": every(float("nan")),
    "update: infinite": every(float("inf")),
    "update: 3e38": entry(0, 3e38),
    "update: 2e19": entry(0, 2e19),
    "weight: 1e300": entry(-4, 1e300),
    "weight: one sample more": trees(lambda found: found["4"][-4].add_(1)),
    "weight: negative": entry(-4, -1.0),
    "weight: NaN": entry(-4, float("nan")),
    "bits: NaN": entry(-3, float("nan")),
    "bits: negative": entry(-2, -1.0),
    "bits: infinite": entry(-3, float("inf")),
    "loss: NaN": entry(-1, float("nan")),
    "loss: infinite": entry(-1, float("inf")),
}  # fmt: skip

MEASURED = {  # measurements in another form
    "facts: none": facts(clients=...),
    "facts: those of a training": facts(failed={}),
    "clients: another's": facts(clients=[0]),
    "trees: none": header(trees={}),
    "trees: more": trees(lambda found: found.update(more=found["rows"])),
    "trees: one row more": trees(lambda found: found["rows"].__setitem__(0, found["rows"][0].repeat(2, 1))),
    "trees: one column more": trees(lambda found: found["rows"].__setitem__(0, found["rows"][0].repeat(1, 2))),
    "trees: float32": trees(lambda found: found["rows"].__setitem__(0, found["rows"][0].float())),
    "size: 2**47 rows": leaf([0, 2**47, 2**47], "float64"),
}  # fmt: skip

UNBELIEVABLE = {  # measurements that nobody measures
    "count: another": cell(0, 1000.0),
    "count: NaN": cell(0, float("nan")),
    "count: negative": cell(0, -4.0),
    "loss: NaN": cell(1, float("nan")),
    "loss: infinite": cell(1, float("-inf")),
    "loss: 1e300": cell(1, 1e300),
    "hits: accuracy 8.25": cell(2, 33.0),
    "hits: one more": cell(2, 5.0),
    "hits: negative": cell(2, -1.0),
    "hits: NaN": cell(2, float("nan")),
    "hits: 1e300": cell(2, 1e300),
}  # fmt: skip

KEPT = {
    "facts: nobody": facts(kept=[]),
    "facts: another's": facts(kept=[0]),
    "facts: not kept": facts(kept=...),
    "facts: no list": facts(kept={"4": True}),
    "trees: some": header(trees={"0": [["float32", [0]]]}),
}  # fmt: skip


TOLD = {  # what a node says of its clients at the start
    "version: another": facts(version="0.0.0"),
    "version: no text": facts(version=5),
    "version: escape sequences": facts(version=ESCAPES),
    "facts: none": facts(facts=...),
    "facts: a list": facts(facts=[]),
    "facts: one more": inside("facts", "more", to=1),
    "clients: a list": inside("facts", "clients", to=[]),
    "clients: not three facts": inside("facts", "clients", ..., to=["seen"]),
    "clients: a name of escape sequences": inside("facts", "clients", to={ESCAPES: ["seen", [9, 0, 4], 2]}),
    "clients: a name without letters": inside("facts", "clients", to={"": ["seen", [9, 0, 4], 2]}),
    "clients: a long name": inside("facts", "clients", to={"x" * 201: ["seen", [9, 0, 4], 2]}),
    "clients: 200,000": inside("facts", "clients", to={str(one): ["seen", [9, 0, 4], 2] for one in range(200_000)}),
    "clients: an unknown population": inside("facts", "clients", ..., 0, to="elsewhere"),
    "sizes: negative": inside("facts", "clients", ..., 1, to=[-1, 0, 4]),
    "sizes: two": inside("facts", "clients", ..., 1, to=[9, 4]),
    "sizes: 2**40": inside("facts", "clients", ..., 1, to=[2**40, 0, 4]),
    "sizes: fractions": inside("facts", "clients", ..., 1, to=[9.5, 0, 4]),
    "labels: 2**31": inside("facts", "clients", ..., 2, to=2**31),
    "labels: 2**20": inside("facts", "clients", ..., 2, to=2**20),
    "sizes: no training sample": inside("facts", "clients", ..., 1, to=[0, 0, 4]),
    "labels: 1000": inside("facts", "clients", ..., 2, to=1000),
    "labels: negative": inside("facts", "clients", ..., 2, to=-1),
    "labels: none where there are classes": inside("facts", "clients", ..., 2, to=None),
    "types: none": inside("facts", "types", to={}),
    "types: unknown": inside("facts", "types", "x", to=["object", [16]]),
    "types: a list": inside("facts", "types", "x", to=[["float32"], [16]]),
    "types: many axes": inside("facts", "types", "x", to=["float32", [1] * 9]),
    "types: 2**40 numbers": inside("facts", "types", "x", to=["float32", [2**20, 2**20]]),
    "types: no numbers": inside("facts", "types", "x", to=["float32", [0]]),
    "types: another shape": inside("facts", "types", "x", to=["float32", [17]]),
    "types: other labels": inside("facts", "types", "y", to=["int32", []]),
    "stored: escape sequences": inside("facts", "stored", to="\x1b[2J"),
    "stored: another": inside("facts", "stored", to="uint8"),
    "digest: none": inside("facts", "digest", to=""),
    "digest: a path": inside("facts", "digest", to="../../x"),
    "digest: long": inside("facts", "digest", to="a" * 129),
}  # fmt: skip


def cases(kind, *tables):
    return [pytest.param((kind, lie), id=f"{kind}-{name}") for table in tables for name, lie in table.items()]


FORMED = cases("train", GARBAGE, TRAINED)
MEASURES = cases("measure", GARBAGE, MEASURED)


class Federation:
    """A federation after one round, which goes back there after each attack."""

    def __init__(self, folders, states, **settings):
        module = FederatedModule(FedEM(), LocalSolver(lr=0.1, momentum=0.9), client_trainer="sequential", **settings)
        self.settings, self.both = module.settings, sides(folders, states, module.settings)
        self.rounds, self.train = self.both.remote, self.both.remote_populations[0].train
        self.pool = self.rounds.client_trainer.pool
        self.transport = self.pool.transport = WithLiar(self.both.transport.nodes)
        self.rounds.round(self.train)
        self.start = self.rounds.shared, self.rounds.server.rounds_done, copy.deepcopy(self.rounds.store.versions)

    def begin(self, lie, missing="stop"):
        shared, done, versions = self.start
        self.rounds.discard()
        self.rounds.server.shared, self.rounds.server.rounds_done = shared, done
        self.rounds.store.versions.copy_(versions)
        self.transport.lie, self.transport.lies, self.pool.missing = lie, 0, missing
        self.pool.patience = 0.2


@pytest.fixture(scope="module")
def strict(folders, tmp_path_factory):
    return Federation(folders, tmp_path_factory.mktemp("strict"))


@pytest.fixture(scope="module")
def lenient(folders, tmp_path_factory):
    return Federation(folders, tmp_path_factory.mktemp("lenient"), faults=Faults(on_bad_client="drop"))


@pytest.fixture(scope="module")
def without_carl(lenient):
    """The shared state after a round that carl missed."""
    lenient.begin(None, "drop")
    lenient.transport.lost, lenient.pool.seconds = lambda node, _: node == "carl", 0.01
    lenient.rounds.round(lenient.train)
    lenient.transport.lost, lenient.pool.seconds = lambda node, _: False, 10.0
    return tree.leaves(lenient.rounds.shared)


def told(error):
    """An error of a run, which names the node and repeats nothing that could move a cursor."""
    said = str(error.value)
    assert "carl" in said
    assert said.isprintable()
    assert len(said) < 1000
    return said


@pytest.mark.parametrize("lie", FORMED)
def test_a_false_answer_is_none(strict, lenient, without_carl, lie, capsys):
    strict.begin(lie)
    with pytest.raises(LostNodesError, match="carl") as error:
        strict.rounds.round(strict.train)
    told(error)
    assert same(tree.leaves(strict.rounds.shared), tree.leaves(strict.start[0]))
    lenient.begin(lie, "drop")
    record = lenient.rounds.round(lenient.train)
    assert lenient.transport.lies
    assert record.faults.errors == (4,)
    assert same(tree.leaves(lenient.rounds.shared), without_carl)
    assert capsys.readouterr().err.replace("\n", "").isprintable()


@pytest.mark.parametrize("lie", cases("train", BELIEVED))
def test_an_update_that_nobody_computes_is_a_failed_client(strict, lenient, without_carl, lie):
    strict.begin(lie)
    with pytest.raises(ClientError, match="client 4") as error:
        strict.rounds.round(strict.train)
    assert "carl" in str(error.value) or "NaN or infinite" in str(error.value)
    lenient.begin(lie, "drop")
    record = lenient.rounds.round(lenient.train)
    assert record.faults.errors + record.faults.non_finite == (4,)
    assert same(tree.leaves(lenient.rounds.shared), without_carl)


def test_an_update_is_as_long_as_the_operator_allows(lenient, without_carl):
    lenient.begin(None, "drop")
    lenient.pool.max_update_norm = 1e3
    assert not lenient.rounds.round(lenient.train).faults.errors
    lenient.begin(("train", entry(0, 1e4)), "drop")
    record = lenient.rounds.round(lenient.train)
    lenient.pool.max_update_norm = None
    assert "--data.dataset.max_update_norm is 1000" in record.faults.reasons[0]
    assert same(tree.leaves(lenient.rounds.shared), without_carl)


@pytest.mark.parametrize("lie", MEASURES)
def test_false_measurements_are_none(strict, lenient, lie):
    strict.begin(lie)
    with pytest.raises(LostNodesError, match="carl") as error:
        strict.both.measured("remote", seen=True)
    told(error)
    lenient.begin(lie, "drop")
    rows = lenient.both.measured("remote", seen=True)
    assert all_finite([rows])
    assert rows[4].tolist() == [0, 0, 0]


@pytest.mark.parametrize("lie", cases("measure", UNBELIEVABLE))
def test_measurements_that_cannot_be_true_are_of_a_failed_client(strict, lenient, lie, capsys):
    strict.begin(lie)
    with pytest.raises(ClientError, match="client 4, its node carl: it measured") as error:
        strict.both.measured("remote", seen=True)
    told(error)
    lenient.begin(lie, "drop")
    rows = lenient.both.measured("remote", seen=True)
    assert all_finite([rows])
    assert (rows[:, 2] <= rows[:, 0]).all()
    assert rows[4].tolist() == [0, 0, 0]
    assert "client 4, its node carl: it measured" in capsys.readouterr().err


@pytest.mark.parametrize("lie", cases("keep", KEPT))
def test_a_false_promise_to_keep_is_none(strict, lie):
    strict.begin(lie)
    with pytest.raises(LostNodesError, match="carl") as error:
        strict.rounds.client_trainer.keep()
    told(error)


def test_garbage_is_asked_again_until_an_answer_comes(strict, monkeypatch):
    """Where the server waits: one liar does not end a run that its honest successor can go on with."""
    monkeypatch.setattr("lit_fed.deployment.node_pool.PAUSES", (0.01, 0.02))
    honest = strict.transport
    strict.begin(("train", lambda answer: answer if honest.lies > 3 else b"garbage"), "wait")
    strict.pool.patience = 30.0
    strict.rounds.round(strict.train)
    assert honest.lies == 4


def test_a_second_process_without_the_states_does_not_end_the_run(strict, folders, tmp_path, monkeypatch, capsys):
    """It has the node's certificate and an empty folder of states; the first process, started again, goes on."""
    monkeypatch.setattr("lit_fed.deployment.node_pool.PAUSES", (0.01, 0.02))
    strict.begin(None, "wait")
    strict.pool.patience = 30.0
    strict.rounds.round(strict.train)
    wanted = tree.leaves(strict.rounds.shared)
    strict.begin(None, "wait")
    strict.pool.patience = 30.0
    nodes, settings = strict.transport.nodes, strict.settings
    (second,) = make_nodes({"carl": folders["carl"]}, tmp_path / "elsewhere", settings=settings).values()
    first, asked = nodes["carl"], []

    class OneAfterTheOther:
        def handle(self, data):
            asked.append(data)
            return (second if len(asked) < 5 else first).handle(data)

    nodes["carl"] = OneAfterTheOther()
    strict.rounds.round(strict.train)
    nodes["carl"] = first
    assert same(tree.leaves(strict.rounds.shared), wanted)
    said = capsys.readouterr().err
    assert "node carl says: the file of a client's state is missing; give it the folder --states" in said


def test_settings_that_all_nodes_refuse_end_the_run_at_once(strict):
    """One node cannot say so for all, though; the others are waited for."""
    honest, said = dict(strict.transport.nodes), to_bytes(Packet({"refused": "start"}))

    class Refusing:
        def handle(self, data):
            return said

    for nodes, patience in ((dict.fromkeys(honest, Refusing()), 30.0), (honest | {"carl": Refusing()}, 0.3)):
        strict.begin(None, "wait")
        strict.pool.patience = patience
        strict.transport.nodes.update(nodes)
        begun = time.monotonic()
        with pytest.raises(LostNodesError, match="carl says: the models that clients start from are others here"):
            strict.rounds.round(strict.train)
        assert (time.monotonic() - begun < 0.2) == (patience == 30.0)
        strict.transport.nodes.update(honest)


# ---------------------------------------------------------------------- at the start
@pytest.fixture
def starting(folders, tmp_path):
    def start(lie, missing):
        transport = WithLiar(make_nodes(folders, tmp_path / "states"))
        transport.lie = lie
        return InProcessFederation(transport, missing=missing, seconds=0.1, patience=0.1)

    return start


@pytest.mark.parametrize("lie", cases("facts", GARBAGE, TOLD))
def test_a_false_start_is_of_one_node(starting, lie, capsys):
    """It ends the run by name, or under `drop` the others go on."""
    with pytest.raises((LostNodesError, ConfigError), match="carl") as error:
        starting(lie, "stop").load()
    told(error)
    seen, unseen = starting(lie, "drop").load()
    assert (seen.names, unseen.names) == (["a1", "a2", "b1", "b2"], ["b9"])
    said = capsys.readouterr().err
    assert "carl" in said
    assert said.replace("\n", "").isprintable()


def claiming(*names):
    return ("facts", inside("facts", "clients", to={name: ["seen", [9, 0, 4], 2] for name in names}))


def test_a_node_that_claims_the_clients_of_others_is_left_out(starting, capsys):
    seen, _ = starting(claiming("a1", "b1"), "drop").load()
    assert seen.names == ["a1", "a2", "b1", "b2"]
    assert "going on without carl" in capsys.readouterr().err
    seen, _ = starting(claiming("a1"), "drop").load()  # nobody can say which of two nodes has it
    assert seen.names == ["b1", "b2"]
    assert "client 'a1' stands on the nodes anna and carl; rename its file" in capsys.readouterr().err


def test_a_node_that_claims_the_clients_of_others_may_be_corrected(starting, monkeypatch):
    monkeypatch.setattr("lit_fed.deployment.node_pool.PAUSES", (0.01, 0.02))
    federation = starting(claiming("a1", "b1"), "wait")
    honest, times = federation.transport.lie[1], []
    federation.transport.lie = (
        "facts",
        lambda answer: times.append(1) or (honest(answer) if len(times) < 3 else answer),
    )
    seen, _ = federation.load()
    assert seen.names == ["a1", "a2", "b1", "b2", "c1"]


def test_the_tables_are_long():
    tables = (GARBAGE, TRAINED, BELIEVED, MEASURED, UNBELIEVABLE, KEPT, TOLD)
    assert sum(map(len, tables)) + 2 * len(GARBAGE) >= 150
    assert len({name.partition(":")[0] for table in tables for name in table}) >= 20
