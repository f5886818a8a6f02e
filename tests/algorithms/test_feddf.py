import numpy as np
import pytest
import torch
from federated_round import Federation, make_clients, make_task, run_rounds, same_bits
from references.feddf_numpy import distilled
from torch.utils.data import TensorDataset

from lit_fed.algorithms import FedAvg, FedDF, Local
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import torch_generator
from lit_fed.core.server_optimizer import ServerOptimizer
from lit_fed.core.types import PublicSamples
from lit_fed.data import TorchDataset
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.wrappers.compatibility import Compatibility

SIZES = [5, 2, 8]
PUBLIC = PublicSamples(torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3)), None)
OPTIONS = {"solver": LocalSolver(lr=0.5), "batch_size": 0, "public": PUBLIC}


def test_a_round_is_that_of_the_reference():
    """Also of some clients; the ensemble counts them alike, the average by their samples."""
    train, optimizer = make_clients(SIZES), ServerOptimizer("Adam", 0.05, "cosine")
    for present in ([0, 1, 2], [2, 0]):
        trained = run_rounds(Local(), None, train, rounds=1, task=make_task(), **OPTIONS).states.models.parameters
        models = [(trained["linear.weight"][k, 0, 0].numpy(), float(trained["linear.bias"][k])) for k in present]
        order = torch_generator(0, 0, 0, "public")
        batches = [torch.randperm(12, generator=order)[:5].numpy() for _ in range(4)]
        expected = distilled(models, [SIZES[k] for k in present], PUBLIC.x.numpy(), batches, 0.05)
        federation = Federation(FedDF(4, 5, optimizer), train, **OPTIONS)
        federation.round(present)
        found = federation.shared.models.parameters
        found = np.append(found["linear.weight"][0, 0].numpy(), float(found["linear.bias"]))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_without_steps_it_is_fedavg():
    found, expected = (run_rounds(one, None, make_clients(SIZES), **OPTIONS) for one in (FedDF(0), FedAvg()))
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-15)


def test_clients_see_no_public_samples():
    """They are in the context of the server's step alone."""
    federation = Federation(FedDF(1), make_clients(SIZES), **OPTIONS)
    assert federation.terms.public is PUBLIC
    assert all(federation.context(phase).public is None for phase in ("train", "adapt", "evaluate"))


# ---------------------------------------------------------------------- public samples of a data module
def test_public_samples_are_scaled_as_those_of_the_clients():
    """uint8 to 0..1; labels of other classes than the clients' are left out."""
    x, y = torch.arange(6 * 8, dtype=torch.uint8).view(6, 1, 2, 4), torch.arange(6)
    clients = {str(k): (x.numpy(), y.numpy()) for k in range(2)}

    def public(x, y):
        given = TorchDataset(TensorDataset(x, y))
        data = FederatedDataModule.from_clients(clients, test_fraction=0.5, public=given)
        data.setup()
        digests.add(data.fingerprint)
        return data.public_samples

    digests: set[str] = set()
    found = public(x, y)
    assert same_bits(found.x, x / 255)
    assert found.y.tolist() == list(range(6))
    assert public(x, y + 5).y is None
    public(x.flip(0), y)
    assert len(digests) == 3  # a run does not go on with other samples
    with pytest.raises(
        ConfigError, match=r"^--data.public TorchDataset: inputs are float32 of shape \[1, 2, 2\], and "
    ):
        public(x[..., :2], y)


@pytest.mark.parametrize(
    ("algorithm", "public", "message"),
    [
        (FedDF(), None, "FedDF trains its server on public samples; give --data.public"),
        (FedAvg(), "Digits", "--data.public is Digits, and FedAvg does not train its server on public samples"),
    ],
)
def test_samples_without_use_and_use_without_samples_are_refused(algorithm, public, message):
    Compatibility(algorithm).check()  # the data are not known yet
    with pytest.raises(ConfigError, match=message):
        Compatibility(algorithm, dataset=("Digits", "samples"), public=public).check()
