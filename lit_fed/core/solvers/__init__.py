"""Exact and iterative solvers for small convex problems of clients and servers."""
