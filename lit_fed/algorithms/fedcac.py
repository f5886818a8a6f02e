"""FedCAC: clients share their critical parameters with similar clients only, and other parameters with all clients.

Wu, Liu, Niu, Zhu, Tang. "Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through
Cautiously Aggressive Collaboration". ICCV 2023. https://arxiv.org/abs/2309.11103, Algorithm 1.

Symbols:
    w_i  -> work.models, state.models  the model of client i after local training, leaves [1, ...]
    M_i  -> message.critical    its critical parameters, the share τ of each leaf with the largest |Δw·w|
    w_g  -> shared.common       the mean of all models, leaves [1, ...]
    O_ij -> _overlaps           1 − ‖M_i − M_j‖₁/(2·‖M_i‖₁), share of i's critical parameters that are critical for j
    C_i  -> _collaborators      i, and those j with O_ij >= O_avg + t/β·(O_max − O_avg) in round t
    τ, β -> critical_share, sharing_rounds
    start of client i -> shared.peers  M_i ⊙ mean of C_i + (1 − M_i) ⊙ w_g, leaves [T, 1, ...]
Deviations:
    In the paper all clients take part. Ours: sampled ones are compared with each other; an absent one keeps its start.
    As in the authors' library (Fling), sensitivity uses the change by local training as gradient, masks are computed
    per leaf, w_g is weighted by samples and the mean over C_i is not. Unchanged parameters are never critical.
    Running statistics are those of w_g.
    Clients are served by w_i after training. An unseen client starts from w_g and takes `unseen_epochs` passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import MessageSpec, OwnModel, Participation, Personal, local_run
from lit_fed.core.context import Context
from lit_fed.core.graphs.peers import Peers, combine, lone_peer, own_models, put_models, same_start
from lit_fed.core.graphs.similarity import inner_products
from lit_fed.core.local_solver import OptimizerState
from lit_fed.core.types import ClientData, ClientResult, Message, ModelState, Phase, Reduced
from lit_fed.errors import check_settings

__all__ = ["Collaboration", "CriticalModel", "CriticalRun", "FedCAC", "critical_parameters"]

Leaves = dict[str, Tensor]


class Collaboration(NamedTuple):
    """The server's state."""

    peers: Peers  # start of each client, leaves [T, 1, ...]
    common: ModelState  # w_g, leaves [1, ...]


class CriticalRun(NamedTuple):
    """A client's phase."""

    models: ModelState  # w_i, leaves [1, ...]
    optimizer: OptimizerState
    loss: Tensor  # [] sum over steps of the mean loss of the batch, before the step
    steps: Tensor  # [] steps taken
    start: Leaves  # start of its training, leaves [1, ...]


class CriticalModel(NamedTuple):
    """A client's message value."""

    models: ModelState  # w_i, leaves [1, ...]
    critical: Leaves  # M_i, bool leaves [1, ...]


@dataclass(frozen=True)
class FedCAC(Personal[Collaboration, OwnModel, CriticalRun]):
    """A client's uncritical parameters come from all clients; its critical ones from ever fewer similar clients.

    Args:
        critical_share: τ, share of the parameters of each leaf that are critical.
        sharing_rounds: β, rounds until critical parameters come from the most similar clients only; later from none.
    """

    critical_share: float = 0.5
    sharing_rounds: int = 100

    message = MessageSpec("rows", reduce="stack")
    participation = Participation(counts_draws=False, fills_in_absent=False)
    incompatible: ClassVar[dict[str, str]] = {
        "local_norm": "averages all leaves of the clients' models with weights of their own"
    }

    def __post_init__(self) -> None:
        check_settings(self, critical_share="[0, 1]", sharing_rounds=">= 1")

    def shared_init(self, ctx: Context) -> Collaboration:
        """The same start for all clients."""
        common = ctx.task.init(1, ctx.seed)
        return Collaboration(same_start(common, ctx.num_clients), common)

    def state_init(self, ctx: Context, shared: Collaboration, data: ClientData) -> OwnModel:
        """w_g."""
        return OwnModel(shared.common)

    def phases(self, ctx: Context, client_ids: Tensor) -> tuple[Phase]:
        """One exchange, in which a client drawn twice counts once."""
        return (Phase("train", torch.unique(client_ids), ctx.solver.work),)

    def client_init(
        self, ctx: Context, shared: Collaboration, state: OwnModel, data: ClientData, losses: None
    ) -> CriticalRun:
        """Training starts from the client's start at the server; an unseen client starts from w_g."""
        start = own_models(shared.peers, data.client_id, shared.common)
        return CriticalRun(*local_run(ctx, start)[:4], start.parameters)

    def client_final(self, ctx: Context, shared: Collaboration, work: CriticalRun, data: ClientData) -> ClientResult:
        """Send w_i and M_i, a number and a bit per parameter; keep w_i."""
        critical = critical_parameters(work.start, work.models.parameters, self.critical_share)
        weight, bits = ctx.client_weight(data), tree.bits(work.models)
        up = bits + sum(leaf.numel() for leaf in critical.values())
        value = CriticalModel(work.models, critical)
        message = Message(value, weight, torch.full_like(weight, up), torch.full_like(weight, bits))
        return ClientResult(message, OwnModel(work.models), {"loss": work.loss / work.steps.clamp(min=1)})

    def server_step(self, ctx: Context, shared: Collaboration, reduced: Reduced, client_ids: Tensor) -> Collaboration:
        """w_g, and M_i ⊙ mean of C_i + (1 − M_i) ⊙ w_g for each client of the round."""
        sent: CriticalModel = reduced.value
        share = reduced.weight / reduced.weight.sum().clamp(min=1)
        common: ModelState = tree.index(combine(share.view(1, -1), sent.models), 0)
        together = _collaborators(_overlaps(sent.critical), (ctx.round_idx + 1) / self.sharing_rounds).double()
        customised = combine(together / together.sum(1, keepdim=True), sent.models.parameters)
        starts = tree.map_leaves(torch.where, sent.critical, customised, common.parameters)
        buffers = tree.map_leaves(lambda leaf: leaf.expand(len(client_ids), *leaf.shape), common.buffers)
        return Collaboration(put_models(shared.peers, client_ids, ModelState(starts, buffers)), common)

    def sent(self, ctx: Context, shared: Collaboration, client_id: int) -> ModelState:
        """The start of the client."""
        return own_models(shared.peers, torch.tensor(client_id, device=ctx.lr.device), shared.common)

    def received(self, ctx: Context, sent: ModelState, client_id: int) -> Collaboration:
        """Other clients are unknown."""
        return Collaboration(lone_peer(sent, client_id, ctx.num_clients), sent)

    def num_payloads(self, ctx: Context, shared: Collaboration, num_clients: int) -> int:
        """A start for each client."""
        return num_clients


def critical_parameters(start: Leaves, trained: Leaves, share: float) -> Leaves:
    """M_i: the share of each leaf with the largest |Δw·w|, including all ties with the smallest of them.

    Args:
        start: parameters ahead of local training, leaves [1, ...].
        trained: parameters after it.
        share: τ.

    Example:
        >>> start, trained = {"w": torch.tensor([[1.0, 1.0, 1.0, 1.0]])}, {"w": torch.tensor([[1.0, 2.0, 3.0, 1.5]])}
        >>> critical_parameters(start, trained, 0.5)["w"].tolist()
        [[False, True, True, False]]
    """

    def critical(before: Tensor, after: Tensor) -> Tensor:
        sensitivity, count = ((after - before) * after).abs(), int(share * before.numel())
        if not count:
            return torch.zeros_like(sensitivity, dtype=torch.bool)
        least = sensitivity.flatten().topk(count).values[-1]
        return (sensitivity >= least) & (sensitivity > 0)

    return tree.map_leaves(critical, start, trained)  # type: ignore[no-any-return]


def _overlaps(critical: Leaves) -> Tensor:
    """O_ij of n clients with masks [n, 1, ...], [n, n] float64."""
    common = inner_products(critical)
    count = common.diagonal()
    return 1 - (count[:, None] + count - 2 * common) / (2 * count[:, None].clamp(min=1))


def _collaborators(overlaps: Tensor, progress: float) -> Tensor:
    """C_i as rows, [n, n] bool.

    Args:
        overlaps: O, [n, n]; the diagonal is not read.
        progress: t/β.

    Example:
        >>> overlaps = torch.tensor([[1.0, 0.8, 0.2], [0.8, 1.0, 0.3], [0.2, 0.3, 1.0]])
        >>> [_collaborators(overlaps, progress).int().tolist() for progress in (1.0, 2.0)]
        [[[1, 1, 0], [1, 1, 0], [0, 0, 1]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]]
    """
    alone = torch.eye(len(overlaps), dtype=torch.bool, device=overlaps.device)
    if len(overlaps) == 1:
        return alone
    others = overlaps[~alone]
    threshold = others.mean() + progress * (others.max() - others.mean())
    return (overlaps >= threshold - 1e-6) | alone  # the tolerance is for overlaps that are all equal
