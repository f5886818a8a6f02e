"""What holds for every algorithm whose clients fit mixture weights by E-steps; one is found by its client state."""

import pytest
import torch
from federated_round import REGRESSION, Federation, distance, make_clients, make_task
from test_algorithms import SMALL, all_algorithms

from lit_fed.algorithms import DecentralizedSurrogate, DFedEM, FedEM, FedeRiCo, SurrogateOptimization
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split

STILL = LocalSolver(lr=0.0)
"""Components that do not move, so that nothing but the E-step is seen."""


def with_mixture_weights():
    """Algorithms whose clients keep a leaf `mixture`."""
    for cls in all_algorithms():
        algorithm = cls(**SMALL.get(cls.__name__, {}))
        if algorithm.participation.divided_by == "samples":
            federation = Federation(algorithm, make_clients([2, 2]), num_rounds=3, groups=torch.arange(2))
            if mixtures(federation.states):
                yield cls


def mixtures(states):
    return [leaf for path, leaf in tree.items(states) if path.endswith("mixture")]


WITH_WEIGHTS = list(with_mixture_weights())


def test_they_are_found():
    assert set(WITH_WEIGHTS) >= {FedEM, DFedEM, SurrogateOptimization, DecentralizedSurrogate}


@pytest.mark.parametrize("loss", [1.0, 1e5, 1e7, 5e9, 1e30])
@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer], ids=lambda one: one.name)
@pytest.mark.parametrize("cls", WITH_WEIGHTS, ids=lambda one: one.__name__)
def test_weights_sum_to_one_whatever_the_losses(cls, trainer, loss):
    """In float32, for labels as far away as the losses say: exp(joint - logsumexp) would lose all digits."""
    train = make_clients([5, 3], target=REGRESSION, dtype=torch.float32)
    train = Split(train.x, torch.full_like(train.y, (2 * loss) ** 0.5), train.offsets)
    task = make_task(REGRESSION, dtype=torch.float32)
    federation = Federation(cls(), train, task, STILL, trainer(), num_rounds=3, groups=torch.arange(2))
    for _ in range(3):
        federation.round()
    (found,) = mixtures(federation.states)
    assert found.dtype == torch.float32
    assert float((found.sum(-1) - 1).abs().max()) < 1e-6
    assert float(found.min()) >= 0


@pytest.mark.parametrize("loss", [1e5, 1e30])
@pytest.mark.parametrize("tracking", ["ema", "corrected_ema", "accumulated"])
def test_weights_of_federico_sum_to_one_whatever_the_losses(tracking, loss):
    train = make_clients([5, 3], target=REGRESSION, dtype=torch.float32)
    train = Split(train.x, torch.full_like(train.y, (2 * loss) ** 0.5), train.offsets)
    task = make_task(REGRESSION, dtype=torch.float32)
    federation = Federation(FedeRiCo(tracking=tracking), train, task, STILL, num_rounds=3)
    for _ in range(3):
        federation.round()
    assert float((federation.states.weights.sum(-1) - 1).abs().max()) < 1e-12


@pytest.mark.parametrize("loss", [1.0, 1e5, 1e7, 5e9, 1e30])
@pytest.mark.parametrize("cls", [FedEM, DFedEM, SurrogateOptimization, DecentralizedSurrogate])
def test_equal_components_keep_their_weights_whatever_the_losses(cls, loss):
    train = make_clients([5, 3], target=REGRESSION, dtype=torch.float32)
    train = Split(train.x, torch.full_like(train.y, (2 * loss) ** 0.5), train.offsets)
    task = make_task(REGRESSION, dtype=torch.float32, init_seeds=(5, 5, 5))
    federation = Federation(cls(), train, task, STILL, num_rounds=3)
    mixture = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.3, 0.5]])
    federation.states = federation.states._replace(**held(federation.states, mixture))
    for _ in range(3):
        federation.round()
    (found,) = mixtures(federation.states)
    assert distance(found, mixture) < 1e-6
    assert float(found[0, 2]) == 0


def held(states, mixture):
    return {"local": states.local._replace(mixture=mixture)} if hasattr(states, "local") else {"mixture": mixture}
