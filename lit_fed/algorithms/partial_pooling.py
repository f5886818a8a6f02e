"""Partial pooling of any network: leaves of each client around common ones, with variances learned by all clients.

A mixed-effects model (Laird, Ware, "Random-Effects Models for Longitudinal Data", Biometrics 38(4), 1982,
https://doi.org/10.2307/2529876) whose coefficients are the leaves of a network, trained by local steps. A variance for
each client, `variance: client`, is that of Zhu, Cao, Li, Ge, Yan. "Confidence-aware Personalized Federated Learning via
Variational Expectation Maximization". CVPR 2023. https://arxiv.org/abs/2305.12557.

    θ_t ~ N(μ, τ_g²) in each leaf g;  σ²: variance of the labels about a regression, 1 for classes
    client:     θ_t ← argmin mean loss + σ²/(2·n_t)·Σ_g ‖θ_g − μ_g‖²/τ_g², by local steps from its last θ_t
                F = Fisher information of its n_t samples at θ_t,  k = F·τ²/(F·τ² + σ²)  of each number; v = τ²·(1 − k)
    server:     μ = Σ_t θ_t / T,  τ_g² = Σ_t ‖θ_t − μ‖²_g / Σ_t Σ k_g,  σ² = Σ_t Σ (ŷ − y)² / Σ_t (n_t − Σ k)
    `client`:   ρ_t² = (Σ v + ‖θ_t − μ‖²)/d at the client in place of τ_g²;  μ = Σ_t θ_t/ρ_t² / Σ_t 1/ρ_t²

Symbols:
    μ      -> shared.models   pooled leaves; the others are shared by all clients (τ = 0), [1, ...]
    τ_g²   -> shared.tau2     one for each pooled leaf, [G]; with `client` the harmonic mean of the ρ_t²
    σ²     -> shared.noise
    θ_t    -> state.models    pooled leaves of client t, [1, ...]
    ρ_t²   -> state.tau2
    k      -> share of a number that the client's samples determine; its sums over leaves are `Sums.slope`
Deviations:
    v is the diagonal of Laplace's approximation. The paper learns a diagonal Gaussian by reparametrised steps, and has
    no σ²; it pools the head, `leaves: head`.
    Of several outputs F is an unbiased estimate from one backward pass for each sample: that of the outputs times
    random signs. The posterior of a client has no correlations.
    Each gradient is (∇ loss + w·(θ − μ))/(1 + η·w), w = σ²/(n_t·τ²): a step of SGD is then the proximal one, which is
    stable for any w, and other optimizers have the same fixed points.
    The server keeps moving sums. A cohort of C of the T clients replaces a share C/T of them and of μ.
    Variances stay within [1e-8, 1e4].
    The first `common_rounds` are those of FedAvg with equal weights, since μ moves slowly under small variances.
    A client without training samples, or that was not sampled yet, is served μ. An unseen client trains
    `unseen_epochs` passes from μ under the prior; shared leaves are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import LocalRun, MessageSpec, Participation, Personal, local_result, local_run, ranged
from lit_fed.core.context import Context
from lit_fed.core.likelihood import Likelihood
from lit_fed.core.objective import ModelView, Objective
from lit_fed.core.partial_models import Patterns, leaf_order, named_leaves, named_part, whole_models
from lit_fed.core.seeds import uniforms
from lit_fed.core.targets import Multiclass, Target
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Reduced
from lit_fed.errors import ConfigError

__all__ = ["OwnLeaves", "PartialPooling", "PooledModels", "WeighedModels"]

LOWEST, HIGHEST = 1e-8, 1e4
"""Bounds of variances."""

NUMBERS_AT_ONCE = 2**21
"""Numbers of the gradients of single samples that are held at once."""


class Sums(NamedTuple):
    """Means over clients of what variances are made of."""

    score: Tensor  # ‖θ − μ‖²_g, [G]; with `client` 1
    slope: Tensor  # Σ k_g, [G]; with `client` 1/ρ²
    squares: Tensor  # Σ (ŷ − y)², []
    freedom: Tensor  # labels − Σ k, []
    labels: Tensor  # []


class PooledModels(NamedTuple):
    """The server's state."""

    models: ModelState  # μ and the shared leaves, [1, ...]
    tau2: Tensor  # τ_g², [G]
    noise: Tensor  # σ², []
    sums: Sums


class OwnLeaves(NamedTuple):
    """A client's state."""

    models: ModelState  # θ_t of the pooled leaves, [1, ...]
    tau2: Tensor  # τ_g², or ρ_t² for each leaf, [G]
    known: Tensor  # [] bool, whether θ_t was trained; otherwise it is μ


class Pull(NamedTuple):
    """What a client's phase keeps beside its run."""

    tau2: Tensor  # of the prior, [G]
    weight: Leaves  # w of each pooled leaf, []


class WeighedModels(NamedTuple):
    """A client's message value."""

    models: ModelState  # leaves [1, ...] float64, pooled ones times weight[0], the others times weight[1]
    weight: Tensor  # 1, or 1/ρ_t²; and n_t, [2]
    sums: Sums


@dataclass(frozen=True)
class PartialPooling(Personal[PooledModels, OwnLeaves, LocalRun]):
    """A network for each client, pulled towards a common one as far as the clients' samples say.

    Args:
        leaves: patterns of names of the pooled leaves, or `head`, `body`, `norm`; the others are shared by all clients.
        variance: one for each `leaf`, learned by all clients, or for each `client`.
        common_rounds: first rounds in which all clients train the common model, without a pull.
    """

    leaves: Patterns = "*"
    variance: Literal["leaf", "client"] = "leaf"
    common_rounds: int = ranged(5, ">= 0")

    message = MessageSpec("multiples")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    server_only = ("sums",)
    adapts_without_samples = True
    incompatible = {
        "loss": "learns variances from the likelihood of the labels",
        "size_sampling": "has a mean over clients in which each counts the same",
        "noise_in_steps": "the personal leaves and the variances",
        "personal_parts": "keeps personal leaves itself; give --model.algorithm.leaves",
        "local_norm": "keeps personal leaves itself; give --model.algorithm.leaves",
    }

    def pooled(self, ctx: Context) -> frozenset[str]:
        """Names of the pooled leaves."""
        return named_leaves(ctx.task, self.leaves, "--model.algorithm.leaves")

    def shared_init(self, ctx: Context) -> PooledModels:
        """A fresh network; variances are large at first, since they grow slowly from small ones."""
        target = ctx.task.target
        if isinstance(target, Likelihood) or ctx.task.own is not None:
            raise ConfigError(
                f"PartialPooling needs the Fisher information of the labels, and these are {target.name}; give another "
                "--model.target or --model.algorithm"
            )
        models = ctx.task.init(1, ctx.seed)
        G = len(self.parameters(ctx, models))
        zeros, zero = torch.zeros(G, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        sums = Sums(zeros, zeros.clone(), zero, zero.clone(), zero.clone())
        return PooledModels(models, zeros + 0.1, zero + (0.5 if target.continuous else 1.0), sums)

    def parameters(self, ctx: Context, models: ModelState) -> Leaves:
        """The pooled parameters, in the order of the network."""
        names = self.pooled(ctx) & models.parameters.keys()
        return {name: models.parameters[name] for name in leaf_order(ctx.task.network) if name in names}

    def state_init(self, ctx: Context, shared: PooledModels, data: ClientData) -> OwnLeaves:
        """Μ, since nothing is known of the client."""
        known = torch.zeros((), dtype=torch.bool, device=ctx.lr.device)
        return OwnLeaves(named_part(shared.models, self.pooled(ctx)), shared.tau2, known)

    def is_common(self, ctx: Context) -> bool:
        """Whether the phase is one of a round without a pull."""
        return ctx.phase != "adapt" and ctx.round_idx < self.common_rounds

    def client_init(
        self, ctx: Context, shared: PooledModels, state: OwnLeaves, data: ClientData, losses: None
    ) -> LocalRun:
        """Θ_t with the shared leaves, and the pulls w."""
        models = self.served(ctx, shared, state)
        own_tau2 = torch.where(state.known, state.tau2, shared.tau2)
        tau2 = own_tau2 if self.variance == "client" else shared.tau2
        weight = shared.noise / (data.num_samples.clamp(min=1) * tau2) * float(not self.is_common(ctx))
        names = self.parameters(ctx, models)
        run = local_run(ctx, models, Pull(tau2, dict(zip(names, weight.to(ctx.task.dtype), strict=True))))
        return run._replace(optimizer=ctx.solver.init(ModelState(names, {}))) if ctx.phase == "adapt" else run

    def client_step(self, ctx: Context, shared: PooledModels, work: LocalRun, batch: Batch) -> LocalRun:
        """A step on the loss with the pulls; while adapting, of the pooled leaves only."""
        models, pull, mean = work.models, work.extra.weight, shared.models.parameters
        moving = pull.keys() if ctx.phase == "adapt" else None
        loss, gradient, buffers = ctx.task.value_and_grad(models, batch, moving=moving)
        for name, weight in pull.items():
            towards = weight * (models.parameters[name] - mean[name])
            gradient[name] = (gradient[name] + towards) / (1 + ctx.lr.to(weight) * weight)
        old = tree.named(models.parameters, gradient)
        new, optimizer = ctx.solver.update(old, gradient, work.optimizer, ctx.lr)
        models = ModelState(models.parameters | new, buffers)
        return work._replace(models=models, optimizer=optimizer, loss=work.loss + loss.mean(), steps=work.steps + 1)

    def client_final(self, ctx: Context, shared: PooledModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the models, weighed leaf by leaf, and the sums; keep θ_t."""
        models, names, n, one = work.models, self.pooled(ctx), data.num_samples, torch.ones_like(data.num_samples)
        sums, weight, tau2 = shared.sums, one, work.extra.tau2
        if not self.is_common(ctx):
            own = self.parameters(ctx, models)
            sums = self.sums(ctx, shared, work, data)
            if self.variance == "client":
                sizes = torch.tensor([leaf.numel() for leaf in own.values()]).to(tau2)
                rho2 = (sums.score + tau2 * (sizes - sums.slope)).sum() / sizes.sum()
                tau2 = rho2.clamp(LOWEST, HIGHEST).expand_as(tau2)
                weight = 1 / tau2[0]
                sums = sums._replace(score=torch.ones_like(tau2), slope=1 / tau2)
        weighed = ModelState(
            *(
                {name: leaf.double() * (weight if name in names else n) for name, leaf in part.items()}
                for part in models
            )
        )
        value = WeighedModels(weighed, torch.stack([weight, n]), sums)
        state = OwnLeaves(named_part(models, names), tau2, (n > 0) & (not self.is_common(ctx)))
        up = tree.bits((models, value.weight, sums), ctx.private)
        return local_result(ctx, work, data, value, state, weight=one, up=up)

    def sums(self, ctx: Context, shared: PooledModels, work: LocalRun, data: ClientData) -> Sums:
        """Of one client."""
        own, mean = self.parameters(ctx, work.models), shared.models.parameters
        score = torch.stack([(leaf - mean[name]).double().square().sum() for name, leaf in own.items()])
        told = tree.leaves(fisher(ctx, work.models, data, own))
        shares = (F.double() * tau2 for F, tau2 in zip(told, work.extra.tau2, strict=True))
        slope = torch.stack([(one / (one + shared.noise)).sum() for one in shares])
        labels, squares = data.num_samples * ctx.task.target.num_outputs, torch.zeros_like(shared.noise)
        if ctx.task.target.continuous:
            squares = 2 * (ctx.task.sample_losses(work.models, data)[:, 0].double() * data.mask).sum()
        return Sums(score, slope, squares, labels - slope.sum(), labels)

    def server_step(self, ctx: Context, shared: PooledModels, reduced: Reduced, client_ids: Tensor) -> PooledModels:
        """The new μ and shared leaves; then τ² and σ²."""
        names, common = self.pooled(ctx), self.is_common(ctx)
        share = torch.ones_like(reduced.weight) if common else (reduced.weight / ctx.num_clients).clamp(max=1)
        weights, old = reduced.value.weight, shared.models

        def average(name: str, leaf: Tensor, before: Tensor) -> Tensor:
            weight = weights[0] if name in names else weights[1]
            mean = torch.where(weight > 0, leaf / weight.clamp(min=LOWEST), before.double())
            return torch.lerp(before.double(), mean, share) if name in names else mean

        found = (
            {name: average(name, leaf, before[name]) for name, leaf in part.items()}
            for part, before in zip(reduced.value.models, old, strict=True)
        )
        models = ModelState(*found)
        if common:
            return shared._replace(models=models)
        new = reduced.value.sums
        if self.variance == "leaf":  # about the new μ
            moved = [
                (leaf - old.parameters[name].double()).square().sum()
                for name, leaf in self.parameters(ctx, models).items()
            ]
            new = new._replace(score=(new.score - torch.stack(moved) * (2 - share) / share).clamp(min=0))
        sums = tree.lerp(shared.sums, new, share)
        tau2 = torch.where(sums.slope > 0, sums.score / sums.slope, shared.tau2).clamp(LOWEST, HIGHEST)
        noise = sums.squares / torch.maximum(sums.freedom, sums.labels / 50)
        return PooledModels(models, tau2, noise if ctx.task.target.continuous else shared.noise, sums)

    def served(self, ctx: Context, shared: PooledModels, state: OwnLeaves) -> ModelState:
        """Θ_t, or μ, with the shared leaves."""
        mean = named_part(shared.models, self.pooled(ctx))
        own = tree.map_leaves(lambda leaf, common: torch.where(state.known, leaf, common), state.models, mean)
        return whole_models(ctx.task.network, shared.models, own)


def fisher(ctx: Context, models: ModelState, data: ClientData, names: Leaves) -> Leaves:
    """The diagonal of the Fisher information of a client's samples, leaves [1, ...] of these names."""
    task, N, x, y = ctx.task.of_clients, len(data.mask), data.x, data.y
    shape = task.target.output_shape(tuple(y.shape[1:]))
    numbers = uniforms(ctx.seed, ctx.round_idx, data.client_id, "fisher", N * torch.Size(shape).numel())
    signs = (2 * (numbers < 0.5) - 1).to(task.dtype).view(N, *shape) * data.mask.view(N, *[1] * len(shape))

    def squares(x: Tensor, y: Tensor, signs: Tensor) -> Leaves:
        one = torch.ones(1, dtype=data.mask.dtype, device=x.device)
        batch = Batch(x.unsqueeze(0), y.unsqueeze(0), torch.zeros_like(one, dtype=torch.int64), one)
        objective = Objective(projection, rows=signs.view(1, 1, *shape))
        _, gradient, _ = task.value_and_grad(models, batch, training=False, objective=objective, moving=names.keys())
        return {name: leaf.square() for name, leaf in gradient.items()}

    total, rows = tree.zeros_like(names), max(1, NUMBERS_AT_ONCE // sum(leaf.numel() for leaf in names.values()))
    for lo in range(0, N, rows):
        part = torch.func.vmap(squares)(*(leaf[lo : lo + rows] for leaf in (x, y, signs)))
        total = tree.map_leaves(lambda total, leaf: total + leaf.sum(0), total, part)
    return total  # type: ignore[no-any-return]


def projection(view: ModelView) -> Tensor:
    """A number of each sample whose squared gradient is on average the diagonal of its Fisher information, [B]."""
    weights = root(view.trained_on, view.outputs.detach(), view.y, view.rows)  # type: ignore[arg-type]
    return (weights * view.outputs).flatten(1).sum(1)


def root(target: Target, outputs: Tensor, y: Tensor, signs: Tensor) -> Tensor:
    """Numbers like the outputs whose outer product is, over random signs, the Hessian of the loss by the outputs."""
    if target.continuous:
        return signs
    if not isinstance(target, Multiclass):
        p = torch.sigmoid(outputs)
        return (p * (1 - p)).sqrt() * signs
    p = torch.softmax(outputs, -1)
    found = p.sqrt() * signs
    found = found - p * found.sum(-1, keepdim=True)
    if not target.positions:
        return found
    labelled = target.labelled(y)
    share = torch.ones_like(p[..., :1]) if labelled is None else labelled.unsqueeze(-1).to(p)
    return found * (share / share.sum(-2, keepdim=True).clamp(min=1)).sqrt()
