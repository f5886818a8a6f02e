"""Which clients attack."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lit_fed.core.seeds import generator
from lit_fed.errors import ConfigError

__all__ = ["draw_attackers"]


def draw_attackers(wanted: float, num_clients: int, seed: int) -> Tensor:
    """Draw the clients that attack; never the last ones, who would all be of one class where samples are sorted.

    Args:
        wanted: how many, or their share if it is below 1; a share is rounded.
        num_clients: clients of the training, T.
        seed: of the data.

    Returns:
        Their ids, ascending [A] int64.

    Raises:
        ConfigError: if there are not so many clients, or it is no number of clients.

    Example:
        >>> draw_attackers(4, 20, seed=0).tolist()
        [2, 12, 17, 18]
    """
    if not 0 <= wanted < num_clients or (wanted > 1 and wanted != int(wanted)):
        raise ConfigError(
            f"--data.attackers is {wanted:g}, and {num_clients} clients train; give a whole number below that, or a "
            "share below 1"
        )
    number = round(wanted * num_clients) if wanted < 1 else int(wanted)
    drawn = generator(seed, 0, 0, "attackers").choice(num_clients, number, replace=False)
    return torch.from_numpy(np.sort(drawn))
