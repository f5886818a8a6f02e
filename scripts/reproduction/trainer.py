"""The trainer's reference experiments: what the shipped configurations of the synthetic data reach."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from reproduction.runs import Kept, Record, Run
from reproduction.tables import Scale, Table, accuracies, grid, wrap

__all__ = ["TABLES"]

DECILE = "test/seen/accuracy_decile"
INIT_SEEDS = [[100 * number + m for m in range(1, 4)] for number in range(10)]


class Row(NamedTuple):
    """A run of the table."""

    run: Run
    label: str
    paper: str  # accuracy / worst decile, in percent
    expected: str


def rows(scale: Scale) -> list[Row]:
    """Everything that the page reports."""
    small = (
        "--data.dataset.num_clients", "10", "--data.dataset.test_size", "20", "--trainer.max_epochs", "2",
        "--trainer.check_val_every_n_epoch", "1",
    ) if scale == "smoke" else ()  # fmt: skip

    def row(name: str, config: str, label: str, paper: str, expected: str, *arguments: str) -> Row:
        return Row(Run(f"trainer/{name}-1234", config, (*arguments, *small)), label, paper, expected)

    fresh = ("--model.solver.persist_optimizer", "false")
    official = "76.0 ± 0.4 / 70.4 ± 1.0"
    return [
        row("fedem", "synthetic_fedem", "FedEM, official initial values", "74.7 / 66.7", official),
        row("fedem_fresh", "synthetic_fedem", "FedEM, fresh optimizer per round", "", "about 72.8", *fresh),
        row("fedavg", "synthetic_fedavg", "FedAvg", "68.2 / 58.9", "68.1 ± 0.5"),
        row("fedavg_plus", "synthetic_fedavg_plus", "FedAvg+", "68.9 / 60.2", "68.9 ± 0.7"),
        row("local", "synthetic_local", "Local", "65.7 / 58.4", "66.7 ± 0.7"),
        *(
            row(
                f"fedem_init_{number}", "synthetic_fedem", f"FedEM, init seeds {seeds}", "", "",
                "--model.init_seeds", str(seeds),
            )
            for number, seeds in enumerate(INIT_SEEDS[: 2 if scale == "smoke" else None])
        ),
    ]  # fmt: skip


def runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
    """The runs of the page, whose seeds are those of the configurations."""
    return [one.run for one in rows(scale)]


def body(kept: Kept, scale: Scale, seeds: Sequence[int]) -> list[str]:
    """The table of accuracies, and the spread over initial values."""
    shown, others = [], []
    for row in rows(scale):
        record = kept.find(row.run)
        if record is not None:
            seconds = f"{record['summary']['seconds']:.0f}"
            shown.append([row.label, " / ".join(_both([record])), row.expected, row.paper, seconds])
            others += [record] if "fedem_init_" in row.run.name else []
    lines = wrap("What it costs: [speed.md](speed.md).")
    lines += ["", "## Synthetic data of the FedEM paper (published variant, seed 1234), 200 rounds", ""]
    lines += ["Test accuracy of the 300 seen clients in percent: mean / worst decile.", ""]
    lines += grid(["run", "measured", "expected", "paper", "seconds"], shown)
    return [*lines, "", *wrap(_spread(others))] if len(others) > 1 else lines


def _both(records: Sequence[Record]) -> list[str]:
    return [f"{accuracies(records, key)[0]:.2f}" for key in ("test/seen/accuracy", DECILE)]


def _spread(records: Sequence[Record]) -> str:
    means, deciles = accuracies(records), accuracies(records, DECILE)
    return (
        f"Over the {len(records)} other initialisation seeds: accuracy {statistics.mean(means):.2f} ± "
        f"{statistics.stdev(means):.2f} (range {min(means):.2f} to {max(means):.2f}), worst decile "
        f"{statistics.mean(deciles):.2f} (range {min(deciles):.2f} to {max(deciles):.2f}); expected 75.1 ± 0.8 and "
        "about 66.8. The initial values of the components decide the result, not the shuffles."
    )


TABLES = [Table("trainer", runs, body)]
