"""The strategy `fed_ddp`: the clients of a round shared out over ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

__all__ = ["FederatedStrategy"]


class FederatedStrategy(DDPStrategy):
    """Process group and launcher of DDP without its wrapper: clients train whole models of their own, rank by rank.

    On CPUs every rank takes one thread: more ranks use more cores better than more threads do.
    """

    def setup_environment(self) -> None:
        """Join the process group; keep the ranks of one machine out of each other's cores."""
        super().setup_environment()
        if self.root_device.type == "cpu":
            torch.set_num_threads(1)

    def configure_ddp(self) -> None:
        """Start all ranks from rank 0's shared state and client table."""
        assert self.model is not None
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            dist.broadcast(tensor.data, 0)


StrategyRegistry.register(
    "fed_ddp", FederatedStrategy, description="cohort sharded over ranks, no gradient hooks", start_method="popen"
)
