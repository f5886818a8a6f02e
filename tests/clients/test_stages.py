"""Stages of local work: their steps, their batches, stragglers, and what every client trainer makes of them."""

from dataclasses import dataclass

import pytest
import torch
from federated_round import distance, make_clients, make_context, make_task, run_rounds, same_bits, small_mlp

from lit_fed.algorithms import FedAvg
from lit_fed.clients import DebugTrainer, SequentialTrainer, VectorizedTrainer
from lit_fed.clients.base import augmented
from lit_fed.clients.graphed import GraphedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.plan import make_plan, num_steps, steps_of
from lit_fed.core.types import LocalWork, Stage

SIZES = [5, 2, 9, 9]
TWO = (Stage("first", epochs=2), Stage("second", steps=3))


@dataclass(frozen=True)
class Staged(FedAvg):
    """FedAvg whose rate is halved in the second stage."""

    stages: tuple = TWO

    def phases(self, ctx, client_ids):
        (phase,) = super().phases(ctx, client_ids)
        work = phase.work if not self.stages else phase.work._replace(epochs=None, stages=self.stages)
        return (phase._replace(work=work),)

    def client_step(self, ctx, shared, work, batch):
        assert ctx.stage in {stage.name for stage in self.stages} or not self.stages
        return super().client_step(ctx._replace(lr=ctx.lr / (1 + (ctx.stage == "second"))), shared, work, batch)

    def client_final(self, ctx, shared, work, data):
        assert not ctx.stage
        result = super().client_final(ctx, shared, work, data)
        return result._replace(metrics=result.metrics | {"steps": work.steps})


class Unhalved(Staged):
    """The same steps at the rate of the round."""

    def client_step(self, ctx, shared, work, batch):
        return FedAvg.client_step(self, ctx, shared, work, batch)


def run(algorithm, trainer=None, train=None, **solver):
    solver = LocalSolver(**{"lr": 0.3, "momentum": 0.5} | solver)
    return run_rounds(
        algorithm, trainer, train or make_clients(SIZES), solver=solver, task=make_task(network=small_mlp)
    )


def plan_of(sizes, work, stage=""):
    return make_plan(sizes, range(len(sizes)), work, batch_size=4, seed=0, round_idx=0, phase="train", stage=stage)


def order(plan):
    """The samples of the first client, as its steps see them."""
    counts = plan.counts[0].tolist()
    return [one for step, count in enumerate(counts) for one in plan.index[0, step, 0, :count].tolist()]


def test_steps_of_stages_add_up():
    work = LocalWork(stages=TWO)
    assert [num_steps(size, work, 4) for size in SIZES] == [4 + 3, 2 + 3, 6 + 3, 6 + 3]
    assert work.trains
    assert work.is_training
    assert not LocalWork(stages=(Stage("first", epochs=0),)).trains
    assert LocalWork(stages=(Stage("first", epochs=0),)).is_training
    assert (steps_of(torch.tensor([0, 1]).numpy(), work, 4) == 0).tolist() == [True, False]
    alone = LocalWork(epochs=2, batch_size=3)
    assert alone.by_stage == (("", alone),)
    assert [one.batch_size for _, one in alone._replace(stages=TWO).by_stage] == [3, 3]


def test_each_stage_shuffles_anew():
    orders = [order(plan_of([9], LocalWork(epochs=1), stage)) for stage in ("", "first", "second")]
    assert all(sorted(one) == list(range(9)) for one in orders)
    assert len({tuple(one) for one in orders}) == 3


@pytest.mark.parametrize("other", [VectorizedTrainer, DebugTrainer, GraphedTrainer])
@pytest.mark.parametrize("solver", [{}, {"straggler_fraction": 0.7}], ids=str)
def test_client_trainers_agree(other, solver):
    one, two = (run(Staged(), trainer(), **solver) for trainer in (SequentialTrainer, other))
    assert distance(one.shared, two.shared) < 1e-12
    assert one.metrics == pytest.approx(two.metrics)


def test_a_stage_without_a_name_is_the_work_without_stages(client_trainer):
    plain = run(Staged(stages=()), client_trainer, local_epochs=2)
    assert same_bits(run(Staged(stages=(Stage("", epochs=2),)), client_trainer).shared, plain.shared)
    empty = (Stage("first", epochs=0), Stage("", epochs=2))
    assert same_bits(run(Staged(stages=empty), client_trainer).shared, plain.shared)


def test_the_stage_is_told(client_trainer):
    """A stage that halves the rate is the same steps at half the rate."""
    second = (Stage("second", steps=3),)
    halved = run(Staged(stages=second), client_trainer, lr=0.4)
    assert distance(halved.shared, run(Staged(stages=second), client_trainer, lr=0.2).shared) > 1e-3
    plain = run(Unhalved(stages=second), client_trainer, lr=0.2)
    assert distance(halved.shared, plain.shared) < 1e-12


def test_a_straggler_takes_about_the_same_share_of_every_stage():
    sizes = [40] * 300
    work = LocalWork(stages=(Stage("first", epochs=4), Stage("second", epochs=2)), straggler_fraction=0.5)
    taken = [plan_of(sizes, part, name).steps for name, part in work.by_stage]
    whole = [steps_of(torch.tensor(sizes).numpy(), part, 4)[0] for _, part in work.by_stage]
    shares = [steps / full for steps, full in zip(taken, whole, strict=True)]
    assert torch.equal(taken[0] == 40, shares[0] == 1)
    assert 100 < int((shares[0] < 1).sum()) < 200
    assert float((shares[0] - shares[1]).abs().max()) <= 1 / 20
    assert min(int(steps.min()) for steps in taken) >= 1


def test_inputs_are_augmented_anew_in_each_stage():
    streams = []
    ctx = make_context(augmentation=lambda x, y, stream: streams.append(stream.entropy.tolist()) or (x, y))
    for stage in ("", "first", "second"):
        augmented(ctx._replace(stage=stage), LocalWork(epochs=1), torch.zeros(2, 4), torch.zeros(2), 0, 0)
    assert len({tuple(one) for one in streams}) == 3
