"""Losses of algorithms: what a local step minimises in place of the task's loss."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.targets import Criterion, Target
from lit_fed.core.types import Leaves, Tree
from lit_fed.errors import ConfigError

__all__ = ["ModelView", "Objective"]


class ModelView(NamedTuple):
    """One model on one batch, without a model axis, as passed to the loss of an `Objective`."""

    outputs: Tensor  # [B, K] or [B, L, K]
    y: Tensor  # [B] or [B, L]; soft labels have an axis of classes
    constants: Tree  # `constants` of this model, leaves without model axis
    rows: Tree  # `rows` of this model, leaves [B, ...]
    head: Callable[..., Tensor]  # outputs [n, K] of features [n, D] under this model, or with other leaves by name
    trained_on: Target | Criterion
    inner: Tensor | None = None  # the features
    real: Tensor | None = None  # the mask
    leaves: Mapping[str, Tensor] = {}  # `leaves` of this model by name, without model axis

    @property
    def losses(self) -> Tensor:
        """The task's loss of each sample, [B]."""
        return self.trained_on.losses(self.outputs, self.y)

    @property
    def features(self) -> Tensor:
        """Inputs of the last layer, [B, D] or [B, L, D].

        Raises:
            ConfigError: unless the objective `uses_features`.
        """
        return _declared(self.inner, "features", "uses_features")

    @property
    def mask(self) -> Tensor:
        """1 for a sample and 0 for padding, [B].

        Raises:
            ConfigError: unless the objective is `over_batch`.
        """
        return _declared(self.real, "mask", "over_batch")


def _declared(given: Tensor | None, name: str, field: str) -> Tensor:
    if given is None:
        raise ConfigError(f"the algorithm's loss reads view.{name}; give its Objective {field}=True")
    return given


class Objective(NamedTuple):
    """A loss that a local step minimises in place of the task's: (1/B) Σ_b w_bm·loss_bm for each model m.

    The loss must run under `torch.func.vmap`. Masks and weights are applied to its values. It returns one number per
    sample, which depends on this sample and the model only. If it also depends on other samples of the batch, the
    objective is `over_batch`, and the loss must ignore samples whose `view.mask` is 0. A term of the whole batch is
    added to the loss of each sample.

    Pass tensors that change from step to step as `constants` and `rows`, not in a closure: each model sees its part,
    padding is removed, and recorded steps (`graphed`) read current values. If samples are private, `constants` must be
    public or noised, and each row of `rows` may depend on its sample only.

    Leaves that the algorithm trains beside the network's, such as a second head, are parameters of the stepped models
    under names of their own, given as `leaves`: the loss reads them as `view.leaves`, no pass of the network sees them,
    and gradient, penalties, clipping and optimizer treat them as the others.

    Example:
        >>> import torch
        >>> def pulled(view):
        ...     means, share = view.constants
        ...     return view.losses + share * (view.features - means[view.y]).square().mean(-1)
        >>> objective = Objective(pulled, uses_features=True, constants=(torch.zeros(1, 3, 8), torch.ones(1)))
    """

    loss: Callable[[ModelView], Tensor]  # per sample, [B]; should be a method of the algorithm or a plain function
    uses_features: bool = False
    over_batch: bool = False
    constants: Tree = None  # leaves [M, ...], or [1, ...] for all models
    rows: Tree = None  # per sample, leaves [B, M, ...], or [B, 1, ...] for all models
    leaves: Collection[str] = ()  # names

    def operands(self, num_models: int) -> tuple[list[Tensor], list[Tensor]]:
        """Leaves of `constants`, [M, ...], and of `rows`, [B, M, ...]."""
        constants = [leaf.expand(num_models, *leaf.shape[1:]) for leaf in tree.leaves(self.constants)]
        return constants, [leaf.expand(-1, num_models, *leaf.shape[2:]) for leaf in tree.leaves(self.rows)]

    def with_operands(self, constants: Sequence[Tensor], rows: Sequence[Tensor]) -> Objective:
        """The objective with other leaves, such as those of one model."""
        return self._replace(constants=tree.rebuild(self.constants, constants), rows=tree.rebuild(self.rows, rows))

    def apart(self, parameters: Leaves) -> tuple[Leaves, Leaves]:
        """The parameters of the network, and `leaves`."""
        return {name: one for name, one in parameters.items() if name not in self.leaves}, {
            name: parameters[name] for name in self.leaves
        }

    def of_rows(self, rows: slice) -> Objective:
        """The objective for some samples of the batch."""
        return self._replace(rows=tree.index(self.rows, rows))

    def of_models(self, num_models: int) -> list[Objective]:
        """The objective of each model, whose leaves have no model axis."""
        constants, rows = self.operands(num_models)
        return [
            self.with_operands([leaf[m] for leaf in constants], [leaf[:, m] for leaf in rows])
            for m in range(num_models)
        ]

    def each(self, view: ModelView) -> Tensor:
        """The loss of each sample, [B].

        Raises:
            ConfigError: if the loss has another shape.
        """
        found = self.loss(view)
        if found.shape != view.outputs.shape[:1]:
            raise ConfigError(
                f"the objective {getattr(self.loss, '__name__', self.loss)} returns {list(found.shape)} for "
                f"{len(view.outputs)} samples; return the loss of each sample [B], without a sum or mean over the batch"
            )
        return found
