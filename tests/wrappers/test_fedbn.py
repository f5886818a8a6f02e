import pytest
import torch
from federated_round import (
    BINARY,
    Federation,
    distance,
    facts,
    make_clients,
    make_context,
    make_task,
    run_rounds,
    same_bits,
)
from local_norm import local_norm
from normalised import NormalisedMLP
from torch.func import functional_call
from torch.nn import functional as F

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg, FedEM, Local, OfficialFedEM, ResponsibilityFedEM
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError

SIZES = [6, 9, 3]
NORM = {"layers.2.weight", "layers.2.bias", "layers.2.running_mean", "layers.2.running_var"}


def task(**fields):
    return make_task(network=NormalisedMLP, **fields)


def settings(rounds=2):
    solver = LocalSolver(lr=0.1, momentum=0.5)
    return {"train": make_clients(SIZES), "rounds": rounds, "task": task(), "batch_size": 3, "solver": solver}


def kept_by(states):
    """The normalisation of clients, leaves [T, M, ...]."""
    return states.personal.parameters | states.personal.buffers


def norm_leaves(models):
    return {name: leaf for name, leaf in (models.parameters | models.buffers).items() if name in NORM}


def test_names_of_the_layer():
    assert task().norm_names == NORM | {"layers.2.num_batches_tracked"}
    assert make_task().norm_names == set()


def test_one_round_of_fedavg_by_hand():
    """Clients train from the server's weights under their own normalisation; all but that is averaged."""
    options = settings(rounds=1) | {"solver": LocalSolver(lr=0.1), "batch_size": 9}  # whole-batch steps
    federation = run_rounds(local_norm(FedAvg()), **options)
    federation.round()  # in the second round the clients' normalisations differ
    network, ours = options["task"].build().double().train(), Federation(FedAvg(), options["train"], options["task"])
    start = tree.index(ours.shared.models, 0)
    kept = [norm_leaves(start) | {"layers.2.num_batches_tracked": torch.tensor(0)} for _ in SIZES]
    server = start.parameters | start.buffers
    for _ in range(2):
        trained = []
        for client_id in range(3):
            state = {name: leaf.clone() for name, leaf in (server | kept[client_id]).items()}
            parameters = {name: state[name].requires_grad_() for name, _ in network.named_parameters()}
            data = options["train"].client(client_id)
            logit = functional_call(network, state, (data.x,))[:, 0]
            loss = F.binary_cross_entropy_with_logits(logit, data.y.double())
            gradient = torch.autograd.grad(loss, list(parameters.values()))
            for name, g in zip(parameters, gradient, strict=True):
                state[name] = (state[name] - 0.1 * g).detach()
            kept[client_id] = {name: state[name].detach() for name in kept[client_id]}
            trained.append(state)
        for name in server:
            if name not in kept[0]:
                server[name] = sum(n * one[name] for n, one in zip(SIZES, trained, strict=True)) / sum(SIZES)
    found = tree.index(federation.shared.inner.models, 0)
    for name in found.parameters | found.buffers:
        torch.testing.assert_close((found.parameters | found.buffers)[name], server[name], rtol=0, atol=1e-12)
    for client_id, own in enumerate(kept):
        state = tree.index(kept_by(federation.states), client_id)
        for name, leaf in own.items():
            torch.testing.assert_close(state[name][0], leaf, rtol=0, atol=1e-12)


def test_normalisation_is_not_counted_as_traffic():
    whole, without = run_rounds(FedAvg(), **settings(1)), run_rounds(local_norm(FedAvg()), **settings(1))
    leaves = {name: leaf for name, leaf in tree.index(whole.shared.models, 0).parameters.items() if name in NORM}
    saved = tree.bits(leaves) + tree.bits(tree.index(whole.shared.models, 0).buffers)
    assert (whole.bits - without.bits).tolist() == [3 * saved, 3 * saved]


def test_an_unseen_client_takes_the_statistics_of_its_own_samples():
    federation = run_rounds(local_norm(FedAvg()), **settings())
    unseen_client = make_clients([7], seed=5, first_id=3)
    state = federation.serve(unseen_client, seen=False)
    models = tree.index(federation.shared.inner.models, 0)
    hidden = unseen_client.x @ models.parameters["layers.1.weight"].T + models.parameters["layers.1.bias"]
    torch.testing.assert_close(kept_by(state)["layers.2.running_mean"][0, 0], hidden.mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(kept_by(state)["layers.2.running_var"][0, 0], hidden.var(0), rtol=0, atol=1e-12)


def test_an_unseen_clients_own_model_starts_under_its_own_statistics():
    federation = run_rounds(local_norm(Local()), **settings())
    federation.solver = LocalSolver(local_epochs=0)
    state = federation.serve(make_clients([7], seed=5, first_id=3), seen=False)
    kept, own = kept_by(state), norm_leaves(state.inner.models)
    assert same_bits(own, {name: kept[name] for name in own})
    assert distance(kept["layers.2.running_mean"], torch.zeros_like(kept["layers.2.running_mean"])) > 1e-3


def test_an_unseen_client_with_one_sample_has_no_statistics():
    models = task().init(1, 0)
    assert task().statistics(models, torch.randn(1, 4, dtype=torch.float64)) is models.buffers


def test_statistics_leave_the_network_as_it_was():
    one = task()
    models = one.init(2, 0)
    before = tree.map_leaves(lambda leaf: leaf.clone(), models)
    one.statistics(models, torch.randn(5, 4, dtype=torch.float64))
    assert same_bits(models, before)
    assert one.network.layers[2].momentum == 0.1


def test_mixture_weights_keep_their_name():
    module = FederatedModule(FedEM(num_components=2), network=NormalisedMLP, batch_norm="local")
    module.build(facts(BINARY, (4,), num_clients=3, total_samples=sum(SIZES)), population())
    assert module.mixture_weights.shape == (3, 2)
    assert module.algorithm_name == "FedEM"


def test_a_network_without_normalisation_is_refused():
    module = FederatedModule(FedAvg(), batch_norm="local")
    with pytest.raises(
        ConfigError, match=r"--model\.batch_norm is local, and Linear has no BatchNorm to train; leave it out"
    ):
        module.build(facts(BINARY, (4,), num_clients=3, total_samples=sum(SIZES)), population())


def population():
    from lit_fed.core.types import Population

    train = make_clients(SIZES, dtype=torch.float32)
    return Population(train, train, train, ["a", "b", "c"])


def test_context_is_shared():  # the algorithm's own phases and reduction are taken
    wrapped = local_norm(OfficialFedEM())
    phases = wrapped.phases(make_context(), torch.arange(3))
    assert phases[0].work.batches_per_step == 3
    assert (wrapped.message.reduce, wrapped.num_models) == ("sum", 3)


def test_clients_that_send_some_components_keep_the_normalisation_of_the_others(client_trainer):
    mixture = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    options = {key: value for key, value in settings().items() if key != "rounds"} | {"trainer": client_trainer}
    sparse, dense = (
        Federation(local_norm(algorithm), **options | {"task": task(init_seeds=(5, 5))})
        for algorithm in (ResponsibilityFedEM(2), FedEM(2))
    )
    for federation in (sparse, dense):
        inner = federation.states.inner._replace(mixture=mixture)
        federation.states = federation.states._replace(inner=inner)
    start = kept_by(sparse.states)
    sparse.round()
    dense.round()
    sent = mixture.argmax(1)
    for name in NORM:
        for one in range(3):
            m = int(sent[one])
            assert torch.equal(kept_by(sparse.states)[name][one, m], kept_by(dense.states)[name][one, m])
            assert torch.equal(kept_by(sparse.states)[name][one, 1 - m], start[name][one, 1 - m])
    assert sparse.bits.tolist() == [float(dense.bits[0]) / 2 + 3 * 2 * 64, float(dense.bits[1])]
