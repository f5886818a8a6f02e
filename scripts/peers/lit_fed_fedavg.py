"""FedAvg by lit_fed's library API, with its trainer and its folder of a run."""

import sys

import numpy as np
import torch
from torch import nn

from lit_fed import FedAvg, FederatedDataModule, FederatedModule, FederatedTrainer, LocalSolver

file, workload, rounds, lr, batch_size = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:6])
torch.set_num_threads(1)
data = np.load(file)
ends = data["sizes"].cumsum()[:-1]
clients = dict(enumerate(zip(np.split(data["x"], ends), np.split(data["y"], ends), strict=True)))


def network(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """The network of the workload."""
    if workload == "logistic":
        return nn.Linear(input_shape[0], num_outputs)
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, 78), nn.ReLU(), nn.Linear(78, num_outputs),
    )  # fmt: skip


module = FederatedModule(FedAvg(), LocalSolver(lr=lr, local_epochs=1, schedule="constant"), network=network)
held = FederatedDataModule.from_clients(
    {str(name): client for name, client in clients.items()}, batch_size=int(batch_size), test_fraction=0.0
)
trainer = FederatedTrainer(accelerator="cpu", max_epochs=int(rounds), limit_val_batches=0, enable_progress_bar=False)
trainer.fit(module, datamodule=held)
models = module.shared.models
with torch.no_grad():
    outputs = module.federation.terms.task.outputs(models, torch.from_numpy(data["x"]))
    print(float(nn.functional.cross_entropy(outputs[:, 0], torch.from_numpy(data["y"]))))
