"""Personal parts: what stays with a client, what is sent of the rest, and how both are trained."""

import numpy as np
import pytest
import torch
from federated_round import (
    BINARY,
    Federation,
    as_arrays,
    batch_orders,
    distance,
    facts,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    small_mlp,
)
from normalised import NormalisedMLP
from references.fedper_numpy import probability
from references.fedrep_numpy import fedrep_round, train_part
from torch.func import functional_call, grad
from torch.nn import functional as F

from lit_fed import FederatedModule
from lit_fed.algorithms import (
    IFCA,
    SCAFFOLD,
    Ditto,
    FedAdam,
    FedAvg,
    FedAvgPlus,
    FedEM,
    FedPer,
    Local,
    Oracle,
    ProxAvg,
    ResponsibilityFedEM,
)
from lit_fed.callbacks.component_accuracy import with_one_component
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.clients.graphed import GraphedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.start import leaves_named
from lit_fed.core.types import LocalWork, Population
from lit_fed.errors import ConfigError
from lit_fed.models import MLP
from lit_fed.training.history import Difference
from lit_fed.wrappers.personal.parts import PersonalParts
from lit_fed.wrappers.privacy.client_level import ClientPrivacy

SIZES = [5, 2, 8]
HEAD = {"layers.3.weight", "layers.3.bias"}
COHORTS = [[0, 1, 2], [1, 2], [0]]


def settings(network=small_mlp, **solver):
    solver = {"lr": 0.3, "momentum": 0.9, "local_epochs": 2} | solver
    return {"task": make_task(network=network), "solver": LocalSolver(**solver), "train": make_clients(SIZES)}


def unseen_clients():
    return make_clients([3, 4], seed=4, first_id=3)


def alternating(algorithm=FedAvg(), **options):  # noqa: B008 - frozen
    return PersonalParts(algorithm, ("head",), "alternating", **options)


def arrays(leaves, one=None):
    return tuple(leaf[0].numpy() for leaf in (leaves if one is None else tree.index(leaves, one)).values())


def names_in(value):
    return {path.rpartition("/")[2] for path, _ in tree.items(value)}


# ---------------------------------------------------------------------- against other implementations
@pytest.mark.parametrize(
    "solver", [{}, {"momentum": 0.5, "weight_decay": 0.05, "clip_norm": 0.1}, {"optimizer": "adam"}], ids=str
)
@pytest.mark.parametrize("network", [small_mlp, NormalisedMLP])
def test_fedavg_with_a_personal_head_is_fedper(network, solver, client_trainer):
    solver = solver | ({"momentum": 0.0} if "optimizer" in solver else {})
    ours, theirs = (
        run_rounds(one, client_trainer, cohorts=COHORTS, **settings(network, **solver))
        for one in (PersonalParts(FedAvg(), ("head",)), FedPer())
    )
    assert same_bits(ours.shared.inner.models, theirs.shared.models)
    assert same_bits(ours.states.personal, theirs.states.own)
    assert (ours.bits.tolist(), ours.metrics) == (theirs.bits.tolist(), theirs.metrics)
    assert same_bits(ours.predictions(), theirs.predictions())
    pair = [one.predictions(unseen_clients(), seen=False) for one in (ours, theirs)]
    assert distance(*pair) < 1e-12


@pytest.mark.parametrize("solver", [{"momentum": 0.0}, {"weight_decay": 0.05, "clip_norm": 0.2}], ids=str)
def test_alternating_rounds_are_those_of_fedrep(solver, client_trainer):
    options = settings(**solver)
    federation = Federation(alternating(epochs=3, lr=0.1), trainer=client_trainer, **options)
    numbers = {"momentum": 0.9} | solver
    base = arrays(federation.shared.inner.models.parameters)
    heads = [arrays(federation.states.personal.parameters, one) for one in range(3)]
    first = heads[0]
    for _ in range(3):
        orders = [
            batch_orders(federation, work=LocalWork(epochs=epochs), stage=stage)
            for stage, epochs in (("personal", 3), ("shared", 2))
        ]
        base, heads = fedrep_round(base, heads, as_arrays(options["train"]), *orders, 0.1, 0.3, **numbers)
        federation.round()
        found = federation.states.personal.parameters
        for ours, expected in zip(
            [arrays(federation.shared.inner.models.parameters), *(arrays(found, one) for one in range(3))],
            [base, *heads],
            strict=True,
        ):
            for leaf, other in zip(ours, expected, strict=True):
                np.testing.assert_allclose(leaf, other, rtol=0, atol=1e-12)
    unseen = unseen_clients()
    orders = batch_orders(federation, "adapt", LocalWork(epochs=3), unseen, stage="personal")
    for prediction, own, (x, y) in zip(
        federation.predictions(unseen, seen=False), orders, as_arrays(unseen), strict=True
    ):
        _, head = train_part(base, first, x, y, own, 0.1, **numbers, of_head=True)
        np.testing.assert_allclose(prediction[:, 1].exp().numpy(), probability(base, head, x), rtol=0, atol=1e-12)


def test_the_rate_follows_the_schedule_and_unseen_clients_take_that_of_adaptation():
    options = {"momentum": 0.0, "schedule": "linear"}
    same = [run_rounds(alternating(lr=lr), **settings(**options), num_rounds=3).states.personal for lr in (None, 0.3)]
    assert distance(*same) < 1e-12
    given, other = (
        run_rounds(alternating(lr=lr), rounds=0, **settings(adapt_lr=0.2)).serve(unseen_clients(), seen=False)
        for lr in (None, 5.0)
    )
    assert same_bits(given, other)


def test_scaffold_corrects_shared_leaves_alone():
    """Its Algorithm 1 on the body by hand, with plain steps on the head."""
    options = settings(momentum=0.0, local_epochs=1)
    data, network = options["train"], options["task"].build().double()

    def loss(leaves, client):
        return F.binary_cross_entropy_with_logits(
            functional_call(network, leaves, (client.x,))[:, 0], client.y.double()
        )

    federation = Federation(PersonalParts(SCAFFOLD(), ("head",)), batch_size=9, **options)
    body = tree.index(federation.shared.inner.models.parameters, 0)
    heads = [tree.index(federation.shared.own[0], 0) for _ in SIZES]
    control = tree.zeros_like(body)
    controls = [control for _ in SIZES]
    for _ in range(3):
        moved, changes = [], []
        for one in range(3):
            client = data.client(one)
            slope = grad(lambda leaves, c=client: loss(leaves, c))(body | heads[one])
            heads[one] = {name: heads[one][name] - 0.3 * slope[name] for name in HEAD}
            y = {name: body[name] - 0.3 * (slope[name] - controls[one][name] + control[name]) for name in body}
            new = {name: controls[one][name] - control[name] + (body[name] - y[name]) / 0.3 for name in body}
            changes.append(tree.sub(new, controls[one]))
            moved.append(y)
            controls[one] = new
        body, mean = (tree.map_leaves(lambda *all_: sum(all_) / 3, *parts) for parts in (moved, changes))
        control = tree.add(control, mean)
        federation.round()
    assert distance(tree.index(federation.shared.inner.models.parameters, 0), body) < 1e-12
    assert distance(tree.index(federation.shared.inner.control, 0), control) < 1e-12
    for one in range(3):
        state = tree.index(tree.index(federation.states, one), 0)
        assert distance({name: state.personal.parameters[name] for name in heads[one]}, heads[one]) < 1e-12
        assert all(not state.inner.control[name].any() for name in HEAD)


# ---------------------------------------------------------------------- who has what
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(2), SCAFFOLD(), FedAdam(), IFCA(2), Ditto()], ids=str)
def test_what_is_sent_holds_no_personal_leaf(algorithm):
    options = settings(momentum=0.0) | {"train": make_clients(SIZES)}
    wrapped, messages = PersonalParts(algorithm, ("head",)), []

    class Watched(SequentialTrainer):
        def train(self, job):
            for done in super().train(job):
                messages.append(done.result.message)
                yield done

    federation = run_rounds(wrapped, Watched(), **options)
    assert len(messages) == 9
    for message in messages:
        assert HEAD.isdisjoint(names_in(message.value))
    assert HEAD.isdisjoint(names_in(federation.shared.inner))
    assert names_in(federation.shared.own) == HEAD
    for client_id, phase, empty in ((1, "train", True), (1, "init", False), (7, "adapt", False)):
        ctx = federation.context(phase)
        sent = federation.algorithm.sent(ctx, federation.shared, client_id)
        assert HEAD.isdisjoint(names_in(sent.inner))
        assert [leaf.numel() == 0 for leaf in tree.leaves(sent.own)] == [empty] * 2


def test_bytes_are_those_of_shared_leaves():
    body = 8 * 8 * (4 * 3 + 3)  # float64
    for algorithm, up, down in (
        (FedAvg(), body, body),
        (ResponsibilityFedEM(3), 3 * body + 3 * 64, 3 * body),  # and the weights of its mixture
        (SCAFFOLD(), 2 * body, 2 * body),
        (IFCA(4), body + 2, 4 * body),
        (FedAdam(), body, body),
    ):
        federation = run_rounds(PersonalParts(algorithm, ("head",)), rounds=1, **settings(momentum=0.0))
        assert federation.bits.tolist() == [3 * up, 3 * down], algorithm
    options = settings() | {"groups": torch.tensor([0, 1, 1])}
    assert run_rounds(PersonalParts(Oracle(), ("head",)), rounds=1, **options).bits.tolist() == [3 * body] * 2


def test_absent_clients_keep_theirs(client_trainer):
    ours = run_rounds(alternating(FedEM(2)), client_trainer, cohorts=COHORTS[:1], rounds=1, **settings())
    before = ours.states
    ours.round([1])
    after = ours.states
    assert same_bits(tree.index(before, 0), tree.index(after, 0))
    assert distance(tree.index(before.personal, 1), tree.index(after.personal, 1)) > 1e-3


# ---------------------------------------------------------------------- how they are trained
def test_a_stage_moves_its_own_leaves_alone(client_trainer):
    """Without epochs of one part, that part stays as it was."""
    head, body = (lambda one: one.states.personal), (lambda one: one.shared.inner.models)
    for algorithm, solver, fixed, moved in (
        (alternating(epochs=0), {}, head, body),
        (alternating(epochs=2), {"local_epochs": 0}, body, head),
    ):
        done = run_rounds(algorithm, client_trainer, **settings(NormalisedMLP, **solver))
        start = run_rounds(algorithm, rounds=0, **settings(NormalisedMLP))
        assert same_bits(fixed(start), fixed(done))
        assert distance(moved(start), moved(done)) > 1e-3


@pytest.mark.parametrize("other", [VectorizedTrainer, GraphedTrainer])
@pytest.mark.parametrize("algorithm", [FedAvg(), ResponsibilityFedEM(2), Ditto(), IFCA(2)], ids=str)
def test_client_trainers_agree_on_optimizers_that_are_kept(algorithm, other):
    options = settings(optimizer="adam", momentum=0.0, persist_optimizer=True, straggler_fraction=0.5)
    one, two = (
        run_rounds(alternating(algorithm, epochs=2), trainer(), **options) for trainer in (SequentialTrainer, other)
    )
    assert distance((one.shared, one.states, one.optimizers), (two.shared, two.states, two.optimizers)) < 1e-10
    pair = [run.predictions(unseen_clients(), seen=False) for run in (one, two)]
    assert distance(*pair) < 1e-10


def test_stages_have_optimizers_of_their_own():
    run = run_rounds(alternating(epochs=3), **settings(persist_optimizer=True, local_epochs=1))
    steps = [one.step[2].item() for one in run.optimizers]
    assert steps == [3 * 2, 3 * 3 * 2]  # three rounds of two batches of the largest client


def test_a_personal_leaf_of_an_exact_solve_is_the_solution(client_trainer):
    """The model is solved for in `client_final`, and what is kept of it agrees with what the client keeps whole."""
    options = settings() | {"task": make_task(), "rounds": 2}
    exact = PersonalParts(ProxAvg(0.5, local_solve="exact"), ("*.bias",))
    kept = run_rounds(exact, client_trainer, **options).states
    assert distance(kept.personal.parameters["linear.bias"], kept.inner.models.parameters["linear.bias"]) == 0
    assert float(kept.personal.parameters["linear.bias"].abs().max()) > 1e-2


def test_one_of_several_models_is_trained(client_trainer):
    federation = run_rounds(PersonalParts(IFCA(2), ("head",)), client_trainer, rounds=1, **settings())
    mixture, head = federation.states.inner.mixture, federation.states.personal.parameters["layers.3.bias"]
    start = federation.shared.own[0]["layers.3.bias"]
    for one in range(3):
        moved = (head[one] - start).abs().amax(1) > 0
        assert torch.equal(moved, mixture[one] > 0)


def test_a_mixture_is_fitted_under_the_heads_of_an_unseen_client(client_trainer):
    """Bodies are fixed, and the weights are those of the E-step after the heads."""
    federation = run_rounds(alternating(FedEM(2), epochs=5), client_trainer, **settings())
    data = unseen_clients()
    state = federation.serve(data, seen=False)
    assert (
        distance(state.personal, tree.map_leaves(lambda one: one.expand(2, *one.shape), federation.shared.own)) > 1e-2
    )
    for one in range(2):
        client = data.client(one + 3)
        whole = tree.index(state.personal.parameters, one) | federation.shared.inner.models.parameters
        losses = federation.task.losses(federation.task.outputs(type(state.personal)(whole, {}), client.x), client.y)
        expected = (-losses).softmax(1).mean(0)
        assert distance(state.inner.mixture[one], expected) < 1e-12


def test_unseen_clients_without_epochs_take_the_initial_leaves():
    federation = run_rounds(PersonalParts(FedAvg(), ("head",)), **settings(local_epochs=0))
    assert not federation.algorithm.adapt_work(federation.context("adapt"), False).trains
    state = federation.serve(unseen_clients(), seen=False)
    assert same_bits(tree.index(state.personal.parameters, 1), federation.shared.own[0])


def test_an_algorithm_that_fits_a_model_to_unseen_clients_starts_from_their_heads(client_trainer):
    """FedAvg+ tunes all leaves of a client, after the head of an unseen one."""
    tuned, fitted = (
        run_rounds(PersonalParts(FedAvgPlus(epochs), ("head",)), client_trainer, **settings()) for epochs in (2, 0)
    )
    assert same_bits(tuned.shared, fitted.shared)
    gap = [one.serve(unseen_clients(), seen=False).inner.models.parameters for one in (tuned, fitted)]
    assert distance(*gap) > 1e-3
    own = fitted.serve(unseen_clients(), seen=False)
    kept = own.personal.parameters
    assert same_bits({name: own.inner.models.parameters[name] for name in kept}, kept)


# ---------------------------------------------------------------------- names and refusals
@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        (["head"], HEAD),
        (["body"], {"layers.1.weight", "layers.1.bias"}),
        (["layers.1"], {"layers.1.weight", "layers.1.bias"}),
        (["*.bias", "head"], {"layers.1.bias", *HEAD}),
    ],
)
def test_patterns(patterns, found):
    task = make_task(network=small_mlp)
    assert leaves_named(task.network, patterns, task.norm_names, task.init(1, 0).parameters) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"personal": ["hed"]}, r"personal has 'hed', which matches no trained leaf of MLP; .* layers\.3\.bias"),
        ({"personal": ["head", "body"]}, r"--model\.personal is \[head, body\], which leaves nothing of MLP .* Local"),
        ({"personal": ["norm"]}, r"--model\.personal has norm, and MLP has no BatchNorm to train; leave it out"),
        ({"personal": []}, r"--model\.personal is \[\]; give patterns"),
        ({"personal": "head", "personal_epochs": 2}, r"personal_epochs is 2, .* joint, .* give alternating"),
        ({"personal": "head", "personal_lr": 0.1}, r"personal_lr is 0\.1, .* joint, .* give alternating"),
        ({"personal": "head", "personal_epochs": -1}, r"personal_epochs is -1; give a whole number >= 0"),
        ({"personal_training": "alternating"}, r"personal_training is alternating, and nothing is personal; add"),
        ({"personal": "head", "personal_training": "no"}, r"personal_training is no; give joint or alternating"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        built(FedAvg(), **options)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (Local(), "Local sends nothing to a server; choose an algorithm that averages models, or leave it out"),
        (FedPer(), r"--model\.personal keeps \[head\] out of an average of models, and FedPer keeps a private part"),
    ],
)
def test_algorithms_without_an_average_are_refused(algorithm, message):
    with pytest.raises(ConfigError, match=message):
        FederatedModule(algorithm, network=MLP, personal="head")


def built(algorithm, network=MLP, **options):
    module = FederatedModule(algorithm, network=network, **options)
    train = make_clients(SIZES, dtype=torch.float32)
    module.build(facts(BINARY, (4,), num_clients=3, total_samples=15), Population(train, train, train, ["a", "b", "c"]))
    return module


def test_privacy_takes_networks_whose_normalisation_is_personal():
    privacy = ClientPrivacy(0.5, clip_norm=1.0, delta=1e-3, noise_seed=0)
    for options in ({"personal": ["norm"]}, {"personal": ["head"], "batch_norm": "local"}):
        module = built(FedAvg(), NormalisedMLP, privacy=privacy, **options)
        assert module.algorithm.kept_names(module.federation.terms) >= module.federation.terms.task.norm_names
    with pytest.raises(ConfigError, match="batch normalisation"):
        built(FedAvg(), NormalisedMLP, privacy=privacy, personal=["head"])


def test_components_are_measured_one_by_one():
    federation = run_rounds(PersonalParts(FedEM(2), ("head",)), **settings())
    found = with_one_component(federation.states, 1)
    assert found.mixture.tolist() == [[0, 1]] * 3
    assert same_bits(found.personal, federation.states.personal)


def test_a_checkpoint_may_be_served_otherwise():
    wrapped = PersonalParts(FedEM(2))
    found = {"serving.tune": True, "personal_epochs": False, "algorithm.em_steps": True, "solver.adapt_lr": True}
    for name, decides in found.items():
        assert Difference(f"model.{name}", 1, 2).decides_serving(wrapped) == decides
    assert not Difference("model.algorithm.em_steps", 1, 2).decides_serving(FedAvg())


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        ({"lora_rank": 2, "lora_targets": ["*"], "personal": ["*lora_B*"]}, {"layers.1.lora_A.default.weight", *HEAD}),
        ({"lora_rank": 2, "personal": ["*lora_B*", "head"]}, {"layers.1.lora_A.default.weight"}),
        ({"trainable": "head", "personal": ["*.bias"]}, {"layers.3.weight"}),
    ],
)  # fmt: skip
def test_adapters_and_frozen_layers(options, shared):
    """FedSA-LoRA shares A; what is frozen is neither personal nor shared."""
    module = built(FedAvg(), **options)
    assert set(module.federation.server.initial_shared.inner.models.parameters) == shared


def test_a_module_keeps_names_of_what_the_algorithm_has():
    module = built(FedEM(num_components=2), personal="head")
    assert module.mixture_weights.shape == (3, 2)
    assert module.algorithm_name == "FedEM"
