import torch

from lit_fed.core.graphs.fastest_mixing import Jumps


def slow_map(size=8):
    """An averaged affine map with a slow direction and its fixed point."""
    rates = torch.linspace(0.5, 0.999, size, dtype=torch.float64)
    fixed = torch.arange(size, dtype=torch.float64)
    return lambda x: fixed + rates * (x - fixed), fixed


def run(steps, jumping):
    image, fixed = slow_map()
    point, jumps = torch.zeros_like(fixed), Jumps()
    for _ in range(steps):
        move = image(point) - point
        point = jumps.next(point, move) if jumping else point + move
    return float((point - fixed).norm())


def test_jumps_arrive_long_before_plain_steps():
    assert run(60, jumping=False) > 1
    assert run(60, jumping=True) < 1e-3


def test_a_jump_that_makes_steps_longer_is_taken_back():
    """Steps of a map that shrinks on one side and turns on the other: after a wrong jump the plain image comes next."""
    jumps, point, plain = Jumps(), torch.ones(3, dtype=torch.float64), None
    for step in range(200):
        move = -0.1 * point * (1 + 0.01 * torch.tensor([step % 3, step % 5, step % 7]))
        plain, point = point + move, jumps.next(point, move)
        if jumps.plain is not None:
            break
    assert not torch.equal(point, plain)
    taken_back = jumps.next(point, torch.full_like(point, 100.0))
    assert torch.equal(taken_back, plain)
    assert jumps.plain is None
    assert jumps.moves == []
