"""Robust aggregation rules, attacks, and the wrapper that runs both."""
