"""Linear mixed-effects model: coefficients of each client around common ones, with learned variances.

Laird, Ware. "Random-Effects Models for Longitudinal Data". Biometrics 38(4), 1982. https://doi.org/10.2307/2529876.
From sums over clients as Luo et al. "DLMM as a lossless one-shot algorithm for collaborative multi-site distributed
linear mixed models". Nature Communications 13, 2022. https://doi.org/10.1038/s41467-022-29160-4.

    y = x·θ_t + ε,  θ_t = μ + b_t,  b_t ~ N(0, T),  T = diag(τ²),  ε ~ N(0, σ²);  x has a trailing 1
    S = Σ w·x·xᵀ,  s = Σ w·x·z   rows of a client; z = y, w = 1
    R = (I + T·S/σ²)⁻¹,  A = S·R/σ²,  a = Rᵀ·s/σ²;  b = T·(a − A·μ)
    means:      C = (Σ_t A + Λ)⁻¹,  μ = C·Σ_t a
    variances:  τ_g² ← τ_g²·Σ_t (a − A·μ)²_g / Σ_t (A − A·C·A)_gg,  σ² ← Σ_t ‖y − x·θ_t‖² / Σ_t (n_t − e_t)
                e_t = tr A·(C·Rᵀ + T)

Symbols:
    μ, C   -> shared.mean, shared.covariance  common coefficients and their covariance, [F, P] and [F, P, P]
    τ_g²   -> shared.tau2     variance over clients of the coefficients of group g, [F, G]
    σ²     -> shared.noise    variance of the residuals, [F]; 1 for two classes
    γ²     -> shared.gamma2   variance of the common slopes, Λ = diag(1/γ², …, 0), [F]; `estimate: shrunk`
    A, a   -> message.matrix, message.vector of the phase `means`, [F, P, P] and [F, P]
    (a − A·μ)²_g, (A − A·C·A)_gg -> message.score, message.slope of `variances`, summed over the group, [F, G]
    F      -> fits: 1; with `random: choose` six, three structures on a part of the rows and on all of them
Deviations:
    Random effects are independent: T is diagonal.
    Variances take Fellner and Schall's fixed-point steps on the REML score; EM of the paper has the same fixed points
    and needs more rounds. τ² and γ² change at most a hundredfold in a round. For clients with as many coefficients as
    rows, n − e is at least 0.02·n, and σ² at least 1e-7 of the labels' mean square.
    Two classes: Laplace's approximation at the mode of each client after 20 Newton steps, w = p·(1 − p),
    z = x·θ + (y − p)/w, σ² = 1.
    `estimate: shrunk`, the default, also learns γ², which many inputs need; `reml` and `ml` are the paper's. With these
    μ is one of many solutions with the same predictions if columns determine others.
    Standard errors of τ² and σ² are those of the expected information of maximum likelihood.
    An unseen client is served like a seen one, from its training rows; without any it is served μ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, Participation, Served
from lit_fed.core.context import Context
from lit_fed.core.solvers.linear_models import check_linear_task, from_columns, with_constant
from lit_fed.core.types import ClientData, ClientResult, Leaves, LocalWork, Message, ModelState, Phase, Reduced
from lit_fed.errors import ConfigError

__all__ = ["ClientEffects", "ClientFit", "Effects", "MixedEffects", "Normal", "Variances"]

MOST_INPUTS = 1000
"""Largest P - 1: a client sends P² numbers and inverts a matrix [P, P] in each round."""

NEWTON_STEPS = 20
"""Steps towards the mode of a client's coefficients; each moves its logits by at most 4.

From near μ six find it to 1e-15, and would save a third of a round's time; the others are for modes that are far away.
"""

STRUCTURES = ("none", "intercept", "slopes")
"""Random coefficients among which `random: choose` decides."""

TRAINED_SHARE = 0.8
"""Share of a client's training rows, the first ones, that structures are fitted to before the others choose one."""


CONVERGED = 0.01
"""Relative change of the variances in a round from which more rounds are advised."""


class Effects(NamedTuple):
    """The server's state: F fits."""

    mean: Tensor  # μ, [F, P]
    covariance: Tensor  # C, [F, P, P]
    tau2: Tensor  # τ_g², [F, G]
    noise: Tensor  # σ², [F]
    gamma2: Tensor  # γ², [F]
    held_out: Tensor  # mean loss of held-out rows, [F]
    change: Tensor  # relative change of the variances in the last round, [F]
    information: Tensor  # on (τ_g², σ²), [F, G + 1, G + 1]


class Normal(NamedTuple):
    """Message of the phase `means`: normal equations of μ."""

    matrix: Tensor  # A, [F, P, P]
    vector: Tensor  # a, [F, P]


class Variances(NamedTuple):
    """Message of the phase `variances`."""

    score: Tensor  # (a − A·μ)²_g, [F, G]
    slope: Tensor  # (A − A·C·A)_gg, [F, G]
    squares: Tensor  # ‖y − x·θ‖², [F]
    freedom: Tensor  # n − e, [F]
    labels: Tensor  # n and Σ y², [F, 2]
    held_out: Tensor  # sum of the loss of held-out rows, and their number, [F, 2]
    information: Tensor  # on (τ_g², σ²), [F, G + 1, G + 1]


class ClientFit(NamedTuple):
    """A client's work: its coefficients, given the received μ, C, τ² and σ²."""

    theta: Tensor  # θ, [F, P]
    residual: Tensor  # R, [F, P, P]
    normal: Normal
    losses: Tensor  # of each row, [N, F]


class ClientEffects(NamedTuple):
    """State that a client is served with."""

    models: ModelState  # θ, leaves [1, ...]
    covariance: Tensor  # of the error of θ, R·C·Rᵀ + R·T, [P, P]


class Learned(NamedTuple):
    """What the federation learned, for reports; the intercept is the last coefficient."""

    mean: Tensor  # μ, [P]
    covariance: Tensor  # C, [P, P]
    tau2: Tensor  # τ² of each group, [G]
    group: Tensor  # membership of coefficients in groups, [P, G]
    noise: Tensor  # σ², []
    errors: Tensor  # covariance of the errors of (τ_g², σ²), [G + 1, G + 1]; NaN for what was not estimated
    said: list[str]  # notices


@dataclass(frozen=True)
class MixedEffects(Served[Effects, Any, ClientFit]):
    """A linear model for each client, shrunk to a common one as far as the clients' rows say.

    Args:
        random: coefficients that vary over clients: the `intercept`; also all `slopes`, with one variance; `diagonal`,
            with a variance for each coefficient; or `choose` among none, intercept and slopes by the last fifth of each
            client's training rows.
        estimate: variances by restricted maximum likelihood, `reml`, or maximum likelihood, `ml`; `shrunk` is `reml`
            with a learned variance of the common slopes.
    """

    random: Literal["intercept", "slopes", "diagonal", "choose"] = "slopes"
    estimate: Literal["shrunk", "reml", "ml"] = "shrunk"

    message = MessageSpec("statistics")
    participation = Participation(weighting="uniform", needs_all_clients=True, fills_in_absent=False)
    server_only = ("gamma2", "change", "information")
    without_samples = "the fixed effects"
    incompatible = {
        "fine_tuning": "solves for its coefficients",
        "loss": "has a likelihood for each kind of labels",
        "personal_parts": "gives each client a linear model",
        "local_norm": "trains a linear model without normalisation",
    }

    def shared_init(self, ctx: Context) -> Effects:
        """μ = 0 and the same variances in all units: few rounds forget them."""
        check_linear_task(ctx.task, "MixedEffects", ("regression", "binary"))
        P = sum(leaf.numel() for leaf in ctx.task.network.parameters())
        if P - 1 > MOST_INPUTS:
            raise ConfigError(
                f"MixedEffects sends and inverts matrices of {P} x {P} numbers for each client, and takes up to "
                f"{MOST_INPUTS} inputs; give fewer columns, or another --model.algorithm"
            )
        vary = {"intercept": [[0.0, 1.0]], "slopes": [[1.0, 1.0]], "diagonal": [[1.0] * P]}
        vary["choose"] = [[0.0, 0.0], *vary["intercept"], *vary["slopes"]] * 2
        if self.random == "choose" and math.ceil(TRAINED_SHARE * ctx.most_samples) == ctx.most_samples:
            raise ConfigError(
                "--model.algorithm.random is choose, by the last fifth of each client's training rows, and the largest "
                f"client has {ctx.most_samples}; give intercept or slopes"
            )
        tau2 = torch.tensor(vary[self.random], dtype=torch.float64) / 10
        F, G = tau2.shape
        one, zeros = tau2.new_ones(F), tau2.new_zeros
        noise = one / 2 if ctx.task.target.continuous else one
        return Effects(zeros(F, P), zeros(F, P, P), tau2, noise, one / 10, zeros(F), one, zeros(F, G + 1, G + 1))

    def state_init(self, ctx: Context, shared: Effects, data: ClientData) -> tuple[()]:
        """Nothing."""
        return ()

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, ...]:
        """μ at the received variances, then variances at the new μ; no local steps."""
        return tuple(Phase(name, client_ids, LocalWork()) for name in ("means", "variances"))

    def client_init(self, ctx: Context, shared: Effects, state: Any, data: ClientData, losses: None) -> ClientFit:
        """R, A, a and θ of the client's rows."""
        x, y, rows = with_constant(data.x).double(), data.y.double(), self.rows(data.mask)[0]
        tau2, noise = shared.tau2 @ membership(shared).T, shared.noise.unsqueeze(-1)
        weight, target = rows, rows * y
        if not ctx.task.target.continuous:
            logits = mode(x, y, rows, shared.mean, tau2.sqrt()) @ x.T
            p = torch.sigmoid(logits)
            weight = rows * p * (1 - p)
            target = weight * logits + rows * (y - p)
        S = gram(x, weight) / noise.unsqueeze(-1)
        R = torch.linalg.inv(torch.eye(x.shape[1]).to(S) + tau2.unsqueeze(-1) * S)
        A, a = S @ R, product(R.mT, target @ x / noise)
        A = (A + A.mT) / 2
        theta = shared.mean + tau2 * (a - product(A, shared.mean))
        return ClientFit(theta, R, Normal(A, a), ctx.task.losses((x @ theta.T).unsqueeze(-1), data.y))

    def client_final(self, ctx: Context, shared: Effects, work: ClientFit, data: ClientData) -> ClientResult:
        """Send the sums of the phase; a served client keeps θ and its covariance."""
        best, one = self.chosen(shared), torch.ones_like(data.num_samples)
        loss = (work.losses.index_select(1, best)[:, 0] * data.mask).sum() / data.num_samples.clamp(min=1)
        value = self.variances(shared, work, data) if ctx.phase == "variances" else work.normal
        state: Any = ()
        if ctx.phase == "adapt":
            state = effects(ctx, *tree.map_leaves(lambda leaf: leaf.index_select(0, best)[0], (shared, *work[:2])))
        return ClientResult(Message(value, one), state, {"loss": loss})

    def variances(self, shared: Effects, work: ClientFit, data: ClientData) -> Variances:
        """What the steps of τ² and σ², their standard errors and the choice of a structure need."""
        (A, a), R, (rows, others) = work.normal, work.residual, self.rows(data.mask)
        group, noise, n, losses = membership(shared), shared.noise.unsqueeze(-1), rows.sum(1), work.losses.T
        AC, AT = A @ shared.covariance, A * (shared.tau2 @ group.T).unsqueeze(-2)
        AC = torch.zeros_like(AC) if self.estimate == "ml" else AC
        score, slope = (a - product(A, shared.mean)).square(), (A - AC @ A).diagonal(dim1=-2, dim2=-1)
        across = (R * A).sum(-2) / noise @ group
        last = (n - (AT * (2 * torch.eye(len(A[0])).to(A) - AT.mT)).sum((1, 2))).unsqueeze(-1) / noise.square()
        information = torch.cat([group.T @ A.square() @ group, across.unsqueeze(-2)], -2)
        return Variances(
            score @ group,
            slope @ group,
            2 * (losses * rows).sum(1),
            n - (AC * R).sum((1, 2)) - AT.diagonal(dim1=-2, dim2=-1).sum(-1),
            torch.stack([n, rows @ data.y.double().square()], -1),
            torch.stack([(losses * others).sum(1), others.sum(1)], -1),
            torch.cat([information, torch.cat([across, last], -1).unsqueeze(-1)], -1) / 2,
        )

    def server_step(self, ctx: Context, shared: Effects, reduced: Reduced, client_ids: Tensor) -> Effects:
        """μ, C and γ²; or τ² and σ²."""
        sums = tree.scale(reduced.value, reduced.weight)
        if ctx.phase == "means":
            return self.means(shared, sums)
        count, squares = sums.labels.unbind(-1)
        noise = (sums.squares / sums.freedom.clamp(min=count / 50)).clamp(min=1e-7 * squares / count)
        noise = noise if ctx.task.target.continuous else shared.noise
        step, effective = factor(sums.score, sums.slope), shared.tau2 * sums.slope  # coefficients that vary, in effect
        change = ((step - 1).abs() * effective).sum(-1) / effective.sum(-1).clamp(min=1)
        return shared._replace(
            tau2=shared.tau2 * step,
            noise=noise,
            held_out=sums.held_out[:, 0] / sums.held_out[:, 1].clamp(min=1),
            change=torch.maximum(change, (noise / shared.noise - 1).abs()),
            information=sums.information,
        )

    def means(self, shared: Effects, sums: Normal) -> Effects:
        """Generalised least squares."""
        P, gamma2 = shared.mean.shape[1], shared.gamma2
        share = float(self.estimate == "shrunk") / gamma2
        C = generalised_inverse(sums.matrix + torch.diag_embed(pad(share.unsqueeze(-1).expand(-1, P - 1), (0, 1))))
        mean = product(C, sums.vector)
        spent = C.diagonal(dim1=-2, dim2=-1)[:, :-1].sum(-1) / gamma2
        gamma2 = gamma2 * factor(mean[:, :-1].square().sum(-1) / gamma2, P - 1 - spent)
        return shared._replace(mean=mean, covariance=C, gamma2=gamma2)

    def rows(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Masks of the rows that each fit is made of, and of those held out from it, [F, N] float64 each."""
        every = mask.double().unsqueeze(0)
        if self.random != "choose":
            return every, torch.zeros_like(every)
        first = every * (every.cumsum(1) <= (TRAINED_SHARE * every.sum()).ceil())
        fits = torch.cat([first, every]).repeat_interleave(3, 0)
        return fits, every - fits

    def chosen(self, shared: Effects) -> Tensor:
        """The fit that serves, [1] int64: on all rows, of the structure with the least loss of held-out rows."""
        if self.random != "choose":
            return torch.zeros(1, dtype=torch.int64, device=shared.mean.device)
        return 3 + shared.held_out[:3].argmin().unsqueeze(0)

    def adapt_work(self, ctx: Context, seen: bool) -> LocalWork:
        """Every client computes its coefficients, without a step."""
        return LocalWork()

    def learned(self, ctx: Context, shared: Effects) -> Learned:
        """The fit that serves, with the standard errors of its variances."""
        fit = tree.map_leaves(lambda leaf: leaf.index_select(0, self.chosen(shared))[0], shared)
        known = pad((fit.tau2 > 0) & (fit.information.diagonal()[:-1] > 0), (0, 1), value=ctx.task.target.continuous)
        errors = torch.full_like(fit.information, torch.nan)
        places = known.nonzero()
        errors[places, places.T] = generalised_inverse(fit.information[places, places.T])
        said = []
        if self.random == "choose":
            losses = [f"{name} {loss:.4g}" for name, loss in zip(STRUCTURES, shared.held_out.tolist(), strict=False)]
            chosen = STRUCTURES[int(self.chosen(shared)) - 3]
            said.append(f"random effects: {chosen}, which has the least loss of held-out rows: {', '.join(losses)}")
        if fit.change > CONVERGED:
            said.append(
                f"the variances of MixedEffects changed by {float(fit.change):.0%} in the last round; add rounds, by "
                "--trainer.max_epochs, until they stay"
            )
        return Learned(fit.mean, fit.covariance, fit.tau2, membership(fit), fit.noise, errors, said)


def effects(ctx: Context, shared: Effects, theta: Tensor, R: Tensor) -> ClientEffects:
    """The linear network at θ [P], with the covariance of its error, from one fit."""
    like: Leaves = dict(ctx.task.network.named_parameters())
    T = shared.tau2 @ membership(shared).T
    models = ModelState(from_columns(theta.view(1, 1, -1), like), {})
    return ClientEffects(models, (R @ shared.covariance @ R.mT + R * T).to(ctx.task.dtype))


def membership(shared: Effects) -> Tensor:
    """The group of each coefficient as a row of zeros and a one, [P, G]: slopes and intercept, or each coefficient."""
    P, G = shared.mean.shape[-1], shared.tau2.shape[-1]
    return torch.eye(G).to(shared.tau2)[(torch.arange(P) - P + G).clamp(min=0)]


def product(matrix: Tensor, vector: Tensor) -> Tensor:
    """Products [F, P] of matrices [F, P, P] and vectors [F, P]."""
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def gram(x: Tensor, weight: Tensor) -> Tensor:
    """Σ w·x·xᵀ of rows [N, P] with weights [F, N], [F, P, P]."""
    return (weight.unsqueeze(-2) * x.T) @ x


def factor(score: Tensor, slope: Tensor) -> Tensor:
    """Factor of a variance in a step, which is 1 at the fixed point."""
    return torch.where(slope > 0, score / slope, 1.0).clamp(0.01, 100)


def mode(x: Tensor, y: Tensor, rows: Tensor, mean: Tensor, tau: Tensor) -> Tensor:
    """Coefficients of a logistic regression with the prior N(μ, diag τ²) at the posterior's mode, [F, P].

    Args:
        x: rows [N, P].
        y: labels 0 and 1, [N].
        rows: mask of the rows of each fit, [F, N].
        mean: μ, [F, P].
        tau: τ, [F, P]; a coefficient with 0 stays at μ.
    """
    scaled, eye = torch.zeros_like(mean), torch.eye(x.shape[1]).to(mean)
    for _ in range(NEWTON_STEPS):
        p = torch.sigmoid((mean + tau * scaled) @ x.T)
        hessian = eye + tau.unsqueeze(-1) * gram(x, rows * p * (1 - p)) * tau.unsqueeze(-2)
        gradient = tau * ((rows * (y - p)) @ x) - scaled
        step = torch.linalg.solve(hessian, gradient.unsqueeze(-1)).squeeze(-1)
        farthest = pad(((tau * step) @ x.T).abs() * rows, (0, 1)).amax(-1, keepdim=True)
        scaled = scaled + step * (4 / farthest.clamp(min=4))
    return mean + tau * scaled


def generalised_inverse(matrix: Tensor) -> Tensor:
    """A symmetric G with MGM = M for symmetric M >= 0, [F, P, P], in whatever units its rows and columns are."""
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(diagonal > 0, diagonal, torch.inf).rsqrt()
    scale = scale.unsqueeze(-1) * scale.unsqueeze(-2)
    inverse: Tensor = torch.linalg.pinv(matrix * scale, rtol=1e-12, hermitian=True)
    return inverse * scale
