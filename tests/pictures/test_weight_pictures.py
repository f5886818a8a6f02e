"""The graph of who takes in whose model."""

import numpy as np
import pytest

from lit_fed.pictures.run import draw_graph

pytestmark = pytest.mark.usefixtures("rendered")


def ring():
    matrix = np.zeros((6, 6))
    for client, weight in enumerate((0.1, 0.2, 0.3, 0.1, 0.2, 0.4)):
        matrix[client, (client + 1) % 6] = matrix[(client + 1) % 6, client] = weight
    return matrix + np.diag(1 - matrix.sum(1))


def drawn(matrix, groups, names=None):
    figure = draw_graph(matrix, groups, names)
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
    _, nodes, _ = drawn(np.full((6, 6), 1 / 6), np.array([7, 3, 7, 3, 3, 3]))
    angle = np.arctan2(*nodes.get_offsets().T[::-1]) % (2 * np.pi)
    angle[angle > 2 * np.pi - 1e-6] = 0
    colours = nodes.get_facecolors() if nodes.get_array() is None else nodes.get_array()
    around = np.asarray(colours)[np.argsort(angle)].reshape(6, -1)
    assert (around[:4] == around[0]).all()
    assert (around[4:] == around[4]).all()
    assert (around[0] != around[4]).any()


def test_a_ring_is_drawn_as_one_with_the_names_of_its_clients():
    """Whatever the order of the clients on it; a chain begins at one of its ends."""
    place = np.array([0, 3, 5, 1, 4, 2])  # of each client on the ring
    matrix, names = ring()[np.ix_(place, place)], list("abcdef")
    figure, _, lines = drawn(matrix, np.array([0, 1, 0, 1, 0, 1]), names)
    lengths = [np.linalg.norm(one[0] - one[1]) for one in lines[0].get_segments()]
    assert lengths == pytest.approx([1.0] * 6)  # the side of a hexagon
    written = {text.get_text(): np.array(text.xy) for text in figure.axes[0].texts if text.get_text() in names}
    angles = np.array([np.angle(complex(*written[name])) for name in names])[np.argsort(place)]  # along the ring
    assert np.abs(np.exp(1j * np.diff(angles)) - np.exp(1j * (angles[1] - angles[0]))).max() < 1e-5
    chain = matrix.copy()
    chain[4, 1] = chain[1, 4] = 0.0  # at the places 4 and 3
    lengths = [np.linalg.norm(one[0] - one[1]) for one in drawn(chain, np.zeros(6))[2][0].get_segments()]
    assert lengths == pytest.approx([1.0] * 5)


def test_equal_weights_are_said_and_have_no_scale():
    figure, _, _ = drawn((ring() > 0) / 3, np.zeros(6))
    assert len(figure.axes) == 1
    assert figure.axes[0].get_title() == "every mixing weight is 0.333"


def test_many_clients_have_no_names():
    figure, _, _ = drawn(np.full((50, 50), 0.02), np.arange(50) % 2)
    assert not [text for text in figure.axes[0].texts if text.get_text()]


def test_darker_edges_weigh_more():
    figure, _, lines = drawn(ring(), np.zeros(6))
    figure.canvas.draw()  # colours are computed then
    grey = lines[0].get_colors()[:, 0]
    assert np.all(np.diff(grey) <= 0)
    assert grey[-1] < grey[0]


def test_directions_are_averaged_and_nobody_alone_breaks_it():
    one_way = np.array([[0.0, 0.6], [0.2, 0.0]])
    figure, _, _ = drawn(one_way, np.array([0, 1]))
    assert figure.axes[0].get_title() == "every mixing weight is 0.4"
    draw_graph(np.eye(3), np.arange(3)).canvas.draw()
