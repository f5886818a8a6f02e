"""Every algorithm with networks of which a part is not trained, or not reached by the loss.

A frozen body is a function of the inputs, the same for all: training its head is training the head on what the body
makes of the samples. So both have to give the same numbers, and to send the same bits.
"""

import pytest
import torch
from federated_round import MULTICLASS, distance, make_task, same_bits
from local_norm import local_norm
from network_cases import CASES, EXACT, LINEAR_ALONE, SIZES, UNSEEN, Unused, federation, images, num_rounds
from test_algorithms import all_algorithms, everything, finite
from torch import nn

from lit_fed.algorithms import FedAvg, FedEM, FedPer
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.layers import last_layers
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, Split
from lit_fed.errors import ConfigError
from lit_fed.models import Linear, Network

pytestmark = pytest.mark.every_combination

every_case = pytest.mark.parametrize("case", CASES)
TRAINERS = [SequentialTrainer, VectorizedTrainer]


class Frozen(Network):
    """A frozen convolution below two trained layers."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Tanh(), nn.Flatten())
        self.body.requires_grad_(False)
        self.head = nn.Sequential(nn.Linear(8, 2), nn.Tanh(), nn.Linear(2, num_outputs))

    def forward(self, x):
        return self.head(self.body(x))


class Head(Frozen):
    """The trained layers alone, with the same weights."""

    def __init__(self, input_shape, num_outputs):
        super().__init__(input_shape, num_outputs)
        del self.body

    def forward(self, x):
        return self.head(x)


class FrozenScale(Network):
    """BatchNorm whose scale is frozen, and whose shift and running statistics are not."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, num_outputs)
        )
        self.layers[0].requires_grad_(False)
        self.layers[1].weight.requires_grad_(False)

    def forward(self, x):
        return self.layers(x)


class Resting(Network):
    """A frozen body with BatchNorm and dropout, which rest, below a trained layer."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Tanh(), nn.Flatten())
        self.body[1].running_var.fill_(0.1)
        self.body.requires_grad_(False)
        self.head = nn.Linear(8, num_outputs)

    def forward(self, x):
        return self.head(self.body(x))


class FrozenBias(Linear):
    """A network with a closed form, half of it frozen."""

    def __init__(self, input_shape, num_outputs):
        super().__init__(input_shape, num_outputs)
        self.linear.bias.requires_grad_(False)


class PlainBias(Network):
    """The same without its closed form."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.linear = nn.Linear(16, num_outputs)
        self.linear.bias.requires_grad_(False)

    def forward(self, x):
        return self.linear(x.flatten(1))


def features(task, split):
    """The samples as the frozen body makes them."""
    body = Frozen((1, 4, 4), 3).body.to(split.x.dtype)
    body.load_state_dict({name.removeprefix("body."): leaf for name, leaf in task.frozen.items()})
    with torch.no_grad():
        return Split(body(split.x), split.y, split.offsets, split.first_id)


def after_rounds(run, unseen=None, rounds=2):
    for _ in range(rounds):
        run.round()
    shown = everything(run, unseen)
    assert finite(shown)
    return shown


def refuses(case, network):
    """Algorithms for linear models say so."""
    if case in LINEAR_ALONE:
        with pytest.raises(ConfigError, match=r"trains linear models, and .* with a matrix and a vector to train"):
            federation(CASES[case], network, SequentialTrainer())
    return case in LINEAR_ALONE


@every_case
def test_a_frozen_body_is_a_function_of_the_inputs(case):
    if refuses(case, Frozen):
        return
    options = {"batch_size": 0 if case in EXACT else 4}
    runs, unseen = [federation(CASES[case], Frozen, one(), **options) for one in TRAINERS], images(UNSEEN, first_id=4)
    task = runs[0].task
    frozen = {name: leaf.clone() for name, leaf in task.frozen.items()}
    assert set(frozen) == {"body.0.weight", "body.0.bias"}
    head = federation(CASES[case], Head, SequentialTrainer(), features(task, runs[0].train), **options)
    expected = after_rounds(head, features(task, unseen), num_rounds(case))
    for run in runs:
        assert distance(after_rounds(run, unseen, num_rounds(case)), expected) < 1e-9
        assert torch.equal(run.bits, head.bits)
        assert same_bits(run.task.frozen, frozen)


@every_case
def test_parameters_that_no_loss_depends_on(case):
    if refuses(case, Unused):
        return
    unseen = images(UNSEEN, first_id=len(SIZES))
    options = {"batch_size": 0 if case in EXACT else 4}
    runs = [federation(CASES[case], Unused, one(), **options) for one in TRAINERS]
    assert distance(*(after_rounds(run, unseen, num_rounds(case)) for run in runs)) < 1e-9


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2), FedPer(private_layers=1)], ids=str)
@pytest.mark.parametrize("local", [False, True], ids=["averaged", "local"])
def test_frozen_scales_of_batch_norm(algorithm, local):
    """The running statistics move all the same, and go where BatchNorm goes."""
    if local and isinstance(algorithm, FedPer):
        return
    algorithm = local_norm(algorithm) if local else algorithm
    runs = [federation(algorithm, FrozenScale, one()) for one in TRAINERS]
    start = tree.models((runs[0].shared, runs[0].states))
    shown = [after_rounds(run, images(UNSEEN, first_id=len(SIZES))) for run in runs]
    assert distance(*shown) < 1e-8
    moved = [
        not torch.equal(one.buffers[name], other.buffers[name])
        for one, other in zip(start, tree.models((runs[0].shared, runs[0].states)), strict=True)
        for name in one.buffers
    ]
    assert local or any(moved)
    assert not any("layers.1.weight" in one.parameters for one in start)


@pytest.mark.parametrize("cls", all_algorithms(), ids=lambda cls: cls.__name__)
def test_a_body_at_rest_in_blocks_and_after_a_resume(cls):
    """The body is the same function in training, whoever shares the clients out, and nobody keeps or sends it."""
    if refuses(cls.__name__, Resting):
        return
    algorithm, options = CASES[cls.__name__], {"batch_size": 0}
    whole, cut = (
        federation(algorithm, Resting, SequentialTrainer(), clients_per_block=one, **options) for one in (None, 2)
    )
    frozen = {name: leaf.clone() for name, leaf in whole.task.frozen.items()}
    assert whole.task.network.body[0].weight.data_ptr() == whole.task.frozen["body.0.weight"].data_ptr()
    whole.round()
    cut.round()
    kept = (whole.shared, whole.states)
    assert same_bits((cut.shared, cut.states), kept)
    assert not [path for path, _ in tree.items(kept) if "body" in path]
    assert not any(one.buffers for one in tree.models(kept))
    resumed = federation(
        algorithm, Resting, SequentialTrainer(), clients_per_block=2, shared=kept[0], round_idx=1, **options
    )
    resumed.states = kept[1]
    whole.round()
    resumed.round()
    assert same_bits((resumed.shared, resumed.states), (whole.shared, whole.states))
    assert same_bits((resumed.task.frozen, whole.task.frozen), (frozen, frozen))


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2), FedPer(private_layers=1)], ids=str)
def test_a_body_at_rest_in_clients_at_once(algorithm):
    one, other = (federation(algorithm, Resting, trainer()) for trainer in TRAINERS)
    unseen = images(UNSEEN, first_id=len(SIZES))
    assert distance(after_rounds(one, unseen), after_rounds(other, unseen)) < 1e-9


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda one: one.name)
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2)], ids=str)
def test_a_closed_form_with_a_frozen_half(algorithm, trainer):
    runs = [federation(algorithm, network, trainer()) for network in (FrozenBias, PlainBias)]
    bias = runs[0].task.frozen["linear.bias"].clone()
    one, other = (after_rounds(run, images(UNSEEN, first_id=len(SIZES))) for run in runs)
    assert distance(one, other) < 1e-12
    assert torch.equal(runs[0].task.frozen["linear.bias"], bias)
    assert list(runs[0].shared.models.parameters) == ["linear.weight"]


def test_frozen_parameters_are_those_of_the_first_model():
    build = lambda: Frozen((1, 4, 4), 3)  # noqa: E731
    for options, seed in (({}, 5), ({"init_seeds": (8, 9)}, 5)):
        task = Task.create(build, MULTICLASS, seed, dtype=torch.float64, **options)
        alone = Task.create(lambda: Head((1, 4, 4), 3), MULTICLASS, seed, dtype=torch.float64, **options)
        assert same_bits(task.init(2, seed), alone.init(2, seed))
        assert not same_bits(task.frozen, Task.create(build, MULTICLASS, 6, dtype=torch.float64).frozen)
        assert same_bits(task.frozen, Task.create(build, MULTICLASS, seed, dtype=torch.float64, **options).frozen)
    torch.manual_seed(8)
    first = build().double()
    assert torch.equal(task.frozen["body.0.weight"], first.body[0].weight)
    assert torch.equal(task.init(2, 5).parameters["head.0.weight"][0], first.head[0].weight)


@pytest.mark.parametrize("axis", ["loop", "vmap"])
@pytest.mark.parametrize("network", [Unused, None], ids=["some", "all"])
def test_the_gradient_of_what_the_loss_does_not_reach_is_zero(axis, network):
    class Constant(Unused):
        def forward(self, x):
            return x.flatten(1)[:, :3]

    run = federation(FedAvg(), network or Constant, SequentialTrainer())
    task = make_task(MULTICLASS, network=lambda *_: (network or Constant)((1, 4, 4), 3), model_axis=axis)
    models, batch = task.init(2, 0), Batch(run.train.x, run.train.y, torch.arange(11), torch.ones(11))
    loss, gradient, _ = task.value_and_grad(models, batch)
    assert loss.isfinite().all()
    for name, leaf in gradient.items():
        assert leaf.shape == models.parameters[name].shape
        assert bool(leaf.any()) is (name.startswith("head") and network is not None)


@pytest.mark.parametrize("build", [lambda: Frozen((1, 4, 4), 3).requires_grad_(False), nn.Flatten])
def test_a_network_with_nothing_to_train_is_refused(build):
    with pytest.raises(ConfigError, match=r"(Frozen|Flatten) has nothing to train: .* or choose another --model\.netw"):
        Task.create(build, MULTICLASS)


def test_the_last_layers_are_counted_among_the_trained():
    names = {"head.0.weight", "head.0.bias", "head.2.weight", "head.2.bias"}
    network = Frozen((1, 4, 4), 3)
    assert last_layers(network, 1) == {"head.2.weight", "head.2.bias"}
    assert last_layers(network, 2) >= names
    with pytest.raises(ConfigError, match="private_layers is 3, and Frozen has 2 layers with trained parameters"):
        last_layers(network, 3)
    frozen_end = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2).requires_grad_(False))
    assert last_layers(frozen_end, 1) >= {"0.weight", "0.bias"}


def test_clipping_and_weight_decay_leave_what_is_frozen_alone():
    solver = LocalSolver(lr=0.1, clip_norm=0.1, weight_decay=0.1, optimizer="adam", persist_optimizer=True)
    run = federation(FedAvg(), Frozen, SequentialTrainer(), solver=solver)
    head = federation(FedAvg(), Head, SequentialTrainer(), features(run.task, run.train), solver=solver)
    assert distance(after_rounds(run), after_rounds(head)) < 1e-9
    assert distance(run.optimizers, head.optimizers) < 1e-9
