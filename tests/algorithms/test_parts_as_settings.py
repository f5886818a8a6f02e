"""Algorithms with a part of the model at each client are settings of `--model.personal`, bit for bit."""

import pytest
import torch
from federated_round import make_task, run_rounds, same_bits
from normalised import NormalisedMLP
from partial_models import settings, small_mlp, unseen_clients

from lit_fed.algorithms import FedAlt, FedAvg, FedAvgPlus, FedRep, FedSALoRA, FedSim, LGFedAvg
from lit_fed.core import tree
from lit_fed.errors import ConfigError
from lit_fed.wrappers.personal.parts import PersonalParts

HEAD = ("head",)
PAIRS = {
    "FedRep": (FedRep(head_epochs=3, body_steps=None), (HEAD, "alternating", 3)),
    "FedAlt": (FedAlt(personal_epochs=3, personal_lr=0.1), (HEAD, "alternating", 3, 0.1)),
    "FedSim": (FedSim(), (HEAD,)),
    "LGFedAvg": (LGFedAvg(), (("body",),)),
    "FedSALoRA": (FedSALoRA(("*.bias",)), (("*.bias",),)),
}


@pytest.mark.parametrize("network", [small_mlp, NormalisedMLP])
@pytest.mark.parametrize("name", PAIRS)
def test_a_class_is_its_setting(name, network, client_trainer):
    algorithm, parts = PAIRS[name]
    options = settings(network, epochs=2, lr=0.3, momentum=0.9, weight_decay=0.05, clip_norm=0.1)
    options |= {"cohorts": [[0, 1, 2], [1, 2], [0]], "weighting": "samples", "batch_size": 4}
    ours, theirs = (run_rounds(one, client_trainer, **options) for one in (algorithm, PersonalParts(FedAvg(), *parts)))
    assert same_bits(ours.shared.models, theirs.shared.inner.models)
    assert same_bits(ours.states.own, theirs.states.personal)
    assert (ours.bits.tolist(), ours.metrics) == (theirs.bits.tolist(), theirs.metrics)
    assert same_bits(ours.predictions(), theirs.predictions())
    assert same_bits(*(one.predictions(unseen_clients(), seen=False) for one in (ours, theirs)))


# ---------------------------------------------------------------------- partial tuning
@pytest.mark.parametrize("tune", ["head", "layers.1", "*.bias"])
def test_fedavg_plus_tunes_named_leaves_alone(tune, client_trainer):
    options = settings(epochs=2, lr=0.3, momentum=0.9)
    part, whole = (run_rounds(FedAvgPlus(2, tune=given), client_trainer, **options) for given in ((tune,), None))
    assert same_bits(part.shared, whole.shared)
    served, start = part.serve().models.parameters, part.shared.models.parameters
    moved = {name for name, leaf in served.items() if not torch.equal(leaf, start[name].expand_as(leaf))}
    assert (
        moved
        == {
            "head": {"layers.3.weight", "layers.3.bias"},
            "layers.1": {"layers.1.weight", "layers.1.bias"},
            "*.bias": {"layers.1.bias", "layers.3.bias"},
        }[tune]
    )


def test_all_leaves_by_name_are_all_leaves(client_trainer):
    options = settings(NormalisedMLP, lr=0.3, momentum=0.9, clip_norm=0.1) | {"batch_size": 4}
    named, whole = (run_rounds(FedAvgPlus(2, tune=given), client_trainer, **options) for given in ("*", None))
    assert same_bits(named.serve(), whole.serve())


@pytest.mark.parametrize(
    ("algorithm", "option"),
    [(FedAvgPlus(tune=("haed",)), "tune"), (FedRep("haed"), "head"), (FedAlt(("haed",)), "personal")],
    ids=["tune", "head", "personal"],
)
def test_a_misspelled_part_is_named_before_training(algorithm, option):
    with pytest.raises(ConfigError, match=rf"algorithm\.{option} has 'haed', .* did you mean head\?"):
        run_rounds(algorithm, rounds=0, **settings())


# ---------------------------------------------------------------------- steps of a part
@pytest.mark.parametrize("axis", ["loop", "vmap"])
@pytest.mark.parametrize("moving", [{"layers.4.weight"}, {"layers.1.bias", "layers.2.running_mean"}, set()], ids=sorted)
def test_a_step_moves_named_leaves_alone(moving, axis):
    """As a step of all leaves does, and the others keep their very memory."""
    task = make_task(network=NormalisedMLP, model_axis=axis)
    options = settings(NormalisedMLP, lr=0.3, momentum=0.9)
    solver, models, batch = options["solver"], task.init(2, 0), options["train"].client(2).batch
    lr, state = torch.tensor(0.3, dtype=torch.float64), solver.init(models)
    whole, part = (solver.step(task, models, state, batch, lr, moving=one) for one in (None, frozenset(moving)))
    assert same_bits(whole[2], part[2])
    for path, leaf in tree.items(part[0]):
        kind, _, name = path.partition("/")
        stepped, before = (getattr(one, kind)[name] for one in (whole[0], models))
        assert torch.equal(leaf, stepped) if name in moving else leaf is before
    for name, leaf in part[1].first.items():
        assert torch.equal(leaf, whole[1].first[name] if name in moving else torch.zeros_like(leaf))
