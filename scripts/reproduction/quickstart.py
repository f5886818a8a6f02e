"""README's table: the quickstart over divisions and training seeds together."""

import statistics

from reproduction.markdown import Part, grid
from reproduction.settings import runs_of, some_settings
from reproduction.tables import Results, Table, accuracies

POPULATIONS = {
    "seen clients (in training)": "test/seen/accuracy", "unseen clients (join later)": "test/unseen/accuracy",
}  # fmt: skip


def rows(found: Results) -> list[list[str]]:
    """A row for each method: its label, and mean ± standard deviation of the accuracy of seen and unseen clients."""
    setting = some_settings("quickstart", found.scale)["quickstart"]
    records = {one.label: found.of(setting, one.name) for one in setting.methods}
    return [
        [label, *(spread(accuracies(some, key)) for key in POPULATIONS.values())] for label, some in records.items()
    ]


def spread(values: list[float]) -> str:
    """Mean ± standard deviation to one decimal."""
    if not values:
        return "not run"
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def lowest(found: Results) -> list[list[str]]:
    """A row for each method: its label, and the lowest accuracy of seen clients over the seeds."""
    setting = some_settings("quickstart", found.scale)["quickstart"]
    records = {one.label: found.of(setting, one.name) for one in setting.methods}
    return [[label, f"{min(accuracies(some)):.1f}" if some else "not run"] for label, some in records.items()]


def body(found: Results) -> dict[str, Part]:
    """The table, with the lowest accuracy over seeds."""
    table = [[*row, low] for row, (_, low) in zip(rows(found), lowest(found), strict=True)]
    return {"table": grid(["method", *POPULATIONS, "lowest seed, seen"], table)}


TABLES = [Table("quickstart", runs_of(lambda scale: some_settings("quickstart", scale).values()), body)]
