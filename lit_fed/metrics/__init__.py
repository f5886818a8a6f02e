"""Metrics over clients, and detection of outliers among clients."""

from lit_fed.metrics.client_table import client_statistics, summarise

__all__ = ["client_statistics", "summarise"]
