import numpy as np
import pytest
import torch
from federated_round import (
    MULTICLASS,
    REGRESSION,
    Federation,
    Scale,
    as_arrays,
    batch_orders,
    distance,
    flat,
    make_clients,
    make_task,
    perturbed,
    quadratics,
    run_rounds,
    same_bits,
)
from normalised import NormalisedMLP
from references.apfl_numpy import apfl_round, predict

from lit_fed.algorithms import APFL, FedAvg, Local
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.models import MLP

SIZES = [5, 2, 8]
COHORTS = [[0, 1, 2], [2, 0], [0, 1, 2]]


# ---------------------------------------------------------------------- against the reference
@pytest.mark.parametrize("options", [{"lr": 0.5}, {"lr": 0.3, "momentum": 0.9, "weight_decay": 0.05}], ids=str)
@pytest.mark.parametrize(
    "fields",
    [
        {"alpha": 0.3, "alpha_update": "fixed"},
        {"alpha": 0.3, "alpha_update": "first_step"},
        {"alpha": 0.3, "alpha_update": "every_step"},
    ],
    ids=str,
)
def test_rounds_are_those_of_the_reference(fields, options, client_trainer):
    train, test = make_clients([5, 5, 5]), make_clients([4, 2, 3], seed=1)
    solver = LocalSolver(local_epochs=2, **options)
    federation = Federation(APFL(**fields), train, solver=solver, trainer=client_trainer, batch_size=2)
    w = federation.weights[0].numpy()
    own, alphas = [w] * 3, [0.3] * 3
    for cohort in COHORTS:
        batches = batch_orders(federation)
        update = fields["alpha_update"]
        w, own, alphas = apfl_round(w, own, alphas, as_arrays(train), batches, present=cohort, update=update, **options)
        federation.round(cohort)
        np.testing.assert_allclose(federation.weights[0].numpy(), w, rtol=0, atol=1e-10)
        np.testing.assert_allclose(flat(federation.states.personal).numpy(), np.stack(own), rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.states.alpha.numpy(), alphas, rtol=0, atol=1e-10)
    assert fields["alpha_update"] == "fixed" or np.ptp(alphas) > 1e-3
    assert federation.metrics["alpha"] == pytest.approx(np.mean(alphas))
    for found, v, alpha, (x, _) in zip(federation.predictions(test), own, alphas, as_arrays(test), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(w, v, alpha, x), rtol=0, atol=1e-10)


def test_gradients_are_those_of_the_mixed_loss():
    """One step of v_i and α_i follows the derivatives of f(αv + (1 − α)w), taken by autograd."""
    train = make_clients([7], target=MULTICLASS)
    task = make_task(MULTICLASS, network=lambda shape, outputs: MLP(shape, outputs, (3,)))
    algorithm, solver = APFL(0.3), LocalSolver(lr=0.2, local_steps=1)
    federation = Federation(algorithm, train, task, solver=solver, batch_size=0)
    federation.states = federation.states._replace(personal=perturbed(federation.states.personal, 0.5))
    w, v = federation.shared.models.parameters, tree.index(federation.states.personal.parameters, 0)
    v = {name: leaf.clone().requires_grad_() for name, leaf in v.items()}
    alpha = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    mixed = {name: (alpha * v[name] + (1 - alpha) * w[name])[0] for name in v}
    share = torch.full((7,), 1 / 7, dtype=torch.float64)
    loss, _ = task.weighted_loss(mixed, {}, train.x, train.y, share)
    *of_v, of_alpha = torch.autograd.grad(loss, [*v.values(), alpha])
    expected = {name: (leaf - 0.2 * slope).detach() for (name, leaf), slope in zip(v.items(), of_v, strict=True)}
    loss, alpha = loss.detach(), alpha.detach()
    federation.round()
    assert distance(tree.index(federation.states.personal.parameters, 0), expected) < 1e-14
    assert float(federation.states.alpha) == pytest.approx(float(alpha - 0.2 * of_alpha), abs=1e-14)
    assert federation.metrics["loss"] == pytest.approx(float(loss), abs=1e-14)


# ---------------------------------------------------------------------- identities
def test_share_zero_is_fedavg(client_trainer):
    options = {"train": make_clients(SIZES), "solver": LocalSolver(momentum=0.9, local_epochs=2)}
    ours = run_rounds(APFL(0.0, "fixed"), client_trainer, **options)
    averaged = run_rounds(FedAvg(), client_trainer, weighting="uniform", **options)
    assert same_bits(ours.shared.models, averaged.shared.models)
    assert distance(ours.predictions(), averaged.predictions()) < 1e-14
    start = Federation(FedAvg(), make_clients(SIZES)).shared.models
    assert same_bits(ours.states.personal, tree.stack([start] * 3))  # v_i is frozen


def test_share_one_is_local_next_to_fedavg(client_trainer):
    solver = LocalSolver(momentum=0.9, weight_decay=0.1, local_epochs=2)
    options = {"train": make_clients(SIZES), "solver": solver}
    ours = run_rounds(APFL(1.0, "fixed"), client_trainer, **options)
    alone = run_rounds(Local(), client_trainer, **options)
    averaged = run_rounds(FedAvg(), client_trainer, weighting="uniform", **options)
    assert same_bits(ours.states.personal, alone.states.models)
    assert same_bits(ours.shared.models, averaged.shared.models)
    assert distance(ours.predictions(), alone.predictions()) < 1e-14


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_running_statistics_are_mixed_like_parameters(alpha, client_trainer):
    solver, task = LocalSolver(lr=0.1), make_task(network=NormalisedMLP)
    options = {"train": make_clients([5, 6, 8]), "task": task, "solver": solver, "weighting": "uniform"}
    ours = run_rounds(APFL(alpha, "fixed"), client_trainer, **options)
    limit = run_rounds(Local() if alpha else FedAvg(), client_trainer, **options)
    assert distance(ours.predictions(), limit.predictions()) < 1e-12
    if alpha:
        assert distance(ours.states.personal, limit.states.models) < 1e-12


def test_the_fixed_point_is_each_clients_optimum():
    """α = ½: w = 3, v = (−3, 5), so that the mixtures are 0 and 4."""
    task, solver = make_task(REGRESSION, 1, Scale), LocalSolver(lr=0.65, local_steps=1)
    train = quadratics([1.0, 3.0], [0.0, 4.0])
    federation = run_rounds(APFL(0.5, "fixed"), None, train, rounds=140, task=task, solver=solver, batch_size=0)
    assert float(federation.weights[0]) == pytest.approx(3.0, abs=1e-9)
    np.testing.assert_allclose(flat(federation.states.personal)[:, 0].numpy(), [-3.0, 5.0], rtol=0, atol=1e-9)
    roots = train.x[:, 0]
    served = torch.cat(federation.predictions())[:, 0] / roots
    np.testing.assert_allclose(served.numpy(), [0.0, 4.0], rtol=0, atol=1e-9)


@pytest.mark.parametrize("start", [0.05, 0.95])
def test_the_share_stays_between_zero_and_one(start, client_trainer):
    algorithm = APFL(start, "every_step")
    solver = LocalSolver(lr=50.0)
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES), rounds=4, solver=solver)
    assert float(federation.states.alpha.min()) >= 0
    assert float(federation.states.alpha.max()) <= 1
    assert {0.0, 1.0} & set(federation.states.alpha.tolist())


# ---------------------------------------------------------------------- serving
