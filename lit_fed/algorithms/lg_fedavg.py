"""LG-FedAvg: personal lower layers, shared upper layers.

Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency. "Think Locally, Act Globally: Federated Learning with
Local and Global Representations". 2020. https://arxiv.org/abs/2001.01523, Algorithm 1.

Symbols:
    θ_m^ℓ   -> state.own       the local model of device m, which maps inputs to a representation, leaves [1, ...]
    θ^g     -> shared.models   the global model on top of it, leaves [1, ...]
    N_m / N -> message.weight  share of device m's samples
Deviations:
    The authors' program shares the last two entries of a list that for CIFAR-10 ends with the convolutions, so it
    averages the lower layers; it starts from a model of 800 to 1800 rounds of FedAvg (here `--model.start_from`), and
    keeps each client's model with the best test accuracy.
    Layers are the modules that own parameters, in the order of their registration; BatchNorm and its running statistics
    belong to the part they are in.
    The paper serves a new device by an ensemble of all local models. Ours trains personal lower layers, from the
    initial ones, as in a round under the final upper layers: the server has no local model.
    Objectives beside the loss (autoencoders, adversaries for fairness) are not here.
"""

from __future__ import annotations

from dataclasses import dataclass

from lit_fed.core.algorithm import ranged
from lit_fed.core.context import Context
from lit_fed.core.networks.layers import last_layers
from lit_fed.core.partial_models import PersonalPart, leaf_order

__all__ = ["LGFedAvg"]


@dataclass(frozen=True)
class LGFedAvg(PersonalPart):
    """Clients train all layers together; the server averages the last ones, and every client keeps the others.

    Args:
        shared_layers: trained layers that are averaged, counted from the end of the network: 0 gives Local, all of them
            FedAvg.
    """

    shared_layers: int = ranged(1, ">= 0")

    in_every_combination = True
    incompatible = {
        **PersonalPart.incompatible,
        "local_norm": "keeps the normalisation of lower layers at the client already",
    }

    def own_names(self, ctx: Context) -> frozenset[str]:
        """All layers but the last ones."""
        shared = last_layers(ctx.task.network, self.shared_layers, "shared_layers")
        return frozenset(leaf_order(ctx.task.network)) - shared
