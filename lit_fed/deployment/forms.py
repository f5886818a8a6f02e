"""What packets have to look like: number, types and shapes, compared before anything is done with a leaf."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lit_fed.clients import SequentialTrainer, TrainJob
from lit_fed.clients.base import Trained
from lit_fed.core import tree
from lit_fed.core.types import ClientResult, Message, Split, Tree
from lit_fed.deployment.wire import WireError, type_name

__all__ = ["Most", "answer_form", "in_form", "most_of", "versioned"]

HEADER_BYTES = 65_536
"""Room for the header of an answer, beside what each leaf takes in it."""


def in_form(leaves: list[Tensor], form: Tree, *, shapes: bool = True) -> Tree:
    """The tree of these leaves, which have the number, types and shapes of those of `form`.

    Args:
        leaves: in the order of `tree.items`.
        form: a tree of the same structure.
        shapes: whether shapes have to be the same; else all axes but the first.

    Raises:
        WireError: naming the first that differs.
    """
    wanted = list(tree.items(form))
    if len(leaves) != len(wanted):
        raise WireError(f"{len(leaves)} tensors in the place of {len(wanted)}")
    for leaf, (path, one) in zip(leaves, wanted, strict=True):
        axes = 0 if shapes else 1
        if leaf.dtype != one.dtype or leaf.ndim != one.ndim or leaf.shape[axes:] != one.shape[axes:]:
            kind, expected = (f"{type_name(each)} of shape {list(each.shape)}" for each in (leaf, one))
            raise WireError(f"{path} is {kind} in the place of {expected}")
    return tree.rebuild(form, leaves)


class Most(NamedTuple):
    """The longest answer to a question."""

    bytes: int  # on the wire
    header: int  # bytes of its header when that is unpacked


def most_of(form: Tree, number: int) -> Most:
    """The longest answer with so many trees of a form."""
    leaves = tree.leaves(form)
    header = HEADER_BYTES + number * (256 + sum(64 + 24 * leaf.ndim for leaf in leaves))
    return Most(header + number * sum(leaf.numel() * leaf.element_size() for leaf in leaves), header)


def answer_form(job: TrainJob, initial_shared: Tree, device: torch.device) -> Tree:
    """What message and metrics of a client have to look like: those of one with one sample that takes no step.

    Args:
        job: the clients; their split tells type and shape of a sample.
        initial_shared: the shared state that states of clients begin with.
        device: of the server.
    """
    few, ids = job.block.data, torch.tensor([0], device=device)
    x, y = (like.new_zeros(1, *like.shape[1:]) for like in (few.x, few.y))
    split = Split(x, y, torch.tensor([0, 1]))
    first = job.algorithm.state_init(job.ctx, initial_shared, split.client(0))
    state = tree.map_leaves(lambda leaf: leaf.to(device).unsqueeze(0), first)
    phase, nothing = job.block.phase._replace(client_ids=ids), torch.zeros(1, dtype=torch.float64)
    block = job.block._replace(phase=phase, multiplicity=nothing, data=split)
    placeholder = TrainJob(job.algorithm, job.ctx, job.shared, block, state, None, job.batch_size)
    done = next(iter(SequentialTrainer().train(placeholder)))
    assert isinstance(done, Trained)
    return tree.index((tuple(done.result.message), done.result.metrics), 0)


def versioned(message: Tree, version: int) -> ClientResult:
    """A client's result with an axis of clients, and the version of its state in the state's place.

    Args:
        message: message and metrics of the client.
        version: under which its node keeps the state.
    """
    sent, metrics = tree.map_leaves(lambda leaf: leaf.unsqueeze(0), message)
    return ClientResult(Message(*sent), {"versions": torch.tensor([version])}, metrics)
