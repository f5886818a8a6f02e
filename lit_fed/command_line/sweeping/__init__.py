"""Sweeps of W&B's file format on this machine, for the command `sweep`."""
