"""Populations: seen and unseen clients with their splits."""
