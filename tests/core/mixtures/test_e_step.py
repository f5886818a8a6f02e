import pytest
import torch
from federated_round import distance, make_context, same_bits

from lit_fed.core import tree
from lit_fed.core.mixtures.e_step import average_chosen, batch_weights, choose
from lit_fed.core.reduce import Accumulator
from lit_fed.core.types import Batch, Chosen, Message, ModelState


def models(values, counters, dtype=torch.float64):
    """Models with one parameter [M, 2], one running mean [M, 1] and one counter [M]."""
    values = torch.tensor(values, dtype=dtype)
    parameters = {"w": torch.stack([values, -values], dim=1)}
    return ModelState(parameters, {"mean": values[:, None] + 1, "count": torch.tensor(counters)})


SERVER = models([10.0, 20.0, 30.0], [1, 2, 3])
CLIENTS = [models([1.0, 2.0, 3.0], [4, 5, 6]), models([4.0, 5.0, 6.0], [7, 8, 9]), models([0.0, 1.0, 5.0], [5, 5, 5])]
TAKEN = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0]])
WEIGHTS = torch.tensor([1.0, 3.0, 6.0], dtype=torch.float64)


def reduced(clients=CLIENTS, taken=TAKEN, weights=WEIGHTS):
    accumulator = Accumulator("sum")
    values = tree.stack([choose(one, row) for one, row in zip(clients, taken, strict=True)])
    bits = torch.zeros(len(weights), dtype=torch.float64)
    accumulator.add(Message(values, weights, bits, bits), torch.ones_like(weights), {})
    return accumulator.reduce(torch.arange(len(weights)), [len(weights)])[0]


# ---------------------------------------------------------------------- what clients send
def test_a_message_holds_the_chosen_models_and_zeros():
    sent = choose(CLIENTS[0], torch.tensor([0, 1, 0]))
    assert isinstance(sent, Chosen)
    assert sent.models.parameters["w"].tolist() == [[0, 0], [2, -2], [0, 0]]
    assert sent.models.buffers["mean"].tolist() == [[0], [3], [0]]
    assert sent.models.buffers["count"].tolist() == [0, 5, 0]
    assert sent.models.buffers["count"].dtype == torch.int64
    assert sent.taken.tolist() == [0, 1, 0]
    assert sent.taken.dtype == torch.float64


def test_one_model_may_stand_for_any_of_them():
    own = tree.index(CLIENTS[0], slice(2, 3))
    sent = choose(own, torch.tensor([0.0, 1.0, 0.0, 0.0]))
    assert sent.models.parameters["w"].tolist() == [[0, 0], [3, -3], [0, 0], [0, 0]]
    assert sent.models.buffers["count"].tolist() == [0, 6, 0, 0]


def test_types_of_the_models_stay():
    sent = choose(models([1.0, 2.0], [1, 2], torch.float32), torch.ones(2, dtype=torch.float64))
    assert sent.models.parameters["w"].dtype == torch.float32


# ---------------------------------------------------------------------- what the server makes of it
def test_each_model_is_averaged_over_its_senders():
    found = average_chosen(make_context(), SERVER, reduced())
    first, second = (1 * 1 + 3 * 4) / 4, (3 * 5 + 6 * 1) / 9
    expected = torch.tensor([[first, -first], [second, -second], [30, -30]], dtype=torch.float64)
    assert distance(found.parameters["w"], expected) < 1e-14
    assert distance(found.buffers["mean"][:, 0], expected[:, 0] + 1) < 1e-14
    assert found.buffers["count"].tolist() == [round((4 + 3 * 7) / 4), round((3 * 8 + 6 * 5) / 9), 3]
    assert found.buffers["count"].dtype == torch.int64


@pytest.mark.parametrize(("weighting", "total"), [("samples", 20), ("uniform", 16)])
def test_stale_fill_counts_all_others_with_the_model_of_the_server(weighting, total):
    ctx = make_context(aggregation="stale_fill", weighting=weighting, total_samples=20, num_clients=16)
    found = average_chosen(ctx, SERVER, reduced())
    first, second = (1 * 1 + 3 * 4 + (total - 4) * 10) / total, (3 * 5 + 6 * 1 + (total - 9) * 20) / total
    assert distance(found.parameters["w"][:, 0], torch.tensor([first, second, 30.0], dtype=torch.float64)) < 1e-13
    assert found.buffers["count"].tolist() == [
        round((4 + 3 * 7 + (total - 4) * 1) / total),
        round((3 * 8 + 6 * 5 + (total - 9) * 2) / total),
        3,
    ]


@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
def test_what_nobody_sent_stays_bit_for_bit(aggregation):
    start = models([0.1, 0.2, 0.3], [1, 2, 3], torch.float32)
    clients = [models([1.0, 2.0, 3.0], [4, 5, 6], torch.float32)] * 3
    ctx = make_context(aggregation=aggregation)
    found = average_chosen(ctx, start, reduced(clients, torch.tensor([[1, 0, 0]] * 3)))
    assert same_bits(tree.index(found, slice(1, 3)), tree.index(start, slice(1, 3)))
    assert [leaf.dtype for leaf in tree.leaves(found)] == [leaf.dtype for leaf in tree.leaves(start)]
    assert distance(tree.index(found, 0), tree.index(start, 0)) > 0.01


def test_the_average_of_all_models_is_the_plain_one():
    found = average_chosen(make_context(), SERVER, reduced(taken=torch.ones(3, 3)))
    shares = (WEIGHTS / WEIGHTS.sum()).tolist()
    plain = sum(share * one.parameters["w"] for share, one in zip(shares, CLIENTS, strict=True))
    assert distance(found.parameters["w"], plain) < 1e-14


def test_a_client_without_samples_sends_without_effect():
    weights = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64)
    found = average_chosen(
        make_context(), SERVER, reduced(taken=torch.tensor([[1, 0, 0], [1, 0, 0], [0, 1, 1]]), weights=weights)
    )
    assert torch.equal(found.parameters["w"][1:], SERVER.parameters["w"][1:])


# ---------------------------------------------------------------------- rows of a batch
def test_rows_of_q_for_a_batch():
    q = torch.arange(10.0).view(5, 2)
    index, mask = torch.tensor([3, 0, 3]), torch.ones(3)
    assert torch.equal(batch_weights(q, Batch(index, index, index, mask)), q[index])
    own = torch.tensor([[3, 0, 1], [4, 2, 2]])  # a batch for each model
    found = batch_weights(q, Batch(own, own, own, torch.ones(2, 3)))
    assert torch.equal(found, torch.stack([q[own[0], 0], q[own[1], 1]], dim=1))
