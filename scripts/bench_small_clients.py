"""Rows of bench.py about convolutional networks with clients of about a hundred images, and where their time goes."""

import json
import resource
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from bench_networks import Case, Noise
from measuring import PlainLoop, in_process
from textbook import Textbook, index_batches
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile

from lit_fed import FederatedModule
from lit_fed.algorithms import FedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.products import fast_products
from lit_fed.models import FedEMCNN, LeNet5
from lit_fed.system.machine import keep_freed_memory

NETWORKS = {"FedEMCNN": FedEMCNN, "LeNet5": LeNet5}
PRECISIONS = ("float32", "bf16-mixed")
SGD = {"momentum": 0.9, "weight_decay": 5e-4}
TURNS = 3


def small_clients() -> dict[str, float]:
    """FedEM, 32 clients × 120 images of 3×32×32, M = 3, batch 128, momentum kept: CPU seconds of one round.

    The textbook takes its batches from tensors in memory. Each program has processes of its own, in turn, with the C
    library as it is by default: what lit_fed makes of the allocator is not given to the textbook. `passes alone` are a
    forward and a backward pass of every model for every client, one after another, and nothing else: what a program
    with these passes cannot be faster than.
    """
    row: dict[str, float] = {}
    for network in NETWORKS:
        names = ("textbook", *(name for one in PRECISIONS for name in (one, f"{one}, passes alone")))
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for _ in range(TURNS):
            for name, measured in seconds.items():
                measured.append(in_process("bench_small_clients", f"small_clients_child({network!r}, {name!r})")["s"])
        found = {name: float(np.median(measured)) for name, measured in seconds.items()}
        row |= {f"{network}, {name}": value for name, value in found.items()}
        row |= {f"{network}, textbook / {name}": found["textbook"] / found[name] for name in names[1:]}
    return row


def small_clients_child(network: str, name: str) -> None:
    """Print the CPU seconds of the third round: in the first clients have no momentum, and memory is taken anew."""
    torch.set_num_threads(1)
    one_round = rounds_of(network, name, num_clients=32)
    one_round()
    one_round()
    start = time.process_time()
    one_round()
    print(json.dumps({"s": time.process_time() - start}))


def rounds_of(network: str, name: str, num_clients: int) -> Callable[[], None]:
    """A round of the textbook, or of lit_fed in a precision, or its `passes alone`."""
    case = Case(NETWORKS[network], Noise((3, 32, 32), num_clients, 120, 10), 128)
    precision, _, alone = name.partition(", ")
    if alone:
        return partial(passes, case, bf16=precision == "bf16-mixed")
    if name == "textbook":
        build = partial(case.network, case.data.input_shape, case.data.target.num_outputs)
        book = Textbook(
            build, case.data.seen.train, batch_size=128, batches=index_batches, sgd=SGD, keep_momentum=True
        )  # fmt: skip
        return book.round
    solver = LocalSolver(lr=0.1, persist_optimizer=True, **SGD)
    module = FederatedModule(FedEM(), solver, case.network)
    return PlainLoop(case.data, module, bf16=name == "bf16-mixed").round


def passes(case: Case, *, bf16: bool) -> None:
    """Gradients of three models on the samples of every client, in the layout and with the products of lit_fed."""
    keep_freed_memory(torch.device("cpu"))
    data = case.data.seen.train
    network = case.network(case.data.input_shape, case.data.target.num_outputs).to(memory_format=torch.channels_last)
    parameters = list(network.parameters())
    for client in map(data.client, range(data.num_clients)):
        x, y = client.all_x.to(memory_format=torch.channels_last), client.all_y
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16, cache_enabled=False), fast_products():
                outputs = network(x)
            torch.autograd.grad(cross_entropy(outputs.float(), y), parameters)


PARTS = {
    "convolutions, forward": ("mkldnn_convolution",),
    "convolutions, backward": ("convolution_backward",),
    "dense layers": ("_linear_pointwise", "addmm", "mm"),
    "pooling": ("max_pool2d_with_indices", "max_pool2d_with_indices_backward"),
    "activations and losses": (
        "threshold_backward", "clamp_min", "_log_softmax", "_log_softmax_backward_data", "nll_loss_forward",
        "nll_loss_backward",
    ),
    "optimizer, sums of messages": ("add", "add_", "addcmul", "mul", "sum", "div"),
    "copies and casts": ("copy_", "cat", "index", "index_select", "_index_put_impl_", "fill_", "zero_"),
}  # fmt: skip
"""Which of torch's operations are counted together."""


def where_time_goes() -> dict[str, float]:
    """The same with FedEMCNN and 16 clients: percent of a round's time by operation, and page faults.

    Measured with torch's profiler, whose own time is in the rest; each precision has a process of its own.
    """
    row: dict[str, float] = {}
    for name in ("textbook", *PRECISIONS):
        found = in_process("bench_small_clients", f"where_time_goes_child({name!r})")
        row |= {f"{name}: {part}": value for part, value in found.items()}
    return row


def where_time_goes_child(name: str) -> None:
    """Print the parts of a third round, and the page faults of a second."""
    torch.set_num_threads(1)
    one_round = rounds_of("FedEMCNN", name, num_clients=16)
    one_round()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    one_round()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        one_round()
    print(json.dumps(shares(profiled.key_averages()) | {"page faults": float(faults)}))


def shares(events: Any) -> dict[str, float]:
    """Percent of the time of each part, of events with a name and a time of their own."""
    spent = {one.key.split("::")[-1]: 0.0 for one in events}
    for one in events:
        spent[one.key.split("::")[-1]] += one.self_cpu_time_total
    total = sum(spent.values())
    found = {part: 100 * sum(spent.get(name, 0.0) for name in names) / total for part, names in PARTS.items()}
    return found | {"the rest": 100 - sum(found.values())}


SMALL_CLIENT_ROWS = {one.__name__: one for one in (small_clients, where_time_goes)}
