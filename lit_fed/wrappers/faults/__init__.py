"""Clients that drop out, straggle or fail, and messages that are lost."""
