"""Reptile: a start for fast adaptation, moved towards the models that clients train from it.

Nichol, Achiam, Schulman. "On First-Order Meta-Learning Algorithms". 2018. https://arxiv.org/abs/1803.02999, Algorithm 2
(the batched version), with clients as tasks.

Symbols:
    φ     -> shared.models   the start, leaves [1, ...]
    φ̃_i   -> work.models     the model of client i after k steps from φ, leaves [1, ...]
    k     -> local steps or epochs of the solver
    ε     -> outer_lr        step of φ along the mean of φ̃_i − φ
Deviations:
    With ε = 1 training is that of FedAvg with equal weights; clients differ in how they are served.
    The authors' code lowers ε to 0 over the run, which is not offered; its inner optimizer is Adam with β1 = 0, here
    that of the solver.
    Running statistics of BatchNorm are averaged without ε.
    Every client, seen or unseen, is served by a copy of φ after `fine_tune_epochs` passes over its training samples.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels, LocalRun, Participation, Served
from lit_fed.core.context import Context
from lit_fed.core.reduce import exact_average
from lit_fed.core.types import ClientData, ClientResult, LocalWork, ModelState, Reduced, Tree
from lit_fed.errors import check_settings

__all__ = ["Reptile"]


@dataclass(frozen=True)
class Reptile(Served[GlobalModels, Tree, LocalRun]):
    """A first-order meta-learner: clients train from a common start, which moves towards their models.

    Args:
        outer_lr: ε, step of the start towards the mean of the clients' models.
        fine_tune_epochs: passes over its training samples before a client is served.
    """

    serving_settings = ("fine_tune_epochs",)

    outer_lr: float = 1.0
    fine_tune_epochs: int = 1

    participation = Participation(weighting="uniform")

    def __post_init__(self) -> None:
        check_settings(self, outer_lr="> 0", fine_tune_epochs=">= 0")

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> tuple[()]:
        """Nothing."""
        return ()

    # client_step: k steps of the solver from φ are the default

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send φ̃_i; a served client keeps it."""
        result = super().client_final(ctx, shared, work, data)
        return result._replace(state=work.models) if ctx.phase == "adapt" else result

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """φ <- φ + ε·1/n·Σ_i (φ̃_i − φ)."""
        mean = exact_average(ctx, shared.models, reduced)
        old = tree.map_leaves(Tensor.double, shared.models.parameters)
        return GlobalModels(mean._replace(parameters=tree.lerp(old, mean.parameters, self.outer_lr)))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """Every client trains from φ before it is served."""
        return LocalWork(epochs=self.fine_tune_epochs)

    def served(self, ctx: Context, shared: GlobalModels, state: Tree) -> ModelState:
        """φ̃_i."""
        return state  # type: ignore[no-any-return]
