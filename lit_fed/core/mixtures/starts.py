"""Starts of mixtures: modified E-steps or exchanged components in the first rounds, then exact EM.

From random components EM often converges with two groups of clients on one component and another one unused. A start
is a frozen dataclass, so its signature is its configuration; its functions are pure. Its docstring states what the
server learns beyond the models.
"""

# Annotations are not postponed, so that the command line can read those of subclasses in other modules.
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.context import Context
from lit_fed.core.mixtures.clusters import best_fit, one_hot
from lit_fed.core.mixtures.e_step import counted_rows, expectation
from lit_fed.core.seeds import torch_generator
from lit_fed.core.types import ClientData, LocalWork, ModelState, Tree
from lit_fed.errors import check_settings

__all__ = [
    "ASK", "Annealing", "Clustering", "FarthestClients", "MixtureStart", "Opening", "Reported", "Restarts",
    "SplitAndMerge", "StartedModels", "under_way",
]  # fmt: skip

PLACE = "--model.algorithm.start"

ASK = "ask"
"""Name of the phase in which clients report to the server without training."""


class StartedModels(NamedTuple):
    """Shared state of a mixture whose start exchanges components."""

    models: ModelState  # θ, leaves [M, ...]
    exchanges: Tensor  # [] int64, number of exchanges so far; clients reset weights and momentum at each
    chosen: Tensor  # [] int64, the client whose model becomes a component; -1: none
    kept: Tree  # state that is never sent


class Opening(NamedTuple):
    """Result of a client's E-step in a round of the start."""

    mixture: Tensor  # π, [M]
    responsibility: Tensor  # q, [N, M]; 0 in padded rows
    share: Tensor | None = None  # [M] weights of its models in the averages; None: the usual ones


class Reported(NamedTuple):
    """Message value of a client that reports to the server in the start."""

    value: Tree  # as in other rounds
    report: dict[str, Tensor]  # numbers that the server averages over clients


class MixtureStart(ABC):
    """Base class of `--model.algorithm.start`."""

    chooses: ClassVar[bool] = False
    """Whether clients send only some of the components."""

    reports: ClassVar[str] = ""
    """Name of the clients' reports, by which the server exchanges components; "": no reports."""

    asks: ClassVar[bool] = False
    """Whether each round of the start begins with a phase `ASK`."""

    counts_empty_rounds: ClassVar[bool] = False
    """Whether `exchanged` is also called after a round without clients, without a report."""

    @abstractmethod
    def length(self, num_components: int) -> int:
        """Number of rounds of the start."""

    def answered(self, shared: StartedModels, report: dict[str, Tensor]) -> StartedModels:
        """The shared state after the phase `ASK`."""
        return shared

    def work(self, work: LocalWork) -> LocalWork:
        """Local work of a round of the start, instead of that of other rounds."""
        return work

    def opening(
        self, ctx: Context, shared: Any, mixture: Tensor, losses: Tensor, data: ClientData, num_factors: int | Tensor
    ) -> Opening:
        """The E-step of a client in a round of the start: by default the exact one.

        Args:
            ctx: the context.
            shared: the broadcast shared state.
            mixture: the client's π, [M].
            losses: losses of its samples under the components, [N, M].
            data: its samples.
            num_factors: factors of a sample's likelihood, see `expectation`.
        """
        return Opening(*expectation(mixture, losses, counted_rows(ctx.task, data), num_factors)[:2])

    def report(
        self, ctx: Context, opening: Opening, losses: Tensor, data: ClientData, loss: Tensor
    ) -> dict[str, Tensor]:
        """A client's report in a phase.

        Args:
            ctx: the context.
            opening: its E-step.
            losses: losses of its samples, [N, M].
            data: its samples.
            loss: its mean negative log-likelihood, [].
        """
        return {}

    def memory(self, models: ModelState) -> Tree:
        """The server's own state for the start."""
        return ()

    def exchanged(
        self, ctx: Context, shared: StartedModels, models: ModelState, report: dict[str, Tensor]
    ) -> StartedModels:
        """The shared state after a round of the start.

        Args:
            ctx: the context.
            shared: the shared state before the round.
            models: the averages of the round, leaves [M, ...].
            report: means over clients; {} in a round without clients.
        """
        return shared._replace(models=models)


@dataclass(frozen=True)
class Annealing(MixtureStart):
    """Posteriors q ∝ (π·p)^β with β rising to 1 by equal factors: components separate later, and together.

    Ueda, Nakano. "Deterministic annealing EM algorithm". Neural Networks 11(2), 1998.

    Args:
        num_rounds: rounds until β = 1.
        first: β of the first round.
        by_client: use one posterior for all samples of a client, from their mean loss.
    """

    num_rounds: int = 50
    first: float = 0.1
    by_client: bool = False

    def __post_init__(self) -> None:
        check_settings(self, {"num_rounds": ">= 1", "first": "(0, 1]"}, PLACE)

    def length(self, num_components: int) -> int:
        return self.num_rounds

    def opening(
        self, ctx: Context, shared: Any, mixture: Tensor, losses: Tensor, data: ClientData, num_factors: int | Tensor
    ) -> Opening:
        beta = self.first ** (1 - ctx.round_idx / self.num_rounds)
        if self.by_client:
            losses = _client_mean(losses, data.mask).to(losses.dtype).expand_as(losses)
        pi, q, _ = expectation(mixture**beta, beta * losses, counted_rows(ctx.task, data), num_factors)
        return Opening(torch.where(data.num_samples > 0, pi, mixture), q)


@dataclass(frozen=True)
class Clustering(MixtureStart):
    """Each client trains and sends only the component that fits its samples best: rounds of IFCA.

    Ghosh, Chung, Yin, Ramchandran. "An Efficient Framework for Clustered Federated Learning". NeurIPS 2020.
    https://arxiv.org/abs/2006.04088, Algorithm 1. The server learns which component each client trains. Afterwards a
    client with n samples starts from the weights (n·s + 1) / (n + M), where s is 1 for its component and 0 for others:
    the posterior mean of its weights under a uniform prior, if all of its samples come from that component.

    Args:
        num_rounds: rounds of the start.
    """

    num_rounds: int = 20
    chooses = True

    def __post_init__(self) -> None:
        check_settings(self, {"num_rounds": ">= 1"}, PLACE)

    def length(self, num_components: int) -> int:
        return self.num_rounds

    def opening(
        self, ctx: Context, shared: Any, mixture: Tensor, losses: Tensor, data: ClientData, num_factors: int | Tensor
    ) -> Opening:
        fits, n = one_hot(best_fit(losses, data.mask), len(mixture), mixture.dtype), data.num_samples
        pi = ((n * fits + 1) / (n + len(mixture))).to(mixture.dtype)
        return Opening(pi, fits * data.mask.unsqueeze(1), fits)


@dataclass(frozen=True)
class Restarts(MixtureStart):
    """Several short runs from different initial components; the one with the highest likelihood continues.

    McLachlan, Peel. "Finite Mixture Models". Wiley 2000, Section 2.12. Ours: the likelihood is that of the components
    at the start of a run's last round, on the samples of that round's clients; if the round has none, that of the
    latest round with clients. The server learns its mean.

    Args:
        tries: number of runs.
        num_rounds: rounds of each.
    """

    tries: int = 5
    num_rounds: int = 10
    reports = "their likelihood"
    counts_empty_rounds = True

    def __post_init__(self) -> None:
        check_settings(self, {"tries": ">= 1", "num_rounds": ">= 1"}, PLACE)

    def length(self, num_components: int) -> int:
        return self.tries * self.num_rounds

    def report(
        self, ctx: Context, opening: Opening, losses: Tensor, data: ClientData, loss: Tensor
    ) -> dict[str, Tensor]:
        return {"loss": loss.double()}

    def memory(self, models: ModelState) -> Tree:
        """The best components so far, their mean negative log-likelihood, and that of the latest round."""
        own = next(iter(models.parameters.values()))
        unknown = torch.full((), torch.inf, dtype=torch.float64, device=own.device)
        return models, unknown, unknown.clone()

    def exchanged(
        self, ctx: Context, shared: StartedModels, models: ModelState, report: dict[str, Tensor]
    ) -> StartedModels:
        attempt, place = divmod(ctx.round_idx, self.num_rounds)
        best, least, loss = shared.kept
        loss = report.get("loss", loss)
        if place + 1 < self.num_rounds:
            return shared._replace(models=models, kept=(best, least, loss))
        better = loss < least
        best = tree.map_leaves(lambda new, old: torch.where(better, new, old), shared.models, best)
        kept = best, torch.minimum(loss, least), loss
        if attempt + 1 < self.tries:
            num_models = len(next(iter(models.parameters.values())))
            best = replace(ctx.task, init_seeds=None).init(num_models, ctx.seed + attempt + 1)
        return shared._replace(models=best, exchanges=shared.exchanges + 1, kept=kept)


@dataclass(frozen=True)
class FarthestClients(MixtureStart):
    """Local models as components: each is trained by the client that the previous components fit worst.

    Gonzalez. "Clustering to minimize the maximum intercluster distance". Theoretical Computer Science 38, 1985; the
    start of k-means++ (Arthur, Vassilvitskii. SODA 2007) with the farthest point instead of a random one. A round has
    two phases: clients report their mean loss under the best of the components so far, then one client trains
    and sends the next component. The server learns each client's loss and the models of these clients.

    Args:
        local_epochs: epochs of the client that trains a component.
    """

    local_epochs: int = 10
    chooses = True
    reports = "their losses, each under its number"
    asks = True

    def __post_init__(self) -> None:
        check_settings(self, {"local_epochs": ">= 1"}, PLACE)

    def length(self, num_components: int) -> int:
        return num_components

    def work(self, work: LocalWork) -> LocalWork:
        return work._replace(epochs=self.local_epochs, steps=None)

    def opening(
        self, ctx: Context, shared: Any, mixture: Tensor, losses: Tensor, data: ClientData, num_factors: int | Tensor
    ) -> Opening:
        own = one_hot(torch.full_like(data.client_id, ctx.round_idx), len(mixture), mixture.dtype)
        return Opening(mixture, own * data.mask.unsqueeze(1), own * (data.client_id == shared.chosen))

    def report(
        self, ctx: Context, opening: Opening, losses: Tensor, data: ClientData, loss: Tensor
    ) -> dict[str, Tensor]:
        """The mean loss under the best of the components so far, at the client's position of T."""
        if ctx.phase != ASK:
            return {}
        best = losses[:, : max(ctx.round_idx, 1)].amin(1, keepdim=True)
        here = one_hot(data.client_id, ctx.num_clients, torch.float64)
        return {"loss": here * _client_mean(best, data.mask), "present": here}

    def answered(self, shared: StartedModels, report: dict[str, Tensor]) -> StartedModels:
        """Choose the client that the components so far fit worst."""
        here = report["present"] > 0
        loss = torch.where(here, report["loss"] / report["present"], -torch.inf)
        return shared._replace(chosen=loss.argmax())

    def exchanged(
        self, ctx: Context, shared: StartedModels, models: ModelState, report: dict[str, Tensor]
    ) -> StartedModels:
        return shared._replace(models=models, exchanges=shared.exchanges + 1, chosen=torch.full_like(shared.chosen, -1))


@dataclass(frozen=True)
class SplitAndMerge(MixtureStart):
    """Every few rounds, replace an unused or duplicate component by a noisy copy of the one with the largest loss.

    Ueda, Nakano, Ghahramani, Hinton. "SMEM Algorithm for Mixture Models". Neural Computation 12(9), 2000. The two
    components with the most similar posteriors are merged if their cosine exceeds `alike`; the one with the largest
    share of the loss is split. Ours: exchanges are never undone, and a component with a share of the samples below
    `unused`/M is replaced ahead of a merge. The server learns means over clients of q, of q·qᵀ and of the losses.

    Args:
        every: rounds between exchanges.
        times: maximum number of exchanges.
        unused: share of the samples, times M, below which a component counts as unused.
        alike: cosine of two components' posteriors above which they are merged.
        spread: standard deviation of the noise on the copy, relative to that of each parameter.
    """

    every: int = 10
    times: int = 5
    unused: float = 0.25
    alike: float = 0.9
    spread: float = 0.3
    reports = "means of their posteriors and losses"

    def __post_init__(self) -> None:
        ranges = {"every": ">= 1", "times": ">= 1", "unused": "[0, 1]", "alike": "[0, 1]", "spread": "> 0"}
        check_settings(self, ranges, PLACE)

    def length(self, num_components: int) -> int:
        return self.every * self.times

    def report(
        self, ctx: Context, opening: Opening, losses: Tensor, data: ClientData, loss: Tensor
    ) -> dict[str, Tensor]:
        q, n = opening.responsibility.double(), data.num_samples.clamp(min=1)
        return {"share": q.sum(0) / n, "loss": (q * losses).sum(0) / n, "overlap": q.T @ q / n}

    def exchanged(
        self, ctx: Context, shared: StartedModels, models: ModelState, report: dict[str, Tensor]
    ) -> StartedModels:
        share, overlap = report["share"], report["overlap"]
        num_models = len(share)
        if (ctx.round_idx + 1) % self.every or num_models == 1:
            return shared._replace(models=models)
        norm = overlap.diagonal().clamp(min=1e-300).sqrt()
        cosine = (overlap / norm / norm[:, None]).triu(1)  # each pair once, so rounding cannot order its two entries
        least, nearest = int(share.argmin()), int(cosine.argmax())
        one, other = divmod(nearest, num_models)
        if share[least] < self.unused / num_models:
            free = least
        elif cosine[one, other] > self.alike:
            models, free = _merged(models, one, other, share), other
        else:
            return shared._replace(models=models)
        loss = report["loss"].index_fill(0, torch.tensor([free], device=share.device), -torch.inf)
        models = self._split(ctx, models, int(loss.argmax()), free)
        return shared._replace(models=models, exchanges=shared.exchanges + 1)

    def _split(self, ctx: Context, models: ModelState, source: int, place: int) -> ModelState:
        """The models with one of them replaced by a noisy copy of another."""
        random = torch_generator(ctx.seed, ctx.round_idx, 0, "split")

        def copy(leaf: Tensor) -> Tensor:
            old = leaf[source]
            noise = torch.randn(old.shape, generator=random, dtype=torch.float64).to(old.device)
            new = old + self.spread * noise * old.double().std(unbiased=False)
            return leaf.index_copy(0, torch.tensor([place], device=leaf.device), new.to(leaf.dtype).unsqueeze(0))

        buffers = tree.map_leaves(
            lambda leaf: leaf.index_copy(0, torch.tensor([place], device=leaf.device), leaf[source : source + 1]),
            models.buffers,
        )
        return ModelState(tree.map_leaves(copy, models.parameters), buffers)


def _merged(models: ModelState, one: int, other: int, share: Tensor) -> ModelState:
    """The models with the first of two replaced by the average of both, weighted by their shares."""
    part = share[other] / (share[one] + share[other])
    place = torch.tensor([one], device=share.device)

    def average(leaf: Tensor) -> Tensor:
        mean = torch.lerp(leaf[one].double(), leaf[other].double(), part)
        return leaf.index_copy(0, place, mean.to(leaf.dtype).unsqueeze(0))

    return tree.map_leaves(average, models)  # type: ignore[no-any-return]


def _client_mean(losses: Tensor, mask: Tensor) -> Tensor:
    """Mean losses of a client under each model, [M] float64; 0 without samples."""
    total = (losses * mask.unsqueeze(1)).sum(0, dtype=torch.float64)
    return total / mask.sum(dtype=torch.float64).clamp(min=1)


def under_way(start: MixtureStart | None, ctx: Context, num_components: int) -> MixtureStart | None:
    """The start during its rounds; None afterwards, and when clients are served."""
    if start is None or ctx.phase == "adapt" or ctx.round_idx >= start.length(num_components):
        return None
    return start
