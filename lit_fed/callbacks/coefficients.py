"""Coefficients of linear models in the units of a table's columns, as `coefficients.csv`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Trainer
from torch import Tensor

from lit_fed import serving
from lit_fed.callbacks.report import populations_of
from lit_fed.core import tree
from lit_fed.core.types import Population, Tree
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import notice
from lit_fed.metrics.summary import RunSummary
from lit_fed.system.packages import pd
from lit_fed.training.hooks import FederatedCallback, data_of, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import write_table

__all__ = ["LinearCoefficients", "coefficient_table"]

HALF_WIDTH = 1.959964
"""Standard errors on either side in an interval of 95 %."""

NO_CLIENT = {"client": "", "client_id": None}
"""Of rows about all clients."""

TARGETS = ("regression", "binary", "multiclass")
"""Kinds of labels whose predictions are a mean, or log-probabilities of classes."""

CLIENTS_AT_ONCE = 1024

TOLERANCE = 1e-3
"""Largest change of a slope between two samples, as a share of the largest slope, by rounding alone."""


class LinearCoefficients(FederatedCallback):
    """Writes the coefficients of every measured client after the test, if predictions are linear in a table's columns.

    One row for each client and column, in the units of the table: `coefficient` is the change of the label, or of the
    log-odds against the first class, with the column; `(intercept)` is the value where all columns are 0. Those of
    `MixedEffects` have standard errors and intervals of 95 %, and there are rows of the populations `common`, the mean
    of the clients' coefficients, and `deviation`, their standard deviation over clients and that of the residuals. In a
    federation of nodes there is no such file: coefficients stay with their clients.
    """

    def on_summary(self, trainer: Trainer, module: FederatedModule, summary: RunSummary) -> None:
        folder, learned = results_folder(trainer), _learned(module)
        for line in [] if learned is None else learned.said:
            notice(line)
        if folder is None or isinstance(module.federation.client_trainer, serving.MeasuresElsewhere):
            return
        table = coefficient_table(populations_of(data_of(trainer)), module)
        if table is not None:
            write_table(table, folder / "coefficients.csv")


def coefficient_table(populations: dict[str, Population | None], module: FederatedModule) -> pd.DataFrame | None:
    """The coefficients of all measured clients; None if inputs are no table, or predictions not linear in them.

    Labels are quantities or classes; there are no coefficients of quantiles and user-defined likelihoods.

    Args:
        populations: the clients by the name of their population, `seen` and `unseen`.
        module: the module that measured them.
    """
    facts, task = module.facts, module.federation.terms.task
    if facts.columns is None or task.closed_form is None or task.target.name not in TARGETS:
        return None
    units, origin = _units(facts)
    columns, classes = [*facts.columns.input_names, "(intercept)"], facts.class_names or range(task.target.num_classes)
    tables = _common(module, units, origin, columns)
    for name, population in populations.items():
        if population is None or name not in module.client_scores:
            continue
        for position, state in _served(module, population, seen=name == "seen"):
            found = _linear(module, state, len(columns) - 1)
            if found is None:
                return None
            whose = {"client": population.names[position], "client_id": position + population.train.first_id}
            for output, values in enumerate(found, 1):
                rows: dict[str, Any] = {"population": name, **whose, "column": columns}
                rows |= {"class": classes[output]} if len(found) > 1 else {}
                rows |= _with_errors(units @ values + origin, getattr(state, "covariance", None), units)
                tables.append(pd.DataFrame(rows))
    return pd.concat(tables, ignore_index=True).astype({"client_id": "Int64"})


def _units(facts: TrainingFacts) -> tuple[np.ndarray, np.ndarray]:
    """Matrix [P, P] and vector [P] that take slopes and intercept of standardised numbers to those of the table."""
    assert facts.columns is not None
    width = len(facts.columns.input_names)
    mean, std = facts.normalisation or (np.zeros(width), np.ones(width))
    shift, scale = facts.label_scale or (0.0, 1.0)
    units = np.diag(1 / np.array([*std, 1.0]))
    units[-1, :-1] = -np.array(mean) / std
    return scale * units, np.append(np.zeros(width), shift)


def _served(module: FederatedModule, population: Population, *, seen: bool) -> Iterator[tuple[int, Tree]]:
    """Positions of the measured clients, and their states as they are served."""
    federation = module.federation
    train = population.train.to(federation.server.device)
    for positions in population.positions.split(CLIENTS_AT_ONCE):
        ids = (positions + train.first_id).to(federation.server.device)
        states = serving.serve(federation, ids, train, seen=seen)
        for row, position in enumerate(positions.tolist()):
            yield position, tree.index(states, row)


def _linear(module: FederatedModule, state: Tree, width: int) -> np.ndarray | None:
    """Slopes and intercept of a client's predictions, [outputs, width + 1]; None if they are not linear."""
    predict, task = serving.prediction_of(module.federation, state)
    x = torch.stack([torch.zeros(width), torch.ones(width)]).requires_grad_()
    with torch.enable_grad():
        found = predict(task, x)
        found = found if task.target.continuous else found[:, 1:] - found[:, :1]
        slopes = torch.stack([torch.autograd.grad(one, x, retain_graph=True)[0] for one in found.sum(0)])
    if (slopes[:, 0] - slopes[:, 1]).abs().max() > TOLERANCE * slopes.abs().max():
        return None
    values: np.ndarray = torch.cat([slopes[:, 0], found[:1].T], 1).double().detach().numpy()
    return values


def _with_errors(values: np.ndarray, covariance: Tensor | None, units: np.ndarray) -> dict[str, Any]:
    """Coefficients in the units of the table, with standard errors and intervals if their covariance is known."""
    if covariance is None:
        return {"coefficient": values}
    errors = np.sqrt(np.diag(units @ covariance.double().cpu().numpy() @ units.T))
    ends = {"low": values - HALF_WIDTH * errors, "high": values + HALF_WIDTH * errors}
    return {"coefficient": values, "standard_error": errors, **ends}


def _learned(module: FederatedModule) -> Any:
    """What a mixed model learned; None for other algorithms."""
    ask = getattr(module.algorithm, "learned", None)
    return None if ask is None else ask(module.federation.terms, module.federation.shared)


def _common(module: FederatedModule, units: np.ndarray, origin: np.ndarray, columns: list[str]) -> list[pd.DataFrame]:
    """Mean of the clients' coefficients, their deviation over clients, and that of the residuals; [] if unknown."""
    if (learned := _learned(module)) is None:
        return []
    mean, tau2, group, noise, errors = (
        one.double().cpu().numpy() for one in (learned.mean, learned.tau2, learned.group, learned.noise, learned.errors)
    )
    common = _with_errors(units @ mean + origin, learned.covariance, units)
    share = np.zeros((len(columns) + 1, len(errors)))  # of τ² and σ² in the variances of coefficients and residuals
    share[:-1, :-1], share[-1, -1] = np.square(units) @ group, units[-1, -1] ** 2
    found = np.sqrt(share @ np.append(tau2, noise))
    errors = np.sqrt(np.einsum("pg,gh,ph->p", share, np.nan_to_num(errors), share))  # of the variances
    errors = np.where(found > 0, errors / (2 * np.where(found > 0, found, 1)), np.nan)
    deviation = {"column": [*columns, "(residual)"], "coefficient": found, "standard_error": errors}
    rows = len(found) - (not module.target.continuous)  # two classes have no residuals
    return [
        pd.DataFrame({"population": "common"} | NO_CLIENT | {"column": columns} | common),
        pd.DataFrame({"population": "deviation"} | NO_CLIENT | deviation)[:rows],
    ]
