import os

import pytest
import torch
from torchvision.models import MobileNet_V2_Weights, ResNet18_Weights, mobilenet_v2, resnet18

from lit_fed.core.targets import Multiclass
from lit_fed.core.task import Task
from lit_fed.errors import ConfigError
from lit_fed.models import MobileNetV2, ResNet18, pretrained

SHAPE = (3, 32, 32)


@pytest.fixture(autouse=True)
def _nothing_cached():
    pretrained._download.cache_clear()
    pretrained._read_once.cache_clear()


@pytest.fixture
def trained():
    """Weights of a network for five classes that no fresh network has."""
    network = mobilenet_v2(num_classes=5)
    network(torch.randn(4, 3, 32, 32))  # running statistics of its own
    return network.state_dict()


def write(folder, state, name="weights.pth"):
    torch.save(state, folder / name)
    return str(folder / name)


def same(network, state, but=()):
    own = network.layers.state_dict()
    return set(own) == set(state) and all(torch.equal(own[name], state[name]) for name in own if name not in but)


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth"])
def test_a_file_is_taken_whole(tmp_path, trained, name):
    assert same(MobileNetV2(SHAPE, 5, weights=write(tmp_path, trained, name)), trained)


def test_a_classifier_for_other_classes_stays_random(tmp_path, trained):
    path = write(tmp_path, trained)
    heads = {"classifier.1.weight", "classifier.1.bias"}
    task = Task.create(lambda: MobileNetV2(SHAPE, 3, weights=path), Multiclass(3))
    models = task.init(2, 0)
    for name, leaf in (models.parameters | models.buffers).items():
        if name.removeprefix("layers.") not in heads:
            assert torch.equal(leaf, trained[name.removeprefix("layers.")].expand(2, *leaf.shape[1:]))
    head = models.parameters["layers.classifier.1.weight"]
    assert head.shape == (2, 3, 1280)
    assert not torch.equal(head[0], head[1])
    torch.manual_seed(1)
    plain = MobileNetV2(SHAPE, 3)
    torch.manual_seed(1)
    assert same(MobileNetV2(SHAPE, 3, weights=path), plain.layers.state_dict(), but=set(trained) - heads)


def test_a_residual_network_reads_files_too(tmp_path):
    state = resnet18(num_classes=4).state_dict()
    path = write(tmp_path, state)
    assert same(ResNet18(SHAPE, 4, weights=path), state)
    assert same(ResNet18(SHAPE, 3, weights=path), state | {"fc.weight": 0, "fc.bias": 0}, but={"fc.weight", "fc.bias"})


def test_files_from_before_batches_were_counted_are_taken(tmp_path, trained):
    old = {name: leaf for name, leaf in trained.items() if not name.endswith("num_batches_tracked")}
    network = MobileNetV2(SHAPE, 5, weights=write(tmp_path, old))
    assert same(network, trained, but=set(trained) - set(old))


def test_a_file_is_read_once_until_it_changes(tmp_path, trained, monkeypatch):
    path, reads, load = write(tmp_path, trained), [], torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **options: reads.append(options) or load(*args, **options))
    for _ in range(2):
        MobileNetV2(SHAPE, 5, weights=path)
    assert reads == [{"map_location": "cpu", "weights_only": True}]
    trained["classifier.1.bias"] += 1
    write(tmp_path, trained)
    os.utime(path, ns=(1, 1))
    assert same(MobileNetV2(SHAPE, 5, weights=path), trained)
    assert len(reads) == 2


def test_names_go_to_torchvision_once(trained, monkeypatch):
    asked = []
    monkeypatch.setattr(
        MobileNet_V2_Weights, "get_state_dict", lambda self, **options: asked.append((self.name, options)) or trained
    )
    for _ in range(2):
        assert same(MobileNetV2(SHAPE, 5, weights="IMAGENET1K_V2"), trained)
    assert asked == [("IMAGENET1K_V2", {"progress": True, "check_hash": True})]


def test_a_failed_download_says_what_to_do_instead(monkeypatch):
    def fail(self, **_):
        raise OSError("no route")

    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", fail)
    with pytest.raises(ConfigError, match=r"weights IMAGENET1K_V1 cannot be downloaded \(no route\); give the path"):
        ResNet18(SHAPE, 3, weights="IMAGENET1K_V1")


@pytest.mark.parametrize("weights", ["imagenet", "weights.bin", ""])
def test_unknown_names_are_refused_with_the_known_ones(weights):
    with pytest.raises(ConfigError, match=rf"network\.weights is {weights}; give one of IMAGENET1K_V1, IMAGENET1K_V2"):
        MobileNetV2(SHAPE, 3, weights=weights)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--model\.network\.weights .*absent\.pth does not exist; give"):
        MobileNetV2(SHAPE, 3, weights=str(tmp_path / "absent.pth"))


@pytest.mark.parametrize("content", [b"", b"no weights at all"])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "bad.pt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"bad\.pt cannot be read as a state dict \(\w+\); write one"):
        MobileNetV2(SHAPE, 3, weights=str(tmp_path / "bad.pt"))


@pytest.mark.parametrize("value", [torch.ones(2), {"state_dict": {"a": torch.ones(2)}}])
def test_a_file_without_a_state_dict_is_refused(tmp_path, value):
    with pytest.raises(ConfigError, match=r"weights\.pth holds no state dict; write one"):
        MobileNetV2(SHAPE, 3, weights=write(tmp_path, value))


def test_a_pickled_network_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read as a state dict"):
        ResNet18(SHAPE, 3, weights=write(tmp_path, resnet18(num_classes=3)))


def test_weights_that_do_not_fit_are_refused_with_some_names(tmp_path, trained):
    renamed = write(tmp_path, {f"model.{name}": leaf for name, leaf in trained.items()})
    with pytest.raises(
        ConfigError, match=r"MobileNet_V2 \(missing: features\.0\S*, .* and \d+ more; unexpected: model\."
    ):
        MobileNetV2(SHAPE, 5, weights=renamed)
    with pytest.raises(ConfigError, match=r"does not fit torchvision's ResNet18 \(missing: conv1\.weight, "):
        ResNet18(SHAPE, 5, weights=write(tmp_path, trained, "other.pt"))
    headless = {name: leaf for name, leaf in trained.items() if not name.startswith("classifier")}
    with pytest.raises(ConfigError, match=r"\(missing: classifier\.1\.weight, classifier\.1\.bias\); give"):
        MobileNetV2(SHAPE, 5, weights=write(tmp_path, headless, "headless.pt"))
    wider = trained | {"features.0.0.weight": torch.ones(32, 1, 3, 3)}
    with pytest.raises(ConfigError, match=r"\(of another shape: features\.0\.0\.weight\); give"):
        MobileNetV2(SHAPE, 5, weights=write(tmp_path, wider, "wider.pt"))
