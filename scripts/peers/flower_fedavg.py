"""FedAvg by Flower's simulation, with one actor of Ray."""

# mypy: ignore-errors

import sys

import torch
from flower_clients import app, clients, network, x, y
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

rounds = int(sys.argv[3])
server_app = ServerApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """All clients in every round, no evaluation."""
    everybody = len(clients)
    strategy = FedAvg(
        fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=everybody, min_available_nodes=everybody
    )
    result = strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=rounds)
    network.load_state_dict(result.arrays.to_torch_state_dict())


run_simulation(
    server_app, app, num_supernodes=len(clients),
    backend_config={"init_args": {"num_cpus": 1}, "client_resources": {"num_cpus": 1, "num_gpus": 0}},
)  # fmt: skip
with torch.no_grad():
    print(float(nn.functional.cross_entropy(network(x), y)))
