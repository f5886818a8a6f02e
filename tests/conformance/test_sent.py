"""What one client is sent of the shared state: enough for the same numbers, and no more than is counted."""

from dataclasses import dataclass

import pytest
import torch
from federated_round import BINARY, MULTICLASS, make_clients, same_bits
from test_algorithms import SIZES, SMALL, all_algorithms, everything, federation_of, small_mlp

from lit_fed.clients import SequentialTrainer
from lit_fed.core import tree
from lit_fed.core.demands import check_deployment
from lit_fed.core.errors import ConfigError
from lit_fed.models import Linear
from lit_fed.wrappers.around import Around

ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]


def refused(algorithm):
    try:
        check_deployment(algorithm, type(algorithm).__name__)
    except ConfigError as error:
        return str(error)
    return ""


def named(algorithms):
    return pytest.mark.parametrize("algorithm", algorithms, ids=lambda one: type(one).__name__)


class Post:
    """Takes to each client what the server sends it, and keeps account of the bits."""

    def __init__(self):
        self.bits = {}

    def deliver(self, algorithm, ctx, shared, client_id):
        sent = tree.map_leaves(torch.clone, algorithm.sent(ctx, shared, client_id))
        self.bits.setdefault((ctx.round_idx, ctx.phase), {})[client_id] = tree.bits(sent)
        return algorithm.received(ctx, sent, client_id)


@dataclass(frozen=True)
class ByPost(Around):
    """Clients make their first states from what they were sent."""

    post: Post

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
        serving = job.ctx._replace(phase="adapt")
        for row, client_id in enumerate(job.client_ids.tolist()):
            one = self._mine(job, serving, client_id)._replace(client_ids=job.client_ids[row : row + 1])
            for served in super().predict(one._replace(states=tree.index(job.states, slice(row, row + 1)))):
                yield served._replace(rows=served.rows + row)

    def _mine(self, job, ctx, client_id):
        return job._replace(shared=self.post.deliver(job.algorithm, ctx, job.shared, client_id))


def runs(algorithm, cohorts=None, **options):
    """Rounds in which clients see everything, and rounds in which they see what they are sent; with its post."""
    name, post = type(algorithm).__name__, Post()
    options = {"network": small_mlp if name == "FedPer" else Linear, "dtype": torch.float32} | options
    train = make_clients(SIZES, target=options.get("target", BINARY), dtype=torch.float32)
    cohorts = [None] * 3 if cohorts is None or algorithm.needs_all_clients else cohorts
    plain = federation_of(algorithm, train, **options)
    posted = federation_of(ByPost(algorithm, post), train, trainer=PostTrainer(post), **options)
    for federation in (plain, posted):
        for cohort in cohorts:
            federation.round(cohort)
    return plain, posted, post


@named(ALL)
def test_what_a_client_is_sent_is_enough(algorithm):
    unseen = make_clients([5, 1], seed=9, first_id=len(SIZES), dtype=torch.float32)
    plain, posted, _ = runs(algorithm, [None, [0, 2], [1, 2, 3]])
    assert same_bits(everything(plain, unseen), everything(posted, unseen))
    assert plain.bits.tolist() == posted.bits.tolist()


# ---------------------------------------------------------------------- bytes
COUNTED_OTHERWISE = {
    "FedFOMO": "a client's own new model costs nothing, as it has it; the packet holds it",
    "ConsensusADMM": "z costs nothing in a round for a client that got it at the end of the last; the packet holds it",
}
"""Algorithms whose count follows what a client could remember, where a packet has to be complete."""


@named([one for one in ALL if not refused(one)])
def test_what_is_counted_is_what_is_sent(algorithm):
    plain, posted, post = runs(algorithm, target=MULTICLASS)
    last = [bits for (round_idx, phase), bits in post.bits.items() if round_idx == 2 and phase not in ("init", "adapt")]
    print(
        type(algorithm).__name__, plain.bits[1].item(), sum(sum(one.values()) for one in last), tree.bits(plain.shared)
    )
