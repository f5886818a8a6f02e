"""Secure sums: whole numbers modulo a power of two, masks that cancel in their sum, and shares of the masks' keys."""
