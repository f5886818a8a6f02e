"""Partial pooling of any network: leaves of each client around common ones, with variances learned by all clients.

A mixed-effects model (Laird, Ware. "Random-Effects Models for Longitudinal Data". Biometrics 38(4), 1982.
https://doi.org/10.2307/2529876) whose coefficients are the leaves of a network, trained by local steps. `variance:
client` has a variance for each client, as Zhu, Cao, Li, Ge, Yan. "Confidence-aware Personalized Federated Learning via
Variational Expectation Maximization". CVPR 2023. https://arxiv.org/abs/2305.12557.

    θ_t ~ N(μ, τ_g²) in leaf g;  σ²: variance of the labels of a regression, 1 for classes
    client:    θ_t ← argmin mean loss + σ²/(2·n_t)·Σ_g ‖θ_g − μ_g‖²/τ_g², by local steps from its last θ_t
               V = (F/σ² + diag 1/τ²)⁻¹, F the Fisher information of its n_t samples at θ_t;  k_g = Σ_g (1 − V_jj/τ_g²)
    server:    μ = Σ_t θ_t/T,  τ_g² = Σ_t ‖θ_t − μ‖²_g / Σ_t k_tg,  σ² = Σ_t Σ (ŷ − y)² / Σ_t (n_t − Σ_g k_tg)
    `client`:  ρ_t² = (tr V + ‖θ_t − μ‖²)/d in place of τ_g², at the client;  μ = Σ_t θ_t/ρ_t² / Σ_t 1/ρ_t²

A linear regression ends at its maximum likelihood, which `MixedEffects` with `estimate: ml` finds in closed form.

Symbols:
    μ     -> shared.models   pooled leaves; the others are the same for all clients (τ = 0), [1, ...]
    τ_g²  -> shared.tau2     one for each pooled leaf, [G]; with `client` the harmonic mean of the ρ_t²
    σ²    -> shared.noise
    θ_t   -> state.models    pooled leaves of client t, [1, ...]
    ρ_t²  -> state.tau2
    k_g   -> `determined`    number of coefficients of leaf g that the client's samples determine, [G]
Deviations:
    V is Laplace's approximation. The paper learns a diagonal Gaussian by reparametrised steps, has no σ², and pools the
    head, `leaves: head`.
    Each gradient is (∇ loss + w·(θ − μ))/(1 + η·w), w = σ²/(n_t·τ²): a step of SGD is then the proximal one, which is
    stable for any w, and other optimizers keep their fixed points.
    Of several outputs F is estimated by a random direction of each sample; it is unbiased, and k_g is up to a third too
    small. Clients with more samples than `MOST_ROWS`, or large networks, take evenly spaced ones, scaled.
    The last θ_t of a client that missed m rounds moves by m/(m + 1) of what μ has moved since: by the part after the
    client's own round, if μ moves evenly.
    Of a cohort of C of T clients, μ is the mean of the cohort, and the sums of τ² and σ² move to its sums by a share of
    C/T. Variances stay within [1e-8, 1e4].
    A client without training samples, or that was not sampled yet, is served μ. An unseen client trains
    `adapt_epochs` passes from μ under the prior; shared leaves are fixed. If the steps are too long for its samples, so
    that its loss with the prior ends above that of μ, it is served μ.
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
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, LocalWork, ModelState, Reduced
from lit_fed.errors import ConfigError

__all__ = ["OwnLeaves", "PartialPooling", "PooledModels", "Sums", "WeighedModels"]

LOWEST, HIGHEST = 1e-8, 1e4
"""Bounds of variances."""

MOST_ROWS, FEWEST_ROWS, MOST_NUMBERS = 256, 16, 2**22
"""Samples of a client whose gradients are held at once, and numbers of these gradients, if those are more samples."""


class Sums(NamedTuple):
    """Means over clients of what variances are made of; `client` sends 1 and 1/ρ_t² in place of the first two."""

    score: Tensor  # ‖θ − μ‖²_g, [G]
    determined: Tensor  # k_g, [G]
    squares: Tensor  # Σ (ŷ − y)², []
    freedom: Tensor  # labels − Σ_g k_g, []
    labels: Tensor  # []


class PooledModels(NamedTuple):
    """The server's state."""

    models: ModelState  # μ and the shared leaves, [1, ...]
    tau2: Tensor  # τ_g², [G]
    noise: Tensor  # σ², []
    sums: Sums  # moving means


class OwnLeaves(NamedTuple):
    """A client's state."""

    models: ModelState  # θ_t of the pooled leaves, [1, ...]
    mean: ModelState  # μ when it was trained, [1, ...]
    tau2: Tensor  # ρ_t² for each leaf, [G]; 0: not known yet
    rounds: Tensor  # [] int64, rounds of the run after its last training; 0: it has no θ_t yet


class Pull(NamedTuple):
    """What a client's phase keeps beside its run."""

    tau2: Tensor  # of the prior, [G]
    weight: Leaves  # w of each pooled leaf, []


class WeighedModels(NamedTuple):
    """A client's message value."""

    models: ModelState  # pooled leaves times weight[0], the others times weight[1], [1, ...] float64
    weight: Tensor  # 1, or 1/ρ_t²; and n_t, [2]
    sums: Sums


@dataclass(frozen=True)
class PartialPooling(Personal[PooledModels, OwnLeaves, LocalRun]):
    """A network for each client, pulled towards a common one as far as the clients' samples say.

    Args:
        leaves: patterns of names of the pooled leaves, or `head`, `body`, `norm`; the others are the same for all.
        variance: of each `leaf`, learned by all clients together, or of each `client`.
        adapt_epochs: passes over the training samples of an unseen client, which come from μ to its own optimum.
    """

    serving_settings = ("adapt_epochs",)

    leaves: Patterns = "*"
    variance: Literal["leaf", "client"] = "leaf"
    adapt_epochs: int = ranged(30, ">= 0")

    message = MessageSpec("multiples")
    participation = Participation(weighting="uniform", fills_in_absent=False)
    server_only = ("sums",)
    without_samples = "the mean of the clients' models"
    incompatible = {
        "loss": "learns variances from the likelihood of the labels",
        "size_sampling": "takes a mean in which each client counts the same",
        "noise_in_steps": "the personal leaves and the variances",
        "personal_parts": "keeps personal leaves itself; give --model.algorithm.leaves",
        "local_norm": "keeps personal leaves itself; give --model.algorithm.leaves",
    }

    def shared_init(self, ctx: Context) -> PooledModels:
        """A fresh network; variances are large at first: while they are small, μ and they themselves move slowly."""
        target = ctx.task.target
        if isinstance(target, Likelihood) or ctx.task.own is not None:
            raise ConfigError(
                f"PartialPooling needs the Fisher information of the labels, and that of {target.name} labels is not "
                "known; give another --model.target or --model.algorithm"
            )
        models = ctx.task.init(1, ctx.seed)
        if not (G := len(self.pooled(ctx, models))):
            raise ConfigError(
                f"--model.algorithm.leaves is {self.leaves}, which matches no parameter; give *, head, or patterns of "
                "their names"
            )
        tau2 = torch.full((G,), 0.1, dtype=torch.float64)
        noise = torch.tensor(0.5 if target.continuous else 1.0, dtype=torch.float64)
        return PooledModels(models, tau2, noise, no_sums(tau2, noise))

    def names(self, ctx: Context) -> frozenset[str]:
        """Names of the pooled parameters and buffers."""
        return named_leaves(ctx.task, self.leaves, "--model.algorithm.leaves")

    def pooled(self, ctx: Context, models: ModelState) -> Leaves:
        """The pooled parameters, in the order of the network."""
        names = self.names(ctx) & models.parameters.keys()
        return {name: models.parameters[name] for name in leaf_order(ctx.task.network) if name in names}

    def state_init(self, ctx: Context, shared: PooledModels, data: ClientData) -> OwnLeaves:
        """μ, since nothing is known of the client."""
        mean = named_part(shared.models, self.names(ctx))
        rounds = torch.zeros((), dtype=torch.int64, device=ctx.lr.device)
        return OwnLeaves(mean, mean, torch.zeros_like(shared.tau2), rounds)

    def client_init(
        self, ctx: Context, shared: PooledModels, state: OwnLeaves, data: ClientData, losses: None
    ) -> LocalRun:
        """θ_t with the shared leaves, and the pulls w."""
        models = self.served(ctx, shared, state)
        own, known = self.pooled(ctx, models), state.tau2 > 0
        tau2 = torch.where(known, state.tau2, shared.tau2) if self.variance == "client" else shared.tau2
        weight = (shared.noise / (data.num_samples.clamp(min=1) * tau2)).to(ctx.task.dtype)
        run = local_run(ctx, models, Pull(tau2, dict(zip(own, weight, strict=True))))
        return run._replace(optimizer=ctx.solver.init(ModelState(own, {}))) if ctx.phase == "adapt" else run

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
        names, n, one = self.names(ctx), data.num_samples, torch.ones_like(data.num_samples)
        if ctx.phase == "adapt":
            work = work._replace(models=self.improved(ctx, shared, work, data))
        kept, mean = (named_part(models, names) for models in (work.models, shared.models))
        sums, weight, tau2 = no_sums(work.extra.tau2, shared.noise), one, work.extra.tau2
        if ctx.phase != "adapt":
            sums = self.sums(ctx, shared, work, data)
        if ctx.phase != "adapt" and self.variance == "client":
            sizes = torch.tensor([kept.parameters[name].numel() for name in work.extra.weight]).to(tau2)
            rho2 = (tau2 * (sizes - sums.determined) + sums.score).sum() / sizes.sum()
            tau2 = rho2.clamp(LOWEST, HIGHEST).expand_as(tau2)
            weight, sums = 1 / tau2[0], sums._replace(score=torch.ones_like(tau2), determined=1 / tau2)
        weighed = (
            {name: leaf.double() * (weight if name in names else n) for name, leaf in part.items()}
            for part in work.models
        )
        value = WeighedModels(ModelState(*weighed), torch.stack([weight, n]), sums)
        up = tree.bits((work.models, value.weight, sums), ctx.private)
        rounds = (ctx.round_idx + (ctx.phase != "adapt")) * (n > 0).long()
        return local_result(ctx, work, data, value, OwnLeaves(kept, mean, tau2, rounds), weight=one, up=up)

    def improved(self, ctx: Context, shared: PooledModels, work: LocalRun, data: ClientData) -> ModelState:
        """The models after the steps, or μ where the loss with the prior is not lower than there."""
        ends, moved = work.models, work.extra.weight
        before, after = ((ctx.task.sample_losses(m, data)[:, 0] * data.mask).sum() for m in (shared.models, ends))
        apart = [ends.parameters[name] - shared.models.parameters[name] for name in moved]
        pulls = torch.stack([w * one.square().sum() for w, one in zip(moved.values(), apart, strict=True)]).sum()
        lower = after + data.num_samples / 2 * pulls <= before  # false of NaN
        return tree.map_leaves(lambda new, old: torch.where(lower, new, old.to(new.dtype)), ends, shared.models)

    def sums(self, ctx: Context, shared: PooledModels, work: LocalRun, data: ClientData) -> Sums:
        """Of one client."""
        own, mean, target = self.pooled(ctx, work.models), shared.models.parameters, ctx.task.target
        score = torch.stack([(leaf - mean[name]).double().square().sum() for name, leaf in own.items()])
        found = determined(ctx, work.models, data, dict(zip(own, work.extra.tau2, strict=True)), shared.noise)
        labels, squares = data.num_samples * target.num_outputs, torch.zeros_like(shared.noise)
        if target.continuous:
            squares = 2 * (ctx.task.sample_losses(work.models, data)[:, 0].double() * data.mask).sum()
        return Sums(score, found, squares, labels - found.sum(), labels)

    def server_step(self, ctx: Context, shared: PooledModels, reduced: Reduced, client_ids: Tensor) -> PooledModels:
        """The new μ and shared leaves; then τ² and σ²."""
        names, (own, others) = self.names(ctx), reduced.value.weight
        share = (reduced.weight / ctx.num_clients).clamp(max=1)

        def mean(name: str, total: Tensor, old: Tensor) -> Tensor:
            weight = own if name in names else others
            return torch.where(weight > 0, total / torch.where(weight > 0, weight, 1.0), old.double())

        old, new = shared.models, reduced.value.sums
        parts = zip(reduced.value.models, old, strict=True)
        models = ModelState(
            *({name: mean(name, leaf, before[name]) for name, leaf in part.items()} for part, before in parts)
        )
        if self.variance == "leaf":  # about μ after a step of this share
            moved = tree.sub(self.pooled(ctx, models), tree.map_leaves(Tensor.double, self.pooled(ctx, old)))
            squares = torch.stack([leaf.square().sum() for leaf in moved.values()])
            new = new._replace(score=(new.score - share * (2 - share) * squares).clamp(min=0))
        sums = tree.lerp(shared.sums, new, share)
        tau2 = torch.where(sums.determined > 0, sums.score / sums.determined, shared.tau2).clamp(LOWEST, HIGHEST)
        noise = (sums.squares / torch.maximum(sums.freedom, sums.labels / 50)).clamp(min=LOWEST)
        return PooledModels(models, tau2, noise if ctx.task.target.continuous else shared.noise, sums)

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork | None:
        """An unseen client's steps towards its own optimum under the prior."""
        return None if seen else LocalWork(epochs=self.adapt_epochs)

    def served(self, ctx: Context, shared: PooledModels, state: OwnLeaves) -> ModelState:
        """θ_t with the shared leaves, moved by m/(m + 1) of what μ has moved if its client missed m rounds."""
        missed = (ctx.round_idx - state.rounds).double()
        share = torch.where(state.rounds > 0, missed / (missed + 1), 1.0).to(ctx.task.dtype)

        def moved(own: Tensor, before: Tensor, now: Tensor) -> Tensor:
            return (own + share * (now - before)).to(own.dtype)

        mean = named_part(shared.models, self.names(ctx))
        return whole_models(ctx.task.network, shared.models, tree.map_leaves(moved, state.models, state.mean, mean))


def no_sums(tau2: Tensor, noise: Tensor) -> Sums:
    """Zeros."""
    return Sums(*(torch.zeros_like(one) for one in (tau2, tau2, noise, noise, noise)))


def determined(ctx: Context, models: ModelState, data: ClientData, tau2: Leaves, noise: Tensor) -> Tensor:
    """k_g = tr (Σ_h K_h + σ²·I)⁻¹·K_g of the leaves in `tau2`, with K_g = τ_g²·Z_g·Z_gᵀ and F = ZᵀZ, [G] float64.

    The rows of Z are gradients of samples, one for each.
    """
    task, N, size = ctx.task.of_clients, len(data.mask), sum(models.parameters[name].numel() for name in tau2)
    shape = torch.Size(task.target.output_shape(tuple(data.y.shape[1:])))
    numbers = uniforms(ctx.seed, ctx.round_idx, data.client_id, "directions", N * shape.numel())
    signs = torch.where(numbers < 0.5, 1.0, -1.0).to(task.dtype).view(N, *shape)
    most = max(FEWEST_ROWS, min(MOST_ROWS, MOST_NUMBERS // size))
    count = data.num_samples.clamp(min=most)
    places = (torch.arange(min(N, most), device=noise.device) * count / most).long()  # among the labelled samples
    rows = torch.argsort(data.mask, descending=True, stable=True).index_select(0, places)
    x, y, mask = (leaf.index_select(0, rows) for leaf in (data.x, data.y, data.mask))

    def slopes(x: Tensor, y: Tensor, mask: Tensor, signs: Tensor) -> Leaves:
        batch = Batch(x.unsqueeze(0), y.unsqueeze(0), torch.zeros_like(mask, dtype=torch.int64).view(1), mask.view(1))
        objective = Objective(projection, rows=signs.view(1, 1, *shape))
        _, gradient, _ = task.value_and_grad(models, batch, training=False, objective=objective, moving=tau2.keys())
        return gradient

    if not N:
        return torch.zeros(len(tau2), dtype=torch.float64, device=noise.device)
    Z = torch.func.vmap(slopes)(x, y, mask, signs.index_select(0, places))
    K = torch.stack([count / most * variance * gram(Z[name].flatten(1)) for name, variance in tau2.items()])
    inverse: Tensor = torch.linalg.inv(K.sum(0) + noise * torch.eye(len(mask)).to(K))
    return (inverse * K).sum((1, 2))


def gram(rows: Tensor) -> Tensor:
    """Inner products of rows, float64."""
    return (rows @ rows.T).double()


def projection(view: ModelView) -> Tensor:
    """A number of each sample: the outer product of its gradients is on average the Fisher information, [B]."""
    assert isinstance(view.trained_on, Target)
    weights = root(view.trained_on, view.outputs.detach(), view.y, view.rows)
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
