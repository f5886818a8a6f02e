"""Who drops out, who is late, and who can be reached."""

import itertools

import numpy as np
import pytest

from lit_fed.core.blocks import draw_cohort
from lit_fed.errors import ConfigError
from lit_fed.wrappers.faults.models import MarkovChain, drops_out, markov_chain, per_client, read_numbers, work_times


def test_who_drops_out():
    ids = np.arange(10)
    assert np.flatnonzero(drops_out(0, 0, ids, np.full(10, 0.3))).tolist() == [0, 1, 2, 3, 7]
    some = np.array([1, 4, 7])
    assert drops_out(0, 0, some, np.full(10, 0.3)).tolist() == [True, False, True], "whoever else is there"
    assert not drops_out(0, 0, ids, np.zeros(10)).any()
    share = np.mean([drops_out(0, one, ids, np.full(10, 0.3)).mean() for one in range(1000)])
    assert share == pytest.approx(0.3, abs=0.015)


def test_times_of_work():
    """T_min = 0, means 1, 2, 4, deadline 2."""
    means = np.repeat([1.0, 2.0, 4.0], 2000)
    times = work_times(0, 0, np.arange(6000), 0.0, means)
    in_time = (times <= 2).reshape(3, 2000).mean(1)
    assert in_time == pytest.approx([0.8646647168, 0.6321205588, 0.3934693403], abs=0.03)
    assert work_times(0, 0, np.arange(2), 1.5, np.zeros(2)).tolist() == [1.5, 1.5]


def test_a_chain_of_clients_that_come_and_go():
    """a = .2, b = .4: there in a third of the rounds, 2.5 of them in a row, and 5 away."""
    there = np.stack(
        [MarkovChain(200, 0.2, 0.4, seed=0).at(0), *(markov_chain(200, 0.2, 0.4, 0).at(r) for r in range(1, 400))]
    )
    assert there.mean() == pytest.approx(1 / 3, abs=0.01)
    runs = [(on, len(list(group))) for column in there.T for on, group in itertools.groupby(column)]
    assert np.mean([length for on, length in runs if on]) == pytest.approx(2.5, abs=0.1)
    assert np.mean([length for on, length in runs if not on]) == pytest.approx(5, abs=0.2)
    fresh = MarkovChain(200, 0.2, 0.4, seed=0)
    assert (fresh.at(7) == there[7]).all(), "also where a run is resumed"
    assert (fresh.at(3) == there[3]).all(), "also where it goes back"
    assert MarkovChain(5, 0.5, 0.0, seed=0).at(20).all()


def test_cohorts_among_those_who_can_be_reached():
    there = np.array([False, True, True, False, True, True])
    for sampling in ("uniform", "size"):
        drawn = [
            draw_cohort(6, np.arange(1, 7), number=3, sampling=sampling, seed=0, round_idx=one, available=there)
            for one in range(50)
        ]
        assert set(np.concatenate(drawn).tolist()) == {1, 2, 4, 5}
        assert {len(one) for one in drawn} == {3}
    options = {"sizes": np.ones(6), "seed": 0, "round_idx": 0}
    assert draw_cohort(6, number=5, available=there, **options).tolist() == [1, 2, 4, 5], "fewer than wanted: all"
    assert draw_cohort(6, number=5, available=np.zeros(6, dtype=bool), **options).tolist() == []
    poisson = {"fraction": 0.5, "sampling": "poisson"}
    assert draw_cohort(6, available=there, **poisson, **options).tolist() == [
        one for one in draw_cohort(6, **poisson, **options).tolist() if there[one]
    ]
    for sampling in ("uniform", "size"):
        plain, all_there = (
            draw_cohort(6, number=3, sampling=sampling, available=given, **options)
            for given in (None, np.ones(6, dtype=bool))
        )
        assert (plain == all_there).all()
    assert len(draw_cohort(10, np.ones(10), number=5, over_selection=0.3, seed=0, round_idx=0)) == 7


def test_numbers_from_files(tmp_path):
    np.save(tmp_path / "p.npy", np.array([0.1, 0.2]))
    (tmp_path / "p.csv").write_text("0.1,0.2\n")
    for name in ("p.npy", "p.csv"):
        assert per_client(str(tmp_path / name), 2, "--x").tolist() == [0.1, 0.2]
    (tmp_path / "there.csv").write_text("True,false\n0,1\n")
    assert read_numbers(str(tmp_path / "there.csv"), "--x").tolist() == [[1, 0], [0, 1]]
    assert per_client(0.3, 2, "--x").tolist() == [0.3, 0.3]
    with pytest.raises(ConfigError, match=r"^--x has 2 numbers, and there are 3 clients; give one for each$"):
        per_client([0.1, 0.2], 3, "--x")
    (tmp_path / "words.csv").write_text("a,b\n")
    for name, said in (
        ("words.csv", "cannot be read: could not"),
        ("absent.npy", "cannot be read: .*No such file"),
        ("p.txt", "give a .npy"),
    ):
        with pytest.raises(ConfigError, match=f"^--x .*{name}.*{said}"):
            read_numbers(str(tmp_path / name), "--x")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    with pytest.raises(ConfigError, match=r"objects\.npy cannot be read"):
        read_numbers(str(tmp_path / "objects.npy"), "--x")
