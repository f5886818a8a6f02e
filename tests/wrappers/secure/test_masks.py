import itertools

import pytest
import torch
from torch.func import vmap

from lit_fed.wrappers.secure.fixed_point import FixedPoint, modulo
from lit_fed.wrappers.secure.masks import (
    PRIME,
    MaskingCohort,
    agreed_word,
    agreement_bits,
    make_shares,
    public_word,
    reconstruct,
    recovered_words,
    signed_mask,
    survives,
    take_masks_off,
)

POINT = FixedPoint(16, 8, 2.0)
RESIDUES = modulo(torch.tensor([[384, -768], [-64, 512], [256, 32]]), 16)
PAIRS = {(0, 1): (1000, 60000), (0, 2): (30000, 5), (1, 2): (65535, 1)}


def cohort(ids, bits=32, neighbours=None, round_idx=3):
    return MaskingCohort(7, round_idx, "train", torch.tensor(ids), bits, neighbours)


def residues_of(one, count=11):
    rng = torch.Generator().manual_seed(len(one.client_ids))
    return modulo(torch.randint(-(2**63), 2**63 - 1, (len(one.client_ids), count), generator=rng), one.modulus_bits)


def masked(one, residues):
    masks = vmap(lambda client_id: one.mask(client_id, residues.shape[1]))(one.client_ids)
    return modulo(residues + masks, one.modulus_bits)


def pair_mask(client, partner):
    mask = torch.tensor(PAIRS[min(client, partner), max(client, partner)])
    return signed_mask(torch.tensor(client), torch.tensor(partner), mask)


def test_three_clients_by_hand():
    sent = torch.stack([
        modulo(RESIDUES[one] + sum(pair_mask(one, other) for other in range(3) if other != one), 16) for one in range(3)
    ])  # fmt: skip
    assert sent.tolist() == [[31384, 59237], [64471, 6049], [35793, 26]]
    total = modulo(sent.sum(0), 16)
    assert total.tolist() == [576, 65312]
    assert (POINT.decode(total) / 4).tolist() == [0.5625, -0.21875]


def test_a_client_that_is_gone_by_hand():
    """Client 2 drops out after it has masked: the rest is garbage until its masks are taken off."""
    sent = torch.tensor([[31384, 59237], [64471, 6049]])
    total = modulo(sent.sum(0), 16)
    assert total.tolist() == [30319, 65286]
    assert (POINT.decode(total)).tolist() == pytest.approx([118.43359375, -0.9765625])
    left = modulo(total - pair_mask(0, 2) - pair_mask(1, 2), 16)
    assert left.tolist() == [320, 65280]
    assert (POINT.decode(left) / 3).tolist() == pytest.approx([0.4166666667, -0.3333333333], abs=1e-9)


@pytest.mark.parametrize("bits", [8, 16, 32, 33, 48, 64])
@pytest.mark.parametrize(("size", "neighbours"), [(1, None), (2, None), (6, None), (7, 2), (9, 4), (5, 4)])
def test_masks_cancel(size, bits, neighbours):
    """With the own masks taken off, for any cohort, number of partners and modulus."""
    one = cohort([2 * i + 5 for i in range(size)], bits, neighbours)
    residues, everybody = residues_of(one), torch.ones(size, dtype=torch.bool)
    sent = masked(one, residues)
    assert not torch.equal(sent, residues)
    found = take_masks_off(one, modulo(sent.sum(0), bits), everybody, 2 / 3)
    assert torch.equal(found, modulo(residues.sum(0), bits))


@pytest.mark.parametrize(("size", "neighbours", "threshold"), [(5, None, 0.6), (6, 4, 0.6), (6, 2, 0.33)])
def test_whoever_drops_out(size, neighbours, threshold):
    """Every set of clients that are there: the sum is exactly theirs, or the round is void."""
    one, void = cohort(list(range(3, size + 3)), 32, neighbours), 0
    residues = residues_of(one, 3)
    sent = masked(one, residues)
    for chosen in itertools.product((False, True), repeat=size):
        present = torch.tensor(chosen)
        if not survives(one, present, threshold):
            void += 1
            continue
        found = take_masks_off(one, modulo(sent[present].sum(0), 32), present, threshold)
        assert torch.equal(found, modulo(residues[present].sum(0), 32))
    assert void == 1 + 5 + 10 if neighbours is None else 0 < void < 2**size


def test_below_the_threshold_a_round_is_void():
    present = torch.tensor([True, True, True, False, False, False])
    assert not survives(cohort(range(6)), present, 2 / 3)
    assert survives(cohort(range(6)), present, 0.5)
    assert not survives(cohort(range(6)), torch.zeros(6, dtype=torch.bool), 0.01)
    assert survives(cohort([4]), torch.ones(1, dtype=torch.bool), 1.0)
    three_of_five = torch.tensor([True, True, True, False, False])
    assert not survives(cohort(range(5)), three_of_five, 2 / 3), "two thirds of five are four"
    assert survives(cohort(range(5)), three_of_five, 0.6)


def test_the_server_learns_one_secret_of_each_client():
    """The key of who is gone, else what its own mask is made from: both would bare what a client sent."""
    one, present = cohort(range(5)), torch.tensor([True, False, True, True, True])
    learnt = recovered_words(one, present, 2 / 3)
    for client_id, word, there in zip(one.client_ids, learnt, present, strict=True):
        assert word == (one.own_word(client_id) if there else one.secret_word(client_id))
        assert word != (one.secret_word(client_id) if there else one.own_word(client_id))


def test_pairs_agree_on_a_key_and_nobody_else_has_it():
    one = cohort(range(30))
    secrets = torch.stack([one.secret_word(client_id) for client_id in one.client_ids])
    keys = agreed_word(secrets[:, None], public_word(secrets)[None])
    assert torch.equal(keys, keys.T)
    assert len(keys.triu(1).unique()) == 30 * 29 // 2 + 1  # and the zeros below


def test_partners_are_mutual_and_as_many_as_asked_for():
    one = cohort(range(10, 21), neighbours=4)
    of = {int(client): sorted(int(other) for other in one.partners(client)) for client in one.client_ids}
    assert all(len(set(others)) == 4 and client not in others for client, others in of.items())
    assert all(client in of[other] for client, others in of.items() for other in others)
    again = cohort(range(10, 21), neighbours=4, round_idx=4)
    assert of != {int(client): sorted(int(other) for other in again.partners(client)) for client in again.client_ids}


def test_masks_are_spread_evenly_and_differ_between_rounds():
    one = cohort(range(4))
    first = one.mask(torch.tensor(2), 20_000).double() / 2**32
    assert abs(float(first.mean()) - 0.5) < 0.01
    assert abs(float(first.std()) - 12**-0.5) < 0.01
    second = cohort(range(4), round_idx=4).mask(torch.tensor(2), 20_000).double()
    assert abs(float(torch.corrcoef(torch.stack([first, second]))[0, 1])) < 0.03


def test_bits_beside_the_residues():
    """A million numbers of 32 bits and the weight, among 100 clients: 1.0016 times what the numbers take."""
    assert (agreement_bits(99) + 32 * (10**6 + 1)) / (32 * 10**6) == pytest.approx(1.0016, abs=5e-6)
    assert cohort(range(100)).num_partners == 99
    assert cohort(range(100), neighbours=8).num_partners == 8
    assert cohort(range(5), neighbours=8).num_partners == 4


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
