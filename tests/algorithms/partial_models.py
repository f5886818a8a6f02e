"""What tests of algorithms with a part of the model at each client share: arrays of both parts, and a small adapter."""

import torch
from federated_round import make_clients, make_task, small_mlp
from torch import nn

from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.start import choose_trained
from lit_fed.models import Network

SIZES = [5, 2, 8]
SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}]


class Adapted(Network):
    """A frozen linear layer with a low-rank adapter under a trained output layer."""

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(input_shape[0], 3).requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(2, input_shape[0]))
        self.lora_B = nn.Parameter(torch.zeros(3, 2))
        self.head = nn.Linear(3, num_outputs)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x) + x @ self.lora_A.T @ self.lora_B.T))


def settings(network=small_mlp, epochs=1, **solver):
    """Fields of a federation."""
    work = {"solver": LocalSolver(local_epochs=epochs, **solver), "batch_size": 2}
    return work | {"task": make_task(network=network), "train": make_clients(SIZES)}


def unseen_clients():
    return make_clients([6, 3], seed=2, first_id=3)


def arrays(models, one=None):
    """Parameters of models [1, ...], of client `one` or without a client axis."""
    leaves = models.parameters if one is None else tree.index(models.parameters, one)
    return [leaf[0].numpy() for leaf in leaves.values()]


def frozen_but(*trained, network=small_mlp):
    """The task with all other leaves frozen."""

    def build(*sizes):
        built = network(*sizes)
        choose_trained(built, trained)
        return built

    return make_task(network=build)
