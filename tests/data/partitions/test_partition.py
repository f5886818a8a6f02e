import pickle
from dataclasses import replace

import numpy as np
import pytest

from lit_fed.data import IID, Dirichlet, LabelsPerClient, Natural, QuantitySkew, Shards
from lit_fed.data.partitions.base import fill_up
from lit_fed.errors import ConfigError

LABELS = np.random.default_rng(0).integers(0, 6, size=1000)
SEEDED = [
    IID(), Dirichlet(), Dirichlet(label_groups=3), Dirichlet(alpha=1e-4), Dirichlet(alpha=1e4), Shards(1), Shards(2),
    *(QuantitySkew(alpha) for alpha in (1e-300, 0.01, 0.5, 1e4)),
]  # fmt: skip


def as_lists(parts):
    return [part.tolist() for part in parts]


@pytest.mark.parametrize("partition", SEEDED, ids=str)
@pytest.mark.parametrize("num_clients", [1, 7, 300, 1000])
def test_every_sample_has_one_client_and_no_client_is_empty(partition, num_clients):
    minimum = min(getattr(partition, "min_samples", 1), 1000 // num_clients)
    if hasattr(partition, "min_samples"):
        partition = replace(partition, min_samples=minimum)
    if isinstance(partition, Shards):
        num_clients = min(num_clients, 1000 // partition.shards_per_client)
    parts = partition(LABELS, num_clients, seed=3)
    assert len(parts) == num_clients
    assert min(len(part) for part in parts) >= minimum
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


@pytest.mark.parametrize("partition", [IID(), QuantitySkew()], ids=str)
def test_partitions_without_labels_take_any(partition):
    assert len(partition(np.random.default_rng(0).random((50, 3)), 5, seed=0)) == 5


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


@pytest.mark.parametrize("partition", [IID(), Dirichlet(), QuantitySkew(), Shards()], ids=str)
@pytest.mark.parametrize(("num_clients", "message"), [(1001, "1001.*at most 1000"), (0, "num_clients = 0")])
def test_wrong_number_of_clients(partition, num_clients, message):
    with pytest.raises(ConfigError, match=message):
        partition(LABELS, num_clients, seed=0)


@pytest.mark.parametrize("partition", [Dirichlet(), Shards()], ids=str)
@pytest.mark.parametrize("labels", [np.random.default_rng(0).random(20), np.zeros((20, 3), dtype=int)])
def test_class_labels_are_needed(partition, labels):
    with pytest.raises(ConfigError, match=rf"{type(partition).__name__}.*label.*--data\.partition IID"):
        partition(labels, 2, seed=0)


def test_more_groups_than_labels():
    with pytest.raises(ConfigError, match="label_groups = 7, but there are only 6"):
        Dirichlet(label_groups=7)(LABELS, 2, seed=0)


@pytest.mark.parametrize(
    ("partition", "field", "value"),
    [
        (Dirichlet, "alpha", 0.0), (Dirichlet, "label_groups", 0), (Dirichlet, "min_samples", 0),
        (QuantitySkew, "alpha", 0.0), (QuantitySkew, "min_samples", 0), (Shards, "shards_per_client", 0),
        (LabelsPerClient, "labels_per_client", 0),
    ],
)  # fmt: skip
def test_out_of_range_fields_are_named(partition, field, value):
    with pytest.raises(ConfigError, match=rf"{partition.__name__}.{field} is {value}; give"):
        partition(**{field: value})


# ---------------------------------------------------------------------- LabelsPerClient
@pytest.mark.parametrize(("num_clients", "each"), [(6, 1), (9, 2), (40, 3), (3, 6)])
def test_each_client_has_so_many_labels_and_labels_are_divided_evenly(num_clients, each):
    parts = LabelsPerClient(each)(LABELS, num_clients, seed=2)
    counts = np.array([np.bincount(LABELS[part], minlength=6) for part in parts])
    assert ((counts > 0).sum(1) == each).all()
    owners = (counts > 0).sum(0)
    assert owners.max() - owners.min() <= 1
    assert counts.sum(0).tolist() == np.bincount(LABELS).tolist()
    for own in counts.T:
        assert own.max() - own[own > 0].min() <= 1
    assert as_lists(parts) == as_lists(LabelsPerClient(each)(LABELS, num_clients, seed=2))
    assert as_lists(parts) != as_lists(LabelsPerClient(each)(LABELS, num_clients, seed=3))


@pytest.mark.parametrize(
    ("each", "num_clients", "said"),
    [
        (7, 4, "there are 6 labels; choose at most"), (1, 5, "5 clients have 5 of 6 labels; choose more"),
        (6, 400, "has fewer samples than clients; choose fewer"),
    ],
)  # fmt: skip
def test_numbers_of_labels_that_no_division_has(each, num_clients, said):
    with pytest.raises(ConfigError, match=f"labels_per_client = {each}.*{said}"):
        LabelsPerClient(each)(LABELS, num_clients, seed=0)


# ---------------------------------------------------------------------- QuantitySkew
@pytest.mark.parametrize("alpha", [0.5, 5.0])
def test_the_spread_of_the_shares_is_that_of_the_dirichlet_distribution(alpha):
    """The variance of a share of Dirichlet(a) over T clients is (T - 1) / T² / (T a + 1), and every mean is 1 / T."""
    labels = np.zeros(5000, dtype=int)
    shares = np.array([[len(part) / 5000 for part in QuantitySkew(alpha)(labels, 10, seed)] for seed in range(400)])
    assert shares.var(axis=0).mean() == pytest.approx(0.09 / (10 * alpha + 1), rel=0.15)
    np.testing.assert_allclose(shares.mean(0), 0.1, atol=6 * np.sqrt(0.09 / (10 * alpha + 1) / 400))


def test_labels_are_alike_at_all_clients():
    labels = np.repeat(np.arange(4), 5000)  # in order, so that samples that are not shuffled would stay apart
    parts = [part for part in QuantitySkew()(labels, 10, seed=0) if len(part) > 1000]
    frequencies = np.array([np.bincount(labels[part], minlength=4) / len(part) for part in parts])
    assert len(parts) >= 2
    np.testing.assert_allclose(frequencies, 0.25, atol=0.05)


# ---------------------------------------------------------------------- Shards
def test_the_setting_of_the_paper():
    """100 clients, two shards each, of which none crosses a label: at most two labels, and mostly two."""
    labels = np.repeat(np.arange(10), 600)  # 200 shards of 30
    parts = Shards()(labels, 100, seed=0)
    kinds = np.array([len(np.unique(labels[part])) for part in parts])
    assert {len(part) for part in parts} == {60}
    assert set(kinds) == {1, 2}
    assert np.mean(kinds == 2) == pytest.approx(1 - 19 / 199, abs=0.1)  # the second shard is of another label
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])
    assert set(counts.ravel()) <= {0, 30, 60}


def test_samples_of_a_label_are_shuffled():
    labels = np.zeros(1000, dtype=int)
    first, second = Shards(1)(labels, 2, seed=0)
    assert abs(first.mean() - second.mean()) < 60
    assert first.tolist() != list(range(500))


@pytest.mark.parametrize("shards_per_client", [1, 2, 5])
@pytest.mark.parametrize("num_clients", [1, 7, 100])
def test_shards_are_equal(shards_per_client, num_clients):
    sizes = [len(part) for part in Shards(shards_per_client)(LABELS[:600], num_clients, seed=3)]
    assert max(sizes) - min(sizes) <= shards_per_client


def test_more_shards_than_samples():
    with pytest.raises(ConfigError, match="shards_per_client = 2 needs 602 shards, there are 600 samples"):
        Shards()(LABELS[:600], 301, seed=0)
