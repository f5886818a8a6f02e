"""FedPAC: a shared body aligned with global class means, and the best mixture of all heads for each client.

Xu, Tong, Huang. "Personalized Federated Learning with Feature Alignment and Classifier Collaboration". ICLR 2023.
https://arxiv.org/abs/2306.11867, Algorithm 1.

Symbols:
    θ      -> shared.models      the body, leaves [1, ...]
    φ_i    -> shared.heads       the head of client i, leaves [T, 1, ...]
    c_k    -> shared.prototypes  global centroid of class k: mean of f(θ_i; x) over all samples of the round, [C, D]
    λ      -> weight             of the alignment, mean over D of (f(θ; x) − c_y)²
    stages -> `head`, steps of φ_i on the fixed body; `body`, steps of θ_i under the fixed head
    h_i    -> message.centre     p_k·μ_k of each class: its share and mean of features under the received body, [C, D]
    v_i    -> message.variance   (mean of ‖f‖² − Σ_k ‖p_k·μ_k‖²)/n_i, []
    α_i    -> argmin over the simplex of αᵀ(diag(v) + D_i)α, D_i[j, l] = Σ_k ⟨h_ik − h_jk, h_ik − h_lk⟩;
                                 φ_i ← Σ_j α_ij φ_j
Deviations:
    A class without a global centroid is aligned with the client's own mean under the received body, and there is no
    alignment before the first centroids, both as in the authors' code. A class without samples in a round keeps its
    centroid.
    The quadratic program is solved exactly, as non-negative least squares. The authors' code drops eigenvalues below
    0.01 of a matrix that rounding made indefinite, and weights below 0.001. PFLlib averages centroids without weights,
    aligns no class that lacks one, overwrites heads while it mixes them, and applies the weights to the heads in
    another, random order.
    Heads are mixed among the clients of a round; other heads do not change. A client is served by the received body
    with the head that the server mixed for it.
    An unseen client has no head in the paper. Ours: the mean of all heads takes the local work of a round on the body.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.algorithm import (
    LocalRun,
    MessageSpec,
    Participation,
    Personal,
    local_result,
    local_run,
    local_step,
    ranged,
)
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, combine, own_models, put_models, same_start
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.partial_models import in_turn, named_part, names_of, whole_models
from lit_fed.core.prototypes import (
    ClassSums,
    check_classes,
    class_sums,
    class_vectors,
    feature_width,
    head_leaves,
    per_sample,
)
from lit_fed.core.reduce import stacked_average
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Phase, Reduced, Stage
from lit_fed.system.packages import imported_later

if TYPE_CHECKING:
    from scipy import optimize
else:
    optimize = imported_later("scipy.optimize")

__all__ = [
    "AlignedClassifier",
    "BodyAndHeads",
    "FedPAC",
    "OwnHead",
    "smallest_mixture",
    "statistics",
]


class BodyAndHeads(NamedTuple):
    """The server's state."""

    models: ModelState  # θ, leaves [1, ...]
    heads: Peers  # φ_i, leaves [T, 1, ...]
    prototypes: Tensor  # c_k, [C, D]
    known: Tensor  # [C] bool, classes that have a centroid


class AlignedClassifier(NamedTuple):
    """A client's message value."""

    models: ModelState  # θ_i, leaves [1, ...]
    head: Leaves  # φ_i, leaves [1, ...]
    classes: ClassSums  # features under θ_i
    centre: Tensor  # h_i, [C, D]
    variance: Tensor  # v_i, []


class OwnHead(NamedTuple):
    """A client's state."""

    head: Leaves  # φ_i after its local steps, which serves an unseen client, leaves [1, ...]
    client_id: Tensor  # [] int64


@dataclass(frozen=True)
class FedPAC(Personal[BodyAndHeads, OwnHead, LocalRun]):
    """Clients train a head, then the shared body towards global class means; the server mixes heads for each client.

    Args:
        weight: λ of the alignment with class means.
        head_epochs: passes over the local samples in which the head is trained.
        head_lr: learning rate of these steps; null takes that of the round.
    """

    weight: float = ranged(1.0, ">= 0")
    head_epochs: int = ranged(1, ">= 0")
    head_lr: float | None = ranged(0.1, ">= 0")

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(fills_in_absent=False)
    state_reads_data = True
    incompatible = {"size_sampling": "keeps one head for each client"}

    def shared_init(self, ctx: Context) -> BodyAndHeads:
        """Equal heads; no class has a centroid."""
        check_classes(ctx.task.target, "FedPAC")
        whole = ctx.task.init(1, ctx.seed)
        head = head_leaves(ctx.task, whole)
        prototypes = class_vectors(ctx.task, feature_width(ctx.task, "FedPAC"))
        known = torch.zeros(len(prototypes), dtype=torch.bool)
        heads = same_start(ModelState(head, {}), ctx.num_clients)
        return BodyAndHeads(named_part(whole, names_of(whole) - head.keys()), heads, prototypes, known)

    def state_init(self, ctx: Context, shared: BodyAndHeads, data: ClientData) -> OwnHead:
        """The initial head; the mean of all heads for an unseen client."""
        return OwnHead(own_models(shared.heads, data.client_id).parameters, data.client_id)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """The head, then the body."""
        work = ctx.solver.work
        stages = (Stage("head", self.head_epochs), Stage("body", work.epochs, work.steps))
        return (Phase("train", client_ids, in_turn(work, *stages)),)

    def client_init(
        self, ctx: Context, shared: BodyAndHeads, state: OwnHead, data: ClientData, losses: None
    ) -> LocalRun:
        """The received body and head; with the aims of the alignment [C, D], h_i and v_i."""
        head = _head(shared, state)
        models = whole_models(ctx.task.network, shared.models, head)
        own, centre, variance = statistics(ctx.task, models, data)
        aims = torch.where(shared.known.unsqueeze(-1), shared.prototypes, own)
        run = local_run(ctx, models, (aims, centre, variance))
        return run._replace(optimizer=(ctx.solver.init(head), run.optimizer))

    def client_step(self, ctx: Context, shared: BodyAndHeads, work: LocalRun, batch: Batch) -> LocalRun:
        """A step of the body under the head, or of the head on the body."""
        of_head, of_body = work.optimizer
        head = head_leaves(ctx.task, work.models)
        if ctx.stage == "body":
            constants = (work.extra[0].unsqueeze(0), shared.known.any().unsqueeze(0))
            objective = Objective(self.loss, uses_features=True, constants=constants)
            run = local_step(ctx, work._replace(optimizer=of_body), batch, objective=objective)
            models = run.models._replace(parameters=run.models.parameters | head)
            return run._replace(models=models, optimizer=(of_head, run.optimizer))
        lr = ctx.own_rate(None if ctx.phase == "adapt" else self.head_lr)
        loss, gradient, _ = ctx.task.value_and_grad(work.models, batch)
        moved, of_head = ctx.solver.update(head, {name: gradient[name] for name in head}, of_head, lr)
        models = work.models._replace(parameters=work.models.parameters | moved)
        return LocalRun(models, (of_head, of_body), work.loss + loss.mean(), work.steps + 1, work.extra)

    def loss(self, view: ModelView) -> Tensor:
        """The task's loss + λ·(mean squared distance to the centroid of the class), [B]."""
        aims, aligns = view.constants
        away = (view.features - aims[view.y]).square().mean(-1)
        return view.losses + self.weight * torch.where(aligns, per_sample(away), 0.0)

    def client_final(self, ctx: Context, shared: BodyAndHeads, work: LocalRun, data: ClientData) -> ClientResult:
        """Send body, head, class sums under the new body, h_i and v_i."""
        head, body = head_leaves(ctx.task, work.models), named_part(work.models, names_of(shared.models))
        classes = class_sums(lambda x: ctx.task.features(work.models, x)[:, 0], data, len(shared.known))
        value = AlignedClassifier(body, head, classes, *work.extra[1:])
        return local_result(ctx, work, data, value, OwnHead(head, data.client_id))

    def server_step(self, ctx: Context, shared: BodyAndHeads, reduced: Reduced, client_ids: Tensor) -> BodyAndHeads:
        """Means of bodies by samples and of features by class; Σ_j α_ij φ_j for each client of the round."""
        sent: AlignedClassifier = reduced.value
        models = stacked_average(sent.models, reduced.weight)
        classes = ClassSums(*(leaf.double().sum(0) for leaf in sent.classes))
        seen = classes.counts > 0
        prototypes = torch.where(seen.unsqueeze(-1), classes.means, shared.prototypes.double())
        alpha = head_weights(sent.centre.double(), sent.variance.double())
        heads = put_models(shared.heads, client_ids, combine(alpha, ModelState(sent.head, {})))
        return BodyAndHeads(models, heads, prototypes, shared.known | seen)

    def served(self, ctx: Context, shared: BodyAndHeads, state: OwnHead) -> ModelState:
        """The body under the client's head."""
        return whole_models(ctx.task.network, shared.models, _head(shared, state))


def _head(shared: BodyAndHeads, state: OwnHead) -> ModelState:
    """The head that the server keeps for a client; an unseen client's own head."""
    return own_models(shared.heads, state.client_id, ModelState(state.head, {}))


def statistics(task: Task, models: ModelState, data: ClientData) -> tuple[Tensor, Tensor, Tensor]:
    """Means of features by class μ_k [C, D], h_i [C, D] and v_i [] of a client under these models."""

    def with_square(x: Tensor) -> Tensor:
        found = task.features(models, x)[:, 0]
        return torch.cat([found, found.square().sum(-1, keepdim=True)], dim=-1)

    found = class_sums(with_square, data, task.target.num_classes)
    total = found.counts.sum().clamp(min=1)
    centre = found.sums[:, :-1] / total
    spread = found.sums[:, -1].sum() / total - centre.square().sum()
    return found.means[:, :-1], centre, spread / data.num_samples.clamp(min=1).to(spread.dtype)


def head_weights(centres: Tensor, variances: Tensor) -> Tensor:
    """α_ij of the clients of a round, [n, n] float64.

    Args:
        centres: h_i, [n, C, D].
        variances: v_i, [n].
    """
    flat = centres.flatten(1)
    away = flat.unsqueeze(1) - flat.unsqueeze(0)  # h_i − h_j, [n, n, C·D]
    rows = [smallest_mixture(own @ own.T + variances.clamp(min=0).diag()) for own in away]
    return torch.stack(rows)


def smallest_mixture(matrix: Tensor) -> Tensor:
    """The α >= 0 with sum 1 for which αᵀQα is smallest, [n] float64.

    With Q = BᵀB it is u/Σu for the u >= 0 of least ‖B·u‖² + (Σu − 1)²: along each ray the best length gives
    αᵀQα/(1 + αᵀQα), which grows with αᵀQα.

    Args:
        matrix: Q, positive semidefinite [n, n] float64.

    Example:
        >>> found = smallest_mixture(torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64))
        >>> found.round(decimals=6).tolist()
        [0.75, 0.25]
    """
    values, vectors = torch.linalg.eigh(matrix)
    scale = values[-1].clamp(min=torch.finfo(values.dtype).tiny)  # α does not depend on it
    root = (values.clamp(min=0) / scale).sqrt().unsqueeze(1) * vectors.T
    system = torch.cat([root, torch.ones_like(root[:1])]).cpu().numpy()
    aim = torch.zeros(len(system), dtype=torch.float64)
    aim[-1] = 1.0
    solution = torch.from_numpy(optimize.nnls(system, aim.numpy())[0]).to(matrix)
    return solution / solution.sum()
