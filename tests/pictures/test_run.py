"""What the pictures of a run show: units, looks that differ in grey, marks of the worst decile and of true groups."""

import itertools

import matplotlib as mpl
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lit_fed.callbacks import RunReport
from lit_fed.errors import ConfigError
from lit_fed.metrics.scores import USUAL
from lit_fed.pictures.run import _figures, draw
from lit_fed.pictures.style import COLUMN, byte_unit, draw_mean, few_ticks

pytestmark = pytest.mark.usefixtures("rendered")


def write_history(folder, num_rounds, hit="accuracy", bytes_of_round=1500.0, **columns):
    rounds = np.arange(num_rounds)
    values = {
        f"test/{who}/{hit}{end}": 0.5 + 0.4 * rounds / 100 for who in ("seen", "unseen") for end in ("", "_decile")
    }
    sent = {"comm/bytes_up": bytes_of_round, "comm/bytes_down": 2 * bytes_of_round}
    history = pd.DataFrame({"step": rounds, **sent, **values, **columns})
    final = pd.DataFrame({"step": [num_rounds], f"test/seen/{hit}": [0.1]})  # of the final test
    pd.concat([history, final]).to_csv(folder / "metrics.csv", index=False)


def clients_of(values, hit="accuracy", **columns):
    return pd.DataFrame({"client": range(len(values)), "population": "seen", hit: values, **columns})


def drawn(folder, clients):
    with mpl.rc_context(COLUMN):
        hit = next(one for one in USUAL if one in clients)
        figures = dict(_figures(folder, clients, {hit: USUAL[hit]}))
        for figure in figures.values():
            figure.draw_without_rendering()
    return figures


def test_lines_differ_in_dash_and_marker_and_the_legend_stands_outside(tmp_path):
    write_history(tmp_path, 30)
    figure = drawn(tmp_path, clients_of([0.5, 0.6]))["accuracy_vs_rounds.png"]
    lines = figure.axes[0].lines
    looks = {(line.get_linestyle(), line.get_marker()) for line in lines}
    assert len(lines) == len(looks) == 4
    assert figure.axes[0].get_legend() is None
    legend = figure.legends[0].get_window_extent()
    assert legend.y0 >= figure.axes[0].get_window_extent().y1
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1


def test_accuracy_is_in_percent_and_rounds_count_from_one(tmp_path):
    write_history(tmp_path, 3)
    axes = drawn(tmp_path, clients_of([0.5]))["accuracy_vs_rounds.png"].axes[0]
    assert axes.get_ylabel() == "test accuracy of clients (%)"
    assert axes.lines[0].get_xdata().tolist() == [1, 2, 3]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([50, 50.4, 50.8])


@pytest.mark.parametrize(
    ("most", "expected"),
    [(0, "bytes"), (999, "bytes"), (1000, "kB"), (2.5e6, "MB"), (3e9, "GB"), (4e12, "TB"), (1e20, "PB")],
)
def test_units_of_bytes(most, expected):
    assert byte_unit(most)[1] == expected


def test_bytes_add_up_in_their_unit(tmp_path):
    write_history(tmp_path, 4, bytes_of_round=np.array([1500.0, 500, 1500, 500]))
    figures = drawn(tmp_path, clients_of([0.5]))
    axes = figures["accuracy_vs_bytes.png"].axes[0]
    assert axes.get_xlabel().startswith("kB ")
    assert axes.lines[0].get_xdata().tolist() == [4.5, 6, 10.5, 12]
    assert not figures["accuracy_vs_rounds.png"].axes[0].child_axes


def test_equal_bytes_in_every_round_are_a_second_axis(tmp_path):
    write_history(tmp_path, 4)
    figures = drawn(tmp_path, clients_of([0.5]))
    assert "accuracy_vs_bytes.png" not in figures
    axes = figures["accuracy_vs_rounds.png"].axes[0]
    (above,) = axes.child_axes
    assert above.get_xlabel() == "kB sent and received by all clients"
    assert above.get_xlim() == pytest.approx([4.5 * end for end in axes.get_xlim()])


def test_a_run_that_sends_nothing_has_no_axis_of_bytes(tmp_path):
    write_history(tmp_path, 4, bytes_of_round=0.0)
    figures = drawn(tmp_path, clients_of([0.5]))
    assert "accuracy_vs_bytes.png" not in figures
    assert not figures["accuracy_vs_rounds.png"].axes[0].child_axes


def test_squared_errors_over_orders_of_magnitude_have_a_logarithmic_axis(tmp_path):
    errors = np.geomspace(100, 0.1, 12)
    write_history(tmp_path, 12, "mse", **{"test/seen/mse": errors, "test/seen/mse_decile": 2 * errors})
    figures = drawn(tmp_path, clients_of(np.geomspace(0.01, 50, 30), "mse"))
    assert figures["mse_vs_rounds.png"].axes[0].get_yscale() == "log"
    assert figures["mse_vs_rounds.png"].axes[0].get_ylabel() == "test mse of clients"
    assert figures["client_mse.png"].axes[0].get_xscale() == "log"


def test_infinite_results_are_counted_beside_the_histogram(tmp_path):
    write_history(tmp_path, 4, "mse")
    shown = drawn(tmp_path, clients_of([1.0, 2.0, np.inf], "mse"))["client_mse.png"]
    assert "seen clients, and 1 infinite" in [text.get_text() for text in shown.legends[0].get_texts()]
    assert shown.axes[0].patches


def test_infinite_results_alone_leave_the_histogram_empty(tmp_path):
    write_history(tmp_path, 4, "mse")
    assert not drawn(tmp_path, clients_of([np.inf], "mse"))["client_mse.png"].axes[0].patches


def test_one_round_has_one_tick():
    assert few_ticks(whole=True).tick_values(1, 1) == pytest.approx([1], abs=1)


@pytest.mark.parametrize(("hit", "marked", "sign"), [("accuracy", [0.0, 0.1], "≤ 10%"), ("mse", [2.3, 2.4], "≥ 2.3")])
def test_the_worst_decile_is_hatched(tmp_path, hit, marked, sign):
    """Of 25 clients the ⌊25/10⌋ = 2 worst ones."""
    clients = clients_of(np.arange(25) / 10, hit)
    axes = drawn(tmp_path, clients)[f"client_{hit}.png"].axes[0]
    hatched = [patch for patch in axes.patches if patch.get_hatch() and patch.get_height() > 0]
    factor = 100 if hit == "accuracy" else 1
    left, right = min(one.get_x() for one in hatched), max(one.get_x() + one.get_width() for one in hatched)
    assert sum(one.get_height() for one in hatched) == 2
    assert left <= factor * marked[0] + 1e-9
    assert right >= factor * marked[1] - 1e-9
    assert right - left < factor * 0.4
    assert axes.get_legend_handles_labels()[1][-1] == f"worst decile of the seen: {sign}"


def test_unseen_clients_stand_below_in_bins_of_the_same_edges(tmp_path):
    clients = clients_of(np.arange(25) / 25)
    clients.loc[20:, "population"] = "unseen"
    figure = drawn(tmp_path, clients)["client_accuracy.png"]
    seen, unseen = figure.axes
    plain = [[patch.get_x() for patch in axes.patches if not patch.get_hatch()] for axes in (seen, unseen)]
    assert plain[0] == pytest.approx(plain[1])
    assert [sum(one.get_height() for one in axes.patches if not one.get_hatch()) for axes in (seen, unseen)] == [20, 5]
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == "unseen clients"


def test_large_results_that_are_nearly_equal_are_drawn(tmp_path):
    loss = 4.6e18 * (1 + np.array([0, 1, 2]) * np.finfo(float).eps)
    axes = drawn(tmp_path, clients_of([0.5] * 3).assign(loss=loss, accuracy=loss))["client_accuracy.png"].axes[0]
    assert sum(one.get_height() for one in axes.patches if not one.get_hatch()) == 3


@pytest.mark.parametrize("num_clients", [4, 60])
def test_clients_have_names_while_there_is_room(tmp_path, num_clients):
    weights = np.linspace(1, 0.6, num_clients)
    names = [f"c{number}" for number in range(num_clients)]
    clients = clients_of([0.5] * num_clients, pi_0=weights, pi_1=1 - weights).assign(client=names)
    axes = drawn(tmp_path, clients)["mixture_weights.png"].axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == (names if num_clients == 4 else [])
    assert axes.get_xlabel().startswith(f"{num_clients} seen clients")


def test_names_below_mixtures_over_rounds_do_not_overlap(tmp_path):
    names = [f"hospital_{number:02d}" for number in range(24)]
    mixture = np.random.default_rng(0).dirichlet(np.ones(3), size=(5, 24))
    np.savez(tmp_path / "weights.npz", rounds=np.arange(5), mixture=mixture, names=names, on_graph=False)
    figure = drawn(tmp_path, clients_of([0.5]))["mixture_over_rounds.png"]
    *panels, _ = figure.axes
    assert [axes.get_title() for axes in panels] == ["round 0", "round 1", "round 3"]
    order = np.lexsort((-mixture[-1].max(1), mixture[-1].argmax(1)))
    labels = panels[-1].get_xticklabels()
    assert [label.get_text() for label in labels] == [names[client] for client in order]
    places = [label.get_window_extent() for label in labels]
    assert all(left.x1 <= right.x0 for left, right in itertools.pairwise(places))


def test_true_groups_stand_below_the_mixture_weights(tmp_path):
    weights = np.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7], [1.0, 0.0]])
    clients = clients_of([0.5] * 4, group=[4, 2, 4, 2], pi_0=weights[:, 0], pi_1=weights[:, 1])
    above, below, _ = drawn(tmp_path, clients)["mixture_weights.png"].axes
    order = [3, 1, 0, 2]
    assert np.asarray(above.images[0].get_array()).T.tolist() == weights[order].tolist()
    assert np.asarray(below.images[0].get_array()).tolist() == [[1, 1, 0, 0], [0, 0, 1, 1]]
    assert [label.get_text() for label in below.get_yticklabels()] == ["2", "4"]
    without = drawn(tmp_path, clients.drop(columns="group"))["mixture_weights.png"].axes
    assert len(without) == 2


def test_components_have_their_figures_in_the_cells(tmp_path):
    table = pd.DataFrame(
        {"group": [0, 0, 3, 3], "component": [0, 1] * 2, "accuracy": [0.9, 0.1, 0.25, 0.5], "samples": 8}
    )
    table.to_csv(tmp_path / "components.csv", index=False)
    axes = drawn(tmp_path, clients_of([0.5]))["component_accuracy.png"].axes[0]
    assert np.asarray(axes.images[0].get_array()).tolist() == [[90, 25], [10, 50]]
    cells = {text.get_position(): text for text in axes.texts}
    assert {place: text.get_text() for place, text in cells.items()} == {
        (0, 0): "90.0", (1, 0): "25.0", (0, 1): "10.0", (1, 1): "50.0"
    }  # fmt: skip
    assert cells[0, 0].get_color() == "white"  # on black
    assert cells[0, 1].get_color() == "black"  # on white


def test_formats(tmp_path):
    write_history(tmp_path, 5)
    draw(tmp_path, clients_of([0.5, 0.7]), {"accuracy": True}, ("png", "pdf", "svg"))
    found = {path.name for path in (tmp_path / "plots").iterdir()}
    names = ("accuracy_vs_rounds", "client_accuracy")
    assert found == {f"{name}.{suffix}" for name in names for suffix in ("png", "pdf", "svg")}
    assert (tmp_path / "plots/client_accuracy.pdf").read_bytes().startswith(b"%PDF")
    assert "<svg" in (tmp_path / "plots/client_accuracy.svg").read_text()
    picture = matplotlib.image.imread(tmp_path / "plots/accuracy_vs_rounds.png")
    assert np.ptp(picture[..., :3]) > 0.9


def test_the_same_picture_is_the_same_file(tmp_path):
    write_history(tmp_path, 5)
    draw(tmp_path, clients_of([0.5, 0.7]), {"accuracy": True}, ("png", "pdf", "svg"))
    first = {path: path.read_bytes() for path in (tmp_path / "plots").iterdir()}
    draw(tmp_path, clients_of([0.5, 0.7]), {"accuracy": True}, ("png", "pdf", "svg"))
    assert first == {path: path.read_bytes() for path in (tmp_path / "plots").iterdir()}


@pytest.mark.parametrize("formats", [["gif"], []])
def test_unknown_formats_are_refused(formats):
    with pytest.raises(ConfigError, match=r"RunReport\.formats is .*; give some of pdf, png, svg"):
        RunReport(formats=formats)


def test_bands_over_seeds_divide_by_one_less():
    axes = Figure().subplots()
    draw_mean(axes, [0, 1], [[0.5, 1.0], [0.7, 2.0]])
    band = axes.collections[0].get_paths()[0].vertices
    assert band[band[:, 0] == 1, 1].max() == pytest.approx(1.5 + 0.5 * 2**0.5)
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([0.6, 1.5])
    alone = Figure().subplots()
    draw_mean(alone, [0, 1], [[0.5, 1.0]])
    assert not alone.collections
