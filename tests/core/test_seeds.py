import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lit_fed.core.seeds import generator, generators, seed_of, torch_generator, uniforms

PROGRAM = """
from lit_fed.core.seeds import generator, torch_generator
import torch
print(generator(3, 1, 4, "plan/train").integers(2**62), torch.rand((), generator=torch_generator(3, 1, 4, "x")).item())
"""


def test_another_process_draws_the_same():
    """Also where strings have other hashes."""
    environment = os.environ | {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    printed = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True
    )
    drawn = torch.rand((), generator=torch_generator(3, 1, 4, "x")).item()
    assert printed.stdout.split() == [str(generator(3, 1, 4, "plan/train").integers(2**62)), str(drawn)]


def test_every_part_of_the_name_makes_another_stream():
    names = [(s, r, c, p) for s in range(3) for r in range(3) for c in range(3) for p in ("plan", "cohort", "init")]
    drawn = {int(generator(*name).integers(2**62)) for name in names}
    assert len(drawn) == len(names)
    torch_drawn = {torch.randint(2**62, (), generator=torch_generator(*name)).item() for name in names}
    assert len(torch_drawn) == len(names)


@pytest.mark.parametrize(
    ("seed", "round_idx", "client_ids"),
    [
        (0, 0, range(100)),
        (2**32 - 1, 2**32 - 1, [2**32 - 1 - one**5 for one in range(50)]),
        (1, 2, [3, 3, 2]),
        (1, 2**32, range(20)),
        (1, 2, []),
    ],
    ids=["many", "the largest words", "few", "beyond the words", "none"],
)
def test_many_generators_are_those_of_one_client_each(seed, round_idx, client_ids):
    together = generators(seed, round_idx, list(client_ids), "plan/train")
    alone = [generator(seed, round_idx, one, "plan/train") for one in client_ids]
    assert [one.integers(2**63, size=3).tolist() for one in together] == [
        one.integers(2**63, size=3).tolist() for one in alone
    ]
    assert [one.permutation(5).tolist() for one in together] == [one.permutation(5).tolist() for one in alone]


def test_a_client_below_zero_has_no_generator_among_many():
    with pytest.raises(ValueError, match="non-negative"):
        generators(0, 0, [*range(30), -1], "plan")


def test_numbers_are_those_of_the_first_release():
    assert tuple(seed_of(0, 1, 2, "plan").entropy) == (0, 1, 2, 3713686397)
    first = [int(generator(0, 0, 0, "plan/train").integers(1000)), int(generator(7, 3, 5, "init").integers(1000))]
    assert first == [841, 132]


def test_drawing_leaves_the_global_generators_alone():
    torch.manual_seed(5)
    np_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()
    generator(0, 0, 0, "a").random(3)
    torch.rand(3, generator=torch_generator(0, 0, 0, "a"))
    assert (np.random.get_state()[1] == np_state).all()
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_negative_seeds_are_refused():
    with pytest.raises(ValueError, match="non-negative"):
        generator(-1, 0, 0, "a")


def hashed(client, round_idx=1, purpose="rounding", count=2000, seed=0):
    return uniforms(seed, round_idx, torch.tensor(client), purpose, count)


def test_hashed_numbers_are_uniform():
    drawn = torch.stack([hashed(client) for client in range(50)])
    assert bool((drawn >= 0).all())
    assert bool((drawn < 1).all())
    counts = torch.histc(drawn.float(), 20, 0, 1)
    assert (
        float(((counts - 5000) ** 2 / 5000).sum()) < 45
    )  # χ² of 19 degrees of freedom: one in a thousand is above 43.8
    each = drawn.mean(1)
    assert float((each - 0.5).abs().max()) < 4.5 / (12 * 2000) ** 0.5


def test_hashed_numbers_of_neighbours_have_nothing_to_do_with_each_other():
    drawn = torch.stack(
        [*(hashed(client) for client in range(20)), hashed(0, 2), hashed(0, 1, "other"), hashed(0, seed=1)]
    )
    related = torch.corrcoef(drawn).fill_diagonal_(0).abs().max()
    assert float(related) < 4.5 / 2000**0.5
    shifted = torch.corrcoef(torch.stack([drawn[0, :-1], drawn[0, 1:]]))[0, 1]
    assert abs(float(shifted)) < 4.5 / 2000**0.5


def test_hashed_numbers_are_named_by_their_place_and_repeat():
    assert torch.equal(hashed(3), hashed(3))
    assert torch.equal(hashed(3, count=10), hashed(3)[:10])
    assert hashed(3, count=2).tolist() == [0.49415347957983613, 0.36338482005521655]


def by_whole_numbers(seed, round_idx, client_id, purpose, count):
    """The same numbers by int64, whose products stay below 2^63."""

    def scramble(word):
        for _ in range(2):
            word = ((word >> 16) ^ word) * 0x45D9F3B & (2**32 - 1)
        return (word >> 16) ^ word

    first, second = (int(word) for word in seed_of(seed, round_idx, 0, purpose).generate_state(2))
    client = scramble(scramble((client_id + first) & (2**32 - 1)) ^ second)
    return scramble((scramble(torch.arange(count)) + client) & (2**32 - 1)).double() / 2**32


@pytest.mark.parametrize("client", [0, 3, 10**5, 2**31 - 7, 2**32 + 5])
def test_hashed_numbers_by_words_that_wrap_around(client):
    for seed in range(5):  # words with and without their highest bit
        found = uniforms(seed, 2, torch.tensor(client), "rounding", 3000)
        assert torch.equal(found, by_whole_numbers(seed, 2, torch.tensor(client), "rounding", 3000))
        assert found.dtype == torch.float64


def test_hashed_numbers_of_many_clients_at_once():
    ids = torch.tensor([4, 0, 7])
    at_once = torch.func.vmap(lambda one: uniforms(0, 1, one, "rounding", 50))(ids)
    assert torch.equal(at_once, torch.stack([hashed(int(one), count=50) for one in ids]))
