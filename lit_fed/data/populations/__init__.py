"""Populations: seen and unseen clients with their splits, checked, found by name."""
