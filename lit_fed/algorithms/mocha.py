"""MOCHA: linear classifiers of all clients, related by a covariance that is learned; local dual coordinate ascent.

Smith, Chiang, Sanjabi, Talwalkar. "Federated Multi-Task Learning". NeurIPS 2017. https://arxiv.org/abs/1705.10467,
Algorithm 1.

In the dual of min_W Σ_t loss_t(w_t) + λ/2·tr(W Σ⁻¹ Wᵀ) task t has a vector b_t, and the models are W = (1/λ)·B·Σ. Each
client increases its share of the dual by coordinate steps, one sample at a time, in parallel with all others; ρ damps
the steps so that together they do not overshoot. A network with K outputs is K such problems.

Symbols:
    w_t     -> shared.peers     model of client t with its bias; W = (1/λ)·B·Σ after every round
    Ω⁻¹     -> shared.sigma     covariance Σ of the models, of trace 1, [K, T, T]
    σ'      -> shared.damping   ρ = max_t Σ_s |Σ_ts| / Σ_tt, [K]
    X_t·α_t -> shared.combined  b_t = (1/n_t)·Σ_s α_s·x_s, [T, K, d + 1]
    α_t     -> state.dual       β_s = y_s·α_s of each local sample, in [0, 1], [K, n]
    Δv_t    -> message.value    the change of b_t, [K, d + 1]
    λ       -> regularisation
    θ_t     -> solver.local_epochs, local_steps, straggler_fraction: how far each client goes
Deviations:
    Losses are means over a client's samples, as in the authors' code; `--model.weighting samples` weighs client t by
    T·n_t/n. The bias is regularised like all weights. Changes are added up (γ = 1), which is what ρ is for.
    Coordinate steps have no rate and no batches: the other settings of the solver have no effect.
    Σ gets `epsilon`·I/T, so that clients without a model can still learn; the authors' code clamps eigenvalues, and
    keeps W when Σ changes, so that W = (1/λ)·B·Σ no longer holds. Here W follows Σ.
    K > 2 classes are K tasks of one against the rest, each with its Σ. Ours: probabilities are the sigmoids of margins.
    An unseen client has no model in the paper. Ours: an unrelated task that starts at the mean model; it takes
    `UNSEEN_EPOCHS` passes of coordinate steps on its own problem with the regulariser λT/2·‖w − w̄‖².
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - the name everybody knows

from lit_fed.core import tree
from lit_fed.core.algorithm import NOT_SENT, MessageSpec, Participation, Personal, local_result, ranged, tuned
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, lone_peer, own_models, put_models, same_start
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.solvers.linear_models import (
    MarginLoss,
    best_dual,
    check_linear_task,
    from_columns,
    margin_loss,
    to_columns,
    with_constant,
)
from lit_fed.core.targets import Target
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, ModelState, Phase, Reduced
from lit_fed.errors import ConfigError

__all__ = ["MOCHA", "DualRun", "DualState", "Related", "coordinate_step", "learned_relations"]


class Related(NamedTuple):
    """The server's state: the models of T tasks with K outputs, their dual vectors, and their covariance."""

    peers: Peers  # w_t, leaves [T, 1, ...]
    combined: Tensor  # b_t, [T, K, d + 1] float64
    sigma: Tensor  # Σ, [K, T, T] float64
    damping: Tensor  # ρ, [K] float64


class DualState(NamedTuple):
    """A client's state: its dual variables, and the resulting model."""

    dual: Tensor  # β_s, [K, most_samples]
    models: ModelState  # its model after its last local steps, which serves an unseen client, leaves [1, ...]
    client_id: Tensor  # [] int64


class DualRun(NamedTuple):
    """A client's phase: coordinate steps on its share of the dual problem."""

    columns: Tensor  # w at the start, [K, d + 1]
    change: Tensor  # Δb of b = share·Σ_s y_s·β_s·x_s, [K, d + 1]
    dual: Tensor  # β_s, [K, N]
    reach: Tensor  # [K] the local model is w + reach·Δb
    share: Tensor  # [] weight of one sample's loss
    optimizer: OptimizerState  # unused by coordinate steps
    loss: Tensor  # [] sum over steps of the sample's loss under the local model, before the step; mean over classes
    steps: Tensor  # [] steps taken

    @property
    def local_columns(self) -> Tensor:
        """The local model, [K, d + 1]."""
        return torch.addcmul(self.columns, self.reach.unsqueeze(1), self.change)


UNSEEN_EPOCHS = 10
"""Passes of coordinate steps, each of which solves for one sample, of an unseen client."""


@dataclass(frozen=True)
class MOCHA(Personal[Related, DualState, DualRun]):
    """A linear classifier for each client, learned together with the covariance of the classifiers.

    Args:
        regularisation: λ.
        rounds_per_relation: rounds between two updates of Σ; 0 leaves all clients unrelated.
        loss: `hinge` or `logistic`.
        epsilon: added to the eigenvalues of Σ, in units of their mean.
    """

    regularisation: float = tuned(0.01, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, within="> 0")
    rounds_per_relation: int = ranged(10, ">= 0")
    loss: MarginLoss = "hinge"
    epsilon: float = ranged(0.01, "> 0")

    in_every_combination = True
    message = MessageSpec("rows", reduce="stack")
    participation = Participation(weighting="uniform", counts_draws=False, fills_in_absent=False)
    state_reads_data = True
    incompatible = {
        "fine_tuning": "keeps dual variables, which local steps on its model would not follow",
        "loss": "minimises a loss of its own, by --model.algorithm.loss",
        "local_norm": "trains linear classifiers",
    }

    def shared_init(self, ctx: Context) -> Related:
        """W = 0 and Σ = I/T."""
        check_linear_task(ctx.task, "MOCHA", ("binary", "multiclass"))
        if ctx.augmentation is not None:
            raise ConfigError(
                f"--data.augment {ctx.augmentation.said}: MOCHA has dual variables of fixed samples; leave it out"
            )
        return _unrelated(ctx.task.init(1, ctx.seed), ctx.num_clients)

    def state_init(self, ctx: Context, shared: Related, data: ClientData) -> DualState:
        """α_t = 0."""
        dual = torch.zeros(len(shared.damping), ctx.most_samples, dtype=ctx.task.dtype)
        return DualState(dual, shared.peers.mean, data.client_id)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """A coordinate step takes one sample, for any batch size of the solver."""
        return (Phase("train", client_ids, ctx.solver.work._replace(batch_size=1)),)

    def client_init(self, ctx: Context, shared: Related, state: DualState, data: ClientData, losses: None) -> DualRun:
        """The local problem (Eq. 4): w_t moves by ρ·Σ_tt/λ with b_t."""
        models, reach = own_models(shared.peers, data.client_id), _reach_of(shared, data.client_id, self.regularisation)
        share, dual = ctx.client_share(data) / data.num_samples.clamp(min=1), _resized(state.dual, len(data.mask))
        return _dual_run(to_columns(models.parameters)[0], dual, reach, share, ctx.solver.init(models))

    def client_step(self, ctx: Context, shared: Related, work: DualRun, batch: Batch) -> DualRun:
        """The best α_s of one sample."""
        return coordinate_step(self.loss, ctx.task.target, work, batch)

    def client_final(self, ctx: Context, shared: Related, work: DualRun, data: ClientData) -> ClientResult:
        """Send Δb_t."""
        own = from_columns(work.local_columns.unsqueeze(0), shared.peers.mean.parameters)
        state = DualState(_resized(work.dual, ctx.most_samples), ModelState(own, {}), data.client_id)
        return local_result(ctx, work, data, work.change, state)

    def server_step(self, ctx: Context, shared: Related, reduced: Reduced, client_ids: Tensor) -> Related:
        """B after the clients' changes, every few rounds Σ, and the resulting models W."""
        learns = self.rounds_per_relation and (ctx.round_idx + 1) % self.rounds_per_relation == 0
        epsilon = self.epsilon if learns else None
        return _with_changes(shared, client_ids, reduced.value, self.regularisation, epsilon)

    def sent(self, ctx: Context, shared: Related, client_id: int) -> tuple[ModelState, Tensor]:
        """w_t and ρ·Σ_tt, or the mean model."""
        task = torch.tensor(client_id, device=shared.damping.device)
        return own_models(shared.peers, task), _reach_of(shared, task, 1.0)

    def received(self, ctx: Context, sent: tuple[ModelState, Tensor], client_id: int) -> Related:
        """Other tasks are unknown; ρ = 1, since ρ·Σ_tt replaces Σ_tt."""
        peers, reach = lone_peer(sent[0], client_id, ctx.num_clients), sent[1].view(-1, 1, 1)
        sigma = reach.expand(-1, ctx.num_clients, ctx.num_clients)
        return Related(peers, NOT_SENT, sigma, torch.ones_like(sent[1]))

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """Only a client without a model trains before it is served."""
        return None if seen else LocalWork(epochs=UNSEEN_EPOCHS, batch_size=1)

    def collaboration(self, ctx: Context, shared: Related, states: DualState) -> Tensor:
        """Σ, its mean over the K outputs."""
        return shared.sigma.mean(0)

    def log_prob(self, ctx: Context, shared: Related, state: DualState, x: Tensor, outputs: None) -> Tensor:
        """Sigmoids of the margins, normalised by their sum if there are several."""
        margins = ctx.task.outputs(own_models(shared.peers, state.client_id, state.models), x)
        margins = torch.nn.functional.logsigmoid(margins) if ctx.task.target.num_outputs > 1 else margins
        return ctx.task.mix(margins.new_ones(1), margins)


def _unrelated(models: ModelState, num_tasks: int) -> Related:
    """Tasks with models of zeros, and Σ = I/T."""
    models = tree.zeros_like(models)
    combined = to_columns(models.parameters).double().expand(num_tasks, -1, -1)
    sigma = _independent(num_tasks).repeat(combined.shape[1], 1, 1)
    return Related(same_start(models, num_tasks), combined, sigma, _damping_of(sigma))


def _independent(num_tasks: int) -> Tensor:
    """Σ of unrelated tasks, I/T, [T, T] float64."""
    return torch.eye(num_tasks, dtype=torch.float64) / num_tasks


def _damping_of(sigma: Tensor) -> Tensor:
    """ρ = max_t Σ_s |Σ_ts| / Σ_tt, [K]: damping of the parallel steps of all tasks.

    Example:
        >>> _damping_of(torch.tensor([[[0.5, -0.25], [-0.25, 0.5]]])).tolist()
        [1.5]
    """
    return (sigma.abs().sum(2) / sigma.diagonal(dim1=1, dim2=2)).amax(1)


def _reach_of(tasks: Related, task: Tensor, weight: float) -> Tensor:
    """Change of a task's model per change of b_t in its own problem, ρ·Σ_tt/λ for each output, [K] float64.

    Args:
        tasks: all tasks.
        task: its number, []; one from T on is a new task, which is unrelated: 1/(λT).
        weight: λ.
    """
    own = tasks.sigma.diagonal(dim1=1, dim2=2)
    num_tasks = own.shape[1]
    known = tasks.damping * own.index_select(1, task.clamp(max=num_tasks - 1).view(1))[:, 0]
    return torch.where(task < num_tasks, known, 1 / num_tasks) / weight


def _resized(dual: Tensor, size: int) -> Tensor:
    """The first entries of the last axis, or all of them padded with zeros.

    Example:
        >>> _resized(torch.ones(1, 2), 3).tolist(), _resized(torch.ones(1, 2), 1).tolist()
        ([[1.0, 1.0, 0.0]], [[1.0]])
    """
    return F.pad(dual, (0, max(size - dual.shape[-1], 0)))[..., :size]


def _dual_run(columns: Tensor, dual: Tensor, reach: Tensor, share: Tensor, optimizer: OptimizerState) -> DualRun:
    """The start of a client's phase, in the type of its model, `columns`."""
    zero = torch.zeros((), dtype=columns.dtype, device=columns.device)
    reach, share = reach.to(columns.dtype), share.to(columns.dtype)
    return DualRun(columns, torch.zeros_like(columns), dual, reach, share, optimizer, zero, zero.clone())


def coordinate_step(loss: MarginLoss, target: Target, run: DualRun, batch: Batch) -> DualRun:
    """The optimal dual variables β_s of one sample, with all others fixed.

    Args:
        loss: loss of the margin.
        target: the kind of labels.
        run: the client's work so far.
        batch: the sample, followed by padding.
    """
    one: Batch = tree.index(batch, slice(0, 1))
    x, here = with_constant(one.x)[0], one.mask[0].to(run.dual.dtype)
    sign, position = _class_signs(target, one.y)[0].to(x.dtype), one.index.expand(len(run.dual), 1)
    margin = sign * (run.local_columns @ x)
    old = run.dual.gather(1, position)[:, 0]
    moved = here * (best_dual(loss, old, margin, run.reach * run.share * x.square().sum()) - old)
    return run._replace(
        change=torch.addcmul(run.change, (run.share * sign * moved).unsqueeze(1), x),
        dual=run.dual.scatter(1, position, (old + moved).unsqueeze(1)),
        loss=run.loss + here * margin_loss(loss, margin).mean(),
        steps=run.steps + here,
    )


def _class_signs(target: Target, y: Tensor) -> Tensor:
    """Whether a label is the class of an output, ±1 for each output, [..., K].

    Example:
        >>> one = torch.tensor(1)
        >>> from lit_fed.core.targets import Binary, Multiclass
        >>> _class_signs(Multiclass(3), one).tolist(), _class_signs(Binary(), one).tolist()
        ([-1.0, 1.0, -1.0], [1.0])
    """
    first = target.num_classes - target.num_outputs  # 1 of two classes, whose only output is that of class 1
    classes = torch.arange(first, first + target.num_outputs, device=y.device)
    return torch.where(y.unsqueeze(-1) == classes, 1.0, -1.0)


def _with_changes(
    tasks: Related, which: Tensor, changes: Tensor, weight: float, epsilon: float | None = None
) -> Related:
    """The tasks after changes of some b_t, with the new W, and Σ if it is learned.

    Args:
        tasks: the tasks before.
        which: tasks with changed b_t, [C].
        changes: Δb_t, [C, K, d + 1].
        weight: λ.
        epsilon: as in `learned_relations`, to learn Σ from the new models; None: Σ is unchanged.
    """
    combined = tasks.combined.index_add(0, which, changes.double())
    sigma, damping = tasks.sigma, tasks.damping
    if epsilon is not None:
        sigma = learned_relations(_related_columns(sigma, combined, weight), epsilon)
        damping = _damping_of(sigma)
    columns = _related_columns(sigma, combined, weight).unsqueeze(1)
    models = ModelState(from_columns(columns, tasks.peers.parameters), {})
    everyone = torch.arange(len(columns), device=columns.device)
    return Related(put_models(tasks.peers, everyone, models), combined, sigma, damping)


def learned_relations(columns: Tensor, epsilon: float) -> Tensor:
    """The best Σ for these models, (WᵀW)^½ over its trace, with epsilon·I/T added, [K, T, T].

    The root is computed from the singular values of W, since eigenvalues of WᵀW lose half of the digits.

    Args:
        columns: W, [T, K, d + 1] float64.
        epsilon: share of I/T, so that Σ has an inverse.
    """
    left, values, _ = torch.linalg.svd(columns.transpose(0, 1), full_matrices=False)  # [K, T, r], [K, r]
    root = (left * values.unsqueeze(1)) @ left.transpose(1, 2)
    trace = values.sum(1).view(-1, 1, 1)
    start = _independent(len(columns)).to(root)
    learned = (root / trace.clamp(min=torch.finfo(root.dtype).tiny) + epsilon * start) / (1 + epsilon)
    return torch.where(trace > 0, learned, start)


def _related_columns(sigma: Tensor, combined: Tensor, weight: float) -> Tensor:
    """W = (1/λ)·B·Σ, [T, K, d + 1].

    Args:
        sigma: Σ, [K, T, T].
        combined: B, [T, K, d + 1].
        weight: λ.
    """
    return (sigma @ combined.transpose(0, 1)).transpose(0, 1) / weight
