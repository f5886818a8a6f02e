"""Starts of mixtures and FedEM's averages inside each wrapper: they run to the end, or are refused before training."""

import pytest
import torch
from federated_round import distance, make_clients, make_task, run_rounds
from normalised import NormalisedMLP
from test_algorithms import small_mlp

from lit_fed import FederatedModule
from lit_fed.algorithms import FedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures.starts import Annealing, Clustering, FarthestClients, Restarts, SplitAndMerge
from lit_fed.errors import ConfigError
from lit_fed.wrappers.compression.codecs import QSGD, RandomK, TopK
from lit_fed.wrappers.faults.wrapper import Faults
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
    "secure sum with dropouts": {"secure_aggregation": SecureSum(masks=True, dropout_fraction=0.3, threshold=0.4)},
    "secure sum of codes": {"secure_aggregation": SecureSum(), "compression": RandomK(0.5)} | WHOLE,
    "robust rule": {"robust_aggregation": CenteredClipping(0.05, 2)},
    "attack": {"attack": Gaussian()},
    "faults": {"faults": Faults(0.3, "after", deadline=2.0, compute_mean=1.0)},
    "faults by expectation": {"faults": Faults(0.3, "after", average="expected")},
    "FedBN": {"batch_norm": "local"},
    "own heads": {"personal": ["head"], "personal_training": "alternating"},
}

STARTS = {
    "none": None,
    "annealing": Annealing(1),
    "clustering": Clustering(1),
    "restarts": Restarts(2, 1),
    "farthest clients": FarthestClients(1),
    "split and merge": SplitAndMerge(1, 1, unused=1.0),
}

AVERAGES = ["samples", "responsibility", "rescaled"]

SECRET = {"client privacy", "local privacy", "example privacy"}
JUDGED = {"robust rule", "attack"}
ABSENT = {"ef21", "faults by expectation"}
SUMS = {"secure sum", "secure sum with dropouts", "secure sum of codes"}


def refused(average, start, around):
    """Whether the combination has no meaning, or tells what must not be told."""
    if around == "example privacy" and start == "none":
        return False  # the noise on the mixture weights protects what follows from them
    if start in ("restarts", "farthest clients", "split and merge"):
        told = SECRET | JUDGED | SUMS | {"faults by expectation", "FedBN", "own heads"}
        return around in told | (ABSENT if start == "farthest clients" or average == "responsibility" else set())
    if average == "rescaled":
        return around in SECRET | JUDGED | {"faults by expectation"} | (ABSENT if start == "clustering" else set())
    if start == "annealing" and around == "example privacy":
        return True
    if average == "responsibility":
        return around in SECRET | JUDGED | ABSENT
    return start == "clustering" and around in SECRET | ABSENT


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("average", AVERAGES)
def test_a_start_runs_in_a_wrapper_or_is_refused_before(average, start, around):
    begin, options = STARTS[start], AROUND[around]
    if refused(average, start, around):
        cause = "start" if average == "samples" else "(start|average)"
        with pytest.raises(ConfigError, match=rf"--model\..*--model\.algorithm\.{cause} \w+"):
            FederatedModule(FedEM(2, average=average, start=begin), **options)
        return
    module = FederatedModule(FedEM(2, average=average, start=begin), **options)
    settings = {
        "train": make_clients([6, 1, 4]),
        "solver": LocalSolver(local_steps=1),
        "task": make_task(network=NormalisedMLP if around == "FedBN" else small_mlp),
        "cohorts": [[0, 1, 2], [2, 0], [1, 2]],
        "rounds": 1 if begin is None else begin.length(2),
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


@pytest.mark.parametrize("around", AROUND)
def test_auto_is_accepted_where_samples_are(around):
    for start in STARTS.values():
        try:
            FederatedModule(FedEM(2, start=start), **AROUND[around])
        except ConfigError:
            continue
        FederatedModule(FedEM(2, average="auto", start=start), **AROUND[around])
