"""A trainer that prints nothing, and states that are equal."""

import torch

from lit_fed import FederatedTrainer, RoundLogger


def quiet_trainer(rounds=1, out=None, name="run", version=None, keep_rounds=0, **arguments):
    """A trainer on the CPU; its run is in a folder of this name below `out`, or nowhere without `out`."""
    if out is None:
        where = {"logger": False, "enable_checkpointing": False}
    else:
        where = {"logger": RoundLogger(str(out), name, version, keep_rounds)}
    common = {"max_epochs": rounds, "accelerator": "cpu", "enable_progress_bar": False}
    return FederatedTrainer(**common | where | arguments)


def assert_same_state(one, other):
    """Two modules, or their state dicts, agree bit for bit."""
    one, other = (each if isinstance(each, dict) else each.state_dict() for each in (one, other))
    for key, leaf in one.items():
        assert torch.equal(leaf, other[key]), key
