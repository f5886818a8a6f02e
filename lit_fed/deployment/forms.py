"""What packets have to look like: number, types and shapes, compared before anything is done with a leaf."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_fed.clients import SequentialTrainer, TrainJob
from lit_fed.clients.base import Trained
from lit_fed.core import tree
from lit_fed.core.types import ClientResult, Message, Split, Tree
from lit_fed.deployment.wire import WireError, type_name

__all__ = ["answer_form", "in_form", "most_bytes", "versioned"]

HEADER_BYTES = 65_536
"""Room for the header of an answer, beside what each leaf takes in it."""


def in_form(leaves: list[Tensor], form: Tree, *, shapes: bool = True) -> Tree:
    """The tree of these leaves, which have the number, types and shapes of those of `form`.

    Args:
        leaves: in the order of `tree.items`.
        form: a tree of the same structure.
        shapes: whether shapes have to be the same; else the number of their axes.

    Raises:
        WireError: naming the first that differs.
    """
    wanted = list(tree.items(form))
    if len(leaves) != len(wanted):
        raise WireError(f"{len(leaves)} tensors in the place of {len(wanted)}")
    for leaf, (path, one) in zip(leaves, wanted, strict=True):
        if leaf.dtype != one.dtype or (leaf.shape != one.shape if shapes else leaf.ndim != one.ndim):
            kind, expected = (f"{type_name(each)} of shape {list(each.shape)}" for each in (leaf, one))
            raise WireError(f"{path} is {kind} in the place of {expected}")
    return tree.rebuild(form, leaves)


def most_bytes(form: Tree, number: int) -> int:
    """What an answer with so many trees of a form may take on the wire."""
    leaves = tree.leaves(form)
    each: int = sum(leaf.numel() * leaf.element_size() + 64 + 24 * leaf.ndim for leaf in leaves)
    return HEADER_BYTES + number * (each + 256)


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
    ghost = TrainJob(job.algorithm, job.ctx, job.shared, block, state, None, job.batch_size)
    done = next(iter(SequentialTrainer().train(ghost)))
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
