"""Nodes give the numbers of the simulation, bit for bit: every algorithm that can be deployed, and its wrappers."""

from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pytest
import torch
from combination import refuse
from exemptions import exempt
from fit_all import OPTIONS
from in_process import InProcess, InProcessFederation, make_nodes, node_folders, same
from normalised import NormalisedMLP
from torch import nn

from lit_fed import FederatedModule, algorithms, serving
from lit_fed.algorithms import SCAFFOLD, UCFL, Ditto, FedEM, FedFOMO, MixtureADMM
from lit_fed.clients.store import ClientStore
from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.fine_tuning import FineTuning
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Sequences
from lit_fed.core.types import ServingBlock
from lit_fed.data import ClientFolder
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.populations.build import infer_target
from lit_fed.deployment.kept import KeptTraining
from lit_fed.deployment.remote import RemoteTrainer, VersionStore
from lit_fed.deployment.wire import Packet, from_bytes, to_bytes
from lit_fed.errors import ConfigError, LostNodesError
from lit_fed.models import MLP, HuggingFaceCausalLM
from lit_fed.rounds import FederatedRounds, InMemoryServer
from lit_fed.session import Session
from lit_fed.wrappers.compression.codecs import QSGD, TopK
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.mixture_start import Clustering
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.robust.attacks import Gaussian
from lit_fed.wrappers.robust.rules import CenteredClipping
from lit_fed.wrappers.selection.rules import PowerOfChoice

NUM_ROUNDS = 2


class Sides(NamedTuple):
    """A simulation, and a federation of nodes."""

    simulated: FederatedRounds
    remote: FederatedRounds
    populations: tuple  # of the simulation
    remote_populations: tuple
    transport: InProcess

    def measured(self, which: str, seen: bool) -> torch.Tensor:
        rounds = getattr(self, which)
        population = (self.populations if which == "simulated" else self.remote_populations)[0 if seen else 1]
        ids = torch.arange(population.train.num_clients) + population.train.first_id
        block = ServingBlock(ids, torch.arange(len(ids)), population.test, population.train)
        return torch.cat([scores.rows() for _, scores in serving.measure(rounds, block, seen=seen)])[:, :3]


def deployable() -> list[str]:
    found = []
    for name in sorted(set(algorithms.__all__) - {"Algorithm"}):
        try:
            refuse(getattr(algorithms, name)(**OPTIONS.get(name, {})), deployed=True)
        except ConfigError:
            continue
        found.append(name)
    return found


def sides(folders, states, settings, **changed) -> Sides:
    """Both sides of a training with these settings, before the first round; `changed` are other facts of it."""
    seen, unseen = ClientFolder(str(folders["all"])).load()
    for split in (unseen.train, unseen.val, unseen.test):
        split.first_id = seen.train.num_clients
    train = seen.train
    facts = TrainingFacts(
        input_shape=tuple(train.x.shape[1:]), input_type="float32", label_shape=(), target=infer_target(train.y),
        num_clients=train.num_clients, total_samples=train.num_samples, most_samples=int(train.sizes.max()),
        batch_size=4, clients_per_block=1024, seed=0, num_rounds=NUM_ROUNDS, groups=None, normalisation=None,
        weighting=settings.weighting or settings.algorithm.participation.weighting,
    )._replace(**changed)  # fmt: skip
    made = []
    for _ in range(2):
        session = Session.of(settings, facts, torch.device("cpu"))
        server = InMemoryServer(session.shared, torch.device("cpu"))
        made.append(FederatedRounds(session.algorithm, session.terms, server, session.choose))
    simulated, remote = made
    simulated.store = ClientStore(partial(simulated.initial_state, train), train.num_clients)
    transport = InProcess(make_nodes(folders, states, settings=settings, reveal_mixture=True))
    federation = InProcessFederation(transport)
    remote_seen, remote_unseen = federation.load()
    for split in (remote_unseen.train, remote_unseen.val, remote_unseen.test):
        split.first_id = train.num_clients
    remote.store = VersionStore(train.num_clients)
    session = {"model": None, "facts": facts.public.plain(), "val_fraction": 0.0, "data_seed": 0}
    remote.client_trainer = RemoteTrainer(federation.pool, remote, (remote_seen, remote_unseen), session)
    return Sides(simulated, remote, (seen, unseen), (remote_seen, remote_unseen), transport)


def equal_sides(both, cohorts, per_block=2):
    """Check that both sides have the same shared state, metrics, bits and measurements after some rounds."""
    for cohort in cohorts:
        records = [
            getattr(both, which).round(population[0].train, cohort, per_block=per_block)
            for which, population in (("simulated", both.populations), ("remote", both.remote_populations))
        ]
        assert same(tree.leaves(both.simulated.shared), tree.leaves(both.remote.shared))
        assert records[0]._replace(seconds=0, client_ids=0) == records[1]._replace(seconds=0, client_ids=0)
    for seen in (True, False):
        assert torch.equal(both.measured("simulated", seen), both.measured("remote", seen))


@pytest.mark.every_combination
@pytest.mark.parametrize("name", deployable())
def test_nodes_equal_the_simulation(name, folders, tmp_path):
    """Shared state, metrics, bits and what is measured, after rounds with kept optimizers and a partial cohort."""
    algorithm = getattr(algorithms, name)(**OPTIONS.get(name, {}))
    if "multiclass" in exempt(type(algorithm)):
        folders = node_folders(tmp_path / "two_classes", classes=2)
    keeps = name != "FedNova"
    solver = LocalSolver(lr=0.1, momentum=0.9, persist_optimizer=keeps)
    settings = FederatedModule(algorithm, solver, client_trainer="sequential").settings
    both = sides(folders, tmp_path, settings)
    everyone = list(range(both.simulated.terms.num_clients))
    cohorts = [everyone] * NUM_ROUNDS if algorithm.participation.needs_all_clients else [[0, 2, 3], everyone]
    equal_sides(both, cohorts)
    nodes_serve_alone(both, folders, tmp_path, settings)


def test_nodes_report_the_losses_by_which_clients_are_selected(folders, tmp_path):
    around = {"client_trainer": "sequential", "selection": PowerOfChoice(4)}
    settings = FederatedModule(MIXTURE, LocalSolver(lr=0.1), **around).settings
    both, cohorts = sides(folders, tmp_path, settings, sampling_probability=0.5), []
    for _ in range(NUM_ROUNDS):
        for rounds, (seen, _) in ((both.simulated, both.populations), (both.remote, both.remote_populations)):
            settings.features[0].start(rounds)
            cohorts.append(serving.selected(rounds, np.arange(5), seen.train, clients_per_block=2))
        assert rounds.reports == both.simulated.reports
        assert cohorts[-1].tolist() == cohorts[-2].tolist()
        equal_sides(both, [cohorts[-1]])
    assert len(cohorts[-1]) == 2


@pytest.mark.parametrize("name", ["FedEM", "FedAvgPlus", "FedPer", "PFedMe"])
def test_nodes_serve_alone_whatever_runs_the_clients(name, folders, tmp_path):
    """Clients at once: the same ones together give the same digits."""
    algorithm = getattr(algorithms, name)()
    settings = FederatedModule(algorithm, LocalSolver(lr=0.1), client_trainer="vectorized").settings
    both = sides(folders, tmp_path, settings)
    both.remote.round(both.remote_populations[0].train)
    nodes_serve_alone(both, folders, tmp_path, settings)


def nodes_serve_alone(both, folders, states, settings):
    """After the training each node gives the run's numbers without a server, also for one client at a time."""
    wanted = torch.cat([both.measured("remote", seen) for seen in (True, False)])
    both.remote.client_trainer.keep()
    both.transport.nodes.clear()
    for name in ("anna", "ben", "carl"):
        kept = KeptTraining(folders[name], states / name, settings=settings)
        clients = kept.find([])
        together = kept.measure(clients, "test").rows()[:, :3]
        assert torch.equal(together, wanted[clients])
        alone = torch.cat([kept.measure([one], "test").rows()[:, :3] for one in clients])
        torch.testing.assert_close(alone, together, rtol=1e-6, atol=1e-6)
        said = list(kept.predict(clients, "test"))
        assert torch.equal(torch.cat([block.scores.rows()[:, :3] for block in said]), together)


# ---------------------------------------------------------------------- wrappers, clients and networks
BUDGET = {"noise_multiplier": 0.5, "clip_norm": 0.1, "delta": 1e-3, "noise_seed": 0}
LOST = Faults(0.4, "after", on_bad_client="drop")

ENCODED = {"compression_scope": "whole", "compression": TopK(0.1)}


OWN_HEADS = {"network": NormalisedMLP, "personal": ["head"], "personal_training": "alternating"}


class Case(NamedTuple):
    """A training that nodes and a simulation have to agree on."""

    algorithm: Algorithm
    settings: dict = MappingProxyType({})
    solver: dict = MappingProxyType({})
    facts: dict = MappingProxyType({})
    cohorts: tuple = ([0, 2, 3], [0, 1, 2, 3])
    per_block: int = 2


class Forgetful(MLP):
    """A hidden layer with dropout, whose draws hang on the client and the round."""

    def __init__(self, input_shape, num_outputs):
        super().__init__(input_shape, num_outputs, (7,))

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.3, self.training))


def noisy_steps(**more):
    return ExamplePrivacy(**BUDGET, sample_rate=0.5, mixture_noise=1.0, **more)


MIXTURE = FedEM(2)  # which is what nodes settle for

CASES = {
    "a bound that moves": Case(
        MIXTURE, {"privacy": ClientPrivacy(0.5, delta=1e-3, adaptive=True, clip_count_noise=5.0, noise_seed=0)}
    ),
    "noise at clients": Case(MIXTURE, {"privacy": LocalPrivacy(**BUDGET)}),
    "noisy steps": Case(MIXTURE, {"privacy": noisy_steps()}),
    "codecs both ways": Case(MIXTURE, ENCODED | {"downlink_compression": QSGD()}),
    "EF21": Case(MIXTURE, ENCODED | {"compression_feedback": "ef21"}),
    "an attack": Case(
        MIXTURE,
        {"robust_aggregation": CenteredClipping(0.1, 2), "attack": Gaussian()},
        facts={"attackers": torch.tensor([1])},
    ),
    "FedBN": Case(MIXTURE, {"batch_norm": "local", "network": NormalisedMLP}),
    "own heads": Case(MIXTURE, OWN_HEADS | {"personal_epochs": 2, "personal_lr": 0.2}),
    "own heads beside codecs": Case(SCAFFOLD(), OWN_HEADS | ENCODED),
    "fine-tuned serving": Case(MIXTURE, {"serving": FineTuning(2, 0.2)}),
    "fine-tuned own heads": Case(MIXTURE, OWN_HEADS | {"serving": FineTuning(2, 0.2, "head")}),
    "averaged statistics": Case(MIXTURE, {"network": NormalisedMLP}),
    "weights by chances": Case(MIXTURE, {"faults": Faults(0.4, "after", average="importance", commits="always")}),
    "too many are asked": Case(MIXTURE, {"faults": Faults(over_selection=0.3, compute_mean=1.0, deadline=2.0)}),
    "three at once": Case(
        SCAFFOLD(),
        ENCODED
        | {"compression": None, "downlink_compression": QSGD(), "privacy": LocalPrivacy(**BUDGET), "faults": LOST},
    ),
    "a start by clustering": Case(FedEM(2, start=Clustering(2))),
    "two phases": Case(UCFL(warmup_rounds=0), {"faults": LOST}),
    "models of others": Case(FedFOMO(num_neighbours=1), {"faults": LOST}),
    "turns": Case(MixtureADMM(form="gauss_seidel"), ENCODED, per_block=1),
    # clients
    "drawn by size": Case(MIXTURE, cohorts=([2, 0, 2, 2], [3, 3, 1, 3]), facts={"sampling_probability": 0.5}),
    "stragglers": Case(MIXTURE, solver={"straggler_fraction": 0.6, "local_epochs": 3}),
    "rates that fall": Case(SCAFFOLD(), solver={"schedule": "cosine", "adapt_lr": 0.3}),
    "a block for each": Case(FedFOMO(), per_block=1, solver={"optimizer": "adam", "momentum": 0.0}),
    # networks
    "hidden layers": Case(UCFL(warmup_rounds=0), {"network": Forgetful}),
    "frozen layers": Case(MIXTURE, {"network": partial(MLP, hidden_sizes=(7,)), "trainable": "head"}),
    "adapters": Case(MIXTURE, {"network": partial(MLP, hidden_sizes=(7,)), "lora_rank": 2}),
}


@pytest.mark.parametrize("name", CASES)
def test_nodes_equal_the_simulation_whatever_goes_around(name, folders, tmp_path):
    check(CASES[name], folders, tmp_path)


@pytest.mark.parametrize(
    "case", [Case(MIXTURE, {"network": partial(MLP, hidden_sizes=(11,))}), Case(Ditto())], ids=["samples", "states"]
)
def test_numbers_may_begin_at_any_address(case, tmp_path):
    """Rows of 20 bytes lie elsewhere among those of all clients than among those of a node."""
    check(case, node_folders(tmp_path / "files", num_features=5, classes=10, least=40), tmp_path)


def test_models_that_begin_elsewhere_are_refused(folders, tmp_path):
    settings = FederatedModule(MIXTURE, client_trainer="sequential").settings
    both = sides(folders, tmp_path, settings)
    both.transport.nodes = make_nodes(folders, tmp_path / "other", settings=replace(settings, init_seeds=[7, 8]))
    with pytest.raises(LostNodesError, match="anna says: the models that clients start from are others here"):
        both.remote.round(both.remote_populations[0].train, [0, 1])


def check(case, folders, states):
    solver = LocalSolver(**{"lr": 0.1, "momentum": 0.9, "persist_optimizer": True} | case.solver)
    given = {"client_trainer": "sequential", "weighting": "uniform"} | case.settings
    settings = FederatedModule(case.algorithm, solver, **given).settings
    both = sides(folders, states, settings, **case.facts)
    equal_sides(both, case.cohorts, case.per_block)
    nodes_serve_alone(both, folders, states, settings)


def test_a_language_model_with_adapters(tmp_path):
    pytest.importorskip("peft")
    pytest.importorskip("transformers")
    folders = node_folders(tmp_path / "files", num_features=5)
    for path in (tmp_path / "files").rglob("*.npz"):
        tokens = {name: np.abs(leaf).astype(np.int64) % 7 for name, leaf in np.load(path).items() if name[0] == "x"}
        np.savez(path, **tokens, **{f"y{name[1:]}": np.roll(leaf, -1, axis=1) for name, leaf in tokens.items()})
    config = {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 7, "n_positions": 5}
    around = {"network": partial(HuggingFaceCausalLM, config=config, gradient_checkpointing=True), "lora_rank": 2}
    facts = {"input_type": "int64", "label_shape": (5,), "target": Sequences(7)}
    check(Case(MIXTURE, around, facts=facts, cohorts=([0, 1, 2, 3],)), folders, tmp_path)


def test_a_number_that_was_cut_out_of_a_table_goes_as_its_bytes():
    """It is contiguous, and keeps the stride of the table: so do the weights of masked messages."""
    number = torch.arange(206.0).view(2, 103)[1:, 5]
    assert (number.shape, number.stride(), number.is_contiguous()) == ((1,), (103,), True)
    assert from_bytes(to_bytes(Packet({}, {"one": [number]}))).trees["one"][0].tolist() == [108.0]
