"""Fresh networks: the seeds that they are built from, and which of their parameters are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from lit_fed.core.seeds import seed_of
from lit_fed.errors import ConfigError

__all__ = ["check_trained", "fresh_network", "initial_seeds"]


def initial_seeds(num_models: int, seed: int, given: Sequence[int] | None = None) -> list[int]:
    """Seeds of the initial models, [M].

    Args:
        num_models: M.
        seed: the training seed, which the seeds are derived from unless they are given.
        given: at least M seeds, or None.

    Raises:
        ConfigError: if fewer seeds are given than there are models.
    """
    if given is None:
        return [int(seed_of(seed, 0, m, "init").generate_state(1)[0]) for m in range(num_models)]
    if len(given) < num_models:
        raise ConfigError(f"--model.init_seeds has {len(given)} seeds; give one for each of {num_models}")
    return list(given[:num_models])


def fresh_network(build: Callable[[], nn.Module], seed: int, dtype: torch.dtype) -> nn.Module:
    """A network whose weights follow from the seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed seeds devices as well, and takes a millisecond to find that there are none
        (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(seed)
        return build().to(dtype)


def check_trained(network: nn.Module) -> None:
    """Refuse a network without a parameter that is trained.

    Raises:
        ConfigError: naming the network.
    """
    if not any(leaf.requires_grad for leaf in network.parameters()):
        number = sum(1 for _ in network.parameters())
        which = f"all of its {number} parameters have requires_grad=False" if number else "it has no parameters"
        raise ConfigError(
            f"{type(network).__name__} has nothing to train: {which}; leave requires_grad=True for a part of it, or "
            "choose another --model.network"
        )
