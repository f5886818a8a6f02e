"""What runs with secure sums say, and what is refused once the data are known."""

from types import SimpleNamespace

import pytest
import torch

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.callbacks import SecureRounds
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.training.module import facts_of
from lit_fed.wrappers.secure.wrapper import SecureSum


def said(capsys, settings, **metrics):
    """What a run says of rounds with these metrics."""
    module = SimpleNamespace(federation=SimpleNamespace(algorithm=settings.around(FedAvg())))
    callback = SecureRounds()
    for round_idx in range(2):
        named = {f"secure/{name}": value for name, value in metrics.items()}
        record = SimpleNamespace(round_idx=round_idx, client_ids=torch.arange(3), metrics=named)
        callback.on_round_end(SimpleNamespace(is_global_zero=True), module, record)
    return capsys.readouterr().err


def test_a_run_says_once_that_much_is_lost(capsys):
    settings = SecureSum(dropout_fraction=0.1, threshold=0.75)
    assert said(capsys, settings, clamped_share=0.009, void_share=0.0) == ""
    assert said(capsys, settings, clamped_share=0.0, void_share=1.0) == (
        "lit_fed: round 0 is void, since fewer than 0.75 of the clients that share keys are left; it changes nothing, "
        "and secure/void_share tells of further ones\n"
    )
    assert "round 0 is void" in said(capsys, settings)  # nobody is left to tell
    assert said(capsys, SecureSum()) == ""
    assert said(capsys, SecureSum(clip_range=0.5), clamped_share=0.25) == (
        "lit_fed: 25.0% of the numbers in round 0 lie beyond --model.secure_aggregation.clip_range 0.5 and are cut off "
        "there; give a wider range, or a lower --model.solver.lr\n"
    )


@pytest.mark.parametrize(
    ("sampling", "settings", "message"),
    [
        ("uniform", SecureSum(fraction_bits=20), "a sum of 4 messages with weights up to .* give at most 1"),
        ("poisson", SecureSum(fraction_bits=20), "a sum of 8 messages with weights up to"),
        ("size", SecureSum(fraction_bits=27), "a sum of 4 messages with weights up to 1 and"),
        (
            "uniform",
            SecureSum(modulus_bits=10),
            "modulus_bits is 10, and .* does not fit; give 1., or --model.weighting",
        ),
    ],
)
def test_overflow_is_refused_at_set_up(sampling, settings, message):
    """By the clients that a round may have, and by their weights."""
    data = FederatedDataModule(Digits(), num_clients=8, client_fraction=0.5, client_sampling=sampling)
    data.prepare_data()
    data.setup("fit")
    with pytest.raises(ConfigError, match=message):
        facts_of(FederatedModule(FedEM(), secure_aggregation=settings).settings, data, 1)
