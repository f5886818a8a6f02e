import pytest
import torch
from federated_round import make_context

from lit_fed.algorithms.cqggadmm import QuantiserGrid, _in_full, _next_grid, _quantised, quantise

DELTA = torch.tensor([0.3, -0.5, 0.1], dtype=torch.float64)
KNOWN = torch.tensor([4.0, 1.0, -2.0], dtype=torch.float64)


def grid(radius, bits):
    return QuantiserGrid(*torch.tensor([radius, bits], dtype=torch.float64))


@pytest.mark.parametrize(
    ("chances", "steps"), [([0.0, 0.0, 0.0], [3, 0, 2]), ([0.39, 0.0, 0.79], [3, 0, 2]), ([0.41, 0.5, 0.81], [2, 0, 1])]
)
def test_two_bits(chances, steps):
    """R = 0.5, Δ = 1/3 and (δ + R)/Δ = (2.4, 0, 1.8)."""
    found = quantise(DELTA, grid(0.5, 2), torch.tensor(chances, dtype=torch.float64))
    assert found.tolist() == pytest.approx([step / 3 - 0.5 for step in steps], abs=1e-15)


@pytest.mark.parametrize("bits", [1, 2, 5, 32])
def test_unbiased_and_within_a_spacing(bits):
    rng = torch.Generator().manual_seed(0)
    delta = torch.randn(6, generator=rng, dtype=torch.float64)
    radius = delta.abs().max()
    spacing = float(2 * radius / (2**bits - 1))
    on = QuantiserGrid(radius, torch.tensor(bits))
    draws = torch.stack([quantise(delta, on, torch.rand(6, generator=rng, dtype=torch.float64)) for _ in range(4000)])
    assert float((draws - delta).abs().max()) <= spacing * (1 + 1e-12) + 1e-15
    assert float((draws.mean(0) - delta).abs().max()) < 4 * spacing / 2 / 4000**0.5 + 1e-15
    assert float(draws.abs().max()) <= float(radius) * (1 + 1e-12)


def test_the_ends_of_the_grid_are_hit_whatever_the_chance():
    for chance in (0.0, 0.999):
        ends = torch.tensor([0.7, -0.7], dtype=torch.float64)
        found = quantise(ends, grid(0.7, 3), torch.full((2,), chance, dtype=torch.float64))
        assert found.tolist() == pytest.approx([0.7, -0.7], abs=1e-9)


def test_leaves_keep_their_shapes_and_their_order():
    leaves = {"w": DELTA[:2].view(1, 1, 2), "b": DELTA[2:].view(1, 1)}
    chances = torch.tensor([0.41, 0.5, 0.79], dtype=torch.float64)
    found, flat = (quantise(one, grid(0.5, 2), chances) for one in (leaves, DELTA))
    assert found["w"].shape == (1, 1, 2)
    assert torch.equal(torch.cat([found["w"].flatten(), found["b"].flatten()]), flat)


def test_nothing_is_quantised_to_nothing():
    assert quantise(torch.zeros(3), grid(0.0, 2), torch.zeros(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("last", "radius", "decay", "bits"),
    [
        ((0.0, 2), 5.0, 0.9, 2),  # the first change
        ((1.0, 2), 1.0, 1.0, 2),
        ((1.0, 2), 1.0, 0.9, 3),  # 1 + 3/0.9 = 4.33
        ((1.0, 2), 0.1, 1.0, 1),
        ((1.0, 4), 2.0, 0.5, 6),  # 1 + 15·4 = 61
        ((1e-9, 2), 1e9, 0.9, 32),
        ((1.0, 7), 0.0, 0.9, 7),
    ],
)
def test_bits_of_the_next_grid(last, radius, decay, bits):
    found = _next_grid(grid(*last), torch.tensor(radius, dtype=torch.float64), decay)
    assert found.bits == bits
    assert found.radius == radius
    if last[0] and radius and bits < 32:
        assert 2 * radius / (2**bits - 1) <= decay * 2 * last[0] / (2 ** last[1] - 1)


def test_what_is_sent_and_what_it_costs():
    ctx, client = make_context(), torch.tensor(3)
    sent = _quantised(ctx, {"w": KNOWN + DELTA}, {"w": KNOWN}, grid(0.0, 2), 0.9, client)
    assert float(sent.grid.bits) == 2
    assert float(sent.cost) == 3 * 2 + 32 + 5
    assert bool(sent.is_new)
    assert float(sent.grid.radius) == pytest.approx(0.5)
    again = _quantised(ctx, {"w": KNOWN - DELTA}, {"w": KNOWN}, sent.grid, 0.9, client)
    assert float(again.cost) == 3 * 3 + 32 + 5
    nothing = _quantised(ctx, {"w": KNOWN}, {"w": KNOWN}, sent.grid, 0.9, client)
    assert not bool(nothing.is_new)
    assert torch.equal(nothing.value["w"], KNOWN)
    steps = (sent.value["w"] - KNOWN + 0.5) * 3
    assert float((steps - steps.round()).abs().max()) < 1e-12
    assert float((sent.value["w"] - KNOWN - DELTA).abs().max()) <= 1 / 3


def test_rounding_differs_between_clients_and_rounds():
    change = {"w": torch.linspace(-1, 1, 64, dtype=torch.float64)}
    zero = {"w": torch.zeros(64, dtype=torch.float64)}

    def sent(round_idx, client):
        ctx = make_context(round_idx=round_idx)
        return _quantised(ctx, change, zero, grid(0.0, 2), 0.9, torch.tensor(client)).value["w"]

    assert torch.equal(sent(0, 1), sent(0, 1))
    assert not torch.equal(sent(0, 1), sent(0, 2))
    assert not torch.equal(sent(0, 1), sent(1, 1))


def test_in_full():
    sent = _in_full({"w": DELTA}, grid(0.2, 4))
    assert torch.equal(sent.value["w"], DELTA)
    assert float(sent.cost) == 3 * 64
    assert sent.grid == grid(0.2, 4)
    assert bool(sent.is_new)


def test_many_clients_at_once():
    changes = torch.randn(5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ctx, last, ids = make_context(), grid(0.3, 3), torch.arange(5)
    zero = torch.zeros(7, dtype=torch.float64)
    at_once = torch.func.vmap(lambda change, one: _quantised(ctx, change, zero, last, 0.9, one))(changes, ids)
    for row in range(5):
        alone = _quantised(ctx, changes[row], zero, last, 0.9, ids[row])
        assert torch.equal(at_once.value[row], alone.value)
        assert at_once.cost[row] == alone.cost
