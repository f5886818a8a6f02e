"""Bounded changes and their noisy average, as numbers; blocks, targets, and what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from combination import refuse
from federated_round import Federation, make_clients, make_context, make_task, same_bits
from local_norm import local_norm
from normalised import NormalisedMLP

from lit_fed.algorithms import EASGD, L2GD, SCAFFOLD, FedAvg, FedEM, ResponsibilityFedEM
from lit_fed.algorithms.scaffold import Controlled, ScaffoldUpdate
from lit_fed.core import tree
from lit_fed.core.algorithm import GlobalModels
from lit_fed.core.reduce import Accumulator
from lit_fed.core.types import Message, ModelState, Reduced
from lit_fed.errors import ConfigError
from lit_fed.wrappers.base import WrappedShared, part_of
from lit_fed.wrappers.deltas import delta_of
from lit_fed.wrappers.privacy.accountant import epsilon_of_releases
from lit_fed.wrappers.privacy.client_level import ClientPrivacy, Counted, PrivateAverage
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.privacy.settings import Private
from lit_fed.wrappers.secure.wrapper import SecureSum

CHANGES = [[3.0, 4.0, 0.0], [0.3, 0.4, 0.0], [0.0, 0.0, -2.0], [0.6, -0.8, 0.0]]
QUIET = ClientPrivacy(0.0, clip_norm=1.0, delta=1e-3, noise_seed=0)
SILENT_BOUND = ClientPrivacy(0.0, adaptive=True, initial_clip_norm=2.0, delta=1e-3, noise_seed=0)


class Client:
    client_id = torch.tensor(2)


def model(*numbers):
    return ModelState({"w": torch.tensor([numbers], dtype=torch.float64)}, {})


def with_noise(noise, **settings):
    return replace(QUIET, noise_multiplier=noise, **settings)


def context(num_clients=4, probability=1.0, **fields):
    fields = {"weighting": "uniform"} | fields
    return make_context(num_clients=num_clients, sampling_probability=probability, **fields)


def release(privacy, ctx, changes=CHANGES, weights=None, bound=None):
    """What reaches the server step of FedAvg, and what the server remembers then."""
    wrapper = PrivateAverage(FedAvg(), privacy)
    start = GlobalModels(model(1.0, 1.0, 1.0))
    own = wrapper.server_memory(ctx, start)
    own = own if bound is None else own._replace(clip_norm=torch.tensor(bound, dtype=torch.float64))
    shared, messages = WrappedShared(start, own), Accumulator("sum")
    for change, weight in zip(changes, weights or [1] * len(changes), strict=True):
        weight = torch.tensor(weight, dtype=torch.float64)
        sent = Message(tree.add(start.models, model(*change)), weight)
        message, _, _ = wrapper.encode(ctx, shared, sent, (), None)
        message = message._replace(bits_up=torch.zeros_like(weight), bits_down=torch.zeros_like(weight))
        messages.add(tree.map_leaves(lambda leaf: leaf[None], message), torch.ones(1, dtype=torch.float64), {})
    if not changes:  # a placeholder tells the shape
        value = Counted(start.models, torch.zeros(())) if privacy.adaptive else start.models
        nothing = torch.zeros((), dtype=torch.float64)
        placeholder = tree.map_leaves(lambda leaf: 0 * leaf[None], Message(value, nothing, nothing, nothing))
        messages.add(placeholder, torch.zeros(1, dtype=torch.float64), {})
    reduced, _, _ = messages.reduce(torch.arange(len(changes)), [len(changes)])
    return wrapper.decode(ctx, shared, reduced, torch.arange(len(changes)))


def numbers(released):
    return released[0].value.parameters["w"][0].tolist()


def test_factors():
    wrapper = PrivateAverage(FedAvg(), QUIET)
    start = GlobalModels(model(1.0, 1.0, 1.0))
    shared = WrappedShared(start, wrapper.server_memory(context(), start))
    for change, factor in zip(CHANGES, [0.2, 1.0, 0.5, 1.0], strict=True):
        sent = Message(tree.add(start.models, model(*change)), torch.ones((), dtype=torch.float64))
        message, _, metrics = wrapper.encode(context(), shared, sent, (), None)
        wanted = torch.ones(3, dtype=torch.float64) + factor * torch.tensor(change, dtype=torch.float64)
        assert torch.allclose(message.value.parameters["w"][0], wanted, rtol=0, atol=1e-15)
        assert metrics["privacy/clipped_share"] == float(factor < 1)


@pytest.mark.parametrize(
    ("ctx", "expected"), [(context(), [1.375, 1.1, 0.75]), (context(10, 0.5), [1.3, 1.08, 0.8])], ids=["all", "half"]
)
def test_averages_of_a_fixed_denominator(ctx, expected):
    reduced, own = release(QUIET, ctx)
    assert numbers((reduced, own)) == pytest.approx(expected, abs=1e-12)
    assert float(reduced.weight) == ctx.sampling_probability * ctx.num_clients
    assert (float(own.releases), float(own.clip_norm), float(own.noise_share)) == (1, 1, 0)


def test_weights_by_samples_are_capped():
    ctx = context(10, 0.5, weighting="samples", total_samples=800, capped_samples=500)
    capped = replace(QUIET, weight_cap=100)
    assert numbers(release(capped, ctx, weights=[10, 200, 50, 30])) == pytest.approx([1.216, 1.096, 0.8], abs=1e-12)


def test_nobody_takes_part():
    reduced, own = release(QUIET, context(10, 0.5), changes=[])
    assert numbers((reduced, own)) == [1.0, 1.0, 1.0]
    assert float(reduced.weight) == 5
    noisy, own = release(with_noise(1.0), context(10, 0.5), changes=[])
    assert numbers((noisy, own)) != [1.0, 1.0, 1.0]
    assert float(own.noise_share) > 0.3


@pytest.mark.parametrize(
    ("privacy", "ctx", "expected"),
    [
        (with_noise(1.1), context(8, 0.5), 0.275),
        (
            with_noise(1.0, weight_cap=100),
            context(10, 0.5, weighting="samples", total_samples=800, capped_samples=500),
            0.4,
        ),
        (with_noise(1.1, clip_norm=3.0), context(8, 0.5), 0.825),
    ],
    ids=["uniform", "capped", "larger bound"],
)
def test_deviation_of_the_noise(privacy, ctx, expected):
    """Of 10⁵ numbers within 1 %."""
    start = GlobalModels(ModelState({"w": torch.zeros(1, 100_000)}, {}))
    wrapper = PrivateAverage(FedAvg(), privacy)
    nobody = torch.zeros((), dtype=torch.float64)
    shared = WrappedShared(start, wrapper.server_memory(ctx, start))
    value = tree.map_leaves(torch.Tensor.double, start.models)
    reduced, own = wrapper.decode(ctx, shared, type(release(QUIET, context())[0])(value, nobody), torch.empty(0))
    noise = reduced.value.parameters["w"]
    assert float(noise.std()) == pytest.approx(expected, rel=0.01)
    assert float(own.noise_share) == pytest.approx(1, rel=0.01)
    other = wrapper.decode(ctx._replace(round_idx=1), shared, reduced, torch.empty(0))[0].value.parameters["w"]
    assert not torch.equal(noise, other)


@pytest.mark.parametrize(
    ("bound", "expected"), [(0.1, 0.1105170918), (1.0, 1.0), (2.0, 1.9024588490), (5.0, 4.5241870902)]
)
def test_an_adaptive_bound(bound, expected):
    _, own = release(SILENT_BOUND, context(), bound=bound)
    assert float(own.clip_norm) == pytest.approx(expected, abs=1e-10)


def test_an_adaptive_bound_with_an_absent_client():
    _, own = release(SILENT_BOUND, context(10, 0.5))
    assert float(own.clip_norm) == pytest.approx(1.9215788783, abs=1e-10)
    _, own = release(SILENT_BOUND, context(10, 0.5), changes=[])
    assert float(own.clip_norm) == pytest.approx(2.0, abs=1e-15)  # nobody says nothing


def test_counts_cost_a_part_of_the_noise():
    """Models get the noise of 1.1547 instead of 1, and the bound moves by chance."""
    privacy = replace(SILENT_BOUND, noise_multiplier=1.0)
    ctx = context(40, 0.5)
    runs = [release(privacy, ctx._replace(round_idx=one), changes=[]) for one in range(300)]
    noise = torch.tensor([numbers(one) for one in runs]) - 1
    assert float(noise.std()) == pytest.approx(2 * 1.1547005384 / 20, rel=0.1)
    shares = torch.tensor([math.log(float(own.clip_norm) / 2) / -0.2 for _, own in runs])
    assert float(shares.std()) == pytest.approx(1 / 20, rel=0.1)  # σ_b = 20/20 over 20


def test_noise_under_an_adaptive_bound_is_that_of_the_bound_that_clients_kept():
    """Not of the next round's, which is 0.082 times as large here."""
    privacy = replace(SILENT_BOUND, noise_multiplier=1.0, clip_lr=5.0)
    ctx = context(40, 0.5)
    start = GlobalModels(ModelState({"w": torch.zeros(1, 100_000, dtype=torch.float64)}, {}))
    wrapper = PrivateAverage(FedAvg(), privacy)
    shared = WrappedShared(start, wrapper.server_memory(ctx, start))
    all_within = Counted(start.models, torch.tensor(0.5, dtype=torch.float64))
    reduced, own = wrapper.decode(ctx, shared, Reduced(all_within, torch.tensor(20.0).double()), torch.arange(20))
    assert float(own.clip_norm) < 0.5
    assert float(reduced.value.parameters["w"].std()) == pytest.approx(2 * 1.1547005384 / 20, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_a_clipped_message_keeps_to_the_bound_in_its_own_type(seed):
    """In float32 rounding of large models adds to a change, by 2 % of this bound."""
    rng = torch.Generator().manual_seed(seed)
    start = GlobalModels(ModelState({"w": 100 * torch.randn(1, 100_000, generator=rng)}, {}))
    wrapper = PrivateAverage(FedAvg(), replace(QUIET, clip_norm=2e-3))
    shared = WrappedShared(start, wrapper.server_memory(context(), start))
    sent = Message(tree.map_leaves(lambda leaf: leaf + 1, start.models), torch.ones((), dtype=torch.float64))
    message, _, _ = wrapper.encode(context(), shared, sent, (), None)
    assert 0 < float(tree.norm(delta_of(message.value, start.models))) <= 2e-3


@pytest.mark.parametrize("bits", [10, 12, 32])
def test_a_masked_message_keeps_to_the_bound(bits):
    """However coarse its steps are, and whoever takes part."""
    rng = torch.Generator().manual_seed(bits)
    start = GlobalModels(ModelState({"w": torch.zeros(1, 10_000, dtype=torch.float64)}, {}))
    secure = SecureSum(modulus_bits=bits, clip_range=0.5)
    wrapper = secure.around(PrivateAverage(FedAvg(), with_noise(1.0)))
    ctx = context(20, 0.5)
    shared = WrappedShared(start, wrapper.inner.server_memory(ctx, start))
    change = torch.cat([torch.randn(1, 300, generator=rng).double(), torch.zeros(1, 9700).double()], 1)
    point = secure.point(20, 1)
    told = []
    for present in (3, 20):
        here = ctx._replace(present=torch.arange(20) < present)
        sent = Message(ModelState({"w": change}, {}), torch.ones((), dtype=torch.float64))
        clipped, _, _ = wrapper.inner.encode(here, shared, sent, (), Client)
        message, _, _ = wrapper.encode(here, shared, clipped, (), Client)
        told.append(message.value.residues.parameters["w"])
    assert torch.equal(*told), "steps are the same whoever takes part"
    norm = float(point.decode(point.join(told[0].flatten(1))).norm())
    assert 0 < norm <= 1.0


def test_drop_outs_that_make_rounds_void_are_refused():
    message = "dropout_fraction is 0.1, and whether a round is void then depends on who takes part"
    with pytest.raises(ConfigError, match=message):
        refuse(FedAvg(), secure_aggregation=SecureSum(dropout_fraction=0.1), privacy=QUIET)
    refuse(
        FedAvg(),
        secure_aggregation=SecureSum(dropout_fraction=0.1),
        privacy=LocalPrivacy(1.0, clip_norm=1.0, delta=1e-3),
    )
    refuse(FedAvg(), secure_aggregation=SecureSum(), privacy=QUIET)


def test_two_parts_have_one_bound():
    """SCAFFOLD's model and control."""
    wrapper = PrivateAverage(SCAFFOLD(), QUIET)
    start = Controlled(model(1.0, 1.0), {"w": torch.zeros(1, 2, dtype=torch.float64)})
    shared = WrappedShared(start, wrapper.server_memory(context(), start))
    beside = {"w": torch.tensor([[0.0, 2.0]], dtype=torch.float64)}
    sent = Message(ScaffoldUpdate(model(4.0, 5.0), beside), torch.ones((), dtype=torch.float64))
    value = wrapper.encode(context(), shared, sent, (), None)[0].value
    assert value.control["w"][0, 1] == pytest.approx(2 / math.sqrt(29))


def test_components_are_clipped_jointly():
    wrapper = PrivateAverage(FedEM(2), QUIET)
    start = GlobalModels(ModelState({"w": torch.zeros(2, 2, dtype=torch.float64)}, {}))
    shared = WrappedShared(start, wrapper.server_memory(context(), start))
    sent = ModelState({"w": torch.tensor([[3.0, 4.0], [0.0, 0.5]], dtype=torch.float64)}, {})
    message = wrapper.encode(context(), shared, Message(sent, torch.ones((), dtype=torch.float64)), (), None)[0]
    told = message.value.parameters["w"].flatten().tolist()
    assert told == pytest.approx([0.5970223141, 0.7960297522, 0, 0.0995037190], abs=1e-10)


@pytest.mark.parametrize("adaptive", [False, True])
def test_blocks_change_no_bit(adaptive):
    fixed = {"adaptive": True, "clip_count_noise": 1.0} if adaptive else {"clip_norm": 0.1}
    algorithm = PrivateAverage(FedEM(2), ClientPrivacy(0.5, delta=1e-3, noise_seed=0, **fixed))
    train = make_clients([6, 3, 9, 4, 5], dtype=torch.float32)
    runs = []
    for per_block in (1, 2, 5):
        one = Federation(
            algorithm,
            train,
            make_task(dtype=torch.float32),
            clients_per_block=per_block,
            weighting="uniform",
            sampling_probability=0.5,
            num_rounds=3,
        )
        for cohort in ([0, 3, 4], [], [2]):
            one.round(cohort)
        runs.append(one.shared)
    assert all(same_bits(runs[0], other) for other in runs[1:])
    assert float(runs[0].own.releases) == 3


def test_epsilon_follows_from_what_the_server_remembers():
    algorithm = PrivateAverage(FedAvg(), ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3))
    federation = Federation(algorithm, make_clients([6, 3, 9]), weighting="uniform", sampling_probability=0.5)
    assert algorithm.guarantee(federation.terms, federation.shared.own)["epsilon"] == 0
    for cohort in ([0, 2], [], [1]):
        federation.round(cohort)
    wrapper, own = part_of(federation.algorithm, federation.shared, Private)
    found = wrapper.guarantee(federation.terms, own)
    assert found["epsilon"] == epsilon_of_releases(0.5, 1.0, 3, 1e-3)
    assert found["epsilon_rdp"] == epsilon_of_releases(0.5, 1.0, 3, 1e-3, "rdp") > found["epsilon"]
    assert (found["releases"], found["delta"], found["noise_multiplier"]) == (3, 1e-3, 1.0)
    rough = wrapper.guarantee(federation.terms, own, exact=False)["epsilon"]
    assert found["epsilon"] <= rough < found["epsilon"] + 5e-3


def test_rounds_without_messages_are_no_releases():
    """L2GD throws a coin; where it says local steps, nobody sends anything."""
    algorithm = PrivateAverage(L2GD(communication_probability=0.5), QUIET)
    federation = Federation(algorithm, make_clients([6, 3, 9]), weighting="uniform")
    sent = 0
    for _ in range(8):
        federation.round()
        sent += bool(federation.bits[0])
    assert 0 < sent == int(federation.shared.own.releases) < 8


def test_a_target():
    privacy = ClientPrivacy(target_epsilon=2.0, clip_norm=1.0, delta=1e-3, accountant="rdp")
    algorithm = PrivateAverage(FedAvg(), privacy)
    federation = Federation(
        algorithm, make_clients([6, 3, 9]), weighting="uniform", sampling_probability=0.5, num_rounds=4
    )
    said = algorithm.plan(federation.context("plan"), federation.shared.own)
    assert said[0].startswith("a noise multiplier of ")
    assert said[0].endswith(" at δ 0.001 after 4 rounds (RDP, dp-accounting 0.6.0)")
    federation.round([0])
    own = federation.shared.own
    assert 1.99 < epsilon_of_releases(0.5, float(own.noise_multiplier), 4, 1e-3, "rdp") <= 2
    federation.num_rounds = 5
    message = r"target_epsilon 2 would be exceeded after 5 rounds.*fewer --trainer.max_epochs"
    with pytest.raises(ConfigError, match=message):
        algorithm.plan(federation.context("plan"), own)


def test_a_delta_that_promises_nothing():
    algorithm = PrivateAverage(FedAvg(), replace(QUIET, delta=0.1, accountant="rdp"))
    own = algorithm.server_memory(context(20), GlobalModels(model(1.0)))
    plain, warned = algorithm.plan(context(20), own)
    assert plain.startswith(
        "a noise multiplier of 0 gives no finite ε, since there is no noise, at δ 0.1 after 1 rounds"
    )
    assert "delta 0.1 is not below 1 over the 20 clients" in warned
    assert warned.endswith("customary is their number to the power of -1.1, 0.037")


def test_bits_of_a_count():
    federation = Federation(PrivateAverage(FedAvg(), SILENT_BOUND), make_clients([6, 3]), weighting="uniform")
    plain = Federation(FedAvg(), make_clients([6, 3]), weighting="uniform")
    federation.round()
    plain.round()
    assert (federation.bits - plain.bits).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_epsilon": 1.0}, "noise_multiplier and target_epsilon are both given; give one"),
        ({"noise_multiplier": None}, "does not say how much noise there is; give --model.privacy.noise_multiplier or"),
        ({"delta": None}, "--model.privacy.delta is missing"),
        ({"delta": 1.0}, r"--model.privacy.delta is 1.0; give a number in \(0, 1\)"),
        ({"delta": 0.0}, r"--model.privacy.delta is 0.0; give a number in \(0, 1\)"),
        ({"noise_multiplier": -1.0}, "--model.privacy.noise_multiplier is -1.0; give a number >= 0"),
        ({"noise_multiplier": math.nan}, "--model.privacy.noise_multiplier is nan"),
        ({"noise_multiplier": None, "target_epsilon": 0.0}, "--model.privacy.target_epsilon is 0.0; give a number > 0"),
        ({"clip_norm": None}, "--model.privacy.clip_norm is missing"),
        ({"clip_norm": 0.0}, "--model.privacy.clip_norm is 0.0; give a number > 0"),
        ({"adaptive": True}, "clip_norm is fixed, and adaptive is true; give --model.privacy.initial_clip"),
        ({"weight_cap": 0}, "--model.privacy.weight_cap is 0; give a whole number >= 1"),
        ({"clip_quantile": 1.0}, r"--model.privacy.clip_quantile is 1.0; give a number in \(0, 1\)"),
        ({"clip_count_noise": 0.0}, "--model.privacy.clip_count_noise is 0.0; give a number > 0"),
        ({"accountant": "prv"}, "--model.privacy.accountant is prv; give pld or rdp"),
    ],
)  # fmt: skip
def test_wrong_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        replace(QUIET, **settings)


@pytest.mark.parametrize(
    ("privacy", "algorithm", "options", "message"),
    [
        (QUIET, FedAvg(), ("stale_fill", None), "--model.aggregation stale_fill has no meaning with --model.privacy"),
        (QUIET, FedAvg(), ("renormalised", "samples"), "--model.weighting is samples.*give --model.privacy.weight_cap"),
        (replace(QUIET, weight_cap=9), FedAvg(), ("renormalised", "uniform"), "weight_cap caps weights by samples"),
        (
            QUIET,
            ResponsibilityFedEM(2),
            ("renormalised", None),
            "averages by mixture weights that each client sends",
        ),
        (QUIET, L2GD(flips_per_round=2), ("renormalised", None), "averages the same clients several times a round"),
        (QUIET, EASGD(mode="asynchronous"), ("renormalised", None), "takes one client after another"),
    ],
)
def test_what_does_not_go_together(privacy, algorithm, options, message):
    with pytest.raises(ConfigError, match=message):
        refuse(algorithm, **dict(zip(("aggregation", "weighting"), options, strict=True)), privacy=privacy)


def test_running_statistics_stay_with_the_clients():
    ctx = context(task=make_task(network=NormalisedMLP))
    start = FedAvg().shared_init(ctx)
    with pytest.raises(ConfigError, match=r"running statistics are not clipped; add --model\.batch_norm local"):
        PrivateAverage(FedAvg(), QUIET).server_memory(ctx, start)
    PrivateAverage(local_norm(FedAvg()), QUIET).server_memory(ctx, start)


def test_other_cohorts():
    refuse(FedAvg(), privacy=QUIET, sampling="poisson")
    for sampling in ("uniform", "size"):
        with pytest.raises(ConfigError, match=r"needs --data\.client_sampling poisson; uniform and size have"):
            refuse(FedAvg(), privacy=QUIET, sampling=sampling)
