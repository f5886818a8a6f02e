"""EASGD: workers tied elastically to a centre; EAMSGD with Nesterov's momentum.

Zhang, Choromanska, LeCun. "Deep Learning with Elastic Averaging SGD". NeurIPS 2015. https://arxiv.org/abs/1412.6651,
Equations 5-6 (synchronous), Algorithms 1 (asynchronous) and 2 (EAMSGD).

Symbols:
    x^i -> state.models, work.models  the model of worker i, leaves [1, ...]
    x̃   -> shared.models              the centre, leaves [1, ...]
    v^i -> state.velocity             momentum of worker i, leaves [1, ...]
    β   -> moving_rate                rate of the centre towards the mean of all workers
    α   -> _elasticity                β/p for p workers; = ηρ, the strength ρ of the elastic force
    η   -> solver.lr
    τ   -> solver.local_steps         steps between two exchanges
    δ   -> momentum
Deviations:
    Synchronous exchanges also take place every τ steps; the paper has τ = 1 there.
    Asynchronous workers take turns: in each round each comes once, in a new random order.
    Ours: with m sampled workers the centre moves by mα towards their mean, which balances the workers' moves.
    Ours: that balance needs each worker once, so `data.client_sampling: size` is refused.
    Ours: the elastic force acts on parameters; running statistics stay the worker's own and are averaged in the centre.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.algorithm import (
    Algorithm,
    GlobalModels,
    LocalRun,
    Participation,
    local_result,
    local_run,
    local_step,
    ranged,
)
from lit_fed.core.context import Context
from lit_fed.core.seeds import generator
from lit_fed.core.types import Batch, ClientData, ClientResult, Leaves, ModelState, Phase, Reduced

__all__ = ["EASGD", "ElasticState"]


class ElasticState(NamedTuple):
    """A worker's state."""

    models: ModelState  # x^i, leaves [1, ...]
    velocity: Leaves  # v^i, leaves [1, ...]; {} without momentum


@dataclass(frozen=True)
class EASGD(Algorithm[GlobalModels, ElasticState, LocalRun]):
    """Every worker keeps a personal model; it and a centre attract each other.

    Args:
        moving_rate: β; each of p workers moves by α = β/p towards the centre; 0 trains each alone.
        mode: `synchronous` exchanges with the same centre for all workers; `asynchronous`, one worker after another.
        momentum: δ of EAMSGD, kept from round to round; the solver's momentum is fresh in every round.
        serve: serve clients by the `centre` (the paper) or by their `personal` model; unseen ones by the centre.
    """

    moving_rate: float = ranged(0.9, "[0, 1]")
    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    momentum: float = ranged(0.0, "[0, 1)")
    serve: Literal["centre", "personal"] = "centre"

    participation = Participation(weighting="uniform", fills_in_absent=False)

    @property
    def incompatible(self) -> dict[str, str]:  # type: ignore[override]
        """If clients take turns, each message is that of a single client, and their number is visible."""
        reasons = {
            "size_sampling": "lets the centre gain what the workers lose, each of them once",
            "personal_parts": "lets workers send their models of before the local steps",
            "local_norm": "sends a worker's model of before the local steps, so its normalisation would lag behind",
        }
        if self.mode == "asynchronous":
            reasons["privacy"] = "takes one client after another with mode asynchronous"
        return reasons

    def state_init(self, ctx: Context, shared: GlobalModels, data: ClientData) -> ElasticState:
        """Workers start at the centre."""
        return ElasticState(shared.models, tree.zeros_like(shared.models.parameters) if self.momentum else {})

    def phases(self, ctx: Context, client_ids: Tensor) -> list[Phase]:
        """One phase for all workers, or one for each in a random order."""
        if self.mode == "synchronous":
            return [Phase("train", client_ids, ctx.solver.work)]
        order = generator(ctx.seed, ctx.round_idx, 0, "easgd").permutation(sorted(client_ids.tolist()))
        return [Phase("train", client_ids.new_tensor([worker]), ctx.solver.work) for worker in order.tolist()]

    def _elasticity(self, ctx: Context, weight: Tensor) -> Tensor:
        """α of a worker with this weight; or the sum of α over workers, given the sum of their weights."""
        total = {"samples": ctx.total_samples, "positions": ctx.total_positions, "uniform": ctx.num_clients}
        return self.moving_rate * weight / total[ctx.weighting]

    def client_init(
        self, ctx: Context, shared: GlobalModels, state: ElasticState, data: ClientData, losses: None
    ) -> LocalRun:
        """The force α(x^i − x̃), from the old x^i and the old x̃ (Alg. 1, lines a-b)."""
        away = tree.sub(state.models.parameters, shared.models.parameters)
        elastic = tree.scale(away, self._elasticity(ctx, ctx.client_weight(data)))
        return local_run(ctx, state.models, (state.models, state.velocity, elastic))

    def client_step(self, ctx: Context, shared: GlobalModels, work: LocalRun, batch: Batch) -> LocalRun:
        """x^i ← x^i − ηg(x^i) − α(x^i − x̃) (Eq. 5); with momentum, −ηg(x^i) becomes v^i ← δv^i − ηg(x^i + δv^i)."""
        old, (sent, velocity, elastic) = work.models.parameters, work.extra
        ahead = tree.add(old, tree.scale(velocity, self.momentum)) if self.momentum else old
        work = local_step(ctx, work._replace(models=work.models._replace(parameters=ahead)), batch)
        velocity = tree.sub(work.models.parameters, old) if self.momentum else {}
        models = work.models._replace(parameters=tree.sub(work.models.parameters, elastic))
        extra = sent, velocity, tree.zeros_like(elastic)  # the first step subtracts the force
        return work._replace(models=models, extra=extra)

    def client_final(self, ctx: Context, shared: GlobalModels, work: LocalRun, data: ClientData) -> ClientResult:
        """Send the old x^i to the centre; the force also acts on a worker without a step."""
        sent, velocity, elastic = work.extra
        models = work.models._replace(parameters=tree.sub(work.models.parameters, elastic))
        return local_result(ctx, work, data, sent, ElasticState(models, velocity))

    def server_step(self, ctx: Context, shared: GlobalModels, reduced: Reduced, client_ids: Tensor) -> GlobalModels:
        """x̃ ← (1 − β)x̃ + β·mean x^i (Eq. 6), where β is α times the number of these workers."""
        old = tree.map_leaves(Tensor.double, shared.models)
        moved = tree.lerp(old, reduced.value, self._elasticity(ctx, reduced.weight))
        return GlobalModels(moved)

    def shared_outputs(self, ctx: Context, shared: GlobalModels, x: Tensor) -> Tensor | None:
        """Predictions of the centre, if it serves clients."""
        return ctx.task.outputs(shared.models, x) if self.serve == "centre" else None
