"""Dissimilarity of the clients' gradients, by the constants of convergence theory."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed.callbacks.evaluation import log_results
from lit_fed.core import tree
from lit_fed.core.reduce import all_reduce
from lit_fed.core.types import ClientData, Tree
from lit_fed.errors import ConfigError
from lit_fed.rounds import FederatedRounds
from lit_fed.training.hooks import FederatedCallback, data_of, federated
from lit_fed.training.module import FederatedModule

__all__ = ["GradientDissimilarity", "client_gradient"]

ROWS_PER_PASS = 1024


class GradientDissimilarity(FederatedCallback):
    """Logs the dissimilarity of the seen clients' training gradients, at every evaluation and in the test.

    With f = Σ_t p_t f_t at the shared models θ, where p_t are the weights of messages, by samples or all the same:
    `train/seen/gradient_dissimilarity` is Σ_t p_t ‖∇f_t(θ)‖² / ‖∇f(θ)‖², the B² of https://arxiv.org/abs/1812.06127,
    Definition 3, which is 1 if all gradients agree; `train/seen/gradient_variance` is Σ_t p_t ‖∇f_t(θ) − ∇f(θ)‖²;
    `train/seen/gradient_norm` is ‖∇f(θ)‖.
    f_t is the mean log-loss of the client's training samples under the prediction with which it is served, without
    adaptation. For a mixture it is the negative log-likelihood under the stored weights π_t, which stay fixed, and the
    gradient is that by all components. Predictions that depend on no shared model have nothing to measure. Each
    evaluation takes one pass forward and backward over these samples.
    """

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        dataset = getattr(getattr(trainer, "datamodule", None), "dataset", None)
        if dataset is not None and dataset.is_remote:
            raise ConfigError(
                f"--trainer.callbacks has GradientDissimilarity, which needs samples of clients, and those of "
                f"{type(dataset).__name__} stay on their nodes; leave it out"
            )

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module = federated(pl_module)
        mean, square, weight = self._sums(trainer, module)
        if not weight:
            self.notice_once(
                "no shared models",
                f"GradientDissimilarity measures nothing: the predictions of {module.algorithm_name} depend on no "
                "shared model",
            )
            return
        square, norm = square / weight, float((mean / weight).norm())
        found = {
            "gradient_dissimilarity": square / max(norm**2, torch.finfo(torch.float64).tiny),
            "gradient_variance": max(square - norm**2, 0.0),
            "gradient_norm": norm,
        }
        log_results(module, "train/seen", found)

    on_test_epoch_end = on_validation_epoch_end

    def _sums(self, trainer: Trainer, module: FederatedModule) -> tuple[Tensor, float, float]:
        """Σ_t w_t ∇f_t [d], Σ_t w_t ‖∇f_t‖² and Σ_t w_t, over the clients of all ranks that depend on shared models."""
        federation = module.federation
        shared = tree.map_leaves(lambda leaf: leaf.detach(), federation.shared)
        by = [leaf.requires_grad_() for models in tree.models(shared) for leaf in models.parameters.values()]
        total = torch.zeros(sum(leaf.numel() for leaf in by), dtype=torch.float64, device=module.device)
        numbers = torch.zeros(2, dtype=torch.float64, device=module.device)
        with trainer.precision_plugin.val_step_context(), torch.enable_grad():
            for block in map(trainer.strategy.batch_to_device, data_of(trainer).serving("seen", "train")):
                states = federation.store.gather(block.client_ids)["state"] if len(block.client_ids) else None
                data = block.data.select(block.client_ids)
                for row, client_id in enumerate(block.client_ids.tolist()):
                    client = data.client(client_id)
                    client = client._replace(mask=federation.terms.task.target.counted(client.y, client.mask))
                    gradient = client_gradient(federation, shared, by, tree.row(states, row), client)
                    if gradient is not None:
                        weight = federation.terms.client_weight(client)
                        total += weight * gradient
                        numbers += weight * torch.stack([gradient @ gradient, torch.ones_like(gradient[0])])
                    module.tell("on_clients_served", 1)
        square, weight = all_reduce(numbers).tolist()
        return all_reduce(total), square, weight


def client_gradient(
    federation: FederatedRounds, shared: Tree, by: list[Tensor], state: Tree, data: ClientData
) -> Tensor | None:
    """∇f_t, the gradient of the mean log-loss of a client's samples, [d] float64.

    Args:
        federation: the algorithm, its task and terms.
        shared: the shared state.
        by: leaves of it that require a gradient, with d numbers in all.
        state: state of the client.
        data: its samples.

    Returns:
        None without samples, or if the client's prediction depends on none of the leaves.
    """
    ctx, algorithm, gradient = federation.context("evaluate"), federation.algorithm, None
    for lo in range(0, len(data.mask), ROWS_PER_PASS):
        x, y = (rows[lo : lo + ROWS_PER_PASS] for rows in (data.x, data.y))
        prediction = algorithm.log_prob(ctx, shared, state, x, algorithm.shared_outputs(ctx, shared, x))
        loss = ctx.task.score(prediction, y)[0].sum() / data.num_samples.clamp(min=1)
        parts = torch.autograd.grad(loss, by, allow_unused=True) if by and loss.requires_grad else [None]
        if all(part is None for part in parts):
            return None
        given = [torch.zeros_like(leaf) if part is None else part for part, leaf in zip(parts, by, strict=True)]
        flat = torch.cat([part.flatten().double() for part in given])
        gradient = flat if gradient is None else gradient + flat
    return gradient
