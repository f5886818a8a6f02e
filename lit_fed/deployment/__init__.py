"""Federations of real machines: what travels between a server and its nodes, and how. No Lightning."""
