"""Metrics over clients, clients that dwarf all others, and the time of a round."""

from lit_fed.metrics.client_table import client_statistics, summarise

__all__ = ["client_statistics", "summarise"]
