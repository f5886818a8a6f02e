import numpy as np
import pytest
import torch
from federated_round import Federation, make_clients, make_context, make_task, run_rounds, same_bits, small_mlp
from references.pfedhn_numpy import Momentum, generated, loss_slope, server_gradient, slopes

from lit_fed.algorithms import PFedHN, PFedHNPC
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.server_optimizer import ServerOptimizer
from lit_fed.errors import ConfigError

SIZES = [5, 2, 8, 4]
OPTIMIZER = ServerOptimizer("SGD", 0.3, options={"momentum": 0.5, "weight_decay": 0.01})
SMALL = {"embedding_size": 3, "width": 5, "depth": 2, "server_optimizer": OPTIMIZER}
SETTING = {"solver": LocalSolver(lr=0.5, local_steps=3), "batch_size": 0}
LAYERS = [*(f"trunk.{k}" for k in range(3)), "leaves.0", "leaves.1"]


def layers_of(shared):
    return [[shared.network[f"{name}.{leaf}"].numpy() for leaf in ("weight", "bias")] for name in LAYERS]


def models_of(federation):
    """The model with which each client is served, [T, D + 1]."""
    algorithm, states = federation.algorithm, federation.states
    ctx = federation.context("evaluate")
    rows = []
    for k in range(4):
        state = type(states)(states.client_id[k], states.embedding[k], type(states.own)({}, {}))
        model = algorithm.served(ctx, federation.shared, state).parameters
        rows.append(np.append(model["linear.weight"][0, 0].numpy(), float(model["linear.bias"][0, 0])))
    return np.array(rows)


@pytest.mark.parametrize("clip", [50.0, 0.05])
def test_rounds_are_those_of_the_reference(client_trainer, clip):
    """Of all and of some clients; those who did not take part get new models, too."""
    train = make_clients(SIZES)
    federation = Federation(PFedHN(clip_norm=clip, **SMALL), train, trainer=client_trainer, **SETTING)
    layers, embeddings = layers_of(federation.shared), federation.shared.embeddings.numpy()
    clients = [(one.x.numpy(), one.y.numpy()) for one in map(train.client, range(4))]
    optimizer = Momentum(0.3, 0.5, 0.01)
    for present in ([0, 1, 2, 3], [2], [3, 0]):
        gradient, of_embeddings = server_gradient(layers, embeddings, clients, present, 0.5, 3, clip)
        layers = [[optimizer.step((k, j), layers[k][j], gradient[k][j]) for j in range(2)] for k in range(len(LAYERS))]
        embeddings = optimizer.step("v", embeddings, of_embeddings)
        federation.round(present)
        expected = [generated(layers, v)[0] for v in embeddings]
        np.testing.assert_allclose(models_of(federation), expected, rtol=0, atol=1e-12)


def test_an_unseen_client_descends_in_its_embedding():
    """From the mean embedding, by the chain rule through the fixed hypernetwork."""
    federation = Federation(PFedHN(**SMALL), make_clients(SIZES), **SETTING)
    federation.round()
    federation.solver = LocalSolver(lr=0.5, local_epochs=2)
    unseen = make_clients([6], seed=4, first_id=4)
    layers, v = layers_of(federation.shared), federation.shared.embeddings.numpy().mean(0)
    x, y = unseen.x.numpy(), unseen.y.numpy()
    for _ in range(2):
        v = v - 0.5 * slopes(layers, v, loss_slope(generated(layers, v)[0], x, y))[1]
    state = federation.serve(unseen, seen=False)
    np.testing.assert_allclose(state.embedding[0], v, rtol=0, atol=1e-12)
    model = generated(layers, v)[0]
    found = federation.predictions(unseen, state, seen=False)[0][:, 1]
    np.testing.assert_allclose(found, -np.log1p(np.exp(-x @ model[:-1] - model[-1])), rtol=0, atol=1e-12)


def test_a_personal_classifier_stays():
    """It is neither sent nor generated, and goes on from where it was."""
    task = make_task(network=small_mlp)
    federation = run_rounds(PFedHNPC(**SMALL), None, make_clients(SIZES), rounds=1, task=task, **SETTING)
    own = federation.states.own.parameters
    whole = task.init(1, 0).parameters
    body = sum(leaf.numel() for name, leaf in whole.items() if name not in own)
    assert sum(leaf.numel() for leaf in own.values()) == 4 * (3 + 1)
    assert federation.bits.tolist() == [4 * 64 * body] * 2
    federation.round([1])
    for name, before in own.items():
        after = federation.states.own.parameters[name]
        assert [torch.equal(before[k], after[k]) for k in range(4)] == [True, False, True, True]
    with pytest.raises(ConfigError, match=r"--model.algorithm.head is \[head\], which leaves nothing of Linear"):
        Federation(PFedHNPC(), make_clients(SIZES))


def test_clients_of_the_training_are_sent_their_model_alone():
    algorithm = PFedHN(**SMALL)
    federation = run_rounds(algorithm, None, make_clients(SIZES), rounds=1)
    ctx = make_context(num_clients=4)
    models = models_of(federation)
    for client_id in range(4):
        sent = algorithm.sent(ctx, federation.shared, client_id)
        assert (sent.network, sent.embeddings, sent.moments) == (None, None, None)
        np.testing.assert_array_equal(sent.generated["linear.weight"][0, 0], models[client_id, :-1])
    unseen = algorithm.sent(ctx._replace(phase="adapt"), federation.shared, 4)
    assert same_bits(unseen.network, federation.shared.network)
    assert unseen.embeddings.shape == (1, 3)
