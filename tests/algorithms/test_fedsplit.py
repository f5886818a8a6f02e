import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, flat, make_clients, run_rounds, two_quadratics
from references.fedsplit_numpy import fedsplit_round
from references.logistic import predict

from lit_fed.algorithms import FedSplit
from lit_fed.core.local_solver import LocalSolver

SIZES = [5, 2, 8]


@pytest.mark.parametrize("options", [None, {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05}], ids=["exact", "sgd"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_rounds_are_those_of_the_reference(options, weighting, client_trainer):
    train = make_clients(SIZES)
    solver = LocalSolver(local_epochs=2, **(options or {}))
    fields = {"solver": solver, "trainer": client_trainer, "batch_size": 2, "weighting": weighting}
    federation = Federation(FedSplit(0.7, "inexact" if options else "exact"), train, **fields)
    x = federation.weights[0].numpy()
    zs = [x] * 3
    for _ in range(3):
        x, zs = fedsplit_round(
            x, zs, as_arrays(train), batch_orders(federation), rho=0.7, solver=options,
            weights=SIZES if weighting == "samples" else None,
        )  # fmt: skip
        federation.round()
        np.testing.assert_allclose(federation.weights[0].numpy(), x, rtol=0, atol=1e-9)
        np.testing.assert_allclose(flat(federation.states.models.parameters).numpy(), np.stack(zs), rtol=0, atol=1e-9)
    for found, (features, _) in zip(federation.predictions(), as_arrays(train), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(x, features), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("local_solve", "rounds"), [("exact", 20), ("inexact", 25)])
def test_it_ends_at_the_minimiser_of_two_quadratics(local_solve, rounds, newton_step):
    """½w² and ½·3(w − 4)², whose sum is least at 3; z_j is x − s·∇f_j(x) there."""
    solver = LocalSolver(lr=0.15, local_steps=4)
    federation = run_rounds(FedSplit(2.0, local_solve), rounds=rounds, **two_quadratics(solver=solver))
    assert float(federation.weights) == pytest.approx(3, abs=1e-6)
    assert flat(federation.states.models.parameters).flatten().tolist() == pytest.approx([1.5, 4.5], abs=1e-5)
