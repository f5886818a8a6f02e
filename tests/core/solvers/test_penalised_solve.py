import pytest
import torch
from federated_round import distance, make_clients, make_context, make_task

from lit_fed.algorithms import FedADMM
from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.solvers.penalised_solve import penalised_run


@pytest.fixture
def ctx():
    return make_context(solver=LocalSolver(lr=0.3, momentum=0.9))


def start(ctx, share=1.0):
    linear = tree.scale(make_task().init(1, 7).parameters, 2.0)
    state = GlobalModels(ctx.task.init(1, 0))
    return penalised_run(ctx, state, 0.6, linear, torch.tensor(share, dtype=torch.float64)), linear


def test_a_run_starts_from_the_state(ctx):
    run, _ = start(ctx)
    assert run.models is run.extra[1].models


def test_the_penalty_is_divided_by_the_weight_of_the_loss(ctx):
    run, linear = start(ctx, share=4.0)
    theta = run.models.parameters
    expected = Penalty(0.6, None, linear).value(theta) / 4
    torch.testing.assert_close(run.extra[0].value(theta), expected)


def test_a_step_is_that_of_the_solver(ctx):
    run, linear = start(ctx, share=2.0)
    batch = make_clients([6]).client(0).batch
    penalty = Penalty(0.3, None, tree.scale(linear, 0.5))
    models, optimizer = run.models, run.optimizer
    for _ in range(3):
        run = FedADMM().client_step(ctx, None, run, batch)
        models, optimizer, _ = ctx.solver.step(ctx.task, models, optimizer, batch, ctx.lr, penalty=penalty)
    assert distance((run.models, run.optimizer), (models, optimizer)) < 1e-14


def test_the_exact_solution_has_no_slope(ctx):
    run, _ = start(ctx)
    data = make_clients([9]).client(0)
    assert FedADMM().solved(ctx, run, data) is run
    solved = FedADMM(local_solve="exact").solved(ctx, run, data)
    loss, gradient = ctx.task.full_gradient(solved.models, data)
    slope = tree.norm(tree.add(gradient, run.extra[0].gradient(solved.models.parameters)))
    assert float(slope) < 1e-10
    assert float(solved.loss) == pytest.approx(float(loss.mean()))
