"""CCVR: FedAvg whose head the server re-trains on virtual features, drawn from one Gaussian per class.

Luo, Chen, Hu, Zhang, Liang, Feng. "No Fear of Heterogeneity: Classifier Calibration for Federated Learning with Non-IID
Data". NeurIPS 2021. https://arxiv.org/abs/2106.05001, Section 4.

Symbols:
    θ̂, φ̂             -> shared.models       feature extractor and head of FedAvg, leaves [1, ...]
    φ̃                -> shared.head         the calibrated head, leaves [1, ...]; at first φ̂
    z_{c,k,j}        -> f_θ̂(x), inputs of the last layer in evaluation mode, [D]
    N_{c,k}, μ_{c,k}, Σ_{c,k} -> a message: counts N_{c,k}, sums Σ_j z and products Σ_j z zᵀ, which determine them
    N_c, μ_c, Σ_c    -> class_gaussians     of all clients: Σ_c = (Σ_kj z zᵀ − N_c μ_c μ_cᵀ)/(N_c − 1)
    G_c, M_c         -> virtual_features    M_c draws of N(μ_c, Σ_c)
Deviations:
    Counts, sums and products are sent instead of means and covariances: the server needs only their sums, and the
    global mean and covariance are the paper's.
    The head is calibrated after the last round; with `calibrate_every` also during the run. Training continues from φ̂,
    so calibrations affect serving only. A run that is stopped early has no calibrated head.
    A class with one sample has covariance 0; a class without samples has no virtual features. Variances that are only
    rounding errors of a rank-deficient covariance are set to 0.
    Steps, batches and optimizer of the calibration are settings. Drawing μ_c + Σ_c^½ε takes the symmetric square root,
    which does not depend on the signs of eigenvectors.
    An unseen client is served by the same model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm, LocalRun
from lit_fed.core.context import Context
from lit_fed.core.networks.products import full_precision
from lit_fed.core.prototypes import check_classes, class_cross_entropy, class_features, feature_width, head_leaves
from lit_fed.core.reduce import server_average
from lit_fed.core.seeds import torch_generator
from lit_fed.core.server_optimizer import ServerOptimizer
from lit_fed.core.task import Task
from lit_fed.core.types import ClientData, ClientResult, LocalWork, Message, ModelState, Phase, Reduced
from lit_fed.errors import check_settings

__all__ = ["CCVR", "CalibratedModels", "ClassMoments", "class_gaussians"]

Leaves = dict[str, Tensor]


class CalibratedModels(NamedTuple):
    """The server's state."""

    models: ModelState  # θ̂ and φ̂, leaves [1, ...]
    head: Leaves  # φ̃, leaves [1, ...]


class ClassMoments(NamedTuple):
    """A client's message value for a calibration."""

    counts: Tensor  # N_{c,k}, [C]
    sums: Tensor  # Σ_j z, [C, D]
    products: Tensor  # Σ_j z zᵀ, [C, D, D]


@dataclass(frozen=True)
class CCVR(Algorithm[CalibratedModels, tuple[()], LocalRun]):
    """FedAvg; after training, the server calibrates the head on Gaussians of the features of each class.

    Args:
        virtual_features: M_c, number per class.
        balanced: use the same number for all classes; otherwise in proportion to their samples, N_c/|D|.
        calibrate_every: rounds between calibrations; null: only after the last round.
        server_steps: steps of a calibration; 0 is FedAvg.
        server_batch_size: virtual features per step.
        server_optimizer: optimizer of the calibration; its schedule counts the steps.
    """

    virtual_features: int = 100
    balanced: bool = True
    calibrate_every: int | None = None
    server_steps: int = 100
    server_batch_size: int = 128
    server_optimizer: ServerOptimizer = field(default_factory=lambda: ServerOptimizer("SGD", 0.01))

    incompatible: ClassVar[dict[str, str]] = {
        "privacy": "also sends class means and covariances of features",
        "noise_in_steps": "class means and covariances of features",
        "secure_sums": "also sends class means and covariances of features, which no range bounds",
        "robust": "calibrates its head on class means and covariances, which are no models",
        "personal_parts": "calibrates the head of a model that all clients share",
        "size_sampling": "calibrates on the samples of all clients, each of which counts once",
    }

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("virtual_features", "calibrate_every", "server_batch_size"), ">= 1")
        check_settings(self, counts, server_steps=">= 0")
        self.server_optimizer.check("--model.algorithm.server_optimizer")

    def shared_init(self, ctx: Context) -> CalibratedModels:
        """φ̃ = φ̂; labels that are no classes are refused."""
        check_classes(ctx.task.target, "CCVR")
        feature_width(ctx.task, "CCVR")
        models = ctx.task.init(1, ctx.seed)
        return CalibratedModels(models, head_leaves(ctx.task, models))

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase, ...]:
        """A round of FedAvg; after the last one all clients send their moments."""
        everybody, rounds = torch.arange(ctx.num_clients, device=client_ids.device), ctx.round_idx + 1
        calibrates = rounds == ctx.num_rounds or (
            self.calibrate_every is not None and not rounds % self.calibrate_every
        )
        moments = Phase("moments", everybody, LocalWork(), waits_for_all=True)
        train = Phase("train", client_ids, ctx.solver.work)
        return (train, moments) if calibrates else (train,)

    def client_final(self, ctx: Context, shared: CalibratedModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the model; in a calibration N_{c,k}, Σ_j z and Σ_j z zᵀ under θ̂."""
        if ctx.phase != "moments":
            return super().client_final(ctx, shared, work, data)
        moments = class_moments(ctx.task, shared.models, data)
        return ClientResult(Message(moments, torch.ones_like(data.num_samples)), (), {})

    def server_step(
        self, ctx: Context, shared: CalibratedModels, reduced: Reduced, client_ids: Tensor
    ) -> CalibratedModels:
        """FedAvg's average; in a calibration φ̃ <- argmin of the cross-entropy of g_φ on ∪_c G_c, from φ̂."""
        if ctx.phase != "moments":
            models = server_average(ctx, shared.models, reduced)
            return CalibratedModels(models, head_leaves(ctx.task, models))
        head, rng = head_leaves(ctx.task, shared.models), torch_generator(ctx.seed, ctx.round_idx, 0, "virtual")
        z, y = self.virtual(tree.scale(reduced.value, reduced.weight), torch.finfo(ctx.task.dtype).eps, rng)
        z, moments = z.to(ctx.task.dtype), self.server_optimizer.init(head)
        for step in range(self.server_steps):
            rows = torch.randperm(len(y), generator=rng)[: self.server_batch_size].to(y.device)
            at = ctx._replace(round_idx=step, horizon=self.server_steps)
            head, moments = self.server_optimizer.update(at, head, _slope(ctx.task, head, z[rows], y[rows]), moments)
        return shared._replace(head=head)

    def virtual(self, moments: ClassMoments, eps: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """∪_c G_c: features [Σ_c M_c, D] in float64, and their classes; `eps` as of `class_gaussians`."""
        counts, device = moments.counts, moments.counts.device
        share = torch.ones_like(counts) if self.balanced else len(counts) * counts / counts.sum()
        sizes = torch.where(counts > 0, (self.virtual_features * share).round().clamp(min=1), 0.0).long().tolist()
        means, roots = class_gaussians(moments, eps)
        noise = (torch.randn(size, means.shape[1], generator=rng, dtype=torch.float64).to(device) for size in sizes)
        z = torch.cat([mean + one @ root for mean, root, one in zip(means, roots, noise, strict=True)])
        return z, torch.arange(len(sizes), device=device).repeat_interleave(torch.tensor(sizes, device=device))

    def sent(self, ctx: Context, shared: CalibratedModels, client_id: int) -> CalibratedModels:
        """The calibrated head, for serving only."""
        return shared if ctx.phase == "adapt" else shared._replace(head={})

    def shared_outputs(self, ctx: Context, shared: CalibratedModels, x: Tensor) -> Tensor:
        """Outputs [B, 1, K] of the calibrated head."""
        models = shared.models
        return ctx.task.outputs(models._replace(parameters=models.parameters | shared.head), x)


def class_moments(task: Task, models: ModelState, data: ClientData) -> ClassMoments:
    """The moments of a client's features under a model."""
    z, member = class_features(task, models, data)
    with full_precision(z):
        products = torch.stack([(z * one.unsqueeze(1)).T @ z for one in member.unbind(1)])
        return ClassMoments(member.sum(0), member.T @ z, products)


def class_gaussians(moments: ClassMoments, eps: float) -> tuple[Tensor, Tensor]:
    """μ_c [C, D] and the symmetric square root of Σ_c [C, D, D], in float64.

    Args:
        moments: sums over all clients.
        eps: relative rounding error of their features; the root would magnify it where the covariance has no full rank.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
        >>> both = ClassMoments(torch.tensor([2.0]), z.sum(0, keepdim=True), (z.T @ z).unsqueeze(0))
        >>> means, roots = class_gaussians(both, 1e-7)
        >>> means.tolist(), (roots @ roots).round(decimals=6).tolist()
        ([[2.0, 0.0]], [[[2.0, 0.0], [0.0, 0.0]]])
    """
    counts, sums, products = (leaf.double() for leaf in moments)
    means = sums / counts.clamp(min=1).unsqueeze(-1)
    scatter = products - counts.view(-1, 1, 1) * means.unsqueeze(-1) * means.unsqueeze(-2)
    values, vectors = torch.linalg.eigh(scatter)
    least = eps * sums.shape[1] * products.diagonal(dim1=1, dim2=2).amax(1, keepdim=True)
    variances = torch.where(values > least, values, 0.0) / (counts - 1).clamp(min=1).unsqueeze(-1)
    return means, vectors * variances.sqrt().unsqueeze(-2) @ vectors.mT


def _slope(task: Task, head: Leaves, z: Tensor, y: Tensor) -> Leaves:
    """The gradient of the mean cross-entropy of a head, leaves [1, ...], on features [B, D] with labels [B]."""
    given = {name: leaf.detach().requires_grad_() for name, leaf in head.items()}
    with torch.enable_grad():
        outputs = task.head(ModelState(given, {}), z.unsqueeze(1))[:, 0]
        loss = class_cross_entropy(outputs, y).mean()
        return dict(zip(given, torch.autograd.grad(loss, list(given.values())), strict=True))
