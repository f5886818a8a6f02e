"""Differential privacy: what noisy sums over clients cost, and the bounds that their values are clipped at."""
