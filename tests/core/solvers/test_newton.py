import pytest
import torch
from federated_round import BINARY, MULTICLASS, REGRESSION, Scale, distance, make_clients, make_task, quadratics
from torch.func import vmap

from lit_fed.core import tree
from lit_fed.core.local_solver import Penalty
from lit_fed.core.solvers.newton import MOST_PARAMETERS, minimise
from lit_fed.core.types import Batch, ClientData
from lit_fed.errors import ConfigError


def a_penalty(task, weight=0.3):
    """A penalty with all three parts, anchored away from where the solves start."""
    anchor, linear = (tree.scale(task.init(1, seed).parameters, 2.0) for seed in (5, 6))
    return Penalty(weight, anchor, linear)


def padded(data, extra=3):
    """The client with samples that do not count."""
    index = torch.cat([torch.arange(len(data.y)), torch.zeros(extra, dtype=torch.int64)])
    mask = torch.cat([torch.ones(len(data.y)), torch.zeros(extra)])
    return ClientData(data.all_x, data.all_y, index, mask, data.client_id)


def slope(task, models, data, penalty):
    """Length of the gradient of loss and penalty."""
    _, gradient = task.full_gradient(models, data)
    return float(tree.norm(tree.add(gradient, penalty.gradient(models.parameters))))


# ---------------------------------------------------------------------- the minimum
@pytest.mark.parametrize("weight", [0.05, 0.3, 30.0])
@pytest.mark.parametrize("target", [BINARY, MULTICLASS, REGRESSION], ids=lambda one: one.kind)
def test_the_gradient_vanishes(target, weight):
    task, penalty = make_task(target), a_penalty(make_task(target), weight)
    for seed in range(3):
        data = make_clients([9], target=target, seed=seed).client(0)
        start = task.init(1, seed)
        assert slope(task, start, data, penalty) > 1e-2
        assert slope(task, minimise(task, start, data, penalty), data, penalty) < 1e-10


@pytest.mark.parametrize("target", [BINARY, MULTICLASS, REGRESSION], ids=lambda one: one.kind)
def test_padding_does_not_count(target):
    task, data = make_task(target), make_clients([9], target=target).client(0)
    one, other = (minimise(task, task.init(1, 0), each, a_penalty(task)) for each in (data, padded(data)))
    assert distance(one, other) < 1e-13


def test_the_gradient_vanishes_from_a_saturated_start():
    """Where the loss is flat a full Newton step goes far astray; the shorter ones lead back."""
    task, penalty = make_task(MULTICLASS), a_penalty(make_task(MULTICLASS), 0.05)
    data = make_clients([9], target=MULTICLASS).client(0)
    start = tree.scale(task.init(1, 0), 20.0)
    assert slope(task, minimise(task, start, data, penalty), data, penalty) < 1e-10


def test_the_start_does_not_matter():
    task, data = make_task(), make_clients([9]).client(0)
    one, other = (minimise(task, task.init(1, seed), data, a_penalty(task)) for seed in (0, 1))
    assert distance(one, other) < 1e-10


# ---------------------------------------------------------------------- quadratics
def test_a_quadratic_takes_one_iteration():
    task, data = make_task(REGRESSION), make_clients([9], target=REGRESSION).client(0)
    penalty = a_penalty(task)
    once = minimise(task, task.init(1, 0), data, penalty, iterations=1)
    assert slope(task, once, data, penalty) < 1e-12
    assert distance(once, minimise(task, task.init(1, 0), data, penalty)) < 1e-12


def test_the_proximal_point_of_a_parabola():
    """The minimum of ½·3(w − 4)² + ½·2(w − 1)² + w lies at (3·4 + 2·1 − 1) / (3 + 2)."""
    task = make_task(REGRESSION, num_features=1, network=Scale)
    one = {"weight": torch.ones(1, 1, dtype=torch.float64)}
    found = minimise(task, task.init(1, 0), quadratics([3.0], [4.0]).client(0), Penalty(2.0, one, one))
    assert float(found.parameters["weight"]) == pytest.approx(13 / 5, abs=1e-12)


def test_without_a_penalty_it_is_least_squares():
    task, data = make_task(REGRESSION), make_clients([9], target=REGRESSION).client(0)
    found = minimise(task, task.init(1, 0), data, Penalty())
    x = torch.cat([data.x, torch.ones(9, 1, dtype=torch.float64)], dim=1)
    expected = torch.linalg.lstsq(x, data.y[:, None]).solution[:, 0]
    parameters = found.parameters
    assert distance(torch.cat([parameters["linear.weight"][0, 0], parameters["linear.bias"][0]]), expected) < 1e-11


def test_without_samples_only_the_penalty_counts():
    task, data = make_task(), make_clients([9]).client(0)
    anchor = task.init(1, 7).parameters
    nothing = data._replace(mask=torch.zeros(9))
    assert distance(minimise(task, task.init(1, 0), nothing, Penalty(2.0, anchor)).parameters, anchor) < 1e-14


# ---------------------------------------------------------------------- many at once
@pytest.mark.parametrize("target", [BINARY, MULTICLASS, REGRESSION], ids=lambda one: one.kind)
def test_clients_at_once_are_clients_one_by_one(target):
    task, train = make_task(target), make_clients([6, 2, 9], target=target)
    clients = [train.client(one) for one in range(3)]
    lengths = torch.tensor([6, 2, 9])
    index = (train.offsets[:3, None] + torch.arange(9)).clamp(max=16)
    mask = (torch.arange(9) < lengths[:, None]).float()
    starts = tree.stack([task.init(1, seed) for seed in range(3)])
    weights = torch.tensor([0.2, 1.0, 5.0], dtype=torch.float64)
    anchor = task.init(1, 9).parameters

    def solve(models, index, mask, weight):
        return minimise(task, models, ClientData(train.x, train.y, index, mask, weight), Penalty(weight, anchor))

    at_once = vmap(solve)(starts, index, mask, weights)
    for row, client in enumerate(clients):
        alone = minimise(task, tree.index(starts, row), client, Penalty(weights[row], anchor))
        assert distance(tree.index(at_once, row), alone) < 1e-12


def test_a_batch_will_do():
    task, data = make_task(), make_clients([9]).client(0)
    whole = data.batch
    some = Batch(whole.x[:4], whole.y[:4], whole.index[:4], whole.mask[:4])
    client = data._replace(index=torch.arange(4), mask=whole.mask[:4])
    one, other = (minimise(task, task.init(1, 0), each, a_penalty(task)) for each in (some, client))
    assert distance(one, other) < 1e-14


# ---------------------------------------------------------------------- manners
def test_inputs_unchanged_and_types_kept():
    for dtype in (torch.float32, torch.float64):
        task, data = make_task(dtype=dtype), make_clients([9], dtype=dtype).client(0)
        start, penalty = task.init(1, 0), a_penalty(task)
        before = tree.map_leaves(torch.clone, (start, penalty.anchor, penalty.linear))
        found = minimise(task, start, data, penalty)
        assert distance((start, penalty.anchor, penalty.linear), before) == 0
        assert {leaf.dtype for leaf in tree.leaves(found)} == {dtype}
        assert slope(task, found, data, penalty) < (1e-10 if dtype == torch.float64 else 1e-5)


def test_too_many_parameters_are_named():
    task = make_task(num_features=MOST_PARAMETERS)
    data = make_clients([2], num_features=MOST_PARAMETERS).client(0)
    with pytest.raises(ConfigError, match=f"{MOST_PARAMETERS + 1} parameters; it takes up to {MOST_PARAMETERS}"):
        minimise(task, task.init(1, 0), data, Penalty(1.0))
