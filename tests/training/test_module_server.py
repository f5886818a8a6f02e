import torch

from lit_fed.training.module_server import Assign


def test_all_leaves_are_copied_exactly():
    leaves = [torch.zeros(3, requires_grad=True), torch.zeros(2, dtype=torch.int64)]
    assign = Assign(leaves)
    assign.staged = [torch.tensor([0.1, 0.2, 0.3]), torch.tensor([4, 5])]
    assign.step()
    assert torch.equal(leaves[0], torch.tensor([0.1, 0.2, 0.3]))
    assert leaves[1].tolist() == [4, 5]
    assert assign.staged == []


def test_a_leaf_that_is_a_view_of_another_is_what_that_was_before():
    """A server step may put a row of one leaf, as it was, into the place of another, and exchange two leaves."""
    table, row, other = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(2), torch.tensor([5.0, 6.0])
    assign = Assign([table, row, other])
    assign.staged = [table.T, table[1], row]
    assign.step()
    assert [table.tolist(), row.tolist(), other.tolist()] == [[[1, 3], [2, 4]], [3, 4], [0, 0]]
