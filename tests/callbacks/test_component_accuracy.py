"""How well each component does alone on the clients of each true group."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from fed_runs import run_cli
from prepared import rendering
from running import run

from lit_fed.algorithms import IFCA, FedEM
from lit_fed.callbacks.component_accuracy import component_table, components_in_words, with_one_component
from lit_fed.core.algorithm import GlobalModels
from lit_fed.core.types import ModelState
from lit_fed.data import Digits, LabelPermutations
from lit_fed.data.module import FederatedDataModule
from lit_fed.metrics.scores import ClientScores
from lit_fed.wrappers.personal.parts import PersonalState

ARGUMENTS = [
    "fit", "--trainer.accelerator", "cpu", "--trainer.max_epochs", "3", "--data.partition", "LabelPermutations",
    "--data.partition.num_groups", "2", "--data.num_clients", "6", "--model.solver.lr", "0.1",
]  # fmt: skip


def fit(out, *arguments):
    run_cli([*ARGUMENTS, "--name", "run", "--trainer.default_root_dir", str(out), *arguments])
    return out / "run/version_0"


@pytest.fixture(scope="module")
def sequential(tmp_path_factory):
    with rendering():
        return fit(tmp_path_factory.mktemp("runs"), "--model.client_trainer", "sequential")


def counted_with_numpy(folder):
    """Hits and samples of each group and component [2, 3, 2], from the checkpoint's weights and the test samples."""
    state = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    weights, biases = (
        max(
            (leaf.numpy() for leaf in state.values() if leaf.shape in (shape, (6, *shape))), key=np.size
        )  # not the mean
        for shape in ((3, 10, 64), (3, 10))
    )
    data = FederatedDataModule(Digits(), LabelPermutations(num_groups=2), 6)
    data.setup()
    test, hits = data.seen.test, np.zeros((2, 3, 2), dtype=int)
    for client in range(6):
        one = test.client(client)
        weight, bias = (leaf[client] if len(leaf) == 6 else leaf for leaf in (weights, biases))
        for component in range(3):
            logits = one.x.numpy().reshape(-1, 64) @ weight[component].T + bias[component]
            right = logits.argmax(1) == one.y.numpy()
            hits[client % 2, component] += right.sum(), len(right)
    return hits


def check_counts(folder):
    table, hits = pd.read_csv(folder / "components.csv"), counted_with_numpy(folder)
    assert table["group"].tolist() == [0, 0, 0, 1, 1, 1]
    assert table["component"].tolist() == [0, 1, 2] * 2
    assert table["samples"].tolist() == hits[..., 1].ravel().tolist()
    assert (table["accuracy"] * table["samples"]).to_numpy() == pytest.approx(hits[..., 0].ravel(), abs=1e-6)
    assert table["accuracy"].nunique() > 3


def test_counts_are_exact(sequential):
    table = pd.read_csv(sequential / "components.csv")
    assert list(table.columns) == ["group", "component", "accuracy", "samples", "share"]
    assert table.groupby("group")["share"].sum().tolist() == pytest.approx([1, 1], abs=1e-6)
    clients = pd.read_csv(sequential / "clients.csv").query("population == 'seen' and group == 1")
    mean = np.average(clients["pi_2"], weights=clients["num_test"])
    assert table.query("group == 1 and component == 2")["share"].item() == pytest.approx(mean, abs=1e-6)
    check_counts(sequential)
    assert (sequential / "plots/component_accuracy.png").stat().st_size > 5000


def test_groups_stand_in_the_table_of_clients(sequential):
    assert pd.read_csv(sequential / "clients.csv")["group"].tolist() == [0, 1] * 3


def test_clients_run_at_once_give_the_same(sequential, tmp_path):
    folder = fit(tmp_path, "--model.client_trainer", "vectorized")
    one, other = (pd.read_csv(each / "components.csv") for each in (folder, sequential))
    pd.testing.assert_frame_equal(one, other, rtol=1e-6)


def test_two_ranks_give_the_same(sequential, tmp_path):
    two = ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp", "--model.client_trainer", "sequential"]
    finished = run([*ARGUMENTS, *two, "--name", "run", "--trainer.default_root_dir", str(tmp_path)], ranks=2)
    assert finished.returncode == 0, finished.stderr[-2000:]
    assert (tmp_path / "run/version_0/components.csv").read_text() == (sequential / "components.csv").read_text()


def test_measured_clients_alone_count(tmp_path):
    """Of six clients two are measured; the groups are theirs."""
    folder = fit(tmp_path, "--data.eval_clients", "2")
    clients, table = (pd.read_csv(folder / name) for name in ("clients.csv", "components.csv"))
    assert len(clients) == 2
    assert table.groupby("group")["samples"].first().to_dict() == clients.groupby("group")["num_test"].sum().to_dict()


def test_without_a_server_each_client_has_its_own_copy(tmp_path):
    check_counts(fit(tmp_path, "--model.algorithm", "DFedEM", "--model.algorithm.topology", "Ring"))


@pytest.mark.parametrize(
    "options", [["--model.algorithm", "FedAvg"], ["--data.partition", "Dirichlet", "--data.partition.alpha", "1"]]
)
def test_without_components_or_groups_there_is_no_file(tmp_path, options):
    out = ["--name", "run", "--trainer.default_root_dir", str(tmp_path)]
    run_cli([*ARGUMENTS, *options, *out])
    folder = tmp_path / "run/version_0"
    assert (folder / "summary.json").is_file()
    assert not (folder / "components.csv").exists()
    assert not (folder / "plots/component_accuracy.png").exists()


def test_groups_without_samples_are_left_out():
    rows = torch.tensor([[[4, 1, 3], [6, 1, 1], [0, 0, 0]], [[4, 1, 0], [6, 1, 5], [0, 0, 0]]], dtype=torch.float64)
    mixtures = torch.tensor([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]], dtype=torch.float64)
    components = [ClientScores.of_rows(one) for one in rows]
    table = component_table(components, mixtures, torch.tensor([5, 5, 7]), "accuracy")
    assert table.to_dict("list") == {
        "group": [5, 5], "component": [0, 1], "accuracy": [0.4, 0.5], "samples": [10, 10],
        "share": pytest.approx([0.35, 0.65]),
    }  # fmt: skip


def module_of(rows, weights, algorithm):
    """A module that has measured seen clients: what is read of it to tell how components are used."""
    shared = GlobalModels(ModelState({"w": torch.tensor(weights)}, {}))
    return SimpleNamespace(
        client_scores={"seen": ClientScores.of_rows(torch.tensor(rows, dtype=torch.float64), 3)},
        store=SimpleNamespace(has_mixtures=True),
        algorithm=algorithm, settings=SimpleNamespace(algorithm=algorithm), shared=shared,
    )  # fmt: skip


def test_components_that_nobody_uses_or_that_are_the_same_are_named():
    used, unused = [[6, 1, 1, 0.5, 0.3, 0.2]], [[6, 1, 1, 0.9, 0.09, 0.01], [2, 1, 1, 0.4, 0.6, 0.0]]
    different, alike = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0001]]
    assert components_in_words(module_of(used, different, FedEM())) == ""
    said = components_in_words(module_of(unused, different, FedEM()))
    assert said.startswith("component 2 is used by no client, its mean weight is 0.007, ")
    assert said.endswith("try --model.algorithm.start Clustering, or fewer components\n")
    assert said.count("\n") == 1
    same = "components 0 and 2 are the same model; give fewer, or another seed\n"
    assert components_in_words(module_of(used, alike, IFCA(3))) == same


def test_one_component_within_a_clients_own_normalisation():
    class State(tuple):
        mixture = torch.tensor([[0.5, 0.5], [0.1, 0.9]])

        def _replace(self, mixture):
            return mixture

    states = with_one_component(PersonalState(State(), {}), 1)
    assert states.inner.tolist() == [[0, 1], [0, 1]]
