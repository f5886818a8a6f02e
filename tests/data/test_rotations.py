import numpy as np
import pytest

from lit_fed.data import IID, Dirichlet, PooledDataSet, Rotations, Samples, build_populations
from lit_fed.errors import ConfigError

LABELS = np.random.default_rng(0).integers(0, 10, size=400)


class Numbered(PooledDataSet):
    """Pictures [2, side, other] whose pixels are all different, within one and between them."""

    num_classes = 10

    def __init__(self, *shape):
        self.shape = shape

    def load(self):
        x = np.arange(len(LABELS) * np.prod(self.shape), dtype=np.float32).reshape(len(LABELS), *self.shape)
        return Samples(x, LABELS.copy())


def clients(partition, dataset, num_clients=8):
    """Numbers, pictures and labels of the samples of each client, and the groups."""
    seen, _ = build_populations(dataset, partition, num_clients, seed=5, test_fraction=0.0)
    data = [seen.train.client(client) for client in range(num_clients)]
    size = np.prod(dataset.shape)
    return [
        ((one.x.numpy().reshape(len(one.x), -1).min(1) // size).astype(int), one.x.numpy(), one.y.numpy())
        for one in data
    ], seen.groups


@pytest.mark.parametrize(("num_groups", "turns"), [(1, [0]), (2, [0, 2]), (4, [0, 1, 2, 3])])
def test_pictures_are_turned_by_group_and_labels_stay(num_groups, turns):
    dataset = Numbered(2, 3, 3)
    original = dataset.load()
    found, groups = clients(Rotations(num_groups, Dirichlet(0.4)), dataset)
    assert groups.tolist() == [client % num_groups for client in range(8)]
    for client, (rows, x, y) in enumerate(found):
        upright = np.stack([np.rot90(one, -turns[client % num_groups], axes=(1, 2)) for one in x])
        np.testing.assert_array_equal(upright, original.x[rows])
        np.testing.assert_array_equal(y, original.y[rows])
    assert sorted(np.concatenate([rows for rows, _, _ in found]).tolist()) == list(range(400))


def test_a_quarter_turn_is_counterclockwise():
    x, _ = Rotations(4).altered(np.array([[[0, 1], [2, 3]]] * 2), np.zeros(2), [np.array([0]), np.array([1])], 0)
    assert x.tolist() == [[[0, 1], [2, 3]], [[1, 3], [0, 2]]]


@pytest.mark.parametrize("inside", [IID(), Dirichlet(0.4)], ids=str)
def test_samples_are_divided_as_without_rotations(inside):
    plain, turned = (partition(LABELS, 8, seed=2) for partition in (inside, Rotations(4, inside)))
    assert [part.tolist() for part in plain] == [part.tolist() for part in turned]
    assert [part.tolist() for part in turned] != [part.tolist() for part in Rotations(4, inside)(LABELS, 8, seed=3)]


def test_the_data_are_not_changed_in_place():
    x = Numbered(1, 4, 4).load().x
    x.flags.writeable = False
    turned, _ = Rotations(2).altered(x, LABELS, np.array_split(np.arange(400), 2), seed=0)
    np.testing.assert_array_equal(turned[200:], x[200:, :, ::-1, ::-1])


def test_half_turns_need_no_squares():
    found, _ = clients(Rotations(2), Numbered(1, 2, 3), 2)
    rows, x, _ = found[1]
    np.testing.assert_array_equal(x[..., ::-1, ::-1], Numbered(1, 2, 3).load().x[rows])


@pytest.mark.parametrize(("shape", "num_groups"), [((1, 2, 3), 4), ((9,), 4), ((9,), 2)])
def test_inputs_that_cannot_be_turned_are_refused(shape, num_groups):
    with pytest.raises(ConfigError, match=rf"Rotations: num_groups = {num_groups} .*shape \[{shape[0]}.*; choose"):
        build_populations(Numbered(*shape), Rotations(num_groups), 8)


@pytest.mark.parametrize("num_groups", [0, 3, 8])
def test_other_angles_are_refused(num_groups):
    with pytest.raises(ConfigError, match=rf"Rotations: num_groups = {num_groups}; choose 1, 2 or 4"):
        Rotations(num_groups)


def test_more_groups_than_clients_are_refused():
    with pytest.raises(ConfigError, match="Rotations: num_groups = 4 for 3 clients; choose a number from 1 to 3"):
        Rotations(4)(LABELS, 3, seed=0)
