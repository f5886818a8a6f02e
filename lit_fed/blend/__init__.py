"""Blends of finished runs: each client is served by a mixture of what several algorithms predict for it."""
