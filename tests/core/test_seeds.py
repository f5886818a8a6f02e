import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from lit_fed.core.seeds import generator, seed_of, torch_generator

PROGRAM = """
from lit_fed.core.seeds import generator, torch_generator
import torch
print(generator(3, 1, 4, "plan/train").integers(2**62), torch.rand((), generator=torch_generator(3, 1, 4, "x")).item())
"""


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_another_process_draws_the_same(hash_seed):
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
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
