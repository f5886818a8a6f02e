"""Predictions gathered on rank zero, as tables, and optionally files of states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lit_fed.callbacks.report import client_table
from lit_fed.core import tree
from lit_fed.core.conformal import size_name
from lit_fed.core.types import Tree
from lit_fed.data.new_clients import HELD_OUT, NewClients
from lit_fed.metrics.chosen import ChosenMetrics
from lit_fed.metrics.scores import ClientScores
from lit_fed.system.files import whole_file
from lit_fed.system.packages import pd
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import prediction_table
from lit_fed.training.thresholds import covered_and_size

__all__ = ["ServedClients", "served_in_words", "unseen_tables"]


class ServedClients(Callback):
    """Collects the predictions of a run from all ranks on rank zero.

    Args:
        states: folder for a file `<client>.pt` with the state of each served client; None: none are written.

    Attributes:
        client_ids: on rank zero, all served clients, ascending [C].
        scores: their results.
        sizes: samples of each, [C].
        labels: client after client, [n] or [n, L].
        log_prob: predictions, [n, C] or [n, L, C], or for regression [n, 1] or [n, C].
        posteriors: responsibilities of the components, [n, M]; None: not asked.
        thresholds: of prediction sets, [C]; None: not asked.
        owned: whether a threshold is by the client's own samples, [C].
    """

    client_ids: Tensor
    scores: ClientScores
    sizes: Tensor
    labels: Tensor
    log_prob: Tensor
    posteriors: Tensor | None = None
    thresholds: Tensor | None = None
    owned: Tensor | None = None

    def __init__(self, states: Path | None = None) -> None:
        self.states = states
        self._blocks: list[tuple[Any, ...]] = []

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.states is not None:
            if trainer.is_global_zero:
                self.states.mkdir(parents=True)
            trainer.strategy.barrier("states")

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        if not outputs:
            return
        self._blocks.append(outputs._replace(states=None))
        if self.states is not None:
            population = trainer.datamodule.unseen  # type: ignore[attr-defined]
            for row, position in enumerate(population.train.positions(outputs.client_ids).tolist()):
                name = population.names[position]
                with whole_file(self.states / f"{name}.pt", private=True) as file:
                    torch.save(_plain(tree.index(outputs.states, row)), file)

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        blocks = self._gathered()
        self._blocks = []
        if not blocks:
            return
        found = tree.map_leaves(lambda *parts: torch.cat(parts), *blocks)
        client_ids, _, scores, sizes, labels, log_prob, posteriors, thresholds, owned = found
        order = client_ids.argsort()
        samples = client_ids.repeat_interleave(sizes).argsort(stable=True)
        self.client_ids, self.scores, self.sizes = client_ids[order], tree.index(scores, order), sizes[order]
        self.labels, self.log_prob = labels[samples], log_prob[samples]
        self.posteriors = None if posteriors is None else posteriors[samples]
        self.thresholds, self.owned = (None if one is None else one[order] for one in (thresholds, owned))

    def _gathered(self) -> list[tuple[Any, ...]]:
        """The blocks of all ranks on rank zero, none on the others."""
        if not (dist.is_available() and dist.is_initialized()):
            return self._blocks
        ranks: Any = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
        dist.gather_object(self._blocks, ranks)
        return [block for blocks in ranks or () for block in blocks]


def _plain(state: Tree) -> Any:
    """A state as nested dicts of tensors on the CPU, named by the fields and keys of the tree."""
    if isinstance(state, Tensor):
        return state.detach().cpu().clone()  # without the tensor that it is a view of
    if state is None:
        return {}
    if isinstance(state, dict):
        return {name: _plain(one) for name, one in state.items()}
    names = getattr(state, "_fields", None) or map(str, range(len(state)))
    return {name: _plain(one) for name, one in zip(names, state, strict=True)}


def served_in_words(served: ServedClients, data: NewClients, without_samples: str) -> str:
    """A summary of the served unseen clients, in a line or two.

    Args:
        served: the gathered predictions of all of them.
        data: the clients.
        without_samples: what serves those without samples to adapt on.
    """
    total, measured = int(served.sizes.sum()), int(served.sizes[data.labelled].sum())
    said = f"served: {len(served.sizes)} clients, with {data.unseen.train.num_samples} samples to adapt on; "
    said += f"{total} samples predicted, {measured} of them measured\n"
    own = data.unseen.train.ids is not None  # the states that they were trained to
    if bare := 0 if own else int((data.unseen.train.sizes == 0).sum()):
        said += f"{bare} of them have no labelled samples and are served by {without_samples}\n"
    if data.held_out:
        said += (
            f"every row has a label, so {HELD_OUT:.0%} of each client's were held out and measured; a column `split` "
            "(train, test), or text files of these names in a client's folder, say which, and an empty label says that "
            "a row is predicted\n"
        )
    elif not total:
        said += (
            "no client has samples to be predicted or measured: give x_test (and y_test), rows without a label, or "
            "pictures beside the folders of classes, or without a mask\n"
        )
    return said


def _pooled(served: ServedClients, labelled: Tensor, chosen: ChosenMetrics) -> dict[str, float]:
    """Chosen metrics of the samples of all clients with labels together; `labelled` [T] bool."""
    owner = torch.arange(len(served.sizes)).repeat_interleave(served.sizes)
    kept = labelled[owner]
    if not chosen.pooled or not kept.any():
        return {}
    return chosen.of_all(chosen.shown(served.log_prob[kept]), served.labels[kept], owner[kept])


def _set_columns(served: ServedClients, data: NewClients, module: FederatedModule) -> dict[str, list[float]]:
    """Coverage, size of sets and threshold of each client; NaN without labels; {} without prediction sets."""
    if served.thresholds is None or served.owned is None:
        return {}
    covered, size = covered_and_size(served, module.target)
    count = served.sizes.double()
    coverage = (covered / count).masked_fill(~data.labelled, torch.nan)
    means = {"coverage": coverage, size_name(module.target): size / count, "threshold": served.thresholds}
    means["own_threshold"] = served.owned
    return {name: column.tolist() for name, column in means.items()}


def unseen_tables(
    served: ServedClients, data: NewClients, module: FederatedModule
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, float]]:
    """The tables of unseen clients; missing labels and the results that need them are empty.

    Args:
        served: the gathered predictions of all of them.
        data: the clients.
        module: the module that served them.

    Returns:
        One row for each client with the columns of a run's clients.csv; the table of predictions; the statistics over
        clients with labels, with the keys of a test of unseen clients, {} without any.
    """
    population = data.unseen
    names = dict(zip(population.train.client_ids.tolist(), population.names, strict=True))
    pooled = _pooled(served, data.labelled, module.chosen_metrics)  # the table overwrites the predictions
    columns = _set_columns(served, data, module)
    predictions = prediction_table(served, names, module.facts, data.source)
    if not data.labelled.all():
        known = dict(zip(names, data.labelled.tolist(), strict=True))
        for column in [
            one for one in map(str, predictions) if one in ("label", "accuracy") or one.startswith("label_")
        ]:
            label = predictions[column]
            label = label.astype("Int64") if label.dtype.kind in "iu" else label
            predictions[column] = label.where(predictions["client_id"].map(known).astype(bool))
    sums = {name: getattr(served.scores, name).masked_fill(~data.labelled, 0) for name in ("samples", "loss", "hits")}
    scores = module.client_scores["unseen"] = served.scores._replace(**sums)
    table = client_table({"unseen": population}, module).drop(columns="population")
    table["num_test"] = served.sizes.numpy()
    table = table.assign(**columns)
    results = module.chosen_metrics.statistics(scores) | pooled
    return table, predictions, {f"unseen clients/unseen/{key}": value for key, value in results.items()}
