"""Test samples of a run on pictures, and what their clients' models predict, for a figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lit_fed import serving
from lit_fed.core.types import Population, ServingBlock, Split
from lit_fed.data.module import FederatedDataModule
from lit_fed.pictures.samples import samples_figure
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import prediction_table

__all__ = ["sample_pictures"]

SHOWN = 6
"""Number of samples in the figure."""


def sample_pictures(module: FederatedModule, data: FederatedDataModule) -> Any | None:
    """A figure of the first test samples of the first seen clients, of different ones if there are enough.

    None if inputs are no pictures or on other machines, if the run is private, or if predictions are not one label
    for each sample or pixel.
    """
    facts, seen = module.facts, data.populations[0]
    shape, unlike = facts.input_shape, facts.target.positions and len(facts.label_shape) != 2
    is_picture = len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1 and facts.input_type == "float32"
    if not is_picture or unlike or data.dataset.is_remote or module.settings.is_private:
        return None
    block = _first_samples(seen)
    if block is None:
        return None
    block = data.transfer_batch_to_device(block, module.device, 0)
    names = dict(zip(seen.train.client_ids.tolist(), seen.names, strict=False))
    table = prediction_table(serving.predict_block(module.federation, block, seen=True), names, facts)
    if not any(str(name).startswith("prediction") for name in table):
        return None
    pixels = block.data.x.cpu().numpy()
    if facts.normalisation is not None:
        mean, std = (np.array(one, np.float32).reshape(-1, 1, 1) for one in facts.normalisation)
        pixels = pixels * std + mean
    elif pixels.min() < 0 or pixels.max() > 1:
        pixels = (pixels - pixels.min()) / np.ptp(pixels)
    return samples_figure(pixels.clip(0, 1), table, facts.target.num_classes)


def _first_samples(clients: Population) -> ServingBlock | None:
    """A block of the first test samples; None if there are none."""
    sizes = clients.test.sizes[clients.positions]
    first = clients.positions[sizes > 0][:SHOWN]
    places = sorted((place, one) for one in first.tolist() for place in range(int(clients.test.sizes[one])))[:SHOWN]
    if not places:
        return None
    number = torch.tensor([sum(one == own for _, own in places) for one in first.tolist()])
    ids = clients.test.client_ids[first]
    test = clients.test.select(ids)
    each = [(test.client(one), count) for one, count in zip(ids.tolist(), number.tolist(), strict=True)]
    offsets = torch.cat([number.new_zeros(1), number.cumsum(0)])
    x, y = torch.cat([one.x[:count] for one, count in each]), torch.cat([one.y[:count] for one, count in each])
    return ServingBlock(ids, torch.arange(len(ids)), Split(x, y, offsets, ids=ids), clients.train)
