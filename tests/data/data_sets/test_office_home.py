"""The data set, on features made up here, and the script that makes the features, on pictures made up here."""

import hashlib

import numpy as np
import office_home_features
import pytest
import torch
from PIL import Image
from torchvision.models import resnet18

from lit_fed.data import LabelGroups, OfficeHome, build_populations
from lit_fed.data.data_sets.office_home import DOMAINS
from lit_fed.errors import ConfigError

CLASSES = [f"Thing_{number:02d}" for number in range(65)]
PICTURES = ["Art/Thing_03/00001.jpg", "Art/Thing_64/00002.jpg", "Clipart/Thing_03/00001.jpg",
            "Product/Thing_00/00001.jpg", "Real World/Thing_03/00001.jpg"]  # fmt: skip


def arrays(num_pictures=24, **others):
    """A features file in which the first feature is the number of the picture, and the domains take turns."""
    x = np.random.default_rng(0).random((num_pictures, 512), dtype=np.float32)
    x[:, 0] = np.arange(num_pictures)
    y, domain = np.arange(num_pictures) * 5 % 65, np.arange(num_pictures) % 4
    return {"x": x, "y": y, "domain": domain, "class_names": CLASSES, "domain_names": DOMAINS, "checksum": "0"} | others


def write(root, content):
    (root / "OfficeHome").mkdir(exist_ok=True)
    np.savez(root / "OfficeHome/features.npz", **content)
    return str(root)


def load(root, **fields):
    return OfficeHome(root, **fields).load()


def refused(root, *words, **fields):
    with pytest.raises(ConfigError) as caught:
        load(root, **fields)
    for word in words:
        assert word in str(caught.value)


def test_all_domains_are_merged(tmp_path):
    content = arrays()
    samples = load(write(tmp_path, content))
    np.testing.assert_array_equal(samples.x, content["x"])
    assert samples.x.dtype == np.float32
    assert samples.y.dtype == np.int64
    assert samples.y.tolist() == content["y"].tolist()
    assert samples.owner is None
    assert samples.names is None


def test_domains_are_chosen(tmp_path):
    root = write(tmp_path, arrays())
    assert load(root, domains=("Clipart",)).x[:, 0].tolist() == [1, 5, 9, 13, 17, 21]
    both = load(root, domains=("Real World", "Art"))
    assert both.x[:, 0].tolist() == [0, 3, 4, 7, 8, 11, 12, 15, 16, 19, 20, 23]
    assert both.y.tolist() == [int(number) * 5 % 65 for number in both.x[:, 0]]


def test_domains_become_clients_if_asked_for(tmp_path):
    dataset = OfficeHome(write(tmp_path, arrays()), domains=("Real World", "Clipart"), by_domain=True)
    samples = dataset.load()
    assert samples.names == ["Clipart", "Real World"]
    assert samples.owner.tolist() == [int(number) % 4 == 3 for number in samples.x[:, 0]]
    seen, _ = build_populations(dataset, test_fraction=0.0)
    assert seen.names == ["Clipart", "Real World"]
    assert sorted(seen.train.client(1).x[:, 0].tolist()) == [3, 7, 11, 15, 19, 23]


def test_label_groups_divide_the_merged_pictures(tmp_path):
    dataset = OfficeHome(write(tmp_path, arrays(260)))
    seen, _ = build_populations(dataset, LabelGroups(num_groups=4), 8, test_fraction=0.2)
    labels = [set(seen.train.client(client).y.tolist()) for client in range(8)]
    assert seen.train.num_samples + seen.test.num_samples == 260
    assert not labels[0] & labels[1]
    assert labels[0] & labels[4]


def test_fraction_is_a_share_of_the_chosen_domains(tmp_path):
    root, art = write(tmp_path, arrays(200)), {"domains": ("Art",)}
    some, more, other = (
        load(root, fraction=fraction, seed=seed, **art).x[:, 0].tolist()
        for fraction, seed in ((0.2, 1), (0.6, 1), (0.2, 2))
    )
    assert (len(some), len(more)) == (10, 30)
    assert set(some) < set(more)
    assert some != other
    assert all(number % 4 == 0 for number in more)


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ({"x": np.zeros((24, 2048), np.float32)}, ("[24, 2048]", "512 features")),
        ({"x": np.zeros((24, 512), np.int64)}, ("int64",)),
        ({"x": np.zeros((24, 512, 1), np.float32)}, ("[24, 512, 1]",)),
        ({"y": np.zeros(23, np.int64)}, ("y holds int64 of shape [23]", "24 images")),
        ({"y": np.zeros(24)}, ("y holds float64",)),
        ({"y": np.full(24, 65)}, ("outside 0..64",)),
        ({"y": np.full(24, -1)}, ("outside 0..64",)),
        ({"domain": np.full(24, 4)}, ("domain holds a number outside 0..3",)),
        ({"class_names": CLASSES[:64]}, ("names 64 classes", "has 65")),
        ({"domain_names": DOMAINS[::-1]}, ("domain_names are ['Real World'",)),
        ({"class_names": np.array(CLASSES, dtype=object)}, ("class_names holds Python objects",)),
    ],
)
def test_files_of_another_form(tmp_path, others, words):
    refused(write(tmp_path, arrays(**others)), "OfficeHome/features.npz", *words)


def test_a_missing_array_is_named(tmp_path):
    content = arrays()
    del content["domain"]
    refused(write(tmp_path, content), "array domain is missing")


def test_a_domain_without_pictures_is_refused(tmp_path):
    root = write(tmp_path, arrays(domain=np.zeros(24, np.int64)))
    refused(root, "--data.dataset.domains ['Clipart']", domains=("Clipart",))


def test_nothing_there(tmp_path):
    refused(str(tmp_path), f"--data.dataset.root {tmp_path}", f"scripts/office_home_features.py {tmp_path}")


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("domains", (), r"\[\]"),
        ("domains", ("Art", "Sketch"), r"\['Art', 'Sketch'\]"),
        ("fraction", 0.0, "0.0"),
        ("seed", -1, "-1"),
    ],
)
def test_fields_out_of_range(field, value, shown):
    with pytest.raises(ConfigError, match=f"--data.dataset.{field} is {shown}"):
        OfficeHome(**{field: value})


@pytest.fixture
def folder(tmp_path):
    """Five pictures in the folders of the official archive; 65 classes, most of them empty here."""
    folder, pixels = tmp_path / "OfficeHome", np.random.default_rng(1)
    for domain in DOMAINS:
        for name in CLASSES:
            (folder / domain / name).mkdir(parents=True)
    for number, name in enumerate(PICTURES):
        noise = pixels.integers(0, 256, (5, 4 + number, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((300, 260 + number)).save(folder / name)
    (folder / "ImageInfo.csv").write_text("a file of the archive beside the folders")
    return folder


@pytest.fixture
def weights(tmp_path):
    """Random weights, with running statistics of their own; the classifier is for other classes."""
    torch.manual_seed(0)
    network = resnet18(num_classes=7)
    network(torch.randn(4, 3, 64, 64))
    torch.save(network.state_dict(), tmp_path / "weights.pth")
    return str(tmp_path / "weights.pth")


def run(folder, *arguments):
    office_home_features.main([str(folder.parent), *arguments])


def test_the_script_writes_what_the_data_set_reads(folder, weights, capsys):
    run(folder, "--weights", weights)
    samples = load(str(folder.parent), by_domain=True)
    assert samples.y.tolist() == [3, 64, 3, 0, 3]
    assert samples.names == list(DOMAINS)
    assert samples.owner.tolist() == [0, 0, 1, 2, 3]
    assert samples.x.shape == (5, 512)
    lines = "".join(f"{name}\t{(folder / name).stat().st_size}\n" for name in PICTURES)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    with np.load(folder / "features.npz") as kept:
        assert str(kept["checksum"]) == digest
        assert kept["class_names"].tolist() == CLASSES
    assert f"5 pictures of 65 classes; SHA-256 of names and sizes: {digest}" in capsys.readouterr().out
    assert not list(folder.glob(".*"))  # nothing half-written is left


def test_features_are_what_the_classifier_is_given(folder, weights):
    """Preparation by hand: the short side to 256 pixels, the middle 224 x 224, ImageNet's constants."""
    run(folder, "--weights", weights)
    picture = Image.open(folder / PICTURES[0]).resize((295, 256), Image.Resampling.BILINEAR)  # 300 x 260 before
    left, top = round((295 - 224) / 2), (256 - 224) // 2
    pixels = np.asarray(picture.crop((left, top, left + 224, top + 224)), dtype=np.float64) / 255
    prepared = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    network, given = resnet18(num_classes=7), []
    network.load_state_dict(torch.load(weights, weights_only=True))
    network.eval().fc.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    with torch.inference_mode():
        network(torch.tensor(prepared, dtype=torch.float32).permute(2, 0, 1)[None])
    np.testing.assert_allclose(load(str(folder.parent)).x[0], given[0][0], rtol=1e-4, atol=1e-5)


def test_batches_do_not_matter(folder, weights, monkeypatch):
    run(folder, "--weights", weights)
    together = load(str(folder.parent)).x
    monkeypatch.setattr(office_home_features, "BATCH", 2)
    run(folder, "--weights", weights)
    np.testing.assert_allclose(load(str(folder.parent)).x, together, rtol=1e-4, atol=1e-5)


def test_the_checksum_sees_names_and_sizes(folder):
    paths = [folder / name for name in PICTURES]
    digest = office_home_features.checksum(folder, paths)
    assert office_home_features.checksum(folder, paths[::-1]) == digest
    assert office_home_features.checksum(folder, paths[1:]) != digest
    with paths[0].open("ab") as file:
        file.write(b"\0")
    assert office_home_features.checksum(folder, paths) != digest


def test_grey_pictures_get_three_channels(folder, weights):
    Image.new("L", (40, 30), 200).save(folder / "Art/Thing_00/00009.jpg")
    run(folder, "--weights", weights)
    assert load(str(folder.parent), domains=("Art",)).y.tolist() == [0, 3, 64]


def test_the_script_says_what_is_wrong(folder, weights):
    def says(*words, with_weights=weights):
        with pytest.raises(SystemExit) as caught:
            run(folder, "--weights", with_weights)
        assert all(word in str(caught.value) for word in words)
        assert not list(folder.glob("*features.npz*"))

    says("--weights missing.pth does not exist", with_weights="missing.pth")
    (folder / "Art/Thing_00/broken.jpg").write_bytes(b"no picture")
    says("Art/Thing_00/broken.jpg", "cannot be read as a picture")
    (folder / "Product/Thing_65").mkdir()
    says("66 classes", "has 65")
    (folder / "Clipart").rename(folder / "Clip Art")
    says("OfficeHome/Clipart: no such folder")


def test_the_script_wants_pictures(folder):
    for name in PICTURES:
        (folder / name).unlink()
    with pytest.raises(ConfigError, match=r"no picture \*\.jpg"):
        office_home_features.find(folder)
