"""What the programs on PyTorch share: one thread, the clients' samples, and the layers of the networks."""

import numpy as np
import torch
from torch import Tensor, nn


def layers(workload: str, inputs: int, outputs: int = 10) -> list[nn.Module]:
    """Of logistic regression, or of the network for pictures."""
    if workload == "logistic":
        return [nn.Linear(inputs, outputs)]
    return [
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(512, 78), nn.ReLU(), nn.Linear(78, outputs),
    ]  # fmt: skip


def start(file: str, workload: str) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]], list[nn.Module]]:
    """Inputs and labels of all, those of each client, and the layers."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with np.load(file) as data:
        x, y, sizes = torch.from_numpy(data["x"]), torch.from_numpy(data["y"]), data["sizes"].tolist()
    return x, y, list(zip(x.split(sizes), y.split(sizes), strict=True)), layers(workload, x.shape[1])
