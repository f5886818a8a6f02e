"""Data sets: samples still to be divided, or clients with samples of their own."""
