"""Figures of runs and of data; matplotlib is imported when one is drawn."""
