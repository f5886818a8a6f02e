"""Stages of gpu_day.py."""
