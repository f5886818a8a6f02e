"""Several inputs from every data set that takes them, through training, checkpoints and later clients."""

from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from lit_fed import (
    ClientFolder,
    FedEM,
    FederatedDataModule,
    FederatedModule,
    FederatedTrainer,
    LabelFlip,
    TorchDataset,
    export,
    personalize,
)  # fmt: skip
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.named_inputs import NamedInputs
from lit_fed.core.targets import Sequences
from lit_fed.data.data_sets.in_memory import data_set_of_arrays
from lit_fed.data.partitions import Rotations
from lit_fed.data.poison import Backdoor
from lit_fed.errors import ConfigError

WORDS = 12


class TextAndTable(nn.Module):
    """The mean of the words that the mask marks, and the numbers of a table."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        (width,) = input_shape["table"]
        self.words, self.head = nn.Embedding(WORDS, 3), nn.Linear(3 + width, num_outputs)

    def forward(self, input_ids, attention_mask, table):
        mean = (self.words(input_ids) * attention_mask.unsqueeze(-1)).sum(-2) / attention_mask.sum(-1, keepdim=True)
        return self.head(torch.cat([mean, table], -1))


class Tagger(nn.Module):
    """A class for each token."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 3), nn.Linear(3, num_outputs)

    def forward(self, input_ids, attention_mask):
        return self.head(self.words(input_ids) * attention_mask.unsqueeze(-1))


def texts(num, seed, longest=6):
    """Token lists of different lengths with a table, and labels."""
    rng = np.random.default_rng(seed)
    ids = [rng.integers(1, WORDS, rng.integers(1, longest)) for _ in range(num - 1)] + [np.arange(1, longest)]
    table = rng.normal(size=(num, 2)).astype(np.float32)
    return {"input_ids": ids, "table": table}, (table[:, 0] > 0).astype(int)


class Items(Dataset):
    """Samples of clients, one after another."""

    def __init__(self, clients):
        self.samples = [
            ({name: one[row] for name, one in x.items()}, y[row]) for x, y in clients.values() for row in range(len(y))
        ]
        self.whose = [name for name, (_, y) in clients.items() for _ in y]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, number):
        return self.samples[number]


def write(folder, clients, held_out=4):
    """Files with the arrays that a tokenizer gives: padded to the longest of a client, with their mask."""
    folder.mkdir(parents=True)
    for name, (x, y) in clients.items():
        length = max(map(len, x["input_ids"]))
        ids = np.stack([np.pad(one, (0, length - len(one))) for one in x["input_ids"]])
        arrays = {"input_ids": ids, "attention_mask": (ids > 0).astype(int), "table": x["table"], "y": y}
        parts = {"train": slice(held_out, None), "test": slice(None, held_out)}
        np.savez(
            folder / f"{name}.npz",
            **{f"{key}_{split}": one[rows] for key, one in arrays.items() for split, rows in parts.items()},
        )


CLIENTS = {name: texts(12 + place, place) for place, name in enumerate(("anna", "bela", "carl"))}
UNSEEN = {"dora": texts(10, 9, longest=5)}  # its longest text is shorter than those of the training


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    write(root / "seen", CLIENTS)
    write(root / "unseen", UNSEEN)
    return root


def run(data, out, network=TextAndTable, client_trainer="sequential"):
    module = FederatedModule(FedEM(num_components=2), LocalSolver(lr=0.1), network, client_trainer=client_trainer)
    trainer = FederatedTrainer(max_epochs=2, accelerator="cpu", default_root_dir=str(out), enable_progress_bar=False)
    trainer.fit(module, datamodule=data)
    return module, trainer, trainer.test(module, datamodule=data, verbose=False)[0]


def run_onnx(path, **given):
    session = onnxruntime.InferenceSession(path)
    (found,) = session.run(None, {name: one.numpy() for name, one in given.items()})
    return torch.from_numpy(found)


def last_checkpoint(trainer):
    return str(next(Path(trainer.default_root_dir).rglob("last.ckpt")))


@pytest.fixture(scope="module")
def trained(root, tmp_path_factory):
    return run(FederatedDataModule(ClientFolder(str(root))), tmp_path_factory.mktemp("run"))


def test_data_sets_read_the_same_samples(root):
    pooled = [data_set_of_arrays(CLIENTS, UNSEEN), TorchDataset(Items(CLIENTS | UNSEEN), clients="whose")]
    first, second = (one.load() for one in pooled)
    third, unseen = ClientFolder(str(root)).load()
    for inputs in (first.inputs, second.inputs, third.inputs, unseen.inputs):
        assert {str(one) for one in inputs.inputs} == {
            "input_ids [5] int64", "attention_mask [5] int64", "table [2] float32"
        }  # fmt: skip
    assert (first.inputs.uneven, third.inputs.uneven) == (("input_ids",), ())
    assert np.array_equal(first.x, second.x)
    # of anna; the files keep the first 4 rows for the test, and hold the inputs in another order
    rows = {"here": (first.inputs, torch.from_numpy(first.x[4:12])), "there": (third.inputs, third.train.x[:8])}
    here, there = (inputs.arguments(x)[1] for inputs, x in rows.values())
    for name, one in here.items():
        assert torch.equal(one, there[name]), name


def test_both_client_trainers_train_alike(root, trained, tmp_path):
    module, *_ = run(FederatedDataModule(ClientFolder(str(root))), tmp_path, client_trainer="vectorized")
    for here, there in zip(module.state_dict().values(), trained[0].state_dict().values(), strict=True):
        assert torch.allclose(here, there, atol=1e-6)


def test_later_clients_bring_the_same_dict(root, trained, tmp_path):
    """From a checkpoint alone, dora's files give the numbers that she has as an unseen client of the run."""
    module, trainer, results = trained
    fresh = FederatedModule(
        module.settings.algorithm, module.settings.solver, TextAndTable, client_trainer="sequential"
    )
    last = last_checkpoint(trainer)
    table = personalize(
        FederatedTrainer(accelerator="cpu", logger=False, enable_progress_bar=False),
        fresh,
        ckpt_path=last,
        clients=str(root / "unseen"),
        output=str(tmp_path / "out"),
    )
    assert table["accuracy"].tolist() == [results["test/unseen/accuracy"]]
    predictions = pd.read_csv(tmp_path / "out/predictions.csv")
    again = FederatedModule(
        module.settings.algorithm, module.settings.solver, TextAndTable, client_trainer="sequential"
    )
    predicted = FederatedTrainer(accelerator="cpu", logger=False, enable_progress_bar=False).predict(
        again, datamodule=FederatedDataModule(ClientFolder(str(root))), ckpt_path=last, population="unseen",
        output=str(tmp_path / "predicted.csv"),
    )  # fmt: skip
    assert np.allclose(predicted[["p_0", "p_1"]], predictions[["p_0", "p_1"]], atol=1e-6)
    population = module.trainer.datamodule.unseen
    _, given = population.inputs.arguments(population.test.x)
    for ending in ("pt", "onnx"):
        path = tmp_path / f"dora.{ending.replace('pt', 'pt2')}"
        model = export(trainer, module, module.trainer.datamodule, client="dora", format=ending, output=str(path))
        assert [one["name"] for one in model.about["inputs"]] == ["attention_mask", "input_ids", "table"]
        run_file = torch.export.load(path).module() if ending == "pt" else partial(run_onnx, path)
        for found in (model(**given), run_file(**given)):
            assert np.allclose(found.detach().numpy(), predictions[["p_0", "p_1"]], atol=1e-6)
    assert module.facts.inputs == fresh.facts.inputs == population.inputs


def test_later_clients_with_other_inputs_are_refused(trained, tmp_path):
    module, trainer, _ = trained
    y, last = np.zeros(3, int), last_checkpoint(trainer)
    ids, table = np.ones((3, 6), int), np.zeros((3, 2), np.float32)
    given = {
        "has none of the inputs of the training; save attention_mask_train, input_ids_train, table_train": {
            "numbers_train": table
        },
        r"attention_mask is int64 of shape \[6\], and should be int64 of shape \[5\].* or shorter lists": {
            "input_ids_train": ids, "attention_mask_train": ids, "table_train": table
        },
        "has one input x, and the training had attention_mask, input_ids, table": {"x_train": table},
        "the inputs are input_ids, attention_mask, those of the others attention_mask, input_ids, table": {
            "input_ids_train": ids, "attention_mask_train": ids
        },
    }  # fmt: skip
    for place, (said, arrays) in enumerate(given.items()):
        folder = tmp_path / str(place)
        folder.mkdir()
        np.savez(folder / "emil.npz", y_train=y, **arrays)
        fresh = FederatedModule(module.settings.algorithm, module.settings.solver, TextAndTable)
        with pytest.raises(ConfigError, match=f"emil.npz.*{said}"):
            personalize(
                FederatedTrainer(accelerator="cpu", logger=False),
                fresh,
                ckpt_path=last,
                clients=str(folder),
                output=str(tmp_path / "out"),
            )


def test_labels_of_positions_are_padded_and_ignored(tmp_path):
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, WORDS, length) for length in (2, 5, 3, 4) * 4]
    clients = {
        "anna": ({"input_ids": ids}, [one % 3 for one in ids]),
        "bela": ({"input_ids": ids}, [one % 3 for one in ids]),
    }
    data = FederatedDataModule.from_clients(clients)
    *_, results = run(data, tmp_path, Tagger)
    assert (data.target, data.label_shape) == (Sequences(3, ignore_index=-100), (5,))
    mask = data.seen.inputs.arguments(data.seen.train.x)[1]["attention_mask"]
    assert torch.equal(data.seen.train.y == -100, mask == 0)
    assert 0 <= results["test/seen/accuracy"] <= 1
    paired = FederatedDataModule(TorchDataset(Items(clients), clients="whose"), test_fraction=0)
    paired.setup()
    assert torch.equal(
        paired.seen.train.y[:16] == -100,
        paired.seen.inputs.arguments(paired.seen.train.x)[1]["attention_mask"][:16] == 0,
    )


def test_inputs_of_a_tuple_come_in_order(tmp_path):
    def add(input_shape, num_outputs):
        assert input_shape == ((3,), (2,))

        class Sum(nn.Bilinear):
            """Both inputs by position."""

        return Sum(3, 2, num_outputs)

    x = np.random.default_rng(0).normal(size=(20, 5)).astype(np.float32)
    clients = {"anna": ((x[:, :3], x[:, 3:]), (x[:, 0] * x[:, 3] > 0).astype(int))}
    data = FederatedDataModule.from_clients(clients)
    module, trainer, _ = run(data, tmp_path, add)
    assert module.facts.inputs.names == ("0", "1")
    model = export(trainer, module, data, client="anna", output=str(tmp_path / "anna.pt2"))
    given = torch.from_numpy(x[:, :3]), torch.from_numpy(x[:, 3:])
    found = torch.export.load(tmp_path / "anna.pt2").module()(*given)
    assert torch.allclose(found, model(*given), atol=1e-6)


class OnlyIds(TextAndTable):
    """A network with other parameters."""

    def forward(self, input_ids, table):
        return self.head(table)


class Flat(nn.Module):
    """A network that asks for the number of features."""

    def __init__(self, in_features):
        super().__init__()


@pytest.mark.parametrize(
    ("said", "network", "settings"),
    [
        (
            r"the data have the inputs input_ids \[5\] int64, table .*, and OnlyIds\.forward\(input_ids, table\) does "
            "not take them",
            OnlyIds,
            {},
        ),
        ("Flat needs in_features, and a sample has several inputs, .* take input_shape", Flat, {}),
        (
            r"--data.augment .* needs images .* are input_ids \[5\] int64",
            TextAndTable,
            {"augment": "RandomHorizontalFlip"},
        ),
        (
            "Backdoor needs images alone, the inputs of _Arrays are input_ids",
            TextAndTable,
            {"attackers": 1, "poison": Backdoor()},
        ),
    ],
)
def test_what_several_inputs_do_not_go_with_is_refused(said, network, settings, tmp_path):
    with pytest.raises(ConfigError, match=said):
        run(FederatedDataModule.from_clients(CLIENTS, **settings), tmp_path, network)


def test_rotations_and_mixed_samples_are_refused():
    pooled = TorchDataset(Items(CLIENTS))
    with pytest.raises(ConfigError, match=r"Rotations: .* needs images"):
        FederatedDataModule(pooled, Rotations(num_groups=2), num_clients=2).setup()
    flipped = FederatedDataModule.from_clients(CLIENTS, attackers=1, poison=LabelFlip())
    flipped.setup()
    assert isinstance(flipped.seen.inputs, NamedInputs)
    bare = {"bela": (np.zeros((4, 2), np.float32), np.arange(4) % 2)}
    with pytest.raises(ConfigError, match="client 'bela', train: has one input x, and others have several"):
        FederatedDataModule.from_clients({"anna": CLIENTS["anna"]} | bare).setup()
    x, y = CLIENTS["anna"]
    for wrong, said in (
        (({}, y), "client 'bela' has an empty dict of inputs"),
        (
            (x | {next(iter(x)): np.float32(3)}, y),
            "client 'bela', train: .* is a single number; give an array with one entry",
        ),
        ((x, np.array(1)), "client 'bela', train: y is a single number; give an array with one entry"),
    ):
        with pytest.raises(ConfigError, match=said):
            FederatedDataModule.from_clients({"anna": CLIENTS["anna"], "bela": wrong})
    items = Items(CLIENTS)
    items.samples[3] = ({"input_ids": np.ones(3, int)}, 0)
    with pytest.raises(ConfigError, match=r"sample 3 of Items has the inputs input_ids, the samples before"):
        FederatedDataModule(TorchDataset(items)).setup()
