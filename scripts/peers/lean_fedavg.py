"""FedAvg as a lean loop of PyTorch: one model, one optimizer step in place, no frameworks."""

import sys

import numpy as np
import torch
from torch import nn

file, workload, rounds, lr, batch_size = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:6])
torch.set_num_threads(1)
torch.manual_seed(0)
with np.load(file) as data:
    x, y, sizes = torch.from_numpy(data["x"]), torch.from_numpy(data["y"]), data["sizes"].tolist()
clients = list(zip(x.split(sizes), y.split(sizes), strict=True))
linear = workload == "logistic"
model = nn.Linear(x.shape[1], 10) if linear else nn.Sequential(
    nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(512, 78), nn.ReLU(), nn.Linear(78, 10),
)  # fmt: skip
loss_of = nn.CrossEntropyLoss()
parameters = list(model.parameters())
for _ in range(int(rounds)):
    start = [one.detach().clone() for one in parameters]
    total = [torch.zeros_like(one) for one in start]
    for inputs, labels in clients:
        with torch.no_grad():
            for one, begun in zip(parameters, start, strict=True):
                one.copy_(begun)
        for rows in torch.randperm(len(labels)).split(int(batch_size)):
            gradients = torch.autograd.grad(loss_of(model(inputs[rows]), labels[rows]), parameters)
            with torch.no_grad():
                for one, gradient in zip(parameters, gradients, strict=True):
                    one.sub_(gradient, alpha=lr)
        with torch.no_grad():
            for one, sum_of in zip(parameters, total, strict=True):
                sum_of.add_(one, alpha=len(labels) / len(y))
    with torch.no_grad():
        for one, sum_of in zip(parameters, total, strict=True):
            one.copy_(sum_of)
with torch.no_grad():
    print(float(loss_of(model(x), y)))
