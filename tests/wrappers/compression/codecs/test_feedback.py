"""Error feedback: recursions whose numbers are known, and what happens without."""

import pytest
import torch

from lit_fed.wrappers.compression.codecs import ScaledSign, TopK
from lit_fed.wrappers.compression.codecs.feedback import ef14, ef21

NEWS = torch.tensor([3, 2, 1], dtype=torch.float64)


def top_1(values):
    return TopK(k=1).encode(values, None)


def test_what_was_not_told_is_told_later():
    error, told = torch.zeros(3, dtype=torch.float64), []
    for _ in range(6):
        sent, error = ef14(top_1, error, NEWS)
        told.append(sent.decoded.tolist())
    assert told == [[3, 0, 0], [0, 4, 0], [6, 0, 0], [0, 4, 0], [6, 0, 0], [0, 0, 6]]
    assert error.tolist() == [3, 4, 0]


def test_what_the_server_knows_moves_towards_the_news():
    known, found = torch.zeros(3, dtype=torch.float64), []
    for _ in range(4):
        sent, known = ef21(top_1, known, NEWS)
        found.append(known.tolist())
    assert found == [[3, 0, 0], [3, 2, 0], [3, 2, 1], [3, 2, 1]]
    assert sent.decoded.tolist() == [0, 0, 0]


@pytest.mark.parametrize("codec", [TopK(0.1), ScaledSign()], ids=repr)
def test_all_that_was_sent_and_the_last_error_are_all_news(codec):
    generator = torch.Generator().manual_seed(0)
    news = torch.randn(30, 40, generator=generator, dtype=torch.float64)
    error, total = torch.zeros(40, dtype=torch.float64), torch.zeros(40, dtype=torch.float64)
    for one in news:
        sent, error = ef14(lambda values: codec.encode(values, None), error, one)
        total = total + sent.decoded
    assert torch.allclose(total + error, news.sum(0), atol=1e-12)


# ---------------------------------------------------------------------- three clients that pull apart
PULLS = torch.tensor([[-3, 2, 2], [2, -3, 2], [2, 2, -3]], dtype=torch.float64)


def gradient(x):
    """Of ⟨a_i, x⟩² + ¼‖x‖² for each client, [3, 3]."""
    return 2 * (PULLS @ x)[:, None] * PULLS + x / 2


def descent(rounds, told):
    """Points of gradient descent at rate 0.1 with the mean of what clients tell of their gradients."""
    x, memory, points = torch.ones(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64), []
    for _ in range(rounds):
        sent, memory = told(memory, gradient(x))
        x = x - 0.1 * sent.mean(0)
        points.append(x)
    return points


def each(function):
    def told(memory, news):
        rows = [function(top_1, own, one) for own, one in zip(memory, news, strict=True)]
        return torch.stack([sent.decoded for sent, _ in rows]), torch.stack([own for _, own in rows])

    return told


def close(*numbers):
    return pytest.approx(numbers, abs=1e-9)


def test_plain_descent():
    assert gradient(torch.ones(3, dtype=torch.float64))[0].tolist() == [-5.5, 4.5, 4.5]
    points = descent(1, lambda memory, news: (news, memory))
    assert points[0].tolist() == close(0.8833333333, 0.8833333333, 0.8833333333)


def test_without_memory_it_diverges():
    points = descent(100, lambda memory, news: (torch.stack([top_1(one).decoded for one in news]), memory))
    assert [float(point[0]) for point in points[:3]] == close(1.1833333333, 1.4002777778, 1.6569953704)
    assert float(points[-1].norm()) > 1e6


def test_with_ef14_it_converges():
    points = descent(400, each(ef14))
    assert points[0].tolist() == close(1.1833333333, 1.1833333333, 1.1833333333)
    assert points[1].tolist() == close(0.5283333333, 0.8558333333, 1.1833333333)
    assert float(points[-1].norm()) < 1e-22


def test_with_ef21_it_converges():
    def told(memory, news):
        _, known = each(ef21)(memory, news)
        return known, known

    points = descent(400, told)
    assert points[1].tolist() == close(1.0116666667, 1.1891666667, 1.3666666667)
    assert float(points[-1].norm()) < 1e-24
