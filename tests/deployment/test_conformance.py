"""Every algorithm that can be deployed gives on nodes the numbers of the simulation, bit for bit."""

from functools import partial
from typing import NamedTuple

import pytest
import torch
from fit_all import OPTIONS
from in_process import InProcess, InProcessFederation, make_nodes, node_folders, same

from lit_fed import FederatedModule, algorithms, serving
from lit_fed.clients.session import Session
from lit_fed.clients.store import ClientStore
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import ServingBlock
from lit_fed.data import ClientFolder
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.populations.build import infer_target
from lit_fed.deployment.kept import KeptTraining
from lit_fed.deployment.remote import RemoteTrainer
from lit_fed.deployment.session_facts import facts_to_json
from lit_fed.deployment.states import VersionStore
from lit_fed.errors import ConfigError
from lit_fed.rounds import FederatedRounds, InMemoryServer
from lit_fed.wrappers.compatibility import Compatibility

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
        return torch.cat([rows for _, rows in serving.measure(rounds, block, seen=seen)])[:, :3]


def deployable() -> list[str]:
    found = []
    for name in sorted(set(algorithms.__all__) - {"Algorithm"}):
        try:
            Compatibility(getattr(algorithms, name)(**OPTIONS.get(name, {})), deployed=True).check()
        except ConfigError:
            continue
        found.append(name)
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return node_folders(tmp_path_factory.mktemp("nodes"))


def sides(folders, states, settings, **changed) -> Sides:
    """Both sides of a training with these settings, before the first round; `changed` are other facts of it."""
    seen, unseen = ClientFolder(str(folders["all"])).load()
    for split in (unseen.train, unseen.val, unseen.test):
        split.first_id = seen.train.num_clients
    train = seen.train
    facts = TrainingFacts(
        tuple(train.x.shape[1:]), "float32", (), infer_target(train.y), train.num_clients, train.num_samples,
        int(train.sizes.max()), None, 4, 1024, settings.weighting or settings.algorithm.participation.weighting, 0,
        NUM_ROUNDS, None,
    )._replace(**changed)  # fmt: skip
    made = []
    for _ in range(2):
        session = Session.of(settings, facts, torch.device("cpu"))
        server = InMemoryServer(session.terms.task, session.shared, torch.device("cpu"))
        made.append(FederatedRounds(session.algorithm, session.terms, server, session.choose))
    simulated, remote = made
    simulated.store = ClientStore(partial(simulated.initial_state, train), train.num_clients)
    transport = InProcess(make_nodes(folders, states, settings=settings))
    federation = InProcessFederation(transport)
    remote_seen, remote_unseen = federation.load()
    for split in (remote_unseen.train, remote_unseen.val, remote_unseen.test):
        split.first_id = train.num_clients
    remote.store = VersionStore(train.num_clients)
    session = {"model": None, "facts": facts_to_json(facts), "val_fraction": 0.0, "data_seed": 0}
    remote.client_trainer = RemoteTrainer(federation.fleet, remote, (remote_seen, remote_unseen), session)
    return Sides(simulated, remote, (seen, unseen), (remote_seen, remote_unseen), transport)


@pytest.mark.parametrize("name", deployable())
def test_nodes_equal_the_simulation(name, folders, tmp_path):
    """Shared state, metrics, bits and what is measured, after rounds with kept optimizers and a partial cohort."""
    algorithm = getattr(algorithms, name)(**OPTIONS.get(name, {}))
    keeps = name != "FedNova"
    solver = LocalSolver(lr=0.1, momentum=0.9, persist_optimizer=keeps)
    settings = FederatedModule(algorithm, solver, client_trainer="sequential").settings
    both = sides(folders, tmp_path, settings)
    everyone = range(both.simulated.terms.num_clients)
    cohorts = [everyone] * NUM_ROUNDS if algorithm.participation.needs_all_clients else [[0, 2, 3], everyone]
    for cohort in cohorts:
        records = [
            getattr(both, which).round(population[0].train, list(cohort), per_block=2)
            for which, population in (("simulated", both.populations), ("remote", both.remote_populations))
        ]
        assert same(tree.leaves(both.simulated.shared), tree.leaves(both.remote.shared))
        assert records[0]._replace(seconds=0, client_ids=0) == records[1]._replace(seconds=0, client_ids=0)
    for seen in (True, False):
        assert torch.equal(both.measured("simulated", seen), both.measured("remote", seen))
    nodes_serve_alone(both, folders, tmp_path, settings)


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
        together = kept.measure(clients, "test")[:, :3]
        assert torch.equal(together, wanted[clients])
        alone = torch.cat([kept.measure([one], "test")[:, :3] for one in clients])
        torch.testing.assert_close(alone, together, rtol=1e-6, atol=1e-6)
        said = list(kept.predict(clients, "test"))
        assert torch.equal(torch.cat([block.rows[:, :3] for block in said]), together)
