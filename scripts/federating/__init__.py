"""Federations of local processes for federation_check.py."""
