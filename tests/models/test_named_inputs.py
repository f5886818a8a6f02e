"""Several inputs in one tensor: tokens with a mask, and a picture with a table."""

import numpy as np
import pytest
import torch
from federated_round import MULTICLASS, distance, make_task, run_rounds
from torch import nn

from lit_fed import FedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError
from lit_fed.models.named_inputs import NamedInputs, pack_inputs

LENGTH, WORDS = 5, 7


class TextAndPicture(NamedInputs):
    """The mean of the words that count, and a picture."""

    inputs = {"ids": (LENGTH,), "mask": (LENGTH,), "picture": (1, 4, 4)}  # noqa: RUF012
    whole = ("ids",)

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.words, self.pixels = nn.Embedding(WORDS, 3), nn.Conv2d(1, 2, 3)
        self.head = nn.Linear(3 + 8, num_outputs)

    def read(self, ids, mask, picture):
        assert not ids.is_floating_point()
        mean = (self.words(ids) * mask.unsqueeze(-1)).sum(-2) / mask.sum(-1, keepdim=True)
        return self.head(torch.cat([mean, self.pixels(picture).flatten(1)], 1))


def arrays(num, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LENGTH + 1, num)
    mask = np.arange(LENGTH) < lengths[:, None]
    return {"ids": rng.integers(0, WORDS, (num, LENGTH)), "mask": mask, "picture": rng.normal(size=(num, 1, 4, 4))}


def test_inputs_come_back_as_they_were():
    network, given = TextAndPicture((26,), 3), arrays(6)
    x = pack_inputs(**given)
    assert (x.shape, x.dtype) == ((6, 26), np.float32)
    found = {}
    network.read = lambda **inputs: found.update(inputs)
    network(torch.from_numpy(x))
    for name, array in given.items():
        assert torch.equal(found[name], torch.from_numpy(array).to(found[name].dtype)), name


def test_both_trainers_and_padding():
    given, y = arrays(9), torch.arange(9) % 3
    other = {**given, "ids": np.where(given["mask"], given["ids"], 0)}  # other words where nothing counts
    runs = []
    for trainer, inputs in ((SequentialTrainer(), given), (VectorizedTrainer(), given), (SequentialTrainer(), other)):
        train = Split(torch.from_numpy(pack_inputs(**inputs)).double(), y, torch.tensor([0, 4, 9]))
        task = make_task(MULTICLASS, 26, lambda _, outputs: TextAndPicture((26,), outputs))
        runs.append(
            run_rounds(FedEM(num_components=2), trainer, train, task=task, solver=LocalSolver(lr=0.1), rounds=2)
        )
    assert distance(runs[0].shared, runs[1].shared) < 1e-10
    assert distance(runs[0].shared, runs[2].shared) == 0


def test_what_does_not_fit_is_named():
    with pytest.raises(
        ConfigError, match=r"reads ids \[5\], mask \[5\], picture \[1, 4, 4\]: 26 numbers .* shape \[25\]"
    ):
        TextAndPicture((25,), 3)(torch.zeros(2, 25))
    with pytest.raises(ConfigError, match="input mask has 2 samples, and the first input has 3"):
        pack_inputs(ids=np.zeros((3, 2), int), mask=np.ones((2, 2)))
    with pytest.raises(ConfigError, match="input ids holds whole numbers above 16777216"):
        pack_inputs(ids=np.array([[2**24 + 1]]))
