"""Federations of processes of one machine, for federation_check.py: what they cost, and what becomes of kills."""
