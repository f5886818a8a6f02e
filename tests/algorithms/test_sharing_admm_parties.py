import math

import pytest
import torch
from federated_round import BINARY, REGRESSION, make_clients, make_context, make_parties, make_task

from lit_fed.algorithms.sharing_admm import (
    _check_same_rows,
    _holds_labels,
    _label_loss,
    _labels_of,
    _party_features,
    label_prox,
)
from lit_fed.errors import ConfigError

LABELS, FIT = torch.tensor([0.0, 1.0, 1.0]).double(), torch.tensor([0.5, -0.5, 2.0]).double()


def context(target=BINARY, **fields):
    return make_context(make_task(target), num_clients=2, total_samples=10, most_samples=5, **fields)


def test_parties_have_the_same_rows():
    _check_same_rows(context(), "Mine")
    with pytest.raises(ConfigError, match="Mine needs the same training rows at each party, and of 2 parties"):
        _check_same_rows(context()._replace(total_samples=9), "Mine")


def test_party_0_holds_labels_and_constant():
    train, ctx = make_parties(make_clients([2, 3])), context()
    first, second = (train.client(one) for one in range(2))
    assert bool(_holds_labels(first))
    assert not bool(_holds_labels(second))
    assert torch.equal(_labels_of(ctx, first), first.y.double())
    assert not _labels_of(ctx, second).any()
    assert _party_features(ctx, first)[:, -1].tolist() == [1] * 5
    assert not _party_features(ctx, second)[:, [0, 1, 4]].any()
    assert torch.equal(_party_features(ctx, second)[:, 2:4], second.x[:, 2:])


def test_losses_of_labels():
    assert _label_loss(context(REGRESSION), "hinge", FIT, LABELS).tolist() == [0.125, 1.125, 0.5]
    assert _label_loss(context(), "hinge", FIT, LABELS).tolist() == [1.5, 1.5, 0]
    assert float(_label_loss(context(), "logistic", FIT, LABELS)[0]) == pytest.approx(math.log1p(math.exp(0.5)))


@pytest.mark.parametrize("kind", ["regression", "hinge", "logistic"])
def test_proximal_steps_of_labels(kind):
    """No move in either direction makes the objective smaller."""
    ctx, loss = context(REGRESSION if kind == "regression" else BINARY), "hinge" if kind == "regression" else kind
    found = label_prox(ctx, loss, FIT, LABELS, 0.7)

    def objective(s):
        return _label_loss(ctx, loss, s, LABELS) + 0.35 * (s - FIT).square()

    for step in (-1e-3, 1e-3, -0.5, 0.5):
        assert (objective(found + step) > objective(found)).all()
