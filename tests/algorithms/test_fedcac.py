import numpy as np
import torch
from federated_round import Federation, as_arrays, batch_orders, distance, flat, make_clients, run_rounds
from references.fedcac_numpy import fedcac_round
from references.logistic import predict, sgd

from lit_fed.algorithms import FedAvg, FedCAC
from lit_fed.algorithms.fedcac import CriticalModel, critical_parameters
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import LocalWork, ModelState, Reduced

SIZES = [5, 2, 8, 4]


def test_rounds_are_those_of_the_reference(client_trainer):
    """All clients, some and one; β = 4 rounds, after which no critical parameters are shared."""
    solver = {"lr": 0.4, "momentum": 0.5}
    fields = {"solver": LocalSolver(local_epochs=2, **solver), "trainer": client_trainer, "batch_size": 2}
    federation = Federation(FedCAC(0.5, 4), make_clients(SIZES), **fields)
    starts, clients, served = [federation.task.init(1, 0)] * 4, as_arrays(federation.train), {}
    starts = [flat(starts[0].parameters)[0].numpy()] * 4
    for t, cohort in enumerate(([0, 1, 2, 3], [0, 2, 3], [0, 1, 2, 3], [1], [0, 1, 2, 3], [0, 1, 2, 3]), 1):
        common, starts, trained = fedcac_round(
            starts, clients, batch_orders(federation), t, tau=0.5, beta=4, present=cohort, **solver
        )
        served |= trained
        federation.round(cohort)
        np.testing.assert_allclose(flat(federation.shared.common.parameters)[0].numpy(), common, rtol=0, atol=1e-10)
        found = flat(federation.shared.peers.parameters).numpy()
        np.testing.assert_allclose(found, np.stack(starts), rtol=0, atol=1e-10)
    for i, (found, (x, _)) in enumerate(zip(federation.predictions(), clients, strict=True)):
        np.testing.assert_allclose(found.exp().numpy(), predict(served[i], x), rtol=0, atol=1e-10)


def test_without_critical_parameters_it_is_fedavg(client_trainer):
    ours, plain = (run_rounds(one, client_trainer, make_clients(SIZES)) for one in (FedCAC(0.0), FedAvg()))
    assert distance(ours.shared.common, plain.shared.models) < 1e-14


def test_what_did_not_move_is_not_critical():
    same = {"w": torch.ones(1, 6)}
    assert not critical_parameters(same, same, 0.5)["w"].any()
    moved = {"w": torch.tensor([[1.0, 1.0, 1.0, 1.0, 1.0, 2.0]])}
    assert critical_parameters(same, moved, 0.5)["w"].tolist() == [[False] * 5 + [True]]


def test_each_client_takes_the_mean_of_its_own_collaborators():
    """In a chain 0 - 1 - 2 the one between has two, the others one each."""
    federation = Federation(FedCAC(0.5, 100), make_clients([2, 2, 2]))
    w, chain = (
        torch.tensor([[1.0], [2.0], [6.0]], dtype=torch.float64).expand(3, 5),
        torch.tensor([[1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 0]], dtype=torch.bool),
    )
    like = federation.task.init(1, 0).parameters
    sent = [dict(zip(like, one.split([4, 1], 1), strict=True)) for one in (w, chain)]
    sent = [{name: leaf.reshape(3, *like[name].shape) for name, leaf in one.items()} for one in sent]
    reduced = Reduced(CriticalModel(ModelState(sent[0], {}), sent[1]), torch.ones(3, dtype=torch.float64))
    algorithm, ctx = federation.algorithm, federation.context("train")
    new = algorithm.server_step(ctx, federation.shared, reduced, torch.arange(3))
    means, critical = torch.tensor([[1.5], [3.0], [4.0]], dtype=torch.float64), flat(sent[1]).bool()
    assert torch.allclose(flat(new.peers.parameters), torch.where(critical, means, 3.0), atol=1e-12)


def test_an_unseen_client_trains_from_the_mean(client_trainer):
    unseen = make_clients([6, 3], seed=2, first_id=4)
    federation = run_rounds(FedCAC(unseen_epochs=2), client_trainer, make_clients(SIZES), rounds=2)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen)
    theta = flat(federation.shared.common.parameters)[0].numpy()
    found = flat(federation.serve(unseen, seen=False).models.parameters)
    for own, order, (x, y) in zip(found, orders, as_arrays(unseen), strict=True):
        np.testing.assert_allclose(own.numpy(), sgd(theta, x, y, order, 0.1), rtol=0, atol=1e-10)


def test_bytes_are_a_model_each_way_and_a_bit_for_each_parameter():
    bits = run_rounds(FedCAC(), None, make_clients(SIZES), rounds=1).bits
    assert bits.tolist() == [4 * (5 * 64 + 5), 4 * 5 * 64]
