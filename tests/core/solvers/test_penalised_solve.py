import pytest
import torch
from federated_round import distance, make_clients, make_context, make_task
from torch.func import vmap

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels
from lit_fed.core.local_solver import LocalSolver, Penalty
from lit_fed.core.solvers.penalised_solve import exact_solution, penalised_run, penalised_step


@pytest.fixture
def ctx():
    return make_context(solver=LocalSolver(lr=0.3, momentum=0.9))


def start(ctx, share=1.0):
    linear = tree.scale(make_task().init(1, 7).parameters, 2.0)
    state = GlobalModels(ctx.task.init(1, 0))
    return penalised_run(ctx, state, 0.6, linear, torch.tensor(share, dtype=torch.float64)), linear


def test_a_run_starts_from_the_state(ctx):
    run, _ = start(ctx)
    assert run.models is run.state.models
    assert (float(run.loss), float(run.steps)) == (0, 0)


def test_the_penalty_is_divided_by_the_weight_of_the_loss(ctx):
    run, linear = start(ctx, share=4.0)
    theta = run.models.parameters
    expected = Penalty(0.6, None, linear).value(theta) / 4
    torch.testing.assert_close(run.penalty.value(theta), expected)


def test_a_step_is_that_of_the_solver(ctx):
    run, linear = start(ctx, share=2.0)
    batch = make_clients([6]).client(0).batch
    penalty = Penalty(0.3, None, tree.scale(linear, 0.5))
    models, optimizer, losses = run.models, run.optimizer, []
    for _ in range(3):
        run = penalised_step(ctx, run, batch)
        models, optimizer, loss = ctx.solver.step(ctx.task, models, optimizer, batch, ctx.lr, penalty=penalty)
        losses.append(float(loss.mean()))
    assert distance((run.models, run.optimizer), (models, optimizer)) < 1e-14
    assert float(run.loss) == pytest.approx(sum(losses))
    assert float(run.steps) == 3


def test_the_exact_solution_has_no_slope(ctx):
    run, _ = start(ctx)
    data = make_clients([9]).client(0)
    solved = exact_solution(ctx, run, data)
    loss, gradient = ctx.task.full_gradient(solved.models, data)
    slope = tree.norm(tree.add(gradient, run.penalty.gradient(solved.models.parameters)))
    assert float(slope) < 1e-10
    assert float(solved.loss) == pytest.approx(float(loss.mean()))
    assert float(solved.steps) == 0


def test_many_clients_at_once(ctx):
    runs, batch = [start(ctx, share)[0] for share in (0.5, 2.0)], make_clients([6]).client(0).batch
    both = vmap(lambda run: penalised_step(ctx, run, batch))(tree.stack(runs))
    for row, run in enumerate(runs):
        assert distance(tree.index(both.models, row), penalised_step(ctx, run, batch).models) < 1e-14
