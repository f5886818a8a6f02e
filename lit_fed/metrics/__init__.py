"""Metrics over clients, clients that dwarf all others, and the time of a round."""

from lit_fed.metrics.client_table import ClientTable, client_statistics, summarise

__all__ = ["ClientTable", "client_statistics", "summarise"]
