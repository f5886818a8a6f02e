import numpy as np
import pytest
import torch
from federated_round import (
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    reordered,
    run_rounds,
    same_bits,
)
from references import ucfl_numpy as reference
from references.logistic import gradient, predict
from sklearn.metrics import silhouette_score

from lit_fed.algorithms import UCFL, FedAvg, Local, Oracle
from lit_fed.algorithms.ucfl import _batch_numbers
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split

SOLVERS = [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}]
SIZES = [7, 2, 9, 4, 6, 1]
COHORTS = [[0, 1, 2, 3, 4, 5], [5, 0, 2], [1, 3, 4], [0, 1, 2, 3, 4, 5], [2, 4]]


def thetas_of(federation):
    """Models of all clients, [T, d]."""
    return flat(federation.shared.peers.parameters).numpy()


def rows_of(federation):
    return federation.shared.similarity.rows


def divisions(federation, train=None, num_batches=2):
    """The batches of the variance, in the coming round."""
    ctx, train = federation.context("similarity"), train or federation.train
    clients = [train.client(one + train.first_id) for one in range(train.num_clients)]
    return [_batch_numbers(ctx, one, num_batches).numpy() for one in clients]


def two_groups(sizes, seed=3):
    """Clients of two groups in turn with opposite labels, whose samples hardly vary."""
    rng = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    group = (torch.arange(len(sizes)) % 2).repeat_interleave(torch.tensor(sizes))
    return Split(3 + 0.1 * torch.randn(sum(sizes), 4, generator=rng, dtype=torch.float64), group, offsets)


def repeated(train, repeats):
    """The samples of each client several times over: clients of other sizes with the same gradients."""
    clients = [train.client(one) for one in range(train.num_clients)]
    x = [one.x.repeat(count, 1) for one, count in zip(clients, repeats, strict=True)]
    y = [one.y.repeat(count) for one, count in zip(clients, repeats, strict=True)]
    return Split(torch.cat(x), torch.cat(y), torch.tensor([0, *np.cumsum([len(one) for one in y])]))


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("num_streams", ["personal", "silhouette", 3])
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
@pytest.mark.parametrize("options", SOLVERS, ids=str)
def test_rounds_are_those_of_the_reference(options, aggregation, num_streams, client_trainer):
    train, test = make_clients(SIZES), make_clients([4, 2, 3, 1, 2, 2], seed=1)
    clients, sizes = as_arrays(train), np.array(SIZES)
    federation = Federation(
        UCFL(num_streams, warmup_rounds=2), train, solver=LocalSolver(local_epochs=2, **options),
        trainer=client_trainer, batch_size=2, aggregation=aggregation,
    )  # fmt: skip
    thetas = list(thetas_of(federation))
    rows, labels = np.tile(sizes / sizes.sum(), (6, 1)), np.zeros(6)
    for t, cohort in enumerate(COHORTS):
        if t == 2:
            parts = divisions(federation)
            gradients = [gradient(thetas[0], x, y) for x, y in clients]
            pairs = zip(clients, parts, strict=True)
            variances = np.array([reference.variance(thetas[0], x, y, part) for (x, y), part in pairs])
            rows, labels = reference.streams(reference.weights(gradients, variances, sizes), num_streams)
        orders = batch_orders(federation)
        fill = aggregation == "stale_fill"
        thetas = reference.ucfl_round(thetas, rows, labels, clients, orders, present=cohort, fill=fill, **options)
        federation.round(cohort)
        np.testing.assert_allclose(thetas_of(federation), np.stack(thetas), rtol=0, atol=1e-10)
    np.testing.assert_allclose(rows_of(federation).numpy(), rows, rtol=0, atol=1e-10)
    for found, theta, (x, _) in zip(federation.predictions(test), thetas, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(theta, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("labels", [[0, 1, 0, 2, 1, 0], [0, 1, 2, 3, 4, 0], [0, 1, 1, 1, 1, 1]], ids=str)
def test_the_silhouette_of_the_reference_is_that_of_scikit_learn(labels):
    rows = np.random.default_rng(0).dirichlet(np.ones(6), 6)
    assert reference.silhouette(rows, np.array(labels)) == pytest.approx(silhouette_score(rows, labels), abs=1e-12)


def test_weights_of_two_quadratics(client_trainer):
    """ḡ = (0, −12) and σ = (6, 12) at 0: Δ = 144, exponent −1."""
    train = Split(
        torch.ones(4, 1, dtype=torch.float64),
        torch.tensor([6.0, -6.0, 0.0, 24.0], dtype=torch.float64),
        torch.tensor([0, 2, 4]),
    )
    task = make_task(target=REGRESSION, num_features=1, network=Scale)
    federation = run_rounds(UCFL("personal", 0), client_trainer, train, rounds=1, task=task)
    near, far = 0.7310585786300049, 0.2689414213699951
    found = federation.shared.similarity
    assert distance(found.gradients["weight"].flatten(), torch.tensor([0.0, -12.0])) < 1e-12
    assert distance(found.variances, torch.tensor([36.0, 144.0])) < 1e-12
    assert distance(found.rows, torch.tensor([[near, far], [far, near]], dtype=torch.float64)) < 1e-12


# ---------------------------------------------------------------------- the limits of Section III
def test_the_warm_up_is_fedavg(client_trainer):
    options = {"train": make_clients(SIZES), "cohorts": COHORTS, "rounds": 5, "solver": LocalSolver(momentum=0.9)}
    federation = run_rounds(UCFL(warmup_rounds=5), client_trainer, **options)
    plain = run_rounds(FedAvg(), client_trainer, **options)
    for own in thetas_of(federation):
        assert distance(torch.from_numpy(own), plain.weights[0]) < 1e-12
    unseen = make_clients([3, 5], seed=9, first_id=6)
    found, expected = (one.predictions(unseen, seen=False) for one in (federation, plain))
    assert distance(found, expected) < 1e-12
    assert federation.metrics == pytest.approx(plain.metrics, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("num_streams", ["personal", 6])
def test_no_variance_is_local(num_streams, dtype, client_trainer):
    """A single sample each, all different: W = I, bit for bit."""
    train = make_clients([1] * 6, dtype=dtype)
    options = {"solver": LocalSolver(momentum=0.9), "task": make_task(dtype=dtype), "rounds": 3}
    cohorts = [[0, 1, 2, 3, 4, 5], [5, 0, 2], [1, 3, 4]]
    federation = run_rounds(UCFL(num_streams, 0), client_trainer, train, cohorts=cohorts, **options)
    alone = run_rounds(Local(), client_trainer, train, cohorts=cohorts, **options)
    assert same_bits(rows_of(federation), torch.eye(6, dtype=torch.float64))
    assert same_bits(federation.shared.peers.parameters, alone.states.models.parameters)
    assert same_bits(federation.predictions(), alone.predictions())


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("num_streams", [2, "silhouette"])
def test_two_groups_far_apart_are_the_oracle(num_streams, weighting, client_trainer):
    """With equal gradients within a group and far ones across, UCFL finds the groups and is FedAvg in each."""
    base, groups = two_groups([6, 6]), torch.tensor([0, 1, 0, 1, 1])
    each = [base.client(int(one)) for one in groups]
    train = Split(torch.cat([one.x for one in each]), torch.cat([one.y for one in each]), 6 * torch.arange(6))
    train = repeated(train, [1, 2, 3, 1, 1])
    cohorts = [[0, 1, 2, 3, 4], [0, 3], [2, 0], [1, 2, 4]]
    options = {"solver": LocalSolver(momentum=0.9), "groups": groups, "weighting": weighting}
    options |= {"cohorts": cohorts, "rounds": 4}
    federation = run_rounds(UCFL(num_streams, 0), client_trainer, train, **options)
    oracle = run_rounds(Oracle(), client_trainer, train, **options)
    assert torch.equal(federation.shared.similarity.stream == federation.shared.similarity.stream[0], groups == 0)
    assert distance(torch.from_numpy(thetas_of(federation)), oracle.weights[groups]) < 1e-12
    assert distance(federation.predictions(), oracle.predictions()) < 1e-12


def test_an_exponent_beyond_the_range_of_numbers():
    train = make_clients(SIZES)
    train.x = 1e6 * train.x
    federation = run_rounds(UCFL("personal", 0), None, train, rounds=1, solver=LocalSolver(lr=1e-12))
    rows = rows_of(federation)
    assert rows.isfinite().all()
    assert distance(rows.sum(1), torch.ones(6, dtype=torch.float64)) < 1e-12


# ---------------------------------------------------------------------- who takes part
def test_all_measure_also_where_few_train():
    federation = Federation(UCFL("personal", 0), make_clients(SIZES))
    special, train = federation.algorithm.phases(federation.context("plan"), torch.tensor([4, 1]))
    assert (special.name, special.client_ids.tolist()) == ("similarity", list(range(6)))
    assert (train.name, train.client_ids.tolist()) == ("train", [4, 1])
    federation.round_idx = 1
    assert len(federation.algorithm.phases(federation.context("plan"), torch.tensor([4, 1]))) == 1


def test_a_stream_without_participants_keeps_its_model(client_trainer):
    train = two_groups([8] * 4)
    federation = Federation(UCFL(2, 0, num_batches=8), train, trainer=client_trainer)
    federation.round()
    before = thetas_of(federation)
    federation.round([0, 2])
    after = thetas_of(federation)
    assert np.array_equal(before[[1, 3]], after[[1, 3]])
    assert (np.abs(before[[0, 2]] - after[[0, 2]]).max(1) > 0).all()


def test_a_client_drawn_twice_counts_twice(client_trainer):
    train = make_clients(SIZES)
    federation = Federation(UCFL("personal", 0), train, trainer=client_trainer)
    federation.round()
    thetas, rows, orders = list(thetas_of(federation)), rows_of(federation).numpy().copy(), batch_orders(federation)
    federation.round([3, 0, 3])
    rows[:, 3] *= 2
    expected = reference.ucfl_round(thetas, rows, range(6), as_arrays(train), orders, present=[0, 3], lr=0.1)
    np.testing.assert_allclose(thetas_of(federation), np.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_streams", ["personal", "silhouette"])
def test_other_numbers_for_the_clients_permute_the_results(num_streams, client_trainer):
    train, order = make_clients(SIZES[:4]), torch.tensor([2, 0, 3, 1])
    renamed = reordered(train, order)
    algorithm = UCFL(num_streams, 1, num_batches=9)  # each sample is a batch, whatever the division
    one, other = (run_rounds(algorithm, client_trainer, data, batch_size=0) for data in (train, renamed))
    assert distance(rows_of(one)[order][:, order], rows_of(other)) < 1e-10
    assert np.abs(thetas_of(one)[order.numpy()] - thetas_of(other)).max() < 1e-10
    predictions = one.predictions()
    assert distance([predictions[row] for row in order.tolist()], other.predictions()) < 1e-10


# ---------------------------------------------------------------------- serving, traffic, settings
@pytest.mark.parametrize("num_streams", ["personal", 2])
def test_unseen_clients_are_served_by_the_closest_row(num_streams, client_trainer):
    train, unseen = make_clients(SIZES), make_clients([6, 3, 12, 5], seed=2, first_id=6)
    federation = Federation(UCFL(num_streams, 1), train, trainer=client_trainer, num_rounds=3)
    federation.round()
    common = thetas_of(federation)[0]
    parts = divisions(federation)
    federation.round()
    federation.round()
    clients, sizes, unseen_clients = as_arrays(train), np.array(SIZES, dtype=float), as_arrays(unseen)
    gradients = [gradient(common, x, y) for x, y in clients]
    variances = [reference.variance(common, x, y, part) for (x, y), part in zip(clients, parts, strict=True)]
    expected = []
    for (x, y), part in zip(unseen_clients, divisions(federation, unseen), strict=True):
        own = gradient(common, x, y), reference.variance(common, x, y, part)
        every = reference.weights([*gradients, own[0]], np.array([*variances, own[1]]), np.array([*sizes, 1e-300]))
        expected.append(int(((rows_of(federation).numpy() - every[-1, :-1]) ** 2).sum(1).argmin()))
    assert len(set(expected)) > 1
    served = federation.serve(unseen, seen=False)
    assert served.user.tolist() == expected
    for found, i, (x, _) in zip(federation.predictions(unseen, seen=False), expected, unseen_clients, strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(thetas_of(federation)[i], x), rtol=0, atol=1e-10)
    assert same_bits(federation.serve(), federation.states)
    assert federation.states.user.tolist() == list(range(6))


def test_unseen_clients_of_a_group_get_the_model_of_their_group(client_trainer):
    train = two_groups([8] * 6)
    federation = run_rounds(UCFL(warmup_rounds=0), client_trainer, train)
    unseen = two_groups([5, 7], seed=4)
    unseen.first_id = 6
    assert (federation.serve(unseen, seen=False).user % 2).tolist() == [0, 1]


def test_unseen_clients_without_samples():
    federation = run_rounds(UCFL(warmup_rounds=0), None, make_clients(SIZES))
    assert federation.serve(make_clients([0, 3], first_id=6), seen=False).user.max() < 6


def test_one_model_goes_each_way_and_in_the_special_round_two():
    task, train = make_task(dtype=torch.float32), make_clients(SIZES, dtype=torch.float32)
    federation = Federation(UCFL(2, 1), train, task, num_rounds=3)
    model = 5 * 32
    sent = model + 64  # with the number of the client
    for cohort, expected in (
        ([0, 1, 3], [3 * model, 3 * sent]),
        ([0, 1, 3], [3 * model + 6 * (model + 32), 3 * sent + 6 * sent]),
        ([2, 5], [2 * model, 2 * sent]),
    ):
        federation.round(cohort)
        assert federation.bits.tolist() == expected


def test_payloads_are_the_streams_that_are_heard():
    train = two_groups([8] * 4)
    federation = run_rounds(UCFL(2, 0, num_batches=8), None, train, rounds=2)
    algorithm, ctx = federation.algorithm, federation.context("train")
    assert algorithm.num_payloads(ctx, federation.shared, 4) == 2
    some = ctx._replace(present=torch.tensor([True, False, True, False]))
    assert algorithm.num_payloads(some, federation.shared, 2) == 1
    assert algorithm.num_payloads(ctx._replace(round_idx=0), federation.shared, 4) == 1
    personal = run_rounds(UCFL("personal", 0), None, train, rounds=2)
    assert personal.algorithm.num_payloads(ctx, personal.shared, 4) == 4


def test_collaboration_is_that_of_the_special_round():
    federation = Federation(UCFL(2, 1), make_clients(SIZES), num_rounds=2)
    shown = []
    for _ in range(2):
        federation.round()
        ctx = federation.context("evaluate")
        shown.append(federation.algorithm.collaboration(ctx, federation.shared, federation.states))
    assert distance(shown[0], torch.full((6, 6), 1 / 6, dtype=torch.float64)) < 1e-12
    assert distance(shown[1], rows_of(federation)) < 1e-12
