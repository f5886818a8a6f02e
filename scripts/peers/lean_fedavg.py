"""FedAvg as a lean loop of PyTorch: one model, one optimizer step in place, no frameworks."""

import sys

import torch
from torch import nn
from torch_workload import start

file, workload, rounds, lr, batch_size = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:6])
x, y, clients, layers = start(file, workload)
model = layers[0] if workload == "logistic" else nn.Sequential(*layers)
loss_of = nn.CrossEntropyLoss()
parameters = list(model.parameters())
for _ in range(int(rounds)):
    before = [one.detach().clone() for one in parameters]
    total = [torch.zeros_like(one) for one in before]
    for inputs, labels in clients:
        with torch.no_grad():
            for one, begun in zip(parameters, before, strict=True):
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
