import itertools

import torch

from lit_fed.wrappers.secure.shamir import PRIME, make_shares, reconstruct

POINTS = torch.arange(1, 6)


def test_two_shares_by_hand():
    shares = make_shares(torch.tensor([[42, 7]]), POINTS[:3], prime=97)
    assert shares.tolist() == [[49, 56, 63]]
    for pair in itertools.combinations(range(3), 2):
        held = torch.tensor(pair)
        assert reconstruct(POINTS[held], shares[:, held], prime=97).tolist() == [42]


def test_three_shares_by_hand_and_two_of_them_tell_another_number():
    shares = make_shares(torch.tensor([[42, 7, 11]]), POINTS, prime=97)
    assert shares.tolist() == [[60, 3, 65, 52, 61]]
    for held in ([0, 2, 4], [1, 3, 4]):
        assert reconstruct(POINTS[held], shares[:, held], prime=97).tolist() == [42]
    assert reconstruct(POINTS[[0, 2]], shares[:, [0, 2]], prime=97).tolist() == [9]


def test_too_few_shares_fit_every_secret():
    """For t − 1 shares and any secret there is exactly one polynomial: they tell nothing."""
    seen = make_shares(torch.tensor([[42, 7, 11]]), POINTS[:2], prime=97)[0].tolist()
    fits = [
        secret for secret in range(97)
        for first in range(97) for second in [(seen[0] - secret - first) % 97]
        if (secret + 2 * first + 4 * second) % 97 == seen[1]
    ]  # fmt: skip
    assert fits == list(range(97))


def test_any_shares_above_the_threshold_give_large_secrets():
    rng = torch.Generator().manual_seed(0)
    coefficients = torch.randint(PRIME, (4, 7), generator=rng)
    coefficients[0], coefficients[1, 0] = PRIME - 1, 0
    points = torch.randperm(50, generator=rng)[:20] + 1
    shares = make_shares(coefficients, points)
    assert int(shares.min()) >= 0
    assert int(shares.max()) < PRIME
    for count in (7, 8, 20):
        held = torch.randperm(20, generator=rng)[:count]
        assert torch.equal(reconstruct(points[held], shares[:, held]), coefficients[:, 0])
