"""The judgement whether a training diverged, at its end."""

from __future__ import annotations

import math

import torch
from lightning.pytorch import LightningModule, Trainer

from lit_fed.callbacks.evaluation import measured_table
from lit_fed.clients.base import calmer_steps
from lit_fed.core import tree
from lit_fed.core.types import RoundRecord
from lit_fed.errors import DivergedError, notice
from lit_fed.metrics.scores import ClientScores
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.readers import instance
from lit_fed.training.hooks import FederatedCallback, data_of, federated
from lit_fed.training.module import FederatedModule

__all__ = ["Divergence", "divergence_in_words"]

ROUNDING = 1e-3
"""Relative difference of two losses that other batches of the same models may have."""

FAR = 10
"""A training loss above so many times guessing exploded, although its first round, in which it did so, was higher."""


class Divergence(FederatedCallback):
    """Ends a fit with an error if its training loss is not finite, and with a line if nothing was learned.

    Nothing was learned if the training loss is above that of the first round, or far above guessing, and the log-loss
    of the seen clients' training samples, which are measured only then, is above guessing: predicting the shares, or
    the mean, of all training labels. Where guessing is unknown nothing is said, except of clients on nodes: there the
    server knows the training loss alone.

    Attributes:
        found: the line; "" without one.
    """

    kept = {"first": instance(int, float)}  # also one that is not finite

    def __init__(self) -> None:
        self.first = math.inf
        self.found = ""

    def on_round_end(self, trainer: Trainer, module: FederatedModule, record: RoundRecord) -> None:
        if record.round_idx == 0:
            self.first = record.metrics.get("loss", math.inf)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Judge the training, unless SIGTERM cuts it short: it goes on later.

        Raises:
            DivergedError: if the training loss is not finite.
        """
        module, data, self.found = federated(pl_module), data_of(trainer), ""
        if module.num_rounds_done < module.num_rounds and not trainer.should_stop:
            return
        loss, guess = module.results.get("train/seen/loss", -math.inf), data.guessing_loss()
        remote, of_another_loss = data.dataset.is_remote, module.settings.loss is not None
        rose = loss > self.first * (1 + ROUNDING)
        classes = module.facts.target.metric == "accuracy"  # the loss of quantities may begin anywhere
        far = guess is not None and classes and not of_another_loss and loss > FAR * guess
        worse = far or (rose and (remote or (guess is not None and (of_another_loss or loss > guess))))
        if loss == -math.inf or (math.isfinite(loss) and not worse):
            return
        clients = None if remote else _on_training_samples(trainer, module)
        drops = module.algorithm.drops_non_finite
        if drops and not math.isfinite(loss) and clients is not None and clients.loss.isfinite().all():
            return  # the rule dropped the messages of clients that computed NaN
        found = divergence_in_words(loss, self.first, guess, clients)
        if not found:
            return
        validation = " --data.val_fraction 0.1" if data.evaluation_split == "test" else ""
        auto = "" if remote or module.trials else f", or with --model.solver.lr auto{validation}"
        self.found = f"{found}; start again with {calmer_steps(module.settings.solver)}{auto}"
        if not math.isfinite(loss):
            raise DivergedError(self.found, module.num_rounds_done)
        if trainer.is_global_zero:
            notice(self.found)

    def on_summary(self, trainer: Trainer, module: FederatedModule, summary: RunSummary) -> None:
        summary.entries |= {"diverged": self.found} if self.found else {}


def divergence_in_words(loss: float, first: float, guess: float | None, clients: ClientScores | None) -> str:
    """The fault of a finished training whose loss is not finite or above that of the first round; "": nothing.

    Args:
        loss: training loss of the last round.
        first: that of the first round.
        guess: log-loss of guessing; None: unknown.
        clients: results of the clients on their training samples; None: unknown.

    Example:
        >>> clients = ClientScores.of_rows(torch.tensor([[2.0, 10.0, 0.0], [2.0, 2.0, 1.0]]))
        >>> divergence_in_words(9.0, 2.3, 2.0, clients)
        'the training loss ended at 9, above the first round (2.3), and for 1 of 2 clients above guessing (2)'
        >>> divergence_in_words(9.0, 2.3, 4.0, clients)
        ''
    """
    finite = math.isfinite(loss)
    place = f"above the first round ({first:.5g})" if loss > first else "far above guessing"
    end = f"the training loss ended at {loss:.5g}, {place if finite else 'not finite'}"
    if clients is None:
        return end
    held = tree.index(clients, clients.held)
    each, mean = held.loss / held.samples, float(held.loss.sum() / held.samples.sum())
    if not finite:
        number = int((~each.isfinite()).sum())
        return f"{end}; so is that of {number} of {len(each)} clients after it" if number else end
    if guess is None or mean <= guess:
        return ""
    return f"{end}, and for {int((~(each <= guess)).sum())} of {len(each)} clients above guessing ({guess:.5g})"


def _on_training_samples(trainer: Trainer, module: FederatedModule) -> ClientScores:
    """Results of the measured seen clients that do not attack on their training samples."""
    with torch.no_grad():
        scores = measured_table(trainer, module, "seen", "train").scores()
    honest = data_of(trainer).populations[0].honest
    return scores if honest is None else tree.index(scores, honest)
