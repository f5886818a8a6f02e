"""Secure sums: fixed-point messages, their bits, and rounds that are void since too many clients drop out."""
