"""The kernel: pure functions over tensors and arrays, without Lightning; one folder per domain."""

from lit_fed.system.discovery import room

__getattr__, _FOUND = room(__name__, "Target", "Likelihood", "Loss", "Topology", "Surrogate")

__all__ = [*_FOUND]
