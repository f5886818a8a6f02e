"""The clients of Flower's simulation, in a module of their own: Ray's actors import it once and keep what it holds."""

# mypy: ignore-errors

import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch_workload import start

file, workload, lr, batch_size = os.environ["WORKLOAD"].split("|")  # actors have no arguments
x, y, clients, layers = start(file, workload)
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
