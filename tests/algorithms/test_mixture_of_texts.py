"""Mixtures of whole texts, for every algorithm with an E-step; and how many E-steps go before a client is served."""

import dataclasses

import numpy as np
import pytest
import torch
from federated_round import POSITIONS, Tagger, distance, make_clients, make_task, run_rounds
from references.mixture_of_texts_numpy import expectation

from lit_fed.algorithms import DecentralizedSurrogate, DFedEM, FedEM, FedeRiCo, OfficialFedEM, SurrogateOptimization
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.known_surrogates import MixtureSurrogate
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError

STILL = LocalSolver(lr=0.0)
"""Components that do not move, so that nothing but the E-step is seen."""


def weights_of(states):
    return states.local.mixture if hasattr(states, "local") else states.mixture


def with_rule(cls, rule, **options):
    """The algorithm with this option, which stands in the surrogate where there is one."""
    if "surrogate" in {field.name for field in dataclasses.fields(cls)}:
        return cls(MixtureSurrogate(3, rule), **options)
    return cls(position_loss=rule, **options)


def texts(first_id=0):
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randint(high, (12, 4), generator=rng) for high in (7, 3))
    return Split(x, y, torch.tensor([0, 7, 8, 12]), first_id)


def log_probs(task, models, data):
    return torch.log_softmax(task.outputs(models, data.x), -1).numpy()


@pytest.mark.parametrize("rule", ["mean", "sum"])
@pytest.mark.parametrize("cls", [FedEM, DFedEM, SurrogateOptimization, DecentralizedSurrogate])
def test_texts_are_weighed_as_in_the_reference(cls, rule, client_trainer):
    train, task = texts(), make_task(POSITIONS, network=Tagger)
    options = {"task": task, "solver": STILL, "rounds": 1, "weighting": "uniform"}
    federation = run_rounds(with_rule(cls, rule), client_trainer, train, **options)
    losses = []
    for row, found in enumerate(weights_of(federation.states)):
        data = train.client(row)
        given = log_probs(task, task.init(3, 0), data), data.y.numpy(), np.full(3, 1 / 3)
        _, expected, nll = expectation(*given, whole=rule == "sum")
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)
        losses.append(nll)
    assert federation.metrics["loss"] == pytest.approx(np.mean(losses), abs=1e-12)


@pytest.mark.parametrize("rule", ["mean", "sum"])
def test_texts_are_weighed_as_in_the_reference_by_federico(rule, client_trainer):
    """All clients are asked for their models, and the samples of a client are from one of them."""
    train, task = texts(), make_task(POSITIONS, network=Tagger)
    algorithm = FedeRiCo(2, tracking="accumulated", position_loss=rule)
    federation = run_rounds(algorithm, client_trainer, train, rounds=1, task=task, solver=STILL)
    for row, found in enumerate(federation.states.weights):
        data = train.client(row)
        chosen = log_probs(task, task.init(3, 0), data)
        picked = np.take_along_axis(chosen, data.y.numpy()[:, None, :, None], axis=3)[..., 0]
        total = picked.sum((0, 2)) if rule == "sum" else picked.mean(2).sum(0)
        expected = np.exp(total) / np.exp(total).sum()
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cls", [FedEM, DFedEM, SurrogateOptimization, DecentralizedSurrogate, FedeRiCo])
def test_samples_without_positions_know_no_difference(cls):
    one, other = (run_rounds(with_rule(cls, rule), train=make_clients([5, 3])) for rule in ("mean", "sum"))
    assert distance(one.states, other.states) == 0


@pytest.mark.parametrize("cls", [FedEM, DFedEM, SurrogateOptimization, FedeRiCo])
def test_other_rules_are_refused(cls):
    with pytest.raises(ConfigError, match=r"position_loss is product; give mean or sum"):
        with_rule(cls, "product")


# ---------------------------------------------------------------------- before a client is served
def test_a_client_of_the_training_is_refreshed_once_whatever_unseen_clients_take(client_trainer):
    train, unseen = make_clients([5, 2, 8]), make_clients([6], seed=2, first_id=3)
    several, one = (run_rounds(OfficialFedEM(em_steps=steps), client_trainer, train) for steps in (5, 1))
    assert distance(several.serve(), one.serve()) == 0
    assert distance(several.serve(), several.states) > 1e-4
    assert distance(several.serve(unseen, seen=False), one.serve(unseen, seen=False)) > 1e-3
