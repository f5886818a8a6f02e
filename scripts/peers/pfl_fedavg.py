"""FedAvg by pfl-research's simulation."""

# mypy: ignore-errors

import sys
from itertools import cycle
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch_workload import start

file, workload, rounds, lr, batch_size = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:6])
x, y, clients, layers = start(file, workload)
held = [Dataset(client) for client in clients]


class Net(nn.Sequential):
    """The network of the workload, with what pfl asks of it."""

    def loss(self, x: Any, y: Any, is_eval: bool = False) -> Any:
        """Mean cross-entropy."""
        return nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Any, y: Any, is_eval: bool = True) -> Any:
        """The loss, weighted by samples."""
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


network = Net(*layers)
order = cycle(range(len(held)))
users = FederatedDataset(lambda user: held[user], lambda: next(order))
model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), 1.0))
params = NNAlgorithmParams(
    central_num_iterations=int(rounds), evaluation_frequency=10**6, train_cohort_size=len(held), val_cohort_size=0
)
train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=lr, local_batch_size=int(batch_size))
backend = SimulatedBackend(training_data=users, val_data=users)
FederatedAveraging().run(params, backend, model, train, NNEvalHyperParams(local_batch_size=None))
with torch.no_grad():
    print(float(network.loss(x, y)))
