import numpy as np
import pytest
import torch
from federated_round import (
    MULTICLASS,
    POSITIONS,
    REGRESSION,
    Federation,
    Tagger,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
)
from references.fedgen_numpy import client_steps, features, generator_slope

from lit_fed.algorithms import FedAvg, FedGen
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import torch_generator, uniforms
from lit_fed.core.server_optimizer import ServerOptimizer
from lit_fed.errors import ConfigError

SIZES = [5, 2, 8]
SMALL = {"generated": 6, "noise_size": 3, "width": 4, "server_batch_size": 7}
SGD = ServerOptimizer("SGD", 0.3)


def generator_of(shared):
    return [
        [shared.generator[f"{layer}.{leaf}"].numpy().copy() for leaf in ("weight", "bias")]
        for layer in ("hidden", "features")
    ]


def drawn(federation, client_id):
    """What a client generates in the coming round, [6, D] and labels [6]."""
    p = federation.shared.labels.numpy()
    u = uniforms(0, federation.round_idx, torch.tensor(client_id), "generated", 24).numpy()
    labels = (u[:6] >= p[0]).astype(int)
    noise = np.sqrt(2) * torch.erfinv(torch.from_numpy(2 * u[6:].reshape(6, 3) - 1)).numpy()
    return features(generator_of(federation.shared), noise, labels), labels


@pytest.mark.parametrize(("by_label", "diversity"), [(False, 1.0), (True, 0.0)])
def test_rounds_are_those_of_the_reference(client_trainer, by_label, diversity):
    """Of all and of some clients: their steps, the average, the counts of labels, and a step of the generator."""
    train = make_clients(SIZES)
    algorithm = FedGen(0.7, server_steps=1, diversity=diversity, by_label=by_label, server_optimizer=SGD, **SMALL)
    setting = {"solver": LocalSolver(lr=0.5, local_steps=3), "batch_size": 0, "trainer": client_trainer}
    federation = Federation(algorithm, train, **setting)
    clients = [(one.x.numpy(), one.y.numpy()) for one in map(train.client, range(3))]
    model = federation.weights[0].numpy()
    for round_idx, present in enumerate([[0, 1, 2], [2, 0]]):
        models = np.array([client_steps(model, *clients[k], *drawn(federation, k), 0.5, 3, 0.7, 8) for k in present])
        counts = np.array([np.bincount(clients[k][1], minlength=2) for k in present], dtype=float)
        labels = counts.sum(0) / counts.sum()
        shares = counts / counts.sum(0) if by_label else None
        rng = torch_generator(0, round_idx, 0, "generator")
        y = torch.multinomial(torch.from_numpy(labels), 7, replacement=True, generator=rng).numpy()
        noise = torch.randn(7, 3, generator=rng, dtype=torch.float64).numpy()
        generator = generator_of(federation.shared)
        slope = generator_slope(generator, noise, y, models, shares, diversity)
        federation.round(present)
        model = models.mean(0)
        np.testing.assert_allclose(federation.weights[0].numpy(), model, rtol=0, atol=1e-12)
        np.testing.assert_allclose(federation.shared.labels.numpy(), labels, rtol=0, atol=1e-15)
        for found, before, down in zip(generator_of(federation.shared), generator, slope, strict=True):
            for one, old, step in zip(found, before, down, strict=True):
                np.testing.assert_allclose(one, old - 0.3 * step, rtol=0, atol=1e-8)


@pytest.mark.parametrize("width", [0, 2])
def test_a_client_with_batches_of_its_size_draws_the_features_that_it_draws_where_the_size_is_common(
    client_trainer, width
):
    train, solver = make_clients(SIZES), LocalSolver(lr=0.5, local_epochs=2)
    own = torch.full((len(SIZES),), width, dtype=torch.float64)
    common, differing = (
        run_rounds(FedGen(0.7, **SMALL), client_trainer, train, solver=solver, **terms)
        for terms in ({"batch_size": width}, {"batch_size": 3, "of_clients": {"client_batch_size": own}})
    )
    assert same_bits(common.shared, differing.shared)


def test_without_generated_features_it_is_fedavg():
    setting = {"train": make_clients(SIZES, target=MULTICLASS), "task": make_task(MULTICLASS), "weighting": "uniform"}
    found, expected = (run_rounds(one, **setting).weights for one in (FedGen(0.0, server_steps=0, **SMALL), FedAvg()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_labels_without_a_generator_are_refused():
    with pytest.raises(ConfigError, match="FedGen needs class labels"):
        Federation(FedGen(), make_clients(SIZES, target=REGRESSION), make_task(REGRESSION))
    task = make_task(POSITIONS, network=lambda shape, outputs: Tagger(shape, outputs))
    with pytest.raises(ConfigError, match="these labels have positions"):
        FedGen().shared_init(Federation(FedAvg(), make_clients(SIZES)).context("init")._replace(task=task))
