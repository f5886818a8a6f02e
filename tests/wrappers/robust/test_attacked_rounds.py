"""What attackers come to where nothing stands against them: three of ten clients, each of whom has two classes."""

import functools

import pytest
import torch

from lit_fed import IFCA, FedAvg, FedEM, Linear, LocalSolver, Multiclass, Task, rounds, serving
from lit_fed.core import tree
from lit_fed.data import Digits, Shards, build_populations
from lit_fed.data.poison import Backdoor, LabelFlip
from lit_fed.data.poison.base import poisoned
from lit_fed.wrappers.robust.attacks import ALIE, IPM, Gaussian, Mimic, ModelReplacement, SignFlip
from lit_fed.wrappers.robust.wrapper import RobustAverage

TARGET = Multiclass(10)
ATTACKERS = torch.arange(3)


@functools.cache
def clients(poison=None):
    seen, _ = build_populations(Digits(), Shards(), 10, seed=0)
    if poison is None:
        return seen
    seen = seen._replace(attackers=ATTACKERS)
    return poisoned(seen, poison.prepare(seen, TARGET, "Digits"), 0, repr(poison))


def trained(attack=None, poison=None, algorithm=None, attackers=ATTACKERS, num_rounds=8, **options):
    seen, algorithm = clients(poison), algorithm or FedAvg()
    algorithm = algorithm if attack is None else RobustAverage(algorithm, None, attack)
    mask = torch.zeros(10, dtype=torch.bool).index_fill(0, attackers, True)
    task = Task.create(lambda: Linear((1, 8, 8), 10), TARGET)
    federation = rounds.start(
        algorithm, task, seen.train, solver=LocalSolver(lr=0.2), attackers=mask, num_rounds=8, batch_size=32, **options
    )
    for _ in range(num_rounds):
        federation.round(seen.train)
    return federation


@functools.cache
def honest_accuracy(attack=None, poison=None, algorithm=None):
    federation, seen = trained(attack, poison, algorithm), clients()
    scores = serving.evaluate(federation, seen.test, seen.train)
    return float(scores.hits[3:].sum() / scores.samples[3:].sum())


@pytest.mark.parametrize(
    ("attack", "poison", "most"),
    [
        (SignFlip(3.0), None, 0.3),
        (Gaussian(1.0), None, 0.4),
        (ALIE(), None, 0.84),
        (ALIE(3.0), None, 0.2),
        (IPM(3.0), None, 0.2),
        (Mimic(3), None, 0.75),
        (ModelReplacement(), None, 0.5),
        (None, LabelFlip(), 0.75),
        (None, Backdoor(), 0.8),
    ],
    ids=str,
)
def test_honest_clients_suffer_from_every_attack(attack, poison, most):
    assert honest_accuracy() > 0.86
    assert honest_accuracy(attack, poison) < most


@pytest.mark.parametrize("algorithm", [FedEM(3), IFCA(3)], ids=lambda one: type(one).__name__)
def test_clients_of_several_models_suffer_too(algorithm):
    assert honest_accuracy(algorithm=algorithm) > 0.8
    assert honest_accuracy(SignFlip(3.0), algorithm=algorithm) < honest_accuracy(algorithm=algorithm) - 0.05
    assert honest_accuracy(Gaussian(1.0), algorithm=algorithm) < honest_accuracy(algorithm=algorithm) - 0.2


@pytest.mark.parametrize("attack", [SignFlip(3.0), Gaussian(), ALIE(), IPM(), Mimic(), ModelReplacement()], ids=str)
def test_without_attackers_there_is_no_attack(attack):
    attacked = trained(attack, attackers=ATTACKERS[:0], num_rounds=3).server.shared.inner
    plain = trained(num_rounds=3).server.shared
    assert all(torch.equal(one, two) for one, two in zip(tree.leaves(attacked), tree.leaves(plain), strict=True))


def test_both_client_trainers_meet_the_same_attack():
    found = [trained(Gaussian(), client_trainer=one, num_rounds=2) for one in ("sequential", "vectorized")]
    for one, two in zip(*(tree.leaves(federation.server.shared.inner) for federation in found), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
