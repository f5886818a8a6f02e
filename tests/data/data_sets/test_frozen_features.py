from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from official_files import write_cifar
from torchvision import datasets

from lit_fed.benchmark.cut import Cut
from lit_fed.data.data_sets.base import PooledDataSet, Samples, draw_subsample
from lit_fed.data.data_sets.cifar import CIFAR10
from lit_fed.data.data_sets.digits import Digits
from lit_fed.data.data_sets.frozen_features import FrozenFeatures, _features, _ids, _trained_body
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.partitions.iid import IID
from lit_fed.errors import ConfigError


@dataclass(frozen=True)
class Stripes(PooledDataSet):
    """Noisy stripes of three widths; one pixel of one image can be changed."""

    number: int = 120
    changed: int | None = None
    quantities: bool = False

    num_classes = 3

    def load(self):
        rng = np.random.default_rng(0)
        y = rng.integers(0, 3, self.number)
        lines = np.stack([np.arange(16) // (1 + label) % 2 for label in y])
        x = (lines[:, None, :, None] + 0.3 * rng.normal(size=(self.number, 1, 16, 16))).astype(np.float32)
        if self.changed is not None:
            x[self.changed, 0, 3, 3] += 0.1
        return Samples(x, y.astype(np.float32) if self.quantities else y)


def frozen(**settings):
    return FrozenFeatures(Stripes(), **{"body_epochs": 5} | settings)


def test_features_are_of_images_that_the_body_was_not_trained_on():
    """A body of the others, whose own features have mean 0 and deviation 1, makes them."""
    pool, found = Stripes().load(), frozen(body_epochs=60).load()
    trained = draw_subsample(120, 0.5, 0)
    x, y = torch.from_numpy(pool.x), torch.from_numpy(pool.y)
    body = _trained_body(x[trained], y[trained], 60, 0)
    own = _features(body, x[trained])
    np.testing.assert_array_equal(found.y, pool.y[~trained])
    wanted = (_features(body, x[~trained]) - own.mean(0)) / torch.where(own.std(0) > 1e-3, own.std(0), 1)
    torch.testing.assert_close(found.encode.features, wanted)
    centres = torch.stack([wanted[found.y == label].mean(0) for label in range(3)])
    assert (torch.cdist(wanted, centres).argmin(1).numpy() == found.y).mean() > 0.9


def test_features_depend_on_the_seed_and_not_on_threads_or_the_training_seed():
    first = frozen().load().encode.features
    torch.manual_seed(7)
    before = torch.get_rng_state()
    torch.set_num_threads(2)
    try:
        again = frozen().load().encode.features
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert torch.equal(first, again)
    assert torch.equal(before, torch.get_rng_state())
    other = frozen(seed=1).load().encode.features
    assert not torch.equal(first, other)


def test_no_client_has_an_image_of_cifar_that_trains_the_body(tmp_path, monkeypatch):
    write_cifar(tmp_path, datasets.CIFAR10, [[0, 1, 2], [3, 4], [5, 6], [7, 8], [9], [0, 1]], monkeypatch)
    images = CIFAR10(str(tmp_path))
    pool, found = images.load(), FrozenFeatures(images, body_epochs=1).load()
    clients, body = ({one.tobytes() for one in ids} for ids in (found.ids, _ids(pool.x[draw_subsample(12, 0.5, 0)])))
    assert (len(clients), len(body), len(clients | body)) == (6, 6, 12)
    assert found.encode.features.shape == (6, 84)


@dataclass(frozen=True)
class Stored(Stripes):
    """The same in the types in which images are stored."""

    inputs: str = "uint8"

    def load(self):
        x, y = super().load()[:2]
        scaled = (x.clip(0, 1) * 255).round() if self.inputs == "uint8" else x
        return Samples(scaled.astype(self.inputs), y.astype(np.int32))


@pytest.mark.parametrize("inputs", ["uint8", "float64"])
def test_images_in_the_types_of_files(inputs):
    found = FrozenFeatures(Stored(inputs=inputs), body_epochs=1).load()
    assert found.encode.features.dtype == torch.float32
    assert found.encode.features.abs().max() < 100


def test_units_that_the_body_does_not_use_are_not_scaled():
    """After one step from this start one is nearly dead; divided by its deviation it is 147 for another image."""
    assert frozen(seed=7, body_epochs=1).load().encode.features.abs().max() < 50


def test_clients_get_features():
    data = FederatedDataModule(frozen(), partition=IID(), num_clients=3, unseen_fraction=0.4)
    data.prepare_data()
    data.setup("fit")
    features, (seen, unseen) = frozen().load().encode.features, data.populations
    rows = torch.cat([getattr(one, part).x for one in (seen, unseen) for part in ("train", "val", "test")])
    assert rows.shape == (60, 84)
    assert torch.equal(rows.sort(0).values, features.sort(0).values)


def test_digests_of_a_cut_are_those_of_the_images():
    cut = Cut(frozen(), IID(), 4)
    shorter, kept = frozen(), np.flatnonzero(~draw_subsample(120, 0.5, 0))
    other_body = replace(shorter, body_epochs=1)
    assert replace(cut, dataset=other_body).clients() == cut.clients()
    changed = replace(shorter, dataset=Stripes(changed=int(kept[5])))
    differ = replace(cut, dataset=changed).clients()
    assert sum(cut.clients().digests[name] != differ.digests[name] for name in differ.digests) == 1


@pytest.mark.parametrize(
    ("dataset", "settings", "words"),
    [
        (Stripes(), {"body_fraction": 1.0}, "body_fraction is 1.0"),
        (Stripes(), {"body_epochs": 0}, "body_epochs is 0"),
        (Stripes(1), {}, "body_fraction 0.5 leaves 1 of 1 images for the body and 0 for clients"),
        (Stripes(2), {}, "body_fraction 0.5 leaves 1 of 2 images for the body and 1 for clients, who need 2 and 1"),
        (Stripes(quantities=True), {}, "Stripes has no class for each image"),
        (frozen(), {}, "FrozenFeatures has no images"),
        (Digits(), {}, "Digits has no images of one size, 16 pixels or more each way"),
        (CIFAR10("nowhere"), {}, r"--data.dataset.dataset.root nowhere: .* --data.dataset.dataset.download true"),
    ],
)
def test_wrong_input_is_refused(dataset, settings, words):
    with pytest.raises(ConfigError, match=words):
        FrozenFeatures(dataset, **settings).load()
