import pytest
import torch
from federated_round import BINARY, REGRESSION, make_clients, make_task

from lit_fed.core import tree
from lit_fed.core.mixtures.known_surrogates import (
    IdentitySurrogate,
    MixtureSurrogate,
    MoreauSurrogate,
)
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError
from lit_fed.models import Linear

SHIPPED = [MixtureSurrogate(), MixtureSurrogate(1), MixtureSurrogate(5), MoreauSurrogate(2.0), IdentitySurrogate()]
shipped = pytest.mark.parametrize("surrogate", SHIPPED, ids=str)


def client(target=BINARY, size=12):
    return make_clients([size], target=target).client(0)


# ---------------------------------------------------------------------- the shipped ones
@shipped
@pytest.mark.parametrize("rows_per_pass", [1, 5, 1024])
def test_losses_of_a_client_do_not_depend_on_their_passes(surrogate, rows_per_pass):
    task, data = make_task(), client()
    models = task.init(surrogate.num_models, 0)
    found, expected = (
        surrogate.sample_losses(task, models, data, rows_per_pass),
        surrogate.losses(task, models, data.batch),
    )
    if expected is None:
        assert found is None
    else:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
        assert surrogate.sample_losses(task, models, client(size=0)).shape == (0, surrogate.num_models)


@shipped
def test_without_samples_the_value_is_that_of_nothing(surrogate):
    task, empty = make_task(), client(size=5)._replace(mask=torch.zeros(5))
    models = task.init(surrogate.num_models, 0)
    local = surrogate.local_init(task, models, empty)
    bound = surrogate.build(task, models, local, empty, surrogate.losses(task, models, empty.batch))
    assert float(bound.value) == 0
    kept = surrogate.argmin_local(bound)
    assert tree.leaves(kept) == [] or torch.equal(tree.leaves(kept)[0], tree.leaves(local)[0])


def test_the_envelope_of_a_quadratic_by_hand():
    # f(w) = min ½(θ − 3)² + ½·2(θ − w)²: the proximal point of w = 0 is 1, the envelope ½·4 + ½·2 = 3
    task = make_task(REGRESSION, num_features=1, network=Bias)
    data = Split(torch.ones(1, 1).double(), torch.tensor([3.0]).double(), torch.tensor([0, 1])).client(0)
    models = task.init(1, 0)
    bound = MoreauSurrogate(2.0).build(task, models, (), data, None)
    assert float(bound.point.parameters["weight"]) == pytest.approx(1, abs=1e-12)
    assert float(bound.value) == pytest.approx(3, abs=1e-12)
    gradient, _ = MoreauSurrogate(2.0).gradient(task, bound, (), models, data.batch)
    assert float(gradient["weight"]) == pytest.approx(-2, abs=1e-12)


class Bias(Linear):
    """A weight alone, from 0."""

    def __init__(self, input_shape, num_outputs):
        torch.nn.Module.__init__(self)
        self.weight = torch.nn.Parameter(torch.zeros(num_outputs))

    stacked_outputs = None

    def forward(self, x):
        return x * self.weight


@pytest.mark.parametrize(
    ("make", "field"),
    [(MixtureSurrogate, "num_components"), (MoreauSurrogate, "prox_weight")],
    ids=["mixture", "moreau"],
)
def test_values_out_of_range_are_named(make, field):
    with pytest.raises(ConfigError, match=rf"--model\.algorithm\.surrogate\.{field} is 0"):
        make(0)
