from itertools import pairwise

import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, flat, make_clients, run_rounds, two_quadratics
from references.fedpd_numpy import fedpd_round
from references.logistic import predict

from lit_fed.algorithms import FedPD
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import generator

SIZES = [5, 2, 8]


def coin(round_idx, p, seed=0):
    return generator(seed, round_idx, 0, "fedpd").random() >= p


@pytest.mark.parametrize("options", [None, {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05}], ids=["exact", "sgd"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_rounds_are_those_of_the_reference(options, weighting, client_trainer):
    train, solver = make_clients(SIZES), LocalSolver(local_epochs=2, **(options or {}))
    fields = {"solver": solver, "trainer": client_trainer, "batch_size": 2, "weighting": weighting}
    federation = Federation(FedPD(0.8, "inexact" if options else "exact", 0.5), train, **fields)
    common = federation.weights[0].numpy()
    xs, duals, centres, before, coins = [common] * 3, [0 * common] * 3, [common] * 3, True, []
    for round_idx in range(5):
        now = coin(round_idx, 0.5)
        phase = f"{'train' if now else 'local'}/{'common' if before else 'own'}"
        xs, duals, centres = fedpd_round(
            xs, duals, centres, as_arrays(train), batch_orders(federation, phase), eta=1 / 0.8, communicates=now,
            weights=SIZES if weighting == "samples" else None, solver=options,
        )  # fmt: skip
        federation.round()
        common, before = centres[0] if now else common, now
        coins.append(now)
        np.testing.assert_allclose(federation.weights[0].numpy(), common, rtol=0, atol=1e-9)
        np.testing.assert_allclose(flat(federation.states.models.parameters).numpy(), np.stack(xs), rtol=0, atol=1e-9)
        np.testing.assert_allclose(flat(federation.states.dual).numpy(), np.stack(duals), rtol=0, atol=1e-9)
        assert federation.bits.tolist() == [3 * 5 * 64 * now] * 2
    assert {(True, False), (False, True)} <= set(pairwise(coins))
    for found, (features, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(common, features), rtol=0, atol=1e-9)


@pytest.mark.parametrize("local_solve", ["exact", "inexact"])
def test_it_ends_at_the_minimiser_of_two_quadratics(local_solve, newton_step):
    """½w² and ½·3(w − 4)², whose sum is least at 3; λ_i is −∇f_i there."""
    solver = LocalSolver(lr=0.15, local_steps=4)
    federation = run_rounds(FedPD(1.0, local_solve), rounds=40, **two_quadratics(solver=solver))
    assert float(federation.weights) == pytest.approx(3, abs=1e-5)
    assert flat(federation.states.dual).flatten().tolist() == pytest.approx([-3, 3], abs=1e-4)
