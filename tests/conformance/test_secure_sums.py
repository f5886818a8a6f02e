"""Every algorithm inside secure sums: those whose server needs a sum get the plain numbers, all others are refused."""

import pytest
from combination import refuse
from federated_round import distance, make_clients
from test_algorithms import SIZES, SMALL, after_rounds, all_algorithms, small_mlp

from lit_fed.errors import ConfigError
from lit_fed.wrappers.secure.wrapper import SecureSum

pytestmark = pytest.mark.every_combination

ALL = [cls(**SMALL.get(cls.__name__, {})) for cls in all_algorithms()]
SUMS = [one for one in ALL if one.message.kind in ("models", "changes") and "secure_sums" not in one.incompatible]

FINE = SecureSum(modulus_bits=64, fraction_bits=40)


def named(algorithms):
    return pytest.mark.parametrize("algorithm", algorithms, ids=lambda one: type(one).__name__)


def shown(federation):
    return [federation.shared, federation.states, federation.predictions()]


@named(SUMS)
def test_fine_steps_give_the_plain_numbers(algorithm):
    options = {"cohorts": [[0, 2, 3], [2, 0]], "rounds": 2, "network": small_mlp}
    plain, fine = (after_rounds(one, make_clients(SIZES), **options) for one in (algorithm, FINE.around(algorithm)))
    assert distance(shown(plain), shown(fine)) < 5e-12
    assert fine.metrics["secure/clamped_share"] == 0


@named([one for one in ALL if one not in SUMS])
def test_algorithms_that_need_more_than_a_sum_are_refused(algorithm):
    name = type(algorithm).__name__
    with pytest.raises(
        ConfigError, match=f"--model.secure_aggregation shows the server a sum .*, and {name} .*; choose"
    ):
        refuse(algorithm, secure_aggregation=SecureSum())
