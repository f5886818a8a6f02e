"""Privacy of samples: settings, refusals, what is charged, and noisy mixture weights."""

import math

import pytest
import torch
from combination import refuse, surrounded
from federated_round import Federation, distance, make_clients, make_context, make_task
from normalised import NormalisedMLP

from lit_fed.algorithms import FedAvg, FedEM, FedPer, OfficialFedEM, ResponsibilityFedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.mixtures import e_step
from lit_fed.core.mixtures.e_step import expectation, nearest_mixture, private_expectation
from lit_fed.core.types import ClientData
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import part_of
from lit_fed.wrappers.faults.wrapper import Faults
from lit_fed.wrappers.privacy.example_level import Charged, ExamplePrivacy
from lit_fed.wrappers.privacy.settings import Private
from lit_fed.wrappers.robust.rules import Krum

GIVEN = {"noise_multiplier": 1.1, "clip_norm": 1.0, "sample_rate": 32 / 500, "delta": 1e-3, "noise_seed": 0}


def charged(steps, mixtures=0, noise=1.1):
    return Charged(torch.tensor(noise), torch.tensor([3.0, steps]).double(), torch.tensor([0.0, mixtures]).double())


def guarantee(own, **settings):
    privacy = ExamplePrivacy(**GIVEN | settings)
    return privacy.around(FedAvg()).guarantee(
        make_context(make_task(), most_samples=500, sizes=torch.tensor([300, 500])), own
    )


def test_the_client_with_the_most_steps_counts():
    pytest.importorskip("dp_accounting")
    found = guarantee(charged(1000.0), accountant="rdp")
    assert found["epsilon"] == pytest.approx(10.3763, abs=1e-4)
    assert (found["delta"], found["releases"], found["unit"]) == (1e-3, 1000, "a sample of a client")
    assert guarantee(charged(1000.0))["epsilon"] == pytest.approx(9.1685, abs=1e-4)


def test_cut_batches_cost_more():
    pytest.importorskip("dp_accounting")
    more = {"sample_rate": 0.1, "delta": 1e-5, "max_batch": 60, "noise_multiplier": 1.0}
    assert guarantee(charged(100.0, noise=1.0), **more)["epsilon"] == pytest.approx(13.70, abs=5e-3)


def test_cut_batches_of_every_size_are_charged():
    """The largest of the clients has the smallest ε."""
    pytest.importorskip("dp_accounting")
    settings = {"sample_rate": 0.1, "delta": 1e-4, "max_batch": 12, "noise_multiplier": 1.0}
    wrapped = ExamplePrivacy(**GIVEN | settings).around(FedAvg())
    ctx = make_context(make_task(), most_samples=400, sizes=torch.tensor([130, 140, 250, 400]))
    steps = torch.full((4,), 20.0, dtype=torch.float64)
    own = Charged(torch.tensor(1.0), steps, torch.zeros_like(steps))
    assert wrapped.guarantee(ctx, own)["epsilon"] == pytest.approx(10.424, abs=1e-3)
    assert wrapped.guarantee(ctx, own._replace(steps=steps.index_fill(0, torch.tensor([0, 1]), 0.0)))[
        "epsilon"
    ] == pytest.approx(8.516, abs=1e-3)
    assert "ε 10.42" in wrapped.plan(ctx._replace(num_rounds=1, num_clients=4), own._replace(steps=steps - 10))[0]


def test_noisy_mixtures_are_charged_beside_the_steps():
    pytest.importorskip("dp_accounting")
    epsilons = [
        guarantee(charged(100.0, mixtures), mixture_noise=5.0, accountant="rdp")["epsilon"] for mixtures in (0, 10, 20)
    ]
    assert epsilons == sorted(epsilons)
    assert len(set(epsilons)) == 3
    assert guarantee(charged(100.0, 10), mixture_noise=0.0)["epsilon"] == math.inf
    assert guarantee(charged(100.0, noise=0.0), noise_multiplier=0.0)["epsilon"] == math.inf
    both = [guarantee(charged(1.0, 10), mixture_noise=5.0, accountant=one)["epsilon"] for one in ("pld", "rdp")]
    assert 0 < both[0] < both[1]


def test_clients_are_charged_for_rounds_in_which_they_take_part():
    privacy = ExamplePrivacy(**GIVEN | {"sample_rate": 0.5, "mixture_noise": 3.0})
    federation = Federation(privacy.around(FedEM()), make_clients([4, 3, 2]), solver=LocalSolver(local_epochs=3))
    for cohort in ([0, 2], [2], [2, 1]):
        federation.round(cohort)
    assert federation.shared.own.steps.tolist() == [6, 6, 18]
    assert federation.shared.own.mixtures.tolist() == [1, 1, 3]


@pytest.mark.parametrize(
    "around", [{"robust_aggregation": Krum(num_attackers=2)}, {"faults": Faults(dropout=0.9, when="after")}]
)
def test_steps_are_charged_whatever_becomes_of_the_message(around):
    privacy = ExamplePrivacy(**GIVEN | {"sample_rate": 0.5})
    algorithm = surrounded(FedAvg(), privacy=privacy, **around)
    federation = Federation(algorithm, make_clients([4, 3, 2]), solver=LocalSolver(local_epochs=3))
    for _ in range(2):
        federation.round()
    assert part_of(federation.algorithm, federation.shared, Private)[1].steps.tolist() == [12, 12, 12]


def test_the_noise_of_a_target_stays():
    pytest.importorskip("dp_accounting")
    privacy = ExamplePrivacy(target_epsilon=3.0, delta=1e-3, clip_norm=1.0, sample_rate=0.25, accountant="rdp")
    wrapped = privacy.around(FedAvg())
    federation = Federation(wrapped, make_clients([4, 3]), num_rounds=3, solver=LocalSolver(local_epochs=1))
    for _ in range(3):
        federation.round()
    own, ctx = federation.shared.own, federation.context("plan")
    assert wrapped.guarantee(ctx, own)["epsilon"] == pytest.approx(3.0, rel=1e-3)
    with pytest.raises(ConfigError, match="target_epsilon 3 would be exceeded after 20 steps"):
        wrapped.plan(ctx._replace(num_rounds=5), own)


@pytest.mark.parametrize(
    "mixture",
    [FedEM(), OfficialFedEM(shuffle_per_component=False), ResponsibilityFedEM()],
    ids=lambda one: type(one).__name__,
)
def test_the_weights_of_a_mixture_have_noise_that_epsilon_counts(mixture):
    """The same round without noise on them has other weights, and an infinite ε."""
    privacy = ExamplePrivacy(**GIVEN | {"sample_rate": 0.5, "mixture_noise": 3.0})
    quiet = ExamplePrivacy(**GIVEN | {"sample_rate": 0.5, "mixture_noise": 0.0})
    noisy, plain = (
        Federation(one.around(mixture), make_clients([40, 30, 20]), solver=LocalSolver(local_epochs=1), seed=3)
        for one in (privacy, quiet)
    )
    for federation in (noisy, plain):
        federation.round()
    assert distance(noisy.states.mixture, plain.states.mixture) > 1e-3
    assert (noisy.states.mixture.sum(1) - 1).abs().max() < 1e-12
    spent = [one.algorithm.guarantee(one.context("plan"), one.shared.own)["epsilon"] for one in (noisy, plain)]
    assert spent[0] < math.inf == spent[1]


def test_a_noised_m_step(monkeypatch):
    s, noise = torch.tensor([1.210276, 0.789724]).double(), torch.tensor([0.3, -0.2]).double()
    assert ((s + noise) / 2).tolist() == pytest.approx([0.755138, 0.294862])
    assert nearest_mixture((s + noise) / 2).tolist() == pytest.approx([0.730138, 0.269862])
    assert nearest_mixture(torch.tensor([2.0, -1.0, 0.5])).tolist() == [1.0, 0.0, 0.0]
    pi, losses = torch.tensor([0.5, 0.5]).double(), torch.tensor([[0.1, 2.3], [1.2, 0.4]]).double()
    data = ClientData(losses, losses, None, torch.ones(2).double(), torch.tensor(0))
    monkeypatch.setattr(e_step, "protecting_normals", lambda *_: noise)
    plain = expectation(pi, losses, data.mask)
    new, q, loss = private_expectation(make_context(make_task(), mixture_noise=1.0), pi, losses, data, "mean")
    assert new.tolist() == pytest.approx([0.730138, 0.269862], abs=1e-6)
    assert torch.equal(q, plain[1])
    assert torch.equal(loss, plain[2])
    empty = data._replace(mask=torch.zeros(2).double())
    assert torch.equal(
        private_expectation(make_context(make_task(), mixture_noise=1.0), pi, losses, empty, "mean")[0], pi
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sample_rate": None}, "sample_rate is missing"),
        ({"clip_norm": None}, "clip_norm is missing"),
        ({"noise_multiplier": None}, "does not say how much noise"),
        ({"target_epsilon": 1.0}, "noise_multiplier and target_epsilon are both given"),
        ({"delta": None}, "delta is missing"),
        ({"sample_rate": 1.5}, r"sample_rate is 1.5; give a number in \(0, 1\]"),
        ({"max_batch": 0}, "max_batch is 0"),
        ({"mixture_noise": -1.0}, "mixture_noise is -1.0"),
        ({"max_batch": 9, "accountant": "rdp"}, "accountant rdp has no answer"),
        ({"max_batch": 9, "mixture_noise": 1.0}, "together with mixture_noise"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        ExamplePrivacy(**GIVEN | settings)


def test_refused_algorithms():
    def check(algorithm, **more):
        refuse(algorithm, privacy=ExamplePrivacy(**GIVEN | more))

    check(FedEM(), mixture_noise=1.0)
    check(ResponsibilityFedEM(), mixture_noise=1.0)
    with pytest.raises(ConfigError, match=r"depend on the mixture weights, .* give --model.privacy.mixture_noise"):
        check(FedEM())
    with pytest.raises(ConfigError, match=r"depend on the mixture weights, .* give --model.privacy.mixture_noise"):
        check(ResponsibilityFedEM())
    with pytest.raises(ConfigError, match="cannot protect FedPer: its shared steps depend on the private part"):
        check(FedPer(), mixture_noise=1.0)
    with pytest.raises(ConfigError, match="is for FedEM's mixture weights, and FedAvg has none"):
        check(FedAvg(), mixture_noise=1.0)


def test_refused_networks_and_batches():
    wrapped = ExamplePrivacy(**GIVEN, mixture_noise=1.0)
    normalised = make_context(make_task(network=NormalisedMLP))
    with pytest.raises(ConfigError, match="ExamplePrivacy and batch normalisation"):
        wrapped.around(FedEM()).shared_init(normalised)
    with pytest.raises(ConfigError, match=r"give --model.algorithm.shuffle_per_component false"):
        wrapped.around(OfficialFedEM()).shared_init(make_context(make_task()))
