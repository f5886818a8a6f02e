"""Exact and iterative solvers for the small convex problems that clients and servers meet."""
