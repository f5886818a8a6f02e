"""FedAvg by FedJAX's simulation, clients at once where it does so by itself."""

# mypy: ignore-errors

import sys
from typing import Any

import fedjax
import haiku as hk
import jax
import numpy as np
from fedjax.algorithms import fed_avg

file, workload, rounds, lr, batch_size = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:6])
data = np.load(file)
x = data["x"] if workload == "logistic" else data["x"].transpose(0, 2, 3, 1)
ends = data["sizes"].cumsum()[:-1]
clients = dict(enumerate(zip(np.split(x, ends), np.split(data["y"], ends), strict=True)))
held = {str(name): {"x": inputs, "y": labels} for name, (inputs, labels) in clients.items()}


def forward(batch: Any) -> Any:
    """The network of the workload."""
    if workload == "logistic":
        return hk.Linear(10)(batch["x"])
    return hk.Sequential([
        hk.Conv2D(16, 5, padding="VALID"), jax.nn.relu, hk.MaxPool(2, 2, "VALID"),
        hk.Conv2D(32, 5, padding="VALID"), jax.nn.relu, hk.MaxPool(2, 2, "VALID"), hk.Flatten(),
        hk.Linear(78), jax.nn.relu, hk.Linear(10),
    ])(batch["x"])  # fmt: skip


network = hk.transform(forward)


def mean_loss(parameters: Any, batch: Any, rng: Any) -> Any:
    """Mean cross-entropy."""
    each = fedjax.metrics.unreduced_cross_entropy_loss(batch["y"], network.apply(parameters, rng, batch))
    return each.mean()


algorithm = fed_avg.federated_averaging(
    jax.grad(mean_loss), fedjax.optimizers.sgd(lr), fedjax.optimizers.sgd(1.0),
    fedjax.ShuffleRepeatBatchHParams(batch_size=int(batch_size), num_epochs=1, drop_remainder=False, seed=0),
)  # fmt: skip
population = fedjax.InMemoryFederatedData(held)
state = algorithm.init(network.init(jax.random.PRNGKey(0), {"x": x[:1]}))
for number in range(int(rounds)):
    keys = jax.random.split(jax.random.PRNGKey(number), len(held))
    cohort = [(name, one, key) for (name, one), key in zip(population.clients(), keys, strict=True)]
    state, _ = algorithm.apply(state, cohort)
print(float(mean_loss(state.params, {"x": x, "y": data["y"]}, None)))
