"""The graph of who takes in whose model."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from lit_fed.pictures.client_weights import draw_graph

pytestmark = pytest.mark.usefixtures("rendered")


def ring():
    matrix = np.zeros((6, 6))
    for client, weight in enumerate((0.1, 0.2, 0.3, 0.1, 0.2, 0.4)):
        matrix[client, (client + 1) % 6] = matrix[(client + 1) % 6, client] = weight
    return matrix + np.diag(1 - matrix.sum(1))


def drawn(matrix, groups):
    figure = draw_graph(matrix, groups, Figure)
    axes = figure.axes[0]
    nodes = next(one for one in axes.collections if len(one.get_offsets()) == len(matrix))
    lines = [one for one in axes.collections if one is not nodes and hasattr(one, "get_segments")]
    return figure, nodes, lines


def test_nodes_edges_and_the_scale(tmp_path):
    figure, nodes, lines = drawn(ring(), np.array([0, 1, 0, 1, 0, 1]))
    assert len(nodes.get_offsets()) == 6
    assert len(lines[0].get_segments()) == 6
    assert lines[0].get_array() is None or np.all(np.diff(lines[0].get_array()) >= 0)
    assert figure.axes[1].get_ylabel() == "mixing weight"
    assert figure.axes[1].get_ylim() == pytest.approx((0, 0.4))
    figure.savefig(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").stat().st_size > 5000


def test_groups_stand_side_by_side():
    """Round the circle the colours are those of the sorted groups, whatever the order of the clients."""
    _, nodes, _ = drawn(ring(), np.array([7, 3, 7, 3, 3, 3]))
    angle = np.arctan2(*nodes.get_offsets().T[::-1]) % (2 * np.pi)
    angle[angle > 2 * np.pi - 1e-6] = 0
    colours = nodes.get_facecolors() if nodes.get_array() is None else nodes.get_array()
    around = np.asarray(colours)[np.argsort(angle)].reshape(6, -1)
    assert (around[:4] == around[0]).all()
    assert (around[4:] == around[4]).all()
    assert (around[0] != around[4]).any()


def test_darker_edges_weigh_more():
    figure, _, lines = drawn(ring(), np.zeros(6))
    figure.canvas.draw()  # colours are computed then
    grey = lines[0].get_colors()[:, 0]
    assert np.all(np.diff(grey) <= 0)
    assert grey[-1] < grey[0]


def test_directions_are_averaged_and_nobody_alone_breaks_it():
    one_way = np.array([[0.0, 0.6], [0.2, 0.0]])
    figure, _, _ = drawn(one_way, np.array([0, 1]))
    assert figure.axes[1].get_ylim() == pytest.approx((0, 0.4))
    draw_graph(np.eye(3), np.arange(3), Figure).canvas.draw()
