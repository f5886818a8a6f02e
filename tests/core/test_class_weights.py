"""Weights of classes in the E-step, and those learned from the training labels, against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch
from federated_round import BINARY, Federation, Tagger, as_arrays, batch_orders, distance, make_clients, run_rounds
from federated_round import make_task as task_of
from quiet import quiet_trainer
from references.fedem_numpy import fedem_round

from lit_fed import CrossEntropy, FedEM, FederatedDataModule, FederatedModule, Sequences
from lit_fed.callbacks import RunReport
from lit_fed.callbacks.guarantees import guarantee_of
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.e_step import expectation, num_factors
from lit_fed.core.targets import Criterion, Multiclass, Regression
from lit_fed.core.task import Task
from lit_fed.core.types import ClientData, Split
from lit_fed.data import Digits, Synthetic
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.wrappers import ClientPrivacy

LEARNED = CrossEntropy("inverse_frequency")
HALVES = torch.tensor([0.5, 0.5], dtype=torch.float64)


def weighted(task, weight, *, in_e_step=True):
    return Criterion(CrossEntropy(weight, in_e_step=in_e_step), task)


def logits(*probabilities):
    """Outputs of two classes whose probability of class 0 is given."""
    first = torch.tensor(probabilities, dtype=torch.float64)
    return torch.stack([first, 1 - first], -1).log()


# ---------------------------------------------------------------------- by hand
def test_the_loss_and_the_e_step_by_hand():
    """p(y) is 1/2 and 1/4 for a sample of class 0 with weight 2, and 1/2 and 3/4 for one of class 1 with weight 1."""
    outputs, y = logits([0.5, 0.25], [0.5, 0.25]), torch.tensor([0, 1])
    two = math.log(2)
    expected = torch.tensor([[2 * two, 4 * two], [two, math.log(4 / 3)]], dtype=torch.float64)
    for in_e_step in (True, False):
        task = task_of(Multiclass(2), criterion=weighted(Multiclass(2), (2.0, 1.0), in_e_step=in_e_step))
        local = task.trained_on.losses(outputs, task.target.for_models(y.unsqueeze(1), outputs))
        torch.testing.assert_close(local, expected, rtol=0, atol=1e-14)
        pi, q, _ = expectation(HALVES, task.losses(outputs, y), torch.ones(2))
        # (1/2)² : (1/4)² = 4 : 1 and 1/2 : 3/4 = 2 : 3; without weights the first is 2 : 1
        first = [4 / 5, 1 / 5] if in_e_step else [2 / 3, 1 / 3]
        torch.testing.assert_close(q, torch.tensor([first, [0.4, 0.6]], dtype=torch.float64), rtol=0, atol=1e-14)
        torch.testing.assert_close(pi, q.mean(0), rtol=0, atol=1e-14)
        prediction, label = task.mix(HALVES, outputs), torch.tensor([0, 1])
        loss, _ = task.score(prediction, label)  # evaluations take the log-loss in both cases
        torch.testing.assert_close(loss.exp(), torch.tensor([8 / 3, 8 / 5], dtype=torch.float64), rtol=0, atol=1e-14)


def test_positions_to_ignore_weigh_nothing():
    """(1/2)²·1/2 against (1/4)²·3/4 is 8 : 3; the position in between is ignored."""
    target = Sequences(2, ignore_index=-100)
    outputs = logits([[0.5, 0.5, 0.5], [0.25, 0.9, 0.25]])  # one sample, two models, three positions
    y = torch.tensor([[0, -100, 1]])
    task = Task.create(lambda: Tagger((3,), 2), target, dtype=torch.float64, criterion=weighted(target, (2.0, 1.0)))
    found = task.losses(outputs, y)
    torch.testing.assert_close(found, torch.tensor([[8.0, 64 / 3]], dtype=torch.float64).log() / 2, rtol=0, atol=1e-14)
    data = ClientData(y, y, None, torch.ones(1), torch.tensor(0))
    pi, *_ = expectation(HALVES, found, torch.ones(1), num_factors(task, data, "sum"))
    torch.testing.assert_close(pi, torch.tensor([8 / 11, 3 / 11], dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("in_e_step", [True, False])
def test_rounds_are_those_of_the_reference(in_e_step, client_trainer):
    train, weight = make_clients([5, 2, 8]), (0.25, 3.0)
    task = task_of(criterion=weighted(BINARY, weight, in_e_step=in_e_step))
    algorithm, solver = FedEM(), LocalSolver(lr=0.3, momentum=0.9)
    federation = Federation(algorithm, train, task=task, solver=solver, trainer=client_trainer, batch_size=2)
    thetas, pis = federation.weights.numpy(), [np.full(3, 1 / 3)] * 3
    for _ in range(2):
        orders = [[np.stack([batch] * 3) for batch in own] for own in batch_orders(federation)]
        given = {"class_weights": weight, "in_e_step": in_e_step}
        thetas, pis, nll = fedem_round(thetas, pis, as_arrays(train), orders, lr=0.3, momentum=0.9, **given)
        federation.round()
        np.testing.assert_allclose(federation.weights.numpy(), thetas, rtol=0, atol=1e-10)
        np.testing.assert_allclose(federation.states.mixture.numpy(), np.stack(pis), rtol=0, atol=1e-10)
        assert federation.metrics["loss"] == pytest.approx(nll, abs=1e-10)


def test_both_trainers_agree_on_sequences():
    y = torch.tensor([[0, 2, -100, 1], [1, -100, -100, 0], [1, 1, 0, 2], [-100, 0, 2, -100]])
    x = torch.randint(7, y.shape, generator=torch.Generator().manual_seed(1))
    target, train = Sequences(3, ignore_index=-100), Split(x, y, torch.tensor([0, 2, 4]))
    found = []
    for trainer in (SequentialTrainer, VectorizedTrainer):
        criterion = weighted(target, (2.0, 1.0, 0.5))
        task = Task.create(lambda: Tagger((4,), 3), target, dtype=torch.float64, criterion=criterion)
        found.append(run_rounds(FedEM(2, position_loss="sum"), trainer(), train, task=task))
    one, other = found
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-12


# ---------------------------------------------------------------------- inverse frequencies
def test_weights_are_inverse_frequencies_up_to_one():
    """Of 12 labels of three classes 4 would be even: 8, 4 and 0 have the weights 4/8, 1 and 1."""
    counts = torch.tensor([8, 4, 0])
    assert LEARNED.fitted(counts).weight == (0.5, 1.0, 1.0)
    given = CrossEntropy((1.0, 2.0, 3.0), 0.1)
    assert given.fitted(counts) is given is given.fitted(None)
    criterion = Criterion(LEARNED.fitted(torch.tensor([3, 1])), BINARY)
    loss = criterion.losses(torch.zeros(2, 1, dtype=torch.float64), torch.tensor([0, 1]))
    torch.testing.assert_close(loss, math.log(2) * torch.tensor([2 / 3, 1], dtype=torch.float64), rtol=0, atol=1e-14)


def data_of(**options):
    return FederatedDataModule(Digits(), num_clients=4, **options)


def fitted(folder, loss, rounds=1, name="run", data=None, privacy=None, **arguments):
    module = FederatedModule(FedEM(2), LocalSolver(lr=0.1), loss=loss, privacy=privacy)
    trainer = quiet_trainer(rounds, folder, name, callbacks=[RunReport(pictures=False)])
    trainer.fit(module, datamodule=data or data_of(), **arguments)
    return module


def test_counts_are_those_of_the_training_labels_and_survive_a_checkpoint(tmp_path):
    module = fitted(tmp_path, CrossEntropy("inverse_frequency", in_e_step=True))
    data = data_of()
    data.setup()
    labels = data.seen.train.y
    weights = len(labels) / (10 * labels.bincount(minlength=10).double())
    criterion = module.federation.terms.task.criterion
    torch.testing.assert_close(torch.tensor(criterion.loss.weight), weights.clamp(max=1).float())
    kept = TrainingFacts.from_plain(module.facts.plain())
    assert torch.equal(kept.class_counts, labels.bincount(minlength=10))
    assert module.facts.public.class_counts is None
    last = tmp_path / "run/version_0/checkpoints/last.ckpt"
    straight = fitted(tmp_path, CrossEntropy("inverse_frequency", in_e_step=True), 2, "straight")
    resumed = fitted(tmp_path, CrossEntropy("inverse_frequency", in_e_step=True), 2, ckpt_path=str(last))
    states = [one.state_dict() for one in (straight, resumed)]
    assert all(torch.equal(leaf, states[1][name]) for name, leaf in states[0].items())
    for other in (LEARNED, CrossEntropy(in_e_step=True)):  # another E-step, other weights
        with pytest.raises(ConfigError, match=r"last\.ckpt is of another run: loss"):
            fitted(tmp_path, other, 3, ckpt_path=str(last))


def test_labels_to_ignore_are_not_counted():
    y = torch.tensor([[0, -100], [2, 2]])
    data = data_of()
    data.setup()
    data.seen = data.seen._replace(train=Split(y, y, torch.tensor([0, 1, 2])))
    data.target = Sequences(4, ignore_index=-100)
    assert data.class_counts().tolist() == [1, 0, 2, 0]
    data.target = Regression()
    with pytest.raises(ConfigError, match="inverse_frequency, and labels of Digits have no classes; give a list"):
        data.class_counts()


def test_what_cannot_be_counted_is_refused(tmp_path):
    drawn = FederatedDataModule(Synthetic(num_clients=4, dimension=3, test_size=5, variant="corrected", on_demand=True))
    with pytest.raises(ConfigError, match="labels of Synthetic are drawn when they are needed"):
        fitted(tmp_path, LEARNED, data=drawn)
    with pytest.raises(ConfigError, match=r"weight is frequency; give a number .* or inverse_frequency"):
        CrossEntropy("frequency")


def test_privacy_does_not_cover_the_counts(tmp_path):
    privacy = ClientPrivacy(noise_multiplier=1.0, delta=1e-3, clip_norm=1.0)
    module = fitted(tmp_path, LEARNED, privacy=privacy, data=data_of(client_sampling="poisson", client_fraction=0.5))
    learned = "the class frequencies of --model.loss, learned without noise"
    assert guarantee_of(module)["privacy/not_covered"].endswith(f"and {learned}")
