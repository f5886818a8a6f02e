"""Clients of a round that are selected by the losses of candidates: Power-of-Choice and a user's rule."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from federated_round import REGRESSION, Federation, Scale, distance, make_clients, make_task
from quiet import assert_same_state, quiet_trainer

from lit_fed import FederatedModule, serving
from lit_fed.algorithms import FedAvg, FedEM, KNNPer
from lit_fed.callbacks import CommunicationCost
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.blocks import draw_cohort
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import generator
from lit_fed.core.types import Split
from lit_fed.data import Synthetic
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.wrappers.selection.rules import PowerOfChoice, Selection

CENTRES, COUNTS, RATE = np.array([0.0, 4.0, -1.0, 3.0, 1.0, -2.0]), [1, 3, 2, 1, 4, 2], 0.3


@dataclass(frozen=True)
class Smallest(Selection):
    """Of all clients those that fit best."""

    def choose(self, losses, sizes, cohort, rng):
        return np.argsort(losses, kind="stable")[:cohort]


def started(algorithm, train, selection, cohort, trainer=None, **fields):
    """A federation that selects `cohort` clients of each round."""
    federation = Federation(
        algorithm, train, trainer=trainer, sampling_probability=cohort / train.num_clients, **fields
    )
    federation.selection = selection
    return federation


def drawn(federation, cohort):
    """Candidates of the coming round."""
    return draw_cohort(
        federation.train.num_clients, federation.train.sizes.numpy(), number=cohort, seed=federation.seed,
        round_idx=federation.round_idx, candidates=federation.selection.draw,
    )  # fmt: skip


def select(federation, cohort, per_block=8):
    return serving.selected(federation, drawn(federation, cohort), federation.train, clients_per_block=per_block)


def reference(rounds, cohort, number, seed=0):
    """pow-d with one gradient step of each client on ½(w − c)², from the paper alone: cohorts and models."""
    w, share, found = 0.0, np.array(COUNTS) / sum(COUNTS), []
    for round_idx in range(rounds):
        rng = generator(seed, round_idx, 0, "cohort")
        candidates = sorted(rng.choice(len(share), number, replace=False, p=share))
        losses = {k: 0.5 * (w - CENTRES[k]) ** 2 for k in candidates}
        cohort_ids = sorted(sorted(candidates, key=lambda k: (-round(losses[k], 9), k))[:cohort])
        w = float(np.mean([w - RATE * (w - CENTRES[k]) for k in cohort_ids]))
        found.append((cohort_ids, w))
    return found


def copies():
    """Clients with several copies of one sample, so that their losses are ½(w − c)²."""
    y = torch.from_numpy(np.repeat(CENTRES, COUNTS))
    return Split(torch.ones_like(y)[:, None], y, torch.tensor([0, *COUNTS]).cumsum(0))


@pytest.mark.parametrize("number", [2, 4, 6])
def test_power_of_choice_is_that_of_the_paper(number, client_trainer):
    task, solver = make_task(REGRESSION, num_features=1, network=Scale), LocalSolver(lr=RATE)
    federation = started(
        FedAvg(), copies(), PowerOfChoice(number), 2, client_trainer, task=task, solver=solver, batch_size=0,
        weighting="uniform",
    )  # fmt: skip
    for cohort, w in reference(5, 2, number):
        ids = select(federation, 2)
        assert ids.tolist() == cohort
        federation.round(ids)
        assert float(federation.weights) == pytest.approx(w, abs=1e-12)


def test_reports_count_as_traffic_and_move_nothing():
    """A broadcast to each candidate and a number from it; the round is that of the selected clients."""
    one, other = (started(FedAvg(), make_clients([5, 2, 7, 3, 4]), PowerOfChoice(4), 2) for _ in range(2))
    ids = select(one, 2)
    one.round(ids)
    other.round(ids)
    assert distance(one.shared, other.shared) == 0
    assert (one.bits - other.bits).tolist() == [4 * 64, 4 * 64 * 5]  # one loss; five parameters in float64
    one.round(ids)
    assert torch.equal(one.bits, other.bits)  # without reports


@pytest.mark.parametrize("algorithm", [FedEM(2), KNNPer(2)], ids=lambda one: type(one).__name__)
def test_cohorts_depend_on_nothing_but_losses(algorithm):
    """Not on who runs the clients, nor on their blocks; the loss is that of a client as it is served."""
    train, found = make_clients([5, 2, 7, 3, 6, 4]), []
    for trainer, per_block in ((SequentialTrainer(), 8), (VectorizedTrainer(), 8), (SequentialTrainer(), 1)):
        federation, cohorts = started(algorithm, train, Smallest(), 2, trainer, solver=LocalSolver(lr=0.5)), []
        for _ in range(3):
            cohorts.append(select(federation, 2, per_block).tolist())
            rows = federation.evaluate()
            assert cohorts[-1] == sorted((rows[:, 1] / rows[:, 0]).argsort()[:2].tolist())
            federation.round(np.array(cohorts[-1]))
        found.append(cohorts)
    assert found[0] == found[1] == found[2]


def test_ties_and_clients_without_samples_have_an_order():
    losses, rng = np.array([0.5, np.nan, 0.7, 0.5, np.inf]), np.random.default_rng(0)
    assert PowerOfChoice(5).choose(losses, np.ones(5), 4, rng).tolist() == [4, 2, 0, 3]
    assert set(PowerOfChoice(3).draw(np.array([0, 4, 0, 2]), 1, rng)) == {1, 3}
    assert len(PowerOfChoice(3).draw(np.array([0, 0]), 1, rng)) == 0
    assert len(PowerOfChoice(3).draw(np.array([], dtype=np.int64), 0, rng)) == 0


def test_candidates_are_among_those_who_can_be_reached():
    there = np.array([True, False, True, True, False, True])
    ids = draw_cohort(
        6, np.ones(6), number=2, seed=0, round_idx=0, available=there, candidates=PowerOfChoice(6).draw
    )  # fmt: skip
    assert ids.tolist() == [0, 2, 3, 5]


# ---------------------------------------------------------------------- runs
def fit(rounds=3, selection=None, out=None, ckpt_path=None, data=None, **arguments):
    options = {"clients_per_round": 2, "clients_per_block": 2} | (data or {})
    data = FederatedDataModule(Synthetic(num_clients=6, dimension=4, test_size=20), **options)
    module = FederatedModule(FedAvg(), client_trainer="sequential", selection=selection)
    trainer = quiet_trainer(rounds, out, callbacks=[CommunicationCost()], **arguments)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module


def test_a_run_equals_plain_rounds():
    """Cohorts, models and bytes; clients count alike, as in the paper."""
    module = fit(selection=PowerOfChoice(4))
    rounds, train = module.federation, module.trainer.datamodule.seen.train
    assert rounds.terms.weighting == "uniform"
    again = started(
        FedAvg(), train, PowerOfChoice(4), 2, task=rounds.terms.task, solver=rounds.terms.solver,
        batch_size=rounds.terms.batch_size, weighting="uniform", num_rounds=3, seed=rounds.terms.seed,
    )  # fmt: skip
    total = torch.zeros(2, dtype=torch.float64)
    for _ in range(3):
        again.round(select(again, 2, 2))
        total += again.bits / 8
    assert module.results["comm/total_bytes_up"] == float(total[0])
    assert module.results["comm/total_bytes_down"] == float(total[1])
    assert distance(module.shared, again.shared) == 0


def test_a_run_resumes_with_its_own_selection_alone(tmp_path):
    whole = fit(3, Smallest(), tmp_path / "whole")
    fit(2, Smallest(), tmp_path)
    resumed = {"ckpt_path": str(tmp_path / "run/version_0/checkpoints/last.ckpt"), "version": 0, "keep_rounds": 2}
    with pytest.raises(ConfigError, match="selection is"):
        fit(3, PowerOfChoice(4), tmp_path, **resumed)
    assert_same_state(fit(3, Smallest(), tmp_path, **resumed), whole)


@pytest.mark.parametrize(
    ("selection", "data", "said"),
    [
        (PowerOfChoice(1), {}, r"candidates is 1, a round has 2 of 6 clients; give a number from 2 to 6"),
        (PowerOfChoice(7), {}, r"candidates is 7"),
        (PowerOfChoice(4), {"clients_per_round": 6}, r"all 6 take part; give --data\.clients_per_round"),
        (PowerOfChoice(4), {"client_sampling": "poisson"}, r"--data\.client_sampling is poisson; give uniform"),
    ],
    ids=["few", "many", "all", "poisson"],
)
def test_cohorts_without_a_choice_are_refused(selection, data, said):
    with pytest.raises(ConfigError, match=said):
        fit(1, selection, data=data)
