"""Rounds without Lightning: what they record, leave behind and refuse."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from federated_round import Federation, as_arrays, distance, flat, make_clients, make_task, same_bits

from lit_fed import rounds, serving
from lit_fed.algorithms import L2GD, FedAvg, FedEM
from lit_fed.clients.aggregation import PhaseAggregator
from lit_fed.clients.base import Trained
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import ClientResult, LocalWork, Message, Phase
from lit_fed.errors import ConfigError

SIZES = [5, 9, 4]


@dataclass(frozen=True)
class Broken(FedAvg):
    """Its server step returns what `change` makes of the right state."""

    change: Any = None

    def server_step(self, ctx, shared, reduced, client_ids):
        return self.change(super().server_step(ctx, shared, reduced, client_ids))


def renamed(shared):
    parameters = dict(shared.models.parameters)
    parameters["heavy"] = parameters.pop("linear.weight")
    return shared._replace(models=shared.models._replace(parameters=parameters))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda shared: tree.index(shared, 0), r"Broken\.server_step returns models/parameters/linear.weight of shape"),
        (renamed, r"Broken\.server_step (leaves out|adds) models/parameters/(linear.weight|heavy); return the same"),
        (lambda shared: None, r"Broken\.server_step leaves out models/parameters/"),
    ],
    ids=["shape", "name", "nothing"],
)
def test_a_server_step_that_changes_the_state_s_form_is_refused(change, said):
    federation = Federation(Broken(change), make_clients(SIZES))
    before = federation.shared
    with pytest.raises(ConfigError, match=said):
        federation.round()
    federation.discard()
    assert same_bits(federation.shared, before)


def test_sums_in_float64_are_cast_once():
    train = make_clients(SIZES, dtype=torch.float32)
    double = Broken(lambda shared: tree.map_leaves(torch.Tensor.double, shared))
    one, other = (Federation(algorithm, train, make_task(dtype=torch.float32)) for algorithm in (double, FedAvg()))
    for federation in (one, other):
        federation.round()
        assert {leaf.dtype for leaf in tree.leaves(federation.shared)} == {torch.float32}
    assert same_bits(one.shared, other.shared)


def test_a_record_tells_what_a_round_did():
    train = make_clients(SIZES)
    federation = rounds.start(FedAvg(), make_task(), train, solver=LocalSolver(lr=0.1), batch_size=4)
    federation.round(train)
    record = federation.round(train, [2, 0, 2], 1)
    model = 64 * sum(leaf.numel() for leaf in tree.leaves(federation.shared))
    assert (record.round_idx, record.lr, record.client_ids.tolist()) == (1, pytest.approx(0.1), [0, 2])
    assert (record.bits_up, record.bits_down) == (2 * model, 2 * model)
    (phase,) = record.phases
    assert (phase.num_clients, phase.trains, phase.num_payloads) == (2, True, 1)
    assert set(record.metrics) == {"loss"}
    assert 0 < record.metrics["loss"] < 2
    assert 0 < record.seconds < 60


class Cut(RuntimeError):
    pass


class CutTrainer:
    """Ends in the middle of a block."""

    name = "cut"

    def __init__(self, inner):
        self.inner = inner

    def train(self, job):
        for position, trained in enumerate(self.inner.train(job)):
            if position:
                raise Cut
            yield trained


def test_a_round_that_is_cut_off_leaves_no_trace():
    whole, cut = (Federation(FedEM(num_components=2), make_clients(SIZES)) for _ in range(2))
    whole.round()
    inner = cut.trainer
    cut.trainer = CutTrainer(inner)
    before = cut.states
    with pytest.raises(Cut):
        cut.round()
    assert same_bits(cut.states, before)
    assert cut.round_idx == 0
    cut.trainer = inner
    cut.round()
    assert same_bits((cut.shared, cut.states), (whole.shared, whole.states))


class NoOptimizer(FedAvg):
    """Two phases; in the first, without local steps, the work has no optimizer."""

    def phases(self, ctx, client_ids):
        return (Phase("report", client_ids, LocalWork()), *super().phases(ctx, client_ids))

    def client_init(self, ctx, shared, state, data, losses):
        return shared.models if ctx.phase == "report" else super().client_init(ctx, shared, state, data, losses)

    def client_final(self, ctx, shared, work, data):
        if ctx.phase == "report":
            return ClientResult(Message(work, ctx.client_weight(data)), (), {})
        return super().client_final(ctx, shared, work, data)


@pytest.mark.parametrize("trainer", ["sequential", "vectorized"])
def test_an_optimizer_is_asked_for_only_where_there_are_local_steps(trainer):
    train, task = make_clients(SIZES), make_task()
    options = {"solver": LocalSolver(lr=0.1, momentum=0.9, persist_optimizer=True), "client_trainer": trainer}
    one, other = (rounds.start(kind, task, train, batch_size=4, **options) for kind in (NoOptimizer(), FedAvg()))
    for _ in range(3):
        one.round(train), other.round(train)
    assert distance(one.store.table["optimizer"], other.store.table["optimizer"]) < 1e-12
    assert float(flat(one.store.table["optimizer"]).abs().max()) > 0
    assert distance(one.shared, other.shared) < 1e-12


def test_unseen_clients_are_served_without_a_store():
    train, unseen = make_clients(SIZES), make_clients([6, 3], seed=1, first_id=3)
    federation = rounds.start(L2GD(), make_task(), train)
    del federation.store
    found = serving.evaluate(federation, unseen, seen=False)
    assert found.samples.tolist() == [len(y) for _, y in as_arrays(unseen)]


@dataclass(frozen=True)
class KeepsWhatItReceived(FedAvg):
    """A client keeps the model that the server sent, and not a copy of it."""

    def state_init(self, ctx, shared, data):
        return shared.models

    def client_final(self, ctx, shared, work, data):
        return super().client_final(ctx, shared, work, data)._replace(state=shared.models)


@pytest.mark.parametrize("at_once", [0, 2**24])
def test_a_kept_model_is_that_of_the_round_also_where_the_server_writes_over_its_own(monkeypatch, at_once):
    monkeypatch.setattr("lit_fed.clients.store.BYTES_AT_ONCE", at_once)
    train = make_clients(SIZES)
    federation = rounds.start(KeepsWhatItReceived(), make_task(), train, solver=LocalSolver(lr=0.5), batch_size=4)
    server = federation.server

    def commit(shared):  # as a module does, whose parameters stay where they are
        tree.map_leaves(lambda old, new: old.copy_(new), server.shared, shared)
        server.rounds_done += 1

    server.commit = commit
    federation.round(train)
    sent = tree.map_leaves(torch.clone, federation.shared.models)
    federation.round(train)
    assert distance(sent, federation.shared.models) > 0
    for row in range(len(SIZES)):
        assert same_bits(tree.index(federation.store.table["state"], row), sent)


def test_a_placeholder_adds_nothing_even_if_it_is_not_finite():
    def sent(number):
        message = Message(
            {"w": torch.tensor([[number]])}, torch.ones(1), torch.ones(1).double(), torch.ones(1).double()
        )
        return Trained(slice(0, 1), ClientResult(message, (), {"loss": torch.tensor([number])}), None)

    found = PhaseAggregator("sum", [torch.tensor([0])], torch.device("cpu"), 1)
    found.take(torch.tensor([1]), torch.zeros(1).double(), sent(float("nan")).form)
    found.take(torch.tensor([0]), torch.ones(1).double(), sent(3.0))
    reduced, bits, means = found.messages.reduce(*found.heard[:2])
    assert (reduced.value["w"].item(), reduced.weight.item(), means) == (3.0, 1.0, {"loss": (3.0, 1.0)})
    assert bits.tolist() == [1.0, 1.0]


class Counting(FedAvg):
    """Keeps the number of its samples, and does not say that it reads them."""

    def state_init(self, ctx, shared, data):
        return {"samples": data.num_samples}


def test_a_first_state_that_reads_the_client_has_to_say_so():
    train, task = make_clients([4, 5]), make_task()
    with pytest.raises(ConfigError, match=r"Counting\.state_init reads data\.num_samples, .* `state_reads_data"):
        Federation(Counting(), train, task)

    class Saying(Counting):
        state_reads_data = True

    assert Federation(Saying(), train, task).store.table["state"]["samples"].tolist() == [4, 5]
