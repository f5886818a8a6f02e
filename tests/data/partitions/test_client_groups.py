import pickle

import numpy as np
import pytest

from lit_fed.data import IID, Dirichlet, LabelGroups, LabelPermutations, PooledDataSet, Samples, build_populations
from lit_fed.errors import ConfigError

LABELS = np.random.default_rng(0).integers(0, 10, size=2000)


class Numbered(PooledDataSet):
    """The label and the number of each sample as its inputs."""

    num_classes = 10

    def load(self):
        x = np.stack([LABELS, np.arange(len(LABELS))], axis=1).astype(np.float32)
        return Samples(x, LABELS.copy())


def as_lists(parts):
    return [part.tolist() for part in parts]


@pytest.mark.parametrize("partition", [LabelGroups(3), LabelGroups(2, Dirichlet(0.4)), LabelPermutations(4)], ids=str)
def test_every_sample_has_one_client_and_the_seed_decides(partition):
    parts = partition(LABELS, 8, seed=3)
    assert len(parts) == 8
    assert min(map(len, parts)) >= 1
    assert np.sort(np.concatenate(parts)).tolist() == list(range(2000))
    assert as_lists(parts) == as_lists(pickle.loads(pickle.dumps(partition))(LABELS, 8, seed=3))
    assert as_lists(parts) != as_lists(partition(LABELS, 8, seed=4))


@pytest.mark.parametrize(("num_groups", "sizes"), [(2, [5, 5]), (3, [4, 3, 3]), (4, [3, 3, 2, 2])])
def test_groups_have_disjoint_labels_and_their_clients_all_of_them(num_groups, sizes):
    partition = LabelGroups(num_groups)
    parts, groups = partition(LABELS, 8, seed=1), partition.groups(8, 1)
    assert groups.tolist() == [client % num_groups for client in range(8)]
    labels = [{int(label) for label in LABELS[part]} for part in parts]
    of_group = [labels[group] for group in range(num_groups)]
    assert [len(one) for one in of_group] == sizes
    assert set.union(*of_group) == set(range(10))
    assert sum(map(len, of_group)) == 10
    assert all(labels[client] == of_group[group] for client, group in enumerate(groups))


def test_the_labels_are_grouped_anew_for_each_seed():
    groups = {tuple(sorted({int(label) for label in LABELS[LabelGroups(2)(LABELS, 4, seed)[0]]})) for seed in range(9)}
    assert len(groups) > 5


def test_the_partition_inside_a_group_is_the_one_asked_for():
    even, uneven = (
        [len(part) for part in LabelGroups(2, inside)(LABELS, 8, seed=0)] for inside in (IID(), Dirichlet(0.1))
    )
    assert max(even[::2]) - min(even[::2]) <= 1
    assert max(uneven[::2]) > 2 * min(uneven[::2])


def test_permutations_are_one_to_one_the_same_in_a_group_and_the_identity_in_the_first():
    partition = LabelPermutations(3)
    seen, unseen = build_populations(Numbered(), partition, 9, seed=5)
    assert unseen is None
    assert seen.groups.tolist() == [0, 1, 2] * 3
    maps = []
    for client in range(9):
        data = seen.train.client(client)
        pairs = set(zip(data.x[:, 0].long().tolist(), data.y.tolist(), strict=True))
        assert len(pairs) == len(dict(pairs)) == len({new for _, new in pairs}) == 10
        maps.append(dict(pairs))
    assert maps[0] == {label: label for label in range(10)}
    assert all(maps[client] == maps[client % 3] for client in range(9))
    assert len({tuple(sorted(one.items())) for one in maps}) == 3


def test_samples_are_divided_as_without_permutations():
    plain, permuted = (build_populations(Numbered(), one, 8, seed=2)[0] for one in (IID(), LabelPermutations(4, IID())))
    assert plain.groups is None
    assert plain.train.x.tolist() == permuted.train.x.tolist()
    assert plain.train.y.tolist() != permuted.train.y.tolist()
    assert LABELS.tolist() == Numbered().load().y.tolist()


def test_seen_clients_keep_their_groups_when_others_are_held_out():
    seen, unseen = build_populations(Numbered(), LabelGroups(2), 10, unseen_fraction=0.3, seed=1)
    names = {
        int(name): group for one in (seen, unseen) for name, group in zip(one.names, one.groups.tolist(), strict=True)
    }
    assert names == {client: client % 2 for client in range(10)}


@pytest.mark.parametrize(
    "partition", [LabelGroups(0), LabelGroups(9), LabelPermutations(0), LabelPermutations(9)], ids=str
)
def test_impossible_numbers_of_groups_are_refused_by_name(partition):
    with pytest.raises(ConfigError, match=rf"{type(partition).__name__}: num_groups = .* choose a number from 1 to 8"):
        partition(LABELS, 8, seed=0)


def test_more_groups_than_labels_are_refused():
    with pytest.raises(ConfigError, match="num_groups = 11, but there are only 10 labels"):
        LabelGroups(11)(LABELS, 20, seed=0)


@pytest.mark.parametrize("partition", [LabelGroups(2), LabelPermutations(2)], ids=str)
def test_labels_that_are_no_classes_are_refused(partition):
    with pytest.raises(ConfigError, match=f"the partition {type(partition).__name__} needs class labels"):
        partition(np.linspace(0, 1, 50), 4, seed=0)
