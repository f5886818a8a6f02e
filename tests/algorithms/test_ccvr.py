import numpy as np
import pytest
import torch
from federated_round import as_arrays, batch_orders, distance, flat
from few_classes import HEAVY, close, samples, started, unseen_samples
from references.ccvr_numpy import calibrated, fedavg_round, gaussians
from references.two_layers import BODY, CLASSES, WIDTH, log_softmax, outputs

from lit_fed.algorithms import CCVR, FedAvg
from lit_fed.core.seeds import torch_generator
from lit_fed.core.server_optimizer import ServerOptimizer
from lit_fed.errors import ConfigError
from lit_fed.wrappers.compatibility import Compatibility
from lit_fed.wrappers.privacy.client_level import ClientPrivacy

STEPS = {"virtual_features": 6, "server_steps": 3, "server_batch_size": 5}
SLOW = ServerOptimizer("SGD", 0.2)


def drawn(theta, clients, balanced, round_idx):
    """The virtual features of a round, their classes, and the batches of the steps."""
    rng, parts, labels = torch_generator(0, round_idx, 0, "virtual"), [], []
    classes, total = gaussians(theta, clients), sum(len(y) for _, y in clients)
    for c, one in enumerate(classes):
        if one is not None:
            number, mean, root = one
            size = 6 if balanced else max(round(6 * CLASSES * number / total), 1)
            noise = torch.randn(size, WIDTH, generator=rng, dtype=torch.float64).numpy()
            parts.append(mean + noise @ root.T)
            labels += [c] * size
    batches = [torch.randperm(len(labels), generator=rng)[:5].numpy() for _ in range(3)]
    return np.concatenate(parts), np.array(labels), batches


@pytest.mark.parametrize("balanced", [True, False])
def test_rounds_are_those_of_the_reference(balanced, client_trainer):
    """A class has one sample, and another one none in a calibration; the cohort of a round is not all clients."""
    data = samples()
    data.y[:] = data.y.new_tensor([0, 0, 2, 2, 0, 2, 2, 0, 0, 2, 2, 1, 0, 2, 0])
    algorithm = CCVR(balanced=balanced, calibrate_every=2, server_optimizer=SLOW, **STEPS)
    federation, clients = started(algorithm, client_trainer, train=data, num_rounds=3)
    theta = federation.weights[0].numpy()
    for round_idx, cohort in enumerate([[0, 1], [2, 1], [0]]):
        if round_idx == 2:
            federation.train.y[11], clients[2][1][4] = 0, 0  # the only sample of class 1
        theta = fedavg_round(theta, clients, batch_orders(federation), cohort, **HEAVY)
        federation.round(cohort)
        close(federation.weights, [theta])
        phi = theta[BODY:] if round_idx == 0 else calibrated(theta, *drawn(theta, clients, balanced, round_idx), 0.2)
        close(flat(federation.shared.head), [phi])
    served = np.concatenate([theta[:BODY], phi])
    for test, seen in ((samples([4, 2, 3], seed=1), True), (unseen_samples(), False)):
        for found, (x, _) in zip(federation.predictions(test, seen=seen), as_arrays(test), strict=True):
            close(found, log_softmax(outputs(served, x)))


def test_calibrations_do_not_steer_training():
    found = [started(one, num_rounds=2)[0] for one in (CCVR(calibrate_every=1, **STEPS), CCVR(), FedAvg())]
    for federation in found:
        federation.round(), federation.round([0, 2])
    assert distance(found[0].shared.models, found[2].shared.models) == 0
    assert distance(found[0].shared, found[1].shared) > 0
    moments = 64 * 3 * (1 + WIDTH + WIDTH**2)
    assert found[0].bits[0] - found[2].bits[0] == 3 * moments  # all three clients send them in the last round


def test_class_covariances_are_not_sent_under_privacy():
    with pytest.raises(ConfigError, match="CCVR also sends class means and covariances of features"):
        Compatibility(CCVR(), privacy=ClientPrivacy(noise_multiplier=1.0, delta=1e-5, clip_norm=1.0)).check()
