"""Whole runs through the wire: Lightning's loop, files, resume, and what the bytes tell."""

import json
import pickle
import socket
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from attacked import WithLiar
from background import IN_ORDER, PATIENCE, ServingThread
from in_process import InProcess, InProcessFederation, make_nodes, node_folders, same, write_clients
from lightning.pytorch import seed_everything

from lit_fed import FedAvg, FedAvgPlus, FedEM, FederatedModule, FederatedTrainer, ResponsibilityFedEM, RoundLogger
from lit_fed.callbacks.guarantees import guarantee_of
from lit_fed.core import tree
from lit_fed.core.local_solver import BY_CLIENT, LocalSolver
from lit_fed.core.segmentation import Segmentation, flat_masks
from lit_fed.core.types import Population
from lit_fed.data import ClientFolder
from lit_fed.data.augmentation import check_augmentation, mask_form
from lit_fed.data.module import FederatedDataModule
from lit_fed.deployment.federation import Federation, RemoteSplit
from lit_fed.deployment.node import Node
from lit_fed.deployment.wire import Packet, from_bytes, to_bytes
from lit_fed.errors import ConfigError, LostNodesError, NotFiniteError
from lit_fed.wrappers.compression.codecs import QSGD
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.mixture_start import Clustering
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy

FILES = ["metrics.csv", "clients.csv"]
SLOWER = {"b*": 0.5, "c1": 2.0}


def module_of(algorithm=None, *, solvers=None, **settings):
    solver = LocalSolver(lr=0.1, momentum=0.9, persist_optimizer=True, local_epochs=2, **solvers or {})
    return FederatedModule(algorithm or FedEM(), solver, client_trainer="sequential", **settings)


def fit(out, dataset, module, *, rounds=3, ckpt_path=None, callbacks=(), **data):
    """A fit and its test; the module, and what came of the test."""
    seed_everything(3, verbose=False)
    datamodule = FederatedDataModule(dataset, batch_size=4, **data)
    logger = RoundLogger(out, name="run")
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=rounds, default_root_dir=str(out), logger=logger, enable_progress_bar=False,
        callbacks=list(callbacks),
    )  # fmt: skip
    trainer.fit(module, datamodule=datamodule, ckpt_path=ckpt_path)
    trainer.test(module, datamodule=datamodule, verbose=False)
    return Path(logger.log_dir)


def both(folders, tmp_path, make, **options):
    """The same run as a simulation and on nodes: folders, modules, transport."""
    simulated, remote = make(), make()
    one = fit(tmp_path / "simulated", ClientFolder(str(folders["all"])), simulated, **options)
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=remote.settings))
    other = fit(tmp_path / "remote", InProcessFederation(transport), remote, **options)
    return one, other, simulated, remote, transport


def table(folder, name):
    return pd.read_csv(folder / name).drop(columns=["seconds"], errors="ignore").filter(regex="^(?!pi_|time)")


def equal_runs(one, other, simulated, remote):
    assert same(tree.leaves(simulated.federation.shared), tree.leaves(remote.federation.shared))
    for name in FILES:
        here, there = table(one, name), table(other, name)
        shared = [column for column in here.columns if column in there.columns]
        assert len(shared) >= 4
        pd.testing.assert_frame_equal(here[shared], there[shared], check_exact=True)


@pytest.mark.parametrize(
    ("settings", "data"),
    [
        ({}, {"val_fraction": 0.25, "client_fraction": 0.6}),
        ({"metrics": "F1Score", "compression": QSGD(), "compression_scope": "whole"}, {}),
        ({"privacy": ClientPrivacy(0.5, clip_norm=1.0, delta=1e-5, noise_seed=0)}, {"client_sampling": "poisson"}),
        ({"solvers": {"client_lr": SLOWER, "client_work": {"*": 0.6}}}, {}),
        ({"solvers": {"client_lr": SLOWER, "client_batch_size": {"a1": 2, "b*": 0}}, "algorithm": FedAvgPlus()}, {}),
    ],
    ids=["validation", "compression", "privacy", "work", "batches"],
)
def test_runs_equal_the_simulation(folders, tmp_path, settings, data):
    one, other, simulated, remote, _ = both(folders, tmp_path, lambda: module_of(**settings), **data)
    equal_runs(one, other, simulated, remote)


def test_a_run_goes_on_from_its_checkpoint_with_the_states_on_the_nodes(folders, tmp_path):
    some = {"client_fraction": 0.6}
    one, _, simulated, _, transport = both(folders, tmp_path, module_of, rounds=4, **some)
    first = module_of()
    begun = fit(tmp_path / "cut", InProcessFederation(transport), first, rounds=2, **some)
    fit(tmp_path / "elsewhere", InProcessFederation(transport), module_of(), rounds=2)  # states of others lie beside
    again = module_of()
    transport.nodes = make_nodes(folders, tmp_path / "states", settings=again.settings)  # processes that know nothing
    ended = fit(
        tmp_path / "cut",
        InProcessFederation(transport),
        again,
        rounds=4,
        ckpt_path=str(begun / "checkpoints/last.ckpt"),
        **some,
    )
    assert same(tree.leaves(simulated.federation.shared), tree.leaves(again.federation.shared))
    assert table(one, "clients.csv")["accuracy"].tolist() == table(ended, "clients.csv")["accuracy"].tolist()


def test_a_round_that_nodes_may_answer_with_other_noise_is_charged_twice(folders, tmp_path, capsys):
    """Nodes draw noise anew for other settings, so that a round that was interrupted may be out with both."""
    privacy, noise = LocalPrivacy(noise_multiplier=1, clip_norm=1, delta=1e-3), []

    def go_on(rounds, lr, ckpt_path=None, **others):
        module = FederatedModule(FedAvg(), LocalSolver(lr=lr), privacy=privacy)
        nodes = make_nodes(folders, tmp_path / "states", settings=module.settings)
        seed_everything(3, verbose=False)
        trainer = FederatedTrainer(
            accelerator="cpu", max_epochs=rounds, default_root_dir=str(tmp_path / "runs"), enable_progress_bar=False
        )
        datamodule = FederatedDataModule(InProcessFederation(transport=InProcess(nodes)), batch_size=4)
        trainer.fit(module, datamodule=datamodule, ckpt_path=ckpt_path, **others)
        noise.append(nodes["anna"]._training.secret.key)
        return guarantee_of(module)["privacy/releases"], next(Path(trainer.log_dir).rglob("last.ckpt"))

    _, first = go_on(2, 0.1)
    assert go_on(3, 0.1, first)[0] == 3, "nothing was interrupted"
    capsys.readouterr()
    assert go_on(3, 0.2, first, resume_with_changes=True)[0] == 4
    assert "nodes draw other noise for other settings" in capsys.readouterr().err
    assert noise[1] != noise[2], "a server that is a program sends no settings, and the nodes heed them all the same"
    with pytest.raises(ConfigError, match=r"go on from last\.ckpt"):
        go_on(3, 0.2, first.with_name("previous.ckpt"), resume_with_changes=True)


@pytest.mark.parametrize("missing", ["wait", "drop"])
@pytest.mark.parametrize("kind", [ClientPrivacy, LocalPrivacy])
def test_a_repeated_round_of_other_clients_has_other_noise_and_is_charged(folders, tmp_path, missing, kind):
    """Between the release of a round and its checkpoint a server may be killed, and a node be missing afterwards."""
    privacy, secrets = kind(0.5, clip_norm=1.0, delta=1e-5), []
    options = {"client_sampling": "poisson"} if kind is ClientPrivacy else {}
    faults = Faults(on_bad_client="drop") if missing == "drop" else None

    def go_on(rounds, ckpt_path=None):
        module = module_of(privacy=privacy, faults=faults)
        nodes = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
        dataset = InProcessFederation(nodes, missing=missing)
        folder = fit(tmp_path / "runs", dataset, module, rounds=rounds, ckpt_path=ckpt_path, **options)
        secrets.append(module.federation.terms.secret.key)
        return guarantee_of(module)["privacy/releases"], folder / "checkpoints/last.ckpt"

    _, last = go_on(2)
    releases, _ = go_on(3, last)
    assert releases == (3 if missing == "wait" else 4)
    if kind is ClientPrivacy:  # of the others each node has its own
        assert (secrets[0] == secrets[1]) is (missing == "wait")


def test_nodes_keep_what_checkpoints_need_and_no_more(folders, tmp_path):
    module = module_of()
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    fit(tmp_path / "run", InProcessFederation(transport), module, rounds=6, client_fraction=0.6)
    for node in ("anna", "ben", "carl"):
        kept = list((tmp_path / "states" / node).glob("*/*.*.pt"))
        clients = {path.name.split(".")[0] for path in kept}
        assert len(kept) <= 4 * len(clients)  # last and previous checkpoint, the round before, and this one


def test_no_sample_label_mixture_or_state_is_on_the_wire(folders, tmp_path):
    """Every byte that nodes send: messages, sums, sizes and names."""
    module = module_of()
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    fit(tmp_path / "run", InProcessFederation(transport), module, val_fraction=0.25)
    secret = []
    for path in folders["all"].rglob("*.npz"):
        arrays = np.load(path)
        secret += [row.astype(np.float32).tobytes() for name in ("x_train", "x_test") for row in arrays[name]]
        secret += [arrays[name].astype(kind).tobytes() for name in ("y_train", "y_test") for kind in ("<i8", "<i4")]
    for path in (tmp_path / "states").rglob("*.*.pt"):
        state = torch.load(path, weights_only=True)
        leaves = [leaf for leaf in state.values() if isinstance(leaf, torch.Tensor) and leaf.numel() > 2]
        assert leaves
        secret += [leaf.numpy().tobytes() for leaf in leaves]
    secret += [(tmp_path / "states" / node / "key").read_bytes() for node in ("anna", "ben", "carl")]
    answers = b"".join(answer for _, _, answer in transport.log)
    assert len(answers) > 10_000
    assert not [one for one in secret if one in answers]
    planted = answers + secret[0]
    assert secret[0] in planted  # the search finds what is there


ASKED = [lambda: ResponsibilityFedEM(2), lambda: FedEM(2, start=Clustering(1))]


@pytest.mark.parametrize("asked", ASKED, ids=["by responsibility", "start by clustering"])
def test_mixture_weights_are_sent_where_every_operator_allows_it(folders, tmp_path, asked):
    """What the server then learns is in every message: π_t of ResponsibilityFedEM, in a start the chosen component."""
    simulated, remote = module_of(asked()), module_of(asked())
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=remote.settings))
    refused = r"anna says: its operator does not let the server learn .*--reveal-mixture"
    with pytest.raises(LostNodesError, match=refused):
        fit(tmp_path / "no", InProcessFederation(transport, missing="stop"), module_of(asked()), rounds=1)
    assert not any(from_bytes(answer).trees for _, _, answer in transport.log), "nothing has left a node"
    transport.nodes |= make_nodes(folders, tmp_path / "states", settings=remote.settings, reveal_mixture=True)
    transport.log.clear()
    fit(tmp_path / "nodes", InProcessFederation(transport), remote, rounds=2)
    fit(tmp_path / "simulated", ClientFolder(str(folders["all"])), simulated, rounds=2)
    assert same(tree.leaves(simulated.federation.shared), tree.leaves(remote.federation.shared))
    both = [(from_bytes(question).facts, from_bytes(answer).trees) for _, question, answer in transport.log]
    first = [trees for facts, trees in both if (facts["kind"], facts.get("round")) == ("train", 0)]
    weights = [leaf for trees in first for some in trees.values() for leaf in some if leaf.shape == (2,)]
    assert weights
    assert all(float(one.sum()) == pytest.approx(1) for one in weights)


def test_a_node_is_told_of_its_own_clients_solvers_alone(folders, tmp_path):
    module = module_of(solvers={"client_lr": SLOWER, "client_work": {"a1": 0.5}, "client_batch_size": {"c1": 3}})
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    fit(tmp_path / "run", InProcessFederation(transport), module)
    questions = [(node, from_bytes(data).facts) for node, data, _ in transport.log]

    def own(*values):
        return dict(zip(BY_CLIENT, values, strict=True))

    assert {node: facts["settings"]["solvers"] for node, facts in questions if "settings" in facts} == {
        "anna": {"a1": own(1.0, 0.5, 4), "a2": own(1.0, 1.0, 4)},
        "ben": {"b1": own(0.5, 1.0, 4), "b2": own(0.5, 1.0, 4)},  # b9 is unseen
        "carl": {"c1": own(2.0, 1.0, 3)},
    }


def gone(node, facts):
    return node == "carl" and facts["kind"] == "train" and facts["round"] == 1


@pytest.mark.parametrize("missing", ["stop", "wait"])
def test_a_missing_node_ends_the_run_by_name_and_it_goes_on(folders, tmp_path, missing):
    module = module_of()
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings), gone)
    federation = InProcessFederation(transport, missing=missing, seconds=0.01, patience=0.05)
    with pytest.raises(LostNodesError, match=r"no answer from carl within .* s; see to their machines and logs"):
        fit(tmp_path / "run", federation, module)
    assert module.num_rounds_done == 1


def test_a_node_that_comes_later_is_waited_for(folders, tmp_path):
    calls = []

    def late(node, facts):
        calls.append(node)
        return gone(node, facts) and calls.count("carl") < 8

    _, _, simulated, _, _ = both(folders, tmp_path, module_of)
    module = module_of()
    transport = InProcess(make_nodes(folders, tmp_path / "other", settings=module.settings), late)
    fit(tmp_path / "run", InProcessFederation(transport, missing="wait", seconds=0.01), module)
    assert same(tree.leaves(simulated.federation.shared), tree.leaves(module.federation.shared))


def test_dropped_clients_are_those_that_faults_leave_out(folders, tmp_path):
    """A round without a node is that of the clients that came, bit for bit."""
    module = module_of(faults=Faults(on_bad_client="drop"))
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings), gone)
    fit(tmp_path / "run", InProcessFederation(transport, missing="drop", seconds=0.01), module, rounds=2)
    without = node_folders(tmp_path / "without", {"anna": ["a1", "a2"], "ben": ["b1", "b2", "b9"], "carl": ["c1"]})
    other = module_of(faults=Faults(on_bad_client="drop"))
    nodes = make_nodes(without, tmp_path / "other", settings=other.settings)
    nodes["carl"] = Failing(nodes["carl"])
    fit(tmp_path / "other_run", InProcessFederation(InProcess(nodes)), other, rounds=2)
    assert same(tree.leaves(module.federation.shared), tree.leaves(other.federation.shared))
    with pytest.raises(ConfigError, match="on_bad_client drop, or choose wait or stop"):
        fit(tmp_path / "no", InProcessFederation(transport, missing="drop", seconds=0.01), module_of())


def test_a_deadline_of_faults_is_one_in_seconds(folders, tmp_path):
    module = module_of(faults=Faults(on_bad_client="drop", deadline=7.0))
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    asked = []
    call = transport.call
    transport.call = lambda packets, *, most_bytes, seconds: (
        asked.append((from_bytes(next(iter(packets.values()))).facts["kind"], round(seconds))),
        call(packets, most_bytes=most_bytes, seconds=seconds),
    )[1]
    fit(tmp_path / "run", InProcessFederation(transport, missing="drop", seconds=50.0), module, rounds=1)
    assert {seconds for kind, seconds in asked if kind == "train"} == {7}
    assert {seconds for kind, seconds in asked if kind == "measure"} == {50}


def test_nan_names_the_client_and_the_round(folders, tmp_path):
    module = FederatedModule(FedEM(), LocalSolver(lr=3e38, local_epochs=3), client_trainer="sequential")
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    with pytest.raises(NotFiniteError, match=r"client 'c1' \(4\), round 0, client_final: .*NaN or infinite"):
        fit(tmp_path / "run", InProcessFederation(transport), module)


class Failing:
    """A node one of whose clients fails in the second round."""

    def __init__(self, node):
        self.node = node

    def handle(self, data):
        packet = from_bytes(data)
        answer = self.node.handle(data)
        if packet.facts["kind"] == "train" and packet.facts["round"] == 1:
            failed = {str(one): ["error", "client_step", "ValueError"] for one in packet.facts["clients"]}
            return to_bytes(Packet({"clients": packet.facts["clients"], "failed": failed}))
        return answer


def test_garbage_names_the_node_and_changes_nothing(folders, tmp_path):
    """Through a whole fit; `hostile/test_hostile_nodes.py` has the table of what may come."""
    module = module_of(FedAvg())
    nodes = make_nodes(folders, tmp_path / "states", settings=module.settings)
    transport = WithLiar(nodes)
    transport.lie = ("train", lambda answer: answer[:-1])
    with pytest.raises(LostNodesError, match="carl") as caught:
        fit(tmp_path / "run", InProcessFederation(transport, seconds=0.01), module)
    assert len(str(caught.value)) < 4000
    assert module.num_rounds_done == 0


def test_what_makes_no_sense_on_nodes_is_refused(folders, tmp_path):
    from lit_fed import DFedEM

    transport = InProcess(make_nodes(folders, tmp_path / "states"))
    with pytest.raises(ConfigError, match="has no server"):
        fit(tmp_path / "peers", InProcessFederation(transport), FederatedModule(DFedEM()))
    with pytest.raises(ConfigError, match="unseen_fraction"):
        fit(tmp_path / "unseen", InProcessFederation(transport), module_of(), unseen_fraction=0.2)
    transport.nodes = make_nodes(folders, tmp_path / "with_file", module_of().settings, {"solver": {}})
    for missing, faults in (("stop", None), ("drop", Faults(on_bad_client="drop"))):
        with pytest.raises(LostNodesError, match="its own configuration has other settings, which its log names"):
            fit(tmp_path / missing, InProcessFederation(transport, missing=missing), module_of(faults=faults))


def test_settings_come_once_and_stay_beside_the_states(folders, tmp_path):
    module = module_of()
    transport = InProcess(make_nodes(folders, tmp_path / "states", settings=module.settings))
    fit(tmp_path / "run", InProcessFederation(transport), module)
    questions = [from_bytes(question).facts for node, question, _ in transport.log if node == "anna"]
    assert sum("settings" in facts for facts in questions) == 1
    kept = json.loads(next((tmp_path / "states" / "anna").glob("*/session.json")).read_text())
    assert kept["ids"] == {"a1": 0, "a2": 1}


def test_a_second_fit_takes_the_port_of_the_first(folders, tmp_path):
    """Two federations of one process, as of a notebook, with one listening address and the same node."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    modules = [module_of(), module_of()]
    node = Node(folders["all"], tmp_path / "states", settings=modules[0].settings)
    running = ServingThread(node.handle, address, None, name="anna", patience=PATIENCE)
    for name, module in zip(("one", "two"), modules, strict=True):
        federation = Federation(address, missing="stop")
        fit(tmp_path / name, federation, module, rounds=2)
        assert node.over
    assert same(tree.leaves(modules[0].federation.shared), tree.leaves(modules[1].federation.shared))
    found = pickle.loads(pickle.dumps(modules[1]))
    assert torch.equal(found.store.versions, modules[1].store.versions)
    assert found.store.next_version() != modules[1].store.next_version()
    federation.pool.end()
    assert running.join() == IN_ORDER


def test_inputs_that_nodes_store_in_different_types_are_refused(tmp_path):
    """uint8 is scaled on its node; the server, which sees no sample, is told the type in which they are stored."""
    rng = np.random.default_rng(0)
    pixels, y = rng.integers(0, 256, size=(2, 8, 4), dtype=np.uint8), np.arange(8) % 2
    nodes = {}
    for node, x in (("anna", pixels[0]), ("ben", np.float32(pixels[1]))):
        write_clients(tmp_path / node, {node: (x, y, x, y)})
        nodes[node] = Node(tmp_path / node, tmp_path / f"states_{node}", FederatedModule().settings)
    data = FederatedDataModule(InProcessFederation(InProcess(nodes)))
    with pytest.raises(
        ConfigError, match="node ben are stored as float32, but on node anna as uint8; store those of all"
    ):
        data.setup()
    alone = FederatedDataModule(InProcessFederation(InProcess({"anna": nodes["anna"]})))
    alone.setup()
    assert alone.facts(weighting="samples", seed=0, num_rounds=1).stored_type == "uint8"


class Weighted(torch.nn.Module):
    """Numbers, weighted by the mean of the tokens that the mask marks."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.words, self.head = torch.nn.Embedding(5, 1), torch.nn.Linear(*input_shape["table"], num_outputs)

    def forward(self, ids, mask, table):
        return self.head(table * (self.words(ids) * mask.unsqueeze(-1)).mean(-2))


def with_tokens(folders):
    """The clients of some folders, with token ids and a mask beside their numbers."""
    rng = np.random.default_rng(1)
    for path in sorted(folders["all"].rglob("*.npz")):
        arrays, given = dict(np.load(path)), {}
        for split in ("train", "test"):
            x, given[f"y_{split}"] = arrays[f"x_{split}"], arrays[f"y_{split}"]
            ids = rng.integers(0, 5, (len(x), 3))
            given |= {f"table_{split}": x, f"ids_{split}": ids, f"mask_{split}": ids > 0}
        for copy in folders["all"].parent.rglob(path.name):
            np.savez(copy, **given)


def test_several_inputs_on_nodes(tmp_path):
    with_tokens(folders := node_folders(tmp_path / "data"))
    equal_runs(*both(folders, tmp_path, lambda: module_of(network=Weighted), rounds=2)[:4])


def test_other_inputs_on_a_node_are_refused(tmp_path):
    with_tokens(folders := node_folders(tmp_path / "data"))
    for path in folders["ben"].rglob("*.npz"):
        arrays = dict(np.load(path))
        np.savez(path, **{name.replace("mask", "marks"): one for name, one in arrays.items()})
    data = FederatedDataModule(InProcessFederation(InProcess(make_nodes(folders, tmp_path / "states"))))
    with pytest.raises(ConfigError, match=r"inputs on node ben are ids \[3\] int64, marks .* on node anna ids .* mask"):
        data.setup()


def test_masks_on_nodes_are_positions_too():
    """The server has sizes alone, and checks augmentation without a picture."""
    labels = torch.zeros(0, 8, 8, dtype=torch.long)
    flat = flat_masks(RemoteSplit(torch.tensor([2, 3]), torch.zeros(0, 1, 8, 8), labels, "nodes"))
    assert (flat.y.shape, flat.sizes.tolist(), flat.num_samples) == ((0, 64), [2, 3], 5)
    seen = Population(flat, flat, flat, ["ann", "bob"])
    check_augmentation("RandomCrop(8, padding=1)", seen, "Nodes", None, mask_form(Segmentation(3), (8, 8)))


def test_masks_on_nodes_are_said(tmp_path, capsys):
    x, y = np.zeros((4, 1, 2, 2), np.float32), np.arange(16).reshape(4, 2, 2) % 2
    write_clients(tmp_path / "anna", {"anna": (x, y, x, y)})
    node = Node(tmp_path / "anna", tmp_path / "states", FederatedModule().settings)
    FederatedDataModule(InProcessFederation(InProcess({"anna": node}))).setup()
    assert "labels are taken for masks of 2 classes\n" in capsys.readouterr().err
    write_clients(tmp_path / "bob", {"bob": (x, 255 * y, x, y)})
    node = Node(tmp_path / "bob", tmp_path / "more", FederatedModule().settings)
    with pytest.raises(ConfigError, match=r"masks on nodes hold 255; store the classes 0, 1, 2, …, or give"):
        FederatedDataModule(InProcessFederation(InProcess({"bob": node}))).setup()


def test_what_labels_on_nodes_are_taken_for_is_said(folders, tmp_path, capsys):
    transport = InProcess(make_nodes(folders, tmp_path / "states"))
    FederatedDataModule(InProcessFederation(transport)).setup()
    said = "labels are taken for 3 classes: the nodes store integers; floats would be quantities"
    assert capsys.readouterr().err.count(said) == 1
