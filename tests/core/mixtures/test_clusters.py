import torch
from federated_round import same_bits
from torch.func import vmap

from lit_fed.core.mixtures.clusters import best_fit, cluster_averages, one_hot
from lit_fed.core.types import ModelState

LOSSES = torch.tensor([[3.0, 1.0, 2.0], [0.0, 1.5, 0.0], [0.0, 9.0, 0.0]])


def test_the_lowest_mean_loss_fits_best():
    assert int(best_fit(LOSSES, torch.ones(3))) == 2
    assert best_fit(LOSSES, torch.ones(3)).dtype == torch.int64


def test_padding_does_not_count():
    assert int(best_fit(LOSSES[:2].flip(1), torch.tensor([1.0, 0.0]))) == 1
    assert int(best_fit(torch.tensor([[1.0, 2.0], [9.0, 0.0]]), torch.tensor([1.0, 0.0]))) == 0


def test_of_equals_the_first_fits_best():
    assert int(best_fit(torch.tensor([[2.0, 1.0, 1.0]]), torch.ones(1))) == 1
    assert int(best_fit(LOSSES, torch.zeros(3))) == 0


def test_clusters_that_do_not_exist_fit_nobody():
    for count, expected in ((1, 0), (2, 0), (3, 2)):
        assert int(best_fit(LOSSES, torch.ones(3), torch.tensor(count))) == expected
    assert int(best_fit(LOSSES, torch.tensor([1.0, 0.0, 0.0]), torch.tensor(2))) == 1


def test_many_clients_at_once():
    losses = torch.stack([LOSSES, LOSSES.flip(1)])
    found = vmap(best_fit, in_dims=(0, 0, None))(losses, torch.ones(2, 3), torch.tensor(3))
    assert found.tolist() == [2, 0]
    assert vmap(lambda one: one_hot(one, 3, torch.float64))(found).tolist() == [[0, 0, 1], [1, 0, 0]]


def models(values, counts=None):
    buffers = {} if counts is None else {"count": torch.tensor(counts)}
    return ModelState({"w": torch.tensor(values)}, buffers)


def test_averages_within_clusters():
    """Weights 1 and 3 in the first; nobody in the second, which keeps its model; whole numbers are rounded."""
    old = models([[9.0, 9.0], [5.0, 6.0], [7.0, 7.0]], [0, 4, 0])
    sent = models([[0.0, 4.0], [4.0, 0.0], [1.0, 2.0]], [10, 20, 7])
    weight = torch.tensor([1.0, 3.0, 2.0], dtype=torch.float64)
    found = cluster_averages(old, sent, torch.tensor([0, 0, 2]), weight)
    assert same_bits(found, models([[3.0, 1.0], [5.0, 6.0], [1.0, 2.0]], [18, 4, 7]))


def test_members_without_samples_leave_their_cluster_as_it_is():
    old = models([[9.0]])
    found = cluster_averages(old, models([[1.0], [2.0]]), torch.zeros(2).long(), torch.zeros(2, dtype=torch.float64))
    assert same_bits(found, old)
