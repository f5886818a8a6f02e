"""Precision and memory format mean the same in every client trainer."""

from functools import partial

import pytest
import torch
from federated_round import MULTICLASS, Federation, distance, make_clients, make_task, run_rounds
from torch import nn

from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer, choose_trainer
from lit_fed.core import tree
from lit_fed.core.task import Task
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, LeNet5, Linear

BF16 = partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=False)


def small_mlp(shape, outputs):
    return MLP(shape, outputs, (8,))


def rounds(trainer, network, bf16):
    options = {"train": make_clients([9, 5, 7], target=MULTICLASS, dtype=torch.float32), "rounds": 2}
    task = make_task(MULTICLASS, network=network, dtype=torch.float32)
    with BF16(enabled=bf16):
        return run_rounds(FedEM(num_components=2), trainer, task=task, **options)


@pytest.mark.parametrize("network", [Linear, small_mlp], ids=["closed form", "autograd"])
def test_bf16_is_the_same_in_both_trainers_and_near_float32(network):
    one, other = (rounds(trainer, network, bf16=True) for trainer in (SequentialTrainer(), VectorizedTrainer()))
    exact = rounds(SequentialTrainer(), network, bf16=False)
    moved = distance(exact.shared, Federation(FedEM(num_components=2), exact.train, exact.task).shared)
    between, away = distance(one.shared, other.shared), distance(one.shared, exact.shared)
    assert 0 < away < 0.1 * moved
    assert between < 0.1 * moved


@pytest.mark.parametrize("trainer", [SequentialTrainer(), VectorizedTrainer()], ids=lambda one: one.name)
def test_models_states_and_predictions_stay_in_float32(trainer):
    federation = rounds(trainer, small_mlp, bf16=True)
    with BF16():
        predictions = federation.predictions()
    for leaf in (*tree.leaves((federation.shared, federation.states)), *predictions):
        assert leaf.dtype == torch.float32
    rows = torch.cat(predictions).exp().sum(-1)
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=1e-6)  # bf16 would be off by 1e-3


def images():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 1, 16, 16, generator=rng, dtype=torch.float64), torch.randint(3, (12,), generator=rng)
    return Split(x, y, torch.tensor([0, 7, 12]))


def image_task():
    return Task.create(lambda: LeNet5((1, 16, 16), 3), MULTICLASS, dtype=torch.float64)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2)], ids=["FedAvg", "FedEM"])
def test_channels_last_changes_rounding_only(algorithm):
    one, other = (
        run_rounds(algorithm, SequentialTrainer(channels_last=last), images(), task=image_task(), batch_size=4)
        for last in (False, True)
    )
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-12
    assert distance(one.predictions(), other.predictions()) < 1e-12


def test_convolutions_see_channels_last():
    seen = []
    task = image_task()
    hook = lambda layer, inputs: seen.append(  # noqa: E731
        (inputs[0].stride()[1] == 1, layer.weight.stride()[1] == 1)
    )
    for layer in task.network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(hook)
    run_rounds(FedEM(num_components=2), SequentialTrainer(channels_last=True), images(), task=task, rounds=1)
    assert seen
    assert all(x and weight for x, weight in seen)


@pytest.mark.parametrize(
    ("name", "network", "memory_format", "expected"),
    [
        ("sequential", LeNet5((1, 16, 16), 3), "auto", True),
        ("debug", LeNet5((1, 16, 16), 3), "auto", True),
        ("auto", LeNet5((1, 16, 16), 3), "contiguous", False),
        ("sequential", MLP((4,), 3), "auto", False),
        ("sequential", MLP((4,), 3), "channels_last", True),
    ],
)
def test_memory_format_of_a_trainer(name, network, memory_format, expected):
    assert choose_trainer(name, network, torch.device("cpu"), memory_format).channels_last is expected


def test_channels_last_is_refused_where_it_means_nothing():
    with pytest.raises(
        ConfigError, match=r"--model\.memory_format channels_last .* use --model\.client_trainer sequential"
    ):
        choose_trainer("vectorized", LeNet5((1, 16, 16), 3), torch.device("cpu"), "channels_last")
