"""Runs and disturbances of soak.py."""
