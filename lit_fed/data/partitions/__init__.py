"""Partitions: how a pool of samples is divided among clients."""
