"""Noise of nodes and server that the other side, who knows the whole training, tries to subtract."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from in_process import InProcess, InProcessFederation, make_nodes, same
from test_runs import fit, module_of

from lit_fed.core import tree
from lit_fed.core.noise import protecting_normals
from lit_fed.core.seeds import Secret
from lit_fed.deployment.wire import Packet, from_bytes, to_bytes
from lit_fed.errors import ConfigError
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.secure.wrapper import SecureSum

BUDGET = {"noise_multiplier": 2.0, "clip_norm": 0.5, "delta": 1e-3}
KINDS = {"messages": LocalPrivacy(**BUDGET), "steps": ExamplePrivacy(**BUDGET, sample_rate=0.5, mixture_noise=2.0)}


def trained(folders, tmp_path, privacy, arguments=None, **options):
    module = module_of(privacy=privacy)
    module.history.arguments = arguments or {}
    nodes = make_nodes(folders, tmp_path / "states", settings=module.settings)
    transport = InProcess(nodes)
    fit(tmp_path / "run", InProcessFederation(transport), module, **options)
    return module, nodes, transport


def questions(transport, node):
    asked = [(data, answer) for name, data, answer in transport.log if name == node]
    return [
        one for one in asked if from_bytes(one[0]).facts["kind"] == "train" and "needs" not in from_bytes(one[1]).facts
    ]


def leaves(answer):
    return [leaf for some in from_bytes(answer).trees.values() for leaf in some]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_question_has_the_same_noise_and_any_other_has_other_noise(folders, tmp_path, kind):
    _, nodes, transport = trained(folders, tmp_path, KINDS[kind])
    data, answer = questions(transport, "anna")[0]
    assert same(leaves(nodes["anna"].handle(data)), leaves(answer)), "asked again, after a restart"
    packet = from_bytes(data)
    trees = {name: [leaf.clone() for leaf in some] for name, some in packet.trees.items()}
    trees["shared"][0].view(-1)[0] += 1e-7  # a model that is next to the same
    facts = packet.facts | {"num_rounds": packet.facts["num_rounds"] + 1}
    for other in (Packet(packet.facts, trees), Packet(facts, packet.trees)):
        far = [
            float((one.double() - two.double()).abs().max())
            for one, two in zip(leaves(nodes["anna"].handle(to_bytes(other))), leaves(answer), strict=True)
            if one.is_floating_point() and one.numel() > 10
        ]
        assert far
        assert min(far) > 1e-3, "the answers differ by fresh noise"


@pytest.mark.parametrize("kind", KINDS)
def test_noise_does_not_follow_from_what_the_server_knows(folders, tmp_path, kind):
    """Two federations with the same settings, seeds, names and data have other noise: each node has its own key."""
    answers = []
    for run in ("one", "other"):
        _, _, transport = trained(folders, tmp_path / run, KINDS[kind])
        answers.append(leaves(questions(transport, "anna")[0][1]))
    assert not same(*answers)


def test_the_noise_of_the_server_is_on_no_wire_and_in_no_seed(folders, tmp_path):
    privacy = ClientPrivacy(**BUDGET, noise_seed=5)
    given = {"model": {"privacy": {"class_path": "ClientPrivacy", "init_args": BUDGET | {"noise_seed": 5}}}}
    module, _, transport = trained(folders, tmp_path, privacy, given, client_sampling="poisson")
    assert any("noise_multiplier" in json.dumps(from_bytes(data).facts) for _, data, _ in transport.log)
    nobody = torch.zeros((), dtype=torch.int64)
    noise = protecting_normals(Secret.of_seed(5), 0, nobody, "central/train/models", 4)
    assert torch.equal(noise, protecting_normals(module.federation.terms.secret, 0, nobody, "central/train/models", 4))
    for _, data, _ in transport.log:
        packet = from_bytes(data)
        assert "noise_seed" not in json.dumps(packet.facts)
        assert "secret" not in json.dumps(packet.facts)


def test_masks_that_the_server_could_take_off_are_refused(folders, tmp_path):
    module = module_of(secure_aggregation=SecureSum())
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    with pytest.raises(ConfigError, match="hides no message; leave it out"):
        fit(tmp_path / "run", InProcessFederation(transport), module)


def test_no_node_hears_who_else_takes_part(folders, tmp_path):
    """ε of averages that are drawn at random holds against those who do not know who was drawn."""
    data = {"client_sampling": "poisson", "client_fraction": 0.7, "rounds": 4}
    _, _, transport = trained(folders, tmp_path, ClientPrivacy(**BUDGET), **data)
    asked = [from_bytes(one).facts for node in transport.nodes for one, _ in questions(transport, node)]
    assert asked
    assert [facts["present"] for facts in asked] == [[]] * len(asked)


def moved(packet):
    """A question about slightly other models."""
    trees = {name: [leaf.clone() for leaf in some] for name, some in packet.trees.items()}
    trees["shared"][0].view(-1)[:] += 0.1
    return Packet(packet.facts | {"needed": None}, trees)  # which deletes no state


@pytest.mark.parametrize("kind", KINDS)
def test_no_question_overwrites_a_state(folders, tmp_path, kind):
    """Asked, the state overwritten, asked again: the noise of the two answers would cancel."""
    _, nodes, transport = trained(folders, tmp_path, KINDS[kind], rounds=2)
    first, second = [from_bytes(data) for data, _ in questions(transport, "anna")[:2]]
    assert set(second.facts["versions"]) == {first.facts["version"]}
    before = leaves(nodes["anna"].handle(to_bytes(second)))
    assert from_bytes(nodes["anna"].handle(to_bytes(moved(first)))).facts == {"refused": "packet"}
    assert same(leaves(nodes["anna"].handle(to_bytes(second))), before)


def keys_of_noise(node, packet, count=1):
    """The secret of the noise in the answers to a question, each time under a new version."""
    found = []
    for number in range(count):
        fresh = packet.facts["version"] + 10 + number + len(list(node.states.rglob("*.pt")))
        assert (
            "refused"
            not in from_bytes(node.handle(to_bytes(Packet(packet.facts | {"version": fresh}, packet.trees)))).facts
        )
        found.append(node._training.rounds.terms.secret.key)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_another_state_or_other_samples_have_other_noise(folders, tmp_path, kind):
    """The same question to a node whose files of states or samples were exchanged is another release."""
    module, nodes, transport = trained(folders, tmp_path, KINDS[kind], rounds=2)
    packet = from_bytes(questions(transport, "anna")[1][0])
    one, again = keys_of_noise(nodes["anna"], packet, 2)
    assert one == again, "the version of the state that is written changes nothing"
    states = nodes["anna"]._training.states
    client = packet.facts["clients"][0]
    state = states.read(client)
    next(leaf for leaf in tree.leaves(state) if leaf.is_floating_point()).add_(1e-3)
    states.files.write(client, packet.facts["versions"][0], tree.leaves(state))
    (exchanged,) = keys_of_noise(nodes["anna"], packet)
    assert exchanged != one
    place = next(folders["anna"].rglob("*.npz"))
    with np.load(place) as arrays:
        held = dict(arrays)
    held["x_train"][0] += 1e-3
    np.savez(place, **held)
    (other,) = keys_of_noise(make_nodes(folders, tmp_path / "states", settings=module.settings)["anna"], packet)
    assert other not in (one, exchanged)


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_cannot_ask_for_less_noise(folders, tmp_path, kind, capsys):
    """By a phase that adds none, such as that of serving, or by more and larger batches in a round."""
    _, nodes, transport = trained(folders, tmp_path, KINDS[kind])
    packet = from_bytes(questions(transport, "anna")[0][0])
    work = packet.facts["work"]
    more = {"epochs": 1000}, {"sample_rate": 1.0}, {"sample_rate": 0.0}, {"batch_size": 1}, {"batches_per_step": 7}
    lies = [{"phase": phase} for phase in ("adapt", "plan", "collaboration", "other")]
    lies += [{"work": work | one} for one in more if work | one != work]
    for lie in lies:
        facts = packet.facts | lie | {"needed": None, "version": 77}
        answer = from_bytes(nodes["anna"].handle(to_bytes(Packet(facts, packet.trees))))
        assert (answer.facts, answer.trees) == ({"refused": "packet"}, {}), lie
    said = capsys.readouterr().err
    assert "the question is of a phase that the algorithm does not have" in said
    assert "the question asks for other local work than the node's own settings" in said


@pytest.mark.parametrize("kind", KINDS)
def test_the_noise_of_nodes_does_not_follow_from_what_the_server_announces(folders, tmp_path, kind):
    module = module_of(privacy=replace(KINDS[kind], noise_multiplier=None, target_epsilon=1.0))
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    with pytest.raises(ConfigError, match=r"target_epsilon is given, and how much noise .* nodes .*noise_multiplier"):
        fit(tmp_path / "run", InProcessFederation(transport), module)
