"""What a tensor in a file has to be."""

import pytest
import torch

from lit_fed.system.checked_archive import is_dense, load_checked


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(1).expand(2**40), torch.zeros(2, device="meta"), torch.zeros(2, dtype=torch.float8_e4m3fn),
        torch.zeros(2, dtype=torch.uint16), torch.zeros(3).as_strided((2, 2), (1, 1)),
    ],
)  # fmt: skip
def test_a_tensor_without_values_of_its_own_is_not_dense(tensor, tmp_path):
    """As it is read from a file of less than 2 kB."""
    torch.save(tensor, tmp_path / "x.pt")
    assert not is_dense(load_checked(tmp_path / "x.pt"))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3), torch.zeros(2, 3).T, torch.zeros(5)[2:4], torch.tensor(True),
        torch.nn.Parameter(torch.ones(2)),
        torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.complex64),
    ],
)  # fmt: skip
def test_any_other_tensor_is(tensor, tmp_path):
    torch.save(tensor, tmp_path / "x.pt")
    assert is_dense(load_checked(tmp_path / "x.pt"))
