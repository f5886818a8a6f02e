"""The clients of Flower's simulation, in a module of their own: Ray's actors import it once and keep what it holds."""

# mypy: ignore-errors

import os

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

file, workload, lr, batch_size = os.environ["WORKLOAD"].split("|")  # actors have no arguments
torch.set_num_threads(1)
torch.manual_seed(0)
with np.load(file) as data:
    x, y, sizes = torch.from_numpy(data["x"]), torch.from_numpy(data["y"]), data["sizes"].tolist()
clients = list(zip(x.split(sizes), y.split(sizes), strict=True))
layers = [nn.Linear(x.shape[1], 10)] if workload == "logistic" else [
    nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    nn.Linear(512, 78), nn.ReLU(), nn.Linear(78, 10),
]  # fmt: skip
network = nn.Sequential(*layers)
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of SGD."""
    inputs, labels = clients[context.node_config["partition-id"]]
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(network.parameters(), float(lr))
    for rows in torch.randperm(len(labels)).split(int(float(batch_size))):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    answer = {"arrays": ArrayRecord(network.state_dict()), "metrics": MetricRecord({"num-examples": len(labels)})}
    return Message(RecordDict(answer), reply_to=message)
