import torch
from torch.func import vmap

from lit_fed.algorithms.clustered_fl import _descend, _no_splits, _one_cluster, _remember_split, _split_cluster
from lit_fed.core import tree
from lit_fed.core.types import ModelState


def models(*rows):
    return ModelState({"w": torch.tensor(rows, dtype=torch.float64)}, {})


def tree_of_three():
    """Split 0: {0, 1} stay and {2, 3} leave to cluster 1; split 1: of cluster 1, {2} stays and {3} leaves to 2."""
    first = {"w": torch.tensor([[1.0, 0.1], [2.0, -0.2], [-1.0, 0.5], [-1.0, -0.5]], dtype=torch.float64)}
    second = {"w": torch.tensor([[9.0, 9.0], [9.0, 9.0], [0.0, 3.0], [0.1, -0.2]], dtype=torch.float64)}
    memory = _no_splits(models([0.0, 0.0]), 3, 4)
    memory = _remember_split(memory, 0, 0, torch.tensor([1, 1, 2, 2]), tree.index(models([0.0, 0.0]), 0), first)
    return _remember_split(memory, 1, 1, torch.tensor([0, 0, 1, 2]), tree.index(models([5.0, 5.0]), 0), second)


ROOT = torch.tensor(0)


def unseen_client(first, second):
    """Models trained from those of the splits: updates `first`, `second` and, of the split to come, any."""
    return models(first, [5 + second[0], 5 + second[1]], [7.0, -7.0])


def test_an_unseen_client_goes_to_the_more_similar_side_at_each_split():
    memory = tree_of_three()
    assert _descend(memory, unseen_client([0.3, 0.0], [0.0, -1.0]), ROOT) == 0  # the second split is not on its way
    assert _descend(memory, unseen_client([-0.3, 0.0], [0.0, 1.0]), ROOT) == 1
    assert _descend(memory, unseen_client([-0.3, 0.0], [0.0, -0.01]), ROOT) == 2


def test_direction_counts_and_not_length():
    memory = tree_of_three()
    for scale in (1e-6, 1.0, 1e6):
        assert _descend(memory, unseen_client([-scale, 0.0], [0.0, -scale]), ROOT) == 2


def test_without_an_update_it_stays():
    assert _descend(tree_of_three(), unseen_client([0.0, 0.0], [0.0, 0.0]), ROOT) == 0


def test_without_splits_it_stays():
    memory = _no_splits(models([0.0, 0.0]), 3, 4)
    assert _descend(memory, models([1.0, 0.0], [1.0, 1.0], [0.0, 1.0]), ROOT) == 0


def test_only_as_many_splits_as_models_are_taken():
    memory = tree_of_three()
    assert _descend(memory, models([-1.0, 0.0]), ROOT) == 1
    assert _descend(memory, tree.index(models([0.0, 0.0]), slice(0, 0)), torch.tensor(2)) == 2


def test_many_unseen_clients_at_once():
    memory = tree_of_three()
    each = [
        unseen_client([0.3, 0.0], [0.0, 1.0]),
        unseen_client([-0.3, 0.0], [0.0, 1.0]),
        unseen_client([-0.3, 0.0], [0.0, -1.0]),
    ]
    start = torch.zeros(3, dtype=torch.int64)
    found = vmap(lambda one, cluster: _descend(memory, one, cluster))(tree.stack(each), start)
    assert found.tolist() == [0, 1, 2]


def test_updates_of_other_clusters_are_left_out():
    memory = tree_of_three()
    assert memory.parent.tolist() == [0, 1, -1]
    assert memory.updates["w"][1, :2].tolist() == [[0, 0], [0, 0]]
    assert memory.side.tolist() == [[1, 1, 2, 2], [0, 0, 1, 2], [0, 0, 0, 0]]
    assert memory.models.parameters["w"][:2].tolist() == [[0, 0], [5, 5]]


def test_a_memory_without_room_stays_empty():
    memory = _no_splits(models([1.0, 2.0]), 0, 4)
    assert [len(leaf) for leaf in tree.leaves(memory)] == [0, 0, 0, 0]
    update = {"w": torch.ones(4, 2, dtype=torch.float64)}
    assert _remember_split(memory, 0, 0, torch.ones(4).long(), tree.index(models([1.0, 2.0]), 0), update) is memory


def test_a_split_makes_a_cluster_of_those_who_leave():
    initial = models([1.0, 2.0])
    start = _one_cluster(initial, 3, 4, remembers=True)
    assert start.cluster.tolist() == [0, 0, 0, 0]
    assert start.models.parameters["w"].tolist() == [[1, 2]] * 3
    updates = {"w": torch.arange(8.0, dtype=torch.float64).view(4, 2)}
    once = _split_cluster(start, 0, torch.tensor([1, 3]), updates)
    assert once.cluster.tolist() == [0, 1, 0, 1]
    twice = _split_cluster(once, 1, torch.tensor([3]), updates)
    assert twice.cluster.tolist() == [0, 1, 0, 2]
    assert twice.splits.parent.tolist() == [0, 1]
    assert twice.splits.side.tolist() == [[1, 2, 1, 2], [0, 1, 0, 2]]
    assert start.cluster.tolist() == [0, 0, 0, 0]


def test_a_split_need_not_be_remembered():
    clusters = _split_cluster(
        _one_cluster(models([1.0]), 3, 2, remembers=False), 0, torch.tensor([0]), {"w": torch.ones(2, 1)}
    )
    assert clusters.cluster.tolist() == [1, 0]
    assert not any(leaf.numel() for leaf in tree.leaves(clusters.splits))
