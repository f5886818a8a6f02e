"""Drawn blobs and the outlines of three groups."""

import torch

from lit_fed.data.data_sets.outlines import Outlines


def test_groups_outline_alike_blobs_differently():
    seen, unseen = Outlines(num_clients=6, samples_per_client=40, test_size=2, spread=2.0).load()
    assert unseen is None
    assert seen.groups.tolist() == [0, 1, 2, 0, 1, 2]
    assert seen.train.x.shape == (240, 1, 16, 16)
    assert seen.test.y.shape == (12, 16, 16)
    assert set(seen.train.y.unique().tolist()) == {0, 1}
    sizes = seen.train.y.view(6, -1).float().mean(1)
    assert bool((sizes[:5].diff()[[0, 1, 3]] > 0.05).all())
    inside = [one.train.x[one.train.y[:, None] == 1].mean() for one in (Outlines(spread=0).load()[0], seen)]
    assert 0.5 < float(inside[1]) < float(inside[0]) < 1
    again, other = Outlines(num_clients=6).load()[0], Outlines(num_clients=6, seed=1).load()[0]
    assert torch.equal(again.train.x, Outlines(num_clients=6).load()[0].train.x)
    assert not torch.equal(again.train.x, other.train.x)
