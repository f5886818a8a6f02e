import numpy as np
from federated_round import Federation, as_arrays, batch_orders, run_rounds, same_bits
from partial_models import Adapted, frozen_but, settings, unseen_clients
from references.fedsa_lora_numpy import probability
from references.ffa_lora_numpy import ffa_lora_round

from lit_fed.algorithms import FedAvg, FFALoRA

NAMES = {"A": "lora_A", "B": "lora_B", "V": "head.weight", "c": "head.bias"}


def test_rounds_are_those_of_the_reference(client_trainer):
    options = settings(Adapted, epochs=2, lr=0.4)
    federation = Federation(FFALoRA(), trainer=client_trainer, **options)
    frozen = [federation.task.frozen[f"layer.{name}"].numpy() for name in ("weight", "bias")]
    start = options["task"].init(1, 0).parameters
    model = {one: start[name][0].numpy() for one, name in NAMES.items()}
    for _ in range(3):
        model = ffa_lora_round(frozen, model, as_arrays(options["train"]), batch_orders(federation), lr=0.4)
        federation.round()
        for one in "BVc":
            found = federation.shared.models.parameters[NAMES[one]][0].numpy()
            np.testing.assert_allclose(found, model[one], rtol=0, atol=1e-12)
    assert federation.bits.tolist() == [3 * 64 * (3 * 2 + 3 + 1)] * 2
    for data, seen in ((options["train"], True), (unseen_clients(), False)):
        for prediction, (x, _) in zip(federation.predictions(data, seen=seen), as_arrays(data), strict=True):
            found = prediction[:, 1].exp().numpy()
            np.testing.assert_allclose(found, probability(frozen, model, x), rtol=0, atol=1e-12)


def test_it_is_fedavg_on_frozen_matrices():
    """Bit for bit, since what is frozen costs nothing but memory."""
    options = settings(Adapted, epochs=2, lr=0.3, momentum=0.9, clip_norm=0.2)
    ours = run_rounds(FFALoRA(), **options)
    theirs = run_rounds(FedAvg(), **options | {"task": frozen_but("lora_B", "head", network=Adapted)})
    assert same_bits(ours.shared.models, theirs.shared.models)
    assert (ours.bits.tolist(), ours.metrics) == (theirs.bits.tolist(), theirs.metrics)
    assert same_bits(ours.predictions(), theirs.predictions())
