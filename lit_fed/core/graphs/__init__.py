"""Graphs between clients: neighbours, mixing weights, and messages along edges."""
