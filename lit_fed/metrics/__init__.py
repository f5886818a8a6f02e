"""Metrics over clients, and detection of outliers among clients."""

from lit_fed.metrics.scores import summarise
from lit_fed.metrics.statistics import client_statistics

__all__ = ["client_statistics", "summarise"]
