import pytest
import torch

from lit_fed.training.server_step import Assign


def test_all_leaves_are_copied_exactly():
    leaves = [torch.zeros(3, requires_grad=True), torch.zeros(2, dtype=torch.int64)]
    assign = Assign(leaves)
    assign.staged = [torch.tensor([0.1, 0.2, 0.3]), torch.tensor([4, 5])]
    assign.step()
    assert torch.equal(leaves[0], torch.tensor([0.1, 0.2, 0.3]))
    assert leaves[1].tolist() == [4, 5]
    assert assign.staged == []


@pytest.mark.parametrize("new", [torch.zeros(2), torch.zeros(3, dtype=torch.float64)])
def test_a_leaf_of_another_shape_or_type_is_refused(new):
    assign = Assign([torch.zeros(3)])
    assign.staged = [new]
    with pytest.raises(ValueError, match="shapes and types of the shared state never change"):
        assign.step()
