"""Small clients with three classes and a network with one hidden layer, for algorithms that need classes."""

import numpy as np
import torch
from federated_round import MULTICLASS, Federation, as_arrays, make_clients, make_task

from lit_fed.core.local_solver import LocalSolver
from lit_fed.models import MLP

SIZES = [5, 2, 8]
COHORTS = [[0, 1, 2], [1], [0, 2]]
HEAVY = {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05}


def hidden(shape, num_outputs):
    """The network of `references.two_layers`."""
    return MLP(shape, num_outputs, (5,))


def samples(sizes=SIZES, **options):
    """Clients with three classes, none of which is everywhere."""
    return make_clients(sizes, target=MULTICLASS, **options)


def unseen_samples():
    return samples([6, 3], seed=2, first_id=len(SIZES))


def started(algorithm, trainer=None, *, epochs=1, solver=HEAVY, train=None, **options):
    """A federation before its first round, and the samples of each client."""
    train = samples() if train is None else train
    task = options.pop("task", None) or make_task(MULTICLASS, network=hidden)
    options = {"solver": LocalSolver(local_epochs=epochs, **solver), "batch_size": 3, "trainer": trainer} | options
    federation = Federation(algorithm, train, task, **options)
    return federation, [(x, y.astype(int)) for x, y in as_arrays(train)]


def close(found, expected, atol=1e-10):
    found = found.numpy() if isinstance(found, torch.Tensor) else np.asarray(found)
    np.testing.assert_allclose(found, np.asarray(expected), rtol=0, atol=atol)
