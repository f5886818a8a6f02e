import pytest
import torch
from federated_round import flat, make_context, same_bits

from lit_fed.core import tree
from lit_fed.core.reduce import Accumulator, all_reduce, exact_average, gather_rows, server_average
from lit_fed.core.types import Message, ModelState, Reduced


def messages(num_clients=5, dtype=torch.float64, seed=0):
    """Messages with a value {"a": [C, 2], "b": [C, 1, 3]} and weights 1 … C."""
    rng = torch.Generator().manual_seed(seed)
    value = {name: torch.randn(num_clients, *shape, generator=rng).to(dtype) for name, shape in SHAPES.items()}
    bits = torch.full((num_clients,), 8.0, dtype=torch.float64)
    return Message(value, torch.arange(1.0, num_clients + 1, dtype=torch.float64), bits, bits * 2)


SHAPES = {"a": (2,), "b": (1, 3)}


def add_all(kind, message, multiplicity, rows, metrics=None):
    accumulator = Accumulator(kind)
    for some in rows:
        index = torch.tensor(some)
        accumulator.add(tree.index(message, index), multiplicity[index], tree.index(metrics or {}, index))
    return accumulator


def test_sum_is_the_mean_weighted_by_weight_and_multiplicity():
    message, multiplicity = messages(3), torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    metrics = {"loss": torch.tensor([1.0, 2.0, 4.0])}
    accumulator = add_all("sum", message, multiplicity, [[0, 1], [2]], metrics)
    reduced, bits, means = accumulator.reduce(torch.arange(3), [3])
    expected = (message.value["a"] * torch.tensor([[1.0], [4.0], [3.0]])).sum(0) / 8
    torch.testing.assert_close(reduced.value["a"], expected, rtol=0, atol=1e-15)
    assert reduced.value["b"].shape == (1, 3)
    assert reduced.weight.dtype == reduced.value["a"].dtype == torch.float64
    assert float(reduced.weight) == 8
    assert bits.tolist() == [24, 48]  # a client drawn twice sends once
    assert means == {"loss": (pytest.approx((1 + 2 * 4 + 4 * 3) / 8, abs=1e-15), 8)}


@pytest.mark.parametrize("kind", ["sum", "stack"])
def test_a_ghost_adds_nothing(kind):
    message, ones = messages(3), torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    metrics = {"loss": torch.tensor([1.0, 2.0, 1e6])}
    with_ghost = add_all(kind, message, ones, [[0], [1], [2]], metrics).reduce(torch.arange(2), [2])
    without = add_all(kind, message, ones, [[0], [1]], metrics).reduce(torch.arange(2), [2])
    assert same_bits(with_ghost[:2], without[:2])
    assert with_ghost[2] == without[2]


def test_stack_keeps_all_messages_in_the_order_of_the_clients():
    message = messages(4)
    multiplicity = torch.tensor([1.0, 1.0, 3.0, 1.0], dtype=torch.float64)
    accumulator = add_all("stack", message, multiplicity, [[2, 0], [3], [1]])
    reduced, bits, _ = accumulator.reduce(torch.tensor([2, 0, 3, 1]), [4])
    assert torch.equal(reduced.value["b"], message.value["b"])
    assert reduced.weight.tolist() == [1, 2, 9, 4]
    assert bits.tolist() == [32, 64]


@pytest.mark.parametrize(
    "rows", [[[0, 1, 2, 3, 4]], [[4], [3], [2], [1], [0]], [[2, 0], [1, 4, 3]], [[3, 1], [0], [4, 2]]]
)
def test_the_order_and_size_of_blocks_changes_no_bit_in_float32(rows):
    message, ones = messages(5, torch.float32), torch.ones(5, dtype=torch.float64)

    def average(rows):
        reduced, _, _ = add_all("sum", message, ones, rows).reduce(torch.arange(5), [5])
        return flat(tree.map_leaves(lambda leaf: leaf.float()[None], reduced.value))

    assert torch.equal(average(rows), average([[0], [1], [2], [3], [4]]))


def test_a_message_may_be_empty():
    empty = messages(2)._replace(value=())
    reduced, bits, _ = add_all("sum", empty, torch.ones(2, dtype=torch.float64), [[0, 1]]).reduce(torch.arange(2), [2])
    assert reduced.value == ()
    assert float(reduced.weight) == 3
    assert bits.tolist() == [16, 32]


def test_adding_changes_no_message():
    message = messages(3)
    before = tree.map_leaves(torch.clone, message)
    add_all("sum", message, torch.ones(3, dtype=torch.float64), [[0], [1], [2]]).reduce(torch.arange(3), [3])
    assert same_bits(message, before)


def models(value, dtype=torch.float32, counter=0):
    return ModelState({"w": torch.full((1, 2), value, dtype=dtype)}, {"n": torch.full((1,), counter)})


def reduced_to(value, weight, counter=0.0):
    mean = ModelState({"w": torch.full((1, 2), value, dtype=torch.float64)}, {"n": torch.tensor([counter]).double()})
    return Reduced(mean, torch.tensor(weight, dtype=torch.float64))


def test_renormalised_average_is_the_mean_itself():
    ctx = make_context(total_samples=100)
    new = server_average(ctx, models(1.0), reduced_to(3.0, 25.0))
    assert torch.equal(new.parameters["w"], torch.full((1, 2), 3.0))


@pytest.mark.parametrize(("weighting", "share"), [("samples", 0.25), ("uniform", 0.5)])
def test_stale_fill_moves_by_the_share_of_those_who_took_part(weighting, share):
    weight = {"samples": 25.0, "uniform": 5.0}[weighting]  # 25 of 100 samples, 5 of 10 clients
    ctx = make_context(aggregation="stale_fill", weighting=weighting, total_samples=100, num_clients=10)
    new = server_average(ctx, models(1.0), reduced_to(3.0, weight))
    torch.testing.assert_close(new.parameters["w"], torch.full((1, 2), 1 + share * 2))


def test_stale_fill_of_all_is_renormalised():
    renormalised = server_average(make_context(total_samples=25), models(0.3), reduced_to(1 / 3, 25.0))
    filled = server_average(
        make_context(aggregation="stale_fill", total_samples=25), models(0.3), reduced_to(1 / 3, 25.0)
    )
    assert same_bits(renormalised, filled)


def test_types_are_kept_and_counters_rounded():
    new = server_average(make_context(), models(1.0), reduced_to(1.5, 1.0, counter=3.6))
    assert new.parameters["w"].dtype == torch.float32
    assert new.buffers["n"].dtype == torch.int64
    assert new.buffers["n"].tolist() == [4]


@pytest.mark.parametrize(("aggregation", "expected"), [("renormalised", 1 + 1e-9), ("stale_fill", 1 + 0.25e-9)])
def test_the_exact_average_is_not_rounded_to_the_type_of_the_models(aggregation, expected):
    ctx = make_context(aggregation=aggregation, total_samples=100)
    exact, rounded = (one(ctx, models(1.0), reduced_to(1 + 1e-9, 25.0)) for one in (exact_average, server_average))
    assert exact.parameters["w"].dtype == torch.float64
    torch.testing.assert_close(
        exact.parameters["w"], torch.full((1, 2), expected, dtype=torch.float64), rtol=0, atol=1e-15
    )
    assert rounded.parameters["w"].tolist() == [[1, 1]]


def test_one_process_needs_no_collective():
    value = torch.ones(2)
    assert all_reduce(value) is value
    rows = gather_rows({"w": torch.tensor([[1.0], [2.0], [3.0]])}, torch.tensor([2, 0, 1]), [3])
    assert rows["w"].tolist() == [[2.0], [3.0], [1.0]]


@pytest.mark.parametrize("kind", ["sum", "stack"])
def test_what_weighs_nothing_has_means_of_zero(kind):
    message, nobody = messages(1), torch.zeros(1, dtype=torch.float64)
    accumulator = add_all(kind, message, nobody, [[0]], {"loss": torch.ones(1)})
    reduced, bits, means = accumulator.reduce(torch.arange(0), [0])
    rows = [0] if kind == "stack" else []
    assert [list(leaf.shape) for leaf in tree.leaves(reduced)] == [[*rows, 2], [*rows, 1, 3], rows]
    assert all(float(leaf.sum()) == 0 for leaf in tree.leaves(reduced))
    assert (bits.tolist(), means) == ([0, 0], {"loss": (0, 0)})


@pytest.mark.parametrize("kind", ["sum", "stack"])
def test_who_takes_no_step_has_no_part_in_means_of_the_training(kind):
    """A loss of nothing is no loss of 0; what wrappers measure of messages is of everybody."""
    message, ones, accumulator = messages(3), torch.ones(3, dtype=torch.float64), Accumulator(kind)
    metrics = {"loss": torch.tensor([1.0, 0.0, 4.0]), "secure/clamped_share": torch.tensor([0.0, 0.5, 0.5])}
    accumulator.add(message, ones, metrics, stepped=torch.tensor([True, False, True]))
    reduced, _, means = accumulator.reduce(torch.arange(3), [3])
    assert means["loss"] == (pytest.approx((1 + 4 * 3) / 4), 4)
    assert means["secure/clamped_share"] == (pytest.approx((0.5 * 2 + 0.5 * 3) / 6), 6)
    assert float(reduced.weight.sum()) == 6
