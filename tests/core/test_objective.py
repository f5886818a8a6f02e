"""Losses of algorithms in local steps, against plain autograd, in every path and both client trainers."""

from dataclasses import dataclass, replace

import pytest
import torch
from federated_round import (
    MULTICLASS,
    POSITIONS,
    NormalisedLinear,
    Plain,
    Tagger,
    distance,
    make_clients,
    make_task,
    perturbed,
    run_rounds,
    same_bits,
)
from torch import nn
from torch.nn import functional as F

from lit_fed.algorithms import FedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.clients.graphed import GraphedTrainer, _GraphedSolver
from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, GlobalModels, LocalRun, local_step
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.networks.start import choose_trained
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.types import Batch, Split
from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear, Network

TIGHT = 1e-12
axes = pytest.mark.parametrize("axis", ["loop", "vmap"])


def mlp(shape, outputs):
    return MLP(shape, outputs, (5,))


def frozen_body(shape, outputs):
    network = MLP(shape, outputs, (6, 5))
    choose_trained(network, ["layers.3", "layers.5"])
    return network


class Parts(Network):
    """Outputs that no layer gives."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.body, self.top = nn.Linear(*shape, 5), nn.Linear(5, outputs)

    def forward(self, x):
        return 2 * self.top(torch.tanh(self.body(x)))

    def split(self):
        return lambda x: torch.tanh(self.body(x)), lambda f: 2 * self.top(f)


class Normalised(Network):
    """BatchNorm between two layers."""

    def __init__(self, shape, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(*shape, 5), nn.BatchNorm1d(5), nn.Linear(5, outputs))

    def forward(self, x):
        return self.layers(x)


BODIES = {
    Linear: lambda network, x: x,
    Plain: lambda network, x: x,
    mlp: lambda network, x: network.layers[:-1](x),
    frozen_body: lambda network, x: network.layers[:-1](x),
    Parts: lambda network, x: torch.tanh(network.body(x)),
    NormalisedLinear: lambda network, x: network.norm(x),
    Normalised: lambda network, x: network.layers[:-1](x),
    Tagger: lambda network, x: torch.tanh(network.embedding(x)),
}


def pulled(view: ModelView) -> torch.Tensor:
    """Cross-entropy, a pull to the mean of the class and to the features of a teacher, and a term of the head."""
    means, share = view.constants
    positions = tuple(range(1, view.features.ndim))
    near = (view.features - means[view.y]).square().mean(positions)
    return (
        view.losses
        + share * near
        + (view.features - view.rows).abs().mean(positions)
        + view.head(means).square().mean()
    )


def reference(task, body, models, m, batch, weight, objective):
    """Loss, gradient and buffers of model m by a network of its own and autograd."""
    network = task.build().double().train()
    network.load_state_dict(tree.index(models.parameters, m) | tree.index(models.buffers, m) | task.frozen)
    x, y, mask = (part[m] if batch.index.ndim == 2 else part for part in (batch.x, batch.y, batch.mask))
    (means, share), rows = objective.constants, objective.rows
    features = body(network, x)
    head = [one for one in network.modules() if isinstance(one, nn.Linear)][-1]
    scale = 2 if isinstance(network, Parts) else 1
    outputs = scale * F.linear(features, head.weight, head.bias)
    mean, pull = means[m % len(means)], share[m % len(share)]
    at_means = scale * F.linear(mean, head.weight, head.bias)
    losses = F.cross_entropy(outputs.movedim(-1, 1), y, reduction="none")
    axes = tuple(range(1, features.ndim))
    losses = losses.mean(1) if losses.ndim > 1 else losses
    losses = losses + pull * (features - mean[y]).square().mean(axes)
    losses = losses + (features - rows[:, m % rows.shape[1]]).abs().mean(axes) + at_means.square().mean()
    factor = mask if weight is None else mask * weight[:, m]
    loss = (losses * factor).sum() / mask.sum()
    names = list(models.parameters)
    leaves = dict(network.named_parameters())
    gradient = torch.autograd.grad(loss, [leaves[name] for name in names], allow_unused=True, materialize_grads=True)
    return loss.detach(), dict(zip(names, gradient, strict=True)), dict(network.named_buffers())


def make(network, num_models, own=True, masked=0, per_model=False, target=MULTICLASS, samples=6):
    """A task, its models, a batch and an objective with constants and rows of each model, or of all if not `own`."""
    rng = torch.Generator().manual_seed(0)
    task = make_task(target, network=network)
    models = perturbed(task.init(num_models, 0), 0.3)
    models = models._replace(buffers={name: leaf.abs() for name, leaf in models.buffers.items()})
    lead = (num_models,) if per_model else ()
    positions = (4,) if target.positions else ()
    x = torch.randn(*lead, samples, 4, dtype=torch.float64, generator=rng)
    x = torch.randint(7, (*lead, samples, 4), generator=rng) if target.positions else x
    y = torch.randint(3, (*lead, samples, *positions), generator=rng)
    mask = torch.ones(*lead, samples, dtype=torch.float64)
    mask[..., samples - masked :] = 0
    width, count = (4 if network in (Linear, Plain, NormalisedLinear) else 5), num_models if own else 1
    means = torch.randn(count, 3, width, dtype=torch.float64, generator=rng)
    share = torch.rand(count, dtype=torch.float64, generator=rng)
    rows = torch.randn(samples, count, *positions, width, dtype=torch.float64, generator=rng)
    batch = Batch(x, y, torch.arange(samples).expand(mask.shape), mask)
    return task, models, batch, Objective(pulled, uses_features=True, constants=(means, share), rows=rows)


# ---------------------------------------------------------------------- gradients
@axes
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("num_models", [1, 3])
@pytest.mark.parametrize(("network", "ended"), [*((network, False) for network in BODIES), (frozen_body, True)])
def test_gradients_are_those_of_autograd(network, num_models, own, ended, axis):
    task, models, batch, objective = make(
        network, num_models, own, target=POSITIONS if network is Tagger else MULTICLASS
    )
    task = replace(task.with_end(batch.x[:2]) if ended else task, model_axis=axis)
    weight = torch.rand(6, num_models, dtype=torch.float64)
    loss, gradient, buffers = task.value_and_grad(models, batch, weight, objective=objective)
    for m in range(num_models):
        wanted = reference(task, BODIES[network], models, m, batch, weight, objective)
        assert distance((loss[m], tree.index(gradient, m), tree.index(buffers, m)), wanted) < TIGHT


@axes
@pytest.mark.parametrize("network", [Linear, mlp, Parts, Normalised])
def test_each_model_may_have_a_batch_of_its_own(network, axis):
    task, models, batch, objective = make(network, 3, per_model=True)
    found = replace(task, model_axis=axis).value_and_grad(models, batch, objective=objective)
    for m in range(3):
        assert (
            distance(tree.index(found, m), reference(task, BODIES[network], models, m, batch, None, objective)) < TIGHT
        )


@axes
@pytest.mark.parametrize("per_model", [False, True])
@pytest.mark.parametrize("network", [Linear, mlp, Parts])
def test_padding_takes_no_part(network, per_model, axis):
    task, models, batch, objective = make(network, 2, masked=2, per_model=per_model)
    task, weight = replace(task, model_axis=axis), torch.rand(6, 2, dtype=torch.float64)
    real = Batch(*(part[:, :4] if per_model else part[:4] for part in batch))
    found = task.value_and_grad(models, batch, weight, objective=objective)
    assert distance(found, task.value_and_grad(models, real, weight[:4], objective=objective.of_rows(slice(4)))) < TIGHT
    nothing = batch._replace(mask=torch.zeros_like(batch.mask))
    found = task.value_and_grad(models, nothing, objective=objective)[:2]
    assert distance(found, tree.zeros_like(found)) == 0


def own_loss(view: ModelView) -> torch.Tensor:
    return view.losses


@axes
def test_the_loss_of_the_task_has_its_bits(axis):
    """But for the closed form, which an objective cannot have."""
    for network, bits in ((mlp, True), (Plain, True), (Normalised, True), (Linear, False)):
        task, models, batch, _ = make(network, 2, masked=1)
        task = replace(task, model_axis=axis)
        for features in (False, True):
            found = task.value_and_grad(models, batch, objective=Objective(own_loss, uses_features=features))
            plain = task.value_and_grad(models, batch)
            assert same_bits(found, plain) if bits else distance(found, plain) < TIGHT


def contrastive(view: ModelView) -> torch.Tensor:
    """InfoNCE between features and rows: the other samples of the batch are the negatives."""
    near = F.normalize(view.features, dim=1) @ F.normalize(view.rows, dim=1).T
    return -near.masked_fill(view.mask == 0, -torch.inf).log_softmax(1).diagonal().masked_fill(view.mask == 0, 0.0)


@axes
def test_a_loss_over_a_batch_gets_its_mask(axis):
    task, models, batch, objective = make(mlp, 2, masked=2)
    task = replace(task, model_axis=axis)
    objective = Objective(contrastive, uses_features=True, over_batch=True, rows=objective.rows)
    real = Batch(*(part[:4] for part in batch))
    found = task.value_and_grad(models, batch, objective=objective)
    assert distance(found, task.value_and_grad(models, real, objective=objective.of_rows(slice(4)))) < TIGHT
    with pytest.raises(ConfigError, match=r"loss reads view\.mask; give its Objective over_batch=True"):
        task.value_and_grad(models, batch, objective=objective._replace(over_batch=False))


@axes
def test_each_model_has_the_mask_of_its_batch(axis):
    task, models, batch, objective = make(mlp, 2, per_model=True)
    batch = batch._replace(mask=torch.tensor([[1.0] * 6, [1.0] * 3 + [0.0] * 3], dtype=torch.float64))
    objective = Objective(contrastive, uses_features=True, over_batch=True, rows=objective.rows)
    found = replace(task, model_axis=axis).value_and_grad(models, batch, objective=objective)
    for m in range(2):
        own = objective._replace(rows=objective.rows[:, m : m + 1])
        alone = task.value_and_grad(tree.index(models, slice(m, m + 1)), tree.index(batch, m), objective=own)
        assert distance(tree.index(found, slice(m, m + 1)), alone) < TIGHT


@axes
def test_a_mean_over_the_batch_is_refused(axis):
    task, models, batch, _ = make(mlp, 2)
    task = replace(task, model_axis=axis)
    with pytest.raises(
        ConfigError, match=r"the objective <lambda> returns \[\] for 6 samples; return the loss of each"
    ):
        task.value_and_grad(models, batch, objective=Objective(lambda view: view.losses.mean()))
    with pytest.raises(ConfigError, match=r"loss reads view\.features; give its Objective uses_features=True"):
        task.value_and_grad(models, batch, objective=Objective(lambda view: view.features.sum(1)))


@axes
def test_a_loss_may_evaluate_other_models(axis):
    """The mode of the next model's pass is that of local steps all the same."""
    task, models, batch, _ = make(Normalised, 2)
    task = replace(task, model_axis=axis)

    def loss(view):
        return view.losses * task.outputs(models, batch.x)[:, 0, 0].detach()

    def given(view):
        return view.losses * view.rows

    found = task.value_and_grad(models, batch, objective=Objective(loss))
    rows = task.outputs(models, batch.x)[:, :1, 0]
    assert distance(found, task.value_and_grad(models, batch, objective=Objective(given, rows=rows))) < TIGHT


@axes
def test_an_unknown_last_layer_is_named_only_if_features_are_used(axis):
    task, models, batch, objective = make(Parts, 2)
    task.network.split = None
    task = replace(task, model_axis=axis)
    task.value_and_grad(models, batch, objective=Objective(own_loss))
    with pytest.raises(ConfigError, match="Parts has no known last layer"):
        task.value_and_grad(models, batch, objective=objective)


# ---------------------------------------------------------------------- steps
@axes
@pytest.mark.parametrize("network", [Linear, mlp, Normalised])
def test_steps_are_clipped_pulled_and_have_momentum(network, axis):
    task, models, batch, objective = make(network, 2, masked=1)
    task, lr = replace(task, model_axis=axis), torch.tensor(0.1, dtype=torch.float64)
    weight = torch.rand(6, 2, dtype=torch.float64)
    solver = LocalSolver(momentum=0.9, weight_decay=0.05, clip_norm=0.3)
    penalty = Penalty(0.4, tree.scale(models.parameters, 0.5))
    state, losses, own = (models, solver.init(models)), [], models
    for _ in range(3):
        *state, loss = solver.step(task, *state, batch, lr, weight=weight, penalty=penalty, objective=objective)
        losses.append(loss)
    velocity = tree.zeros_like(models.parameters)
    for step in range(3):
        for m in range(2):
            loss, gradient, buffers = reference(task, BODIES[network], own, m, batch, weight, objective)
            assert abs(loss - losses[step][m]) < TIGHT
            for name, leaf in own.parameters.items():
                gradient[name] = gradient[name] + 0.4 * (leaf[m] - 0.5 * models.parameters[name][m])
            norm = torch.stack([leaf.square().sum() for leaf in gradient.values()]).sum().sqrt()
            for name, leaf in own.parameters.items():
                g = gradient[name] * (0.3 / (norm + 1e-6)).clamp(max=1) + 0.05 * leaf[m]
                velocity[name][m] = 0.9 * velocity[name][m] + g
            parameters = {name: leaf.clone() for name, leaf in own.parameters.items()}
            for name in parameters:
                parameters[name][m] -= 0.1 * velocity[name][m]
            kept = {name: leaf.clone() for name, leaf in own.buffers.items()}
            for name, leaf in buffers.items():
                kept[name][m] = leaf
            own = own._replace(parameters=parameters, buffers=kept)
    assert distance(state[0], own) < TIGHT


@axes
def test_in_bf16_losses_and_features_are_wide(axis):
    task = make_task(MULTICLASS, network=mlp, dtype=torch.float32, model_axis=axis)
    _, _, batch, objective = make(mlp, 2)
    constants, rows, x, mask = tree.map_leaves(
        torch.Tensor.float, (objective.constants, objective.rows, batch.x, batch.mask)
    )
    models, batch, seen = task.init(2, 0), batch._replace(x=x, mask=mask), []
    one = Objective(lambda view: seen.append(view) or pulled(view), True, constants=constants, rows=rows)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        found = task.value_and_grad(models, batch, objective=one)
    assert {view.features.dtype for view in seen} == {view.outputs.dtype for view in seen} == {torch.float32}
    assert 0 < distance(found, task.value_and_grad(models, batch, objective=one)) < 0.1


# ---------------------------------------------------------------------- an algorithm
@dataclass(frozen=True)
class PullToMeans(Algorithm[GlobalModels, tuple[()], LocalRun]):
    """FedAvg whose features stay near the class means under the shared model, and near those of the shared model."""

    strength: float = 0.5
    over_batch: bool = False

    num_models = 2

    def client_init(self, ctx, shared, state, data, losses):
        """The class means of the client [M, C, D] are kept in the work."""
        features, chosen = ctx.task.features(shared.models, data.x), F.one_hot(data.y, 3) * data.mask.unsqueeze(1)
        sums = torch.einsum("nmd,nc->mcd", features, chosen.to(features.dtype))
        means = sums / chosen.sum(0).clamp(min=1).to(sums.dtype).view(-1, 1)
        return super().client_init(ctx, shared, state, data, losses)._replace(extra=means)

    def client_step(self, ctx, shared, work, batch):
        features = ctx.task.features(shared.models, batch.x)
        objective = Objective(self.loss, True, self.over_batch, constants=work.extra, rows=features)
        return local_step(ctx, work, batch, objective=objective)

    def loss(self, view):
        near = (view.features - view.constants[view.y]).square().mean(1)
        far = (view.features - view.rows).square().mean(1)
        if self.over_batch:
            near = near + ((view.features * view.mask.unsqueeze(1)).sum(0) / view.mask.sum()).square().mean()
        return view.losses + self.strength * (near + far)


SOLVER = LocalSolver(lr=0.1, momentum=0.5, clip_norm=1.0, local_epochs=2, straggler_fraction=0.5)


@pytest.mark.parametrize("network", [Linear, mlp, frozen_body, Parts, Normalised], ids=lambda one: one.__name__)
@pytest.mark.parametrize("algorithm", [PullToMeans(), PullToMeans(over_batch=True)], ids=["samples", "batch"])
def test_all_client_trainers_agree(network, algorithm):
    options = {"task": make_task(MULTICLASS, network=network), "solver": SOLVER}
    train = make_clients([9, 5, 7, 3], target=MULTICLASS)
    one = run_rounds(algorithm, SequentialTrainer(), train, **options)
    for trainer in (VectorizedTrainer(), VectorizedTrainer(chunk_bytes=1), GraphedTrainer()):
        other = run_rounds(algorithm, trainer, train, **options)
        assert distance(other.shared, one.shared) < 1e-11
        assert other.metrics["loss"] == pytest.approx(one.metrics["loss"], abs=1e-11)
    plain = run_rounds(replace(algorithm, strength=0.0), SequentialTrainer(), train, **options)
    assert (distance(plain.shared, one.shared) > 1e-3) is (network is not Linear)


def shifted(x, y, stream):
    return x + float(stream.generate_state(1)[0] % 7) / 10, y


def test_the_teacher_sees_the_augmented_inputs_too():
    train = make_clients([9, 5, 7], target=MULTICLASS)
    train = Split(train.x.view(-1, 1, 2, 2), train.y, train.offsets)
    task = make_task(MULTICLASS, network=lambda *_: MLP((1, 2, 2), 3, (5,)))
    one, other, plain = (
        run_rounds(PullToMeans(), trainer, train, task=task, solver=SOLVER, augmentation=augmentation)
        for trainer, augmentation in (
            (SequentialTrainer(), shifted), (VectorizedTrainer(), shifted), (VectorizedTrainer(), None)
        )
    )  # fmt: skip
    assert distance(other.shared, one.shared) < 1e-11
    assert distance(other.shared, plain.shared) > 1e-3


def test_recorded_steps_read_operands_anew_and_closures_are_not_recorded():
    trainer, train = GraphedTrainer(), make_clients([4, 4], target=MULTICLASS)
    run_rounds(PullToMeans(), trainer, train, task=make_task(MULTICLASS, network=mlp))
    assert len(trainer._solver[1].recorded) == 1

    class Closed(PullToMeans):
        def client_step(self, ctx, shared, work, batch):
            means = work.extra
            objective = Objective(lambda view: view.losses + means.square().mean() + view.features.mean(1), True)
            models, *_ = ctx.solver.step(ctx.task, work.models, work.optimizer, batch, ctx.lr, objective=objective)
            return work._replace(models=models)

    closed = run_rounds(Closed(), trainer, train, task=make_task(MULTICLASS, network=mlp))
    assert len(trainer._solver[1].recorded) == 1
    assert (
        distance(closed.shared, run_rounds(Closed(), None, train, task=make_task(MULTICLASS, network=mlp)).shared) == 0
    )


def test_padding_of_recorded_steps_repeats_a_sample():
    """An objective need not be finite at zeros."""

    def loss_of(view):
        return view.losses + (view.features.sum(1) / view.rows[:, 0]).square()

    task, models, batch, _ = make(mlp, 2, samples=5)
    solver, lr = _GraphedSolver(lr=0.1, momentum=0.9), torch.tensor(0.1, dtype=torch.float64)
    rows, weight = torch.rand(5, 1, 1, dtype=torch.float64) + 1, torch.rand(5, 2, dtype=torch.float64)
    given, more = (
        (models, solver.init(models), batch, lr),
        {"weight": weight, "objective": Objective(loss_of, True, rows=rows)},
    )
    found = solver.step(task, *given, **more)
    assert len(solver.recorded) == 1
    assert distance(found, LocalSolver(lr=0.1, momentum=0.9).step(task, *given, **more)) < TIGHT


def test_a_mixture_has_an_objective_of_each_component():
    """Weights of an E-step multiply the objective's losses, in both trainers."""

    class Pulled(FedEM):
        def client_step(self, ctx, shared, work, batch):
            own = ctx.task.features(shared.models, batch.x)
            step, solver = super().client_step, ctx.solver

            class Solver(LocalSolver):
                def step(self, *given, **more):
                    return solver.step(*given, objective=Objective(near, True, rows=own), **more)

            return step(ctx._replace(solver=Solver()), shared, work, batch)

    train = make_clients([9, 5, 7], target=MULTICLASS)
    one, other = (
        run_rounds(Pulled(num_components=2), trainer, train, task=make_task(MULTICLASS, network=mlp))
        for trainer in (SequentialTrainer(), VectorizedTrainer())
    )
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-11


def near(view: ModelView) -> torch.Tensor:
    return view.losses + (view.features - view.rows - 1).square().mean(1)


def moved(view: ModelView) -> torch.Tensor:
    """Features are pulled to a leaf of the algorithm."""
    leaf = view.leaves["own.centre"] if view.leaves else view.constants
    return view.losses + (view.features - leaf).square().mean(-1)


@axes
@pytest.mark.parametrize("network", [Linear, mlp, Parts, Normalised])
def test_leaves_of_the_algorithm_are_trained_with_the_network(network, axis):
    """The network's gradient is that with a constant in their place, theirs that of the loss."""
    task, models, batch, objective = make(network, 2, masked=1)
    task, centre = replace(task, model_axis=axis), objective.constants[0][:, 0].expand(2, -1)
    whole = models._replace(parameters=models.parameters | {"own.centre": centre})
    trained = Objective(moved, uses_features=True, leaves=("own.centre",))
    loss, gradient, buffers = task.value_and_grad(whole, batch, objective=trained)
    own = gradient.pop("own.centre")

    def fixed(constant):
        return task.value_and_grad(models, batch, objective=Objective(moved, uses_features=True, constants=constant))

    assert distance((loss, gradient, buffers), fixed(centre)) < TIGHT
    slope = (fixed(centre + own)[0] - fixed(centre - own)[0]) / 2  # exact, since the loss is quadratic in the leaf
    assert distance(slope, own.square().sum(1)) < TIGHT
