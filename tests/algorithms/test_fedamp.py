import numpy as np
import pytest
import torch
from federated_round import Federation, as_arrays, batch_orders, flat, make_clients, run_rounds, same_bits
from references.fedamp_numpy import attraction, by_cosines, fedamp_round
from references.logistic import predict

from lit_fed.algorithms import FedAMP, HeurFedAMP, Local
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError

SIZES = [5, 2, 8]
CASES = {
    "amp": (FedAMP(0.3, 2.0, 0.7), lambda ws: attraction(ws, 2.0, 0.7), 0.3 / 0.7),
    "largest step": (FedAMP(0.3, 4.0), lambda ws: attraction(ws, 4.0, 2.0), 0.15),
    "heuristic": (HeurFedAMP(0.4, 3.0, 0.2), lambda ws: by_cosines(ws, 3.0, 0.2), 0.4),
}


@pytest.mark.parametrize("case", CASES)
def test_rounds_are_those_of_the_reference(case, client_trainer):
    """All clients and some; an absent one keeps its model, which counts for the others."""
    algorithm, clouds_of, pull = CASES[case]
    solver = {"lr": 0.3, "momentum": 0.5, "weight_decay": 0.05}
    federation = Federation(
        algorithm,
        make_clients(SIZES),
        solver=LocalSolver(local_epochs=2, **solver),
        trainer=client_trainer,
        batch_size=2,
    )
    ws = list(flat(federation.states.models.parameters).numpy())
    for cohort in ([0, 1, 2], [2, 0], [1, 2], [0, 1, 2]):
        clouds = clouds_of(ws)
        ws = fedamp_round(
            ws, clouds, as_arrays(federation.train), batch_orders(federation), pull=pull, present=cohort, **solver
        )
        federation.round(cohort)
        np.testing.assert_allclose(flat(federation.states.models.parameters).numpy(), np.stack(ws), rtol=0, atol=1e-10)
    assert np.abs(ws[0] - ws[1]).max() > 0.1
    torch.testing.assert_close(federation.shared.attention.sum(1), torch.ones(3, dtype=torch.float64))
    for found, own, (x, _) in zip(federation.predictions(), ws, as_arrays(federation.train), strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(own, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("algorithm", [FedAMP(0.3, 2.0, 0.7), HeurFedAMP(0.3 / 0.7)], ids=str)
def test_an_unseen_client_is_pulled_towards_the_mean(algorithm, client_trainer):
    unseen = make_clients([6, 3], seed=2, first_id=3)
    solver = LocalSolver(local_epochs=2)
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES), rounds=2, solver=solver)
    mean = flat(federation.states.models.parameters).mean(0).numpy()
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen)
    expected = fedamp_round([mean] * 2, [mean] * 2, as_arrays(unseen), orders, pull=0.3 / 0.7, present=[0, 1], lr=0.1)
    found = flat(federation.serve(unseen, seen=False).models.parameters)
    np.testing.assert_allclose(found.numpy(), np.stack(expected), rtol=0, atol=1e-10)


def test_without_a_pull_it_is_local(client_trainer):
    for algorithm in (FedAMP(0.0), HeurFedAMP(0.0)):
        ours, alone = (run_rounds(one, client_trainer, make_clients(SIZES)) for one in (algorithm, Local()))
        assert same_bits(ours.states.models, alone.states.models)


def test_far_models_do_not_attract_each_other():
    near, far = torch.zeros(2, 1, 3), torch.full((1, 1, 3), 50.0)
    xi = FedAMP(sigma=2.0).attention({"w": torch.cat([near, far])})
    torch.testing.assert_close(xi, torch.tensor([[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]], dtype=torch.float64))


def test_a_client_alone_is_its_own_cloud():
    for algorithm in (FedAMP(), HeurFedAMP()):
        federation = run_rounds(algorithm, None, make_clients([5]), rounds=1)
        assert same_bits(tree.index(federation.shared.peers.each, 0), tree.index(federation.states.models, 0))
        assert federation.shared.attention.tolist() == [[1.0]]


def test_a_step_with_negative_weights_is_refused():
    assert Federation(FedAMP(sigma=3.0, step_size=1.5), make_clients(SIZES))
    with pytest.raises(ConfigError, match=r"step_size is 2\.0, .*; give at most sigma/\(T − 1\) = 1\.5, or null"):
        Federation(FedAMP(sigma=3.0, step_size=2.0), make_clients(SIZES))
