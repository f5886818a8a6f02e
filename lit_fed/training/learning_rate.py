"""The search of `--model.solver.lr auto`, or of a list of rates: they compete over the first rounds of the run.

Each trial is the beginning of the run itself with one rate: the same initial models, cohorts, batches and schedule.
Half of the rates drop out after each stage, down to two (successive halving: Jamieson, Talwalkar. "Non-stochastic Best
Arm Identification and Hyperparameter Optimization". AISTATS 2016). The last stage is long, since high rates lead at
first where lower ones win in the end. All trials of `auto` together take about 1.3 times the rounds of the run.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from typing import Any, NamedTuple

import torch
from lightning.pytorch import Trainer

from lit_fed import serving
from lit_fed.core.blocks import serving_blocks
from lit_fed.core.reduce import all_reduce
from lit_fed.core.task import Task
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError, NotFiniteError, notice
from lit_fed.rounds import FederatedRounds, in_memory
from lit_fed.session import Session
from lit_fed.settings import ModelSettings
from lit_fed.system.trials import InProcess, Plan, run_trials

__all__ = ["ADAM_RATES", "SGD_RATES", "Trial", "best_rate", "halved", "search", "validation_loss"]

SGD_RATES = (0.01, 0.0316, 0.1, 0.316, 1.0, 3.16)
"""Rates that a search tries with `sgd`."""

ADAM_RATES = (0.0001, 0.000316, 0.001, 0.00316, 0.01, 0.0316)
"""Rates that a search tries with the other optimizers, whose steps hardly depend on the size of gradients."""

STAGES = (1 / 16, 1 / 8, 1 / 2)
"""Shares of the run's rounds after which trials are compared."""


class Trial(NamedTuple):
    """A measurement of a rate, a row of `learning_rates.csv`."""

    lr: float
    rounds: int
    loss: float  # mean over the validation samples of seen clients; infinite if the trial diverged


class _Run:
    """The first rounds of a run with one rate.

    Args:
        federation: the federation before its first round.
        data: the samples.
        trainer: of the run; its ranks run the trial together.
    """

    def __init__(self, federation: FederatedRounds, data: FederatedDataModule, trainer: Trainer) -> None:
        self.federation, self.data, self.trainer = federation, data, trainer

    def loss_after(self, rounds: int) -> float:
        """Go on until so many rounds are done; mean validation loss, by five digits, or infinity. A collective call."""
        while self.federation.server.rounds_done < rounds:
            if not self._round():
                return math.inf
        return validation_loss(self.federation, self.data, self.trainer)

    def _round(self) -> bool:
        """Run a round; False if a client of any rank returned NaN or infinity."""
        diverged = torch.zeros(1, device=self.federation.server.device)
        module: Any = self.trainer.lightning_module
        for block in module.next_round(self.data, self.federation):
            try:
                with self.trainer.precision_plugin.train_step_context():
                    for _ in self.federation.train_block(_there(self.federation, self.data, block)):
                        pass
            except NotFiniteError:  # other ranks wait for this one at the end of the phase
                diverged += 1
            if block.ends_phase:
                if all_reduce(diverged):
                    return False
                self.federation.end_phase()
        self.federation.commit()
        return True


def validation_loss(federation: FederatedRounds, data: FederatedDataModule, trainer: Trainer) -> float:
    """Mean loss of every second validation sample of the seen clients, by five digits; infinite if one is not finite.

    The other samples judge what the rate has led to: weights of blends are found on them. A collective call.
    """
    sums, seen = torch.zeros(2, dtype=torch.float64, device=federation.server.device), data.populations[0]
    blocks = serving_blocks(
        seen.val.every_other(0), seen.train, seen.measured, clients_per_block=data.block_size,
        rank=trainer.global_rank, num_ranks=trainer.world_size,
    )  # fmt: skip
    try:
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            for block in blocks:
                for _, scores in serving.measure(federation, _there(federation, data, block), seen=True):
                    sums += torch.stack([scores.samples.sum(), scores.loss.sum()])
    except NotFiniteError:
        sums += math.nan
    number, loss = all_reduce(sums).tolist()
    return float(f"{loss / number:.5g}") if math.isfinite(loss) else math.inf


def _there(federation: FederatedRounds, data: FederatedDataModule, block: Any) -> Any:
    return data.transfer_batch_to_device(block, federation.server.device, 0)


def search(
    settings: ModelSettings, facts: TrainingFacts, data: FederatedDataModule, trainer: Trainer,
    start: Callable[[Task], Task] | None,
) -> list[Trial]:  # fmt: skip
    """Try learning rates on the first rounds of a run; a collective call.

    Args:
        settings: of the module.
        facts: of the run.
        data: the samples.
        trainer: of the run.
        start: as of `Session.of`.

    Returns:
        The trials of each stage.

    Raises:
        ConfigError: if there are no validation samples, or the states of all trials exceed `client_memory_gb`.
    """
    seen, device = data.populations[0], trainer.strategy.root_device
    if not seen.val.num_samples:
        raise ConfigError(
            "--model.solver.lr is judged by validation samples, and clients have none; give "
            "--data.val_fraction 0.1, or a number"
        )

    def session_at(rate: float) -> Session:
        with redirect_stderr(io.StringIO()):  # the session of the run says it all
            return Session.of(settings.with_lr(rate), facts, device, start)

    if isinstance(settings.solver.lr, tuple):
        rates = tuple(dict.fromkeys(settings.solver.lr))
    else:
        kind = session_at(SGD_RATES[0]).terms.solver.optimizer  # a module may have one of its own
        rates = SGD_RATES if kind.rpartition(".")[2].lower() == "sgd" else ADAM_RATES
    train, runs = seen.train.to(device), {}
    for rate in rates:
        session = session_at(rate)
        memory = settings.client_memory_gb * 1e9
        federation = in_memory(
            session.algorithm, session.terms, session.shared, session.choose, train, memory / len(rates)
        )
        for one in settings.features:
            one.start(federation)
        if federation.store.in_files:
            raise ConfigError(
                f"--model.solver.lr is to be searched, and client states of {len(rates)} trials exceed "
                f"--model.client_memory_gb {settings.client_memory_gb}; give more, or a number"
            )
        runs[rate] = _Run(federation, data, trainer)

    def tell(stage: Sequence[Trial]) -> None:
        if trainer.is_global_zero:
            losses = ", ".join(f"{one.lr:g}: {one.loss:.3g}" for one in stage)
            notice(f"search of --model.solver.lr; rates and validation losses after round {stage[0].rounds}: {losses}")

    return halved(rates, facts.num_rounds, lambda rate, rounds: runs[rate].loss_after(rounds), tell)


def halved(
    rates: Sequence[float], num_rounds: int, loss_after: Callable[[float, int], float],
    tell: Callable[[Sequence[Trial]], None] = lambda stage: None,
) -> list[Trial]:  # fmt: skip
    """Compare rates after each stage; half of them, but two at least, are left after it.

    Args:
        rates: that compete.
        num_rounds: rounds of the run.
        loss_after: the loss of a rate after some rounds, infinite if it diverged.
        tell: called with the trials after each stage.
    """
    trials: list[Trial] = []

    def plan() -> Plan:
        left = rates
        for rounds in dict.fromkeys(max(1, round(share * num_rounds)) for share in STAGES):  # short runs have fewer
            losses = yield [(rate, rounds) for rate in left]
            found = [Trial(rate, rounds, loss.value) for rate, loss in zip(left, losses, strict=True)]
            trials.extend(found)
            tell(found)
            best = sorted(found, key=lambda one: (one.loss, one.lr))
            left = [one.lr for one in best[: max(2, (len(best) + 1) // 2)] if math.isfinite(one.loss)]
            if not left:
                return

    run_trials([plan()], lambda trial: loss_after(*trial), InProcess())
    return trials


def best_rate(trials: Sequence[Trial], name: str) -> float:
    """The rate whose last loss is the smallest, the smallest of equals.

    Rates that dropped out count as well: those that were left may diverge slowly, with losses that are still finite.

    Args:
        trials: of a search.
        name: of the algorithm, for messages.

    Raises:
        ConfigError: if all trials diverged, or the rate changes nothing.
    """
    last = {one.lr: one.loss for one in trials}
    if all(map(math.isinf, last.values())):
        raise ConfigError(
            f"--model.solver.lr is searched, and all trials of {name} diverged, from {min(last)} on; see to the "
            "inputs, or give a smaller number"
        )
    if len({one.loss for one in trials if one.rounds == trials[0].rounds}) == 1:
        raise ConfigError(f"--model.solver.lr is searched, and the rate changes nothing under {name}; leave it out")
    return min(last, key=lambda rate: (last[rate], rate))
