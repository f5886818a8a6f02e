"""Blends: mixtures of trained algorithms, against NumPy and against the algorithms themselves."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lit_fed import Binary, Linear, LocalSolver, Multiclass, Regression, Task, rounds, serving
from lit_fed.algorithms import FedAvg, FedAvgPlus, FedEM, KNNPer, Local
from lit_fed.choosing import blend as choosing
from lit_fed.clients.sequential import SequentialTrainer
from lit_fed.clients.vectorized import VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.fine_tuning import FineTuning
from lit_fed.core.plan import plan_of
from lit_fed.core.types import LocalWork, Split
from lit_fed.errors import ConfigError
from lit_fed.training.export import Combination, asked_models, network_of
from lit_fed.wrappers.blend import (
    FOLDS,
    LEAST,
    PRIOR_ERRORS,
    Blend,
    BlendShared,
    BlendState,
    Candidate,
    held_out,
    negative_log_likelihood,
    stacked,
)
from lit_fed.wrappers.serving.wrapper import FineTuned

SOLVER = LocalSolver(lr=0.3)
TARGETS = {"binary": Binary(), "multiclass": Multiclass(num_classes=2), "regression": Regression()}
TUNED = 2
ALGORITHMS = [FedAvg(), Local(), FedEM(num_components=2), FedAvgPlus(fine_tune_epochs=TUNED)]
NUM_SEEN, NUM_UNSEEN = 4, 3


def split(size, seed, kind, num_clients=NUM_SEEN, first_id=0):
    rng, clients = torch.Generator().manual_seed(seed), []
    for client in range(num_clients):
        x = torch.randn(size + client, 3, generator=rng)
        y = x @ (torch.tensor([1.0, -2.0, 0.5]) * (1 if client % 2 else -1)) + torch.randn(len(x), generator=rng)
        clients.append((x, y if kind == "regression" else (y > 0).long()))
    found = Split.of(clients)
    return Split(found.x, found.y, found.offsets, first_id)


def trained(algorithm, task, train, batch_size):
    federation = rounds.start(algorithm, task, train, solver=SOLVER, batch_size=batch_size)
    for _ in range(4):
        federation.round(train)
    return federation


def blended(kind, algorithms=ALGORITHMS, mixture=None, spread=None, batch_size=0, **options):
    """The federations of the candidates, and that of their blend; by default a batch is all samples of a client."""
    target = TARGETS[kind]
    task, train = Task.create(lambda: Linear((3,), target.num_outputs), target), split(20, 0, kind)
    each = [trained(one, task, train, batch_size) for one in algorithms]
    algorithm = Blend([Candidate(one, SOLVER) for one in algorithms], **options)
    blend = rounds.start(algorithm, task, train, solver=LocalSolver(), batch_size=batch_size)
    prior = torch.full((len(each),), 1 / len(each))
    spread = torch.ones(len(each)) if spread is None else spread
    blend.server.commit(BlendShared(tuple(one.shared for one in each), prior, spread))
    ids = torch.arange(NUM_SEEN)
    states = tuple(one.store.gather(ids)["state"] for one in each)
    mixture = prior.expand(NUM_SEEN, -1) if mixture is None else mixture
    blend.store.stage(ids, BlendState(states, mixture))
    blend.store.commit()
    return each, blend, train


def predictions(federation, states, split, client):
    """What a federation predicts for the samples of a client, as a tensor."""
    ctx, data = federation.context("evaluate"), split.client(client)
    outputs = federation.algorithm.shared_outputs(ctx, federation.shared, data.all_x)
    return federation.algorithm.log_prob(ctx, federation.shared, states, data.all_x, outputs)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize("kind", TARGETS)
def test_with_all_weight_on_a_candidate_it_is_the_candidate(kind, seen):
    number, first = (NUM_SEEN, 0) if seen else (NUM_UNSEEN, NUM_SEEN)
    test = split(15, 1, kind, number, first)
    for k in range(len(ALGORITHMS)):
        one_hot = torch.eye(len(ALGORITHMS))[k]
        each, blend, train = blended(kind, mixture=one_hot.expand(NUM_SEEN, -1), prior_weight=1e9)
        own = train if seen else split(9, 2, kind, number, first)
        if not seen:  # a prior of this weight is the weights
            blend.server.shared = blend.shared._replace(prior=one_hot)
        found, alone = (serving.evaluate(one, test, own, seen=seen) for one in (blend, each[k]))
        torch.testing.assert_close(found.loss, alone.loss, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", TARGETS)
def test_the_prediction_is_the_mixture_of_predictions(kind):
    rng = torch.Generator().manual_seed(3)
    mixture = torch.rand(NUM_SEEN, len(ALGORITHMS), generator=rng)
    mixture = mixture / mixture.sum(1, keepdim=True)
    each, blend, train = blended(kind, mixture=mixture)
    test, ids = split(15, 1, kind), torch.arange(NUM_SEEN)
    states = serving.serve(blend, ids, train, seen=True)
    own = [serving.serve(one, ids, train, seen=True) for one in each]
    for client in range(NUM_SEEN):
        parts = [predictions(one, tree.row(kept, client), test, client) for one, kept in zip(each, own, strict=True)]
        parts = np.stack([one.double().numpy() for one in parts], 1)
        weights = mixture[client].numpy()[None, :, None]
        wanted = (weights * parts).sum(1) if kind == "regression" else np.log((weights * np.exp(parts)).sum(1))
        found = predictions(blend, tree.row(states, client), test, client)
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)


# ---------------------------------------------------------------------- weights
def weights_by_numpy(losses, prior, prior_weight):
    """The mode of the posterior of mixture weights, by expectation-maximisation until it stays, without the least."""
    weights = prior
    for _ in range(100_000):
        joint = weights * np.exp(-(losses - losses.min(1, keepdims=True)))
        q = joint / joint.sum(1, keepdims=True)
        new = (prior_weight * prior + q.sum(0)) / (prior_weight + len(losses))
        if np.abs(new - weights).max() < 1e-12:
            break
        weights = new
    weights = np.where(weights < LEAST, 0, weights)
    return weights / weights.sum()


def likelihoods_by_numpy(kind, outputs, y, spread):
    """−log p of each sample, [n, K]."""
    if kind == "regression":
        square = (outputs[..., 0] - y[:, None]) ** 2
        variance = (square.sum(0) + PRIOR_ERRORS * spread) / (len(y) + PRIOR_ERRORS)
        return square / (2 * variance) + np.log(variance) / 2
    if kind == "binary":
        return np.log1p(np.exp(-(2 * y[:, None] - 1) * outputs[..., 0] / spread))
    shifted = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
    return -np.take_along_axis(shifted, y[:, None, None], -1)[..., 0]


@pytest.mark.parametrize("kind", TARGETS)
def test_weights_are_the_mode_of_their_posterior(kind):
    rng = np.random.default_rng(0)
    outputs, spread, prior = (
        rng.normal(size=(30, 3, 2 if kind == "multiclass" else 1)),
        np.array([0.5, 1, 2]),
        [0.5, 0.3, 0.2],
    )
    y = rng.normal(size=30) if kind == "regression" else rng.integers(0, 2, 30)
    given = [torch.tensor(one) for one in (outputs, y, np.ones(30), spread)]
    losses = negative_log_likelihood(TARGETS[kind], *given)
    wanted = likelihoods_by_numpy(kind, outputs, y, spread)
    np.testing.assert_allclose(losses.numpy(), wanted, atol=1e-9)
    found = stacked(losses, torch.ones(30), torch.tensor(prior, dtype=torch.float64), 4.0)
    np.testing.assert_allclose(found.numpy(), weights_by_numpy(wanted, np.array(prior), 4.0), atol=2e-3)


@pytest.mark.parametrize("kind", TARGETS)
def test_held_out_samples_are_predicted_by_weights_of_the_other_folds(kind):
    rng, strengths, spread = np.random.default_rng(1), [1.0, 10.0], np.array([0.5, 1, 2])
    outputs, prior = rng.normal(size=(12, 3, 2 if kind == "multiclass" else 1)), np.array([0.5, 0.3, 0.2])
    y = rng.normal(size=12) if kind == "regression" else rng.integers(0, 2, 12)
    found = held_out(TARGETS[kind], *map(torch.tensor, (outputs, y, prior, spread, strengths)))
    assert found.shape == (2, 12)
    fold = np.arange(12) % FOLDS
    for row, strength in enumerate(strengths):
        for client in range(FOLDS):
            own, others = np.flatnonzero(fold == client), np.flatnonzero(fold != client)
            losses = likelihoods_by_numpy(kind, outputs[others], y[others], spread)
            weights = weights_by_numpy(losses, prior, strength)
            if kind == "regression":
                wanted = (outputs[own, :, 0] @ weights - y[own]) ** 2 / 2
            else:
                each = np.exp(-likelihoods_by_numpy(kind, outputs[own], y[own], spread))
                wanted = -np.log(each @ weights)
            np.testing.assert_allclose(found[row, own].numpy(), wanted, atol=2e-3)


def test_what_clients_have_in_common_is_found_on_all_samples(monkeypatch):
    """The temperature of each candidate with the smallest log-loss, and the weights of all samples, worth one more."""
    rng = np.random.default_rng(2)
    logit = rng.normal(size=(40, 1))
    y = (rng.uniform(size=40) < 1 / (1 + np.exp(-logit[:, 0]))).astype(int)
    outputs = (np.c_[0.7 * logit, 3 * logit] + rng.normal(0, 0.5, (40, 2)))[..., None]
    parts = [(client, torch.tensor(outputs[client::2]), torch.tensor(y[client::2])) for client in range(2)]
    monkeypatch.setattr(choosing, "predictions", lambda modules, blocks: iter(parts))
    monkeypatch.setattr(choosing, "serving_blocks", lambda *args, **more: [])
    seen = SimpleNamespace(val=None, train=SimpleNamespace(num_clients=2))
    data, modules = SimpleNamespace(populations=[seen], block_size=2), [SimpleNamespace(target=Binary())] * 2
    found = choosing.Weights.of(modules, data, 3.0, half=False, falls_back=False, private=False)
    powers = np.linspace(-2, 2, 33)
    losses = [likelihoods_by_numpy("binary", outputs, y, np.full(2, 2**power)).mean(0) for power in powers]
    spread = 2 ** powers[np.argmin(losses, 0)]
    np.testing.assert_allclose(found.spread.numpy(), spread)
    assert len(set(spread)) == 2
    each = likelihoods_by_numpy("binary", outputs, y, spread)
    prior = weights_by_numpy(each, np.full(2, 0.5), 1.0)
    np.testing.assert_allclose(found.prior.numpy(), prior, atol=2e-3)
    for client in range(2):
        wanted = weights_by_numpy(each[client::2], found.prior.numpy(), 3.0)
        np.testing.assert_allclose(found.mixture[client].numpy(), wanted, atol=2e-3)


def test_a_variance_of_its_own_is_shrunk_to_the_clients_mean():
    """With a common variance of 0, to that over candidates, and the same with it given."""
    rng = torch.Generator().manual_seed(0)
    outputs, y = torch.randn(6, 3, 1, generator=rng), torch.randn(6, generator=rng)
    mask, mean = torch.tensor([1.0, 1, 1, 1, 0, 0]), (outputs[:4, :, 0] - y[:4, None]).square().mean()
    found, wanted = (
        negative_log_likelihood(Regression(), outputs, y, mask, one * torch.ones(3)) for one in (0.0, mean)
    )
    torch.testing.assert_close(found, wanted)


def test_without_samples_weights_are_the_prior():
    prior = torch.tensor([0.7, 0.3])
    for weight in (0.0, 1.0):
        torch.testing.assert_close(stacked(torch.zeros(4, 2), torch.zeros(4), prior, weight), prior)


def test_without_a_prior_one_sample_decides():
    found = stacked(torch.tensor([[0.1, 2.0]]), torch.ones(1), torch.tensor([0.5, 0.5]), 0.0)
    torch.testing.assert_close(found, torch.tensor([1.0, 0.0]), rtol=0, atol=1e-4)


def test_a_candidate_of_little_weight_does_not_serve():
    losses = torch.tensor([[0.1, 3.0, 9.0], [0.2, 0.4, 9.0]]).repeat(200, 1)
    found = stacked(losses, torch.ones(400), torch.tensor([0.4, 0.3, 0.3]), 1.0)
    assert found[2] == 0
    assert float(found.sum()) == pytest.approx(1)
    many = stacked(torch.zeros(1, 300), torch.zeros(1), torch.ones(300) / 300, 1.0)  # all below the least
    torch.testing.assert_close(many, torch.ones(300) / 300)


def test_masked_samples_do_not_count():
    losses, prior = torch.tensor([[0.1, 2.0], [0.3, 0.2], [9.0, 0.0]]), torch.tensor([0.5, 0.5])
    whole = stacked(losses[:2], torch.ones(2), prior, 1.0)
    torch.testing.assert_close(stacked(losses, torch.tensor([1.0, 1.0, 0.0]), prior, 1.0), whole)


@pytest.mark.parametrize("kind", TARGETS)
def test_a_program_holds_the_candidates_that_serve(kind):
    """Served with FedEM of two components and Local, a client's program has three networks, and predicts as served."""
    _, blend, train = blended(kind, mixture=torch.tensor([0.0, 0.3, 0.7, 0.0]).expand(NUM_SEEN, -1))
    state = tree.row(serving.serve(blend, torch.arange(NUM_SEEN), train, seen=True), 0)
    x = split(15, 1, kind).client(0).all_x
    predict, task = serving.prediction_of(blend, state)
    asked = asked_models(predict, task, x)
    assert sum(sum(one.counts) for one in asked) == 3
    networks = [
        network_of(task, tree.index(one.models, m)) for one in asked for m, used in enumerate(one.counts) if used
    ]
    found = Combination(predict, task, asked)(x, [one(x) for one in networks])
    torch.testing.assert_close(found, task.target.shown(predict(task, x)))


# ---------------------------------------------------------------------- unseen clients
def tuned_by_numpy(theta, x, y, batches, held_out, kind):
    """A linear model after steps on batches without the rows that are held out."""
    for rows in batches:
        kept = rows[~np.isin(rows, held_out)]
        if len(kept):
            mean = x[kept] @ theta
            error = (1 / (1 + np.exp(-mean)) if kind == "binary" else mean) - y[kept]
            theta = theta - SOLVER.rate * x[kept].T @ error / len(kept)
    return theta


@pytest.mark.parametrize("kind", ["binary", "regression"])
@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer])
def test_an_unseen_client_is_weighed_by_samples_that_did_not_tune(kind, trainer):
    folds, spread = 3, torch.tensor([0.8, 1.5])
    each, blend, _ = blended(
        kind, [FedAvg(), FedAvgPlus(fine_tune_epochs=TUNED)], spread=spread, batch_size=4, folds=folds
    )
    blend.client_trainer = trainer()
    new = split(11, 5, kind, NUM_UNSEEN, NUM_SEEN)
    ids = torch.arange(NUM_UNSEEN) + NUM_SEEN
    states = serving.serve(blend, ids, new, seen=False)
    for row, client in enumerate(ids.tolist()):
        data, ctx = new.client(client), blend.context("adapt")
        x = np.c_[data.all_x.double().numpy(), np.ones(len(data.all_y))]
        y = data.all_y.double().numpy()
        start = [
            torch.cat([one.shared.models.parameters[name].flatten() for name in ("linear.weight", "linear.bias")])
            .double()
            .numpy()
            for one in each
        ]
        fold, predicted = np.arange(len(y)) % folds + 1, np.zeros((len(y), 2))
        for fold_out in range(folds + 1):  # 0: the model that serves the client
            stage = ctx._replace(stage=f"{fold_out}/1/")
            plan = plan_of(stage, LocalWork(epochs=TUNED), [client], [len(y)])
            counts = plan.counts[0].tolist()
            batches = [plan.index[0, step, 0, :count].numpy() for step, count in enumerate(counts)]
            tuned = tuned_by_numpy(start[1], x, y, batches, np.flatnonzero(fold == fold_out), kind)
            rows = fold == fold_out
            predicted[rows] = np.stack([x @ start[0], x @ tuned], 1)[rows]
            if not fold_out:
                served = tree.row(states.each[1], row).models.parameters
                found = torch.cat([served[name].flatten() for name in ("linear.weight", "linear.bias")]).numpy()
                np.testing.assert_allclose(found, tuned, atol=1e-5)
        losses = likelihoods_by_numpy(
            kind, predicted[..., None], y.astype(int) if kind == "binary" else y, spread.numpy()
        )
        wanted = weights_by_numpy(losses, np.full(2, 0.5), 1.0)
        np.testing.assert_allclose(states.mixture[row].numpy(), wanted, atol=5e-3)


@pytest.mark.parametrize("trainer", [SequentialTrainer, VectorizedTrainer])
def test_samples_that_a_candidate_keeps_are_not_of_the_fold_that_they_weigh(trainer):
    """kNN-Per predicts by the neighbours that it keeps at the end of the adaptation."""
    folds = 3
    each, blend, _ = blended("multiclass", [FedAvg(), KNNPer()], folds=folds)
    blend.client_trainer = trainer()
    new, ids = split(11, 5, "multiclass", NUM_UNSEEN, NUM_SEEN), torch.arange(NUM_UNSEEN) + NUM_SEEN
    states = serving.serve(blend, ids, new, seen=False)
    clients = [new.client(one) for one in ids.tolist()]
    without = []
    for fold in range(folds):
        parts = [(one.all_x, one.all_y, torch.arange(len(one.all_y)) % folds != fold) for one in clients]
        other = Split.of([(x[rows], y[rows]) for x, y, rows in parts])
        other = Split(other.x, other.y, other.offsets, NUM_SEEN)
        without.append([serving.serve(one, ids, other, seen=False) for one in each])
    for row, client in enumerate(ids.tolist()):
        y = clients[row].all_y.numpy()
        predicted = np.zeros((len(y), 2, 2))
        for fold in range(folds):
            rows = np.arange(len(y)) % folds == fold
            found = [
                predictions(one, tree.row(kept, row), new, client).numpy()
                for one, kept in zip(each, without[fold], strict=True)
            ]
            predicted[rows] = np.stack(found, 1)[rows]
        wanted = weights_by_numpy(likelihoods_by_numpy("multiclass", predicted, y, None), np.full(2, 0.5), 1.0)
        np.testing.assert_allclose(states.mixture[row].numpy(), wanted, atol=5e-3)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
def test_a_candidate_is_fine_tuned_as_alone(seen):
    """Its options go with it: all weight on FedEM with fine-tuned components is this FedEM."""
    tuned = FineTuning(TUNED, 0.1)
    each, blend, train = blended("binary", [FedAvg(), FedEM(num_components=2)], prior_weight=1e9)
    both = [Candidate(FedAvg(), SOLVER), Candidate(FedEM(num_components=2), SOLVER, tuned)]
    blend.algorithm = Blend(both, prior_weight=1e9)
    alone = each[1]
    alone.algorithm = FineTuned(alone.algorithm, tuned)
    one_hot = torch.tensor([0.0, 1.0])
    blend.server.shared = blend.shared._replace(prior=one_hot)
    ids = torch.arange(NUM_SEEN)
    blend.store.stage(ids, blend.store.gather(ids)["state"]._replace(mixture=one_hot.expand(NUM_SEEN, -1)))
    blend.store.commit()
    number, first = (NUM_SEEN, 0) if seen else (NUM_UNSEEN, NUM_SEEN)
    test, own = split(15, 1, "binary", number, first), train if seen else split(9, 2, "binary", number, first)
    found, wanted = (serving.evaluate(one, test, own, seen=seen) for one in (blend, alone))
    torch.testing.assert_close(found.loss, wanted.loss, rtol=1e-5, atol=1e-5)


def test_both_client_trainers_serve_alike():
    _, blend, train = blended("binary")
    new, test = split(11, 5, "binary", NUM_UNSEEN, NUM_SEEN), split(15, 1, "binary")
    found = []
    for trainer in (SequentialTrainer(), VectorizedTrainer()):
        blend.client_trainer = trainer
        ids = torch.arange(NUM_UNSEEN) + NUM_SEEN
        found.append((serving.serve(blend, ids, new, seen=False), serving.evaluate(blend, test, train).loss))
    for one, other in zip(*map(tree.leaves, found), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_a_client_is_sent_serves_it():
    _, blend, _ = blended("binary")
    ctx, algorithm = blend.context("adapt"), blend.algorithm
    sent = algorithm.received(ctx, algorithm.sent(ctx, blend.shared, NUM_SEEN), NUM_SEEN)
    new = split(11, 5, "binary", NUM_UNSEEN, NUM_SEEN)
    before = serving.serve(blend, torch.tensor([NUM_SEEN]), new, seen=False)
    blend.server.shared = sent
    for one, other in zip(
        *map(tree.leaves, (before, serving.serve(blend, torch.tensor([NUM_SEEN]), new, seen=False))), strict=True
    ):
        assert torch.equal(one, other)


def test_a_round_of_it_changes_nothing_and_untrained_candidates_are_refused():
    _, blend, train = blended("binary")
    before = [leaf.clone() for leaf in tree.leaves((blend.shared, blend.store.gather(torch.arange(NUM_SEEN))))]
    blend.round(train)
    after = tree.leaves((blend.shared, blend.store.gather(torch.arange(NUM_SEEN))))
    assert all(map(torch.equal, before, after))
    target = TARGETS["binary"]
    task = Task.create(lambda: Linear((3,), 1), target)
    fresh = rounds.start(Blend([Candidate(FedAvg(), SOLVER)]), task, train, solver=LocalSolver())
    with pytest.raises(ConfigError, match="Blend trains nothing: `lit-fed blend` makes it of finished runs"):
        fresh.round(train)
