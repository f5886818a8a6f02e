import numpy as np
import pytest
import torch
from federated_round import Federation, make_clients, make_context, make_task
from normalised import NormalisedMLP

from lit_fed.algorithms import FedAvg
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.plan import make_plan, most_steps, num_steps
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError
from lit_fed.system import machine


def plan_of(sizes, work, batch_size=4, client_ids=None, **name):
    ids = range(len(sizes)) if client_ids is None else client_ids
    return make_plan(sizes, ids, work, batch_size=batch_size, **({"seed": 0, "round_idx": 0, "phase": "train"} | name))


def batches(plan, row, stream=0):
    """The batches of a client, as lists of positions."""
    counts = plan.counts[row].tolist()
    return [plan.index[row, step, stream, :count].tolist() for step, count in enumerate(counts) if count]


def joined(some):
    return [position for batch in some for position in batch]


@pytest.mark.parametrize(
    ("num_samples", "work", "batch_size", "steps"),
    [
        (300, LocalWork(epochs=2), 128, 6),
        (300, LocalWork(epochs=1), 300, 1),
        (10, LocalWork(epochs=3), 128, 3),
        (10, LocalWork(epochs=1, batch_size=3), 128, 4),
        (10, LocalWork(epochs=2, batch_size=0), 3, 2),
        (10, LocalWork(epochs=2), 0, 2),
        (10, LocalWork(steps=7), 3, 7),
        (10, LocalWork(epochs=0), 3, 0),
        (10, LocalWork(), 3, 0),
        (0, LocalWork(steps=7), 3, 0),
        (0, LocalWork(epochs=2), 3, 0),
        (9, LocalWork(epochs=2, sample_rate=1.0), 3, 2),
        (0, LocalWork(epochs=2, sample_rate=0.3), 3, 0),
    ],
)
def test_num_steps(num_samples, work, batch_size, steps):
    assert num_steps(num_samples, work, batch_size) == steps
    assert len(batches(plan_of([num_samples], work, batch_size), 0)) == steps


def test_steps_of_drawn_batches_are_rounded_to_the_nearest_number():
    """1/b is 6.67: seven steps an epoch, some of which may be without a sample."""
    assert num_steps(9, LocalWork(epochs=2, sample_rate=0.15), 3) == 14
    assert num_steps(9, LocalWork(epochs=1, sample_rate=0.3), 3) == 3


@pytest.mark.parametrize("num_samples", [1, 3, 4, 5, 8, 11])
def test_every_epoch_covers_each_sample_once(num_samples):
    plan = plan_of([num_samples], LocalWork(epochs=3))
    per_epoch = -(-num_samples // 4)
    found = batches(plan, 0)
    assert len(found) == 3 * per_epoch
    epochs = [joined(found[lo : lo + per_epoch]) for lo in range(0, len(found), per_epoch)]
    assert all(sorted(epoch) == list(range(num_samples)) for epoch in epochs)
    assert all(
        len(batch) == 4 for epoch in range(3) for batch in found[epoch * per_epoch : (epoch + 1) * per_epoch - 1]
    )
    if num_samples > 4:
        assert epochs[0] != epochs[1]


def test_the_last_batch_of_an_epoch_may_be_short():
    plan = plan_of([10], LocalWork(epochs=2))
    assert plan.counts.tolist() == [[4, 4, 2, 4, 4, 2]]
    assert plan.index[0, 2, 0, 2:].tolist() == [0, 0]


def test_steps_go_on_into_the_next_pass():
    found = batches(plan_of([5], LocalWork(steps=5), 2), 0)
    assert [len(batch) for batch in found] == [2, 2, 1, 2, 2]
    assert sorted(joined(found[:3])) == list(range(5))
    assert len(set(joined(found[3:]))) == 4


def test_a_batch_size_of_0_is_the_whole_local_set():
    plan = plan_of([3, 7], LocalWork(epochs=2, batch_size=0))
    assert plan.counts.tolist() == [[3, 3], [7, 7]]
    assert sorted(batches(plan, 1)[1]) == list(range(7))


def test_batch_sizes_of_clients():
    """Each client has the batches that it has alone; 0 is its whole local set."""
    sizes, widths, work = [30, 7, 12, 5], [4, 16, 0, 1], LocalWork(epochs=2)
    terms = {"seed": 3, "round_idx": 1, "phase": "train", "smallest_batch": 1}
    whole = make_plan(sizes, [0, 1, 2, 3], work, batch_size=np.array(widths), **terms)
    assert whole.steps.tolist() == [16, 2, 2, 10]
    for row, (size, width) in enumerate(zip(sizes, widths, strict=True)):
        alone = make_plan([size], [row], work, batch_size=width, **terms)
        steps, most = int(alone.steps), alone.index.shape[-1]
        assert torch.equal(whole.counts[row, :steps], alone.counts[0])
        assert not whole.counts[row, steps:].any()
        mask = torch.arange(most) < alone.counts[0][:, None, None]
        assert torch.equal(whole.index[row, :steps, :, :most][mask], alone.index[0][mask])


def test_clients_are_padded_to_the_longest():
    plan = plan_of([9, 0, 2], LocalWork(epochs=1))
    assert plan.index.shape == (3, 3, 1, 4)
    assert plan.counts.tolist() == [[4, 4, 1], [0, 0, 0], [2, 0, 0]]
    assert plan.index.dtype == plan.counts.dtype == torch.int64


def test_no_clients():
    plan = plan_of([], LocalWork(epochs=1))
    assert plan.index.shape[0] == plan.counts.shape[0] == 0


def test_streams_are_shuffled_independently():
    plan = plan_of([50], LocalWork(epochs=1, batches_per_step=3), 50)
    assert plan.index.shape == (1, 1, 3, 50)
    orders = [tuple(batches(plan, 0, stream)[0]) for stream in range(3)]
    assert len(set(orders)) == 3
    assert all(sorted(order) == list(range(50)) for order in orders)
    agreement = [np.mean(np.array(orders[a]) == orders[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert max(agreement) < 0.2


def test_each_stream_covers_each_sample_once_per_epoch():
    plan = plan_of([7], LocalWork(epochs=2, batches_per_step=2), 3)
    for stream in range(2):
        found = batches(plan, 0, stream)
        assert sorted(joined(found[:3])) == sorted(joined(found[3:])) == list(range(7))


def test_a_plan_depends_on_seed_round_client_and_phase_alone():
    work = LocalWork(epochs=2)
    alone = batches(plan_of([20], work, client_ids=[5]), 0)
    among = plan_of([33, 20, 1], work, client_ids=[9, 5, 0])
    assert batches(among, 1) == alone
    others = [
        plan_of([20], work, client_ids=[6]),
        plan_of([20], work, client_ids=[5], seed=1),
        plan_of([20], work, client_ids=[5], round_idx=1),
        plan_of([20], work, client_ids=[5], phase="adapt"),
    ]
    assert all(batches(other, 0) != alone for other in others)


def test_more_epochs_begin_with_the_same_batches():
    one, two = (batches(plan_of([11], LocalWork(epochs=epochs)), 0) for epochs in (1, 2))
    assert two[: len(one)] == one
    steps = batches(plan_of([11], LocalWork(steps=4)), 0)
    assert steps == two[:4]


def test_a_last_batch_below_the_smallest_is_left_out():
    work, options = LocalWork(epochs=2), {"batch_size": 4, "seed": 0, "round_idx": 0, "phase": "train"}
    plan = make_plan([9, 1, 6], [0, 1, 2], work, smallest_batch=2, **options)
    assert plan.counts.tolist() == [[4, 4, 4, 4], [0, 0, 0, 0], [4, 2, 4, 2]]
    passes = plan.index[0, :, 0].view(2, 8)
    assert all(len(set(one.tolist())) == 8 for one in passes)
    left_out = [set(range(9)) - set(one.tolist()) for one in passes]
    assert left_out[0] != left_out[1]  # each pass leaves out another sample, for this seed
    whole = make_plan([9], [0], work, **options)
    assert whole.counts.tolist() == [[4, 4, 1, 4, 4, 1]]


@pytest.mark.parametrize(("samples", "steps"), [(0, 0), (1, 0), (2, 1), (4, 1), (5, 1), (6, 2)])
def test_steps_with_a_smallest_batch(samples, steps):
    assert num_steps(samples, LocalWork(epochs=1), 4, smallest_batch=2) == steps


# ---------------------------------------------------------------------- stragglers
MANY = 400


def taken(fraction, work=None, **name):
    """Steps of many clients with the same 40 samples in batches of 4."""
    work = (work or LocalWork(epochs=1))._replace(straggler_fraction=fraction)
    return (plan_of([40] * MANY, work, **name).counts > 0).sum(1)


@pytest.mark.parametrize("work", [LocalWork(epochs=2), LocalWork(steps=7), LocalWork(epochs=1, batches_per_step=2)])
def test_without_stragglers_nothing_changes(work):
    sizes = [33, 20, 1, 0]
    plain, other = plan_of(sizes, work), plan_of(sizes, work._replace(straggler_fraction=0.0))
    assert torch.equal(plain.index, other.index)
    assert torch.equal(plain.counts, other.counts)


def test_where_all_straggle_each_number_of_steps_is_as_likely():
    steps = taken(1.0)
    assert steps.unique().tolist() == list(range(1, 11))
    counts = steps.bincount(minlength=11)[1:]
    assert (counts - MANY / 10).abs().max() < 4 * (MANY * 0.1 * 0.9) ** 0.5


def test_a_share_of_the_clients_straggles():
    """A straggler may draw all of its ten steps: nine in ten show."""
    late = int((taken(0.5) < 10).sum())
    assert abs(late - 0.45 * MANY) < 4 * (MANY * 0.45 * 0.55) ** 0.5


def test_a_straggler_begins_with_the_same_batches():
    work = LocalWork(epochs=3)
    whole, part = (plan_of([21] * 50, work._replace(straggler_fraction=share)) for share in (0.0, 1.0))
    for row in range(50):
        some = batches(part, row)
        assert 1 <= len(some) <= 18
        assert some == batches(whole, row)[: len(some)]


def test_stragglers_depend_on_seed_round_client_and_phase_alone():
    steps = taken(0.5)
    assert torch.equal(steps, taken(0.5))
    assert all(not torch.equal(steps, taken(0.5, **name)) for name in ({"seed": 1}, {"round_idx": 1}, {"phase": "b"}))
    work = LocalWork(epochs=1, straggler_fraction=0.5)
    alone = [len(batches(plan_of([40], work, client_ids=[one]), 0)) for one in range(30)]
    assert alone == steps[:30].tolist()
    among = plan_of([3, 40, 99], work, client_ids=[70, 5, 2])
    assert len(batches(among, 1)) == alone[5]


def test_more_stragglers_are_those_of_before_and_others():
    few, many = taken(0.2) < 10, taken(0.6) < 10
    assert (few <= many).all()
    assert few.sum() < many.sum()


@pytest.mark.parametrize("work", [LocalWork(), LocalWork(epochs=0)])
def test_who_has_no_steps_straggles_at_none(work):
    assert plan_of([9, 0], work._replace(straggler_fraction=1.0)).counts.numel() == 0
    assert plan_of([0], LocalWork(epochs=1, straggler_fraction=1.0)).counts.numel() == 0


@pytest.mark.parametrize(
    ("solver", "batch_size", "steps"),
    [({"local_epochs": 2}, 4, 6), ({"local_epochs": 2}, 0, 2), ({"local_steps": 5}, 4, 5), ({"local_epochs": 0}, 4, 0)],
    ids=str,
)
def test_steps_of_the_largest_client(solver, batch_size, steps):
    federation = Federation(FedAvg(), make_clients([3, 9, 4]), solver=LocalSolver(**solver), batch_size=batch_size)
    assert most_steps(federation.context("plan")) == steps


def test_steps_of_the_largest_client_leave_out_a_batch_too_small_for_normalisation():
    ctx = make_context(make_task(network=NormalisedMLP), most_samples=9, batch_size=4)
    assert most_steps(ctx) == 2
    assert most_steps(ctx._replace(most_samples=0)) == 0


def test_drawn_batches_have_every_sample_by_itself():
    work = LocalWork(epochs=200, sample_rate=0.3)
    plan = plan_of([10, 3, 0], work, client_ids=[4, 7, 5])
    assert plan.steps.tolist() == [600, 600, 0]
    every = [plan.index[0, step, 0, :count].tolist() for step, count in enumerate(plan.counts[0].tolist())]
    assert all(batch == sorted(set(batch)) for batch in every)
    shares = np.array([[position in batch for position in range(10)] for batch in every]).mean(0)
    assert abs(shares - 0.3).max() < 4 * (0.3 * 0.7 / 600) ** 0.5
    assert (plan.counts[1] == 0).any()  # a step of its own, into which nothing was drawn
    alone = plan_of([3], work, client_ids=[7])
    assert torch.equal(alone.counts[0], plan.counts[1])
    assert torch.equal(alone.index[0], plan.index[1, :, :, : alone.index.shape[3]])


def test_drawn_batches_are_cut():
    plan = plan_of([40], LocalWork(steps=300, sample_rate=0.5, batch_size=20))
    assert plan.counts.max() == 20 == plan.index.shape[3]
    last = [39 in plan.index[0, step, 0, :20].tolist() for step in range(300) if plan.counts[0, step] == 20]
    assert 0.3 < np.mean(last) < 0.7  # the first are not preferred


@pytest.mark.parametrize(
    "work", [LocalWork(epochs=10**9), LocalWork(steps=10**30), LocalWork(epochs=10**9, sample_rate=0.1)]
)
def test_a_plan_that_no_memory_holds_is_refused_before_room_is_made(monkeypatch, work):
    monkeypatch.setattr(machine, "available_memory", lambda: 10**10)
    with pytest.raises(ConfigError, match=r"the plan of \d+ local steps in a phase: takes .* 10 GB are free"):
        plan_of([10, 3], work)
