"""Mixtures of models: the E-step, clusters as mixtures with one component each, and surrogates."""
