"""Metrics of this package on the worked examples of other libraries' documentation."""

import math

import pytest
import torch

from lit_fed import Multiclass, Quantiles, Ranking, Regression, Segmentation, Sequences
from lit_fed.metrics.selection import choose_metrics


def of_one_client(given, target, prediction, y):
    """The first of these metrics on the samples of one client."""
    meter = choose_metrics(given, target).meter(1)
    meter.add(torch.tensor([0]), prediction[None], y[None], torch.ones(1, len(y)))
    return float(next(iter(meter.values().values())))


def scores(relevance, given, top_k=None):
    ndcg = {"class_path": "RetrievalNormalizedDCG", "init_args": {"top_k": top_k}}
    return of_one_client({"ndcg": ndcg}, Regression(), torch.tensor(given)[:, None], torch.tensor(relevance))


def queries():
    """torchmetrics, RetrievalNormalizedDCG."""
    y = torch.tensor([[0.0, 0], [0, 0], [1, 0], [0, 1], [1, 1], [0, 1], [1, 1]])
    target, given = Ranking(), torch.tensor([0.2, 0.3, 0.5, 0.1, 0.3, 0.5, 0.2])
    return of_one_client(None, target, target.mix(torch.ones(1), given.logit()[:, None, None]), y)


def pixels(metric):
    """torchmetrics, MulticlassJaccardIndex and MulticlassF1Score, which is Dice: four pixels of three classes."""
    p = [[0.16, 0.26, 0.58], [0.22, 0.61, 0.17], [0.71, 0.09, 0.20], [0.05, 0.82, 0.13]]
    y, target = torch.tensor([[2, 1, 0, 0]]), Segmentation(3)
    return of_one_client({metric: {"average": "macro"}}, target, torch.tensor([p]).log(), y)


def perplexity():
    """torchmetrics, Perplexity: exp of the mean log-loss of all tokens that count."""
    torch.manual_seed(42)  # of its documentation
    logits, y, target = torch.rand(2, 8, 5), torch.randint(5, (2, 8)), Sequences(5, ignore_index=-100)
    y[0, 6:] = -100
    tokens = target.num_positions(y, torch.ones(2))
    return math.exp(float((target.losses(logits, y) * target.labelled(y).sum(1)).sum() / tokens))


def spam():
    """scikit-learn, log_loss of ham and spam."""
    p, target = torch.tensor([[0.1, 0.9], [0.9, 0.1], [0.8, 0.2], [0.35, 0.65]]), Multiclass(2)
    return float(target.score(p.log(), torch.tensor([1, 0, 0, 1]))[0].mean())


def of_level(predicted, level):
    """scikit-learn, mean_pinball_loss of the labels 1, 2, 3; the median, which is always there, is right."""
    y = torch.tensor([1.0, 2.0, 3.0])
    levels, both = zip(*sorted([(0.5, y), (level, torch.tensor(predicted))], key=lambda one: one[0]), strict=True)
    return 2 * float(Quantiles(1, levels=levels).losses(torch.stack(both, 1), y).mean())


EXAMPLES = {
    "ndcg of two queries": (queries, (), 0.8467),
    "ndcg": (scores, ([10.0, 0, 0, 1, 5], [0.1, 0.2, 0.3, 4, 70]), 0.6957),
    "ndcg of the first four": (scores, ([10.0, 0, 0, 1, 5], [0.05, 1.1, 1.0, 0.5, 0.0], 4), 0.35),
    "iou": (pixels, ("JaccardIndex",), 0.6667),
    "dice": (pixels, ("F1Score",), 0.7778),
    "perplexity": (perplexity, (), 5.8540),
    "log-loss": (spam, (), 0.21616),
    "pinball of a low level": (of_level, ([1.0, 2.0, 4.0], 0.1), 0.3),
    "pinball of a high level": (of_level, ([1.0, 2.0, 4.0], 0.9), 0.0333),
}


@pytest.mark.parametrize("example", EXAMPLES)
def test_published_value(example):
    function, arguments, published = EXAMPLES[example]
    assert function(*arguments) == pytest.approx(published, abs=5e-3 if published in (0.35, 0.3) else 6e-5)
