"""Every network under the task and the client trainers: gradients, parity, running statistics, dropout."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from federated_round import Federation, distance, run_rounds, same_bits
from torch.nn import functional as F

from lit_fed import models
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Multiclass, Sequences
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, Split
from lit_fed.errors import ConfigError
from lit_fed.models import (
    CNN2,
    MLP,
    CharLSTM,
    FedEMCNN,
    HuggingFaceClassifier,
    LeafCNN,
    LeNet5,
    Linear,
    MobileNetV2,
    ResNet18,
    ResNet34,
    Timm,
)

NUM_CLASSES = 3
SMALL_VIT = {"name": "test_vit", "options": {"embed_dim": 8, "depth": 1, "num_heads": 2, "patch_size": 4}}
SMALL_GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 3, "n_positions": 6}
CASES = {
    "Linear": (Linear, (5,), {}),
    "MLP": (MLP, (5,), {"hidden_sizes": (4,)}),
    "LeafCNN": (LeafCNN, (1, 8, 8), {"hidden_size": 8}),
    "LeafCNN without dropout": (LeafCNN, (1, 8, 8), {"hidden_size": 8, "dropout": 0.0}),
    "FedEMCNN": (FedEMCNN, (1, 16, 16), {"hidden_size": 8}),
    "LeNet5": (LeNet5, (3, 16, 16), {}),
    "CNN2": (CNN2, (1, 22, 22), {}),
    "CharLSTM": (CharLSTM, (6,), {"hidden_size": 5}),
    "MobileNetV2": (MobileNetV2, (3, 32, 32), {}),
    "MobileNetV2 without dropout": (MobileNetV2, (3, 32, 32), {"dropout": 0.0}),
    "ResNet18": (ResNet18, (3, 32, 32), {}),
    "ResNet34": (ResNet34, (3, 32, 32), {}),
    "Timm": (Timm, (1, 8, 8), SMALL_VIT),
    "HuggingFaceClassifier": (HuggingFaceClassifier, (6,), {"config": SMALL_GPT2, "per_token": True}),
}
EXTRAS = {"Timm": "timm", "HuggingFaceClassifier": "transformers"}
"""Packages without which a network cannot be built."""
TEXTS = (CharLSTM, HuggingFaceClassifier)
NORMALISED = ["MobileNetV2", "ResNet18", "ResNet34"]
BATCH_NORM = [*NORMALISED, "MobileNetV2 without dropout"]
every_network = pytest.mark.parametrize("case", CASES)


def make(case, dtype=torch.float64):
    if case in EXTRAS:
        pytest.importorskip(EXTRAS[case])
    network, shape, options = CASES[case]
    target = (Sequences if network in TEXTS else Multiclass)(NUM_CLASSES)
    return Task.create(lambda: network(shape, NUM_CLASSES, **options), target, dtype=dtype)


def samples(case, sizes, dtype=torch.float64):
    """Clients with random images, vectors or texts."""
    rng, (network, shape, _), n = torch.Generator().manual_seed(0), CASES[case], sum(sizes)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    if network in TEXTS:
        texts = torch.randint(NUM_CLASSES, (n, shape[0] + 1), generator=rng)
        return Split(texts[:, :-1].contiguous(), texts[:, 1:].contiguous(), offsets)
    x = torch.randn(n, *shape, generator=rng, dtype=torch.float64).to(dtype)
    return Split(x, torch.randint(NUM_CLASSES, (n,), generator=rng), offsets)


def refusal(case):
    """Why the vectorised trainer does not take the network; None where it does."""
    try:
        VectorizedTrainer().check(make(case).network)
    except ConfigError as error:
        return str(error)
    return None


def test_every_network_of_the_package_is_here():
    elsewhere = {models.Network, models.UNet, models.HuggingFaceCausalLM}  # masks, and words of its own
    networks = {getattr(models, name) for name in models.__all__} - elsewhere
    assert {network for network, _, _ in CASES.values()} == networks


@every_network
def test_gradients_and_buffers_are_those_of_the_module_itself(case):
    task, data = make(case), samples(case, [4])
    stacked = task.init(1 if case == "ResNet34" else 2, 0)
    weight = torch.rand(4, len(tree.leaves(stacked)[0]), dtype=torch.float64)
    network = task.build().to(torch.float64).train()
    torch.manual_seed(5)  # dropout
    loss, gradient, buffers = task.value_and_grad(
        stacked, Batch(data.x, data.y, torch.arange(4), torch.ones(4)), weight
    )
    torch.manual_seed(5)
    for m in range(len(loss)):
        one = tree.index(stacked, m)
        network.load_state_dict(one.parameters | one.buffers)
        outputs = network(data.x)
        each = F.cross_entropy(outputs.flatten(0, -2), data.y.flatten(), reduction="none").view(4, -1).mean(1)
        expected = (each * weight[:, m]).mean()
        own = dict(zip(one.parameters, torch.autograd.grad(expected, list(network.parameters())), strict=True))
        found = loss[m], tree.index(gradient, m), tree.index(buffers, m)
        wanted = expected.detach(), own, dict(network.named_buffers())
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@every_network
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_head_of_the_features_gives_the_outputs(case, dtype):
    """Bit for bit on one path, and up to rounding between paths."""
    task, data = make(case, dtype), samples(case, [5], dtype)
    models = task.init(1 if case in BATCH_NORM else 2, 0)
    paths = [task, replace(task, channels_last=True)]
    paths += [] if CASES[case][0] in (*TEXTS, Timm) else [replace(task, model_axis="vmap")]
    first, outputs = task.features(models, data.x), task.outputs(models, data.x)
    rounding = (1 + float(outputs.abs().max())) * (1e-12 if dtype == torch.float64 else 1e-6)
    for path in paths:
        features = path.features(models, data.x)
        assert same_bits(path.head(models, features), path.outputs(models, data.x))
        assert distance(path.head(models, first), outputs) < rounding
        assert distance(features, first) < 10 * rounding  # after all layers
    assert features.shape[:2] == outputs.shape[:2]
    last = next(module for module in reversed(list(task.network.modules())) if isinstance(module, torch.nn.Linear))
    assert features.shape[-1] == last.in_features


@every_network
def test_a_seed_fixes_the_weights_and_no_other_generator_is_used(case):
    def generators():
        return random.getstate(), np.random.get_state()[1:3], torch.get_rng_state()

    task = make(case, torch.float32)
    (python, (words, position), torch_state), one = generators(), task.init(1, 0)
    assert random.getstate() == python
    assert np.array_equal(np.random.get_state()[1], words)
    assert np.random.get_state()[2] == position
    assert torch.equal(torch.get_rng_state(), torch_state)
    torch.rand(1)
    assert same_bits(one, task.init(1, 0))
    assert not same_bits(one.parameters, task.init(1, 1).parameters)


@every_network
def test_the_sequential_trainer_trains_it(case):
    task, train = make(case, torch.float32), samples(case, [6, 4], torch.float32)
    federation = Federation(FedAvg(), train, task, solver=LocalSolver(lr=0.05))
    before = federation.shared
    SequentialTrainer().check(task.network)
    federation.round()  # batches of 4 and 2 images, and of 4
    assert distance(before.models.parameters, federation.shared.models.parameters) > 1e-6
    assert all(leaf.isfinite().all() for leaf in tree.leaves(federation.shared))
    assert federation.evaluate()[:, 0].tolist() == [6, 4]


@every_network
def test_the_vectorised_trainer_gives_the_same_or_refuses(case):
    message = refusal(case)
    if message is not None:
        assert message.startswith("--model.client_trainer vectorized cannot train a network with ")
        assert message.endswith("; use sequential (or auto)")
        return
    # BatchNorm over few values magnifies rounding (over two it gives 1 and -1, whatever they are): no such batches,
    # short steps, and predictions, another forward pass away, two digits wider
    wide = 1e-8 if case in BATCH_NORM else 1e-10
    sizes = [5, 3] if case.startswith("ResNet") else [8, 3, 4] if case in BATCH_NORM else [7, 2, 4]
    options = {"train": samples(case, sizes), "rounds": 1, "task": make(case), "batch_size": 5}
    options["solver"] = LocalSolver(lr=1e-4 if case in BATCH_NORM else 0.05, momentum=0.9)
    trainers = SequentialTrainer(), VectorizedTrainer()
    # ResNet34 is ResNet18 with more of the same blocks: of 21 million numbers one model is enough
    algorithm = FedAvg() if case == "ResNet34" else FedEM(num_components=2)
    one, other = (run_rounds(algorithm, trainer, **options) for trainer in trainers)
    torch.testing.assert_close((one.shared, one.states), (other.shared, other.states), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(one.predictions(), other.predictions(), rtol=wide, atol=wide)


def test_networks_that_the_vectorised_trainer_takes():
    refused = ["LeafCNN", "CharLSTM", "MobileNetV2", "Timm", "HuggingFaceClassifier"]
    assert [case for case in CASES if refusal(case)] == refused


@pytest.mark.parametrize(
    ("case", "layer"), [("LeafCNN", r"dropout \(0\.5\)"), ("CharLSTM", "LSTM"), ("MobileNetV2", r"dropout \(0\.2\)")]
)
def test_networks_that_only_the_sequential_trainer_takes(case, layer):
    assert re.search(f"with ({layer});", refusal(case))


@pytest.mark.parametrize("case", NORMALISED)
def test_running_statistics_move_and_are_averaged(case):
    """Two clients with one batch each: the server's statistics are the weighted mean of theirs."""
    dtype, sizes = torch.float32, [6, 3]
    train, options = samples(case, sizes, dtype), {"task": make(case, dtype), "batch_size": 6, "rounds": 1}
    federation = run_rounds(FedAvg(), SequentialTrainer(), train, **options)
    found = {name: leaf[0] for name, leaf in federation.shared.models.buffers.items()}
    start = federation.task.init(1, 0)
    assert distance(start.buffers["layers." + first_mean(case)], found["layers." + first_mean(case)][None]) > 0
    each = []
    for client in (train.client(0), train.client(1)):
        network = federation.task.build().train()
        network.load_state_dict({name: leaf[0] for name, leaf in (start.parameters | start.buffers).items()})
        network(client.x)
        each.append(dict(network.named_buffers()))
    for name, leaf in found.items():
        if name.endswith("num_batches_tracked"):
            assert int(leaf) == 1
        else:
            expected = (6 * each[0][name].double() + 3 * each[1][name].double()) / 9
            torch.testing.assert_close(leaf.double(), expected, rtol=1e-5, atol=1e-6)


def first_mean(case):
    return "features.0.1.running_mean" if case == "MobileNetV2" else "bn1.running_mean"


@pytest.mark.parametrize("case", ["LeafCNN", "MobileNetV2"])
def test_dropout_is_fixed_by_the_seed(case):
    dtype = torch.float32
    options = {"train": samples(case, [4, 3], dtype), "task": make(case, dtype), "batch_size": 4, "rounds": 1}
    torch.manual_seed(1)
    one = run_rounds(FedEM(num_components=2), SequentialTrainer(), **options)
    torch.manual_seed(2)
    again = run_rounds(FedEM(num_components=2), SequentialTrainer(), **options)
    assert same_bits((one.shared, one.states), (again.shared, again.states))
    assert distance(one.predictions(), again.predictions()) == 0


@pytest.mark.parametrize("case", NORMALISED)
def test_a_single_image_is_left_out_since_it_has_no_statistics(case):
    """Maps of 32×32 pixels shrink to one pixel, and a batch of one image to one value per channel."""
    dtype = torch.float32
    train, task = samples(case, [1, 5], dtype), make(case, dtype)
    start, found = task.init(1, 0), run_rounds(FedAvg(), SequentialTrainer(), train, rounds=1, task=task, batch_size=4)
    counter = "layers." + first_mean(case).replace("running_mean", "num_batches_tracked")
    assert int(start.buffers[counter][0]) == 0
    # client 0 takes no step and client 1 a single one, of its five samples four: (1 · 0 + 5 · 1) / 6 rounds to 1
    assert int(found.shared.models.buffers[counter][0]) == 1
