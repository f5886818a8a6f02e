"""Components of a mixture: accuracy of each on the clients of each true group; unused and equal components."""

from __future__ import annotations

from itertools import combinations

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor

from lit_fed.core import tree
from lit_fed.core.types import ModelState, Tree
from lit_fed.metrics.gathered import ClientTable
from lit_fed.metrics.scores import ClientScores
from lit_fed.metrics.summary import RunSummary
from lit_fed.serving import client_scores, predict_job
from lit_fed.system.packages import pd
from lit_fed.training.hooks import FederatedCallback, data_of, federated, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import write_table
from lit_fed.wrappers.blend import Blend

__all__ = ["ComponentAccuracy", "component_scores", "component_table", "components_in_words", "has_components"]

UNUSED = 0.25
"""Share of the samples, times the number of components, below which a component counts as unused."""

EQUAL = 1e-3
"""Distance of two components, as a share of their norm, below which they count as the same."""


class ComponentAccuracy(FederatedCallback):
    """Measures every component alone on the test samples of the seen clients of each true group, as `components.csv`.

    Columns: `group`, `component`, `accuracy` (for regression `mse`), `samples`, and `share`, the mean weight of the
    component in the mixtures of the group's clients. It runs if the data provide true groups and the algorithm serves
    clients with mixtures of several components, and only in the test at the end of a run with a folder; the test
    samples are then predicted once more for each component. Without a server, each client uses its own copy of a
    component.
    """

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module, (seen, _) = federated(pl_module), data_of(trainer).populations
        if trainer.logger is None or seen.groups is None or not has_components(module):
            return
        components, folder = component_scores(trainer, module), results_folder(trainer)
        if folder is not None:
            mixture, groups = module.client_scores["seen"].mixture, seen.groups[seen.positions]
            write_table(component_table(components, mixture, groups, module.target.metric), folder / "components.csv")

    def on_summary(self, trainer: Trainer, module: FederatedModule, summary: RunSummary) -> None:
        summary.lines.append(components_in_words(module))


def has_components(module: FederatedModule) -> bool:
    """Whether clients are served with mixtures of several components."""
    is_blend = isinstance(module.settings.algorithm, Blend)  # whose weights are of algorithms
    return module.store.has_mixtures and module.algorithm.num_models > 1 and not is_blend


def component_scores(trainer: Trainer, module: FederatedModule) -> list[ClientScores]:
    """Results of the seen clients on test samples with each component alone, [M], the same on every rank."""
    federation, data = module.federation, data_of(trainer)
    num_models, num_clients = module.algorithm.num_models, data.populations[0].num_measured
    tables = [ClientTable(num_clients).to(module.device) for _ in range(num_models)]
    with trainer.precision_plugin.val_step_context():
        for given in data.serving("seen", "test"):
            block = trainer.strategy.batch_to_device(given)
            data_of_block = block.data.select(block.client_ids)
            states = module.store.gather(block.client_ids)["state"]
            for component, table in enumerate(tables):
                served = with_one_component(states, component)
                job = predict_job(federation, block.client_ids, data_of_block, served)
                table.update(block.rows, client_scores(federation.client_trainer, job))
    return [table.scores() for table in tables]


def with_one_component(states: Tree, component: int) -> Tree:
    """The states of clients, leaves [C, ...], with the weight 1 on one component and 0 on the others."""
    if hasattr(states, "inner"):  # under a wrapper
        return states._replace(inner=with_one_component(states.inner, component))
    mixture = torch.zeros_like(states.mixture)
    mixture[..., component] = 1
    return states._replace(mixture=mixture)


def component_table(components: list[ClientScores], mixtures: Tensor, groups: Tensor, metric: str) -> pd.DataFrame:
    """One row for each group and component; groups without test samples are left out.

    Args:
        components: results of E clients with each component alone, [M].
        mixtures: weights of each client, [E, M].
        groups: true group of each client, [E].
        metric: name of the mean of the hits, `accuracy` or `mse`.
    """
    hits, counts, found = torch.stack([one.hits for one in components]), components[0].samples, []
    for group in groups.unique().tolist():
        own, samples = groups == group, counts[groups == group].sum()
        columns = {"group": group, "component": range(len(hits)), metric: hits[:, own].sum(1) / samples}
        columns |= {"samples": int(samples), "share": (mixtures * counts[:, None])[own].sum(0) / samples}
        found.append(pd.DataFrame(columns))
    table = pd.concat(found, ignore_index=True)
    return table[table["samples"] > 0]


def components_in_words(module: FederatedModule) -> str:
    """Lines naming components that no client uses, and equal components; "" if there are none.

    Args:
        module: a module that has measured the seen clients.
    """
    scores = module.client_scores.get("seen")
    if scores is None or not has_components(module):
        return ""
    share = (scores.mixture * scores.samples[:, None]).sum(0) / scores.samples.sum().clamp(min=1)
    fix = "give fewer, or another seed"
    if getattr(module.settings.algorithm, "start", "none to choose") is None:
        fix = "try --model.algorithm.start Clustering, or fewer components"
    unused = (share < UNUSED / len(share)).nonzero()[:, 0].tolist()
    lines = [
        f"component {one} is used by no client, its mean weight is {share[one]:.3f}, and another may serve two kinds; "
        f"{fix}\n"
        for one in unused
    ]
    models = [flat.double() for flat in _flat(tree.models(module.shared)[0])]
    for one, other in combinations(range(len(models)), 2):
        if (models[one] - models[other]).norm() <= EQUAL * models[one].norm():
            lines.append(f"components {one} and {other} are the same model; {fix}\n")
    return "".join(lines)


def _flat(models: ModelState) -> Tensor:
    """Parameters of each model as one vector, [M, d]."""
    return torch.cat([leaf.flatten(1) for leaf in models.parameters.values()], dim=1)
