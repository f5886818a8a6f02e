"""Compression around algorithms: what is told, what is remembered, what it costs, and what is refused."""

from typing import NamedTuple

import pytest
import torch
from federated_round import Federation, make_clients, make_context, make_task
from torch import nn

from lit_fed import FederatedModule
from lit_fed.algorithms import AFL, SCAFFOLD, UCFL, FedAvg, FedEM, FedPer, FedSGD, Local, MixtureADMM
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import uniforms
from lit_fed.core.types import Chosen, Message, ModelState, Reduced
from lit_fed.errors import ConfigError
from lit_fed.models import Network
from lit_fed.wrappers.base import Guarded
from lit_fed.wrappers.compression.codecs import QSGD, FloatCast, LowRank, RandomK, ScaledSign, TopK, Uniform, vectors
from lit_fed.wrappers.compression.downlink import CompressedBroadcast
from lit_fed.wrappers.compression.settings import Compression
from lit_fed.wrappers.compression.uplink import Compressed
from lit_fed.wrappers.fedbn import LocalNorm
from lit_fed.wrappers.privacy.client_level import ClientPrivacy
from lit_fed.wrappers.privacy.local import LocalPrivacy

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
    shared = Guarded(shared, ()) if wrapper.remembers_rounds else shared
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
    shared, known = Guarded(server, ({"whole": torch.zeros(1, 3, dtype=torch.float64)},)), []
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
    assert run(Compressed(FedEM(num_components=2), codec)).bits[0] == 3 * 2 * (bits + PLAIN)
    sparse = run(Compressed(FedEM(num_components=4, most_components=2), codec))
    assert sparse.bits[0] == 3 * (2 * (bits + PLAIN) + 4)  # a bit tells whether a component is sent
    assert sparse.metrics["comm/compression_up"] == pytest.approx((2 * 201 * 32 + 4) / (2 * (bits + PLAIN) + 4))


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
        (FedAvg(), Compression(TopK()), "ef14"),
        (FedAvg(), Compression(QSGD()), "none"),
        (MixtureADMM(), Compression(QSGD()), "ef14"),
        (FedAvg(), Compression(TopK(), "none"), "none"),
        (FedAvg(), Compression(QSGD(), "ef21"), "ef21"),
    ],
)
def test_usual_feedback(algorithm, settings, feedback):
    settings.check(algorithm, type(algorithm).__name__, "renormalised")
    assert settings.around(algorithm) == Compressed(algorithm, settings.up, feedback)


def test_without_codecs_nothing_goes_around():
    algorithm = FedAvg()
    assert Compression().around(algorithm) is algorithm
    assert Compression().around_broadcast(algorithm) is algorithm
    assert Compression(down=TopK()).around_broadcast(algorithm) == CompressedBroadcast(algorithm, TopK())


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
        FedEM(min_weight=0.1),
        {"compression": QSGD(), "compression_feedback": "ef21"},
        "is ef21, and clients of FedEM send some of the models",
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
    (FedAvg(), {"compression": TopK(), "compression_feedback": "ef"}, "compression_feedback is ef; give none, ef14 or"),
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
        Compression(QSGD(), "ef21").check_sampling("size")
    Compression(QSGD(), "ef14").check_sampling("size")


def test_sums_of_what_is_encoded_by_clients_of_their_own():
    message = "--model.compression QSGD: its scales or positions differ from client to client.*; choose RandomK"
    with pytest.raises(ConfigError, match=message):
        Compression(QSGD()).check_wrappers(privacy=None, secure=True)
    with pytest.raises(ConfigError, match=r"--model.downlink_compression .* leave one out"):
        Compression(down=QSGD()).check_wrappers(privacy=None, secure=True)
    Compression(RandomK()).check_wrappers(privacy=None, secure=True)
    Compression(QSGD(), down=QSGD()).check_wrappers(privacy=CENTRAL, secure=False)


def test_noise_is_not_added_up():
    with pytest.raises(ConfigError, match=r"--model.compression_feedback is ef21, .* noise of --model.privacy"):
        Compression(QSGD(), "ef21").check_wrappers(privacy=CENTRAL, secure=False)
    Compression(TopK(), "ef14").check_wrappers(privacy=CENTRAL, secure=False)


def test_nothing_is_packed_before_noise_on_every_number():
    local = LocalPrivacy(1.0, clip_norm=1.0, delta=1e-3)
    with pytest.raises(ConfigError, match=r"TopK encodes changes before --model.privacy LocalPrivacy adds noise"):
        Compression(TopK()).check_wrappers(privacy=local, secure=False)
    Compression(down=TopK()).check_wrappers(privacy=local, secure=False)


@pytest.mark.parametrize("scope", ["leaf", "whole"])
def test_a_broadcast_saves_no_bits_of_what_stays_with_the_clients(scope):
    """Half of the bits of the parameters that are sent, and no bit of BatchNorm, which is not."""
    wrapped = CompressedBroadcast(LocalNorm(FedAvg()), FloatCast(), scope)
    clients = make_clients([6, 5], dtype=torch.float32)
    federation = Federation(wrapped, clients, make_task(network=WideNorm, dtype=torch.float32))
    plain = Federation(LocalNorm(FedAvg()), clients, make_task(network=WideNorm, dtype=torch.float32))
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
        Compression(TopK(k=161)).check_models(FedAvg(), ctx, shared)
    Compression(TopK(k=161), scope="whole").check_models(FedAvg(), ctx, shared)
    with pytest.raises(ConfigError, match="and the model has 180 numbers"):
        Compression(down=TopK(k=181), scope="whole").check_models(FedAvg(), ctx, shared)
    small = Shared(ModelState({"weight": torch.zeros(1, 1, vectors.SMALLEST - 1)}, {}))
    message = "--model.compression QSGD has nothing to encode: .* 64 numbers .* the largest has 63; .*_scope whole"
    with pytest.raises(ConfigError, match=message):
        Compression(QSGD()).check_models(FedAvg(), ctx, small)
