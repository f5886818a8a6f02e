"""Algorithms: one file per paper."""

from lit_fed.algorithms.base import Algorithm
from lit_fed.algorithms.fedavg import FedAvg
from lit_fed.algorithms.fedavg_plus import FedAvgPlus
from lit_fed.algorithms.fedem import FedEM
from lit_fed.algorithms.local import Local

__all__ = ["Algorithm", "FedAvg", "FedAvgPlus", "FedEM", "Local"]
