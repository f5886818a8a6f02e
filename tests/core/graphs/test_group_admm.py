import numpy as np
import pytest
import torch
from federated_round import make_clients, make_context, make_task

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels
from lit_fed.core.graphs.group_admm import (
    augmented,
    costed_network,
    group_phases,
    initial_network,
    multiplier_step,
    neighbours_of,
    two_groups,
)
from lit_fed.core.graphs.peers import put_models
from lit_fed.core.graphs.topology import PathGraph, Ring, Star
from lit_fed.core.types import LocalWork, ModelState
from lit_fed.errors import ConfigError

EDGES = torch.tensor([[0, 1, 1], [1, 0, 0], [1, 0, 0]], dtype=torch.float64)
X = torch.tensor([[1.0, 2.0, -1.0, 0.5, 3.0], [0.0, 1.0, 4.0, -2.0, 1.0], [2.0, 2.0, 2.0, 2.0, 2.0]]).double()


def network():
    """Three clients that have sent the rows of X, and α = (1, 2, −3) in every entry."""
    models = make_task().init(1, 0)
    start = initial_network(models, 3)
    rows = ModelState({"linear.weight": X[:, :4].view(3, 1, 1, 4), "linear.bias": X[:, 4:].view(3, 1, 1)}, {})
    names = list(models.parameters)
    rows = ModelState(dict(zip(names, rows.parameters.values(), strict=True)), {})
    dual = tree.map_leaves(
        lambda leaf: torch.tensor([1.0, 2, -3]).double().view(3, *[1] * (leaf.ndim - 1)) + 0 * leaf, start.dual
    )
    return start._replace(peers=put_models(start.peers, torch.arange(3), rows), dual=dual)


def flat(leaves):
    return torch.cat([leaf.flatten(1) for leaf in leaves.values()], 1)


def test_the_start():
    models = make_task().init(1, 0)
    found = costed_network(models, 3)
    assert flat(found.network.dual).tolist() == [[0] * 5] * 3
    assert found.cost.tolist() == [0, 0, 0]
    assert found.cost.dtype == torch.float64
    assert torch.equal(flat(found.network.peers.parameters), flat(models.parameters).expand(3, 5))


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("client", [0, 1, 2, 3])
def test_what_is_added_to_a_clients_loss(client, weighting):
    """The gradient of ⟨x, α_i⟩ + ρ/2·Σ_j ‖x − x_j‖², over the weight of f_i; unseen ones have the last row and no α."""
    given, rho = network(), 0.7
    ctx = make_context(num_clients=3, total_samples=20, weighting=weighting)
    data = make_clients([5, 2, 8, 5]).client(client)
    edges = torch.cat([EDGES, torch.tensor([[0.0, 1.0, 0.0]]).double()])
    run = augmented(ctx, given, GlobalModels(make_task().init(1, 0)), data, edges, rho)
    theta = torch.arange(5.0).double()
    like = tree.map_leaves(lambda leaf: leaf[:1], given.dual)
    parts = torch.split(theta, [leaf.numel() for leaf in like.values()])
    point = {name: part.view(leaf.shape[1:]) for (name, leaf), part in zip(like.items(), parts, strict=True)}
    alpha = [1.0, 2.0, -3.0, 0.0][client]
    near = [[1, 2], [0], [0], [1]][client]
    expected = alpha + rho * sum(theta - flat(given.peers.parameters)[j] for j in near)
    share = 3 * len(data.y) / 20 if weighting == "samples" else 1.0
    found = torch.cat([leaf.flatten() for leaf in run.extra[0].gradient(point).values()])
    np.testing.assert_allclose(found.numpy(), (expected / share).numpy(), atol=1e-12)


def test_the_dual_step_adds_differences_to_neighbours():
    given = network()
    sent = flat(given.peers.parameters)
    found = flat(multiplier_step(given, EDGES, 0.7).dual)
    expected = torch.stack(
        [1 + 0.7 * (2 * sent[0] - sent[1] - sent[2]), 2 + 0.7 * (sent[1] - sent[0]), -3 + 0.7 * (sent[2] - sent[0])]
    )
    np.testing.assert_allclose(found.numpy(), expected.numpy(), atol=1e-12)
    assert float(found.sum(0).abs().max()) < 1e-12


def test_phases_of_the_two_groups():
    heads, work = torch.tensor([True, False, True, False]), LocalWork(epochs=2)
    phases = group_phases(torch.tensor([3, 1, 0, 1, 2]), heads, work)
    assert [(one.name, one.client_ids.tolist(), one.work) for one in phases] == [
        ("heads", [0, 2], work),
        ("tails", [1, 3], work),
    ]
    assert [one.name for one in group_phases(torch.tensor([2]), heads, work)] == ["heads"]


def test_groups_of_a_graph():
    heads, edges = two_groups(Star(1), 4, 0)
    assert heads.tolist() == [True, False, True, True]
    assert edges.sum(1).tolist() == [1, 3, 1, 1]
    assert two_groups(PathGraph(), 3, 0)[0].tolist() == [True, False, True]
    with pytest.raises(ConfigError, match="odd length"):
        two_groups(Ring(), 5, 0)


def test_rows_of_the_adjacency():
    assert neighbours_of(EDGES, torch.tensor(0)).tolist() == [0, 1, 1]
    assert neighbours_of(EDGES, torch.tensor(7)).tolist() == [1, 0, 0]
