"""What is kept of the weights of clients, over resumed runs too, and the pictures of it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fed_runs import run_cli

from lit_fed import FederatedModule
from lit_fed.callbacks import ClientWeights
from lit_fed.errors import ConfigError
from lit_fed.pictures.run import weight_figures


def fit(out, *arguments):
    run_cli(
        ["fit", "--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(out), "--name", "run",
         "--data.partition", "LabelGroups", "--data.partition.num_groups", "2", "--data.num_clients", "6", *arguments]
    )  # fmt: skip
    return out / "run/version_0"


def kept(folder):
    with np.load(folder / "weights.npz") as file:
        return dict(file)


GRAPH = [
    "--model.algorithm", "DFedEM", "--model.algorithm.topology", "Ring", "--model.algorithm.mixing", "lazy_metropolis",
]  # fmt: skip


@pytest.fixture(scope="module")
def on_graph(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("runs"), "--trainer.max_epochs", "5", *GRAPH)


def test_mixtures_graph_and_groups_of_every_evaluated_round(on_graph):
    weights = kept(on_graph)
    assert weights["rounds"].tolist() == [1, 2, 3, 4, 5]
    assert weights["mixture"].shape == (5, 6, 3)
    assert np.allclose(weights["mixture"].sum(2), 1, atol=1e-6)
    assert np.abs(np.diff(weights["mixture"], axis=0)).max() > 1e-3
    assert weights["groups"].tolist() == [0, 1] * 3
    assert bool(weights["on_graph"])
    ring = (np.eye(6) + np.eye(6)[[1, 2, 3, 4, 5, 0]] + np.eye(6)[[5, 0, 1, 2, 3, 4]]) > 0
    assert ((weights["collaboration"] > 0) <= ring).all()
    assert np.allclose(weights["collaboration"].sum(2), 1, atol=1e-6)
    summary = {path.name for path in (on_graph / "plots").iterdir()}
    assert summary >= {"mixture_over_rounds.png", "graph.png"}
    assert not {"collaboration.png", "collaboration_over_rounds.png"} & summary


def test_weights_of_other_clients_are_left_out(monkeypatch, capsys):
    """As a forged checkpoint may hold them: they could not be stacked."""
    callback, module = ClientWeights(), SimpleNamespace(num_rounds_done=2)
    callback.load_state_dict(
        {"records": {"rounds": [torch.tensor(1)], "mixture": [torch.zeros(2, 3)]}, "spacing": 1, "seen": 1}
    )
    monkeypatch.setattr(callback, "_weights", lambda *_: {"mixture": torch.ones(6, 3)})
    callback._keep(None, module)
    assert {name: len(values) for name, values in callback.records.items()} == {"rounds": 1, "mixture": 1}
    assert "of other clients than those that are measured now" in capsys.readouterr().err


def test_a_resumed_run_keeps_what_came_before(on_graph, tmp_path):
    fit(tmp_path, "--trainer.max_epochs", "2", *GRAPH)
    again = fit(tmp_path, "--trainer.max_epochs", "5", *GRAPH, "--ckpt_path", "last")
    one, other = kept(on_graph), kept(again)
    assert one["rounds"].tolist() == other["rounds"].tolist()
    assert np.array_equal(one["collaboration"], other["collaboration"])


def test_an_algorithm_without_weights_leaves_no_file(tmp_path):
    folder = fit(tmp_path, "--trainer.max_epochs", "1", "--model.algorithm", "FedAvg")
    assert (folder / "summary.json").is_file()
    assert not (folder / "weights.npz").exists()


def test_long_runs_are_thinned_out():
    callback = ClientWeights(most_records=4)

    class Trainer:
        class state:
            fn = "fit"

        sanity_checking = False

    class Module(FederatedModule):
        num_rounds_done = 0

    module = Module()
    for rounds in range(1, 101):
        Module.num_rounds_done = rounds
        callback._weights = lambda trainer, module: {"mixture": torch.full((1, 1), float(module.num_rounds_done))}
        callback.on_validation_epoch_end(Trainer, module)
    found = [int(one) for one in callback.records["rounds"]]
    assert found == [float(one) for one in callback.records["mixture"]]
    assert 2 <= len(found) <= 4
    assert found[0] == 1
    assert len(set(np.diff(found))) == 1
    assert found[-1] > 60


def test_too_few_records_are_refused():
    with pytest.raises(ConfigError, match=r"most_records is 1; give a whole number >= 2"):
        ClientWeights(most_records=1)


@pytest.mark.parametrize(("num_clients", "expected"), [(5, 5), (20, 1)])
def test_weights_between_clients_over_rounds(tmp_path, num_clients, expected):
    """Few clients have a panel each, with a curve for every other client; of many the share in their group is drawn."""
    rng = np.random.default_rng(0)
    between = rng.dirichlet(np.ones(num_clients), size=(6, num_clients))
    groups = np.arange(num_clients) % 2
    np.savez(tmp_path / "weights.npz", rounds=np.arange(6), collaboration=between, groups=groups, on_graph=False)
    figures = dict(weight_figures(tmp_path))
    assert set(figures) == {"collaboration.png", "collaboration_over_rounds.png"}
    panels = [axes for axes in figures["collaboration_over_rounds.png"].axes if axes.get_visible()]
    assert len(panels) == expected
    if num_clients == 5:
        drawn = np.array([line.get_ydata() for line in panels[3].lines[:5]])
        assert np.allclose(drawn, between[:, 3].T)
    else:
        same = groups[:, None] == groups
        assert np.allclose(panels[0].lines[0].get_ydata(), (between * same).sum(2).mean(1))
    last = figures["collaboration.png"].axes[-2].images[0].get_array()
    order = np.argsort(groups, kind="stable")
    assert np.allclose(last, between[-1][np.ix_(order, order)])


def test_mixtures_over_rounds_stand_in_the_order_of_the_last(tmp_path):
    mixture = np.random.default_rng(0).dirichlet(np.ones(3) / 4, size=(7, 12))
    np.savez(tmp_path / "weights.npz", rounds=np.arange(7), mixture=mixture, on_graph=False)
    ((name, figure),) = weight_figures(tmp_path)
    assert name == "mixture_over_rounds.png"
    panels = [axes.images[0].get_array() for axes in figure.axes if axes.images and axes.get_title()]
    assert len(panels) == 3  # the last round is in mixture_weights.png
    order = np.lexsort((-mixture[-1].max(1), mixture[-1].argmax(1)))
    assert np.allclose(panels[0], mixture[0][order].T)


def test_a_file_of_somebody_else_is_named(tmp_path):
    np.savez(tmp_path / "weights.npz", rounds=np.array([{}, None], dtype=object))
    with pytest.raises(ConfigError, match=r"weights\.npz cannot be read \(.*Python objects.*move it away"):
        weight_figures(tmp_path)
