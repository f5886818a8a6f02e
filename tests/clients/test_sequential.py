import math
import re

import pytest
import torch
from federated_round import (
    MULTICLASS,
    REGRESSION,
    Federation,
    distance,
    make_clients,
    make_context,
    make_task,
    run_rounds,
    same_bits,
)
from torch import nn

from lit_fed.algorithms import FedAvg, FedAvgPlus, FedEM, Local
from lit_fed.clients import DebugTrainer, PredictJob, SequentialTrainer, TrainJob
from lit_fed.clients.base import check_finite, complete
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Batch, ClientBlock, ClientData, ClientResult, LocalWork, Message, Phase, Split
from lit_fed.errors import ClientError
from lit_fed.models import MLP, LeafCNN
from lit_fed.serving import client_scores

SIZES = [7, 1, 30, 12, 5]


class Broken(FedAvg):
    """Fails in client 3, wherever the client can be told."""

    def client_final(self, ctx, shared, work, data):
        if int(data.client_id) == 3:
            raise RuntimeError("no such thing")
        return super().client_final(ctx, shared, work, data)


def poisoned(sizes=SIZES, client_id=2):
    train = make_clients(sizes)
    train.x[int(train.offsets[client_id])] = math.nan
    return train


def one_phase(federation, ids, multiplicity=None):
    """What the clients of a block return, in the order of the block."""
    multiplicity = torch.ones(len(ids)) if multiplicity is None else torch.tensor(multiplicity)
    phase = Phase("train", torch.tensor(ids), federation.solver.work)
    block = ClientBlock(phase, multiplicity.double(), federation.train)
    found = list(federation.trainer.train(federation.job(federation.context("train"), block)))
    return tree.map_leaves(lambda *parts: torch.cat(parts), *(one.result for one in found)), found


def test_results_cover_each_client_once_and_in_order():
    result, found = one_phase(Federation(FedEM(), make_clients(SIZES)), [3, 0, 1])
    assert [one.rows for one in found] == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert result.message.weight.tolist() == [12, 7, 1]
    assert result.message.weight.dtype == torch.float64
    assert result.state.mixture.shape == (3, 3)
    assert result.metrics["loss"].shape == (3,)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(), Local()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("clients_per_block", [1, 2, 3])
def test_blocks_change_no_bit(algorithm, clients_per_block):
    options = {"train": make_clients(SIZES, dtype=torch.float32), "task": make_task(dtype=torch.float32)}
    options["solver"] = LocalSolver(momentum=0.9, local_epochs=2)
    one = run_rounds(algorithm, SequentialTrainer(), **options)
    other = run_rounds(algorithm, SequentialTrainer(), clients_per_block=clients_per_block, **options)
    assert same_bits((one.shared, one.states), (other.shared, other.states))
    assert one.bits.tolist() == other.bits.tolist()


def test_bits_default_to_the_sizes_of_the_payloads():
    task = make_task(dtype=torch.float32)  # 5 parameters
    result, _ = one_phase(Federation(FedEM(2), make_clients([3, 2], dtype=torch.float32), task), [0, 1])
    assert result.message.bits_up.tolist() == result.message.bits_down.tolist() == [2 * 5 * 32] * 2
    silent, _ = one_phase(Federation(Local(), make_clients([3, 2])), [0, 1])
    assert silent.message.bits_up.tolist() == silent.message.bits_down.tolist() == [0, 0]


def test_bits_that_the_algorithm_counts_itself_are_kept():
    federation = Federation(FedAvg(), make_clients([3]))
    block = ClientBlock(Phase("train", torch.tensor([0]), LocalWork()), torch.ones(1).double(), federation.train)
    message = Message(torch.zeros(2), torch.tensor(3), torch.tensor(5.0), torch.tensor(7.0))
    completed = complete(federation.job(make_context(), block), ClientResult(message, (), {})).message
    assert (float(completed.bits_up), float(completed.bits_down)) == (5, 7)
    assert completed.weight.dtype == torch.float64


def test_a_ghost_takes_no_steps():
    federation = Federation(FedAvg(), make_clients(SIZES))
    result, found = one_phase(federation, [2], [0.0])
    assert same_bits(tree.index(result.message.value, 0), federation.shared.models)
    persistent = Federation(FedAvg(), make_clients(SIZES), solver=LocalSolver(persist_optimizer=True))
    _, found = one_phase(persistent, [2], [0.0])
    assert float(found[0].optimizers.step) == 0


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM()], ids=["FedAvg", "FedEM"])
def test_nan_in_the_data_names_client_and_round(algorithm):
    federation = Federation(algorithm, poisoned(), num_rounds=5, round_idx=4)
    with pytest.raises(ClientError, match=r"client 2, round 4, client_final: .* is NaN or infinite; check") as caught:
        federation.round()
    assert (caught.value.client_id, caught.value.round_idx) == (2, 4)


def test_check_finite_looks_at_messages_and_states():
    def result(value, state):
        return ClientResult(Message({"w": value}, torch.ones(2)), state, {})

    ids, good = torch.tensor([4, 9]), torch.ones(2, 3)
    bad = torch.tensor([[1.0, 1, 1], [1, -math.inf, math.inf]])
    ctx = make_context(round_idx=7)
    check_finite(result(good, (torch.arange(2), good)), ids, ctx)
    with pytest.raises(ClientError, match="client 9, round 7, client_final: state/scale is NaN"):
        check_finite(result(good, {"scale": torch.tensor([1.0, math.nan])}), ids, ctx)  # a number of each client
    with pytest.raises(ClientError, match="client 9, round 7, client_final: message/w is NaN"):
        check_finite(result(bad, ()), ids, ctx)
    with pytest.raises(ClientError, match="client 9, round 7, client_final: state/0 is NaN"):
        check_finite(result(good, (bad,)), ids, ctx)


@pytest.mark.parametrize(
    ("place", "advice"),
    [
        ({"round_idx": 0}, "start again with --model.solver.clip_norm 1 or a lower --model.solver.lr"),
        ({"round_idx": 3}, "add --ckpt_path last --resume_with_changes to go on from the last of them"),
        ({"solver": LocalSolver(clip_norm=2.0)}, "client's data, or start again with a lower --model.solver.lr"),
        ({"phase": "adapt"}, "or give a lower --model.solver.adapt_lr, or rate of adaptation of the algorithm"),
    ],
)
def test_who_diverges_is_told_how_to_go_on(place, advice):
    result = ClientResult(Message({"w": torch.full((1, 1), math.nan)}, torch.ones(1)), (), {})
    with pytest.raises(ClientError, match=f"{re.escape(advice)}$"):
        check_finite(result, torch.tensor([0]), make_context(**place))


def test_an_exception_names_the_client():
    with pytest.raises(ClientError, match="client 3, round 0, client_final: RuntimeError: no such thing") as caught:
        run_rounds(Broken(), SequentialTrainer(), make_clients(SIZES))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert caught.value.stage == "client_final"
    assert caught.value.inputs is None


def test_passes_without_gradient_may_be_cut():
    train = make_clients(SIZES)
    whole = run_rounds(FedEM(), SequentialTrainer(), train, rounds=2)
    cut = run_rounds(FedEM(), SequentialTrainer(rows_per_pass=4), train, rounds=2)
    assert distance((whole.shared, whole.states), (cut.shared, cut.states)) < 1e-12
    assert distance(whole.predictions(), cut.predictions()) < 1e-12


@pytest.mark.parametrize("algorithm", [FedAvg(), FedAvgPlus(), FedEM(), Local()], ids=lambda one: type(one).__name__)
def test_predictions_cover_each_sample_once(algorithm, client_trainer):
    federation = run_rounds(algorithm, client_trainer, make_clients(SIZES), rounds=1)
    client_trainer.rows_per_pass = 4
    test = make_clients([3, 9, 0, 1, 4], seed=5)
    rows, labels, total = [], {row: [] for row in range(5)}, 0
    for served in client_trainer.predict(federation.predict_job(test, federation.serve())):
        assert served.prediction.shape[:2] == served.mask.shape == served.y.shape
        total += int(served.mask.sum())
        for row, y, mask in zip(served.rows.tolist(), served.y, served.mask, strict=True):
            rows.append(row)
            labels[row] += y[mask > 0].tolist()
    assert set(rows) == {0, 1, 3, 4}
    assert total == 17
    assert all(labels[row] == test.client(row).y.tolist() for row in range(5))


@pytest.mark.parametrize("rows_per_pass", [4, 1000])
def test_evaluation_sums_loss_and_hits(client_trainer, rows_per_pass):
    client_trainer.rows_per_pass = rows_per_pass
    federation = run_rounds(FedEM(), client_trainer, make_clients(SIZES), rounds=2)
    test = make_clients([3, 9, 0, 1, 4], seed=5)
    rows = federation.evaluate(test)
    assert rows.dtype == torch.float64
    assert rows[:, 0].tolist() == [3, 9, 0, 1, 4]
    for row, prediction in enumerate(federation.predictions(test)):
        if row != 2:
            y = test.client(row).y
            assert float(rows[row, 1]) == pytest.approx(-float(prediction[torch.arange(len(y)), y].sum()), abs=1e-12)
            assert float(rows[row, 2]) == float((prediction.argmax(1) == y).sum())
    assert rows[2].tolist() == [0, 0, 0]


def test_evaluation_of_a_regression_sums_half_and_whole_squares(client_trainer):
    train = make_clients(SIZES, target=REGRESSION)
    federation = run_rounds(FedAvg(), client_trainer, train, rounds=1, task=make_task(REGRESSION))
    rows = federation.evaluate()
    for row, prediction in enumerate(federation.predictions()):
        squares = float((prediction[:, 0] - train.client(row).y).square().sum())
        assert rows[row].tolist() == pytest.approx([SIZES[row], squares / 2, squares], abs=1e-12)


def test_an_empty_test_split_is_no_error(client_trainer):
    federation = Federation(FedAvg(), make_clients(SIZES), trainer=client_trainer)
    empty = make_clients([0, 0, 0, 0, 0])
    assert list(client_trainer.predict(federation.predict_job(empty, ()))) == []
    assert (federation.evaluate(empty, states=()) == 0).all()


def test_no_clients_at_all(client_trainer):
    federation = Federation(FedEM(), make_clients(SIZES))
    ids, states = torch.arange(0), tree.index(federation.states, slice(0, 0))
    job = PredictJob(
        federation.algorithm, make_context(federation.task), federation.shared, federation.train, ids, states
    )
    assert client_scores(client_trainer, job).rows().shape == (0, 3)
    block = ClientBlock(Phase("adapt", ids, LocalWork()), torch.ones(0).double(), federation.train)
    job = TrainJob(federation.algorithm, make_context(federation.task), federation.shared, block, states, None)
    assert list(client_trainer.train(job)) == []


def test_dropout_draws_by_client_and_round_not_by_order():
    build = lambda shape, outputs: nn.Sequential(MLP(shape, 6), nn.Dropout(0.5), nn.Linear(6, outputs))  # noqa: E731
    options = {"task": make_task(MULTICLASS, network=build), "train": make_clients(SIZES, target=MULTICLASS)}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = run_rounds(FedAvg(), SequentialTrainer(), **options)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    other = run_rounds(FedAvg(), SequentialTrainer(), clients_per_block=2, **options)
    assert distance(one.shared, other.shared) < 1e-14
    assert distance(one.shared, run_rounds(FedAvg(), SequentialTrainer(), seed=1, **options).shared) > 1e-3


def test_networks_with_running_statistics_are_trained_and_averaged():
    build = lambda shape, outputs: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, outputs))  # noqa: E731
    train = make_clients([8, 4])
    federation = run_rounds(FedAvg(), SequentialTrainer(), train, rounds=1, task=make_task(network=build))
    buffers = federation.shared.models.buffers
    assert buffers["0.num_batches_tracked"].tolist() == [2]  # (8 · 2 + 4 · 1) / 12 rounds to 2
    assert buffers["0.num_batches_tracked"].dtype == torch.int64
    assert buffers["0.running_mean"].dtype == torch.float64
    assert distance(buffers["0.running_mean"], torch.zeros(1, 4)) > 0


def test_image_networks_run():
    train = make_clients([3, 2], num_features=64, dtype=torch.float32)
    train = Split(train.x.view(-1, 1, 8, 8), train.y, train.offsets)
    task = make_task(network=lambda _, outputs: LeafCNN((1, 8, 8), outputs, hidden_size=4), dtype=torch.float32)
    federation = run_rounds(FedEM(num_components=2), SequentialTrainer(), train, rounds=1, task=task)
    assert federation.evaluate()[:, 0].tolist() == [3, 2]


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(), Local()], ids=lambda one: type(one).__name__)
def test_the_debug_trainer_gives_the_same_numbers(algorithm):
    train = make_clients([7, 1, 9])
    one, other = (run_rounds(algorithm, trainer, train) for trainer in (SequentialTrainer(), DebugTrainer()))
    assert same_bits((one.shared, one.states), (other.shared, other.states))
    assert one.metrics == other.metrics


def test_the_first_bad_result_is_named_with_its_inputs():
    with pytest.raises(ClientError, match=r"client 2, round 0, losses: its result .*is NaN or infinite") as caught:
        run_rounds(FedEM(), DebugTrainer(), poisoned([7, 1, 9]))
    assert isinstance(caught.value.inputs["second"], ClientData)

    with pytest.raises(ClientError, match="client 2, round 0, client_step: its result models/parameters") as caught:
        run_rounds(FedAvg(), DebugTrainer(), poisoned([7, 1, 9]))
    error = caught.value
    assert (error.client_id, error.round_idx, error.stage) == (2, 0, "client_step")
    assert set(error.inputs) == {"ctx", "shared", "first", "second"}
    assert isinstance(error.inputs["second"], Batch)
    assert error.inputs["second"].x.isnan().any()
    assert error.inputs["first"].models.parameters["linear.weight"].isfinite().all()


@pytest.mark.parametrize(
    ("stage", "last"), [("client_init", "third"), ("client_step", "second"), ("client_final", "second")]
)
def test_an_exception_in_debug_carries_the_inputs(stage, last):
    def fail(self, *arguments):
        raise RuntimeError("no such thing")

    fail.__name__ = stage
    broken = type("Broken", (FedAvg,), {stage: fail})()
    with pytest.raises(ClientError, match=f"round 0, {stage}: RuntimeError: no such thing") as caught:
        run_rounds(broken, DebugTrainer(), make_clients([7]))
    assert list(caught.value.inputs)[-1] == last
    assert caught.value.inputs["ctx"].phase == "train"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_infinity_is_found_too():
    train = make_clients([3])
    train.x[0] = torch.inf
    with pytest.raises(ClientError, match="client 0, round 0"):
        run_rounds(FedAvg(), DebugTrainer(), train)
