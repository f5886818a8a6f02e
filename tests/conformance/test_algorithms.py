"""What every algorithm of the package has to satisfy; a new one is found and checked without a line here.

A check that an algorithm cannot satisfy by its nature is named, with the reason, in `exemptions.py`: the name is that
of the test without `test_`.
"""

import ast
import copy
import dataclasses
import functools
import importlib
import inspect
import pickle
import pkgutil
import re
import typing
from pathlib import Path

import pytest
import torch
from combination import refuse
from exemptions import EXEMPT, exempt
from federated_round import (
    BINARY,
    MULTICLASS,
    POSITIONS,
    REGRESSION,
    Federation,
    Tagger,
    distance,
    make_clients,
    make_parties,
    make_task,
    reordered,
    run_rounds,
    same_bits,
    small_mlp,
)
from local_norm import local_norm
from normalised import NormalisedMLP

import lit_fed.algorithms
from lit_fed.algorithms import Algorithm, FedEM
from lit_fed.clients import DebugTrainer, SequentialTrainer, VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.algorithm import tuning_space
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.partial_models import PartialModel
from lit_fed.core.plan import make_plan
from lit_fed.core.reduce import Accumulator
from lit_fed.core.types import Batch, ClientBlock, ClientData, Split
from lit_fed.errors import ConfigError
from lit_fed.models import Linear
from lit_fed.wrappers.personal.parts import PersonalParts

ROOT = Path(__file__).parents[2]

SMALL: dict[str, dict] = {
    "UCFL": {"warmup_rounds": 1},
    "PFedHNPC": {"head": ("*bias",), "width": 5, "depth": 2},
    "FedRep": {"head_epochs": 2},
    "FedBABU": {"adapt_epochs": 2},
    "FedGen": {"generated": 7, "noise_size": 3, "width": 4, "server_steps": 3, "server_batch_size": 8},
    "PFedHN": {"width": 5, "depth": 2},
    "PFedFDA": {"ridge": 1.0},  # without, covariances of one sample magnify rounding
    "FedALA": {"sample_fraction": 1.0, "start_passes": 3},  # fewer are drawn by the client's number
    "L2GD": {"communication_probability": 0.5, "flips_per_round": 4},
    "L2SGDPlus": {"communication_probability": 0.5, "flips_per_round": 4},
    "ClusteredFL": {"max_clusters": 3, "relative": True, "mean_norm_below": 0.9, "max_norm_above": 0.0}
    | {"warmup_rounds": 0, "min_cluster_size": 1},
    "FedSALoRA": {"personal": ("*.bias",)},
    "FFALoRA": {"frozen": ("*.bias",)},
}
"""Hyper-parameters for these small clients, by class name, where the defaults will not do or take long."""

CHECKED_ELSEWHERE = {"ranks", "resume"}
"""Checks of this list that need Lightning, and so have tests of their own."""

VARIANTS = {"mlp", "multiclass", "regression", "sequences"}
"""Networks and targets that parametrise checks; an algorithm may be exempt from one of these as well."""

METHODS = [
    "shared_init", "state_init", "phases", "shared_losses", "client_init", "client_step", "client_final",
    "server_step", "adapt_work", "shared_outputs", "log_prob",
]  # fmt: skip

SIZES, UNSEEN = [6, 1, 9, 3], [5, 1]


def subclasses(cls):
    for one in cls.__subclasses__():
        yield one
        yield from subclasses(one)


def all_algorithms():
    """Every concrete algorithm of the package, also of files that nobody imports."""
    for module in pkgutil.iter_modules(lit_fed.algorithms.__path__, "lit_fed.algorithms."):
        importlib.import_module(module.name)
    known = (one for one in subclasses(Algorithm) if one.__module__.split(".")[0] == "lit_fed")
    found = {one for one in known if not one.__module__.startswith("lit_fed.wrappers.")}  # of trained algorithms
    return sorted((one for one in found if not inspect.isabstract(one)), key=lambda one: one.__name__)


@pytest.fixture(params=all_algorithms(), ids=lambda one: one.__name__)
def cls(request):
    """Every algorithm in turn; skips the checks from which it is exempt."""
    checks = {request.node.originalname.removeprefix("test_"), *request.node.callspec.id.split("-")}
    reasons = exempt(request.param)
    for check in checks & set(reasons):
        pytest.skip(reasons[check])
    return request.param


@pytest.fixture
def algorithm(cls):
    return cls(**SMALL.get(cls.__name__, {}))


@pytest.fixture(params=[DebugTrainer, VectorizedTrainer], ids=lambda one: one.name)
def strict_trainer(request):
    """Clients one by one, where no function may return a NaN even if it is not used, and at once."""
    return request.param()


def network_of(algorithm):
    """A network with features that are trained, for an algorithm with a part that needs some; else a linear one."""
    has_parts = isinstance(algorithm, PartialModel) or type(algorithm).__name__ in ("FedProto", "PFedFDA")
    return small_mlp if has_parts else Linear


def federation_of(algorithm, train, trainer=None, target=BINARY, network=Linear, dtype=torch.float64, **options):
    defaults = {"solver": LocalSolver(lr=0.2, momentum=0.5), "num_rounds": 3}
    options = defaults | {"groups": torch.arange(train.num_clients) % 2} | options
    task = make_task(target, network=network, dtype=dtype)
    train = make_parties(train) if algorithm.participation.divided_by == "features" else train
    return Federation(algorithm, train, task, trainer=trainer or SequentialTrainer(), **options)


def after_rounds(algorithm, train, rounds=3, cohorts=None, **options):
    federation = federation_of(algorithm, train, **options)
    cohorts = None if algorithm.participation.needs_all_clients else cohorts
    for round_idx in range(rounds):
        federation.round(None if cohorts is None else cohorts[round_idx])
    return federation


@functools.cache
def _three_rounds(algorithm, trainer):
    return after_rounds(algorithm, make_clients(SIZES), trainer=trainer())


def three_rounds(algorithm, trainer=SequentialTrainer):
    """Three rounds with all clients and no options, run once for all checks that look at the same ones."""
    return copy.copy(_three_rounds(algorithm, trainer))


def everything(federation, unseen=None):
    """All that a run can show: server, clients, predictions for seen and for unseen ones, metrics."""
    metrics = {name: torch.tensor(value) for name, value in federation.metrics.items()}
    shown = [federation.shared, federation.states, metrics, federation.predictions()]
    return shown if unseen is None else [*shown, federation.predictions(unseen, seen=False)]


def finite(value):
    return all(leaf.isfinite().all() for leaf in tree.leaves(value) if leaf.is_floating_point())


def layout(value):
    return [(path, leaf.shape, leaf.dtype) for path, leaf in tree.items(value)]


def unseen_clients(target=BINARY):
    return make_clients(UNSEEN, target=target, seed=9, first_id=len(SIZES))


def tensors(value):
    return [leaf for _, leaf in tree.items(value) if isinstance(leaf, torch.Tensor)]


# ---------------------------------------------------------------------- absent clients
@pytest.mark.every_combination
def test_stale_fill_changes_an_average_or_is_refused(algorithm):
    """Where absent clients would count with the model that they were last sent, or where that has no meaning."""
    if not algorithm.participation.fills_in_absent:
        with pytest.raises(ConfigError, match="stale_fill"):
            refuse(algorithm, aggregation="stale_fill")
        return
    cohorts = [[0, 2], [1, 3], [0, 2]]
    plain, filled = (
        after_rounds(algorithm, make_clients(SIZES), cohorts=cohorts, aggregation=aggregation, network=small_mlp)
        for aggregation in ("renormalised", "stale_fill")
    )
    assert distance(plain.predictions(), filled.predictions()) > 1e-6


# ---------------------------------------------------------------------- purity
def watched(algorithm, calls):
    """The algorithm, with every function checked for changes of its arguments."""

    def watch(name):
        original = getattr(type(algorithm), name)

        @functools.wraps(original)
        def method(self, *arguments, **named):
            before = [leaf.clone() for leaf in tensors(arguments)]
            value = original(self, *arguments, **named)
            assert all(torch.equal(a, b) for a, b in zip(tensors(arguments), before, strict=True)), name
            calls.add(name)
            return value

        return method

    methods = {name: watch(name) for name in METHODS}
    kind = type("Watched", (type(algorithm),), methods | {"state_reads_data": True})  # the watch looks at them
    return kind(**{field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)})


@pytest.mark.every_combination
@pytest.mark.parametrize("target", [BINARY, MULTICLASS], ids=["linear", "multiclass-mlp"])
def test_inputs_unchanged(algorithm, target):
    calls = set()
    network = {BINARY: Linear, MULTICLASS: small_mlp}[target]
    train = make_clients(SIZES, target=target)
    before = train.x.clone(), train.y.clone()
    federation = after_rounds(watched(algorithm, calls), train, target=target, network=network)
    everything(federation, unseen_clients(target))
    assert same_bits((train.x, train.y), before)
    expected = {"shared_init", "phases", "client_init", "client_step", "client_final", "server_step", "log_prob"}
    phases = algorithm.phases(federation.context("plan"), torch.arange(federation.train.num_clients))
    steps = any(phase.work.epochs or phase.work.steps for phase in phases)
    assert calls >= expected - (set() if steps else {"client_step"})


def test_settings_are_frozen(algorithm):
    assert dataclasses.is_dataclass(algorithm)
    assert type(algorithm).__dataclass_params__.frozen
    before = dict(vars(algorithm))
    after_rounds(algorithm, make_clients(SIZES), rounds=1).predictions()
    assert vars(algorithm) == before


def test_pickles(algorithm):
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    federation = three_rounds(algorithm)
    kept = federation.shared, federation.states, federation.serve()
    assert same_bits(pickle.loads(pickle.dumps(kept)), kept)


@pytest.mark.every_combination
def test_same_seed_same_numbers(algorithm):
    runs = three_rounds(algorithm), after_rounds(algorithm, make_clients(SIZES))
    assert same_bits(*(everything(run, unseen_clients()) for run in runs))


@pytest.mark.every_combination
def test_adapting_leaves_the_store_alone(algorithm, client_trainer):
    federation = after_rounds(algorithm, make_clients(SIZES), rounds=2, trainer=client_trainer)
    kept = tree.map_leaves(torch.clone, (federation.shared, federation.states))
    first = everything(federation, unseen_clients())
    assert same_bits((federation.shared, federation.states), kept)
    assert same_bits(everything(federation, unseen_clients()), first)
    federation.round()
    undisturbed = three_rounds(algorithm, type(client_trainer))
    assert same_bits((federation.shared, federation.states), (undisturbed.shared, undisturbed.states))


# ---------------------------------------------------------------------- the same numbers, whoever computes them
@pytest.mark.every_combination
def test_debug_is_sequential(algorithm):
    runs = three_rounds(algorithm), after_rounds(algorithm, make_clients(SIZES), trainer=DebugTrainer())
    assert same_bits(*((everything(run, unseen_clients()), run.bits) for run in runs))


@pytest.mark.parametrize(
    ("target", "network"),
    [
        pytest.param(BINARY, small_mlp, id="binary-mlp", marks=pytest.mark.every_combination),
        pytest.param(MULTICLASS, Linear, id="multiclass-linear"),
        pytest.param(REGRESSION, Linear, id="regression-linear", marks=pytest.mark.every_combination),
    ],
)
def test_sequential_is_vectorized(algorithm, network, target):
    """Binary labels of a linear model are below, and several classes of other networks in `test_networks`."""
    train = make_clients([17, 1, 9, 3], target=target)
    cohorts = [[0, 1, 2, 3], [2, 0, 2], [3, 1]]
    options = {"target": target, "network": network, "cohorts": cohorts, "solver": LocalSolver(lr=0.05, momentum=0.5)}
    runs = [
        after_rounds(algorithm, train, trainer=trainer(), **options)
        for trainer in (SequentialTrainer, VectorizedTrainer)
    ]
    one, other = (everything(run, unseen_clients(target)) for run in runs)
    assert distance(one, other) < 1e-10
    check_predictions([*one[-2], *one[-1]], [*runs[0].train.sizes.tolist(), *UNSEEN], target)


def check_predictions(served, sizes, target):
    """Log-probabilities of classes [N, C] that sum to 1, or means [N, 1]."""
    shape = (1,) if target.kind == "regression" else (target.num_classes,)
    assert [prediction.shape for prediction in served] == [(size, *shape) for size in sizes]
    if target.kind != "regression":
        assert float(torch.logsumexp(torch.cat(served), -1).abs().max()) < 1e-12


@pytest.mark.every_combination
def test_sequential_is_vectorized_with_kept_optimizers(algorithm):
    solver = LocalSolver(optimizer="adam", lr=0.05, persist_optimizer=True)
    one, other = (
        after_rounds(
            algorithm, make_clients(SIZES), trainer=trainer(), solver=solver, cohorts=[[0, 1, 2, 3], [1], [0, 1]]
        )
        for trainer in (SequentialTrainer, VectorizedTrainer)
    )
    assert distance((everything(one), one.optimizers), (everything(other), other.optimizers)) < 1e-10


@pytest.mark.every_combination
def test_blocks(algorithm, client_trainer):
    cut = after_rounds(algorithm, make_clients(SIZES), trainer=client_trainer, clients_per_block=1)
    assert distance(everything(three_rounds(algorithm, type(client_trainer))), everything(cut)) < 1e-12


@pytest.mark.every_combination
def test_client_order(algorithm, client_trainer):
    """Clients in another order, and under other names, with batches that do not depend on the names."""
    train = make_clients(SIZES)
    order = torch.tensor([2, 0, 3, 1])
    renamed = reordered(train, order)
    groups = torch.arange(len(SIZES)) % 2
    federations = [
        federation_of(algorithm, data, client_trainer, batch_size=0, groups=own)
        for data, own in ((train, groups), (renamed, groups[order]))
    ]
    for federation in federations:
        federation.round()
        federation.round()
    one, other = federations
    assert distance(one.shared, other.shared) < 1e-10
    assert distance(tree.index(one.states, order), other.states) < 1e-10
    predictions = one.predictions()
    assert distance([predictions[row] for row in order.tolist()], other.predictions()) < 1e-10


@pytest.mark.every_combination
def test_order_of_the_cohort(algorithm, client_trainer):
    runs = []
    for cohort in ([0, 1, 2, 3], [3, 2, 0, 1]) if algorithm.participation.needs_all_clients else ([0, 1, 3], [3, 0, 1]):
        federation = federation_of(algorithm, make_clients(SIZES), client_trainer)
        federation.round(cohort)
        runs.append(everything(federation))
    assert same_bits(*runs)


def one_client(algorithm, federation, extra):
    """A client's phase by hand, with `extra` padded samples in its data and in each batch."""
    ctx, data = federation.context("train"), federation.train.client(2)
    (phase, *_) = algorithm.phases(ctx, torch.tensor([2]))
    num_samples = len(data.y)
    index = torch.cat([torch.arange(num_samples), torch.zeros(extra, dtype=torch.int64)])
    mask = torch.cat([torch.ones(num_samples), torch.zeros(extra)])
    padded = ClientData(data.all_x, data.all_y, index, mask, data.client_id)
    losses = algorithm.shared_losses(ctx, federation.shared, Batch(padded.x, padded.y, torch.arange(len(mask)), mask))
    work = algorithm.client_init(ctx, federation.shared, tree.index(federation.states, 2), padded, losses)
    plan = make_plan([num_samples], [2], phase.work, batch_size=4, seed=0, round_idx=0, phase=phase.name)
    for positions, count in zip(plan.index[0], plan.counts[0].tolist(), strict=True):
        rows = torch.cat([positions[:, :count], torch.zeros(len(positions), extra, dtype=torch.int64)], dim=1)
        rows = rows if phase.work.batches_per_step > 1 else rows[0]
        real = torch.cat([torch.ones(count), torch.zeros(extra)]).expand(rows.shape)
        work = algorithm.client_step(ctx, federation.shared, work, Batch(data.x[rows], data.y[rows], rows, real))
    return algorithm.client_final(ctx, federation.shared, work, padded)


@pytest.mark.every_combination
@pytest.mark.parametrize("network", [Linear, small_mlp], ids=["linear", "mlp"])
def test_padding(algorithm, network):
    federation = federation_of(algorithm, make_clients(SIZES), network=network)
    plain, padded = (one_client(algorithm, federation, extra) for extra in (0, 7))
    assert distance(plain, padded) < 1e-12


@pytest.mark.every_combination
def test_local_batch_norm(algorithm):
    """With each client's own normalisation the server has nothing of it, and both client trainers agree."""
    solver = LocalSolver(lr=0.05, momentum=0.5)
    options = {"train": make_clients([6, 9, 3]), "network": NormalisedMLP, "batch_size": 3, "solver": solver}
    one, other = (
        after_rounds(local_norm(algorithm), rounds=2, trainer=trainer(), **options)
        for trainer in (SequentialTrainer, VectorizedTrainer)
    )
    unseen = make_clients([5, 4], seed=9, first_id=3)
    assert distance(everything(one, unseen), everything(other, unseen)) < 1e-8
    assert finite(everything(one, unseen))
    plain = after_rounds(algorithm, rounds=2, **options)
    assert all(own < whole or whole == 0 for own, whole in zip(one.bits, plain.bits, strict=True))
    assert one.task.norm_names
    for models in tree.models(one.shared.inner):
        assert one.task.norm_names.isdisjoint(models.parameters | models.buffers)


@pytest.mark.every_combination
@pytest.mark.parametrize("training", ["joint", "alternating"])
def test_personal_parts(algorithm, training):
    """With own heads nothing at the server has one, bytes are without them, and both client trainers agree."""
    try:
        refuse(algorithm, personal=["head"], personal_training=training)
    except ConfigError:
        pytest.skip("refused")
    solver = LocalSolver(lr=0.05, momentum=0.5)
    options = {"train": make_clients([6, 9, 3]), "network": NormalisedMLP, "batch_size": 3, "solver": solver}
    wrapped = PersonalParts(algorithm, ("head",), training)
    one, other = (
        after_rounds(wrapped, rounds=2, trainer=trainer(), **options)
        for trainer in (SequentialTrainer, VectorizedTrainer)
    )
    unseen = make_clients([5, 4], seed=9, first_id=3)
    assert distance(everything(one, unseen), everything(other, unseen)) < 1e-8
    assert finite(everything(one, unseen))
    initial, own = one.shared.own, one.states.personal
    assert {path.rpartition("/")[2] for path, _ in tree.items(one.shared.inner)}.isdisjoint(initial[0])
    assert distance(own, tree.map_leaves(lambda leaf: leaf.expand(3, *leaf.shape), initial)) > 1e-4
    plain, head = after_rounds(algorithm, rounds=2, **options), tree.bits(tree.index(initial, slice(0, 1)))
    for with_heads, without in zip(plain.bits, one.bits, strict=True):
        assert (with_heads - without) % head == 0
        assert without < with_heads or with_heads == 0


# ---------------------------------------------------------------------- predictions
@pytest.mark.every_combination
def test_log_prob_normalised(algorithm, client_trainer):
    """Of a linear model of binary labels; of other networks and labels where both trainers give the same."""
    federation = three_rounds(algorithm, type(client_trainer))
    served = [*federation.predictions(), *federation.predictions(unseen_clients(), seen=False)]
    check_predictions(served, [*federation.train.sizes.tolist(), *UNSEEN], BINARY)


@pytest.mark.every_combination
@pytest.mark.parametrize("target", [POSITIONS], ids=["sequences"])
def test_prediction_of_sequences(algorithm, client_trainer, target):
    rng = torch.Generator().manual_seed(0)
    x, y = (torch.randint(high, (12, 4), generator=rng) for high in (7, 3))
    train = Split(x, y, torch.tensor([0, 7, 8, 12]))
    federation = after_rounds(algorithm, train, rounds=1, target=target, network=Tagger, trainer=client_trainer)
    for prediction, size in zip(federation.predictions(), (7, 1, 4), strict=True):
        assert prediction.shape == (size, 4, 3)
        assert float(torch.logsumexp(prediction, -1).abs().max()) < 1e-12


@pytest.mark.every_combination
def test_shapes_and_types_never_change(algorithm, client_trainer):
    narrow = make_clients(SIZES, dtype=torch.float32)
    for dtype, end in (
        (torch.float32, after_rounds(algorithm, narrow, dtype=torch.float32, trainer=client_trainer)),
        (torch.float64, three_rounds(algorithm, type(client_trainer))),
    ):
        start = federation_of(algorithm, make_clients(SIZES, dtype=dtype), dtype=dtype)
        assert layout((start.shared, start.states)) == layout((end.shared, end.states))
        assert {prediction.dtype for prediction in end.predictions()} == {dtype}


# ---------------------------------------------------------------------- thin data
@pytest.mark.every_combination
def test_one_sample(algorithm, strict_trainer):
    train = make_clients([1, 1])
    assert finite(everything(after_rounds(algorithm, train, trainer=strict_trainer), unseen_clients()))


@pytest.mark.every_combination
@pytest.mark.parametrize("target", [MULTICLASS], ids=["multiclass"])
def test_missing_class(algorithm, target):
    train = make_clients(SIZES, target=target)
    train.y[train.y == 2] = 0
    train.y[: SIZES[0]] = 1
    federation = after_rounds(algorithm, train, target=target, trainer=DebugTrainer())
    assert finite(everything(federation, unseen_clients(target)))


@pytest.mark.every_combination
def test_one_client(algorithm, strict_trainer):
    train = make_clients([7])
    assert finite(everything(after_rounds(algorithm, train, trainer=strict_trainer), unseen_clients()))


@pytest.mark.every_combination
@pytest.mark.parametrize("aggregation", ["renormalised", "stale_fill"])
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_cohort_of_one(algorithm, aggregation, weighting):
    if algorithm.participation.needs_all_clients:
        pytest.skip("it needs all clients in every round")
    if aggregation == "stale_fill" and not algorithm.participation.fills_in_absent:
        pytest.skip("it says itself what absent clients count for")
    options = {"cohorts": [[1], [3], [1]], "aggregation": aggregation, "weighting": weighting}
    federation = after_rounds(algorithm, make_clients(SIZES), trainer=DebugTrainer(), **options)
    assert finite(everything(federation, unseen_clients()))
    assert set(federation.metrics) >= {"loss"}


RATES_OF_THEIR_OWN = {"FedPAC", "MOCHA", "PFedMe"} | {"FedGen"}  # FedGen draws other features in each step


@pytest.mark.every_combination
@pytest.mark.parametrize("target", [MULTICLASS], ids=["multiclass"])
def test_the_reported_loss_is_a_mean_over_steps(algorithm, target):
    """Where steps move nothing, three passes report the loss of one, which is that of untrained models."""
    if type(algorithm).__name__ in RATES_OF_THEIR_OWN:
        pytest.skip("its steps differ at a learning rate of 0, too")
    found = []
    for epochs in (1, 3):
        options = {"solver": LocalSolver(lr=1e-9, local_epochs=epochs), "batch_size": 0, "rounds": 1}
        train = make_clients([6, 5, 9, 3], target=target)
        federation = after_rounds(algorithm, train, target=target, network=network_of(algorithm), **options)
        found.append(federation.metrics["loss"])
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] > 0.8  # log(3) of three classes, about, and not its half


@pytest.mark.every_combination
def test_no_local_work(algorithm, strict_trainer):
    federation = after_rounds(
        algorithm, make_clients(SIZES), trainer=strict_trainer, solver=LocalSolver(local_epochs=0)
    )
    assert finite(everything(federation, unseen_clients()))


@pytest.mark.every_combination
def test_ghost(algorithm, client_trainer):
    """A client that only tells the shape of a message adds nothing to what reaches the server."""
    federation = federation_of(algorithm, make_clients(SIZES), client_trainer)
    for phase in algorithm.phases(federation.context("plan"), torch.arange(4)):
        ctx = federation.context(phase.name)
        accumulators = {}
        for with_ghost in (False, True):
            accumulator = accumulators[with_ghost] = Accumulator(algorithm.message.reduce)
            for one, multiplicity in ((0, 1.0), (2, 0.0)) if with_ghost else ((0, 1.0),):
                count = torch.tensor([multiplicity], dtype=torch.float64)
                block = ClientBlock(phase._replace(client_ids=torch.tensor([one])), count, federation.train)
                (trained,) = client_trainer.train(federation.job(ctx, block))
                assert finite(trained.result)
                accumulator.add(trained.result.message, count, trained.result.metrics)
        reduced = [one.reduce(torch.arange(1), [1]) for one in accumulators.values()]
        assert same_bits(*(one[:2] for one in reduced))
        assert reduced[0][2] == reduced[1][2]


@pytest.mark.every_combination
def test_messages(algorithm, client_trainer):
    """Weights are whole numbers in float64, so that sums over clients are exact; bits are counted for each client."""
    federation = federation_of(algorithm, make_clients([9, 6, 3]), client_trainer)
    phase = algorithm.phases(federation.context("plan"), torch.arange(3))[0]
    block = ClientBlock(phase, torch.ones(3, dtype=torch.float64), federation.train)
    for trained in client_trainer.train(federation.job(federation.context(phase.name), block)):
        message = trained.result.message
        size = trained.rows.stop - trained.rows.start
        assert message.weight.dtype == torch.float64
        assert message.weight.shape == message.bits_up.shape == message.bits_down.shape == (size,)
        assert torch.equal(message.weight, message.weight.round())
        assert all(len(leaf) == size for leaf in tree.leaves((message.value, trained.result.state)))
        assert all(value.shape == (size,) for value in trained.result.metrics.values())


# ---------------------------------------------------------------------- the files around an algorithm
def source_of(cls):
    return Path(inspect.getfile(cls))


def test_has_a_config(cls):
    stem = source_of(cls).stem
    assert [path for path in ROOT.glob("configs/**/*.yaml") if stem in path.stem], f"no configs/**/*{stem}*.yaml"


def test_has_a_test_and_a_reference(cls):
    stem = source_of(cls).stem
    assert (ROOT / f"tests/algorithms/test_{stem}.py").is_file()
    for name in (f"{stem}_numpy", "logistic"):
        reference = (ROOT / f"tests/algorithms/references/{name}.py").read_text()
        assert "lit_fed" not in reference
        assert "torch" not in reference


def test_has_a_row_in_the_paper_index_below_its_promise(cls):
    tables = re.split("^## ", (ROOT / "docs/paper_index.md").read_text(), flags=re.MULTILINE)
    (table,) = [
        one for one in tables if one.startswith("In every combination" if cls.in_every_combination else "Alone")
    ]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert [row for row in rows if f"{source_of(cls).name}" in row or f"`{cls.__name__}`" in row]


def test_is_public(cls):
    assert getattr(lit_fed.algorithms, cls.__name__) is cls
    assert cls.__name__ in lit_fed.algorithms.__all__


def test_docstrings_name_paper_symbols_and_deviations(cls):
    docstring = inspect.getmodule(cls).__doc__
    assert all(part in docstring for part in ("Symbols:", "Deviations:", "https://"))
    described = [base.__doc__.split("Args:")[-1] for base in cls.__mro__ if dataclasses.is_dataclass(base)]
    assert all(any(f" {field.name}: " in one for one in described) for field in dataclasses.fields(cls))


def test_settings_have_types_in_the_module_of_the_class(cls):
    """There the command line looks for those of bases, too; a name that is missing leaves all settings unchecked."""
    assert typing.get_type_hints(cls, vars(inspect.getmodule(cls)))


def test_settings_worth_tuning_have_values_that_are_taken(cls):
    space, defaults = tuning_space(cls), {field.name: field.default for field in dataclasses.fields(cls)}
    assert len(space) <= 2
    for name, values in space.items():
        assert defaults[name] in values
        assert len(values) == len(set(values)) > 1
        for value in values:
            assert getattr(cls(**SMALL.get(cls.__name__, {}) | {name: value}), name) == value


def test_imports_no_other_algorithm(cls):
    """An algorithm is read without its neighbours: it builds on the rooms below, and knows no Lightning."""
    imported = set()
    for node in ast.walk(ast.parse(source_of(cls).read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    assert not {name for name in imported if name.startswith("lit_fed.algorithms")}
    assert not {name for name in imported if name.split(".")[0] == "lightning" or "distributed" in name}


def test_exemptions_name_checks():
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    known = tests | CHECKED_ELSEWHERE | VARIANTS
    for cls in all_algorithms():
        assert set(exempt(cls)) <= known, cls.__name__
    bases = {base.__name__ for cls in all_algorithms() for base in cls.__mro__}
    assert bases >= set(EXEMPT)


def test_algorithms_are_found():
    assert {"FedAvg", "FedAvgPlus", "FedEM", "Local"} <= {cls.__name__ for cls in all_algorithms()}


def test_the_driver_runs_an_algorithm_of_ones_own(federated_rounds):
    """An algorithm without a line of its own is FedAvg."""
    mine = dataclasses.dataclass(frozen=True)(type("Mine", (Algorithm,), {}))
    one, other = (federated_rounds(kind(), None, make_clients(SIZES)) for kind in (mine, lit_fed.algorithms.FedAvg))
    assert same_bits(one.shared, other.shared)
    assert run_rounds is federated_rounds


@dataclasses.dataclass(frozen=True)
class AloneFedEM(FedEM):
    """FedEM whose clients compute losses and outputs themselves."""

    reads_losses = False

    def client_init(self, ctx, shared, state, data, losses):
        return super().client_init(ctx, shared, state, data, ctx.task.sample_losses(shared.models, data))

    def shared_outputs(self, ctx, shared, x):
        return None

    def log_prob(self, ctx, shared, state, x, outputs):
        return super().log_prob(ctx, shared, state, x, ctx.task.outputs(shared.models, x))


def test_passes_for_all_clients_are_only_for_speed(client_trainer):
    one, other = (
        after_rounds(kind(2), make_clients(SIZES), trainer=client_trainer, network=small_mlp)
        for kind in (FedEM, AloneFedEM)
    )
    assert distance(everything(one, unseen_clients()), everything(other, unseen_clients())) < 1e-12
