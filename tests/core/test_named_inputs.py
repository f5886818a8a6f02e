"""Several inputs in one tensor: token ids with a mask, and a picture with a table."""

import numpy as np
import pytest
import torch
from federated_round import MULTICLASS, distance, make_task, run_rounds
from torch import nn

from lit_fed import FedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.named_inputs import NamedInputs, read_by_name
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError

LENGTH, WORDS = 5, 7


class TextAndPicture(nn.Module):
    """The mean of the words that count, and a picture."""

    def __init__(self):
        super().__init__()
        self.words, self.pixels = nn.Embedding(WORDS, 3), nn.Conv2d(1, 2, 3)
        self.head = nn.Linear(3 + 8, 3)

    def forward(self, ids, mask, picture):
        assert not ids.is_floating_point()
        mean = (self.words(ids) * mask.unsqueeze(-1)).sum(-2) / mask.sum(-1, keepdim=True)
        return self.head(torch.cat([mean, self.pixels(picture).flatten(1)], 1))


def arrays(num, seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, LENGTH + 1, num)
    mask = np.arange(LENGTH) < lengths[:, None]
    return {"ids": rng.integers(0, WORDS, (num, LENGTH)), "mask": mask, "picture": rng.normal(size=(num, 1, 4, 4))}


def read(inputs, x):
    """The inputs of packed samples as NumPy arrays."""
    positional, named = inputs.arguments(torch.from_numpy(x))
    return [one.numpy() for one in positional] or {name: one.numpy() for name, one in named.items()}


def test_inputs_come_back_as_they_were():
    given = arrays(6) | {"pixels": np.full((6, 2, 2), 51, np.uint8), "age": np.arange(6.0)}
    inputs = NamedInputs.of([("here", given)])
    x = inputs.pack("here", given)
    assert (x.shape, x.dtype) == ((6, inputs.size), np.float32)
    found = read(inputs, x)
    assert {name: one.dtype.name for name, one in found.items()} == {
        "age": "float32", "ids": "int64", "mask": "bool", "picture": "float32", "pixels": "float32"
    }  # fmt: skip
    for name, array in given.items():
        wanted = array / np.float32(255) if name == "pixels" else array.astype(found[name].dtype)
        assert np.array_equal(found[name], wanted), name
    assert NamedInputs.from_plain(inputs.plain()) == inputs
    assert inputs.pack("here", {name: array[:0] for name, array in given.items()}).shape == (0, inputs.size)
    only_whole = {name: given[name] for name in ("ids", "mask")}
    packed = NamedInputs.of([("here", only_whole)]).pack("here", only_whole | {"ids": given["ids"] + 2**40})
    assert packed.dtype == np.int64
    assert packed[:, :LENGTH].tolist() == (given["ids"] + 2**40).tolist()


def test_positions_of_a_tuple_stay_in_order():
    given = {str(place): np.full((2, 3), float(place)) for place in range(11)}
    inputs = NamedInputs.of([("here", given)])
    assert [int(one[0, 0]) for one in read(inputs, inputs.pack("here", given))] == list(range(11))


def test_lengths_that_differ_are_padded_with_a_mask():
    texts = [np.array([4]), np.array([5, 6, 1])]
    groups = [("anna", {"ids": texts}), ("bela", {"ids": np.array([[2, 3]])})]
    inputs = NamedInputs.of(groups)
    assert (str(inputs), inputs.names) == ("ids [3] int64, attention_mask [3] int64", ("ids",))
    packed = [inputs.pack(place, given).tolist() for place, given in groups]
    assert packed == [[[4, 0, 0, 1, 0, 0], [5, 6, 1, 1, 1, 1]], [[2, 3, 0, 1, 1, 0]]]
    own = {"ids": texts, "my_mask": [np.array([True]), np.array([True, False, True])]}
    assert NamedInputs.of([("anna", own)]).pack("anna", own).tolist()[0] == [4, 0, 0, 1, 0, 0]
    two = {"a": texts, "b": texts[::-1]}
    with pytest.raises(ConfigError, match="anna: sample 0 has 1 numbers in a and 3 in b, and one attention_mask"):
        NamedInputs.of([("anna", two)]).pack("anna", two)


def test_both_trainers_and_padding():
    given, y = arrays(9), torch.arange(9) % 3
    other = {**given, "ids": np.where(given["mask"], given["ids"], 0)}  # other words where nothing counts
    inputs, runs = NamedInputs.of([("here", given)]), []
    for trainer, each in ((SequentialTrainer(), given), (VectorizedTrainer(), given), (SequentialTrainer(), other)):
        train = Split(torch.from_numpy(inputs.pack("here", each)).double(), y, torch.tensor([0, 4, 9]))
        task = make_task(MULTICLASS, inputs.size, lambda *_: read_by_name(TextAndPicture(), inputs))
        runs.append(
            run_rounds(FedEM(num_components=2), trainer, train, task=task, solver=LocalSolver(lr=0.1), rounds=2)
        )
    assert distance(runs[0].shared, runs[1].shared) < 1e-10
    assert distance(runs[0].shared, runs[2].shared) == 0


IDS = np.zeros((3, 2), int)
REFUSED = {
    "here: mask has 2 samples, and ids has 3": {"ids": IDS, "mask": np.ones((2, 2))},
    "contains 16777217, and beside inputs of floats .* up to 16777216": {"ids": IDS + 2**24 + 1, "age": np.ones(3)},
    "ids contains -1; number ids from 0": {"ids": IDS - 1, "age": np.ones(3)},
    "age contains NaN or infinity": {"ids": IDS, "age": np.array([1, np.nan, 0])},
    "mask is uint8, which means pixels": {"ids": IDS, "mask": IDS.astype(np.uint8)},
    "'class' cannot name an input": {"ids": IDS, "class": IDS},
    "'y' cannot name an input": {"ids": IDS, "y": IDS},
    "age holds no numbers": {"ids": IDS, "age": np.array(["a", "b", "c"])},
    "ids is the only input; give its array": {"ids": IDS},
    r"age is float32 of shape \[2\], that of here float32 of shape \[1\]": {
        "ids": IDS,
        "age": [np.ones(1), np.ones(2)],
    },
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_packed_is_named(said):
    with pytest.raises(ConfigError, match=said):
        NamedInputs.of([("here", REFUSED[said])]).pack("here", REFUSED[said])


def test_samples_that_do_not_fit_are_named():
    inputs = NamedInputs.of([("here", arrays(2))])
    longer = arrays(2) | {"ids": np.zeros((2, LENGTH + 1), int)}
    with pytest.raises(ConfigError, match=r"bela: ids is int64 of shape \[6\], and should be int64 of shape \[5\]"):
        inputs.pack("bela", longer)
    with pytest.raises(ConfigError, match="bela: the inputs are ids, those of the others ids, mask, picture"):
        inputs.pack("bela", {"ids": longer["ids"]})
    with pytest.raises(ConfigError, match=r"have the inputs ids .*, and Linear\.forward\(input\) does not take them"):
        read_by_name(nn.Linear(2, 3), inputs)


class InTwoParts(TextAndPicture):
    """The same network, which says how it splits, with frozen words."""

    def __init__(self):
        super().__init__()
        self.words.requires_grad_(False)

    def split(self):
        def body(ids, mask, picture):
            mean = (self.words(ids) * mask.unsqueeze(-1)).sum(-2) / mask.sum(-1, keepdim=True)
            return torch.cat([mean, self.pixels(picture).flatten(1)], 1)

        return body, self.head


def test_parts_and_frozen_layers_of_a_network_get_inputs_by_name():
    given = arrays(4)
    inputs = NamedInputs.of([("here", given)])
    x = torch.from_numpy(inputs.pack("here", given)).double()
    task = make_task(MULTICLASS, inputs.size, lambda *_: read_by_name(InTwoParts(), inputs))
    task = task.with_end(inputs.example().double())
    models = task.init(2, seed=0)
    outputs, features = task.outputs(models, x), task.features(models, x)
    assert (outputs.shape, features.shape) == ((4, 2, 3), (4, 2, 11))
    assert torch.allclose(task.head(models, features), outputs)
    whole = read_by_name(InTwoParts(), inputs).double()
    leaves = {name: leaf[1] for name, leaf in models.parameters.items()} | task.frozen
    assert torch.allclose(torch.func.functional_call(whole, leaves, (x,)), outputs[:, 1])
