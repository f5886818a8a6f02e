import numpy as np
import pytest
import torch

from lit_fed.core.blocks import (
    cohort_size,
    cut_blocks,
    draw_cohort,
    round_blocks,
    sampling_probability,
    split_by_work,
)
from lit_fed.core.types import LocalWork, Phase, Split
from lit_fed.errors import ConfigError

SIZES = np.array([5, 1, 9, 5, 2, 30])


@pytest.mark.parametrize(
    ("num_clients", "fraction", "number", "expected"),
    [(10, 1.0, None, 10), (10, 0.25, None, 2), (100, 0.29, None, 29), (3, 0.01, None, 1), (10, 1.0, 4, 4)],
)
def test_cohort_size(num_clients, fraction, number, expected):
    assert cohort_size(num_clients, fraction, number) == expected


def test_uniform_cohort_has_no_duplicates():
    for round_idx in range(20):
        cohort = draw_cohort(6, SIZES, number=4, seed=0, round_idx=round_idx)
        assert len(set(cohort.tolist())) == 4
        assert (np.diff(cohort) > 0).all()


def test_full_cohort():
    assert draw_cohort(6, SIZES, seed=3, round_idx=1).tolist() == list(range(6))


def test_cohort_depends_on_seed_and_round_alone():
    def draw(seed, round_idx):
        return draw_cohort(100, np.ones(100), fraction=0.2, seed=seed, round_idx=round_idx).tolist()

    assert draw(0, 0) == draw(0, 0)
    assert len({tuple(draw(0, 0)), tuple(draw(1, 0)), tuple(draw(0, 1))}) == 3


def test_sampling_by_size_is_proportional_and_with_replacement():
    cohort = draw_cohort(6, SIZES, number=52_000, sampling="size", seed=0, round_idx=0)
    np.testing.assert_allclose(np.bincount(cohort, minlength=6) / 1000, SIZES, atol=0.5)


def test_uniform_sampling_is_uniform():
    drawn = [draw_cohort(6, SIZES, number=2, seed=0, round_idx=round_idx) for round_idx in range(3000)]
    np.testing.assert_allclose(np.bincount(np.concatenate(drawn)) / 1000, np.ones(6), atol=0.1)


POISSON = [[0, 3, 5, 8, 9], [0, 1, 2, 6], [0, 3, 4, 6], [0, 7], [1, 4, 8], [0]]
"""Cohorts of ten clients, each with probability 0.3, in the first rounds of seed 0."""


@pytest.mark.parametrize("how_many", [{"fraction": 0.3}, {"number": 3}], ids=str)
def test_each_client_is_drawn_for_itself(how_many):
    options = {"sampling": "poisson", "seed": 0, **how_many}
    cohorts = [draw_cohort(10, np.ones(10), round_idx=one, **options) for one in range(6)]
    assert [cohort.tolist() for cohort in cohorts] == POISSON
    assert {cohort.dtype for cohort in cohorts} == {np.dtype(np.int64)}


def test_a_third_of_the_rounds_has_nobody():
    """Where one of ten is expected, 0.9^10 = 34.87 %."""
    options = {"fraction": 0.1, "sampling": "poisson", "seed": 0}
    drawn = [len(draw_cohort(10, np.ones(10), round_idx=one, **options)) for one in range(1000)]
    assert drawn.count(0) == 340
    assert np.mean(drawn) == pytest.approx(1, abs=0.1)


def test_with_probability_one_all_take_part():
    for how_many in ({"fraction": 1.0}, {"number": 6}):
        assert sampling_probability(6, sampling="poisson", **how_many) == 1
        assert draw_cohort(6, SIZES, sampling="poisson", seed=0, round_idx=0, **how_many).tolist() == list(range(6))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"number": 0}, "clients per round = 0"),
        ({"number": 7}, "clients per round = 7, but there are only 6"),
        ({"fraction": 0.0}, r"= 0\.0; choose"),
        ({"fraction": 1.5}, r"= 1\.5; choose"),
        ({"sampling": "other"}, "'other'; choose 'uniform', 'size' or 'poisson'"),
        ({"number": 7, "sampling": "poisson"}, "clients per round = 7, but there are only 6"),
        ({"fraction": 0.0, "sampling": "poisson"}, r"= 0\.0; choose"),
    ],
)
def test_wrong_cohorts_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        draw_cohort(6, SIZES, seed=0, round_idx=0, **wrong)


def test_every_client_is_on_one_rank():
    shares = split_by_work(np.array([5, 0, 2, 2, 3, 1]), SIZES, 2)
    assert [share.tolist() for share in shares] == [[5], [0, 1, 2, 3]]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_blocks_know_how_often_each_client_was_drawn(num_ranks):
    """A client trains once, on one rank; a rank without clients gets one that does not count."""
    offsets = torch.tensor([0, *SIZES.cumsum().tolist()])
    data = Split(torch.zeros(52, 1), torch.zeros(52), offsets)
    phase = Phase("train", torch.tensor([5, 2, 5, 0, 2, 5]), LocalWork(epochs=1))
    options = {"batch_size": 4, "clients_per_block": 1, "num_ranks": num_ranks}
    drawn, placeholders = {}, 0
    for rank in range(num_ranks):
        for block in round_blocks([phase], data, rank=rank, **options):
            (one,), (count,) = block.phase.client_ids.tolist(), block.multiplicity.tolist()
            assert count == 0 or one not in drawn
            drawn |= {one: count} if count else {}
            placeholders += count == 0
    assert drawn == {0: 1, 2: 2, 5: 3}
    assert placeholders == {1: 0, 2: 1, 4: 1}[num_ranks]


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_a_phase_without_clients_has_a_ghost_on_each_rank(num_ranks):
    data = Split(torch.zeros(52, 1), torch.zeros(52), torch.tensor([0, *SIZES.cumsum().tolist()]))
    phases = [Phase(name, torch.tensor(ids).long(), LocalWork(epochs=1)) for name, ids in (("a", [4, 1]), ("b", []))]
    options = {"batch_size": 4, "clients_per_block": 2, "num_ranks": num_ranks}
    for rank in range(num_ranks):
        *_, last = blocks = round_blocks(phases, data, rank=rank, **options)
        ends = [(one.phase.name, one.ends_phase, one.ends_round) for one in blocks]
        assert ends == [("a", True, False), ("b", True, True)]
        assert (last.phase.client_ids.tolist(), last.multiplicity.tolist(), last.is_placeholder) == ([0], [0.0], True)
        assert [len(one) for one in last.slices] == [0] * num_ranks
        assert last.slices[0].dtype == torch.int64
        assert blocks[0].is_placeholder == (rank == 2)


def test_work_is_balanced():
    work = np.random.default_rng(0).integers(1, 100, size=500)
    loads = [work[share].sum() for share in split_by_work(np.arange(500), work, 4)]
    assert max(loads) - min(loads) <= work.max()
    assert sum(loads) == work.sum()


def test_a_rank_may_stay_without_clients():
    shares = split_by_work(np.array([4]), SIZES, 3)
    assert [len(share) for share in shares] == [1, 0, 0]
    assert all(share.dtype == np.int64 for share in shares)


def test_the_order_of_the_clients_does_not_matter():
    forwards, backwards = (split_by_work(ids, SIZES, 2) for ids in (np.arange(6), np.arange(6)[::-1]))
    assert [share.tolist() for share in forwards] == [share.tolist() for share in backwards]


def test_no_clients_make_no_blocks():
    assert cut_blocks(np.array([], dtype=np.int64), SIZES[:0], 4) == []


def test_empty_blocks_are_refused():
    with pytest.raises(ConfigError, match="clients_per_block = 0"):
        cut_blocks(np.arange(6), SIZES, 0)


def test_blocks_may_be_limited_by_samples():
    ids = np.array([5, 2, 0, 3, 4, 1])
    blocks = cut_blocks(ids, SIZES[ids], 3, samples_per_block=10)
    assert [block.tolist() for block in blocks] == [[5], [2], [0, 3], [4, 1]]
    for limit, count in ((None, 2), (10**9, 2), (1, 6)):
        assert len(cut_blocks(ids, SIZES[ids], 3, samples_per_block=limit)) == count


def test_blocks_are_cut_in_the_order_given():
    ids = np.array([4, 2, 0, 1])
    assert [block.tolist() for block in cut_blocks(ids, SIZES[ids], 3)] == [[4, 2, 0], [1]]
    assert [block.tolist() for block in cut_blocks(ids, np.array([0, 0, 5, 0]), 4, 2)] == [[4, 2], [0], [1]]
