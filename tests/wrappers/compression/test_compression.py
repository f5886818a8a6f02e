"""Compression around algorithms: what is told, what is remembered, what it costs, and what is refused."""

from typing import NamedTuple

import pytest
import torch
from combination import refuse
from federated_round import Federation, make_clients, make_context, make_task
from local_norm import local_norm
from torch import nn

from lit_fed import FederatedModule
from lit_fed.algorithms import (
    AFL,
    SCAFFOLD,
    UCFL,
    FedAvg,
    FedEM,
    FedPer,
    FedSGD,
    Local,
    MixtureADMM,
    ResponsibilityFedEM,
)
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import uniforms
from lit_fed.core.types import Chosen, Message, ModelState, Reduced
from lit_fed.errors import ConfigError
from lit_fed.models import Network
from lit_fed.wrappers.base import WrappedShared
from lit_fed.wrappers.compression.codecs import QSGD, FloatCast, LowRank, RandomK, ScaledSign, TopK, Uniform
from lit_fed.wrappers.compression.codecs.base import SMALLEST
from lit_fed.wrappers.compression.feature import CompressionFeature
from lit_fed.wrappers.compression.wrapper import Compressed, CompressedBroadcast, ef14, ef21
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy
from lit_fed.wrappers.secure.wrapper import SecureSum

NEWS = torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64)


class Shared(NamedTuple):
    models: ModelState


def models(parameters, **buffers):
    return ModelState({"w": torch.as_tensor(parameters, dtype=torch.float64)}, buffers)


class WideNorm(Network):
    """A hidden layer of 80 units behind BatchNorm, whose own leaves are larger than those that go as they are."""

    def __init__(self, input_shape, num_outputs) -> None:
        super().__init__()
        self.hidden, self.norm, self.head = nn.Linear(4, 80), nn.BatchNorm1d(80), nn.Linear(80, num_outputs)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.hidden(x))))


CENTRAL = ClientPrivacy(1.0, clip_norm=1.0, delta=1e-3)


class Data(NamedTuple):
    client_id: torch.Tensor


def encoded(wrapper, value, memory=(), start=None, client_id=0, **fields):
    """What is sent instead of a message, from a shared model `start` (0 without)."""
    first = tree.models(value)[0]
    shared = Shared(tree.zeros_like(first) if start is None else start)
    shared = WrappedShared(shared, ()) if wrapper.has_server_state else shared
    message = Message(value, torch.ones((), dtype=torch.float64))
    return wrapper.encode(make_context(**fields), shared, message, memory, Data(torch.tensor(client_id)))


# ---------------------------------------------------------------------- what is told and remembered
def test_what_was_not_told_is_told_later():
    """The constant change (3, 2, 1) by its largest number; the model and what is known of it are the client's own."""
    wrapper, memory, told = Compressed(FedAvg(), TopK(k=1), "ef14", "whole"), ({"whole": torch.zeros(1, 3)},), []
    start = models(torch.tensor([[10.0, 20.0, 30.0]]), mean=torch.ones(1, 2))
    value = ModelState({"w": start.parameters["w"] + NEWS}, {"mean": torch.full((1, 2), 5.0)})
    for _ in range(6):
        message, memory, metrics = encoded(wrapper, value, memory, start)
        told.append((message.value.parameters["w"] - start.parameters["w"])[0].tolist())
        assert message.value.buffers["mean"].tolist() == [[5, 5]]  # running statistics go as they are
    assert told == [[3, 0, 0], [0, 4, 0], [6, 0, 0], [0, 4, 0], [6, 0, 0], [0, 0, 6]]
    assert memory[0]["whole"].tolist() == [[3, 4, 0]]
    assert memory[0]["whole"].dtype == torch.float32
    assert float(metrics["compression/error"]) == pytest.approx((3**2 + 4**2) / (3**2 + 4**2 + 6**2))
    assert float(message.bits_up) == 1 * (32 + 2) + 2 * 32  # a position among three numbers, and the statistics
    assert float(metrics["comm/compression_up"]) == pytest.approx((3 * 64 + 2 * 32) / (34 + 64))


def test_without_memory_what_is_lost_is_lost():
    message, memory, metrics = encoded(Compressed(FedAvg(), TopK(k=1), "none", "whole"), models(NEWS))
    assert message.value.parameters["w"].tolist() == [[3, 0, 0]]
    assert float(metrics["compression/error"]) == pytest.approx(5 / 14)
    assert not tree.leaves(memory) or memory == ({},)


def test_ef21_on_both_sides():
    """What the server knows of a single client moves to its change; of an absent one it stays as it is."""
    wrapper, memory = Compressed(FedAvg(), TopK(k=1), "ef21", "whole"), ({"whole": torch.zeros(1, 3)},)
    server = Shared(models([[0.0, 0.0, 0.0]]))
    shared, known = WrappedShared(server, ({"whole": torch.zeros(1, 3, dtype=torch.float64)},)), []
    ctx = make_context(num_clients=2, weighting="uniform")  # of whom one takes part
    for _ in range(4):
        message, memory, _ = encoded(wrapper, models(NEWS), memory)
        reduced = Reduced(message.value, torch.ones((), dtype=torch.float64))
        reduced, own = wrapper.decode(ctx, shared, reduced, torch.tensor([0]))
        shared = shared._replace(own=own)
        known.append((2 * reduced.value.parameters["w"])[0].tolist())
        assert (2 * own[0]["whole"]).tolist() == [known[-1]]
    assert known == [[3, 0, 0], [3, 2, 0], [3, 2, 1], [3, 2, 1]]
    assert memory[0]["whole"].tolist() == [[3, 2, 1]]
    assert message.value.parameters["w"].tolist() == [[0, 0, 0]]


def test_a_codec_with_a_large_variance_contracts_beside_a_memory():
    """RandomK as it stands multiplies by d/k; with a memory it sends the numbers themselves."""
    values = models([[3.0, -4.0, 1.0, 2.0]])
    plain, _, _ = encoded(Compressed(FedAvg(), RandomK(k=2), "none", "whole"), values)
    message, memory, _ = encoded(
        Compressed(FedAvg(), RandomK(k=2), "ef14", "whole"), values, ({"whole": torch.zeros(1, 4)},)
    )
    sent, kept = message.value.parameters["w"], memory[0]["whole"]
    assert int((sent != 0).sum()) == 2
    assert torch.equal(sent + kept, values.parameters["w"])
    assert torch.equal(plain.value.parameters["w"], 2 * sent)


@pytest.mark.parametrize("codec", [Uniform(1), Uniform(8), QSGD(1), QSGD(127), QSGD(3, 8), RandomK(0.1)], ids=repr)
def test_relative_variances_are_bounds(codec):
    """Of what is decoded of single vectors on average, up to three standard errors."""
    values = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ids = torch.arange(300)
    decoded = torch.func.vmap(lambda one: codec.encode(values, lambda n: uniforms(0, 0, one, "x", n)).decoded)(ids)
    each = (decoded - values).square().sum(1) / values.square().sum()
    assert float(each.mean()) <= codec.relative_variance(50) + 3 * float(each.std()) / 300**0.5


def test_components_have_random_numbers_of_their_own_and_clients_too():
    row = torch.linspace(-1, 1, 80, dtype=torch.float64)
    value = models(torch.stack([row, row]))
    wrapper = Compressed(FedEM(num_components=2), QSGD(2))
    first, second = encoded(wrapper, value)[0].value.parameters["w"]
    other = encoded(wrapper, value, client_id=1)[0].value.parameters["w"][0]
    later = encoded(wrapper, value, round_idx=1)[0].value.parameters["w"][0]
    assert not any(torch.equal(first, one) for one in (second, other, later))
    wrapper = Compressed(FedEM(num_components=2), RandomK(0.2))
    same = [encoded(wrapper, value, client_id=one)[0].value.parameters["w"] for one in (0, 5)]
    assert torch.equal(*same)


def test_components_that_are_not_sent_keep_what_they_have_not_told():
    wrapper, taken = Compressed(FedEM(num_components=3), TopK(k=1), "ef14", "whole"), torch.tensor([1.0, 0.0, 1.0])
    value = Chosen(models(NEWS.expand(3, 3) * taken[:, None]), taken.double())
    before = {"whole": torch.tensor([[0.0, 3.0, 0.0]] * 3)}
    message, (memory,), _ = encoded(wrapper, value, (before,), models(torch.zeros(3, 3)))
    sent = message.value
    assert torch.equal(sent.taken, value.taken)
    assert sent.models.parameters["w"].tolist() == [[0, 5, 0], [0, 0, 0], [0, 5, 0]]
    assert memory["whole"].tolist() == [[3, 0, 1], [0, 3, 0], [3, 0, 1]]


# ---------------------------------------------------------------------- what it costs
class Wide(Network):
    """Leaves of 160 and 2 numbers."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.first, self.last = nn.Linear(*input_shape, 20), nn.Linear(20, num_outputs)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


NUMBERS = 8 * 20
PLAIN = (20 + 20 + 1) * 32  # leaves of less than 64 numbers


def run(algorithm, rounds=1, **options):
    train = make_clients([5, 3, 4], num_features=8, dtype=torch.float32)
    task = make_task(num_features=8, network=Wide, dtype=torch.float32)
    federation = Federation(algorithm, train, task, **options)
    for _ in range(rounds):
        federation.round()
    return federation


@pytest.mark.parametrize(
    ("codec", "bits"),
    [
        (FloatCast(), 16 * NUMBERS),
        (QSGD(7), 32 + NUMBERS * 4),
        (QSGD(7, 50), 4 * 32 + NUMBERS * 4),
        (Uniform(5), 32 + NUMBERS * 5),
        (ScaledSign(), 32 + NUMBERS),
        (TopK(0.05), 8 * (32 + 8)),
        (RandomK(k=5), 5 * 32),
        (LowRank(1), 32 * (20 + 8)),
    ],
    ids=repr,
)
def test_bits_are_those_of_the_formula(codec, bits):
    assert run(Compressed(FedAvg(), codec)).bits[0] == 3 * (bits + PLAIN)
    assert run(Compressed(FedEM(2), codec)).bits[0] == 3 * 2 * (bits + PLAIN)
    weighed = run(Compressed(ResponsibilityFedEM(4), codec))
    assert weighed.bits[0] == 3 * (4 * (bits + PLAIN) + 4 * 32)  # beside the components, the mixture weights
    plain, encoded = 4 * 201 * 32 + 4 * 32, 4 * (bits + PLAIN) + 4 * 32
    assert weighed.metrics["comm/compression_up"] == pytest.approx(plain / encoded)


def test_both_parts_of_a_message_are_encoded():
    assert run(Compressed(SCAFFOLD(), FloatCast())).bits[0] == 3 * 2 * (16 * NUMBERS + PLAIN)
    assert run(Compressed(FedSGD(), FloatCast())).bits[0] == 3 * (16 * NUMBERS + PLAIN)
    assert run(Compressed(FedPer(), FloatCast())).bits[0] == 3 * (16 * NUMBERS + 20 * 32)  # the head stays


def test_what_clients_hear():
    """A whole model, and then what has changed of it, unless a message was missed."""
    codec, whole = QSGD(7), 201 * 32
    short = 32 + NUMBERS * 4 + PLAIN
    federation = run(CompressedBroadcast(FedAvg(), codec), rounds=0)
    for cohort, heard in (([0, 1], 2 * whole), ([0, 1], 2 * short), ([0, 2], short + whole), ([1, 2], whole + short)):
        federation.round(cohort)
        assert federation.bits[1] == heard
        assert federation.bits[0] == 2 * whole
    assert federation.shared.own.heard.tolist() == [2, 3, 3]


def test_what_was_not_broadcast_is_broadcast_later():
    """The server's models stay what the algorithm makes of them, and what clients know comes nearer."""
    federation = run(CompressedBroadcast(FedAvg(), TopK(0.25)), rounds=3)
    server = tree.models(federation.shared)[0]
    distances = []
    for _ in range(8):
        told, _ = federation.algorithm._told(
            federation.context("train"), server.parameters, federation.shared.own.parameters
        )
        federation.shared = federation.shared._replace(own=federation.shared.own._replace(parameters=told))
        distances.append(float(tree.norm(tree.sub(server.parameters, told))))
    assert distances[0] > 0
    assert sorted(distances, reverse=True) == distances
    assert distances[-1] == 0


def test_clients_train_from_what_they_heard():
    """A client without steps has no news, however far its models are from the server's: the server stays."""
    federation = run(CompressedBroadcast(FedAvg(), TopK(0.05)), rounds=2, solver=LocalSolver(lr=0.5))
    before = tree.map_leaves(torch.clone, tree.models(federation.shared)[0])
    far = tree.norm(tree.sub(before.parameters, federation.shared.own.parameters))
    assert far > 1e-3
    federation.solver = LocalSolver(local_epochs=0)
    federation.round()
    moved = tree.norm(tree.sub(tree.models(federation.shared)[0].parameters, before.parameters))
    assert moved < 1e-6 * far


# ---------------------------------------------------------------------- what is asked for
@pytest.mark.parametrize(
    ("algorithm", "settings", "feedback"),
    [
        (FedAvg(), (TopK(),), "ef14"),
        (FedAvg(), (QSGD(),), "none"),
        (MixtureADMM(), (QSGD(),), "ef14"),
        (FedAvg(), (TopK(), "none"), "none"),
        (FedAvg(), (QSGD(), "ef21"), "ef21"),
    ],
)
def test_usual_feedback(algorithm, settings, feedback):
    refuse(algorithm, **dict(zip(("compression", "compression_feedback"), settings, strict=False)))
    assert CompressionFeature(*settings).around(algorithm) == Compressed(algorithm, settings[0], feedback)


def test_without_codecs_nothing_goes_around():
    algorithm = FedAvg()
    assert CompressionFeature().around(algorithm) is algorithm
    assert CompressionFeature().around_all(algorithm) is algorithm
    one_way = CompressionFeature(downlink_compression=TopK())
    assert one_way.around_all(algorithm) == CompressedBroadcast(algorithm, TopK())


REFUSED = [
    (UCFL(), {"compression": TopK()}, "--model.compression encodes changes of models, and UCFL keeps rows of single"),
    (Local(), {"compression": TopK()}, "--model.compression .* Local sends nothing to a server"),
    (AFL(), {"downlink_compression": TopK()}, "--model.downlink_compression .* AFL sends models times numbers that"),
    (
        MixtureADMM(),
        {"compression": QSGD(), "compression_feedback": "none"},
        "--model.compression_feedback is none, and MixtureADMM adds up what clients send .*; give ef14",
    ),
    (
        MixtureADMM(),
        {"compression": QSGD(), "compression_feedback": "ef21"},
        "--model.compression_feedback is ef21, and MixtureADMM adds up .*; give ef14",
    ),
    (SCAFFOLD(), {"compression": QSGD(), "compression_feedback": "ef21"}, "is ef21, and SCAFFOLD adds up"),
    (
        ResponsibilityFedEM(),
        {"compression": QSGD(), "compression_feedback": "ef21"},
        "is ef21, and ResponsibilityFedEM averages by mixture weights that each client sends; give --model.algorithm F",
    ),
    (
        FedAvg(),
        {"compression": QSGD(), "compression_feedback": "ef21", "aggregation": "stale_fill"},
        "is ef21, and --model.aggregation stale_fill has no absent clients to fill in",
    ),
    (FedAvg(), {"compression_feedback": "ef14"}, "--model.compression_feedback is ef14, and there is no --model.comp"),
    (
        FedAvg(),
        {"compression_scope": "whole"},
        "--model.compression_scope is whole, and there is no --model.compression",
    ),
    (FedAvg(), {"compression": TopK(), "compression_scope": "all"}, "compression_scope is all; give leaf or whole"),
    (
        FedAvg(),
        {"compression": TopK(), "compression_feedback": "ef"},
        "compression_feedback is ef; give none, ef14 or ef21",
    ),
    (
        FedAvg(),
        {"compression": LowRank(), "compression_scope": "whole"},
        "--model.compression is LowRank, which takes matrices, and --model.compression_scope is whole; give leaf",
    ),
]


@pytest.mark.parametrize(("algorithm", "settings", "message"), REFUSED)
def test_what_does_not_go_together(algorithm, settings, message):
    with pytest.raises(ConfigError, match=message):
        FederatedModule(algorithm, **settings)


def test_sampling_by_size_counts_a_client_twice():
    with pytest.raises(ConfigError, match=r"compression_feedback is ef21, .* --data.client_sampling is size"):
        refuse(FedAvg(), compression=QSGD(), compression_feedback="ef21", sampling="size")
    refuse(FedAvg(), compression=QSGD(), compression_feedback="ef14", sampling="size")


def test_sums_of_what_is_encoded_by_clients_of_their_own():
    message = "--model.compression QSGD: its scales or positions differ from client to client.*; choose RandomK"
    with pytest.raises(ConfigError, match=message):
        refuse(FedAvg(), compression=QSGD(), secure_aggregation=SecureSum())
    with pytest.raises(ConfigError, match=r"--model.downlink_compression .* leave one out"):
        refuse(FedAvg(), downlink_compression=QSGD(), secure_aggregation=SecureSum())
    refuse(FedAvg(), compression=RandomK(), secure_aggregation=SecureSum())
    refuse(FedAvg(), compression=QSGD(), downlink_compression=QSGD(), privacy=CENTRAL)


def test_noise_is_not_added_up():
    with pytest.raises(ConfigError, match=r"--model.compression_feedback is ef21, .* noise of --model.privacy"):
        refuse(FedAvg(), compression=QSGD(), compression_feedback="ef21", privacy=CENTRAL)
    refuse(FedAvg(), compression=TopK(), compression_feedback="ef14", privacy=CENTRAL)


def test_nothing_is_packed_before_noise_on_every_number():
    local = LocalPrivacy(1.0, clip_norm=1.0, delta=1e-3)
    with pytest.raises(ConfigError, match=r"TopK encodes changes before --model.privacy LocalPrivacy adds noise"):
        refuse(FedAvg(), compression=TopK(), privacy=local)
    refuse(FedAvg(), downlink_compression=TopK(), privacy=local)


@pytest.mark.parametrize("scope", ["leaf", "whole"])
def test_a_broadcast_saves_no_bits_of_what_stays_with_the_clients(scope):
    """Half of the bits of the parameters that are sent, and no bit of BatchNorm, which is not."""
    wrapped = CompressedBroadcast(local_norm(FedAvg()), FloatCast(), scope)
    clients = make_clients([6, 5], dtype=torch.float32)
    federation = Federation(wrapped, clients, make_task(network=WideNorm, dtype=torch.float32))
    plain = Federation(local_norm(FedAvg()), clients, make_task(network=WideNorm, dtype=torch.float32))
    for one in (federation, plain):
        one.round()
    assert torch.equal(federation.bits, plain.bits), "nobody has heard a model that differences could be told from"
    for one in (federation, plain):
        one.round()
    packed = 4 * 80 + (80 + 80 + 1 if scope == "whole" else 80 + 80)
    assert float(plain.bits[1] - federation.bits[1]) == 2 * 16 * packed


def test_codecs_have_to_fit_the_models():
    ctx = make_context()
    shared = Shared(ModelState({"first.weight": torch.zeros(1, 20, 8), "last.weight": torch.zeros(1, 1, 20)}, {}))
    with pytest.raises(ConfigError, match=r"TopK.k is 161, and first.weight has 160 numbers; give at most 160"):
        CompressionFeature(TopK(k=161)).check_models(FedAvg(), ctx, shared)
    CompressionFeature(TopK(k=161), compression_scope="whole").check_models(FedAvg(), ctx, shared)
    with pytest.raises(ConfigError, match="and the model has 180 numbers"):
        CompressionFeature(compression_scope="whole", downlink_compression=TopK(k=181)).check_models(
            FedAvg(), ctx, shared
        )
    small = Shared(ModelState({"weight": torch.zeros(1, 1, SMALLEST - 1)}, {}))
    message = "--model.compression QSGD has nothing to encode: .* 64 numbers .* the largest has 63; .*_scope whole"
    with pytest.raises(ConfigError, match=message):
        CompressionFeature(QSGD()).check_models(FedAvg(), ctx, small)
    for scope in ("leaf", "whole"):  # FedRep keeps the only layer of a linear network
        with pytest.raises(ConfigError, match="nothing to encode: no leaf of this network is sent; leave it out"):
            CompressionFeature(TopK(k=1), compression_scope=scope).check_models(
                FedAvg(), ctx, Shared(ModelState({}, {}))
            )


# ---------------------------------------------------------------------- the recursions alone
def top_1(values):
    return TopK(k=1).encode(values, None)


def test_the_error_of_ef14_is_sent_later():
    error, told = torch.zeros(3, dtype=torch.float64), []
    for _ in range(6):
        sent, error = ef14(top_1, error, NEWS[0])
        told.append(sent.decoded.tolist())
    assert told == [[3, 0, 0], [0, 4, 0], [6, 0, 0], [0, 4, 0], [6, 0, 0], [0, 0, 6]]
    assert error.tolist() == [3, 4, 0]


def test_what_the_server_knows_moves_towards_the_news():
    known, found = torch.zeros(3, dtype=torch.float64), []
    for _ in range(4):
        sent, known = ef21(top_1, known, NEWS[0])
        found.append(known.tolist())
    assert found == [[3, 0, 0], [3, 2, 0], [3, 2, 1], [3, 2, 1]]
    assert sent.decoded.tolist() == [0, 0, 0]


@pytest.mark.parametrize("codec", [TopK(0.1), ScaledSign()], ids=repr)
def test_all_that_was_sent_and_the_last_error_are_all_news(codec):
    generator = torch.Generator().manual_seed(0)
    news = torch.randn(30, 40, generator=generator, dtype=torch.float64)
    error, total = torch.zeros(40, dtype=torch.float64), torch.zeros(40, dtype=torch.float64)
    for one in news:
        sent, error = ef14(lambda values: codec.encode(values, None), error, one)
        total = total + sent.decoded
    assert torch.allclose(total + error, news.sum(0), atol=1e-12)


# ---------------------------------------------------------------------- three clients that pull apart
PULLS = torch.tensor([[-3, 2, 2], [2, -3, 2], [2, 2, -3]], dtype=torch.float64)


def gradient(x):
    """Of ⟨a_i, x⟩² + ¼‖x‖² for each client, [3, 3]."""
    return 2 * (PULLS @ x)[:, None] * PULLS + x / 2


def descent(rounds, told):
    """Points of gradient descent at rate 0.1 with the mean of what clients tell of their gradients."""
    x, memory, points = torch.ones(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64), []
    for _ in range(rounds):
        sent, memory = told(memory, gradient(x))
        x = x - 0.1 * sent.mean(0)
        points.append(x)
    return points


def each(function):
    def told(memory, news):
        rows = [function(top_1, own, one) for own, one in zip(memory, news, strict=True)]
        return torch.stack([sent.decoded for sent, _ in rows]), torch.stack([own for _, own in rows])

    return told


def close(*numbers):
    return pytest.approx(numbers, abs=1e-9)


def test_plain_descent():
    assert gradient(torch.ones(3, dtype=torch.float64))[0].tolist() == [-5.5, 4.5, 4.5]
    points = descent(1, lambda memory, news: (news, memory))
    assert points[0].tolist() == close(0.8833333333, 0.8833333333, 0.8833333333)


def test_without_memory_it_diverges():
    points = descent(100, lambda memory, news: (torch.stack([top_1(one).decoded for one in news]), memory))
    assert [float(point[0]) for point in points[:3]] == close(1.1833333333, 1.4002777778, 1.6569953704)
    assert float(points[-1].norm()) > 1e6


def test_with_ef14_it_converges():
    points = descent(400, each(ef14))
    assert points[0].tolist() == close(1.1833333333, 1.1833333333, 1.1833333333)
    assert points[1].tolist() == close(0.5283333333, 0.8558333333, 1.1833333333)
    assert float(points[-1].norm()) < 1e-22


def test_with_ef21_it_converges():
    def told(memory, news):
        _, known = each(ef21)(memory, news)
        return known, known

    points = descent(400, told)
    assert points[1].tolist() == close(1.0116666667, 1.1891666667, 1.3666666667)
    assert float(points[-1].norm()) < 1e-22
