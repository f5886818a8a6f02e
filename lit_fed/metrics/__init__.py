"""Metrics over clients, and detection of outliers among clients."""

from lit_fed.metrics.scores import client_statistics, summarise

__all__ = ["client_statistics", "summarise"]
