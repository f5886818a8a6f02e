"""The module's description, and the optimizer that writes the server's state."""

from functools import partial

import torch
from quiet import quiet_trainer

from lit_fed import MLP, FedAvg, FedEM, FederatedDataModule, FederatedModule, LocalSolver
from lit_fed.training.module_server import Assign


def test_settings_before_there_are_data():
    module = FederatedModule(FedEM(num_components=2), LocalSolver(lr=0.5), partial(MLP, hidden_sizes=(4,)))
    lines = repr(module).splitlines()
    assert lines[0] == "FederatedModule("
    assert lines[1].startswith("  algorithm: FedEM(num_components=2, em_steps=1")
    assert lines[-4:-1] == [
        "  solver:    LocalSolver(lr=0.5)",
        "  network:   MLP(hidden_sizes=(4,))",
        "  clients:   not known yet: the trainer builds the states from the data",
    ]


def test_parameters_and_clients_once_it_is_built():
    module, data = FederatedModule(FedAvg(), network=FrozenMLP), FederatedDataModule(num_clients=5)
    quiet_trainer().fit(module, data)
    lines = repr(module).splitlines()
    assert lines[1:3] == ["  algorithm: FedAvg()", "  solver:    LocalSolver(lr=0.1)"]
    assert lines[3] == "  network:   FrozenMLP, 90 parameters trained, 520 frozen"
    total, most = int(data.seen.train.sizes.sum()), int(data.seen.train.sizes.max())
    assert lines[4].startswith(f"  clients:   5 in training with {total:,} samples, of a client ")
    assert f"and {most:,} at most" in " ".join(lines[4:])


class FrozenMLP(MLP):
    """Eight hidden units that rest."""

    def __init__(self, input_shape, num_outputs):
        super().__init__(input_shape, num_outputs, hidden_sizes=(8,))
        first = next(one for one in self.modules() if isinstance(one, torch.nn.Linear))
        first.requires_grad_(False)


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
