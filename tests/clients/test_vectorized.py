import math

import pytest
import torch
from federated_round import (
    BINARY,
    MULTICLASS,
    POSITIONS,
    REGRESSION,
    Federation,
    Tagger,
    distance,
    make_clients,
    make_task,
    run_rounds,
    same_bits,
    small_mlp,
)
from torch import nn
from torch._functorch import predispatch
from torch.func import vmap

from lit_fed.algorithms import FedAvg, FedAvgPlus, FedEM, Local, OfficialFedEM, PFedMe
from lit_fed.clients import SequentialTrainer, VectorizedTrainer, vectorized
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import ClientBlock, LocalWork, ModelState, Phase, Split
from lit_fed.errors import ClientError, ConfigError
from lit_fed.models import MLP, LeafCNN, Linear
from lit_fed.serving import client_scores, predict_job

ALGORITHMS = [FedAvg(), FedAvgPlus(), FedEM(), OfficialFedEM(num_components=2), Local()]
RAGGED = [300, 1, 17, 2, 128, 4, 5, 33]


def both(algorithm, train, rounds=3, vectorized=None, **options):
    """The same run by the reference and at once."""
    trainers = SequentialTrainer(), vectorized or VectorizedTrainer()
    return [run_rounds(algorithm, trainer, train, rounds=rounds, **options) for trainer in trainers]


def gap(one, other):
    """Largest difference of anything that a run leaves behind."""
    return max(
        distance(one.shared, other.shared),
        distance(one.states, other.states),
        distance(one.predictions(), other.predictions()),
        *(abs(one.metrics[name] - other.metrics[name]) for name in one.metrics),  # none without steps
    )


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.parametrize("network", [Linear, small_mlp], ids=["linear", "mlp"])
def test_parity_in_float64(algorithm, network):
    train = make_clients(RAGGED)
    options = {
        "task": make_task(network=network),
        "batch_size": 16,
        "solver": LocalSolver(momentum=0.9, local_epochs=2),
    }
    one, other = both(algorithm, train, rounds=2, **options)
    assert gap(one, other) < 1e-10
    assert one.bits.tolist() == other.bits.tolist()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_parity_in_float32(algorithm):
    train = make_clients(RAGGED, dtype=torch.float32)
    task = make_task(dtype=torch.float32)
    start = Federation(algorithm, train, task)
    one, other = both(algorithm, train, task=task, batch_size=16, solver=LocalSolver(lr=0.5))
    change = max(distance(one.shared, start.shared), distance(one.states, start.states))
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-6 * change


@pytest.mark.parametrize("target", [BINARY, MULTICLASS, REGRESSION], ids=lambda one: one.kind)
@pytest.mark.parametrize("network", [Linear, small_mlp], ids=["linear", "mlp"])
def test_parity_of_every_kind_of_target(target, network):
    train = make_clients([9, 1, 4], target=target)
    one, other = both(
        FedEM(num_components=2), train, task=make_task(target, network=network), solver=LocalSolver(lr=0.05)
    )
    assert gap(one, other) < 1e-10


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adam", "lr": 0.05},
        {"optimizer": "adam", "lr": 0.05, "persist_optimizer": True},
        {"momentum": 0.9, "persist_optimizer": True, "weight_decay": 0.01},
        {"momentum": 0.9, "nesterov": True, "clip_norm": 0.2},
        {"local_steps": 5},
        {"local_epochs": 0},
        {"lr": 1.0, "schedule": "multi_step"},
    ],
    ids=str,
)
@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM()], ids=["FedAvg", "FedEM"])
def test_parity_of_every_solver(options, algorithm):
    one, other = both(algorithm, make_clients([9, 1, 4, 13]), rounds=4, solver=LocalSolver(**options))
    assert gap(one, other) < 1e-10
    if one.optimizers is not None:
        assert distance(one.optimizers, other.optimizers) < 1e-10
        assert one.optimizers.step.tolist() == [4 * steps for steps in (3, 1, 1, 4)]


def test_parity_of_sequence_labels():
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randint(high, (12, 4), generator=rng) for high in (7, 3))
    train = Split(x, y, torch.tensor([0, 7, 8, 12]))
    one, other = both(FedEM(num_components=2), train, task=make_task(POSITIONS, network=Tagger))
    assert gap(one, other) < 1e-10
    assert one.predictions()[0].shape == (7, 4, 3)
    assert distance(one.evaluate(), other.evaluate()) < 1e-10


def test_parity_of_convolutions():
    train = make_clients([5, 2], num_features=64)
    train = Split(train.x.view(-1, 1, 8, 8), train.y, train.offsets)
    task = make_task(network=lambda _, outputs: LeafCNN((1, 8, 8), outputs, hidden_size=4, dropout=0.0))
    one, other = both(FedEM(num_components=2), train, rounds=1, task=task)
    assert gap(one, other) < 1e-10


def test_parity_of_cohorts_with_clients_drawn_twice():
    cohorts = [[0, 2, 2], [1], [3, 0, 0, 0]]
    options = {"cohorts": cohorts, "aggregation": "stale_fill", "weighting": "uniform"}
    one, other = both(FedEM(num_components=2), make_clients([9, 1, 4, 13]), **options)
    assert gap(one, other) < 1e-10


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
@pytest.mark.parametrize(("chunk_bytes", "rows_per_pass"), [(1, 1), (20_000, 7), (2**30, 10**6)])
def test_chunks_are_irrelevant(algorithm, chunk_bytes, rows_per_pass):
    train, options = make_clients([40, 1, 17, 2, 5]), {"rounds": 2, "batch_size": 8}
    one = run_rounds(algorithm, VectorizedTrainer(), train, **options)
    other = run_rounds(algorithm, VectorizedTrainer(chunk_bytes, rows_per_pass), train, **options)
    assert gap(one, other) < 1e-12


def test_chunks_follow_the_memory_allowed():
    federation = Federation(FedAvg(), make_clients([40, 17, 5, 2, 1]))
    block = ClientBlock(Phase("train", torch.arange(5), LocalWork(epochs=1)), torch.ones(5).double(), federation.train)
    job = federation.job(federation.context("train"), block)

    def rows(chunk_bytes):
        return [one.rows for one in VectorizedTrainer(chunk_bytes).train(job)]

    assert rows(1) == [slice(row, row + 1) for row in range(5)]
    assert rows(2**30) == [slice(0, 5)]
    middle = rows(8_000)
    assert 1 < len(middle) < 5
    assert [row for one in middle for row in range(one.start, one.stop)] == list(range(5))


def test_whole_local_sets_among_batches_count_in_the_memory():
    def rows(**terms):
        federation = Federation(FedAvg(), make_clients([40, 17, 5, 2, 1]), **terms)
        phase = Phase("train", torch.arange(5), LocalWork(epochs=1))
        job = federation.job(federation.context("train"), ClientBlock(phase, torch.ones(5).double(), federation.train))
        return [one.rows for one in VectorizedTrainer(8_000).train(job)]

    assert rows(of_clients={"client_batch_size": torch.tensor([0, 1, 1, 1, 1], dtype=torch.float64)}) == rows(
        batch_size=0
    )
    assert rows(batch_size=0) != rows(batch_size=1)


def test_chunks_on_a_gpu_follow_its_free_memory_once(monkeypatch):
    """Fluctuations of a few per cent, and rounds in which less is free, leave the chunks and so the rounding."""
    gpu, free, held = torch.device("cuda"), 60 * 2**30, {"reserved": 5 * 2**30, "allocated": 2**30}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * 2**30))
    for name, size in held.items():
        monkeypatch.setattr(torch.cuda, f"memory_{name}", lambda device, size=size: size)
    trainer = VectorizedTrainer()
    assert trainer._limit(gpu) == 4 * 2**30  # 64 GB are free: exactly a sixteenth
    free = 20 * 2**30
    assert trainer._limit(gpu) == 4 * 2**30
    assert VectorizedTrainer()._limit(gpu) == 2**30  # of 24 GB
    assert VectorizedTrainer(8_000)._limit(gpu) == 8_000
    assert VectorizedTrainer()._limit(torch.device("cpu")) == 8 * 2**20


@pytest.mark.parametrize("clients_per_block", [1, 3])
def test_blocks_are_irrelevant(clients_per_block):
    train = make_clients([40, 1, 17, 2, 5])
    one = run_rounds(FedEM(), VectorizedTrainer(), train)
    other = run_rounds(FedEM(), VectorizedTrainer(), train, clients_per_block=clients_per_block)
    assert gap(one, other) < 1e-12


def test_a_ghost_takes_no_steps():
    federation = Federation(FedEM(), make_clients([4, 2]), trainer=VectorizedTrainer())
    block = ClientBlock(
        Phase("train", torch.tensor([1]), LocalWork(epochs=1)), torch.zeros(1).double(), federation.train
    )
    (trained,) = federation.trainer.train(federation.job(federation.context("train"), block))
    assert torch.equal(
        trained.result.message.value.parameters["linear.weight"][0],
        federation.shared.models.parameters["linear.weight"],
    )


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.BatchNorm1d(4, momentum=None), r"BatchNorm1d \(momentum None\)"),
        (nn.InstanceNorm1d(4, track_running_stats=True), r"InstanceNorm1d \(momentum 0\.1\)"),
        (nn.Dropout(0.3), r"dropout \(0\.3\)"),
        (nn.LSTM(4, 2), "LSTM"),
        (nn.GRU(4, 2), "GRU"),
    ],
)
def test_layers_that_only_the_sequential_trainer_can_run_are_refused(layer, named):
    network = nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer))
    with pytest.raises(
        ConfigError, match=f"client_trainer vectorized cannot train a network with {named}; use sequential"
    ):
        VectorizedTrainer().check(network)
    SequentialTrainer().check(network)


def test_other_layers_are_taken():
    VectorizedTrainer().check(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.BatchNorm2d(2), nn.Dropout(0.0), nn.Embedding(3, 2))
    )


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM()], ids=["FedAvg", "FedEM"])
def test_nan_in_the_data_names_client_and_round(algorithm):
    train = make_clients([7, 1, 30, 12, 5])
    train.x[int(train.offsets[3])] = math.nan
    federation = Federation(algorithm, train, trainer=VectorizedTrainer(), num_rounds=5, round_idx=4)
    with pytest.raises(ClientError, match=r"client 3, round 4, client_final: .* is NaN or infinite; check") as caught:
        federation.round()
    assert (caught.value.client_id, caught.value.round_idx) == (3, 4)


@pytest.mark.parametrize("stage", ["client_init", "client_step", "client_final"])
def test_an_exception_names_a_client_and_the_trainer_that_finds_the_one(stage):
    def fail(*_):
        raise RuntimeError("no such thing")

    broken = type("Broken", (FedAvg,), {stage: fail})()
    with pytest.raises(
        ClientError, match=f"round 0, {stage}: RuntimeError: no such thing .*sequential names the one"
    ) as caught:
        run_rounds(broken, VectorizedTrainer(), make_clients([7, 9]))
    assert caught.value.client_id == 1  # the longest of the chunk
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_inputs_of_whole_numbers_and_of_one_sample():
    train = make_clients([1, 1, 1])
    one, other = both(FedEM(num_components=2), train)
    assert gap(one, other) < 1e-10


def test_no_state_is_shared_between_runs_of_other_types():
    trainer = VectorizedTrainer()
    for dtype in (torch.float64, torch.float32, torch.float64):
        train, task = make_clients([9, 3], dtype=dtype), make_task(dtype=dtype)
        kept = run_rounds(FedAvg(), trainer, train, task=task)
        fresh = run_rounds(FedAvg(), VectorizedTrainer(), train, task=task)
        assert distance(kept.shared, fresh.shared) == 0


def test_results_outlive_the_next_chunk():
    """The buffer of gathered rows is used again; nothing that is handed out may lie in it."""
    federation = Federation(
        FedEM(), make_clients([9, 7, 5, 3]), trainer=VectorizedTrainer(chunk_bytes=1, rows_per_pass=2)
    )
    block = ClientBlock(Phase("train", torch.arange(4), LocalWork(epochs=1)), torch.ones(4).double(), federation.train)
    job = federation.job(federation.context("train"), block)
    at_once = [tree.map_leaves(torch.clone, trained.result) for trained in federation.trainer.train(job)]
    later = [trained.result for trained in federation.trainer.train(job)]
    assert distance(at_once, later) == 0
    served = federation.predict_job()
    at_once = [tree.map_leaves(torch.clone, part) for part in federation.trainer.predict(served)]
    assert distance(at_once, list(federation.trainer.predict(served))) == 0


@pytest.mark.parametrize(
    ("sizes", "client_ids"),
    [
        ([4, 4, 4], [0, 1, 2]),  # one stretch of memory
        ([4, 9, 4, 4], [0, 2, 3]),  # of one size, with another's samples in between
        ([4, 4, 4], [2, 0]),
        ([7, 3, 5], [0, 1, 2]),
        ([6], [0]),
    ],
)
@pytest.mark.parametrize("rows_per_pass", [2, 6, 32768])
def test_samples_are_served_wherever_they_lie(sizes, client_ids, rows_per_pass):
    federation = Federation(FedEM(), make_clients(sizes), trainer=VectorizedTrainer(rows_per_pass=rows_per_pass))
    ids = torch.tensor(client_ids)
    job = predict_job(federation, ids, federation.train, federation.store.gather(ids)["state"])
    expected = client_scores(SequentialTrainer(), job).rows()
    torch.testing.assert_close(client_scores(federation.trainer, job).rows(), expected, rtol=0, atol=1e-12)
    assert expected[:, 0].tolist() == [sizes[one] for one in client_ids]


LOOKED_UP = vectorized._private_layer.__wrapped__


@pytest.fixture(params=["private", "public"])
def names(request):
    """With the steps of vmap that PyTorch keeps private, and without them."""
    if request.param == "public":
        request.getfixturevalue("public_names")


def step(models, rows, x):
    parameters = {name: leaf + rows.sum() * x for name, leaf in models.parameters.items()}
    return ModelState(parameters, {"constant": torch.ones(2)}), (rows.max(),), None


@pytest.mark.usefixtures("names")
def test_it_is_vmap():
    models = ModelState({"w": torch.arange(6.0).view(3, 2)}, {})
    rows, x = torch.arange(3), torch.tensor([1.0, 2.0, 3.0])
    found = vectorized.vmap_clients(step, models, rows, x)
    expected = vmap(step, out_dims=(0, 0, None))(models, rows, x)
    assert same_bits(found, expected)
    assert found[0].buffers["constant"].shape == (3, 2)


@pytest.mark.usefixtures("names")
def test_none_is_an_empty_tree():
    assert vectorized.vmap_clients(lambda x, none: x if none is None else -x, torch.ones(2), None).tolist() == [1, 1]


@pytest.mark.usefixtures("names")
def test_an_error_leaves_nothing_behind():
    def fail(x):
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        vectorized.vmap_clients(fail, torch.ones(2))
    assert not torch._C._are_functorch_transforms_active()


@pytest.mark.usefixtures("names")
def test_random_draws_are_refused_as_by_vmap():
    with pytest.raises(RuntimeError, match="randomness"):
        vectorized.vmap_clients(lambda x: x + torch.randn(()), torch.ones(2))


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2), PFedMe()], ids=lambda one: type(one).__name__)
def test_rounds_by_public_names_are_the_same_bit_for_bit(algorithm, request):
    def after_rounds():
        task = make_task(MULTICLASS, network=lambda shape, outputs: MLP(shape, outputs, (8,)))
        federation = run_rounds(algorithm, VectorizedTrainer(), make_clients([9, 5, 7], target=MULTICLASS), task=task)
        return federation.shared, federation.states

    before = after_rounds()
    request.getfixturevalue("public_names")
    assert same_bits(before, after_rounds())


def test_private_steps_are_left_alone_where_they_are_gone_or_others(monkeypatch):
    found = LOOKED_UP
    assert found() is not None
    with monkeypatch.context() as patch:
        patch.setattr(torch._C._functorch, "_add_batch_dim", lambda leaf, level: leaf)
        assert found() is None
    with monkeypatch.context() as patch:
        patch.setattr(torch._C._functorch, "_remove_batch_dim", lambda leaf, level, size, place: leaf)
        assert found() is None
    monkeypatch.delattr(predispatch, "lazy_load_decompositions")
    assert found() is None
