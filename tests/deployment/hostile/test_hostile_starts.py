"""What a hostile node may say of its clients at the start: the others go on. One line is one attack."""

import pytest
from attacked import WithLiar, facts, inside
from in_process import InProcessFederation, make_nodes
from test_hostile_nodes import BELIEVED, ESCAPES, GARBAGE, KEPT, MEASURED, TRAINED, UNBELIEVABLE, cases, told

from lit_fed.deployment.node_pool import LostNodesError
from lit_fed.errors import ConfigError

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
