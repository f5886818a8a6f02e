"""Clients drawn in proportion to their samples, with replacement: every algorithm is right with it, or refuses it.

`counts_draws`: a client that is drawn twice counts as two clients with its samples. Otherwise it counts once, and
nothing tells that it was drawn twice. The others name themselves and the setting before training.
"""

import itertools
from typing import ClassVar

import pytest
import torch
from combination import refuse
from federated_round import Federation, distance, make_clients, make_task, same_bits
from local_norm import local_norm
from test_algorithms import SMALL, all_algorithms, federation_of

from lit_fed import FederatedModule, FederatedTrainer
from lit_fed.algorithms import AFL, SCAFFOLD, FedAvg, FedEM
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.rounds import check_cohort

pytestmark = pytest.mark.every_combination

SIZES = [6, 6, 9, 3, 4]
COHORTS = [[0, 0, 2], [4, 0, 0, 3], [0, 0, 2, 3]]
WITH_A_TWIN = [[0, 1, 2], [4, 0, 1, 3], [0, 1, 2, 3]]

ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]
REFUSED = [one for one in ALL if one.participation.needs_all_clients or "size_sampling" in one.incompatible]
TAKEN = [one for one in ALL if one not in REFUSED]


def name_of(algorithm):
    return type(algorithm).__name__


def clients(*, twin):
    """Five clients; the second one has samples of its own, or those of the first."""
    train = make_clients(SIZES)
    rows = torch.cat([torch.arange(6), torch.arange(6) if twin else torch.arange(6, 12), torch.arange(12, 28)])
    return Split(train.x[rows], train.y[rows], train.offsets)


def after(algorithm, train, cohorts):
    """Rounds of whole local sets, so that who a client is decides nothing."""
    solver, groups = LocalSolver(lr=0.2, momentum=0.5, local_epochs=2), torch.tensor([0, 0, 1, 1, 0])
    federation = federation_of(algorithm, train, solver=solver, batch_size=0, weighting="uniform", groups=groups)
    for cohort in cohorts:
        federation.round(cohort)
    return federation


@pytest.mark.parametrize("algorithm", [one for one in TAKEN if one.participation.counts_draws], ids=name_of)
def test_a_client_drawn_twice_counts_as_two(algorithm):
    one, two = (after(algorithm, clients(twin=twin), cohort) for twin, cohort in ((0, COHORTS), (1, WITH_A_TWIN)))
    assert distance(one.shared, two.shared) < 1e-12
    others = torch.tensor([0, 2, 3, 4])
    assert distance(tree.index(one.states, others), tree.index(two.states, others)) < 1e-12
    assert one.metrics == pytest.approx(two.metrics, abs=1e-12)


@pytest.mark.parametrize("algorithm", [one for one in TAKEN if not one.participation.counts_draws], ids=name_of)
def test_or_it_counts_once(algorithm):
    once = [sorted(set(cohort)) for cohort in COHORTS]
    one, other = (after(algorithm, clients(twin=False), cohorts) for cohorts in (COHORTS, once))
    assert same_bits((one.shared, one.states), (other.shared, other.states))


@pytest.mark.parametrize("algorithm", REFUSED, ids=name_of)
def test_or_it_is_refused_by_name(algorithm):
    name = name_of(algorithm)
    with pytest.raises(ConfigError, match=rf"^--data\.client_sampling is size, .* and {name} .*; give uniform$"):
        refuse(algorithm, sampling="size")
    refuse(algorithm, weighting="samples", sampling="uniform")


@pytest.mark.parametrize("algorithm", TAKEN, ids=name_of)
def test_what_is_taken_is_not_refused(algorithm):
    refuse(algorithm, sampling="size")
    refuse(algorithm, weighting="uniform", sampling="size")


def test_local_batch_norm_changes_nothing():
    class Refusing(FedAvg):
        incompatible: ClassVar = {"size_sampling": "does not like it"}

    assert local_norm(FedAvg()).participation.counts_draws
    for algorithm, reason in ((Refusing(), "and Refusing does not like it"), (AFL(), "AFL needs every client once")):
        with pytest.raises(ConfigError, match=reason):
            refuse(algorithm, batch_norm="local", sampling="size")


def test_both_kinds_are_there():
    names = {name_of(one) for one in REFUSED}
    assert names >= {"AFL", "EASGD", "SCAFFOLD", "SharingADMM", "UCFL"}
    assert names.isdisjoint({"FedAvg", "FedEM", "FedProx", "QFedAvg", "ConsensusADMM"})


# ---------------------------------------------------------------------- what it is right for
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM()], ids=name_of)
def test_the_mean_over_draws_is_the_mean_weighted_by_samples(algorithm):
    """Over all pairs of draws, each with its probability p_i p_j, p_i = n_i/n."""
    sizes = [6, 1, 3]
    train, task = make_clients(sizes), make_task()
    whole = Federation(algorithm, train, task, weighting="samples")
    whole.round()
    mean = 0.0
    for pair in itertools.product(range(3), repeat=2):
        federation = Federation(algorithm, train, task, weighting="uniform")
        federation.round(list(pair))
        mean = mean + federation.weights * sizes[pair[0]] * sizes[pair[1]] / 10**2
    assert distance(mean, whole.weights) < 1e-14


# ---------------------------------------------------------------------- refused by a run, before it trains
def run(tmp_path, algorithm, model=None, **data):
    module = FederatedModule(algorithm, **(model or {}))
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = FederatedTrainer(max_epochs=1, default_root_dir=str(tmp_path), **options)
    trainer.fit(module, datamodule=FederatedDataModule(Digits(), num_clients=4, **data))


@pytest.mark.parametrize(
    ("algorithm", "model", "named"),
    [
        (AFL(), {}, "AFL needs every client once in every round; give uniform"),
        (SCAFFOLD(), {}, "SCAFFOLD keeps a mean of control variates"),
        (FedAvg(), {"aggregation": "stale_fill"}, r"--model\.aggregation stale_fill has no absent ones"),
        (FedEM(), {"weighting": "samples"}, r"--model\.weighting is samples, by which they would count for more"),
    ],
    ids=["AFL", "SCAFFOLD", "stale_fill", "samples"],
)
def test_a_run_is_refused_before_training(tmp_path, algorithm, model, named):
    with pytest.raises(ConfigError, match=named):
        run(tmp_path, algorithm, model, client_sampling="size", clients_per_round=16)
    assert not list(tmp_path.iterdir())


def test_all_clients_means_each_of_them_once():
    check_cohort("AFL", torch.arange(3).numpy(), 3)
    with pytest.raises(ConfigError, match="AFL needs every client in every round, and 3 of 3 are drawn in 4 draws;"):
        check_cohort("AFL", torch.tensor([0, 1, 1, 2]).numpy(), 3)
    with pytest.raises(ConfigError, match="2 of 3 are drawn in 3 draws;"):
        check_cohort("AFL", torch.tensor([0, 1, 1]).numpy(), 3)
