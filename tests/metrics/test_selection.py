"""Which metrics a user asks for, and what is said of those that cannot be had."""

import pytest
import torch
import torchmetrics
from torchmetrics import Metric, MetricCollection, classification

from lit_fed.core.targets import Binary, Multiclass, Regression, Sequences
from lit_fed.errors import ConfigError
from lit_fed.metrics.selection import choose_metrics, wanted_metrics, with_classes

MACRO = {"class_path": "F1Score", "init_args": {"average": "macro"}}


class Brier(Metric):
    """Of one's own."""

    higher_is_better = False

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, preds, target):
        self.total += (preds - target).square().sum()
        self.count += len(target)

    def compute(self):
        return self.total / self.count


class Shy(Brier):
    def compute(self):
        raise RuntimeError("not today")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, []),
        ([], []),
        ("AUROC", ["auroc"]),
        ("AUROC, R2Score ,MatthewsCorrCoef", ["auroc", "r2_score", "matthews_corr_coef"]),
        (["AUROC", {"F1Score": {"average": "macro"}}], ["auroc", "f1_score"]),
        ({"AUROC": None, "F1Score": {"average": "macro"}}, ["auroc", "f1_score"]),
        ({"macro": MACRO, "F": "FBetaScore"}, ["macro", "F"]),
        ([{"macro": MACRO}, MACRO], ["macro", "f1_score"]),
        ("torchmetrics.classification.BinaryAUROC", ["binary_auroc"]),
        (["BinaryCalibrationError", "FBetaScore"], ["binary_calibration_error", "f_beta_score"]),
        (classification.BinaryAUROC, ["binary_auroc"]),
        ([classification.BinaryAUROC(), "AUROC"], ["binary_auroc", "auroc"]),
        ({"area": classification.BinaryAUROC()}, ["area"]),
        (MetricCollection({"a": classification.BinaryAUROC(), "b": Brier()}), ["a", "b"]),
        ([MetricCollection([classification.BinaryAUROC()], prefix="my_")], ["my_BinaryAUROC"]),
        (Brier, ["brier"]),
        (f"{__name__}.Brier", ["brier"]),
    ],
)
def test_ways_to_give_them(given, names):
    assert [one.name for one in wanted_metrics(with_classes(given))] == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("AUROCC", "--model.metrics AUROCC: there is no such metric; did you mean AUROC?"),
        ("auroc", "did you mean AUROC?"),
        ("F1", "did you mean F1Score?"),
        ("R2", "did you mean R2Score?"),
        ("nonsense", "give a class of torchmetrics, or the path of a user-defined one"),
        ("", "--model.metrics '': there is no such metric"),
        ("AUROC,", "there is no such metric"),
        (".AUROC", "there is no such metric"),
        ("no_such.Metric", r"there is no such metric (No module named 'no_such')"),
        ("lit_fed.FedEM", "which is not a torchmetrics.Metric; give a class such as"),
        ([5], "--model.metrics has 5, which is not a torchmetrics.Metric"),
        ("AUROC,AUROC", "--model.metrics has AUROC, but auroc exists already; give it another name, as in "),
        ({"f1": "F1Score", "f1_worst": "AUROC"}, "f1_worst exists already"),
        (
            "Accuracy",
            "--model.metrics has Accuracy, but accuracy is always measured; leave it out, or give it another name",
        ),
        ({"loss": "HingeLoss"}, "loss exists already"),
        ({"group": "AUROC"}, "group exists already"),
        ({"pi_0": "AUROC"}, "'pi_0' cannot be the name of a metric"),
        ({"a/b": "AUROC"}, "'a/b' cannot be the name of a metric; give letters, digits and _"),
        ({"class_path": "AUROC", "name": "x"}, "name beside class_path; put arguments into init_args"),
        ({"x": {"class_path": "AUROC", "init_args": [3]}}, "the arguments of AUROC are [3]; give them by name"),
    ],
)
def test_refused_at_once(given, message):
    with pytest.raises(ConfigError) as refused:
        wanted_metrics(with_classes(given))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "target", "message"),
    [
        (
            "AUROC",
            Regression(),
            "AUROC measures classes, but the labels are numbers; choose for example R2Score or Mean",
        ),
        (
            "R2Score",
            Multiclass(3),
            "R2Score measures numbers, but the labels are multiclass, 3 classes; choose for example AUROC",
        ),
        ("MeanMetric", Binary(), "MeanMetric is of torchmetrics.aggregation and measures neither classes nor numbers"),
        ("BinaryAUROC", Multiclass(3), "BinaryAUROC is BinaryAUROC, but the labels are multiclass, 3 classes; leave"),
        ({"AUROC": {"task": "multilabel"}}, Binary(), "AUROC is MultilabelAUROC, but the labels are binary"),
        ({"AUROC": {"task": "binry"}}, Binary(), "AUROC refuses its arguments: Invalid Classification"),
        (
            {"F1Score": {"avrage": "macro"}},
            Binary(),
            "F1Score has 'avrage', which is not handed on to torchmetrics; did",
        ),
        ({"F1Score": {"num_groups": 2}}, Binary(), "F1Score refuses its arguments: Unexpected keyword arguments"),
        ("MulticlassFBetaScore", Multiclass(3), "missing 1 required positional argument: 'beta'"),
        ("ConfusionMatrix", Multiclass(3), "ConfusionMatrix gives 9 numbers per client instead of one"),
        ({"F1Score": {"average": "none"}}, Multiclass(3), "F1Score gives 3 numbers per client"),
        ({"AUROC": {"average": "none"}}, Sequences(3), "AUROC gives 3 numbers per client"),
        ("ROC", Binary(), "ROC gives a tuple per client"),
        ("KLDivergence", Regression(), "KLDivergence cannot measure these: the labels are numbers, and it says: "),
        (classification.MulticlassAUROC(5), Multiclass(3), "MulticlassAUROC cannot measure these: the labels are mul"),
        (f"{__name__}.Nothing", Binary(), "there is no such metric"),
        (Shy, Binary(), "Shy cannot measure these: the labels are binary, 2 classes, and it says: not today"),
    ],
)
def test_refused_for_these_labels(given, target, message):
    with pytest.raises(ConfigError) as refused:
        choose_metrics(with_classes(given), target)
    assert message in str(refused.value)


def test_arguments_are_filled_in_from_the_labels():
    (one,) = choose_metrics("AUROC", Multiclass(7)).metrics
    assert (type(one.metric), one.metric.num_classes) == (classification.MulticlassAUROC, 7)
    (one,) = choose_metrics("MulticlassF1Score", Sequences(4)).metrics
    assert one.metric.num_classes == 4
    (one,) = choose_metrics({"AUROC": {"task": "multiclass"}}, Binary()).metrics
    assert one.metric.num_classes == 2
    (one,) = choose_metrics("AUROC", Binary()).metrics
    assert isinstance(one.metric, torchmetrics.classification.BinaryAUROC)


def test_which_end_is_the_worse():
    chosen = choose_metrics("AUROC,CalibrationError,Specificity", Binary())
    ends = {"auroc": True, "calibration_error": False, "specificity": None, "accuracy": True, "loss": False}
    assert chosen.directions == ends
    assert [one.larger_is_better for one in choose_metrics(Brier, Binary()).metrics] == [False]
