"""Map-style data sets of one's own, by an instance and by their class path."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from lit_fed.cli import main
from lit_fed.core.targets import Binary, MultiLabel, VectorRegression
from lit_fed.data import IID, TorchDataset, build_populations
from lit_fed.data.data_sets import base as reading
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError


class Clips(Dataset):
    """Pairs of a list, the speakers of their samples as an attribute and as a method."""

    def __init__(self, items=None, speaker=None, num=24, classes=None):
        rng = np.random.default_rng(0)
        self.items = [(rng.normal(size=3), i % 2) for i in range(num)] if items is None else items
        self.speaker = [f"s{i % 4}" for i in range(len(self.items))] if speaker is None else speaker
        if classes is not None:
            self.classes = classes

    def whose(self):
        return np.array(self.speaker)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        item = self.items[number]
        if isinstance(item, Exception):
            raise item
        return item


class Stream(IterableDataset):
    """Without a length."""

    def __iter__(self):
        return iter([])


def read(*items, **options):
    return TorchDataset(Clips(list(items)), **options).load()


def refused(*words, items=None, **options):
    given = {"source": Clips(items)} | options
    with pytest.raises(ConfigError) as caught:
        TorchDataset(**given).load()
    for word in words:
        assert word in str(caught.value)


# ---------------------------------------------------------------------- what is read
@pytest.mark.parametrize(
    ("inputs", "dtype", "shape"),
    [
        ([torch.ones(2, 3), torch.zeros(2, 3)], np.float32, (2, 2, 3)),
        ([np.ones(2), [0.5, 1.5]], np.float32, (2, 2)),
        ([1, 2.5], np.float32, (2, 1)),
        ([torch.tensor([1, 2]), torch.tensor([3, 4])], np.int64, (2, 2)),
        ([torch.ones(3, dtype=torch.uint8)] * 2, np.uint8, (2, 3)),
        ([Image.new("L", (4, 5))] * 2, np.uint8, (2, 1, 5, 4)),
        ([Image.new("L", (4, 5)), Image.new("RGB", (4, 5))], np.uint8, (2, 3, 5, 4)),
    ],
)
def test_inputs(inputs, dtype, shape):
    samples = read(*((x, y) for y, x in enumerate(inputs)))
    assert (samples.x.dtype, samples.x.shape) == (dtype, shape)
    assert samples.y.tolist() == [0, 1]
    assert samples.owner is None


def test_labels():
    assert read((1.0, torch.tensor(3)), (2.0, True)).y.tolist() == [3, 1]
    assert read((1.0, 0.5), (2.0, np.float64(1))).y.dtype == np.float32
    several = TensorDataset(torch.randn(6, 2), torch.tensor([[0, 1, 1]] * 6))
    data = FederatedDataModule(TorchDataset(several, labels="multilabel"), IID(), 2)
    data.setup()
    assert data.target == MultiLabel(3)
    data = FederatedDataModule(TorchDataset(TensorDataset(torch.randn(6, 2), torch.randn(6, 3))), IID(), 2)
    data.setup()
    assert data.target == VectorRegression(3)


@pytest.mark.parametrize("clients", ["speaker", "whose"])
def test_clients_and_classes(clients):
    data = FederatedDataModule(TorchDataset(Clips(classes=["no", "yes"]), clients=clients))
    data.setup()
    assert data.seen.names == ["s0", "s1", "s2", "s3"]
    assert data.seen.class_names == ("no", "yes")
    assert data.target == Binary()
    assert (data.seen.train.num_samples, data.seen.test.num_samples) == (20, 4)


def test_the_test_source_lists_classes_in_another_order(capsys):
    source, test = Clips(num=4, classes=["no", "yes"]), Clips(num=4, classes=["late", "yes", "no"])
    test.items = [(x, 2 - y) for x, y in test.items]
    samples = TorchDataset(source, test_source=test).load()
    assert (samples.y.tolist(), samples.class_names) == ([0, 1, 0, 1] * 2, ("no", "yes", "late"))
    assert "matched by name: no, yes, late" in capsys.readouterr().err
    one = Clips(source.items[:1], classes=["yes"])
    assert TorchDataset(source, test_source=one).load().y.tolist() == [0, 1, 0, 1, 1]
    several = {"items": [(1.0, torch.tensor([0, 1]))], "labels": "multilabel"}
    refused(
        "test_source: lists the labels a, b otherwise",
        items=several["items"],
        labels="multilabel",
        source=Clips(several["items"], classes=["a", "b"]),
        test_source=Clips(several["items"], classes=["b", "a"]),
    )


def test_numbers_of_clients_are_ordered_by_size():
    samples = TorchDataset(Clips(num=3, speaker=torch.tensor([10, 9, 10])), clients="speaker").load()
    assert (samples.names, samples.owner.tolist()) == (["9", "10"], [1, 0, 1])


def test_samples_of_the_test():
    seen, _ = build_populations(TorchDataset(Clips(num=8), test_source=Clips(num=4), clients="speaker"))
    assert (seen.train.num_samples, seen.test.num_samples) == (8, 4)
    refused(
        "samples of Clips are float32 of shape [3]",
        "those of test_source float32 of shape [1]",
        test_source=Clips([(1.0, 0)]),
    )


def test_a_long_reading_says_how_far_it_is(monkeypatch, capsys):
    monkeypatch.setattr(reading, "SECONDS_BETWEEN_WORDS", 0.0)
    read((1.0, 0), (2.0, 1))
    assert "Clips: 2 of 2 samples are read" in capsys.readouterr().err


# ---------------------------------------------------------------------- what is wrong
@pytest.mark.parametrize(
    ("second", "words"),
    [
        (OSError("gone"), ("sample 1 of Clips cannot be read (OSError: gone)",)),
        ({"x": 1}, ("sample 1 of Clips is dict; give pairs (x, y)",)),
        ((1.0, 2, 3), ("sample 1 of Clips is tuple of 3; give pairs",)),
        (("text", 0), ("x of sample 1 of Clips is str",)),
        ((float("nan"), 0), ("x of sample 1 of Clips contains NaN",)),
        ((1.0, "cat"), ("y of sample 1 of Clips is str",)),
        ((1.0, 0.5), ("y of sample 1 of Clips is float32", "before it are int64")),
        ((1.0, np.zeros((2, 2))), ("y of sample 1 of Clips is float32 of shape [2, 2]",)),
        (([1.0, 2.0], 0), ("x of sample 1 of Clips is float32 of shape [2]", "shape [1]")),
        (([[1.0], [1.0, 2.0]], 0), ("x of sample 1 of Clips cannot become an array",)),
        ((Image.new("F", (2, 2)), 0), ("x of sample 1 of Clips is an image of mode F",)),
    ],
)
def test_wrong_samples(second, words):
    refused(*words, items=[(1.0, 0), second])


def test_wrong_settings():
    refused(
        "--data.dataset.clients speakr: Clips has no such attribute; it has items, speaker, whose", clients="speakr"
    )
    refused("clients items cannot become an array", source=Clips(num=2),
            clients="items")  # fmt: skip
    refused("clients speaker: gives <U1 of shape [1], but Clips has 2 samples", source=Clips(num=2, speaker=["a"]),
            clients="speaker")  # fmt: skip
    refused("Clips has no samples", source=Clips([]))
    refused("--data.dataset.source Stream: has no length", source=Stream())
    refused("--data.dataset.test_source Stream: has no length", test_source=Stream())
    refused("--data.dataset.labels is many", labels="many")
    refused("--data.dataset.num_classes is 1", num_classes=1)


# ---------------------------------------------------------------------- on the command line
FIT = ["fit", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "1", "--data.dataset", "TorchDataset"]


def test_a_class_path_with_its_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(
        [*FIT, "--data.dataset.source", "test_torch_dataset.Clips", "--data.dataset.source.num", "40",
         "--data.dataset.clients", "speaker", "--name", "clips"]
    )  # fmt: skip
    run = tmp_path / "runs/clips/version_0"
    assert json.loads((run / "summary.json").read_text())["test/seen/accuracy"] >= 0
    assert (run / "clients.csv").read_text().splitlines()[1].startswith("s0,0,seen")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("test_torch_dataset.Clisp", "module 'test_torch_dataset' has no attribute 'Clisp'"),
        ("Nothing", "--data.dataset.source: - Expected a path but Nothing"),
        (
            "clips.py",
            "--data.dataset.source clips.py: this is a file, and the option takes a class; give its name behind",
        ),
    ],
)
def test_class_paths_that_are_none(given, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*FIT, "--data.dataset.source", given])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
