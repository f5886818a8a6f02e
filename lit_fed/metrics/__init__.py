"""Metrics over clients."""

from lit_fed.metrics.client_table import ClientTable, client_statistics, summarise

__all__ = ["ClientTable", "client_statistics", "summarise"]
