import pytest
import torch

from lit_fed.algorithms.afl import project_to_simplex


def points(rows=200, size=7):
    rng = torch.Generator().manual_seed(0)
    return 2 * torch.randn(rows, size, generator=rng, dtype=torch.float64)


@pytest.mark.parametrize(
    ("point", "expected"),
    [
        ((0.8, 0.6, -0.2), (0.6, 0.4, 0.0)),
        ((2.0, 0.0, 0.0), (1.0, 0.0, 0.0)),
        ((0.0, 0.0), (0.5, 0.5)),
        ((-3.0,), (1.0,)),
        ((1.0, 1.0, 1.0, -9.0), (1 / 3, 1 / 3, 1 / 3, 0.0)),
    ],
)
def test_projections_by_hand(point, expected):
    found = project_to_simplex(torch.tensor(point, dtype=torch.float64))
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_points_of_the_simplex_stay():
    inside = torch.softmax(points(), dim=1)
    torch.testing.assert_close(project_to_simplex(inside), inside, rtol=0, atol=1e-14)
    corners = torch.eye(4, dtype=torch.float64)
    assert torch.equal(project_to_simplex(corners), corners)


def test_projections_lie_on_the_simplex():
    found = project_to_simplex(points())
    assert float(found.min()) == 0.0
    torch.testing.assert_close(found.sum(1), torch.ones(200, dtype=torch.float64), rtol=0, atol=1e-14)


def test_no_point_of_the_simplex_is_nearer():
    """⟨v - p, z - p⟩ <= 0 for every corner z, which is what makes p the nearest point of a convex set."""
    point = points()
    found = project_to_simplex(point)
    away = point - found
    for corner in torch.eye(7, dtype=torch.float64):
        assert float((away * (corner - found)).sum(1).max()) < 1e-12


def test_the_largest_threshold_is_that_of_the_sorted_prefix():
    """The rule with ρ, the last entry that stays positive, as it is usually written."""
    for point in points(50):
        u = point.sort(descending=True).values
        quotient = (u.cumsum(0) - 1) / torch.arange(1, 8)
        rho = int((u > quotient).nonzero().max())
        expected = (point - quotient[rho]).clamp(min=0)
        torch.testing.assert_close(project_to_simplex(point), expected, rtol=0, atol=1e-14)


def test_rows_are_projected_alone():
    point = points(5)
    assert torch.equal(project_to_simplex(point), torch.stack([project_to_simplex(row) for row in point]))
    assert torch.equal(torch.func.vmap(project_to_simplex)(point), project_to_simplex(point))


def test_type_stays():
    assert project_to_simplex(points().float()).dtype == torch.float32
