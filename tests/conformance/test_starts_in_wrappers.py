"""Starts of mixtures and FedEM's averages inside each wrapper: they run to the end, or are refused before training."""

import pytest
import torch
from federated_round import distance, make_clients, make_task, run_rounds
from normalised import NormalisedMLP
from test_algorithms import small_mlp

from lit_fed import FederatedModule
from lit_fed.algorithms import FedEM, ResponsibilityFedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.errors import ConfigError
from lit_fed.wrappers.compression.codecs import QSGD, RandomK, TopK
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.mixture_start import Clustering
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.robust.attacks import Gaussian
from lit_fed.wrappers.robust.rules import CenteredClipping
from lit_fed.wrappers.secure.wrapper import SecureSum

BUDGET = {"noise_multiplier": 0.5, "clip_norm": 1.0, "delta": 1e-3, "noise_seed": 0}
WHOLE = {"compression_scope": "whole"}

AROUND = {
    "nothing": {},
    "stale_fill": {"aggregation": "stale_fill"},
    "client privacy": {"privacy": ClientPrivacy(**BUDGET)},
    "local privacy": {"privacy": LocalPrivacy(**BUDGET)},
    "example privacy": {"privacy": ExamplePrivacy(**BUDGET, sample_rate=0.5, mixture_noise=1.0)},
    "ef14": {"compression": TopK(0.5), "compression_feedback": "ef14"} | WHOLE,
    "no feedback": {"compression": QSGD(), "compression_feedback": "none"} | WHOLE,
    "ef21": {"compression": TopK(0.5), "compression_feedback": "ef21"} | WHOLE,
    "downlink": {"downlink_compression": QSGD()} | WHOLE,
    "secure sum": {"secure_aggregation": SecureSum()},
    "secure sum with dropouts": {"secure_aggregation": SecureSum(dropout_fraction=0.3, threshold=0.4)},
    "secure sum of codes": {"secure_aggregation": SecureSum(), "compression": RandomK(0.5)} | WHOLE,
    "robust rule": {"robust_aggregation": CenteredClipping(0.05, 2)},
    "attack": {"attack": Gaussian()},
    "faults": {"faults": Faults(0.3, "after", deadline=2.0, compute_mean=1.0)},
    "faults by expectation": {"faults": Faults(0.3, "after", average="expected")},
    "FedBN": {"batch_norm": "local"},
    "own heads": {"personal": ["head"], "personal_training": "alternating"},
}

STARTS = {"none": None, "clustering": Clustering(1)}

AVERAGES = {"samples": FedEM, "responsibility": ResponsibilityFedEM}

SECRET = {"client privacy", "local privacy", "example privacy"}
JUDGED = {"robust rule", "attack"}
ABSENT = {"ef21", "faults by expectation"}


def refused(average, start, around):
    """Whether the combination has no meaning, or tells what must not be told."""
    if around == "example privacy" and start == "none":
        return False  # the noise on the mixture weights protects what follows from them
    if average == "responsibility":
        return around in SECRET | JUDGED | ABSENT
    return start == "clustering" and around in SECRET | ABSENT


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("average", AVERAGES)
def test_a_start_runs_in_a_wrapper_or_is_refused_before(average, start, around):
    begin, options = STARTS[start], AROUND[around]
    if refused(average, start, around):
        cause = r"--model\.algorithm\.start \w+" if average == "samples" else r"--model\.algorithm(\.start)? \w+"
        with pytest.raises(ConfigError, match=rf"--model\..*({cause}|each model over those who chose it)"):
            FederatedModule(AVERAGES[average](2, start=begin), **options)
        return
    module = FederatedModule(AVERAGES[average](2, start=begin), **options)
    settings = {
        "train": make_clients([6, 1, 4]),
        "solver": LocalSolver(local_steps=1),
        "task": make_task(network=NormalisedMLP if around == "FedBN" else small_mlp),
        "cohorts": [[0, 1, 2], [2, 0], [1, 2]],
        "rounds": 2,
        "attackers": torch.tensor([False, True, False]) if around == "attack" else None,
    }
    terms = {"aggregation": options.get("aggregation", "renormalised"), "weighting": module.settings.weighting}
    runs = [
        run_rounds(module.algorithm, trainer(), **settings, **terms, clients_per_block=size)
        for trainer, size in ((SequentialTrainer, None), (VectorizedTrainer, 1))
    ]
    one, other = ((run.shared, run.states, run.predictions()) for run in runs)
    assert distance(one, other) < 1e-9
    assert all(leaf.isfinite().all() for leaf in tree.leaves(one[2]))
