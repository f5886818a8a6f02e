import pytest
from federated_round import POSITIONS, Tagger, as_arrays, distance, make_task
from few_classes import close, samples, started
from references.knn_per_numpy import best_weight, predicted

from lit_fed.algorithms import FedAvg, KNNPer
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


def test_sequences_are_refused():
    with pytest.raises(ConfigError, match="KNNPer compares samples, and these are sequences"):
        started(KNNPer(), task=make_task(POSITIONS, network=Tagger))
