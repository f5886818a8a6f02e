"""The network and the division of the data of the published tables of attacks, which `scripts/reproduce.py` trains."""

import itertools

import numpy as np
import pytest
import torch
from reproduction.under_attack import AttackedCNN, KeptDropout, SortedPieces, curand_uniforms


def test_numbers_of_a_graphics_card():
    """The first word of the published test vector for counter 0 and key 0; and what PyTorch draws for seed 0."""
    assert curand_uniforms(0, 1, 0)[0] == np.float32(0x6627E8D5 * 2.0**-32 + 2.0**-33)
    np.testing.assert_allclose(curand_uniforms(0, 3, 0), [0.3990, 0.5167, 0.0249], atol=5e-5)


@pytest.mark.parametrize("other", [{"seed": 1}, {"drawn": 1}])
def test_other_seeds_and_later_draws_give_other_numbers(other):
    first = curand_uniforms(0, 4096, 0)
    second = curand_uniforms(**({"seed": 0, "count": 4096, "drawn": 0} | other))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.05
    assert abs(second.mean() - 0.5) < 0.02
    assert second.min() > 0
    assert second.max() <= 1


def test_masks_stay_and_take_whole_channels():
    layer, x = KeptDropout(0.25, (64, 1, 1), 0), torch.ones(32, 64, 3, 3)
    once, again = layer(x), layer(x)
    assert torch.equal(once, again)
    assert torch.equal(once[:5], layer(x[:5]))
    assert torch.equal(once, once[..., :1, :1].expand_as(once))
    assert set(once.unique().tolist()) == {0.0, float(torch.tensor(1.0) / 0.75)}
    assert 0.7 < float((once > 0).float().mean()) < 0.8
    assert len(once[:, :, 0, 0].unique(dim=0)) == 32  # each place in the batch has its own
    assert torch.equal(layer.eval()(x), x)


def test_masks_leave_the_initial_model_as_it_is():
    torch.manual_seed(0)
    plain = AttackedCNN((1, 28, 28), 10)
    torch.manual_seed(0)
    masked = AttackedCNN((1, 28, 28), 10, masks=0)
    assert all(torch.equal(*pair) for pair in zip(plain.parameters(), masked.parameters(), strict=True))
    x = torch.rand(3, 1, 28, 28)
    assert torch.equal(plain.eval()(x), masked.eval()(x))
    assert not torch.equal(masked.train()(x), masked.eval()(x))


def test_pieces_are_sorted_but_for_those_of_all_labels():
    labels = np.random.default_rng(0).integers(0, 10, 5000)
    parts = SortedPieces(of_all_labels=(1, 3))(labels, 10, seed=0)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(5000))
    assert all(len(np.unique(labels[part])) == 10 for part in (parts[1], parts[3]))
    ranges = [(labels[part].min(), labels[part].max()) for client, part in enumerate(parts) if client not in (1, 3)]
    assert all(last <= first for (_, last), (first, _) in itertools.pairwise(ranges))
