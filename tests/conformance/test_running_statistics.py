"""Running statistics at the server: of every algorithm that averages models, the clients' mean."""

import pytest
import torch
from federated_round import MULTICLASS, NormalisedLinear, make_clients
from test_algorithms import SMALL, after_rounds, all_algorithms, exempt

from lit_fed.core import tree
from lit_fed.core.graphs.peers import Peers
from lit_fed.core.local_solver import LocalSolver

pytestmark = pytest.mark.every_combination

ANOTHER_MEAN = {
    "FedBuff": "it averages those who have come in",
    "L2SGDPlus": "it refuses networks with running statistics",
    "LGFedAvg": "normalisation of the inputs stays with the clients",
    "Oracle": "it averages each group",
}

SUMS = {
    cls.__name__: cls for cls in all_algorithms()
    if cls().message.kind in ("models", "changes") and cls().has_server and cls().num_models == 1
    and "mlp" not in exempt(cls) and cls.__name__ not in ANOTHER_MEAN
}  # fmt: skip


@pytest.mark.parametrize("name", SUMS)
def test_the_server_has_the_mean_of_the_clients(name):
    """Three clients of one size, whose inputs are normalised first: c·mean_i x̄_i, with c = 1 − 0.9^s after s passes."""
    train = make_clients([5, 5, 5], target=MULTICLASS)
    options = {"target": MULTICLASS, "network": NormalisedLinear, "batch_size": 0, "solver": LocalSolver(local_steps=1)}
    federation = after_rounds(SUMS[name](**SMALL.get(name, {})), train, 2, **options)
    if isinstance(federation.shared, Peers) or any(isinstance(one, Peers) for one in federation.shared):
        pytest.skip("the server has a row for each client")
    found = tree.models(federation.shared)[0].buffers["norm.running_mean"][0]
    expected = torch.stack([train.client(one).x.mean(0) for one in range(3)]).mean(0)
    passes = (found / expected).double()
    assert passes.min() > 0.05
    assert passes.max() <= 1
    torch.testing.assert_close(passes, passes[:1].expand_as(passes), rtol=1e-9, atol=0)
