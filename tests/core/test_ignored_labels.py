"""Positions with the label -100 do not count: losses, E-steps, metrics, weights, against torch and torchmetrics."""

import numpy as np
import pytest
import torch
from federated_round import Tagger, distance, run_rounds
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from lit_fed import FML, CrossEntropy, FedAvg, FedEM, FederatedDataModule, FedNTD, Sequences
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.e_step import expectation, num_factors
from lit_fed.core.targets import Criterion, Target
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, ClientData, Split
from lit_fed.errors import ClientError, ConfigError
from lit_fed.metrics.selection import choose_metrics

TARGET = Sequences(3, ignore_index=-100)
Y = torch.tensor([[0, 2, -100, 1], [-100, -100, -100, -100], [1, 1, 0, 2], [-100, 0, -100, -100]])


def outputs(*lead):
    return torch.randn(*lead, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def task(target=TARGET, **fields):
    return Task.create(lambda: Tagger((4,), 3), target, dtype=torch.float64, **fields)


def clients(y=Y, seed=1):
    """Two clients of two samples."""
    x = torch.randint(7, y.shape, generator=torch.Generator().manual_seed(seed))
    return Split(x, y, torch.tensor([0, 2, 4]))


# ---------------------------------------------------------------------- losses
def test_losses_are_means_over_labelled_positions():
    some = outputs(4)
    each = [F.cross_entropy(row, y, ignore_index=-100) for row, y in zip(some, Y, strict=True)]
    each[1] = torch.tensor(0.0, dtype=torch.float64)  # torch's mean over nothing is NaN
    torch.testing.assert_close(TARGET.losses(some, Y), torch.stack(each), rtol=0, atol=1e-14)
    loss, hit = TARGET.score(some.log_softmax(-1), Y)
    torch.testing.assert_close(loss, torch.stack(each), rtol=0, atol=1e-14)
    right = (some.argmax(-1) == Y).sum(-1) / (Y != -100).sum(-1).clamp(min=1)
    torch.testing.assert_close(hit, right.double(), rtol=0, atol=1e-7)
    variable = some.clone().requires_grad_()
    TARGET.losses(variable, Y).sum().backward()
    torch.testing.assert_close(TARGET.residual(some, Y), variable.grad, rtol=0, atol=1e-14)
    assert not TARGET.residual(some, Y)[Y == -100].any()


def test_other_losses_leave_them_out():
    some, loss = outputs(4), CrossEntropy(weight=(1.0, 2.0, 0.5), label_smoothing=0.1)
    labels = 0.9 * F.one_hot(Y.clamp(min=0), 3) + 0.1 / 3
    each = -(labels * torch.tensor([1.0, 2.0, 0.5]) * some.log_softmax(-1)).sum(-1) * (Y != -100)
    expected = each.sum(-1) / (Y != -100).sum(-1).clamp(min=1)
    torch.testing.assert_close(Criterion(loss, TARGET).losses(some, Y), expected, rtol=0, atol=1e-7)


def test_soft_labels_stay_ignored():
    soft = TARGET.soft_labels(outputs(4), Y, 0.5)
    assert not soft[Y == -100].any()
    assert torch.equal(TARGET.labelled(soft), Y != -100)
    torch.testing.assert_close(soft[Y != -100].sum(-1), torch.ones(8, dtype=torch.float64))


def test_the_step_divides_by_samples_with_a_label():
    """The mean over three of the four samples, and the same with the sample without a label left out."""
    some, full = task(), clients()
    models = some.init(2, 0)
    rows = torch.arange(4)
    loss, gradient, _ = some.value_and_grad(models, Batch(full.x, Y, rows, torch.ones(4)))
    kept = rows[[0, 2, 3]]
    expected = some.value_and_grad(models, Batch(full.x[kept], Y[kept], torch.arange(3), torch.ones(3)))
    assert distance((loss, gradient), expected[:2]) < 1e-14
    data = ClientData(full.x, Y, None, torch.ones(4), torch.tensor(0))
    assert distance(some.full_gradient(models, data, rows_per_pass=3), expected[:2]) < 1e-14


# ---------------------------------------------------------------------- E-step
def test_the_e_step_counts_labelled_positions():
    losses = torch.tensor([[0.2, 1.0], [0.0, 0.0], [0.9, 0.3], [2.0, 0.1]], dtype=torch.float64)
    pi, data = torch.tensor([0.4, 0.6], dtype=torch.float64), ClientData(Y, Y, None, torch.ones(4), torch.tensor(0))
    factors = num_factors(task(), data, "sum")
    assert factors.flatten().tolist() == [3, 1, 4, 1]
    mask = TARGET.counted(Y, torch.ones(4))
    assert mask.tolist() == [1, 0, 1, 1]
    found, q, _ = expectation(pi, losses, mask, factors)
    expected = (pi.log() - torch.tensor([[3.0], [0.0], [4.0], [1.0]]) * losses).softmax(1) * mask[:, None]
    torch.testing.assert_close(q, expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(found, expected.sum(0) / 3, rtol=0, atol=1e-14)
    assert num_factors(task(), data, "mean") == 1


# ---------------------------------------------------------------------- rounds
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2), FedEM(num_components=2, position_loss="sum")])
@pytest.mark.parametrize("weighting", ["samples", "positions"])
def test_both_trainers_and_short_sequences(algorithm, weighting):
    """Ignored positions at the end train as if the sequences were shorter."""
    terms = {"solver": LocalSolver(lr=0.2), "weighting": weighting, "total_positions": 8}
    one, other = (run_rounds(algorithm, trainer(), clients(), task=task(), **terms) for trainer in
                  (SequentialTrainer, VectorizedTrainer))  # fmt: skip
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-12
    rows = one.evaluate()
    assert rows[:, 0].tolist() == [1, 2]  # a sample without a label is not measured
    assert bool(rows.isfinite().all())
    padded = torch.cat([Y[[0, 0, 2, 2]].clamp(min=0), torch.full((4, 2), -100)], 1)
    long, short = clients(padded), clients(padded[:, :4])
    long.x[:, :4] = short.x
    terms |= {"total_positions": 16}
    a = run_rounds(algorithm, train=long, task=task(), **terms)
    b = run_rounds(algorithm, train=short, task=task(Sequences(3)), **terms)
    assert distance((a.shared, a.states), (b.shared, b.states)) < 1e-12


def test_a_sample_without_a_label_moves_no_mixture_weight():
    """The client's weights are those of its other sample alone."""
    whole, terms = clients(), {"task": task(), "rounds": 1, "solver": LocalSolver(lr=0.2)}
    alone = Split(whole.x[[0, 2, 3]], Y[[0, 2, 3]], torch.tensor([0, 1, 3]))
    a, b = (run_rounds(FedEM(num_components=2), train=train, **terms) for train in (whole, alone))
    torch.testing.assert_close(a.states.mixture[0], b.states.mixture[0], rtol=0, atol=1e-12)


def test_positions_weigh_clients():
    first = FedAvg()
    a, b = (run_rounds(first, train=clients(), task=task(), rounds=1, weighting=one, total_positions=8, cohorts=[some])
            for one, some in (("positions", [0, 1]), ("uniform", [0])))  # fmt: skip
    c = run_rounds(first, train=clients(), task=task(), rounds=1, weighting="uniform", cohorts=[[1]])
    assert distance(a.weights, (3 * b.weights + 5 * c.weights) / 8) < 1e-12


def test_distillation_ignores_them_and_class_means_refuse():
    rounds = run_rounds(FML(), train=clients(), task=task())
    assert bool(rounds.evaluate().isfinite().all())
    with pytest.raises((ConfigError, ClientError), match="FedNTD needs a class at every position, and labels -100"):
        run_rounds(FedNTD(), train=clients(), task=task())


# ---------------------------------------------------------------------- metrics and data
def test_metrics_are_those_of_torchmetrics():
    prediction = outputs(4).log_softmax(-1)
    chosen = choose_metrics([{"F1Score": {"average": "macro"}}], TARGET)
    meter = chosen.meter(1)
    meter.add(torch.tensor([0]), prediction[None], Y[None], torch.ones(1, 4))
    expected = MulticlassF1Score(3, average="macro", ignore_index=-100)(prediction.float().argmax(-1), Y)
    assert float(*meter.values().values()) == pytest.approx(float(expected), abs=1e-6)
    hits = TARGET.score(prediction, Y)[1] * (Y != -100).sum(-1)
    plain = MulticlassAccuracy(3, average="micro", ignore_index=-100)(prediction.float().argmax(-1), Y)
    assert float(hits.sum() / 8) == pytest.approx(float(plain), abs=1e-6)


def data_of(y, target=None):
    data = FederatedDataModule.from_clients({"ann": (np.arange(16).reshape(4, 4), y.numpy())}, test_fraction=0)
    data.given_target = target
    data.setup()
    return data


def test_labels_are_ignored_where_there_are_some():
    assert data_of(Y).target == TARGET
    assert data_of(Y.clamp(min=0)).target == Sequences(3)  # no work for labels that all count
    void = Y.clone()
    void[void == -100] = 255
    assert data_of(void, Sequences(ignore_index=255)).target == Sequences(3, 255)
    facts = data_of(Y).facts(weighting="positions", seed=0, num_rounds=1)
    assert facts.total_positions == 8
    assert Target.from_plain(*TARGET.plain) == TARGET
    assert Sequences(3).plain == ("multiclass", 3, True)
    with pytest.raises(ConfigError, match="contains a negative label"):
        data_of(Y.clamp(min=-1))
    with pytest.raises(ConfigError, match=r"label 7 is outside 0 … 2.*; -100 marks positions to ignore"):
        data_of(torch.where(Y == -100, 7, Y), Sequences(3))
    flat = FederatedDataModule.from_clients(
        {"ann": (np.arange(8.0).reshape(4, 2), np.array([0, 1, 0, 1]))}, test_fraction=0
    )
    flat.setup()
    with pytest.raises(ConfigError, match=r"--model.weighting is positions, and the labels of _Arrays have none"):
        flat.facts(weighting="positions", seed=0, num_rounds=1)


# ---------------------------------------------------------------------- samples without any label
def test_the_data_module_leaves_them_out(capsys):
    """Of batches and steps, too; a client's test samples stay, and are not measured."""
    y = torch.randint(3, (15, 4), generator=torch.Generator().manual_seed(3))
    y[[0, 2, 5, 11]] = -100
    y[1, 1:] = -100
    whole = Split(torch.arange(60).view(15, 4), y, torch.tensor([0, 6, 15]))
    clients = {name: (one.x.numpy(), one.y.numpy()) for name, one in zip("ab", map(whole.client, (0, 1)), strict=True)}
    data = FederatedDataModule.from_clients(clients, test_fraction=0)
    data.setup()
    assert data.seen.train.sizes.tolist() == [3, 8]
    assert "4 of 15 training samples have no label and are left out" in capsys.readouterr().err
    facts = data.facts(weighting="samples", seed=0, num_rounds=1)
    assert (facts.total_samples, facts.most_samples) == (11, 8)
    assert bool((data.seen.train.y != -100).any(1).all())
    half = {"ann": clients["a"], "bob": (clients["b"][0], np.full((9, 4), -100))}
    FederatedDataModule.from_clients(half, test_fraction=0).setup()
    said = "12 of 15 training samples have no label and are left out, all those of bob"
    assert said in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"no training sample of _Arrays has a label; correct --data\.dataset"):
        data_of(torch.full_like(Y, -100), Sequences(3, ignore_index=-100))
