from federated_round import batch_orders, distance, make_clients, run_rounds
from few_classes import COHORTS, HEAVY, close, started
from references.fedntd_numpy import fedntd_round

from lit_fed.algorithms import FedAvg, FedNTD


def test_rounds_are_those_of_the_reference(client_trainer):
    federation, clients = started(FedNTD(0.8, 2.0), client_trainer)
    w = federation.weights[0].numpy()
    for cohort in COHORTS:
        w = fedntd_round(w, clients, batch_orders(federation), beta=0.8, tau=2.0, present=cohort, **HEAVY)
        federation.round(cohort)
        close(federation.weights, [w])


def test_of_two_classes_there_is_nothing_to_distil():
    runs = (run_rounds(one, None, make_clients([5, 2])) for one in (FedNTD(3.0), FedAvg()))
    one, other = (run.shared for run in runs)
    assert distance(one, other) < 1e-14
