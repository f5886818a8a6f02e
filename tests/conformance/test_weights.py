"""What a client weighs, in every algorithm: samples without any label count nowhere, and positions as samples do."""

import pytest
import torch
from federated_round import Tagger, distance
from test_algorithms import SMALL, after_rounds, all_algorithms, exempt

from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Sequences
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError

pytestmark = pytest.mark.every_combination

DRAWS = {
    "FedFOMO": "which samples are held out is drawn by their number",
    "UCFL": "which samples are in a batch of the similarity is drawn by their number",
}
"""Algorithms whose draws differ if there are other samples, too."""

ALL = {
    cls.__name__: cls for cls in all_algorithms()
    if "sequences" not in exempt(cls) and cls().participation.divided_by == "samples"
}  # fmt: skip
LENGTH = 4
TARGET = Sequences(3, ignore_index=-100)


def clients(y, kept=slice(None), sizes=(6, 9)):
    """Two clients with these labels [15, 4], or with some of their samples."""
    x = torch.randint(7, y.shape, generator=torch.Generator().manual_seed(4))
    owner = torch.arange(2).repeat_interleave(torch.tensor(sizes))[kept]
    return Split(x[kept], y[kept], torch.tensor([0, int((owner == 0).sum()), len(owner)]))


def rounds_of(name, train, trainer, *, target=TARGET, **options):
    """Models, predictions and metrics after two rounds in steps of whole local sets, the second with one client."""
    algorithm = ALL[name](**SMALL.get(name, {}))
    options = {"target": target, "network": Tagger, "batch_size": 0, "solver": LocalSolver(lr=0.2)} | options
    found = after_rounds(algorithm, train, 2, cohorts=[[0, 1], [0]], trainer=trainer, **options)
    test = clients(torch.zeros(4, LENGTH, dtype=torch.int64), sizes=(2, 2))
    return tree.models(found.shared), found.predictions(test), torch.tensor(list(found.metrics.values()))


@pytest.mark.parametrize("name", [name for name in ALL if name not in DRAWS])
def test_samples_without_a_label_count_nowhere(name, client_trainer):
    """Three of six samples of a client and one of nine of another: the same rounds as without these."""
    fills_in = ALL[name]().participation.fills_in_absent
    aggregation = "stale_fill" if fills_in else "renormalised"
    y = torch.randint(3, (15, LENGTH), generator=torch.Generator().manual_seed(3))
    y[[0, 2, 5, 11]] = -100
    y[1, 1:] = -100
    kept = (y != -100).any(1)
    try:
        whole = rounds_of(name, clients(y), client_trainer, aggregation=aggregation)
    except ConfigError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "labels -100 are ignored; give another" in refused
        return
    alone = rounds_of(name, clients(y, kept), client_trainer, aggregation=aggregation)
    assert distance(whole, alone) < 1e-12


@pytest.mark.parametrize("name", ALL)
def test_positions_of_samples_of_one_length_weigh_as_samples(name, client_trainer):
    y = torch.randint(3, (15, LENGTH), generator=torch.Generator().manual_seed(3))
    options = {"target": Sequences(3), "total_positions": 15 * LENGTH}
    a, b = (
        rounds_of(name, clients(y), client_trainer, weighting=weighting, **options)
        for weighting in ("samples", "positions")
    )
    assert distance(a, b) < 1e-12
