"""bf16-mixed against float32, a check of our own: no paper has it."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.runs import Kept, Run
from reproduction.settings import brief, stand_in
from reproduction.tables import Method, Scale, Setting, Table, grid, wrap

__all__ = ["PRECISIONS", "TABLES"]

PRECISIONS = {"float32": "32-true", "bf16": "bf16-mixed"}
methods = tuple(Method(name, name, ("--trainer.precision", value)) for name, value in PRECISIONS.items())
less = ("--model.network", "FedEMCNN", "--trainer.max_epochs", "20", "--data.clients_per_round", "60")
REDUCED = Setting("precision", "MNIST by writer", "mnist_by_writer", methods, less)
few_writers = (
    *stand_in("[1,28,28]", 10, owners=5),
    *brief,
    "--model.network",
    "LeNet5",
    "--data.clients_per_round",
    "3",
)
SETTINGS = {"smoke": REDUCED._replace(arguments=few_writers), "reduced": REDUCED, "paper": REDUCED}


def runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs in both precisions."""
    return SETTINGS[scale].runs(seeds)


def body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """A row for each seed."""
    rows = []
    for seed in seeds:
        both = kept.all(SETTINGS[scale].runs([seed]))
        if len(both) == len(PRECISIONS):
            accuracy = [100 * one["summary"]["test/seen/accuracy"] for one in both]
            seconds = [f"{one['summary']['seconds']:.0f}" for one in both]
            figures = [f"{value:.2f}" for value in accuracy]
            rows.append([str(seed), *figures, f"{accuracy[1] - accuracy[0]:+.2f}", *seconds])
    head = ["seed", "float32", "bf16-mixed", "difference in points", "seconds, float32", "seconds, bf16-mixed"]
    text = "FedEM with FedEMCNN on MNIST's writers, 60 clients per round, 20 rounds: test accuracy of seen clients."
    return [*wrap(text), "", *grid(head, rows)]


TABLES = [
    Table("precision", runs, body),
]
