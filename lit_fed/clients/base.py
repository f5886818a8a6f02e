"""Common parts of client trainers: the protocol, its jobs, and checks of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lit_fed.core import tree
from lit_fed.core.algorithm import Algorithm
from lit_fed.core.context import Context
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import seed_of
from lit_fed.core.types import ClientBlock, ClientResult, LocalWork, Message, Split, Tree
from lit_fed.errors import ClientError, ConfigError, NotFiniteError, WriteError

__all__ = [
    "ClientTrainer", "Failed", "PredictJob", "Served", "TrainJob", "Trained", "augmented", "check_finite",
    "complete", "not_finite", "sent_to",
]  # fmt: skip


class TrainJob(NamedTuple):
    """A phase's work for a block of clients."""

    algorithm: Algorithm
    ctx: Context
    shared: Tree
    block: ClientBlock
    states: Tree  # leaves [C, ...]
    optimizers: Tree  # stored optimizer states, leaves [C, ...]; None for fresh ones, which are discarded
    drops_failures: bool = False  # a failing client is excluded, and the others continue

    def part(self, rows: slice) -> TrainJob:
        """The job of some of its clients."""
        phase = self.block.phase._replace(client_ids=self.block.phase.client_ids[rows])
        block = self.block._replace(phase=phase, multiplicity=self.block.multiplicity[rows])
        states, optimizers = tree.index((self.states, self.optimizers), rows)
        return self._replace(block=block, states=states, optimizers=optimizers)

    def forgives(self, error: ClientError) -> bool:
        """Whether the client is excluded for this error; errors of settings, files or memory stop the run."""
        return self.drops_failures and not isinstance(error.__cause__, ConfigError | WriteError | MemoryError)

    @property
    def keeps_optimizers(self) -> bool:
        """Whether a client's work continues with a stored optimizer: only if there are local steps."""
        return self.optimizers is not None and self.block.phase.work.trains


@contextmanager
def plainly() -> Iterator[None]:
    """A `ConfigError` behind a client's failure is raised itself: in a trial, it is not that client's."""
    try:
        yield
    except ClientError as error:
        if isinstance(error.__cause__, ConfigError):
            raise error.__cause__ from error
        raise


class Trained(NamedTuple):
    """Results of some clients of a block."""

    rows: slice  # their positions in the block
    result: ClientResult  # leaves [c, ...]
    optimizers: Tree  # leaves [c, ...]; None if none were stored

    @property
    def form(self) -> Trained:
        """The structure of message and metrics, all zeros."""
        message, metrics = tree.zeros_like((self.result.message, self.result.metrics))
        return self._replace(result=self.result._replace(message=message, metrics=metrics))


class Failed(NamedTuple):
    """A client of a block whose failure is forgiven."""

    rows: slice  # its position in the block
    error: ClientError


class PredictJob(NamedTuple):
    """Serving some clients on one split."""

    algorithm: Algorithm
    ctx: Context
    shared: Tree
    data: Split
    client_ids: Tensor  # [C]
    states: Tree  # leaves [C, ...]


class Served(NamedTuple):
    """Predictions for some samples of some clients; streamed, so that they are never all in memory."""

    rows: Tensor  # [c] positions of the clients in the job
    prediction: Tensor  # log_prob, [c, N, ...]
    y: Tensor  # [c, N] or [c, N, L]
    mask: Tensor  # [c, N]


class ClientTrainer(Protocol):
    """Runs an algorithm's functions for clients; all client trainers follow the same plan and give the same numbers."""

    name: str

    def check(self, network: nn.Module) -> None:
        """Refuse a network that this client trainer cannot train.

        Raises:
            ConfigError: naming the layer and the client trainer to use instead.
        """

    def train(self, job: TrainJob) -> Iterator[Trained | Failed]:
        """Run a phase; results come as they are ready and cover every client of the block once.

        Raises:
            ClientError: of the first client that fails, unless the job forgives it.
        """

    def predict(self, job: PredictJob) -> Iterator[Served]:
        """Predict every sample of every client once, client after client, in the order of the samples."""


def augmented(ctx: Context, work: LocalWork, x: Tensor, y: Tensor, client_id: int, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels of one local step after augmentation.

    Args:
        ctx: what every client of the phase knows.
        work: the local work of the phase.
        x: inputs [B, ...] or [K, B, ...] of the client's samples, without padding; not modified.
        y: their labels [B, ...] or [K, B, ...]; masks move with their pictures, others stay.
        client_id: the client.
        step: index of the local step in this stage of the phase, from 0.

    Returns:
        `x` and `y` themselves without augmentation, else new tensors of their shapes.
    """
    if ctx.augmentation is None:
        return x, y
    seed, within = ctx.seed_of_batches(work), f"{ctx.phase}/{ctx.stage}" if ctx.stage else ctx.phase
    return ctx.augmentation(x, y, seed_of(seed, ctx.round_idx, client_id, f"augment/{within}/{step}"))


def complete(job: TrainJob, result: ClientResult) -> ClientResult:
    """The result with default bits filled in: the size of the message, and of what each client of the phase is sent."""
    message = result.message
    like = message.weight.double()
    up, down = message.bits_up, message.bits_down
    up = torch.full_like(like, tree.bits(message.value)) if up is None else up
    down = torch.full_like(like, tree.bits(job.algorithm.sent(job.ctx, job.shared, 0))) if down is None else down
    return result._replace(message=Message(message.value, like, up, down))


def sent_to(leaf: Tensor, device: torch.device) -> Tensor:
    """A small tensor on a device, without waiting for the device's pending work, as a plain copy would."""
    return leaf.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else leaf.to(device)


def check_finite(result: ClientResult, client_ids: Tensor, ctx: Context) -> None:
    """Stop at the first client whose message or state holds NaN or infinity.

    Raises:
        NotFiniteError: naming the client and the round, and how to go on.
    """
    for path, leaf in (*tree.items(result.message.value, "message"), *tree.items(result.state, "state")):
        if leaf.is_floating_point():
            # A finite sum proves that all are finite and costs one pass without a copy; the reverse need not hold.
            if leaf.sum().isfinite():
                continue
            finite = leaf.reshape(len(leaf), -1).isfinite().all(1)
            if not finite.all():
                client_id = int(client_ids[int((~finite).nonzero()[0])])
                raise not_finite(client_id, "client_final", ctx, path)


def not_finite(client_id: int, stage: str, ctx: Context, what: str) -> NotFiniteError:
    """The error for a client that computed NaN or infinity.

    Args:
        client_id: the client.
        stage: the algorithm's function that returned it.
        ctx: the client's context.
        what: the tensor.
    """
    reason = f"{what} is NaN or infinite; check this client's data, {_way_out(ctx)}"
    return NotFiniteError(client_id, stage, ctx.round_idx, reason)


def _way_out(ctx: Context) -> str:
    """Advice for diverging steps, as options ready for the command line."""
    if ctx.phase == "adapt":
        return "or give a lower --model.solver.adapt_lr, or rate of adaptation of the algorithm"
    fix = calmer_steps(ctx.solver)
    if not ctx.round_idx:
        return f"or start again with {fix}"
    go_on = "add --ckpt_path last --resume_with_changes to go on from the last of them"
    return f"or start again with {fix}; if the rounds before went well, {go_on}"


def calmer_steps(solver: LocalSolver) -> str:
    """Options that keep local steps from diverging."""
    clipped = "" if solver.clip_norm else "--model.solver.clip_norm 1 or "
    return f"{clipped}a lower --model.solver.lr"


def refuse(found: str, name: str) -> ConfigError:
    """The error for a network that only the sequential client trainer can train."""
    return ConfigError(f"--model.client_trainer {name} cannot train a network with {found}; use sequential (or auto)")
