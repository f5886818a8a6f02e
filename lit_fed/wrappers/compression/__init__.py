"""Encoded messages and broadcasts: codecs, settings, wrappers of both directions."""
