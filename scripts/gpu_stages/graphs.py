"""What a CUDA graph of the local step would gain: the step as it is, and the same step recorded and replayed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from gpu_stages.cells import Cells
from gpu_stages.workload import Size, federation, pictures, precision
from lit_fed.core import tree
from lit_fed.core.types import Batch

__all__ = ["graphs"]


def graphs(cells: Cells, device: torch.device, size: Size) -> None:
    """A cell for each algorithm and network."""
    for network in ("LeNet5", "FedEMCNN"):
        for algorithm in ("FedAvg", "FedEM"):
            for kind in ("tf32", "bf16"):
                name = f"{algorithm}, {network}, {kind}"
                cells.measure("graphs", name, lambda row=(algorithm, network, kind): both(*row, device, size), needs=5)


def both(algorithm: str, network: str, kind: str, device: torch.device, size: Size, times: int = 100) -> dict[str, Any]:
    """Milliseconds of a local step of all models, eager and replayed, and how far the results lie apart.

    Without CUDA there is nothing to record, so only the eager step is timed.
    """
    train = pictures(size._replace(clients=2, samples=3 * size.batch), device)
    made = federation(algorithm, network, train, "sequential", batch=size.batch)
    ctx, shared = made.context("train"), made.shared
    models = shared.models
    optimizer = ctx.solver.init(models)
    rows = torch.arange(size.batch, device=device)
    weight = torch.full((size.batch, len(next(iter(models.parameters.values())))), 0.5)
    weight = weight.to(device)
    batch = Batch(train.x[rows], train.y[rows], rows, torch.ones(size.batch, device=device))

    def step() -> Any:
        return ctx.solver.step_without_loss(ctx.task, models, optimizer, batch, ctx.lr, weight=weight)

    with precision(kind, device):
        eager = _milliseconds(step, device, times)
        if device.type != "cuda":
            return {"eager": eager}
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                expected = step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = step()
        replayed = _milliseconds(graph.replay, device, times)
        expected = step()
    apart = max(float((a - b).abs().max()) for a, b in zip(tree.leaves(expected), tree.leaves(recorded), strict=True))
    return {"eager": eager, "replayed": replayed, "apart": float(f"{apart:.2g}")}


def _milliseconds(function: Callable[[], Any], device: torch.device, times: int) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(3):
        function()
    wait()
    started = time.perf_counter()
    for _ in range(times):
        function()
    wait()
    return round(1000 * (time.perf_counter() - started) / times, 3)
