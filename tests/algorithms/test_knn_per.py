import numpy as np
import pytest
from federated_round import POSITIONS, Tagger, as_arrays, distance, make_task
from few_classes import close, samples, started
from references.knn_per_numpy import best_weight, predicted, predicted_by_mixture
from references.two_layers import log_softmax, outputs

from lit_fed.algorithms import IFCA, SCAFFOLD, Ditto, FedAvg, FedAvgPlus, FedEM, KNNPer, OfficialFedEM
from lit_fed.errors import ConfigError


def trained(algorithm, trainer=None):
    federation, clients = started(algorithm, trainer)
    for cohort in (None, [0, 2]):
        federation.round(cohort)
    return federation, clients


@pytest.mark.parametrize("kernel", ["distance", "squared"])
@pytest.mark.parametrize("weight", [0.3, None])
def test_predictions_are_those_of_the_reference(weight, kernel, client_trainer):
    """Of clients that were in training, and of others, one of which has more samples than any of those."""
    federation, clients = trained(KNNPer(3, weight, kernel), client_trainer)
    theta, squared, chosen = federation.weights[0].numpy(), kernel == "squared", []
    test, unseen = samples([4, 2, 3], seed=1), samples([9, 3], seed=2, first_id=3)
    with_own = [*zip(as_arrays(test), clients, strict=True)]
    others = [((x, y), (x, y.astype(int))) for x, y in as_arrays(unseen)]
    served = federation.predictions(test, federation.serve()), federation.predictions(unseen, seen=False)
    for pairs, found in zip((with_own, others), served, strict=True):
        for ((x, _), (own_x, own_y)), one in zip(pairs, found, strict=True):
            kept = own_x[:8], own_y[:8]
            chosen.append(best_weight(theta, *kept, 3, squared) if weight is None else weight)
            close(one.exp(), predicted(theta, x, *kept, chosen[-1], 3, squared))
    assert (len(set(chosen)) > 1) == (weight is None)


def test_the_model_is_that_of_fedavg_and_no_datastore_leaves():
    (near, _), (plain, _) = trained(KNNPer()), trained(FedAvg())
    assert distance(near.shared, plain.shared) == 0
    assert near.bits.tolist() == plain.bits.tolist()
    assert near.states == ()
    assert distance(trained(KNNPer(knn_weight=0.0))[0].predictions(), plain.predictions()) < 1e-12


def test_a_capacity_keeps_the_first_samples():
    federation, clients = trained(KNNPer(2, 1.0, capacity=2))
    theta = federation.weights[0].numpy()
    for found, (x, y) in zip(federation.predictions(states=federation.serve()), clients, strict=True):
        close(found.exp().clamp(min=1e-12), predicted(theta, x, x[:2], y[:2], 1.0, 2, False).clip(1e-12))


@pytest.mark.parametrize("sizes", [[1, 6], [1, 1]], ids=["padded", "alone"])
def test_a_client_with_a_single_sample_has_no_neighbour_to_choose_by(sizes, client_trainer):
    """λ = 0, whatever its label: a row of padding is no other entry."""
    for label in range(3):
        train = samples(sizes)
        train.y[0] = label
        federation, _ = started(KNNPer(3, None), client_trainer, train=train)
        federation.round()
        served = federation.serve()
        assert served.weight[0] == 0
        assert (served.weight[1] == 0) == (sizes[1] == 1)
        theta, ((x, _), _) = federation.weights[0].numpy(), as_arrays(train)
        close(federation.predictions(states=served)[0].exp(), np.exp(log_softmax(outputs(theta, x))))


# ---------------------------------------------------------------------- around FedEM
@pytest.mark.parametrize("kernel", ["distance", "squared"])
def test_around_fedem_predictions_are_those_of_the_reference(kernel, client_trainer):
    """Of clients in training with their stored mixture, and of others after an E-step."""
    base = FedEM(2)
    federation, clients = trained(KNNPer(3, 0.4, kernel, base=base), client_trainer)
    plain, _ = trained(base, client_trainer)
    thetas, test, unseen = federation.weights.numpy(), samples([4, 2, 3], seed=1), samples([6, 3], seed=2, first_id=3)
    assert distance(federation.shared, plain.shared) == 0
    assert distance(federation.states, plain.states) == 0
    others = [(x, y.astype(int)) for x, y in as_arrays(unseen)]
    served = federation.serve(), federation.serve(unseen, seen=False)
    wanted = plain.states, plain.serve(unseen, seen=False)
    for states, mixtures, data, seen, own in zip(
        served, wanted, (test, unseen), (True, False), (clients, others), strict=True
    ):
        assert distance(states.mixture, mixtures.mixture) == 0
        predictions = federation.predictions(data, states, seen=seen)
        for found, pi, (x, _), (own_x, own_y) in zip(
            predictions, mixtures.mixture.numpy(), as_arrays(data), own, strict=True
        ):
            close(found.exp(), predicted_by_mixture(thetas, pi, x, own_x, own_y, 0.4, 3, kernel == "squared"))


def test_around_fedem_a_weight_is_chosen_and_a_mixture_refreshed():
    """λ by leave-one-out; one more E-step where the base asks for it; without neighbours FedEM's predictions."""
    refreshed = OfficialFedEM(2, shuffle_per_component=False)
    (near, _), (plain, _) = trained(KNNPer(2, None, base=refreshed)), trained(refreshed)
    served = near.serve()
    assert distance(served.mixture, plain.serve().mixture) == 0
    assert distance(served.mixture, plain.states.mixture) > 0
    assert len(set(served.weight.tolist())) > 1
    without = trained(KNNPer(knn_weight=0.0, base=FedEM(2)))[0].predictions()
    assert distance(without, trained(FedEM(2))[0].predictions()) < 1e-12


def test_around_other_algorithms_with_one_model():
    """SCAFFOLD, whose controls are no numbers after no steps."""
    near, _ = trained(KNNPer(2, base=SCAFFOLD()))
    assert distance(near.shared, trained(SCAFFOLD())[0].shared) == 0
    assert all(one.isfinite().all() for one in near.predictions())


def test_around_clusters_neighbours_are_those_in_the_client_s_cluster():
    federation, clients = trained(KNNPer(2, 1.0, base=IFCA(2)))
    states, thetas = federation.serve(), federation.weights.numpy()
    for found, one_hot, (x, y) in zip(
        federation.predictions(states=states), states.mixture.numpy(), clients, strict=True
    ):
        close(found.exp().clamp(min=1e-12), predicted(thetas[one_hot.argmax()], x, x, y, 1.0, 2, False).clip(1e-12))


@pytest.mark.parametrize("base", [FedAvgPlus(), Ditto()], ids=["tuned", "personal"])
def test_bases_without_shared_models_are_refused(base):
    with pytest.raises(ConfigError, match=rf"--model\.algorithm\.base is {type(base).__name__}.*; give FedEM"):
        started(KNNPer(base=base))


def test_sequences_are_refused():
    with pytest.raises(ConfigError, match="KNNPer compares samples, and these are sequences"):
        started(KNNPer(), task=make_task(POSITIONS, network=Tagger))
