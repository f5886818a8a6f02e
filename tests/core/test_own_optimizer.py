"""The optimizer of a module's `configure_optimizers` as a local solver, against the optimizer itself."""

import pytest
import torch
from own_modules import LitClassifier
from torch.optim import lr_scheduler

from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.own_module import OwnModule
from lit_fed.core.own_optimizer import OwnOptimizer, own_solver
from lit_fed.core.types import ModelState

ROUNDS, EPOCH_STEPS = 4, 3


def solver_of(make, given=None):
    """The solver of a module with this `configure_optimizers`, what is said of it, and the module."""
    module = type("Mine", (LitClassifier,), {"configure_optimizers": make})()
    return *own_solver(OwnModule(module), given or LocalSolver(), ROUNDS, EPOCH_STEPS), module


OPTIMIZERS = {
    "sgd": lambda self: torch.optim.SGD(self.parameters(), 0.1),
    "momentum": lambda self: torch.optim.SGD(self.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "dampening": lambda self: torch.optim.SGD(self.parameters(), 0.1, momentum=0.9, dampening=0.5),
    "adam": lambda self: torch.optim.Adam(self.parameters(), 1e-2, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.1),
    "amsgrad": lambda self: torch.optim.Adam(self.parameters(), 1e-2, amsgrad=True),
    "adamw": lambda self: torch.optim.AdamW(self.parameters(), 1e-2),
    "nadam": lambda self: torch.optim.NAdam(self.parameters(), 1e-2),
    "rmsprop": lambda self: torch.optim.RMSprop(self.parameters(), 1e-2, momentum=0.5),
    "groups": lambda self: torch.optim.SGD(
        [{"params": self.body.parameters(), "lr": 0.02}, {"params": [*self.head.parameters(), *self.aux.parameters()]}],
        0.1, momentum=0.9,
    ),
}  # fmt: skip
RULES = {"sgd", "momentum", "adam", "adamw"}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_the_optimizer(name):
    solver, said, module = solver_of(OPTIMIZERS[name])
    assert isinstance(solver, OwnOptimizer) == (name not in RULES), said
    rng = torch.Generator().manual_seed(0)
    leaves = {name: leaf.detach() for name, leaf in module.named_parameters()}
    models = ModelState({name: torch.stack([leaf, 2 * leaf]) for name, leaf in leaves.items()}, {})
    gradients = [{name: torch.randn(2, *leaf.shape, generator=rng) for name, leaf in leaves.items()} for _ in range(3)]
    parameters, state = models.parameters, solver.init(models)
    for gradient in gradients:
        parameters, state = solver.update(parameters, gradient, state, solver.lr_at(0, ROUNDS))
    for m in range(2):
        own = type(module)()
        own.load_state_dict({**own.state_dict(), **tree.index(models.parameters, m)})
        optimizer = own.configure_optimizers()
        for gradient in gradients:
            for leaf_name, leaf in own.named_parameters():
                leaf.grad = gradient[leaf_name][m]
            optimizer.step()
        for leaf_name, leaf in own.named_parameters():
            torch.testing.assert_close(parameters[leaf_name][m], leaf.detach(), rtol=0, atol=1e-6)


def with_scheduler(make, **settings):
    def configure(self):
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer, self), **settings}}

    return configure


def rates(solver):
    return [round(float(solver.lr_at(one, ROUNDS)), 6) for one in range(ROUNDS)]


def test_a_scheduler_by_epoch_advances_by_local_epochs():
    make = with_scheduler(lambda optimizer, _: lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    assert rates(solver_of(make)[0]) == [0.1, 0.05, 0.025, 0.0125]
    assert rates(solver_of(make, LocalSolver(local_epochs=2))[0]) == [0.1, 0.025, 0.00625, 0.001563]
    every_other = with_scheduler(lambda optimizer, _: lr_scheduler.StepLR(optimizer, 1, gamma=0.5), frequency=2)
    assert rates(solver_of(every_other)[0]) == [0.1, 0.1, 0.05, 0.05]


def test_a_scheduler_by_step_advances_by_the_steps_of_the_largest_client():
    def one_cycle(optimizer, module):
        assert module.trainer.estimated_stepping_batches == ROUNDS * EPOCH_STEPS
        return lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=module.trainer.estimated_stepping_batches)

    solver, said, _ = solver_of(with_scheduler(one_cycle, interval="step"))
    assert rates(solver) == [0.1, 0.075, 0.05, 0.025]
    assert said.endswith(", with LinearLR by step of the largest client, one rate a round")


def test_a_rate_in_the_settings_replaces_the_rate_alone():
    make = with_scheduler(lambda optimizer, _: lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    assert rates(solver_of(make, LocalSolver(lr=0.4))[0]) == [0.4, 0.2, 0.1, 0.05]
    assert solver_of(OPTIMIZERS["adam"], LocalSolver(lr=0.1))[0].rate == 0.1  # that of networks without an optimizer
    rising = with_scheduler(lambda optimizer, _: lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=ROUNDS))
    usual, tripled = rates(solver_of(rising)[0]), rates(solver_of(rising, LocalSolver(lr=3.0))[0])
    assert tripled == pytest.approx([3 * one for one in usual], abs=1e-5)
    solver, _, _ = solver_of(OPTIMIZERS["groups"], LocalSolver(lr=0.2))
    assert [group["lr"] for _, group in solver.groups] == pytest.approx([0.2, 1.0])


def test_other_settings_replace_the_whole():
    given = LocalSolver(momentum=0.5)
    solver, said, _ = solver_of(OPTIMIZERS["adam"], given)
    assert solver is given
    assert said == "--model.solver.momentum is given, so that Mine.configure_optimizers is not used"


def test_the_local_work_stays_that_of_the_settings():
    solver, _, _ = solver_of(OPTIMIZERS["adam"], LocalSolver(local_epochs=3, clip_norm=1.0, persist_optimizer=True))
    assert (solver.optimizer, solver.local_epochs, solver.clip_norm, solver.persist_optimizer) == ("adam", 3, 1.0, True)
