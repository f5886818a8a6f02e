"""What one client is sent of the shared state: enough for the same numbers, and no more than is counted."""

from dataclasses import dataclass

import pytest
import torch
from combination import refuse, surrounded
from federated_round import Federation, make_clients, make_context, make_parties, make_task, same_bits
from normalised import NormalisedMLP
from test_algorithms import SIZES, SMALL, all_algorithms, everything, small_mlp, tensors
from test_wrapped_pairs import WRAPPERS
from torch import Tensor

from lit_fed.algorithms import AFL, L2GD, SCAFFOLD, UCFL, ClusteredFL, FedBuff, FedEM, FedFOMO, MixtureADMM
from lit_fed.clients import SequentialTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.partial_models import PartialModel
from lit_fed.core.targets import Multiclass
from lit_fed.errors import ConfigError
from lit_fed.models import Linear
from lit_fed.wrappers.base import AlgorithmWrapper, innermost
from lit_fed.wrappers.privacy.client_level import ClientPrivacy

pytestmark = pytest.mark.every_combination

ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]

OTHERWISE = [
    AFL(serve="last"),
    ClusteredFL(**SMALL["ClusteredFL"], newcomers="loss"),
    FedFOMO(num_neighbours=1, explore_probability=1.0, explore_decay=0.0, keep="trained"),
    *(MixtureADMM(form=form) for form in ("jacobi", "gauss_seidel")),
    UCFL("personal", warmup_rounds=1),
]
"""Settings with which an algorithm sends something else."""

COUNTED_OTHERWISE = {
    "FedFOMO": "a client's own new model costs nothing, as it has it; what it is sent holds it",
    "ConsensusADMM": "z costs nothing in a round for who got it at the end of the last; what is sent holds it",
    **dict.fromkeys(
        ["L2GD", "L2SGDPlus"], "x̄ comes back as part of the averaging; it is sent with the steps towards it"
    ),
}
"""Algorithms whose count follows what a client may remember, where what it is sent has to be complete."""

REFUSED = {
    **dict.fromkeys(["CQGGADMM", "DFedEM", "DPSGD", "DecentralizedSurrogate", "FedeRiCo", "GADMM"], "has no server"),
    "Oracle": "true group",
    "ResponsibilityDFedEM": "has no server",
    "SharingADMM": "align",
}

UNSEEN = make_clients([5, 1], 64, seed=9, first_id=len(SIZES), dtype=torch.float32)


def name_of(algorithm):
    changed = [str(value) for name, value in vars(algorithm).items() if algorithm in OTHERWISE and value is not None]
    return "_".join([type(algorithm).__name__, *changed])


class Post:
    """Takes to each client what the server sends it, and keeps account of the bits of training."""

    def __init__(self):
        self.bits = {}

    def deliver(self, algorithm, ctx, shared, client_id):
        sent = tree.map_leaves(torch.clone, algorithm.sent(ctx, shared, client_id))
        if ctx.phase not in ("init", "adapt"):
            self.bits[ctx.round_idx] = self.bits.get(ctx.round_idx, 0) + tree.bits(sent)
        return algorithm.received(ctx, sent, client_id)


@dataclass(frozen=True)
class ByPost(AlgorithmWrapper):
    """Clients make their first states from what they were sent."""

    post: Post
    state_reads_data = True

    def state_init(self, ctx, shared, data):
        return self.inner.state_init(ctx, self.post.deliver(self.inner, ctx, shared, int(data.client_id)), data)


class PostTrainer(SequentialTrainer):
    """Each client sees what it was sent, and nothing else."""

    def __init__(self, post):
        super().__init__()
        self.post = post

    def _one(self, job, row, client_id):
        return super()._one(self._mine(job, job.ctx, client_id), row, client_id)

    def predict(self, job):
        for row, client_id in enumerate(job.client_ids.tolist()):
            mine = self._mine(job, job.ctx._replace(phase="adapt"), client_id)
            rows = slice(row, row + 1)
            for served in super().predict(
                mine._replace(client_ids=job.client_ids[rows], states=tree.index(job.states, rows))
            ):
                yield served._replace(rows=served.rows + row)

    def _mine(self, job, ctx, client_id):
        return job._replace(shared=self.post.deliver(job.algorithm, ctx, job.shared, client_id))


def run(algorithm, trainer=None, network=Linear, solver=None, **options):
    """Three rounds, the second and third without some of the clients."""
    inner, train = innermost(algorithm), make_clients(SIZES, 64, dtype=torch.float32)
    network = small_mlp if isinstance(inner, PartialModel) else network
    train = make_parties(train) if inner.participation.divided_by == "features" else train
    solver = solver or LocalSolver(lr=0.2, momentum=0.5, local_epochs=2)
    options = {"num_rounds": 3, "groups": torch.arange(len(SIZES)) % 2, "solver": solver} | options
    task = make_task(num_features=64, network=network, dtype=torch.float32)
    federation = Federation(algorithm, train, task, trainer=trainer, **options)
    for cohort in (None, [0, 2], [1, 2, 3]):
        federation.round(None if inner.participation.needs_all_clients else cohort)
    return federation


def in_both_ways(algorithm, **options):
    """Rounds of clients that see everything, and of those that see what they are sent; the latter's post."""
    post = Post()
    plain, posted = run(algorithm, **options), run(ByPost(algorithm, post), PostTrainer(post), **options)
    assert same_bits(everything(plain, UNSEEN), everything(posted, UNSEEN))
    assert plain.bits.tolist() == posted.bits.tolist()
    return plain, post


@pytest.mark.parametrize("algorithm", [*ALL, *OTHERWISE], ids=name_of)
def test_what_a_client_is_sent_is_enough_and_what_is_counted(algorithm):
    name, (plain, post) = type(algorithm).__name__, in_both_ways(algorithm)
    if name not in REFUSED.keys() | COUNTED_OTHERWISE.keys():
        assert post.bits[2] == pytest.approx(float(plain.bits[1]), rel=0.05)


MOVING = ClientPrivacy(0.5, delta=1e-3, adaptive=True, initial_clip_norm=0.01, clip_count_noise=5.0, noise_seed=0)

WRAPPED = {
    **{name: (FedEM(2), options) for name, options in WRAPPERS.items()},
    "a bound that moves": (FedEM(2), {"privacy": MOVING}),
    "SCAFFOLD": (SCAFFOLD(), WRAPPERS["TopK"] | WRAPPERS["local privacy"] | WRAPPERS["lost messages"]),
    "UCFL": (UCFL(warmup_rounds=1), WRAPPERS["lost messages"]),
    "MixtureADMM": (MixtureADMM(form="jacobi"), WRAPPERS["QSGD"]),
    "FedBuff": (FedBuff(), WRAPPERS["QSGD"]),
    "L2GD": (L2GD(0.5, flips_per_round=4), WRAPPERS["downlink"] | WRAPPERS["robust rule"]),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_a_client_is_sent_is_enough_under_wrappers(name):
    algorithm, options = WRAPPED[name]
    network = NormalisedMLP if name == "FedBN" else small_mlp
    solver = LocalSolver(lr=0.2, momentum=0.5, local_epochs=2, persist_optimizer=True)
    plain, post = in_both_ways(surrounded(algorithm, **options), network=network, solver=solver, weighting="uniform")
    if name in WRAPPERS:
        assert post.bits[2] <= 3 * (tree.bits(tree.models(plain.shared)[0]) + 256), "little beside the models"


def held_bytes(value):
    """Memory behind the leaves of a tree, each part of it once."""
    return sum({one.data_ptr(): one.nbytes() for one in map(Tensor.untyped_storage, tensors(value))}.values())


@pytest.mark.parametrize("algorithm", [one for one in ALL if type(one).__name__ not in REFUSED], ids=name_of)
def test_who_begins_holds_no_models_of_all_clients(algorithm):
    """Nor does a client in what it makes of what it is sent; the server does, once they differ."""
    task, held = make_task(num_features=1000, dtype=torch.float32), []
    for num_clients in (4, 12):
        ctx = make_context(task, num_clients=num_clients, most_samples=9)
        shared = algorithm.shared_init(ctx)
        held.append(held_bytes([shared, algorithm.received(ctx, algorithm.sent(ctx, shared, 0), 0)]))
    assert held[1] - held[0] < 4000 < held[0], "bytes of a model"


@pytest.mark.parametrize("algorithm", ALL, ids=name_of)
def test_who_may_be_deployed(algorithm):
    name = type(algorithm).__name__
    if name not in REFUSED:
        refuse(algorithm, deployed=True)
        return
    with pytest.raises(ConfigError, match=rf"^{name} .*{REFUSED[name]}"):
        refuse(algorithm, deployed=True)


def test_bytes_of_ucfl():
    """Three rounds of four clients with a model of 650 numbers, of which one also measures how similar they are.

    With each model goes the number of the client, 8 bytes.
    """
    post = Post()
    train = make_clients(SIZES, 64, Multiclass(10), dtype=torch.float32)
    task = make_task(Multiclass(10), 64, dtype=torch.float32)
    federation = Federation(ByPost(UCFL(warmup_rounds=1), post), train, task, trainer=PostTrainer(post))
    for _ in range(3):
        federation.round()
    assert post.bits == {0: 8 * 10_432, 1: 8 * 20_864, 2: 8 * 10_432}
    assert 16 * tree.bits(federation.shared) == 8 * 419_328, "what 16 messages with all that there is would take"
