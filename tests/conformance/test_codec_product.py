"""Every codec with every feedback around every algorithm that promises all combinations: it runs, or is refused before.

The short lane has a part of the product, drawn by the names; the long lane has all of it, and of algorithms without the
promise one codec each.
"""

import inspect
import zlib

import pytest
import torch
from federated_round import MULTICLASS, Federation, make_clients, make_task
from test_algorithms import SMALL, all_algorithms, finite

from lit_fed.errors import ConfigError
from lit_fed.models import MLP, Linear
from lit_fed.settings import model_settings
from lit_fed.wrappers.compression import codecs

ALGORITHMS = {cls.__name__: cls for cls in all_algorithms() if cls().participation.divided_by == "samples"}
PROMISED = [name for name, cls in ALGORITHMS.items() if cls.in_every_combination]
CODECS = {
    name: cls for name in codecs.__all__
    if inspect.isclass(cls := getattr(codecs, name)) and issubclass(cls, codecs.Codec) and not inspect.isabstract(cls)
}  # fmt: skip
SETTINGS = {"TopK": {"fraction": 0.5}, "RandomK": {"fraction": 0.5}}


def number_of(*names):
    """A number that the names draw."""
    return zlib.crc32(" ".join(names).encode())


FEEDBACKS = "none", "ef14", "ef21", "downlink"
"""Of messages; and the codec of broadcasts, which has none."""

TRIPLES = [(one, codec, feedback) for one in PROMISED for codec in CODECS for feedback in FEEDBACKS]
DRAWN = [one for one in TRIPLES if number_of(*one) % 40 == 0]


def network(shape, num_outputs):
    """A leaf of 64 numbers, which is the smallest that is encoded."""
    return MLP(shape, num_outputs, (16,))


def started(name, codec, feedback):
    """The federation, after all that a module refuses before training; and whether it encodes."""
    cls, codec = ALGORITHMS[name], CODECS[codec](**SETTINGS.get(codec, {}))
    scope = "leaf" if codec.keeps_shape else "whole"
    options = {"downlink_compression": codec} if feedback == "downlink" else {"compression": codec}
    options |= {} if feedback == "downlink" else {"compression_feedback": feedback}
    given = model_settings(algorithm=cls(**SMALL.get(name, {})), compression_scope=scope, **options)
    given.check_combination()
    linear = "mlp" in given.algorithm.incompatible or name == "MOCHA"
    task = make_task(MULTICLASS, network=Linear if linear else network)
    train = make_clients([5, 1, 7], target=MULTICLASS)
    weighting = given.algorithm.participation.weighting
    terms = {"batch_size": 4, "num_rounds": 2, "weighting": weighting, "groups": torch.tensor([0, 1, 0])}
    federation = Federation(given.wrapped, train, task, **terms)
    for one in given.features:
        one.check_models(given.wrapped, federation.terms, federation.shared)
    return federation


def check(name, codec, feedback):
    """Two rounds, the second of which leaves a client out."""
    try:
        federation = started(name, codec, feedback)
    except ConfigError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "compression" in refused
        assert "; " in refused, "it names a fix"
        return
    federation.round()
    federation.round(None if federation.algorithm.participation.needs_all_clients else [0, 2])
    assert finite((federation.shared, federation.states, federation.predictions()))
    assert torch.isfinite(federation.bits).all()


@pytest.mark.parametrize(("name", "codec", "feedback"), DRAWN, ids=lambda one: one)
def test_a_drawn_triple_runs_or_is_refused(name, codec, feedback):
    check(name, codec, feedback)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("name", PROMISED)
def test_every_triple_runs_or_is_refused(name, codec):
    for feedback in FEEDBACKS:
        check(name, codec, feedback)


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in PROMISED])
def test_a_codec_around_others_runs_or_is_refused(name):
    codec = sorted(CODECS)[number_of(name) % len(CODECS)]
    for feedback in FEEDBACKS:
        check(name, codec, feedback)


def test_the_product_is_whole():
    assert len(PROMISED) >= 33
    assert {"TopK", "QSGD", "Drive"} <= CODECS.keys()
    assert 10 < len(DRAWN) < len(TRIPLES) / 20
