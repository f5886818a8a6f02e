"""Differential privacy: accountant, clipping, and wrappers for clients, samples and single messages."""
