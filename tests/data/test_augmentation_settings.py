"""What `--data.augment` takes: names of torchvision's transforms with their arguments, tried on a picture first."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from lit_fed.core.seeds import seed_of
from lit_fed.data import Digits, Normalisation, PooledDataSet, Samples
from lit_fed.data.augmentation import make_augmentation, written_out
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError


@dataclass(frozen=True)
class Made(PooledDataSet):
    """Some inputs of a type, shape and scale."""

    shape: tuple[int, ...] = (1, 8, 8)
    dtype: str = "float32"
    scale: float = 1.0

    def load(self):
        x = np.random.default_rng(0).random((40, *self.shape)) * self.scale
        return Samples(x.astype(self.dtype), np.arange(40) % 2)


def module(augment, dataset=None):
    data = FederatedDataModule(dataset or Made(), num_clients=2, augment=augment)
    data.setup()
    return data


def refused(augment, *words, dataset=None):
    with pytest.raises(ConfigError) as caught:
        module(augment, dataset)
    for word in ("--data.augment", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (None, None),
        ("", None),
        ([], None),
        ("RandomHorizontalFlip", "RandomHorizontalFlip"),
        (" RandomHorizontalFlip , RandomCrop( 8,padding = 1 ) ", "RandomHorizontalFlip, RandomCrop(8, padding=1)"),
        (["RandomHorizontalFlip", "RandomCrop(8", "padding=1)"], "RandomHorizontalFlip, RandomCrop(8, padding=1)"),
        ("[RandomHorizontalFlip, RandomCrop(8)]", "RandomHorizontalFlip, RandomCrop(8)"),
        ("torchvision.transforms.v2.RandomCrop(8), v2.RandomVerticalFlip()", "RandomCrop(8), RandomVerticalFlip()"),
    ],
)
def test_one_form(given, meant):
    assert written_out(given) == meant
    assert written_out(meant) == meant


def test_transforms_are_made_with_their_arguments():
    made = make_augmentation("RandomApply([ColorJitter(0.4)], p=0.5), RandomCrop((8, 8), fill=-1, pad_if_needed=True)")
    apply, crop = made.transforms
    assert isinstance(apply, v2.RandomApply)
    assert (apply.p, apply.transforms[0].brightness) == (0.5, (0.6, 1.4))
    assert (crop.size, crop.fill) == ((8, 8), -1)
    assert make_augmentation(None) is None


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        ("RandomHorizontalFip", ("unknown transform RandomHorizontalFip", "did you mean RandomHorizontalFlip?")),
        ("Crop", ("unknown transform Crop", "did you mean RandomCrop?")),
        ("Qqq", ("unknown transform Qqq", "torchvision.transforms.v2")),
        ("os.system('ls')", ("os.system('ls') is not a transform",)),
        ("RandomCrop(8).forward(1)", ("is not a transform",)),
        ("RandomCrop(open)", ("unknown transform open",)),
        ("RandomCrop(8 + x)", ("8 + x is not a number, text, list or transform",)),
        ("1 +", ("'1 +' cannot be read", "RandomCrop(32, padding=4)")),
        ([3], ("holds a int",)),
        ("RandomCrop", ("cannot be built", "'size'")),
        ("RandomCrop(8, border=1)", ("RandomCrop(8, border=1) cannot be built", "'border'")),
        ("RandomCrop(6)", ("makes float32 of shape [1, 6, 6] of a picture of shape [1, 8, 8]",)),
        ("RandomCrop(20)", ("fails on pictures of shape [1, 8, 8]",)),
        ("MixUp(num_classes=2)", ("MixUp mixes the labels",)),
        ("Normalize([0.5], [0.5])", ("Normalize also has to apply at evaluation",)),
        ("Transform", ("unknown transform Transform",)),
    ],
)
def test_wrong_transforms(augment, words):
    refused(augment, *words)


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Made(shape=(64,)), "the inputs of Made are float32 of shape [64]"),
        (Made(shape=(8, 8)), "the inputs of Made are float32 of shape [8, 8]"),
        (Made(shape=(3, 8, 8), dtype="int32", scale=50), "the inputs of Made are int64 of shape [3, 8, 8]"),
    ],
)
def test_inputs_that_are_no_pictures(dataset, said):
    refused("RandomHorizontalFlip", "needs images", said, "leave it out", dataset=dataset)


def test_colours_of_what_does_not_lie_in_0_to_1():
    refused("RandomApply([ColorJitter(0.4)])", "ColorJitter", "are in", "store images", dataset=Made(scale=7.0))
    module("RandomHorizontalFlip", Made(scale=7.0))
    module("ColorJitter(0.4)", Made())


def test_constants_of_the_data_are_taken_off_and_put_on():
    made = make_augmentation("Pad([1, 0, 0, 0]), RandomCrop((4, 4))", Normalisation((0.2,), (0.5,)))
    x = torch.full((64, 1, 4, 4), 1.6)  # white
    found = made(x, torch.zeros(64), seed_of(0, 0, 0, "x"))[0].unique().tolist()
    assert found == pytest.approx([-0.4, 1.6])  # black and white


def test_a_checkpoint_keeps_the_transforms():
    data = module(["RandomHorizontalFlip", "v2.RandomCrop(8, padding=1)"], Digits())
    plain = data.facts(weighting="samples", seed=0, num_rounds=1).plain()
    assert plain["augment"] == "RandomHorizontalFlip, RandomCrop(8, padding=1)"
