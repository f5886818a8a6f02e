"""Ranking: the relevance of items to queries, whose metrics compare the items of one query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from lit_fed.core.likelihood import Likelihood
from lit_fed.core.targets import logistic_losses
from lit_fed.errors import ConfigError, check_settings

__all__ = ["Ranking"]


@dataclass(frozen=True)
class Ranking(Likelihood):
    """The relevance of an item to a query, item by item: labels [n, 2] are a relevance and the number of its query.

    Losses are those of the relevances; the query is for metrics, which compare a client's items of one query, such as
    torchmetrics' `RetrievalNormalizedDCG`. Where a client is one query, as a user in a recommender system, plain labels
    [n] do, with `Binary` or `Regression`: retrieval metrics then take each client for a query.

    Args:
        relevance: `binary`: 0 or 1, with the logistic loss; `graded`: numbers >= 0, with the squared error.
    """

    relevance: Literal["binary", "graded"] = "binary"

    num_outputs = 1
    metrics: ClassVar[Any] = ({"ndcg": {"class_path": "RetrievalNormalizedDCG", "init_args": {}}},)

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
        """The second column of the labels."""
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
        """The probability of relevance 1, or the predicted relevance, by which items are ranked."""
        return torch.sigmoid(outputs[..., 0]) if self.relevance == "binary" else outputs[..., 0]
