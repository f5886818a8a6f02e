import math

import numpy as np
import pytest
import torch
from federated_round import distance, make_clients, make_context, make_task
from sklearn.metrics import silhouette_score
from torch import nn
from torch.func import vmap

from lit_fed.algorithms.ucfl import (
    Similarity,
    _batch_numbers,
    _measured_similarity,
    _served_models,
    _statistics,
    _stream_rows,
    _streams_of,
    user_weights,
)
from lit_fed.core.graphs.peers import same_start
from lit_fed.core.types import ClientData, ModelState, Reduced


def context(**fields):
    return make_context(most_samples=9, **fields)


def padded(data, extra):
    count = len(data.mask)
    index = torch.cat([torch.arange(count), torch.zeros(extra, dtype=torch.int64)])
    return ClientData(data.all_x, data.all_y, index, (torch.arange(count + extra) < count).float(), data.client_id)


# ---------------------------------------------------------------------- at a client
@pytest.mark.parametrize("num_batches", [2, 3, 9, 20])
def test_batches_are_of_equal_size_and_divide_the_samples(num_batches):
    data = make_clients([9]).client(0)
    sizes = torch.bincount(_batch_numbers(context(), data, num_batches), minlength=num_batches)
    assert int(sizes.sum()) == 9
    assert int(sizes.max() - sizes.min()) <= 1


def test_batches_depend_on_round_and_client_and_not_on_padding():
    data, other = (make_clients([9, 9]).client(one) for one in (0, 1))
    first = _batch_numbers(context(), data, 3)
    assert torch.equal(first, _batch_numbers(context(), padded(data, 4), 3)[:9])
    assert not torch.equal(first, _batch_numbers(context(), other, 3))
    assert not torch.equal(first, _batch_numbers(context(round_idx=1), data, 3))


def test_an_unseen_client_may_have_more_samples_than_any_client():
    data = make_clients([25], first_id=10).client(10)
    assert torch.bincount(_batch_numbers(context(), data, 2)).tolist() == [13, 12]


def test_gradient_and_variance_of_batches():
    task, data = make_task(), make_clients([9]).client(0)
    models, ctx = task.init(1, 0), context(task=task)
    found, number = _statistics(ctx, models, data, 4), _batch_numbers(ctx, data, 4)
    _, whole = task.full_gradient(models, data)
    assert distance(found.gradient, whole) < 1e-14
    squares = []
    for k in range(4):
        rows = (number == k).nonzero()[:, 0]
        part = ClientData(data.all_x, data.all_y, rows, torch.ones(len(rows)), data.client_id)
        _, own = task.full_gradient(models, part)
        squares.append(sum(float((own[name] - whole[name]).square().sum()) for name in whole))
    assert float(found.variance) == pytest.approx(np.mean(squares), abs=1e-14)
    assert distance(found, _statistics(ctx, models, padded(data, 5), 4)) < 1e-14


@pytest.mark.parametrize(("size", "known"), [(0, False), (1, False), (2, True)])
def test_batches_without_samples_do_not_count(size, known):
    task, data = make_task(), make_clients([size, 3]).client(0)
    found = _statistics(context(task=task), task.init(1, 0), data, 5)
    assert all(leaf.isfinite().all() for leaf in found.gradient.values())
    assert (float(found.variance) > 0) is known


class Noisy(nn.Module):
    """Dropout and BatchNorm, which would make a sample's gradient depend on the others and on chance."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, outputs))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("model_axis", ["loop", "vmap"])
def test_gradients_are_taken_in_a_fixed_mode(model_axis):
    task, data = make_task(network=Noisy, model_axis=model_axis), make_clients([9]).client(0)
    models, ctx = task.init(1, 0), context(task=task)
    one, other = (_statistics(ctx, models, data, 2) for _ in range(2))
    assert distance(one, other) == 0
    network = task.network.eval()
    leaves = {name: leaf[0].clone().requires_grad_() for name, leaf in models.parameters.items()}
    buffers = {name: leaf[0] for name, leaf in models.buffers.items()}
    logit = torch.func.functional_call(network, (leaves, buffers), (data.x,))[:, 0]
    nn.functional.binary_cross_entropy_with_logits(logit, data.y.double()).backward()
    assert (
        distance({name: leaf.grad for name, leaf in leaves.items()}, {n: g[0] for n, g in one.gradient.items()}) < 1e-12
    )


# ---------------------------------------------------------------------- weights
def random_gradients(count, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return {"a": torch.randn(count, 1, 3, generator=rng).double(), "b": torch.randn(count, 1, generator=rng).double()}


def test_weights_are_those_of_the_equation():
    gradients, variances = random_gradients(4), torch.tensor([1.0, 2.0, 0.5, 3.0]).double()
    weight = torch.tensor([3.0, 1.0, 2.0, 7.0]).double()
    found = user_weights(gradients, variances, (gradients, variances), weight)
    points = torch.cat([leaf.flatten(1) for leaf in gradients.values()], 1)
    for i in range(4):
        raw = [
            float(weight[j] / weight[i])
            * math.exp(-float((points[i] - points[j]).square().sum()) / (2 * math.sqrt(variances[i] * variances[j])))
            for j in range(4)
        ]
        assert distance(found[i], torch.tensor(raw, dtype=torch.float64) / sum(raw)) < 1e-12
    assert distance(found.sum(1), torch.ones(4).double()) < 1e-12


def test_an_unknown_variance_is_the_mean_of_the_others():
    gradients, weight = random_gradients(3), torch.ones(3)
    unknown, known = (torch.tensor([1.0, one, 3.0]).double() for one in (0.0, 2.0))
    found, expected = (user_weights(gradients, one, (gradients, one), weight) for one in (unknown, known))
    assert distance(found, expected) < 1e-12
    none = user_weights(gradients, 0 * known, (gradients, 0 * known), weight)
    assert distance(none, torch.eye(3).double()) == 0


def test_clients_without_samples_count_for_nobody():
    gradients, variances = random_gradients(3), torch.ones(3).double()
    found = user_weights(gradients, variances, (gradients, variances), torch.tensor([1.0, 0.0, 2.0]))
    assert (found[:, 1] == 0).all()
    assert found.isfinite().all()


def test_a_common_part_of_gradients_costs_no_digits():
    gradients, variances = random_gradients(4), torch.ones(4).double()
    shifted = {name: leaf + 1e5 for name, leaf in gradients.items()}
    one, other = (user_weights(each, variances, (each, variances), torch.ones(4)) for each in (gradients, shifted))
    assert distance(one, other) < 1e-9


def test_weights_of_unseen_clients_under_vmap():
    gradients, variances, weight = random_gradients(4), torch.ones(4).double(), torch.ones(4)
    new, spread = random_gradients(2, seed=1), torch.tensor([0.5, 2.0]).double()

    def row(gradient, variance):
        one = {name: leaf[None] for name, leaf in gradient.items()}
        return user_weights(one, variance.view(1), (gradients, variances), weight)[0]

    expected = user_weights(new, spread, (gradients, variances), weight)
    assert distance(vmap(row)(new, spread), expected) < 1e-14


# ---------------------------------------------------------------------- streams
def blocks(sizes, seed=0, noise=0.02):
    """Rows of weights of clients in groups, a little different within each."""
    rng = torch.Generator().manual_seed(seed)
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    rows = (group[:, None] == group).double() + noise * torch.rand(len(group), len(group), generator=rng).double()
    return rows / rows.sum(1, keepdim=True), group


def same_partition(a, b):
    return torch.equal(a[:, None] == a, b[:, None] == b)


@pytest.mark.parametrize("sizes", [(3, 4), (5, 5, 5, 5), (2, 6, 3)])
def test_the_silhouette_finds_the_groups(sizes):
    rows, group = blocks(sizes)
    assert same_partition(_streams_of(rows, "silhouette"), group)
    assert same_partition(_streams_of(rows, len(sizes)), group)


def all_divisions(count):
    """Every division of clients into streams, [divisions, count]; streams are numbered as they first appear."""
    found = [[0]]
    for _ in range(count - 1):
        found = [[*one, stream] for one in found for stream in range(max(one) + 2)]
    return np.array(found)


def spread(rows, labels):
    """What k-means minimises: squared distances to the mean of the own stream."""
    return sum(np.square(rows[labels == one] - rows[labels == one].mean(0)).sum() for one in set(labels))


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize(
    ("group", "number"),
    [
        ([0, 0, 0, 0, 1, 1, 1], 2),
        ([0, 1, 2, 0, 1, 0, 2], 3),
        ([3, 0, 0, 1, 1, 2, 2], 4),
        ([4, 0, 0, 2, 1, 3, 1], 5),
        ([1, 0, 2, 3, 4, 5, 0], 6),  # one less than clients, the most that have a silhouette
    ],
)
def test_the_number_of_streams_is_that_of_the_largest_silhouette(group, number, noise):
    """Of the best divisions into 2 to T − 1 streams, found by trying all; without noise the rows of a group agree."""
    group = torch.tensor(group)
    drawn = noise * torch.randn(7, 7, generator=torch.Generator().manual_seed(number)).double()
    rows = torch.softmax(3 * (group[:, None] == group).double() + drawn, 1)
    points, best = rows.numpy(), {}
    for labels in all_divisions(7):
        count = len(set(labels))
        if 2 <= count <= 6 and (count not in best or spread(points, labels) < spread(points, best[count]) - 1e-15):
            best[count] = labels
    scores = {count: silhouette_score(points, labels) for count, labels in best.items()}
    assert max(scores, key=scores.get) == number
    assert same_partition(_streams_of(rows, "silhouette"), torch.from_numpy(best[number]))


def test_the_silhouette_is_the_largest_over_all_numbers():
    rng = torch.Generator().manual_seed(5)
    rows = torch.softmax(3 * torch.randn(9, 9, generator=rng).double(), 1)
    scores = {k: silhouette_score(rows.numpy(), _streams_of(rows, k).numpy()) for k in range(2, 9)}
    found = _streams_of(rows, "silhouette")
    assert silhouette_score(rows.numpy(), found.numpy()) == pytest.approx(max(scores.values()), abs=1e-6)


@pytest.mark.parametrize("num_streams", ["personal", 7, 9])
def test_as_many_streams_as_clients(num_streams):
    rows, _ = blocks((3, 4))
    found = _streams_of(rows, num_streams)
    assert len(found.unique()) == 7
    assert torch.equal(_stream_rows(rows, found), rows)


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_clients_for_a_silhouette(count):
    assert len(_streams_of(torch.eye(count).double(), "silhouette").unique()) == count


def test_what_is_measured_is_kept():
    gradients, variances, weight = random_gradients(4), torch.ones(4).double(), torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = _measured_similarity(Reduced((gradients, variances), weight), "personal")
    assert distance(found.rows, user_weights(gradients, variances, (gradients, variances), weight)) < 1e-15
    assert found.gradients is gradients
    assert torch.equal(found.weight, weight)


# ---------------------------------------------------------------------- aggregation
ROWS = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.5, 0.3, 0.2]], dtype=torch.float64)
WEIGHT = torch.tensor([2.0, 3.0, 5.0]).double()


def aggregated(client_ids, multiplicity, aggregation="renormalised", dtype=torch.float64):
    """The models that three clients get that had 1, 2, 3 and of which some send 10, 20, 30; with a counter."""
    old = ModelState({"w": torch.tensor([[1.0], [2.0], [3.0]], dtype=dtype)}, {"n": torch.tensor([[1], [2], [3]])})
    peers = same_start(ModelState({"w": torch.zeros(1, dtype=dtype)}, {"n": torch.zeros(1, dtype=torch.int64)}), 3)
    peers = peers._replace(parameters=old.parameters, buffers=old.buffers)
    ids = torch.tensor(client_ids)
    sent = ModelState({"w": 10 * old.parameters["w"][ids]}, {"n": 10 * old.buffers["n"][ids]})
    known = Similarity(ROWS, torch.tensor([0, 1, 0]), {}, torch.ones(3), WEIGHT)
    reduced = Reduced(sent, WEIGHT[ids] * torch.tensor(multiplicity))
    ctx = make_context(num_clients=3, total_samples=10, aggregation=aggregation)
    return _served_models(ctx, known, peers, reduced, ids)


def test_rows_are_scaled_to_those_that_took_part():
    found = aggregated([0, 2], [1.0, 1.0])
    mean = (0.5 * 10 + 0.2 * 30) / 0.7
    assert distance(found.parameters["w"][:, 0], torch.tensor([mean, 2.0, mean], dtype=torch.float64)) < 1e-12
    assert found.buffers["n"][:, 0].tolist() == [round(mean), 2, round(mean)]
    assert distance(found.mean.parameters["w"], found.parameters["w"].mean(0)) < 1e-12


def test_old_models_may_fill_rows_up():
    found = aggregated([0, 2], [1.0, 1.0], "stale_fill")
    expected = torch.tensor([11.0 + 0.3 * 1, 2.0, 11.0 + 0.3 * 3], dtype=torch.float64)
    assert distance(found.parameters["w"][:, 0], expected) < 1e-12


def test_a_client_drawn_twice_counts_twice():
    found = aggregated([0, 1, 2], [1.0, 1.0, 2.0])
    mean = (0.5 * 10 + 0.3 * 20 + 0.4 * 30) / 1.2
    assert distance(found.parameters["w"][:, 0], torch.tensor([mean, 20.0, mean], dtype=torch.float64)) < 1e-12


def test_a_stream_without_participants_keeps_its_models():
    assert aggregated([1], [1.0]).parameters["w"][:, 0].tolist() == [1.0, 20.0, 3.0]


def test_types_stay():
    found = aggregated([0, 1, 2], [1.0, 1.0, 1.0], dtype=torch.float32)
    assert found.parameters["w"].dtype == torch.float32
    assert found.buffers["n"].dtype == torch.int64
