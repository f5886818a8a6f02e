import math
from dataclasses import replace

import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    POSITIONS,
    REGRESSION,
    NormalisedLinear,
    Plain,
    Tagger,
    distance,
    make_clients,
    make_task,
    perturbed,
    same_bits,
)
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from lit_fed.core import tree
from lit_fed.core.seeds import seed_of
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ModelState
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear

TARGETS = {"binary": BINARY, "multiclass": MULTICLASS, "regression": REGRESSION}
TIGHT = {"rtol": 0, "atol": 1e-12}


def pytorchs(input_shape, num_outputs):
    return nn.Linear(input_shape[0], num_outputs)


def flattened(input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), num_outputs))


def labels(target, shape):
    if target.kind == "regression":
        return torch.randn(shape, dtype=torch.float64)
    return torch.randint(target.num_classes, shape)


def make_batch(target, num_samples=6, num_models=None, masked=0):
    """A batch for all models, or one for each; the last `masked` samples are padding."""
    lead = () if num_models is None else (num_models,)
    if target.positions:
        x, y = torch.randint(7, (*lead, num_samples, 4)), labels(target, (*lead, num_samples, 4))
    else:
        x, y = torch.randn(*lead, num_samples, 4, dtype=torch.float64), labels(target, (*lead, num_samples))
    mask = torch.ones(*lead, num_samples)
    mask[..., num_samples - masked :] = 0
    return Batch(x, y, torch.arange(num_samples).expand(mask.shape), mask)


def own_loss(target, outputs, y):
    """The mean loss by torch's own functions; outputs [B, K] or [B, L, K]."""
    if target.kind == "binary":
        return F.binary_cross_entropy_with_logits(outputs[..., 0], y.to(outputs), reduction="none")
    if target.kind == "regression":
        return 0.5 * F.mse_loss(outputs[..., 0], y, reduction="none")
    losses = F.cross_entropy(outputs.movedim(-1, 1), y, reduction="none")
    return losses.mean(-1) if target.positions else losses


def own_gradient(task, models, m, x, y, weight):
    """Loss and gradient of model m by plain autograd."""
    parameters = {name: leaf[m].clone().requires_grad_() for name, leaf in models.parameters.items()}
    task.network.train()
    outputs = functional_call(task.network, parameters, (x,))
    loss = (own_loss(task.target, outputs, y) * weight).sum() / len(y)
    return loss.detach(), dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))


CASES = [
    *(
        pytest.param(target, network, id=f"{name}-{network.__name__}")
        for name, target in TARGETS.items()
        for network in (Linear, MLP, pytorchs, flattened)
    ),
    pytest.param(POSITIONS, Tagger, id="positions-Tagger"),
]


# ---------------------------------------------------------------------- losses
@pytest.mark.parametrize(("target", "network"), CASES)
@pytest.mark.parametrize("axis", ["loop", "vmap"])
def test_losses_are_those_of_torch(target, network, axis):
    task = make_task(target, network=network, model_axis=axis)
    models, batch = task.init(3, 0), make_batch(target)
    outputs = task.outputs(models, batch.x)
    assert outputs.shape == (6, 3, *batch.y.shape[1:], target.num_outputs)
    losses = task.losses(outputs, batch.y)
    assert losses.shape == (6, 3)
    for m in range(3):
        parameters = tree.index(models.parameters, m)
        expected = own_loss(target, functional_call(task.network.eval(), parameters, (batch.x,)), batch.y)
        torch.testing.assert_close(losses[:, m], expected, **TIGHT)


def test_binary_losses_do_not_overflow():
    task = make_task(BINARY, dtype=torch.float32)
    outputs = torch.tensor([[[1000.0]], [[-1000.0]], [[0.0]]])
    losses = task.losses(outputs, torch.tensor([0, 0, 1]))
    torch.testing.assert_close(losses[:, 0], torch.tensor([1000.0, 0.0, math.log(2)]))


def test_number_of_outputs():
    assert [target.num_outputs for target in TARGETS.values()] == [1, 3, 1]


# ---------------------------------------------------------------------- gradients
@pytest.mark.parametrize(("target", "network"), CASES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_models", [1, 3])
def test_gradients_are_those_of_autograd(target, network, weighted, num_models):
    batch = make_batch(target)
    weight = torch.rand(6, num_models, dtype=torch.float64) if weighted else None
    for axis in ("loop", "vmap"):
        task = make_task(target, network=network, model_axis=axis)
        models = task.init(num_models, 0)
        loss, gradient, buffers = task.value_and_grad(models, batch, weight)
        assert buffers == {}
        for m in range(num_models):
            factor = 1.0 if weight is None else weight[:, m]
            expected_loss, expected = own_gradient(task, models, m, batch.x, batch.y, factor)
            torch.testing.assert_close(loss[m], expected_loss, **TIGHT)
            torch.testing.assert_close(tree.index(gradient, m), expected, **TIGHT)


@pytest.mark.parametrize(("target", "network"), CASES)
@pytest.mark.parametrize("axis", ["loop", "vmap"])
def test_each_model_may_have_a_batch_of_its_own(target, network, axis):
    task = make_task(target, network=network, model_axis=axis)
    models, batch = task.init(3, 0), make_batch(target, num_models=3)
    weight = torch.rand(6, 3, dtype=torch.float64)
    loss, gradient, _ = task.value_and_grad(models, batch, weight)
    for m in range(3):
        expected_loss, expected = own_gradient(task, models, m, batch.x[m], batch.y[m], weight[:, m])
        torch.testing.assert_close(loss[m], expected_loss, **TIGHT)
        torch.testing.assert_close(tree.index(gradient, m), expected, **TIGHT)


@pytest.mark.parametrize(("target", "network"), CASES)
@pytest.mark.parametrize("axis", ["loop", "vmap"])
@pytest.mark.parametrize("per_model", [False, True])
def test_padding_takes_no_part(target, network, axis, per_model):
    task = make_task(target, network=network, model_axis=axis)
    models, batch = task.init(2, 0), make_batch(target, num_models=2 if per_model else None, masked=2)
    weight = torch.rand(6, 2, dtype=torch.float64)
    real = Batch(*(part[:, :4] if per_model else part[:4] for part in batch))
    padded, plain = task.value_and_grad(models, batch, weight), task.value_and_grad(models, real, weight[:4])
    torch.testing.assert_close(padded, plain, **TIGHT)


@pytest.mark.parametrize("network", [Linear, MLP])
def test_nothing_but_padding_gives_zero_gradients(network):
    task = make_task(network=network)
    loss, gradient, _ = task.value_and_grad(task.init(2, 0), make_batch(BINARY, masked=6))
    assert loss.tolist() == [0, 0]
    assert all((leaf == 0).all() for leaf in tree.leaves(gradient))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_closed_form_is_taken_and_equals_autograd(target):
    closed, plain = make_task(target), make_task(target, network=Plain)
    assert closed.closed_form is not None
    assert plain.closed_form is None
    models, batch, weight = closed.init(3, 0), make_batch(target), torch.rand(6, 3, dtype=torch.float64)
    for axis in ("loop", "vmap"):
        other = replace(plain, model_axis=axis)
        torch.testing.assert_close(closed.outputs(models, batch.x), other.outputs(models, batch.x), **TIGHT)
        torch.testing.assert_close(
            closed.value_and_grad(models, batch, weight), other.value_and_grad(models, batch, weight), **TIGHT
        )


def test_inputs_of_several_axes_are_flattened():
    task = Task.create(lambda: Linear((2, 3), 1), BINARY, dtype=torch.float64)
    plain = Task.create(lambda: Plain((2, 3), 1), BINARY, dtype=torch.float64)
    models = task.init(2, 0)
    for lead in ((), (2,)):
        x = torch.randn(*lead, 5, 2, 3, dtype=torch.float64)
        mask = torch.ones(*lead, 5)
        batch = Batch(x, torch.randint(2, (*lead, 5)), torch.arange(5).expand(mask.shape), mask)
        torch.testing.assert_close(task.value_and_grad(models, batch), plain.value_and_grad(models, batch), **TIGHT)


def test_no_input_is_changed():
    task = Task.create(lambda: NormalisedLinear((4,), 1), BINARY, dtype=torch.float64)
    models, batch, weight = task.init(2, 0), make_batch(BINARY), torch.rand(6, 2, dtype=torch.float64)
    before = tree.map_leaves(torch.clone, (models, batch, weight))
    _, _, buffers = task.value_and_grad(models, batch, weight)
    task.outputs(models, batch.x)
    assert same_bits((models, batch, weight), before)
    assert buffers["norm.num_batches_tracked"].tolist() == [1, 1]
    assert not torch.equal(buffers["norm.running_mean"], models.buffers["norm.running_mean"])


def test_running_statistics_are_those_of_a_module_in_training():
    task = Task.create(lambda: NormalisedLinear((4,), 1), BINARY, dtype=torch.float64)
    models, batch = task.init(1, 3), make_batch(BINARY)
    network = NormalisedLinear((4,), 1).double().train()
    network.load_state_dict(tree.index(models.parameters, 0) | tree.index(models.buffers, 0))
    network(batch.x)
    _, _, buffers = task.value_and_grad(models, batch)
    torch.testing.assert_close(tree.index(buffers, 0), dict(network.named_buffers()), **TIGHT)
    network.eval()
    moved = ModelState(models.parameters, buffers)
    torch.testing.assert_close(task.outputs(moved, batch.x)[:, 0], network(batch.x).detach(), **TIGHT)


# ---------------------------------------------------------------------- start
def test_models_start_from_seeds_of_their_own():
    task = make_task()
    models = task.init(3, 7)
    assert tree.leaves(models)[0].dtype == torch.float64
    assert same_bits(models, task.init(3, 7))
    assert same_bits(tree.index(models, slice(0, 2)), task.init(2, 7))
    weights = models.parameters["linear.weight"]
    assert distance(weights[0], weights[1]) > 0.01
    assert distance(weights, task.init(3, 8).parameters["linear.weight"]) > 0.01
    torch.manual_seed(int(seed_of(7, 0, 1, "init").generate_state(1)[0]))
    assert torch.equal(nn.Linear(4, 1).weight.double(), weights[1])


def test_init_seeds_are_those_of_torch_manual_seed():
    task = make_task(init_seeds=(1234, 1235, 1236), dtype=torch.float32)
    models = task.init(2, 99)
    for m, seed in enumerate((1234, 1235)):
        torch.manual_seed(seed)
        layer = nn.Linear(4, 1)
        assert torch.equal(models.parameters["linear.weight"][m], layer.weight)
        assert torch.equal(models.parameters["linear.bias"][m], layer.bias)
    assert not models.parameters["linear.weight"].requires_grad


def test_too_few_init_seeds():
    with pytest.raises(ConfigError, match="init_seeds has 2 seeds; give one for each of 3"):
        make_task(init_seeds=(1, 2)).init(3, 0)


def test_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    task = make_task(network=MLP)
    task.init(2, 0)
    assert torch.equal(torch.get_rng_state(), state)


# ---------------------------------------------------------------------- prediction
def test_probabilities_are_mixed_and_not_logits():
    outputs = torch.randn(5, 3, 3, dtype=torch.float64)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    expected = (weights[:, None] * outputs.softmax(-1)).sum(1).log()
    torch.testing.assert_close(make_task(MULTICLASS).mix(weights, outputs), expected, **TIGHT)


def test_binary_mixtures_have_two_classes():
    outputs = 3 * torch.randn(5, 2, 1, dtype=torch.float64)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    positive = outputs[..., 0].sigmoid() @ weights
    expected = torch.stack([1 - positive, positive], dim=-1).log()
    torch.testing.assert_close(make_task(BINARY).mix(weights, outputs), expected, **TIGHT)


def test_regression_mixes_means():
    outputs = torch.tensor([[[1.0], [3.0]], [[2.0], [-2.0]]])
    mixed = make_task(REGRESSION).mix(torch.tensor([0.25, 0.75]), outputs)
    assert mixed.tolist() == [[2.5], [-1.0]]


def test_positions_are_mixed_one_by_one():
    outputs = torch.randn(5, 2, 4, 3, dtype=torch.float64)
    weights = torch.tensor([0.4, 0.6], dtype=torch.float64)
    mixed = make_task(POSITIONS, network=Tagger).mix(weights, outputs)
    assert mixed.shape == (5, 4, 3)
    expected = (weights[:, None, None] * outputs.softmax(-1)).sum(1).log()
    torch.testing.assert_close(mixed, expected, **TIGHT)


@pytest.mark.parametrize("target", [BINARY, MULTICLASS], ids=["binary", "multiclass"])
def test_a_component_of_weight_0_takes_no_part(target):
    task = make_task(target)
    outputs = torch.randn(5, 2, target.num_outputs, dtype=torch.float64)
    one_hot = torch.tensor([1.0, 0.0], dtype=torch.float64)
    mixed = task.mix(one_hot, outputs)
    torch.testing.assert_close(mixed, task.mix(one_hot[:1], outputs[:, :1]), **TIGHT)
    assert mixed.isfinite().all()


def test_far_logits_do_not_overflow():
    mixed = make_task(BINARY).mix(torch.tensor([0.5, 0.5]), torch.tensor([[[200.0], [-300.0]]]))
    torch.testing.assert_close(mixed, torch.tensor([[math.log(0.5), math.log(0.5)]]))
    alone = make_task(BINARY).mix(torch.ones(1), torch.tensor([[[200.0]]]))
    torch.testing.assert_close(alone, torch.tensor([[-200.0, 0.0]]))


def test_scores_by_hand():
    log_prob = torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log()
    loss, hit = make_task(BINARY).score(log_prob, torch.tensor([0, 0]))
    torch.testing.assert_close(loss, torch.tensor([-math.log(0.7), -math.log(0.4)]))
    assert hit.tolist() == [1, 0]


def test_scores_of_a_regression_are_half_and_whole_squares():
    half, whole = make_task(REGRESSION).score(torch.tensor([[1.0], [4.0]]), torch.tensor([3.0, 4.0]))
    assert half.tolist() == [2, 0]
    assert whole.tolist() == [4, 0]


def test_scores_average_over_positions():
    log_prob = torch.tensor([[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6]]]).log()
    loss, hit = make_task(POSITIONS, network=Tagger).score(log_prob, torch.tensor([[0, 1]]))
    torch.testing.assert_close(loss, torch.tensor([-(math.log(0.5) + math.log(0.2)) / 2]))
    assert hit.tolist() == [0.5]


@pytest.mark.parametrize(("target", "network"), CASES)
def test_the_loss_of_a_prediction_is_the_loss_of_the_model(target, network):
    task = make_task(target, network=network)
    models, batch = perturbed(task.init(1, 0), 1.0), make_batch(target)
    outputs = task.outputs(models, batch.x)
    loss, _ = task.score(task.mix(outputs.new_ones(1), outputs), batch.y)
    torch.testing.assert_close(loss, task.losses(outputs, batch.y)[:, 0], **TIGHT)


# ---------------------------------------------------------------------- all samples of a client
@pytest.mark.parametrize("network", [Linear, MLP], ids=lambda one: one.__name__)
@pytest.mark.parametrize("rows_per_pass", [1, 3, 7, 100])
def test_the_full_gradient_does_not_depend_on_its_passes(network, rows_per_pass):
    task = make_task(MULTICLASS, network=network)
    models, train = task.init(2, 0), make_clients([7, 4], target=MULTICLASS)
    client = train.client(0)
    loss, gradient, _ = task.value_and_grad(models, client.batch)
    found = task.full_gradient(models, client, rows_per_pass)
    assert distance((loss, gradient), found) < 1e-14


def test_the_full_gradient_leaves_padding_out():
    task, train = make_task(), make_clients([7, 4])
    models, plain = task.init(1, 0), train.client(0)
    index, mask = torch.tensor([*range(7), 0, 0]), torch.tensor([1.0] * 7 + [0.0] * 2)
    padded = ClientData(train.x, train.y, index, mask, plain.client_id)
    for rows_per_pass in (2, 1024):
        found = task.full_gradient(models, padded, rows_per_pass)
        assert distance(found, task.full_gradient(models, plain)) < 1e-14


def test_the_full_gradient_may_be_taken_in_evaluation_mode():
    """With dropout and BatchNorm the gradient over all samples is then the mean of those of each."""

    def network(shape, outputs):
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, outputs))

    client = make_clients([7]).client(0)
    for model_axis in ("loop", "vmap"):
        task = make_task(network=network, model_axis=model_axis)
        models = task.init(2, 0)
        found = task.full_gradient(models, client, training=False)
        assert distance(found, task.full_gradient(models, client, 1, training=False)) < 1e-14
        losses = task.losses(task.outputs(models, client.x), client.y)
        assert distance(found[0], losses.mean(0)) < 1e-14
    trained = make_task(network=network).full_gradient(models, client)
    assert distance(found, trained) > 1e-3


@pytest.mark.parametrize("rows_per_pass", [1, 4, 1024])
def test_losses_of_a_client_do_not_depend_on_their_passes(rows_per_pass):
    task = make_task(MULTICLASS, network=Plain)
    models, data = task.init(2, 0), make_clients([9], target=MULTICLASS).client(0)
    found = task.sample_losses(models, data, rows_per_pass)
    torch.testing.assert_close(found, task.losses(task.outputs(models, data.x), data.y), **TIGHT)
    assert found.shape == (9, 2)
    nobody = make_clients([0], target=MULTICLASS).client(0)
    assert task.sample_losses(models, nobody, rows_per_pass).shape == (0, 2)
