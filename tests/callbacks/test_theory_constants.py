"""Numbers that theory speaks of: gradients of clients that differ, and the spectral gap of a graph."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from federated_round import Federation, Scale, as_arrays, make_clients
from lightning.pytorch import seed_everything
from quiet import quiet_trainer

from lit_fed import FederatedModule, LocalSolver, Synthetic
from lit_fed.algorithms import DFedEM, Ditto, FedAvg, FedEM
from lit_fed.callbacks import GradientDissimilarity, SpectralGap
from lit_fed.callbacks.gradient_dissimilarity import client_gradient
from lit_fed.core import tree
from lit_fed.core.graphs.mixing import mixing_matrix
from lit_fed.core.graphs.topology import ErdosRenyi, Ring, TimeVarying
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError


# ---------------------------------------------------------------------- gradients
def two_quadratics(callback, algorithm=FedAvg(), **arguments):  # noqa: B008 - frozen
    """½w² with two training samples and ½·3(w − 4)² with one, after a round of one full step of rate 0.1."""
    root = np.sqrt(3)
    clients = {
        "flat": (np.ones((4, 1), "float32"), np.zeros(4, "float32")),
        "steep": (np.full((2, 1), root, "float32"), np.full(2, 4 * root, "float32")),
    }
    data = FederatedDataModule.from_clients(clients, test_fraction=0.5, batch_size=0, labels="continuous")
    module = FederatedModule(algorithm, LocalSolver(lr=0.1), Scale, **arguments)
    quiet_trainer(1, callbacks=[callback], check_val_every_n_epoch=1).fit(module, datamodule=data)
    return module


@pytest.mark.parametrize(("weighting", "share"), [("uniform", 0.5), ("samples", 2 / 3)])
def test_two_quadratics(weighting, share):
    p = np.array([share, 1 - share])
    w = p @ [0.0, 1.2]
    gradients = np.array([w, 3 * (w - 4)])
    square, mean = p @ gradients**2, p @ gradients
    results = two_quadratics(GradientDissimilarity(), weighting=weighting).results
    assert results["train/seen/gradient_norm"] == pytest.approx(abs(mean), rel=1e-6)
    assert results["train/seen/gradient_dissimilarity"] == pytest.approx(square / mean**2, rel=1e-6)
    assert results["train/seen/gradient_variance"] == pytest.approx(p @ (gradients - mean) ** 2, rel=1e-6)


def test_predictions_without_shared_models_are_left_out(capsys):
    results = two_quadratics(GradientDissimilarity(), Ditto()).results
    assert "train/seen/gradient_norm" not in results
    assert "the predictions of Ditto depend on no shared model" in capsys.readouterr().err


def test_the_gradient_of_a_mixture_is_that_of_its_likelihood():
    """Σ_m q_m (σ(w_m x + b_m) − y)(x, 1), with q from the stored π; in passes as in one."""
    train = make_clients([5, 3])
    federation = Federation(FedEM(2), train, solver=LocalSolver(lr=0.5))
    federation.round()
    shared = tree.map_leaves(lambda leaf: leaf.detach().clone(), federation.shared)
    by = [leaf.requires_grad_() for leaf in shared.models.parameters.values()]
    weight, bias = (leaf.detach().numpy() for leaf in by)
    for client_id, (x, y) in enumerate(as_arrays(train)):
        state = tree.row(federation.states, client_id)
        p = 1 / (1 + np.exp(-(np.einsum("bi,mki->bm", x, weight) + bias[:, 0])))
        likely = state.mixture.numpy() * np.where(y[:, None] == 1, p, 1 - p)
        slope = likely / likely.sum(1, keepdims=True) * (p - y[:, None])
        expected = np.concatenate([(slope.T @ x).ravel(), slope.sum(0)]) / len(y)
        with torch.enable_grad():
            found = client_gradient(federation, shared, by, state, train.client(client_id))
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_samples_on_nodes_are_refused():
    dataset = SimpleNamespace(is_remote=True)
    with pytest.raises(ConfigError, match="those of SimpleNamespace stay on their nodes; leave it out"):
        GradientDissimilarity().setup(SimpleNamespace(datamodule=SimpleNamespace(dataset=dataset)), None, "fit")


# ---------------------------------------------------------------------- graphs
def mixed(topology, rounds=3, mixing="lazy_metropolis", algorithm=None, out=None, ckpt_path=None, **data):
    seed_everything(0, verbose=False)
    module = FederatedModule(algorithm or DFedEM(1, topology, mixing), LocalSolver(lr=0.1))
    data = FederatedDataModule(Synthetic(num_clients=6, dimension=4, test_size=5), **data)
    resumed = {} if ckpt_path is None else {"version": 0, "keep_rounds": 2}
    quiet_trainer(rounds, out, callbacks=[SpectralGap()], **resumed).fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module.results["graph/mean_spectral_gap"]


def test_a_ring_has_the_eigenvalues_of_cosines():
    """1/3 + 2/3·cos(2πk/6), of which the second-largest modulus is 2/3; lazy weights of two neighbours are 1/3."""
    assert mixed(Ring()) == pytest.approx(1 / 3, abs=1e-12)


def expected_gap(matrices):
    square = np.mean([one @ one for one in matrices], axis=0)
    return 1 - np.sqrt(np.sort(np.linalg.eigvalsh(square))[-2])


def test_a_changing_graph_has_the_gap_of_the_mean_square(tmp_path):
    """Also of a run that was continued."""
    changing = TimeVarying(ErdosRenyi(0.5), edge_fraction=0.5)
    matrices = [mixing_matrix(changing, "lazy_metropolis", 6, 0, k).numpy() for k in range(3)]
    assert mixed(changing) == pytest.approx(expected_gap(matrices), abs=1e-12)
    mixed(changing, 2, out=tmp_path)
    last = str(tmp_path / "run/version_0/checkpoints/last.ckpt")
    assert mixed(changing, 3, out=tmp_path, ckpt_path=last) == pytest.approx(expected_gap(matrices), abs=1e-12)


def test_absent_clients_keep_their_weight():
    """With 5 of 6 clients the graph of a round falls apart, and the one of all rounds does not."""
    assert 0.01 < mixed(Ring(), clients_per_round=5) < 1 / 3
    assert mixed(Ring(), 1, clients_per_round=5) == pytest.approx(0, abs=1e-12)


def test_algorithms_without_a_mixing_matrix_are_refused():
    with pytest.raises(ConfigError, match="has SpectralGap, and FedAvg has no mixing matrix"):
        mixed(Ring(), algorithm=FedAvg())
