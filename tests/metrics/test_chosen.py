"""Metrics of one client after another, against scikit-learn on the same predictions."""

import numpy as np
import pytest
import torch
import torchmetrics
from sklearn import metrics as sk
from torchmetrics import classification

from lit_fed.core.targets import Binary, Multiclass, MultiLabel, Regression, Sequences, VectorRegression
from lit_fed.errors import ConfigError
from lit_fed.metrics.pooled import Pool
from lit_fed.metrics.scores import ClientScores
from lit_fed.metrics.selection import choose_metrics

MULTILABEL = MultiLabel(3)


def measured(given, target, clients, parts=1, padding=0):
    """The numbers of clients [C, K], from their predictions [n, ...] and labels, some samples at a time."""
    meter = choose_metrics(given, target).meter(len(clients))
    for row, (prediction, y) in enumerate(clients):
        for some, labels in zip(prediction.chunk(parts), y.chunk(parts), strict=True):
            mask = torch.cat([torch.ones(len(labels)), torch.zeros(padding)])
            some, labels = (torch.cat([one, one[:1].expand(padding, *one.shape[1:])]) for one in (some, labels))
            meter.add(torch.tensor([row]), some[None], labels[None], mask[None])
    return torch.stack([*meter.values().values()], dim=1)


def classes(num_classes, size, present=None, seed=0):
    generator = torch.Generator().manual_seed(seed)
    prediction = torch.randn(size, num_classes, generator=generator).log_softmax(1)
    y = torch.randint(present or num_classes, (size,), generator=generator)
    return prediction, y


def test_two_classes():
    clients = [classes(2, 30, seed=seed) for seed in range(3)]
    found = measured("AUROC,AveragePrecision,F1Score,MatthewsCorrCoef", Binary(), clients, parts=3, padding=4)
    for (prediction, y), numbers in zip(clients, found.tolist(), strict=True):
        p, y = prediction[:, 1].exp().numpy(), y.numpy()
        hard = p > 0.5
        expected = [
            sk.roc_auc_score(y, p), sk.average_precision_score(y, p), sk.f1_score(y, hard),
            sk.matthews_corrcoef(y, hard),
        ]  # fmt: skip
        assert numbers == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("present", [5, 3])
def test_areas_are_averaged_over_the_classes_that_a_client_has(present):
    prediction, y = classes(5, 60, present)
    given = {
        "macro": "AUROC",
        "weighted": {"class_path": "AUROC", "init_args": {"average": "weighted"}},
        "precision": "AveragePrecision",
        "binned": {"class_path": "AUROC", "init_args": {"thresholds": 2000}},
    }
    (found,) = measured(given, Multiclass(5), [(prediction, y)], parts=2).tolist()
    p = prediction.exp().numpy()
    areas = [sk.roc_auc_score(y == c, p[:, c]) for c in range(present)]
    precisions = [sk.average_precision_score(y == c, p[:, c]) for c in range(present)]
    shares = np.bincount(y, minlength=present)[:present]
    expected = [np.mean(areas), np.average(areas, weights=shares), np.mean(precisions), np.mean(areas)]
    assert found[:3] == pytest.approx(expected[:3], rel=1e-5)
    assert found[3] == pytest.approx(expected[3], abs=2e-3)
    plain = float(torchmetrics.AUROC(task="multiclass", num_classes=5)(torch.from_numpy(p), y)) if present == 5 else 0
    assert present == 3 or found[0] == pytest.approx(plain, rel=1e-5)


def test_numbers():
    y = torch.linspace(-2, 3, 20)
    prediction = (y + torch.sin(7 * y))[:, None]
    (found,) = measured("R2Score,MeanAbsoluteError", Regression(), [(prediction, y)], parts=4, padding=2).tolist()
    expected = [sk.r2_score(y, prediction[:, 0]), sk.mean_absolute_error(y, prediction[:, 0])]
    assert found == pytest.approx(expected, rel=1e-5)


def test_positions_of_sequences_are_samples():
    prediction, y = classes(4, 48)
    given = {"f1": {"class_path": "F1Score", "init_args": {"average": "macro"}}}
    flat = measured(given, Multiclass(4), [(prediction, y)])
    assert measured(given, Sequences(4), [(prediction.view(8, 6, 4), y.view(8, 6))], padding=1).equal(flat)
    assert float(flat) == pytest.approx(sk.f1_score(y, prediction.argmax(1), average="macro"), rel=1e-5)


def test_perplexity_is_that_of_positions_that_count():
    prediction, y = classes(4, 48)
    expected = torch.exp(-prediction[torch.arange(40), y[:40]].mean())
    y[40:] = -100
    sequences = Sequences(4, ignore_index=-100)
    (found,) = measured("Perplexity", sequences, [(prediction.view(8, 6, 4), y.view(8, 6))], parts=2, padding=1)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert choose_metrics("Perplexity", sequences).names == ["perplexity"]
    with pytest.raises(ConfigError, match=r"torchmetrics\.text and measures neither"):
        choose_metrics("Perplexity", Regression())


@pytest.mark.parametrize(
    "given", ["Perplexity", {"JaccardIndex": {"average": "macro"}}, {"F1Score": {"average": "macro"}}]
)
def test_positions_of_all_clients_together_are_those_of_one_client_that_has_them(given):
    """Of 24, 40 and no positions that count: states add up, where predictions are too many to be held."""
    clients = [classes(4, size, seed=seed) for seed, size in enumerate((24, 48, 6))]
    clients[1][1][40:] = clients[2][1][:] = -100
    chosen, pool = choose_metrics(given, Sequences(4, ignore_index=-100)), Pool()
    rows = [(p.view(-1, 6, 4), y.view(-1, 6)) for p, y in clients]
    meter = chosen.meter(3, pool.add)
    for row, (prediction, y) in enumerate(rows):
        meter.add(torch.tensor([row]), prediction[None], y[None], torch.ones(1, len(y)))
    meter.values()
    ((key, found),) = pool.values(chosen, torch.device("cpu")).items()
    p, y = (torch.cat([one[place] for one in clients]) for place in (0, 1))
    p, y = p[y != -100].double(), y[y != -100].numpy()
    expected = {
        "perplexity": (-p[torch.arange(len(y)), y].mean()).exp(),
        "jaccard_index": sk.jaccard_score(y, p.argmax(1), average="macro"),
        "f1_score": sk.f1_score(y, p.argmax(1), average="macro"),
    }  # fmt: skip
    assert found == pytest.approx(float(expected[key.removesuffix("_pooled")]), rel=1e-5)
    assert pool.values(chosen, torch.device("cpu"), torch.tensor([0])) == pytest.approx(
        {key: float(meter.values()[key.removesuffix("_pooled")][0])}, rel=1e-5
    )


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("Recall", sk.recall_score),
        ("Precision", sk.precision_score),
        ("F1Score", sk.f1_score),
        ("Accuracy", sk.recall_score),
    ],
)
def test_macro_averages_leave_out_a_class_that_is_ignored(name, score):
    """scikit-learn's mean over the other classes of the samples that count; the client has no sample of 3."""
    prediction, y = classes(5, 60, present=3)
    kept = y != 1
    given = {"macro": {"class_path": name, "init_args": {"average": "macro", "ignore_index": 1}}}
    (found,) = measured(given, Multiclass(5), [(prediction, y)], parts=3).tolist()
    hard = prediction.argmax(1)[kept]
    expected = score(y[kept], hard, labels=[0, 2, 3, 4], average="macro", zero_division=0)
    assert found == pytest.approx([expected], rel=1e-5)
    (alone,) = measured(given, Multiclass(5), [(prediction[~kept], y[~kept])]).tolist()
    assert np.isnan(alone)


def test_several_labels_of_a_sample():
    p = torch.rand(40, 3, generator=torch.Generator().manual_seed(1))
    y = (torch.rand(40, 3, generator=torch.Generator().manual_seed(2)) < p).long()
    y[:, 2] = 0  # a label that no sample has
    prediction = torch.stack([1 - p, p], -1).log()
    (found,) = measured(["AUROC", "F1Score"], MULTILABEL, [(prediction, y)]).tolist()
    areas = [sk.roc_auc_score(y[:, c], p[:, c]) for c in range(2)]
    assert found == pytest.approx([np.mean(areas), sk.f1_score(y, p > 0.5, average="micro")], rel=1e-5)


def test_what_is_undefined_is_no_number():
    one_class = classes(2, 10)[0], torch.zeros(10, dtype=torch.long)
    both, ones = classes(2, 10), (one_class[0], one_class[1] + 1)
    given = ["AUROC", "AveragePrecision", "LogAUC", "F1Score"]
    found = measured(given, Binary(), [both, one_class, both, ones])
    assert found.isnan().tolist() == [[False] * 4, [True, True, True, False], [False] * 4, [True, False, True, False]]
    assert found[0].equal(found[2])
    y = torch.arange(6.0)
    found = measured("R2Score,MeanAbsoluteError", Regression(), [(y[:1, None], y[:1]), (y[:, None], y)])
    assert found[0].isnan().tolist() == [True, False]
    assert found[1].tolist() == [1.0, 0.0]


def test_correlations_of_constants_are_undefined():
    """torchmetrics gives 0 for SpearmanCorrCoef, R2Score and ExplainedVariance, 1e7 for RelativeSquaredError."""
    y, ones = torch.linspace(0, 1, 6), torch.ones(6)
    given = "SpearmanCorrCoef,PearsonCorrCoef,R2Score,ExplainedVariance,RelativeSquaredError,MeanAbsoluteError"
    clients = [(y[:, None].square(), y), (y[:, None], ones), (ones[:, None], y), (y[:, None].square(), y)]
    found = measured(given, Regression(), clients, parts=3)
    assert found.isnan().tolist() == [
        [False] * 6, [True] * 5 + [False], [True, True, False, False, False, False], [False] * 6
    ]  # fmt: skip
    assert found[0].equal(found[3])
    vectors = torch.stack([y, ones], 1)
    assert measured("R2Score", VectorRegression(2), [(vectors, vectors)]).isnan().all()


@pytest.mark.parametrize("name", ["MeanAbsoluteError", "MeanSquaredError"])
def test_errors_of_vectors(name):
    """Over all entries: torchmetrics takes a view of the predictions that it is tried on."""
    y = torch.linspace(-1, 2, 24).view(8, 3)
    expected = float(getattr(torchmetrics, name)()(y.cos(), y))
    assert float(measured(name, VectorRegression(3), [(y.cos(), y)])) == pytest.approx(expected, rel=1e-6)


def test_which_metrics_are_the_accuracy():
    given = [
        "Precision", "Recall", "F1Score", "Specificity", "AUROC",
        {"macro": {"class_path": "F1Score", "init_args": {"average": "macro"}}},
        {"some": {"class_path": "Recall", "init_args": {"ignore_index": 0}}},
        {"share": {"class_path": "Accuracy", "init_args": {"average": "micro"}}},
        {"two": {"class_path": "FBetaScore", "init_args": {"beta": 2.0}}},
    ]  # fmt: skip
    chosen = choose_metrics(given, Multiclass(4))
    same = [one.name for one in chosen.metrics if one.is_accuracy]
    assert same == ["precision", "recall", "f1_score", "share", "two"]
    prediction, y = classes(4, 50)
    found = measured(given, Multiclass(4), [(prediction, y)])[0]
    accuracy = sk.accuracy_score(y, prediction.argmax(1))
    for number, one in zip(found.tolist(), chosen.metrics, strict=True):
        assert (number == pytest.approx(accuracy, rel=1e-6)) == one.is_accuracy, one.name
    assert not any(one.is_accuracy for one in choose_metrics("Precision,Recall,F1Score", Binary()).metrics)


def test_why_there_is_no_number():
    chosen = choose_metrics("AUROC", Binary())
    meter = chosen.meter(1)
    prediction, y = classes(2, 5)
    meter.add(torch.tensor([0]), prediction[None], y[None] * 0, torch.ones(1, 5))
    assert meter.values()["auroc"].isnan().all()
    assert chosen.metrics[0].reason == "its samples are of one class"


def test_rounding_above_one_is_no_logit():
    prediction = torch.tensor([[-20.0, 1e-7], [1e-7, -20.0]])
    (found,) = measured("CalibrationError", Binary(), [(prediction, torch.tensor([1, 0]))])
    assert float(found) == pytest.approx(0, abs=1e-6)


def test_instances_stay_as_they_are():
    own = classification.BinaryF1Score()
    own.update(torch.tensor([0.9]), torch.tensor([1]))
    prediction, y = classes(2, 12)
    found = measured({"mine": own}, Binary(), [(prediction, y)])
    assert float(found) == pytest.approx(sk.f1_score(y, prediction.argmax(1)), rel=1e-6)
    assert float(own.compute()) == 1


def test_clients_do_not_mix():
    meter = choose_metrics("AUROC", Binary()).meter(2)
    prediction, y = classes(2, 4)
    for row in (0, 1):
        meter.add(torch.tensor([row]), prediction[None], y[None], torch.ones(1, 4))
    with pytest.raises(AssertionError, match="before those of the next"):
        meter.add(torch.tensor([0]), prediction[None], y[None], torch.ones(1, 4))


def test_statistics():
    nan = float("nan")
    chosen = choose_metrics("AUROC,CalibrationError,Specificity", Binary())
    values = torch.tensor([[0.5, 0.1, 0.2], [nan, 0.3, 0.4], [0.9, 0.2, nan], [0.7, 0.8, 0.1]], dtype=torch.float64)

    def statistics(values, samples):
        rows = torch.cat([samples[:, None].expand(-1, 3), values], 1)
        return chosen.statistics(ClientScores.of_rows(rows, 0, chosen.names))

    found = statistics(values, torch.tensor([1.0, 5, 3, 0]))
    expected = {
        "auroc": 0.8, "auroc_decile": 0.5, "auroc_worst": 0.5, "auroc_std": 0.2, "auroc_unweighted": 0.7,
        "auroc_undefined": 1,
        "calibration_error": 2.2 / 9, "calibration_error_decile": 0.3, "calibration_error_worst": 0.3,
        "calibration_error_std": float(np.std([0.1, 0.3, 0.2])), "calibration_error_unweighted": 0.2,
        "calibration_error_undefined": 0,
        "specificity": 2.2 / 6, "specificity_std": 0.1, "specificity_unweighted": 0.3, "specificity_undefined": 1,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    assert "specificity_worst" not in found
    assert statistics(values, torch.zeros(4)) == {}
    assert [key for key in statistics(torch.full((2, 3), nan), torch.ones(2)) if key in expected] == [
        "auroc_undefined", "calibration_error_undefined", "specificity_undefined"
    ]  # fmt: skip
