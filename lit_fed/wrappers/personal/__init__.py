"""Leaves of the network that stay with their client."""
