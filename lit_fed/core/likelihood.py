"""User-defined likelihoods: a target of three methods, with gradients and mixtures derived; rankings; own losses."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.func import grad

from lit_fed.core.targets import Target, logistic_losses
from lit_fed.core.types import Leaves
from lit_fed.errors import ConfigError, check_settings

__all__ = ["Likelihood", "OwnLoss", "Ranking"]


class Likelihood(Target):
    """A user-defined target: log p(y | outputs) and a prediction.

    Subclasses should be frozen dataclasses. They define `num_outputs`, `log_likelihood` and `predict`, in PyTorch
    functions that run under `torch.func.vmap`. Autograd gives the gradients. A mixture has the likelihood
    Σ_m π_m p(y | outputs_m) and predicts Σ_m π_m `predict`(outputs_m), which mixes predicted distributions correctly.

    Labels are floats of any shape [...]. With `positions = True` their first axis counts positions, and losses are
    averaged over it. `check` may refuse unsuitable labels. `error` is a second measure, named by `metric`; without it,
    clients are compared by their loss. `metrics` names metrics of torchmetrics or user-defined ones, which are updated
    with predictions [n, ...] and labels [n, ...].
    """

    metric = "loss"
    continuous = True

    @abstractmethod
    def log_likelihood(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log p(y | outputs), [...].

        Args:
            outputs: [..., K], with any leading axes.
            y: labels, with the same leading axes followed by those of one label.
        """

    @abstractmethod
    def predict(self, outputs: Tensor) -> Tensor:
        """The prediction from outputs [..., K]: numbers [...], or vectors [..., P] such as probabilities."""

    def check(self, y: Tensor) -> None:
        """Refuse unsuitable training labels [n, ...] with a `ConfigError` that says what is expected."""

    def error(self, predicted: Tensor, y: Tensor) -> Tensor:
        """Error of each prediction, [...], smaller is better; its mean is reported as `metric`."""
        raise NotImplementedError

    def compared(self, shown: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and labels for metrics of torchmetrics, from `shown` and labels, both [n, ...]."""
        return shown, y

    def columns(self, shown: Tensor) -> Leaves:
        """The result of `shown` [n, ...], by column name in tables of predictions."""
        return {"prediction": shown}

    @property
    def name(self) -> str:
        """The name of the class; its capitals distinguish it from the built-in kinds."""
        return type(self).__name__

    def __init_subclass__(cls, **options: Any) -> None:
        """Set the kind of a class, by which checkpoints compare it."""
        super().__init_subclass__(**options)
        if "kind" not in vars(cls):
            cls.kind = cls.__name__

    def fitted(self, y: Tensor, num_classes: int | None = None) -> Self:
        """Return the target itself if the labels pass `check` and give finite losses of the right shape."""
        self.check(y)
        if len(y):
            some = y[:2]
            outputs = y.new_zeros(len(some), *some.shape[1 : 1 + self.positions], self.num_outputs)
            found = self.losses(outputs, some)
            if found.shape != (len(some),):
                raise ConfigError(
                    f"{type(self).__name__}.log_likelihood returns {list(found.shape)} for outputs "
                    f"{list(outputs.shape)} and labels {list(some.shape)}; return one number for each "
                    f"{'position' if self.positions else 'sample'}, {list(outputs.shape[:-1])}"
                )
        return self

    def for_models(self, y: Tensor, outputs: Tensor) -> Tensor:
        """Labels [B, 1, ...] keep their own axes."""
        return y.expand(len(y), outputs.shape[1], *y.shape[2:])

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """−log p(y | outputs); the mean over positions."""
        return self.over_positions(-self.log_likelihood(outputs, y), y)

    def residual(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The gradient by autograd; a subclass may have a closed form."""
        gradient: Tensor = grad(lambda given: self.losses(given, y).sum())(outputs)
        return gradient

    def soft_labels(self, outputs: Tensor, y: Tensor, share: Tensor | float) -> Tensor:
        """Refused: labels of an arbitrary likelihood cannot be interpolated."""
        raise ConfigError(
            f"--model.target {type(self).__name__} has no soft labels, which this algorithm trains on; choose another "
            "--model.algorithm, or define soft_labels"
        )

    def mix(self, weights: Tensor, outputs: Tensor) -> Tensor:
        """Outputs and weight of each model, [B, M, K + 1] or [B, L, M, K + 1], for `score` and `shown`."""
        if self.positions:
            outputs = outputs.movedim(1, 2)
        return torch.cat([outputs, weights[:, None].expand(*outputs.shape[:-1], 1)], -1)

    def score(self, prediction: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """−log Σ_m π_m p(y | outputs_m), and `error`; means over positions."""
        outputs, weights = prediction[..., :-1], prediction[..., -1]
        axis = prediction.ndim - 2
        each = self.log_likelihood(
            outputs, y.unsqueeze(axis).expand(*y.shape[:axis], weights.shape[-1], *y.shape[axis:])
        )
        loss = self.over_positions(-torch.logsumexp(weights.log() + each, -1), y)
        if type(self).error is Likelihood.error:
            return loss, loss
        return loss, self.over_positions(self.error(self.shown(prediction), y), y)

    def shown(self, prediction: Tensor) -> Tensor:
        """Σ_m π_m `predict`(outputs_m)."""
        weights, each = prediction[..., -1], self.predict(prediction[..., :-1])
        axis = weights.ndim - 1
        return (each * weights.view(*weights.shape, *[1] * (each.ndim - weights.ndim))).sum(axis)


@dataclass(frozen=True)
class Ranking(Likelihood):
    """Pointwise relevance of items to queries: labels [n, 2] are a relevance and the number of its query.

    Losses use the relevances only. Metrics such as torchmetrics' `RetrievalNormalizedDCG` use the query to compare a
    client's items of one query. If each client is one query, such as a user of a recommender system, use plain labels
    [n] with `Binary` or `Regression`: retrieval metrics then treat each client as one query.

    Args:
        relevance: `binary`: 0 or 1, with the logistic loss; `graded`: numbers >= 0, with the squared error.
    """

    relevance: Literal["binary", "graded"] = "binary"

    num_outputs = 1
    metrics = ({"ndcg": {"class_path": "RetrievalNormalizedDCG", "init_args": {}}},)

    def __post_init__(self) -> None:
        check_settings(self, prefix="--model.target")

    def check(self, y: Tensor) -> None:
        if y.shape[1:] != (2,):
            raise ConfigError(
                f"--model.target Ranking needs labels [n, 2], relevance and number of the query, and the training "
                f"labels have shape {list(y.shape)}; give Binary or Regression if each client is one query"
            )
        relevance, query = y.unbind(1)
        if bool((query != query.round()).any()) or bool((query < 0).any()) or bool((query >= 2**24).any()):
            raise ConfigError("the second column of the labels numbers the queries; give whole numbers from 0 to 2^24")
        wrong = (relevance * (1 - relevance) != 0) if self.relevance == "binary" else relevance < 0
        if bool(wrong.any()):
            raise ConfigError(
                f"the first column of the labels is a relevance, such as {float(relevance[wrong][0]):g}; give 0 and 1, "
                "or numbers >= 0 with --model.target.relevance graded"
            )

    def queries(self, y: Tensor) -> Tensor:
        """The query numbers: the second column of the labels."""
        return y[:, 1].long()

    def compared(self, shown: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and relevances, both [n]."""
        return shown, y[:, 0]

    def log_likelihood(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Log-probability of the relevance, or minus half its squared error."""
        score, relevance = outputs[..., 0], y[..., 0]
        if self.relevance == "binary":
            return -logistic_losses(score, relevance)
        return -0.5 * (score - relevance).square()

    def predict(self, outputs: Tensor) -> Tensor:
        """The ranking score: the probability of relevance 1, or the predicted relevance."""
        return torch.sigmoid(outputs[..., 0]) if self.relevance == "binary" else outputs[..., 0]


@dataclass(frozen=True)
class OwnLoss(Likelihood):
    """The loss of the module's own `training_step`, whatever its labels are: of autoencoders, of masked texts.

    For a LightningModule as `--model.network`. Its loss counts as −log p, up to a constant, in E-steps and in results.
    Predictions are those of `predict_step`, or else of `forward`; a mixture predicts their mean by its weights. Outputs
    of a sample are its loss, then its prediction, flattened; samples hold their labels.
    """

    num_classes: int = 1

    num_outputs = 1

    def log_likelihood(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Minus the loss."""
        return -outputs[..., 0]

    def predict(self, outputs: Tensor) -> Tensor:
        """The module's prediction; its loss if it makes none."""
        return outputs[..., 1:] if outputs.shape[-1] > 1 else outputs
