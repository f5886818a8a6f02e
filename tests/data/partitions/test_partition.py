import pickle
from dataclasses import replace

import numpy as np
import pytest

from lit_fed.data import IID, Dirichlet, Natural, QuantitySkew
from lit_fed.data.partitions.base import fill_up
from lit_fed.errors import ConfigError

LABELS = np.random.default_rng(0).integers(0, 6, size=1000)
SEEDED = [IID(), Dirichlet(), Dirichlet(label_groups=3), Dirichlet(alpha=1e-4), Dirichlet(alpha=1e4)]


def as_lists(parts):
    return [part.tolist() for part in parts]


@pytest.mark.parametrize("partition", SEEDED, ids=str)
@pytest.mark.parametrize("num_clients", [1, 7, 300, 1000])
def test_every_sample_has_one_client_and_no_client_is_empty(partition, num_clients):
    if num_clients == 1000 and isinstance(partition, Dirichlet):  # there is one sample for each
        partition = replace(partition, min_samples=1)
    parts = partition(LABELS, num_clients, seed=3)
    assert len(parts) == num_clients
    assert min(len(part) for part in parts) >= 1
    assert np.sort(np.concatenate(parts)).tolist() == list(range(1000))
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("partition", SEEDED, ids=str)
def test_the_seed_decides(partition):
    first = as_lists(partition(LABELS, 9, seed=0))
    assert first == as_lists(pickle.loads(pickle.dumps(partition))(LABELS, 9, seed=0))
    assert first != as_lists(partition(LABELS, 9, seed=1))


def test_labels_stay_unchanged():
    before = LABELS.copy()
    Dirichlet()(LABELS, 9, seed=0)
    np.testing.assert_array_equal(LABELS, before)


def shares_of_labels(partition):
    parts = partition(LABELS, 10, seed=0)
    counts = np.array([np.bincount(LABELS[part], minlength=6) for part in parts])
    return counts / counts.sum(axis=0)


def test_small_alpha_concentrates_a_label_and_large_alpha_spreads_it():
    assert shares_of_labels(Dirichlet(alpha=0.01)).max(axis=0).mean() > 0.8
    assert shares_of_labels(Dirichlet(alpha=1e4)).max() < 0.2


def test_labels_of_a_group_go_together():
    shares = shares_of_labels(Dirichlet(alpha=0.4, label_groups=3))
    distance = np.abs(shares[:, :, None] - shares[:, None, :]).sum(axis=0)
    partners = np.sort(distance + 9 * np.eye(6), axis=0)
    assert partners[0].max() < 0.7  # each label has one other that is shared out alike
    assert partners[1].min() > partners[0].max()


def test_one_group_shares_out_everything_alike():
    parts = Dirichlet(alpha=1.0, label_groups=1)(LABELS, 4, seed=0)
    frequencies = np.array([np.bincount(LABELS[part], minlength=6) / len(part) for part in parts if len(part) > 100])
    assert np.ptp(frequencies, axis=0).max() < 0.15


def test_iid_sizes_differ_by_one():
    assert {len(part) for part in IID()(LABELS, 7, seed=0)} == {142, 143}


def test_iid_takes_any_labels():
    assert len(IID()(np.random.default_rng(0).random((50, 3)), 5, seed=0)) == 5


def test_natural_groups_by_owner():
    owner = np.array([7, 3, 7, 9, 3])
    assert as_lists(Natural()(np.zeros(5), 20, seed=0, owner=owner)) == [[1, 4], [0, 2], [3]]


def test_natural_needs_owners():
    with pytest.raises(ConfigError, match=r"Natural.*choose --data\.partition"):
        Natural()(LABELS, 5, seed=0)


def test_every_client_gets_the_minimum():
    parts = Dirichlet(alpha=0.001, min_samples=5)(LABELS, 150, seed=0)
    assert min(len(part) for part in parts) == 5


def test_repair_moves_only_what_is_missing():
    parts = [np.arange(10), np.array([], dtype=int), np.array([10]), np.arange(11, 17)]
    repaired = fill_up(parts, 3)
    assert as_lists(repaired) == [[0, 1, 2, 3, 4], [9, 8, 7], [10, 6, 5], [11, 12, 13, 14, 15, 16]]
    assert len(parts[0]) == 10


@pytest.mark.parametrize("partition", [Dirichlet(min_samples=40), QuantitySkew(min_samples=40)], ids=str)
def test_a_minimum_that_the_samples_do_not_suffice_for_is_refused(partition):
    """Lowered to what they suffice for, it would make all clients alike, whatever alpha is."""
    with pytest.raises(
        ConfigError, match=r"40 for each of 100 clients needs 4,000.*are 1,000; .*min_samples = 10 or.*25 c"
    ):
        partition(LABELS, 100, seed=0)
    assert [len(part) for part in partition(LABELS, 25, seed=0)] == [40] * 25


@pytest.mark.parametrize("partition", [IID(), Dirichlet()], ids=str)
@pytest.mark.parametrize(("num_clients", "message"), [(1001, "1001.*at most 1000"), (0, "num_clients = 0")])
def test_wrong_number_of_clients(partition, num_clients, message):
    with pytest.raises(ConfigError, match=message):
        partition(LABELS, num_clients, seed=0)


@pytest.mark.parametrize("labels", [np.random.default_rng(0).random(20), np.zeros((20, 3), dtype=int)])
def test_dirichlet_needs_class_labels(labels):
    with pytest.raises(ConfigError, match=r"Dirichlet.*--data\.partition IID"):
        Dirichlet()(labels, 2, seed=0)


def test_more_groups_than_labels():
    with pytest.raises(ConfigError, match="label_groups = 7, but there are only 6"):
        Dirichlet(label_groups=7)(LABELS, 2, seed=0)


@pytest.mark.parametrize(("field", "value"), [("alpha", 0.0), ("label_groups", 0), ("min_samples", 0)])
def test_out_of_range_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"{field} = {value}; choose"):
        Dirichlet(**{field: value})
