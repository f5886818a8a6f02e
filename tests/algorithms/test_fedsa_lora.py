import numpy as np
import pytest
from federated_round import Federation, as_arrays, batch_orders, run_rounds, small_mlp
from partial_models import Adapted, settings, unseen_clients
from references.fedsa_lora_numpy import fedsa_lora_round, probability, sgd

from lit_fed.algorithms import FedSALoRA
from lit_fed.core.types import LocalWork
from lit_fed.errors import ConfigError

NAMES = {"A": "lora_A", "B": "lora_B", "V": "head.weight", "c": "head.bias"}


def test_rounds_are_those_of_the_reference(client_trainer):
    options = settings(Adapted, epochs=2, lr=0.4)
    federation = Federation(FedSALoRA(), trainer=client_trainer, **options)
    frozen = [federation.task.frozen[f"layer.{name}"].numpy() for name in ("weight", "bias")]
    shared = {one: federation.shared.models.parameters[NAMES[one]][0].numpy() for one in "AVc"}
    own = [np.zeros((3, 2))] * 3
    for _ in range(3):
        shared, own = fedsa_lora_round(
            frozen, shared, own, as_arrays(options["train"]), batch_orders(federation), lr=0.4
        )
        federation.round()
        for one, expected in shared.items():
            found = federation.shared.models.parameters[NAMES[one]][0].numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        for found, expected in zip(federation.states.own.parameters["lora_B"], own, strict=True):
            np.testing.assert_allclose(found[0].numpy(), expected, rtol=0, atol=1e-12)
    assert federation.bits.tolist() == [3 * 64 * (2 * 4 + 3 + 1)] * 2
    unseen = unseen_clients()
    orders = batch_orders(federation, "adapt", LocalWork(epochs=2), unseen, stage="personal")
    for prediction, rows, (x, y) in zip(
        federation.predictions(unseen, seen=False), orders, as_arrays(unseen), strict=True
    ):
        model = sgd(frozen, shared | {"B": np.zeros((3, 2))}, x, y, rows, 0.4, "B")
        np.testing.assert_allclose(prediction[:, 1].exp().numpy(), probability(frozen, model, x), rtol=0, atol=1e-12)


def test_a_network_without_adapters_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"algorithm\.personal has '\*lora_B\*', which matches no .* of MLP; adapters need --model.lora_rank",
    ):
        run_rounds(FedSALoRA(), **settings(small_mlp))
