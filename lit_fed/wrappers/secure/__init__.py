"""Secure sums: fixed-point messages under masks that cancel, and recovery of the masks of clients that drop out."""
