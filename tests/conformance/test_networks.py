"""Every algorithm with every kind of network: it works in both client trainers, or it is refused with a reason.

An algorithm that is new is found, and runs; where it cannot, `REFUSED` has to say why.
"""

from functools import partial

import pytest
import torch
from federated_round import distance, same_bits
from network_cases import CASES, EXACT, LINEAR_ALONE, SIZES, UNSEEN, Dropped, Normalised, Smooth, federation, images
from test_algorithms import everything, finite

from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.errors import ConfigError
from lit_fed.models import LeNet5, Linear

pytestmark = pytest.mark.every_combination

LINEAR = "trains linear models, and .* is no affine map .* to train; give --model.network Linear"
ONE_FUNCTION = (
    "an exact local solve minimises one function of the parameters.* choose a network without these, or the in"
)
OWN_LOSS = (
    r"takes the gradient of the mean loss .* with the BatchNorm of Normalised a sample has no loss of its own.*; "
)
ONE_BY_ONE = dict.fromkeys(
    ["L2SGDPlus", "L2SGDPlus full"], "needs the gradient of each sample by itself.*; choose a --m"
)
REFUSED = {
    "LeNet5": dict.fromkeys(EXACT, r"needs the Hessian of 15031 parameters; it takes up to 2048: choose a smaller")
    | {"SharingADMM": r"LeNet5 reads images .*, the samples are \[256\]"},
    "BatchNorm": dict.fromkeys(EXACT, ONE_FUNCTION)
    | ONE_BY_ONE
    | {
        "SCAFFOLD I": "model.algorithm.option I " + OWN_LOSS + "choose option II",
        "FedProx inexactness": "model.algorithm.inexactness " + OWN_LOSS + "choose null",
    },
    "dropout": dict.fromkeys(EXACT, ONE_FUNCTION)
    | ONE_BY_ONE
    | {"PerFedAvg hessian_free": "variant is hessian_free, .* dropout in Dropped .*; choose exact or first_order"},
}
"""Reasons for which an algorithm does not take a network, by kind of network."""

every_case = pytest.mark.parametrize("case", CASES)
BF16 = partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=False)


def refused(case, kind, network, **options):
    """Whether an algorithm refuses a network, for the reason that is told, before anything is trained."""
    reason = REFUSED[kind].get(case, LINEAR if case in LINEAR_ALONE else None)
    if reason is None:
        return False
    for trainer in (SequentialTrainer(), VectorizedTrainer()):
        with pytest.raises(ConfigError, match=reason):
            federation(CASES[case], network, trainer, **options)
    return True


def after_rounds(run, unseen=None, rounds=2):
    """All that some rounds leave; one of the clients has a single sample, where clients have samples of their own."""
    assert 1 in run.train.sizes.tolist() or run.algorithm.participation.divided_by == "features"
    for _ in range(rounds):
        run.round()
    shown = everything(run, unseen)
    assert finite(shown)
    return shown


@every_case
def test_convolutions(case):
    """LeNet-5, with its channels last where clients are run one after another."""
    if refused(case, "LeNet5", LeNet5, train=images(side=16)):
        return
    train, unseen = images([4, 1, 2], side=16), images([3, 1], side=16, first_id=3)
    trainers = SequentialTrainer(channels_last=True), VectorizedTrainer()
    runs = [after_rounds(federation(CASES[case], LeNet5, one, train), unseen) for one in trainers]
    assert distance(*runs) < 1e-10


@every_case
def test_batch_norm(case):
    if refused(case, "BatchNorm", Normalised):
        return
    unseen = images(UNSEEN, first_id=len(SIZES))
    trainers = SequentialTrainer(channels_last=True), VectorizedTrainer()
    runs = [after_rounds(federation(CASES[case], Normalised, one), unseen) for one in trainers]
    assert distance(*runs) < 1e-8  # BatchNorm over few values magnifies rounding


@every_case
def test_dropout(case):
    if refused(case, "dropout", Dropped):
        return
    unseen = images(UNSEEN, first_id=len(SIZES))
    runs = []
    for _ in range(2):
        torch.rand(1)  # the global generator is not what it was
        runs.append(after_rounds(federation(CASES[case], Dropped, SequentialTrainer()), unseen))
    assert same_bits(*runs)


def test_dropout_is_for_clients_one_after_another():
    with pytest.raises(ConfigError, match=r"vectorized cannot train a network with dropout \(0\.5\); use sequential"):
        VectorizedTrainer().check(Dropped((1, 4, 4), 3))


@every_case
def test_bf16(case):
    """Models stay in float32, and near those of a run without autocast; `test_precision` compares the trainers."""
    network = Linear if case in LINEAR_ALONE else Smooth
    train = images(side=2, dtype=torch.float32)
    start, wide, narrow = (
        federation(CASES[case], network, SequentialTrainer(), train, torch.float32, batch_size=0) for _ in range(3)
    )
    after_rounds(wide, rounds=1)
    with BF16():
        shown = after_rounds(narrow, rounds=1)
    assert {leaf.dtype for leaf in tree.leaves(shown) if leaf.is_floating_point()} <= {torch.float32, torch.float64}
    before, expected, found = (tree.models((one.shared, one.states)) for one in (start, wide, narrow))
    assert distance(found, expected) <= 0.1 * distance(expected, before)


def test_reasons_are_of_algorithms_that_are():
    assert all(set(of_kind) <= set(CASES) for of_kind in REFUSED.values())
