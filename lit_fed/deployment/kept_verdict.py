"""Does it pay for the clients of a node? Weights and verdicts from the node's own files; nothing is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.deployment.kept import KeptTraining
from lit_fed.errors import ConfigError
from lit_fed.metrics.verdict import EVIDENCE, constant_scores, probabilities, verdict_row
from lit_fed.system.packages import DataFrame, pd
from lit_fed.wrappers.blend import held_out, negative_log_likelihood, stacked, why_not

__all__ = ["kept_verdict"]


class Served(NamedTuple):
    """Predictions for the test samples of a client, in the form of `lit_fed.training.output.Predictions`."""

    client_ids: Tensor  # [1]
    sizes: Tensor  # [1]
    labels: Tensor  # [n]
    log_prob: Tensor  # [n, C], or means [n, 1]
    posteriors: None = None
    thresholds: None = None
    owned: None = None


def kept_verdict(trainings: Mapping[str, KeptTraining]) -> tuple[DataFrame, list[Served]]:
    """Each seen client's weights of several trainings, and its gain over the last one.

    As for private runs, nothing is estimated from the samples of several clients.

    Args:
        trainings: by the names of their weights; the last one is of Local.

    Returns:
        A row for each client, and the predictions that serve them, by the numbers of the last training.

    Raises:
        ConfigError: naming a training that no blend serves, or if no client has validation and test samples.
    """
    target = next(iter(trainings.values())).facts.target
    for name, one in trainings.items():
        rounds = one.training.rounds
        if why := why_not(one.settings.features, one.facts.target, rounds.terms.task):
            raise ConfigError(f"{name} {why}")
        if one.facts.target != target:
            raise ConfigError(f"{name} has other labels than {next(iter(trainings))}; give trainings on the same data")
    val, test = (_predicted(trainings.values(), split) for split in ("val", "test"))
    if not val.keys() & test.keys():
        raise ConfigError("no client here has validation and test samples; put x_val and y_val into the clients' files")
    number = len(trainings)
    prior, alone = torch.ones(number) / number, torch.eye(number)[-1]
    spread = torch.full((number,), 0.0 if target.continuous else 1.0)
    numbers = {name: number for number, name in one.names.items()}
    rows, predicted = [], []
    for client, (outputs, y) in test.items():
        if client not in val:
            continue
        known, labels = val[client]
        blended = held_out(target, known, labels, prior, spread, torch.ones(1))[0]
        gains = target.score(target.mix(alone, known), labels)[0] - blended
        chance = float(probabilities([gains.double().numpy()], pooled=False)[0])
        mask = torch.ones(len(labels))
        found = stacked(negative_log_likelihood(target, known, labels, mask, spread), mask, prior, 1.0)
        mixture = found if chance > EVIDENCE else alone
        mixed, by_itself = (target.mix(one, outputs) for one in (mixture, alone))
        served, own = (target.score(one, y)[1] for one in (mixed, by_itself))
        predicted.append(Served(torch.tensor([numbers[client]]), torch.tensor([len(y)]), y, mixed))
        weights = {f"pi_{name}": weight for name, weight in zip(trainings, mixture.tolist(), strict=True)}
        constant = constant_scores(target, one.training.splits["seen"]["train"].client(numbers[client]).y, y)
        row = verdict_row(client, target, served, own, constant, mixture, chance)
        rows.append(row | {"num_val": len(labels)} | weights)
    return pd.DataFrame(rows), predicted


def _predicted(trainings: Iterable[KeptTraining], split: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Outputs [n, K, ...] of the trainings and labels [n] of the seen clients with samples, by their names."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for one in trainings:
        seen = [client for client in one.find([]) if client < one.facts.num_clients]
        for block in one.predict(seen, split):
            sizes = block.sizes.tolist()
            outputs = one.facts.target.as_outputs(block.log_prob).split(sizes)
            for client, each, y in zip(block.client_ids.tolist(), outputs, block.labels.split(sizes), strict=True):
                if len(y):
                    found.setdefault(one.names[client], []).append((each, y))
    return {name: (torch.stack([one for one, _ in each], 1), each[0][1]) for name, each in found.items()}
