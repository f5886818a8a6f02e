import numpy as np
import pytest
import torch
from federated_round import Federation, as_arrays, batch_orders, make_clients, run_rounds
from references.fl_hc_numpy import METRICS, average_round, clusters
from references.logistic import predict, sgd

from lit_fed.algorithms import FLHC, FedAvg
from lit_fed.algorithms.fl_hc import _distances, agglomerate
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError

SIZES = [5, 2, 8, 4]


@pytest.mark.parametrize("metric", METRICS)
def test_rounds_are_those_of_the_reference(metric, client_trainer):
    """A round of FedAvg with some clients, the clustering with all, and rounds within clusters."""
    solver, threshold = {"lr": 0.4, "momentum": 0.5}, {"euclidean": 1.2, "manhattan": 2.0, "cosine": 0.5}[metric]
    fields = {"solver": LocalSolver(local_epochs=2, **solver), "trainer": client_trainer, "batch_size": 2}
    federation = Federation(FLHC(1, threshold, "average", metric, 3), make_clients(SIZES), **fields)
    clients = as_arrays(federation.train)
    models, labels = [federation.weights[0].numpy()] * 3, np.zeros(4, dtype=int)
    for round_idx, cohort in enumerate(([0, 1, 3], [0, 2, 3], [1, 2])):
        if round_idx == 1:
            orders, joint = batch_orders(federation, "cluster"), models[0]
            ways = np.stack([sgd(joint, *clients[i], orders[i], **solver) - joint for i in range(4)])
            labels, models = clusters(ways, "average", metric, threshold, 3), [joint] * 3
            assert len(set(labels)) in (2, 3)
        models = average_round(models, labels, clients, batch_orders(federation), present=cohort, **solver)
        federation.round(cohort)
        assert federation.shared.cluster.tolist() == labels.tolist()
        found = federation.weights[np.unique(labels)].numpy()
        np.testing.assert_allclose(found, np.stack(models)[np.unique(labels)], rtol=0, atol=1e-10)
    for found, label, (x, _) in zip(federation.predictions(), labels, clients, strict=True):
        np.testing.assert_allclose(found.exp().numpy(), predict(models[label], x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("linkage", ["single", "complete", "average", "ward"])
@pytest.mark.parametrize("most", [2, 9])
def test_clusters_are_those_of_the_reference(linkage, most):
    points = np.random.default_rng(3).normal(size=(9, 3))
    leaves = {"a": torch.from_numpy(points[:, :2]), "b": torch.from_numpy(points[:, 2:])}
    for metric in METRICS if linkage != "ward" else ["euclidean"]:
        distances, sizes = _distances(leaves, metric), set()
        for threshold in (0.0, 0.3, 0.9, 1.6, 2.5, 9.0):
            found = agglomerate(distances, linkage, threshold, most).tolist()
            assert found == clusters(points, linkage, metric, threshold, most).tolist()
            sizes.add(max(found))
        assert len(sizes) > 1


def test_ahead_of_the_clustering_it_is_fedavg(client_trainer):
    ours, plain = (run_rounds(one, client_trainer, make_clients(SIZES), rounds=2) for one in (FLHC(5), FedAvg()))
    torch.testing.assert_close(ours.weights[:1], plain.weights, rtol=0, atol=1e-14)


def test_opposite_clients_are_parted_and_unseen_ones_find_theirs():
    """Two kinds of clients with opposite labels."""
    train = make_clients([20, 20, 20, 20], seed=1)
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64).repeat_interleave(20)
    train.y = (train.x[:, 0] * sign > 0).long()
    options = {"rounds": 4, "solver": LocalSolver(lr=1.0, local_epochs=5)}
    federation = run_rounds(FLHC(1, 0.5, "average", "cosine"), None, train, **options)
    assert federation.shared.cluster.tolist() == [0, 1, 0, 1]
    unseen = make_clients([20, 20], seed=5, first_id=4)
    unseen.y = (unseen.x[:, 0] * sign[20:60] > 0).long()
    assert federation.serve(unseen, seen=False).mixture.argmax(1).tolist() == [1, 0]


def test_one_client_and_no_threshold():
    assert run_rounds(FLHC(0), None, make_clients([5]), rounds=1).shared.cluster.tolist() == [0]
    all_apart = run_rounds(FLHC(0, 0.0), None, make_clients(SIZES), rounds=1)
    assert all_apart.shared.cluster.tolist() == [0, 1, 2, 3]


def test_ward_needs_euclidean_distances():
    with pytest.raises(ConfigError, match="linkage is ward; give single, complete or average, or metric euclidean"):
        FLHC(metric="cosine")
