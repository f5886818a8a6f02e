"""Noise at the clients: bounds, deviations, what it costs, and that it is the same however clients are run."""

import math
from dataclasses import replace

import pytest
import torch
from combination import refuse, surrounded
from federated_round import Federation, distance, make_clients, make_context, make_task, same_bits

from lit_fed.algorithms import UCFL, FedAvg, FedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.algorithm import GlobalModels
from lit_fed.core.types import Message, ModelState
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import WrappedShared, part_of
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.privacy.accountant import epsilon_of_local_messages
from lit_fed.wrappers.privacy.local import LocalPrivacy, NoisyClients
from lit_fed.wrappers.privacy.settings import Private
from lit_fed.wrappers.robust.rules import Krum
from lit_fed.wrappers.secure.wrapper import SecureSum

QUIET = LocalPrivacy(0.0, delta=1e-5, clip_norm=1.0, noise_seed=0)
SIZES = [6, 3, 9, 4]


class Client:
    client_id = torch.tensor(2)


def sent(privacy, change, ctx):
    """The change that a message tells, of a client whose own is `change`, [d]."""
    wrapper = NoisyClients(FedAvg(), privacy)
    start = GlobalModels(ModelState({"w": torch.ones(1, len(change), dtype=torch.float64)}, {}))
    shared = WrappedShared(start, wrapper.server_memory(ctx, start))
    message = Message(ModelState({"w": 1 + change[None]}, {}), torch.tensor(7.0, dtype=torch.float64))
    message, _, metrics = wrapper.encode(ctx, shared, message, (), Client)
    assert message.weight == 1
    return message.value.parameters["w"][0] - 1, float(metrics["privacy/clipped_share"])


def run(privacy, trainer=SequentialTrainer, per_block=None, dtype=torch.float32, cohorts=((0, 2, 3), (2,))):
    federation = Federation(
        NoisyClients(FedEM(2), privacy),
        make_clients(SIZES, dtype=dtype),
        make_task(dtype=dtype),
        trainer=trainer(),
        clients_per_block=per_block,
        weighting="uniform",
        num_rounds=4,
    )
    for cohort in cohorts:
        federation.round(list(cohort))
    return federation


def test_changes_are_bounded():
    told, clipped = sent(QUIET, torch.tensor([3.0, 4.0], dtype=torch.float64), make_context())
    assert told.tolist() == pytest.approx([0.6, 0.8])
    assert clipped == 1
    told, clipped = sent(QUIET, torch.tensor([0.3, 0.4], dtype=torch.float64), make_context())
    assert told.tolist() == pytest.approx([0.3, 0.4])
    assert clipped == 0


def test_deviation_of_the_noise():
    privacy, still = replace(QUIET, noise_multiplier=5.0, clip_norm=0.1), torch.zeros(100_000, dtype=torch.float64)
    noise, _ = sent(privacy, still, make_context())
    assert float(noise.std()) == pytest.approx(0.5, rel=0.01)
    assert abs(float(noise.mean())) < 0.01
    again, later, other = (
        sent(privacy, still, make_context(**fields))[0] for fields in ({}, {"round_idx": 1}, {"phase": "other"})
    )
    assert torch.equal(noise, again)
    assert not torch.equal(noise, later)
    assert not torch.equal(noise, other)


def test_both_client_trainers_and_all_blocks():
    noisy = replace(QUIET, noise_multiplier=0.5)
    runs = [run(noisy, per_block=per_block).shared for per_block in (1, 2, 4)]
    assert all(same_bits(runs[0], other) for other in runs[1:])
    one, other = (run(noisy, trainer, dtype=torch.float64).shared for trainer in (SequentialTrainer, VectorizedTrainer))
    assert distance(one, other) < 1e-9


def test_without_bound_and_noise_nothing_happens():
    private = run(replace(QUIET, clip_norm=1e300))
    plain = Federation(FedEM(2), make_clients(SIZES, dtype=torch.float32), make_task(dtype=torch.float32),
                       weighting="uniform", num_rounds=4)  # fmt: skip
    for cohort in ([0, 2, 3], [2]):
        plain.round(cohort)
    assert same_bits(private.shared.inner, plain.shared)


def test_the_busiest_client_is_charged():
    noisy = replace(QUIET, noise_multiplier=5.0)
    federation = run(noisy, cohorts=[(0, 2, 3), (2,), ()])
    assert federation.shared.own.messages.tolist() == [1, 0, 2, 1]
    found = federation.algorithm.guarantee(federation.terms, federation.shared.own)
    assert found["epsilon"] == epsilon_of_local_messages(5.0, 2, 1e-5)
    assert (found["releases"], found["adjacency"]) == (2, "replace by any other")
    assert found["accountant"] == "exact Gaussian, dp-accounting 0.6.0"
    said = federation.algorithm.plan(federation.context("plan"), federation.shared.own)
    assert said[0].endswith("at δ 1e-05 after 3 messages of a client (exact Gaussian, dp-accounting 0.6.0)")


@pytest.mark.parametrize(
    ("around", "counted"),
    [
        (
            {"robust_aggregation": Krum(num_attackers=2)},
            [3, 3, 3, 3],
        ),  # five clients are needed: all rounds skipped
        ({"faults": Faults(dropout=0.9, when="after")}, [3, 3, 3, 3]),  # lost after the work: they were sent
        ({"faults": Faults(deadline=0.1, compute_mean=5.0)}, [3, 3, 3, 3]),  # too late: they were sent
        ({"faults": Faults(dropout=[0.0, 0.999999, 0.0, 0.0])}, [3, 0, 3, 3]),  # never asked
        ({"secure_aggregation": SecureSum(dropout_fraction=0.9)}, [3, 3, 3, 3]),  # void rounds
    ],
)
def test_a_message_is_charged_whatever_becomes_of_it(around, counted):
    noisy = replace(QUIET, noise_multiplier=5.0)
    algorithm = surrounded(FedAvg(), privacy=noisy, **around)
    federation = Federation(algorithm, make_clients(SIZES), weighting="uniform", num_rounds=3)
    before = federation.shared
    for _ in range(3):
        federation.round()
    private, own = part_of(federation.algorithm, federation.shared, Private)
    assert own.messages.tolist() == counted
    assert private.guarantee(federation.terms, own)["epsilon"] == epsilon_of_local_messages(5.0, 3, 1e-5)
    if "robustness" in around:  # the rule took nothing in
        assert same_bits(before.inner.inner, federation.shared.inner.inner)


def test_a_target_is_meant_for_a_number_of_rounds():
    privacy = LocalPrivacy(target_epsilon=4.0, delta=1e-5, clip_norm=1.0)
    federation = run(privacy)
    noise = float(federation.shared.own.noise_multiplier)
    assert epsilon_of_local_messages(noise, 4, 1e-5) == pytest.approx(4, rel=1e-9)
    federation.num_rounds = 5
    with pytest.raises(ConfigError, match=r"target_epsilon 4 wants a noise multiplier of .* for 5 rounds"):
        federation.algorithm.plan(federation.context("plan"), federation.shared.own)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_epsilon": 1.0}, "noise_multiplier and target_epsilon are both given; give one"),
        ({"delta": None}, "--model.privacy.delta is missing"),
        ({"clip_norm": None}, "--model.privacy.clip_norm is missing"),
        ({"clip_norm": -1.0}, "--model.privacy.clip_norm is -1.0; give a number > 0"),
        ({"noise_multiplier": math.inf}, "--model.privacy.noise_multiplier is inf; give a number >= 0"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        replace(QUIET, **settings)


def test_what_does_not_go_together():
    refuse(FedAvg(), aggregation="stale_fill", privacy=QUIET)
    refuse(FedAvg(), privacy=QUIET, sampling="size")
    with pytest.raises(ConfigError, match=r"--model\.weighting is samples, which tells how many each client has"):
        refuse(FedAvg(), weighting="samples", privacy=QUIET)
    with pytest.raises(ConfigError, match="UCFL keeps rows of single clients at the server"):
        refuse(UCFL(), privacy=QUIET)
