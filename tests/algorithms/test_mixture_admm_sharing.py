import numpy as np
import pytest
import torch

import lit_fed.algorithms.mixture_admm as sharing
from lit_fed.algorithms.mixture_admm import SharingClient, SharingServer, SharingWeights
from lit_fed.core.types import ModelState, Reduced
from lit_fed.errors import ConfigError

N, PROX, RHO, BETA, COPY = WEIGHTS = SharingWeights(3, 0.5, 0.8, 0.3, 1.7)


def leaf(*values):
    return {"w": torch.tensor([values], dtype=torch.float64)}


def numbers(one):
    return one["w"][0].numpy()


SERVER = SharingServer(ModelState(leaf(1.0, -2.0), {"mean": torch.tensor([[4.0]])}), leaf(0.2, 0.1), leaf(2.0, -5.0))
Z, Y, TOTAL = np.array([1.0, -2.0]), np.array([0.2, 0.1]), np.array([2.0, -5.0])


def test_everybody_starts_at_the_mean():
    server = sharing._initial_server(SERVER.models, N)
    assert server.models is SERVER.models
    assert numbers(server.dual).tolist() == [0, 0]
    assert numbers(server.total).tolist() == [3, -6]
    assert numbers(sharing._others(server, WEIGHTS)).tolist() == [0, 0]


def test_what_a_client_has_to_know_of_the_others():
    np.testing.assert_allclose(numbers(sharing._others(SERVER, WEIGHTS)), Y + RHO * (N * Z - TOTAL), atol=1e-14)


def test_a_copy_moves_to_the_minimum_of_its_lagrangian():
    """ρ_i/2·‖x_i − x'‖² + ⟨y_i, x'⟩ − ⟨y, x'⟩ + ρ/2·‖N·z − Σ_{j≠i} x'_j − x'‖² has no slope there."""
    x, old, y_i = np.array([0.7, 0.4]), np.array([0.5, -1.0]), np.array([-0.3, 0.6])
    client = SharingClient(ModelState(leaf(*x), {}), leaf(*old), leaf(*y_i))
    new = sharing._move_copy(SERVER, client, WEIGHTS)
    copy = numbers(new.copy)
    slope = COPY * (copy - x) + y_i - Y - RHO * (N * Z - (TOTAL - old) - copy)
    np.testing.assert_allclose(slope, 0, atol=1e-14)
    np.testing.assert_allclose(numbers(new.dual), y_i + BETA * (copy - x), atol=1e-14)
    assert new.models is client.models


def test_changes_add_up():
    """Two of three clients took part: their mean change counts twice, and a third of it in the mean's buffers."""
    reduced = Reduced(ModelState(leaf(0.5, 1.0), {"mean": torch.tensor([[0.6]]).double()}), torch.tensor(2.0).double())
    new = sharing._add_changes(SERVER, reduced, N)
    np.testing.assert_allclose(numbers(new.total), TOTAL + 2 * np.array([0.5, 1.0]), atol=1e-14)
    assert float(new.models.buffers["mean"]) == pytest.approx(4 + 2 * 0.6 / 3)
    assert new.models.parameters is SERVER.models.parameters
    assert new.dual is SERVER.dual


def test_the_mean_moves_to_the_minimum_of_its_lagrangian():
    """−λN/2·‖z‖² + ⟨y, N·z⟩ + ρ/2·‖N·z − Σ‖² has no slope there."""
    new = sharing._mean_step(SERVER, WEIGHTS)
    z = numbers(new.models.parameters)
    np.testing.assert_allclose(-PROX * N * z + N * Y + RHO * N * (N * z - TOTAL), 0, atol=1e-13)
    np.testing.assert_allclose(numbers(new.dual), Y + BETA * (N * z - TOTAL), atol=1e-14)


def test_weights_without_a_minimum_are_refused():
    sharing._check_weights(WEIGHTS, copies=True)
    sharing._check_weights(WEIGHTS._replace(copy=0.0), copies=False)
    message = (
        r"--model\.algorithm\.penalty_weight is 0\.1, and 3 clients times that is not above prox_weight 0\.5; give"
    )
    with pytest.raises(ConfigError, match=message):
        sharing._check_weights(WEIGHTS._replace(penalty=0.1), copies=False)
    with pytest.raises(ConfigError, match=r"--model\.algorithm\.copy_weight is 0, ten times prox_weight; give"):
        sharing._check_weights(WEIGHTS._replace(copy=0.0), copies=True)
