import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from federated_round import (
    Federation,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_context,
    make_task,
    perturbed,
    run_rounds,
    same_bits,
)
from references.fedem_numpy import expectation as reference_expectation
from references.fedem_numpy import fedem_round, predict

from lit_fed.algorithms import FedAvg, FedEM, OfficialFedEM, ResponsibilityFedEM
from lit_fed.algorithms.fedem import MixtureState
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.e_step import expectation
from lit_fed.core.types import LocalWork, Split

LOSSES = torch.tensor([[0.1, 2.3], [1.2, 0.4]], dtype=torch.float64)
HALVES = torch.tensor([0.5, 0.5], dtype=torch.float64)
SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}, {"lr": 0.05, "optimizer": "adam"}]


SHUFFLED = partial(OfficialFedEM, refresh_mixture_at_eval=False)
REFRESHED = partial(OfficialFedEM, shuffle_per_component=False)


def with_mixtures(federation, mixtures):
    federation.states = MixtureState(torch.as_tensor(mixtures, dtype=federation.task.dtype))
    return federation


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", SOLVERS[:2], ids=str)
@pytest.mark.parametrize("sizes", [[5, 5, 5], [5, 2, 8]])
@pytest.mark.parametrize("shuffled", [False, True])
def test_rounds_are_those_of_the_reference(options, sizes, shuffled, client_trainer):
    train, test = make_clients(sizes), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    algorithm = (SHUFFLED if shuffled else FedEM)(num_components=3)
    federation = Federation(algorithm, train, solver=solver, trainer=client_trainer, batch_size=2)
    thetas, pis = federation.weights.numpy(), [np.full(3, 1 / 3)] * 3
    for _ in range(3):
        orders = batch_orders(federation, work=LocalWork(epochs=2, batches_per_step=3 if shuffled else 1))
        if not shuffled:
            orders = [[np.stack([batch] * 3) for batch in own] for own in orders]
        thetas, pis, nll = fedem_round(thetas, pis, as_arrays(train), orders, **options)
        federation.round()
        np.testing.assert_allclose(federation.weights.numpy(), thetas, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.states.mixture.numpy(), np.stack(pis), rtol=0, atol=1e-10)
        assert federation.metrics["loss"] == pytest.approx(nll, abs=1e-10)
    for found, pi, (x, _) in zip(federation.predictions(test), pis, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(thetas, pi, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("em_steps", [1, 2, 5])
def test_unseen_clients_take_e_steps_from_uniform_weights(em_steps, client_trainer):
    train, unseen = make_clients([5, 2, 8]), make_clients([6, 3], seed=2, first_id=3)
    federation = run_rounds(FedEM(em_steps=em_steps), client_trainer, train)
    served = federation.serve(unseen, seen=False)
    for found, (x, y) in zip(served.mixture, as_arrays(unseen), strict=True):
        pi = np.full(3, 1 / 3)
        for _ in range(em_steps):
            _, pi = reference_expectation(federation.weights.numpy(), pi, x, y)
        np.testing.assert_allclose(found.numpy(), pi, rtol=0, atol=1e-10)


# ---------------------------------------------------------------------- the mixture step by hand
def test_mixture_step_by_hand():
    pi, q, nll = expectation(HALVES, LOSSES, torch.ones(2))
    expected = torch.tensor([[0.900250, 0.099750], [0.310026, 0.689974]], dtype=torch.float64)
    torch.testing.assert_close(q, expected, rtol=0, atol=5e-7)
    torch.testing.assert_close(pi, torch.tensor([0.605138, 0.394862], dtype=torch.float64), rtol=0, atol=5e-7)
    assert float(nll) == pytest.approx(0.705055, abs=5e-7)
    second, _, nll = expectation(pi, LOSSES, torch.ones(2))
    torch.testing.assert_close(second, torch.tensor([0.670185, 0.329815], dtype=torch.float64), rtol=0, atol=5e-7)
    assert float(nll) == pytest.approx(0.668903, abs=5e-7)
    assert float(expectation(second, LOSSES, torch.ones(2))[2]) == pytest.approx(0.653819, abs=5e-7)


@pytest.mark.parametrize(("em_steps", "expected"), [(1, [0.605138, 0.394862]), (2, [0.670185, 0.329815])])
def test_adaptation_by_hand(em_steps, expected):
    algorithm, ctx = FedEM(2, em_steps=em_steps), make_context(phase="adapt")
    data = make_clients([2], first_id=ctx.num_clients).client(ctx.num_clients)
    shared = algorithm.shared_init(ctx)
    state = algorithm.state_init(ctx, shared, data)
    work = algorithm.client_init(ctx, shared, state, data, LOSSES)
    final = algorithm.client_final(ctx, shared, work, data)
    torch.testing.assert_close(final.state.mixture, torch.tensor(expected).double(), rtol=0, atol=5e-7)


def test_training_takes_one_e_step_whatever_em_steps():
    data = make_clients([2]).client(0)
    algorithm, ctx = FedEM(2, em_steps=4), make_context()
    work = algorithm.client_init(ctx, algorithm.shared_init(ctx), MixtureState(HALVES), data, LOSSES)
    torch.testing.assert_close(work.mixture, torch.tensor([0.605138, 0.394862]).double(), rtol=0, atol=5e-7)


def test_padding_takes_no_part_in_the_mixture_step():
    padded = torch.cat([LOSSES, torch.tensor([[0.0, 9.0], [5.0, 0.0]], dtype=torch.float64)])
    pi, q, nll = expectation(HALVES, padded, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    plain = expectation(HALVES, LOSSES, torch.ones(2))
    assert torch.equal(q[2:], torch.zeros(2, 2, dtype=torch.float64))
    assert distance((pi, q[:2], nll), plain) < 1e-15


def test_without_samples_the_mixture_stays():
    pi, q, nll = expectation(torch.tensor([0.3, 0.7]), torch.zeros(0, 2), torch.zeros(0))
    assert torch.equal(pi, torch.tensor([0.3, 0.7]))
    assert q.shape == (0, 2)
    assert float(nll) == 0
    assert torch.equal(expectation(HALVES, LOSSES, torch.zeros(2))[0], HALVES)


def test_a_weight_of_0_stays_0_without_nan():
    pi, q, nll = expectation(torch.tensor([0.0, 1.0]).double(), LOSSES, torch.ones(2))
    assert pi.tolist() == [0, 1]
    assert q.tolist() == [[0, 1], [0, 1]]
    assert float(nll) == pytest.approx(1.35, abs=1e-12)


def test_large_losses_do_not_underflow():
    pi, q, nll = expectation(torch.tensor([0.5, 0.5]), torch.tensor([[2000.0, 2001.0]]), torch.ones(1))
    assert float(q[0, 0]) == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-7)
    assert pi.isfinite().all()
    assert nll.isfinite()


# ---------------------------------------------------------------------- limits
def test_equal_components_stay_equal_and_move_with_their_share_of_the_rate(client_trainer):
    train = make_clients([7])
    task = make_task(init_seeds=(5, 5, 5))
    mixture = [0.5, 0.3, 0.2]
    federation = Federation(FedEM(), train, task, LocalSolver(lr=0.4), trainer=client_trainer, batch_size=3)
    with_mixtures(federation, [mixture])
    alone = [
        Federation(FedAvg(), train, make_task(init_seeds=(5,)), LocalSolver(lr=0.4 * share), batch_size=3)
        for share in mixture
    ]
    federation.round()
    torch.testing.assert_close(
        federation.states.mixture[0], torch.tensor(mixture, dtype=torch.float64), rtol=0, atol=1e-12
    )
    for m, one in enumerate(alone):
        one.round()
        torch.testing.assert_close(federation.weights[m], one.weights[0], rtol=0, atol=1e-12)


def test_one_hot_weights_are_absorbing(client_trainer):
    one_hot = torch.eye(3)[[0, 2, 0, 1]].double()
    federation = Federation(FedEM(), make_clients([5, 2, 8, 4]), trainer=client_trainer, num_rounds=3)
    with_mixtures(federation, one_hot)
    for _ in range(3):
        federation.round()
        assert torch.equal(federation.states.mixture, one_hot)


def test_the_likelihood_never_falls_under_small_full_batch_steps():
    train = make_clients([20, 12, 8, 15])
    solver = LocalSolver(lr=0.1, local_steps=1)
    federation = Federation(FedEM(), train, solver=solver, batch_size=0, trainer=VectorizedTrainer())
    history = []
    for _ in range(80):
        federation.round()
        history.append(federation.metrics["loss"])
    assert all(after <= before + 1e-12 for before, after in pairwise(history))
    assert history[-1] < history[0] - 0.05


def clusters(groups, num_samples=60, seed=0):
    """Clients whose labels are drawn from one of two logistic models."""
    rng = torch.Generator().manual_seed(seed)
    true = 3 * torch.randn(2, 4, generator=rng, dtype=torch.float64)
    x = torch.randn(len(groups) * num_samples, 4, generator=rng, dtype=torch.float64)
    owner = torch.tensor(groups).repeat_interleave(num_samples)
    p = (x * true[owner]).sum(1).sigmoid()
    y = (torch.rand(len(x), generator=rng, dtype=torch.float64) < p).long()
    return Split(x, y, torch.arange(0, len(x) + 1, num_samples))


def test_clusters_are_recovered_up_to_permutation():
    groups = [0, 1, 1, 0, 1, 0]
    federation = Federation(
        FedEM(2),
        clusters(groups),
        solver=LocalSolver(lr=1.0),
        batch_size=0,
        trainer=VectorizedTrainer(),
        num_rounds=300,
    )
    history = []
    for _ in range(300):
        federation.round()
        history.append(federation.metrics["loss"])
    found = federation.states.mixture
    assigned = found.argmax(1)
    assert distance(found, torch.eye(2)[assigned]) <= 1e-3
    assert assigned.tolist() in (groups, [1 - group for group in groups])
    assert all(after <= before + 1e-9 for before, after in pairwise(history))


# ---------------------------------------------------------------------- state and serving
def test_weights_start_uniform_and_components_differ():
    federation = Federation(FedEM(), make_clients([5, 2]))
    assert federation.states.mixture.tolist() == [[1 / 3] * 3] * 2
    assert federation.states.mixture.dtype == torch.float64
    assert min(distance(federation.weights[a], federation.weights[b]) for a, b in ((0, 1), (0, 2), (1, 2))) > 0.01


@pytest.mark.parametrize("em_steps", [1, 4])
def test_seen_clients_may_be_refreshed_by_one_e_step_before_they_are_served(em_steps, client_trainer):
    train = make_clients([5, 2, 8])
    federation = run_rounds(REFRESHED(em_steps=em_steps), client_trainer, train)
    stored = federation.states.mixture.clone()
    served = federation.serve()
    assert torch.equal(federation.states.mixture, stored)
    for row, (x, y) in enumerate(as_arrays(train)):
        _, expected = reference_expectation(federation.weights.numpy(), stored[row].numpy(), x, y)
        np.testing.assert_allclose(served.mixture[row].numpy(), expected, rtol=0, atol=1e-10)
    plain = run_rounds(FedEM(), client_trainer, train)
    assert same_bits(plain.shared, federation.shared)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_an_unseen_client_without_samples_has_the_mean_weights(weighting, client_trainer):
    federation = run_rounds(FedEM(), client_trainer, make_clients([5, 2, 8]), weighting=weighting)
    mean = federation.states.mixture.mean(0)
    served = federation.serve(make_clients([0, 4, 0], first_id=3), seen=False)
    assert served.mixture[[0, 2]].tolist() == [mean.tolist()] * 2
    assert distance(mean, torch.full((3,), 1 / 3)) > 1e-6
    assert distance(served.mixture[1], mean) > 1e-6
    none_has_any = federation.serve(make_clients([0, 0], first_id=3), seen=False)
    assert none_has_any.mixture.tolist() == [mean.tolist()] * 2


def test_the_e_step_is_in_evaluation_mode():
    build = lambda shape, outputs: torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, outputs))  # noqa: E731
    train = make_clients([9])
    results = [
        run_rounds(FedEM(), None, train, rounds=1, seed=seed, task=make_task(network=build, init_seeds=(1, 2, 3)))
        for seed in (0, 1)
    ]
    assert same_bits(results[0].states, results[1].states)
    assert distance(results[0].shared, results[1].shared) > 1e-4


def test_components_may_see_batches_of_their_own():
    ctx = make_context()
    (same,) = FedEM(3).phases(ctx, torch.arange(2))
    (own,) = SHUFFLED(3).phases(ctx, torch.arange(2))
    assert (same.work, own.work) == (LocalWork(epochs=1), LocalWork(epochs=1, batches_per_step=3))
    federation = Federation(FedEM(), make_clients([9]))
    (orders,) = batch_orders(federation, work=own.work)
    assert len({tuple(orders[0][m].tolist()) for m in range(3)}) == 3
    whole = {"batch_size": 0, "solver": LocalSolver(local_epochs=2)}
    results = [run_rounds(one(), None, make_clients([9, 4]), **whole) for one in (FedEM, SHUFFLED)]
    assert distance(results[0].shared, results[1].shared) < 1e-12  # whole local sets have no order
    results = [run_rounds(one(), None, make_clients([9, 4])) for one in (FedEM, SHUFFLED)]
    assert distance(results[0].shared, results[1].shared) > 1e-4


def test_predictions_mix_probabilities():
    federation = with_mixtures(Federation(FedEM(2), make_clients([5])), [[0.25, 0.75]])
    federation.shared = perturbed(federation.shared, 2.0)
    outputs = federation.task.outputs(federation.shared.models, federation.train.x)[..., 0]
    expected = outputs.sigmoid() @ torch.tensor([0.25, 0.75], dtype=torch.float64)
    torch.testing.assert_close(federation.predictions()[0][:, 1].exp(), expected, rtol=0, atol=1e-12)
    assert flat(federation.states).tolist() == [[0.25, 0.75]]


def test_number_of_models():
    assert FedEM(5).num_models == 5
    assert FedEM().num_models == 3


# ---------------------------------------------------------------------- messages
def test_messages_are_the_models_alone(client_trainer):
    federation = Federation(FedEM(), make_clients([5, 2, 8]), trainer=client_trainer)
    messages = []
    original = FedEM.client_final
    seen = type(
        "Seen", (FedEM,), {"client_final": lambda self, *given: messages.append(original(self, *given)) or messages[-1]}
    )
    federation.algorithm = seen()
    federation.round()
    assert FedEM().message.complete
    assert all(type(one.message.value).__name__ == "ModelState" and one.message.bits_up is None for one in messages)


# ---------------------------------------------------------------------- averages by responsibility
@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer])
@pytest.mark.parametrize("cohorts", [[[0, 1, 2, 3]] * 3, [[0, 1, 2, 3], [2, 0], [1, 3]]], ids=["all", "sampled"])
def test_one_hot_weights_are_fedavg_of_the_members_of_each_component(trainer, cohorts):
    train, groups = make_clients([5, 2, 8, 4]), [0, 1, 0, 1]
    mixed = Federation(ResponsibilityFedEM(3), train, trainer=trainer())
    with_mixtures(mixed, torch.eye(3)[groups])
    start = mixed.shared.models
    for cohort in cohorts:
        mixed.round(cohort)
    for m in range(2):
        own = Federation(FedAvg(), train, trainer=trainer())
        own.shared = own.shared._replace(models=tree.index(start, slice(m, m + 1)))
        for cohort in cohorts:
            members = [one for one in cohort if groups[one] == m]
            own.round(members) if members else None
            own.round_idx += not members
        torch.testing.assert_close(mixed.weights[m], own.weights[0], rtol=0, atol=1e-12)
    assert same_bits(tree.index(mixed.shared.models, 2), tree.index(start, 2))  # nobody's


def test_a_component_that_a_client_does_not_use_costs_no_bits(client_trainer):
    federation = Federation(ResponsibilityFedEM(), make_clients([5, 2, 8]), trainer=client_trainer)
    with_mixtures(federation, [[1, 0, 0], [0, 0.5, 0.5], [1, 0, 0]])
    federation.round()
    assert federation.bits.tolist() == [4 * 5 * 64 + 3 * 3 * 64, 3 * 3 * 5 * 64]


def test_clients_are_served_alike_whatever_the_average():
    federation = run_rounds(ResponsibilityFedEM(), None, make_clients([5, 2, 8]))
    unseen = make_clients([6, 3], seed=2, first_id=3)
    plain = Federation(FedEM(), make_clients([5, 2, 8]), shared=federation.shared)
    plain.states = federation.states
    assert same_bits(federation.predictions(unseen, seen=False), plain.predictions(unseen, seen=False))
    assert same_bits(federation.predictions(), plain.predictions())


def test_stale_fill_by_responsibility_gives_absent_clients_the_shares_of_the_others(client_trainer):
    """θ_m <- p·Σ_S n_t π_tm θ_m,t/Σ_S n_t π_tm + (1 − p)·θ_m, where p is the participants' share of all samples."""
    train, cohort = make_clients([5, 2, 8]), [0, 2]
    options = {"trainer": client_trainer, "aggregation": "stale_fill", "solver": LocalSolver(lr=0.3)}
    federation = run_rounds(ResponsibilityFedEM(2), train=train, rounds=1, **options)
    before, seen = federation.weights.clone(), {}
    for one in cohort:  # what each of them sends is the model after a round of it alone
        alone = Federation(
            ResponsibilityFedEM(2), train, shared=federation.shared, round_idx=1, solver=federation.solver
        )
        alone.states = federation.states
        alone.round([one])
        seen[one] = alone.weights, alone.states.mixture[one]
    federation.round(cohort)
    n = train.sizes.double()
    uses = {one: float(n[one]) * seen[one][1] for one in cohort}
    mean = sum(uses[one][:, None] * seen[one][0] for one in cohort) / sum(uses.values())[:, None]
    p = float(sum(n[one] for one in cohort) / n.sum())
    torch.testing.assert_close(federation.weights, p * mean + (1 - p) * before, rtol=0, atol=1e-12)
    assert distance(mean, before) > 1e-3
