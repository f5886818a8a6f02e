from federated_round import batch_orders, distance, flat
from few_classes import COHORTS, HEAVY, close, started, unseen_samples
from references.moon_numpy import moon_round

from lit_fed.algorithms import MOON


def test_rounds_are_those_of_the_reference(client_trainer):
    """The last own model is the one that the client itself ended with; that of a client in no round is the initial."""
    federation, clients = started(MOON(0.9, 0.4), client_trainer)
    w = federation.weights[0].numpy()
    previous = [w] * 3
    for cohort in [[0, 1], *COHORTS]:
        orders = batch_orders(federation)
        w, previous = moon_round(w, previous, clients, orders, mu=0.9, tau=0.4, present=cohort, **HEAVY)
        federation.round(cohort)
        close(federation.weights, [w])
        close(flat(federation.states), previous)


def test_unseen_clients_are_served_the_global_model():
    federation, _ = started(MOON(0.9))
    federation.round()
    outputs = federation.task.outputs(federation.shared.models, unseen_samples().x)[:, 0]
    found = federation.predictions(unseen_samples(), seen=False)
    assert distance(found, list(outputs.log_softmax(-1).split([6, 3]))) < 1e-14
