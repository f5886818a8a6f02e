import torch
from federated_round import as_arrays, batch_orders, flat
from few_classes import HEAVY, close, samples, started, unseen_samples
from references.fedcp_numpy import HEAD, discrepancy, fedcp_round, predicted, train
from references.two_layers import BODY, log_softmax

from lit_fed.algorithms import FedCP, fedcp
from lit_fed.core.types import LocalWork


def served_as(federation, data, seen, heads, sent):
    for found, phi, (x, _) in zip(federation.predictions(data, seen=seen), heads, as_arrays(data), strict=True):
        close(found, log_softmax(predicted(sent, phi, x)))


def test_rounds_are_those_of_the_reference(client_trainer):
    federation, clients = started(FedCP(3.0), client_trainer)
    sent = federation.weights[0].numpy()
    heads, settings = [sent[BODY : BODY + HEAD]] * 3, {"weight": 3.0} | HEAVY
    for cohort in ([0], [1, 0]):
        orders = batch_orders(federation)
        sent, heads = fedcp_round(sent, heads, clients, orders, present=cohort, **settings)
        federation.round(cohort)
        close(federation.weights, [sent])
        close(flat(federation.states), heads)
    served_as(federation, samples([4, 2, 3], seed=1), True, heads, sent)
    orders = batch_orders(federation, "adapt", LocalWork(epochs=1), unseen_samples())
    unseen = [(x, y.astype(int)) for x, y in as_arrays(unseen_samples())]
    start = sent[BODY : BODY + HEAD]
    fitted = [
        train(sent, start, x, y, own, rests=True, **settings)[BODY : BODY + HEAD]
        for own, (x, y) in zip(orders, unseen, strict=True)
    ]
    close(flat(federation.serve(unseen_samples(), seen=False)), fitted)
    served_as(federation, unseen_samples(), False, fitted, sent)


def test_the_discrepancy_is_that_of_samples_and_positions():
    x, y = torch.randn(2, 4, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.tensor([1.0, 1.0, 0.0, 1.0])
    kept = [one[mask > 0].reshape(-1, 5).numpy() for one in (x, y)]
    close(fedcp.discrepancy(x, y, mask), discrepancy(*kept))
