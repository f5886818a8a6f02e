"""The conditions on a mixing matrix."""

import torch


def check_mixing(matrix, edges):
    """Rows sum to 1; symmetric, non-negative, and 0 between clients that are no neighbours; up to rounding."""
    off_graph = (edges == 0) & ~torch.eye(len(edges), dtype=torch.bool)
    assert float((matrix.sum(1) - 1).abs().max()) < 1e-8
    assert float((matrix - matrix.T).abs().max()) < 1e-8
    assert float(matrix.min()) > -1e-8
    assert float(matrix.masked_fill(~off_graph, 0).abs().max()) < 1e-8
