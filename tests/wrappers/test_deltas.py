"""The parts of messages that wrappers act on."""

import torch

from lit_fed.core import tree
from lit_fed.core.types import Chosen, ModelState
from lit_fed.wrappers.deltas import map_parameter_trees, parameter_trees


def leaves(value):
    return {"weight": torch.full((2, 3), value), "bias": torch.full((2,), value)}


def test_parameters_are_replaced_and_nothing_else():
    """Models of `Chosen`, and controls beside them; neither running statistics nor shares."""
    shares, statistics = torch.tensor([0.5, 0.0], dtype=torch.float64), {"running_mean": torch.ones(2, 4)}
    message = Chosen(ModelState(leaves(1.0), statistics), shares), [leaves(2.0), {"other": torch.ones(2)}]
    names = frozenset(leaves(0.0))
    assert [part["bias"][0].item() for part in parameter_trees(message, names)] == [1.0, 2.0]
    found = map_parameter_trees(lambda place, part: tree.scale(part, 10.0 + place), message, names)
    (models, taken), (controls, others) = found
    assert isinstance(found[0], Chosen)
    assert torch.equal(models.parameters["weight"], torch.full((2, 3), 10.0))
    assert torch.equal(controls["bias"], torch.full((2,), 22.0))
    assert taken is shares
    assert models.buffers is statistics
    assert others is message[1][1]
