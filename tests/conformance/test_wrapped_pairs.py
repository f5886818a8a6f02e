"""Two wrappers at once: every pair gives the same bits however clients are cut into blocks, or is refused by name."""

from itertools import combinations

import pytest
from combination import surrounded
from federated_round import make_clients, same_bits
from normalised import NormalisedMLP
from test_algorithms import SIZES, after_rounds, everything, small_mlp

from lit_fed import FederatedModule
from lit_fed.algorithms import IFCA, FedEM
from lit_fed.core.fine_tuning import FineTuning
from lit_fed.errors import ConfigError
from lit_fed.wrappers.compression.codecs import QSGD, RandomK, TopK
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.robust.rules import CenteredClipping
from lit_fed.wrappers.secure.wrapper import SecureSum

BUDGET = {"noise_multiplier": 0.5, "clip_norm": 1.0, "delta": 1e-3, "noise_seed": 0}

WRAPPERS = {
    "FedBN": {"batch_norm": "local"},
    "own heads": {"personal": ["head"]},
    "heads in turn": {"personal": ["head"], "personal_training": "alternating"},
    "RandomK": {"compression": RandomK(0.5), "compression_scope": "whole"},
    "QSGD": {"compression": QSGD(), "compression_scope": "whole"},
    "TopK": {"compression": TopK(0.5), "compression_scope": "whole"},
    "EF21": {"compression": TopK(0.5), "compression_feedback": "ef21", "compression_scope": "whole"},
    "downlink": {"compression_scope": "whole", "downlink_compression": QSGD()},
    "client privacy": {"privacy": ClientPrivacy(**BUDGET)},
    "local privacy": {"privacy": LocalPrivacy(**BUDGET)},
    "example privacy": {"privacy": ExamplePrivacy(**BUDGET, sample_rate=0.5, mixture_noise=1.0)},
    "secure sum": {"secure_aggregation": SecureSum()},
    "robust rule": {"robust_aggregation": CenteredClipping(0.05, 2)},
    "lost messages": {"faults": Faults([0.0, 0.0, 0.9, 0.9], "after")},
    "fine-tuning": {"serving": FineTuning(2, 0.1)},
}

REFUSED = {
    ("heads in turn", "example privacy"): "give joint",
    ("FedBN", "example privacy"): "batch normalisation",
    ("QSGD", "secure sum"): "choose RandomK",
    ("TopK", "secure sum"): "choose RandomK",
    ("EF21", "secure sum"): "choose RandomK",
    ("downlink", "secure sum"): "leave one out",
    ("EF21", "client privacy"): "give ef14",
    ("EF21", "local privacy"): "so that nothing is saved",
    ("RandomK", "local privacy"): "so that nothing is saved",
    ("QSGD", "local privacy"): "so that nothing is saved",
    ("TopK", "local privacy"): "so that nothing is saved",
    ("EF21", "example privacy"): "give ef14",
    ("EF21", "robust rule"): "give ef14",
    ("client privacy", "robust rule"): "choose LocalPrivacy",
    ("secure sum", "robust rule"): "needs every message",
    ("secure sum", "lost messages"): "dropout_fraction instead",
}

CHOICES = [{*options} - {"compression_scope"} for options in WRAPPERS.values()]
PAIRS = [
    pair
    for pair, (one, other) in zip(combinations(WRAPPERS, 2), combinations(CHOICES, 2), strict=True)
    if not one & other
]


def run(*names, **options):
    wrapped = surrounded(FedEM(2), **{key: value for name in names for key, value in WRAPPERS[name].items()})
    network = NormalisedMLP if "FedBN" in names else small_mlp
    return after_rounds(wrapped, make_clients(SIZES), 2, network=network, weighting="uniform", **options)


def arguments(pair):
    """The pair as a module is given it."""
    return WRAPPERS[pair[0]] | WRAPPERS[pair[1]]


@pytest.mark.parametrize("pair", PAIRS, ids=" and ".join)
def test_a_pair_runs_or_is_refused(pair):
    if pair in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[pair]):
            run(*pair) if "FedBN" in pair else FederatedModule(FedEM(2), **arguments(pair))
        return
    FederatedModule(FedEM(2), **arguments(pair))
    whole, cut, inner = run(*pair), run(*pair, clients_per_block=1), run(pair[0])
    assert same_bits(everything(whole), everything(cut))
    assert all(leaf.isfinite().all() for leaf in whole.predictions())
    assert not same_bits(whole.predictions(), inner.predictions()), "the second does something"


def test_who_is_inside_whom():
    """Clipping comes last before messages are added up, and rules judge what is added."""
    names = ("fine-tuning", "FedBN", "lost messages", "QSGD", "client privacy", "secure sum", "robust rule")
    options = {key: value for name in names for key, value in WRAPPERS[name].items()}
    wrapped = surrounded(FedEM(2), **options | {"compression": QSGD(), "downlink_compression": QSGD()})
    found = []
    while not isinstance(wrapped, FedEM):
        found, wrapped = [type(wrapped).__name__, *found], wrapped.inner
    order = [
        "FineTuned",
        "PersonalParts",
        "Unreliable",
        "Compressed",
        "PrivateAverage",
        "SecureAverage",
        "RobustAverage",
    ]
    assert found == [*order, "CompressedBroadcast"]


def test_refused_pairs_are_pairs():
    assert REFUSED.keys() <= set(PAIRS)


def test_models_that_clients_choose_are_judged_although_they_hear_encoded_ones():
    rule = CenteredClipping(0.05, 2)
    wrapped = surrounded(IFCA(2), compression_scope="whole", downlink_compression=QSGD(), robust_aggregation=rule)
    whole, cut = (
        after_rounds(wrapped, make_clients(SIZES), 2, network=small_mlp, weighting="uniform", clients_per_block=number)
        for number in (len(SIZES), 1)
    )
    assert same_bits(everything(whole), everything(cut))
