"""Graphs between clients: who hears of whom, with which weight, and what travels along the edges."""
