"""Fine-tuning: each client takes local epochs on the models that serve it, after the algorithm's own adaptation.

FedAvg with it is FedAvg+ of Marfoq, Neglia, Bellet, Kameni, Vidal. "Federated Multi-Task Learning under a Mixture of
Distributions". NeurIPS 2021. https://arxiv.org/abs/2108.10252, Section 4.

Symbols:
    θ_m -> state.models   model m that serves the client, leaves [M, ...]; exists only while the client is served
    π   -> state.weights  their weights in its prediction, [M]
    q   -> work.extra     posterior of the model of each local sample, [N, M]; () with a single model
Fine-tuning:
    q_m ∝ π_m·exp(−ℓ_m) for each sample, as in FedEM's E-step; then local steps on Σ_m q_m·ℓ_m, as FedEM's M-step; then
    E-steps of π, which serves the client.
"""

# No `from __future__ import annotations`: jsonargparse resolves inherited ones in the module of a subclass.
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from lit_fed.core.algorithm import LocalRun, local_result, local_run, local_step, ranged, tuned
from lit_fed.core.context import Context
from lit_fed.core.mixtures.e_step import batch_weights, expectation, num_factors
from lit_fed.core.partial_models import Patterns, named_leaves
from lit_fed.core.served_models import ServedModels, served_models
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, ClientResult, LocalWork, ModelState, Tree
from lit_fed.errors import ConfigError, check_settings

__all__ = ["FineTunes", "FineTuning", "TunedState"]


E_STEPS = 10
"""E-steps under the tuned models, whose losses take one pass; a new client's weights need more than one."""


@dataclass(frozen=True)
class FineTuning:
    """How clients fine-tune the models that serve them.

    Args:
        fine_tune_epochs: passes over its training samples in which each client, seen or unseen, trains the models that
            serve it; 0: none.
        fine_tune_lr: learning rate of these passes; null takes the solver's `adapt_lr`, by default its initial one.
        tune: patterns of names of the leaves or modules that are trained, or `head`, `body`, `norm`; null: all.
    """

    fine_tune_epochs: int = tuned(0, 0, 1, 5, 10, within=">= 0")
    fine_tune_lr: float | None = ranged(None, ">= 0")
    tune: Patterns | None = None

    def __post_init__(self) -> None:
        check_settings(self, prefix="--model.serving")


class TunedState(NamedTuple):
    """State of a client that is served by fine-tuned models."""

    inner: Any  # the algorithm's state of the client
    models: ModelState  # leaves [M, ...]
    weights: Tensor  # [M]

    @property
    def mixture(self) -> Tensor:
        """Mixture weights of the client, if the algorithm has some: those of the tuned models, or of clusters."""
        own: Tensor = self.inner.mixture
        return self.weights if self.weights.shape == own.shape else own


class FineTunes:
    """First base of what fine-tunes; the second is the algorithm, or the wrapper around it, whose serving changes."""

    fine_tuning: FineTuning
    place: ClassVar[str] = "--model.serving"
    """The section of its options."""

    @property
    def tune_work(self) -> LocalWork:
        """Every client is tuned before it is served, seen or unseen."""
        return LocalWork(epochs=self.fine_tuning.fine_tune_epochs)

    def tuned_names(self, ctx: Context) -> frozenset[str] | None:
        """Names of the leaves that are tuned; None: all."""
        patterns = self.fine_tuning.tune
        return None if patterns is None else named_leaves(ctx.task, patterns, f"{self.place}.tune")

    def shared_init(self, ctx: Context) -> Any:
        """The algorithm's; patterns that match nothing are refused before training."""
        self.tuned_names(ctx)
        return super().shared_init(ctx)  # type: ignore[misc]

    def client_init(self, ctx: Context, shared: Tree, state: Tree, data: ClientData, losses: Any) -> Any:
        """A copy of the models that serve the client; of several the posteriors of its samples."""
        if not ctx.tunes:
            return super().client_init(ctx, shared, state, data, losses)  # type: ignore[misc]
        models, weights = self._served(ctx, shared, state, data.all_x[:1])
        q = self._e_steps(ctx, models, weights, data, 1)[1] if len(weights) > 1 else ()
        return local_run(ctx, models, (state, weights, q))

    def _e_steps(
        self, ctx: Context, models: ModelState, weights: Tensor, data: ClientData, count: int
    ) -> tuple[Tensor, Tensor]:
        """The weights [M] after some E-steps, and q of the last one."""
        factors = num_factors(ctx.task, data, getattr(self, "position_loss", "mean"))
        losses = ctx.task.sample_losses(models, data)
        for _ in range(count):
            weights, q, _ = expectation(weights, losses, data.mask, factors)
        return weights, q

    def _served(self, ctx: Context, shared: Tree, state: Tree, x: Tensor) -> ServedModels:
        """The models that serve a client with this state of the algorithm.

        Raises:
            ConfigError: if it is not served by models.
        """

        def predict(task: Task, x: Tensor) -> Tensor:
            return self.log_prob(ctx._replace(task=task), shared, state, x, None)

        if (found := served_models(predict, ctx.task, x)) is None:
            raise ConfigError(
                f"{self.place}.fine_tune_epochs trains the models that serve a client, and the algorithm does not "
                "predict by a mixture of the outputs of models; leave it out"
            )
        return found

    def client_step(self, ctx: Context, shared: Tree, work: Any, batch: Batch) -> Any:
        """The algorithm's step; a step of the tuned leaves at the tuning rate, each model on its weighted loss."""
        if not ctx.tunes:
            return super().client_step(ctx, shared, work, batch)  # type: ignore[misc]
        *_, q = work.extra
        ctx = ctx._replace(lr=ctx.own_rate(self.fine_tuning.fine_tune_lr))
        weight = None if isinstance(q, tuple) else batch_weights(q, batch)
        return local_step(ctx, work, batch, weight=weight, moving=self.tuned_names(ctx))

    def client_final(self, ctx: Context, shared: Tree, work: Any, data: ClientData) -> ClientResult:
        """The algorithm's result; a tuned client keeps its models while it is served."""
        if not ctx.tunes:
            return super().client_final(ctx, shared, work, data)  # type: ignore[misc,no-any-return]
        assert isinstance(work, LocalRun)
        state, weights, q = work.extra
        if not isinstance(q, tuple):
            weights, _ = self._e_steps(ctx, work.models, weights, data, E_STEPS)
        return local_result(ctx, work, data, state=TunedState(state, work.models, weights))

    def shared_outputs(self, ctx: Context, shared: Tree, x: Tensor) -> None:
        """No prediction depends on the shared state alone."""

    def log_prob(self, ctx: Context, shared: Tree, state: Any, x: Tensor, outputs: Any) -> Tensor:
        """The prediction of the tuned models, [B, C]; the algorithm's with a state that is not tuned."""
        if isinstance(state, TunedState):
            return ctx.task.mix(state.weights, ctx.task.outputs(state.models, x))
        own = super().shared_outputs(ctx, shared, x)  # type: ignore[misc]
        return super().log_prob(ctx, shared, state, x, own)  # type: ignore[misc,no-any-return]
