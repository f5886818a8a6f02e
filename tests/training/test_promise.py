"""A combination that the class of an algorithm does not promise is said in one line when a fit starts."""

from dataclasses import dataclass

import numpy as np
import pytest
from quiet import quiet_trainer

from lit_fed import FederatedDataModule, FederatedModule
from lit_fed.algorithms import FedAvg
from lit_fed.wrappers.compression.codecs import TopK


@pytest.mark.parametrize(
    ("algorithm", "options", "said"),
    [
        (
            "FedYogi",
            {"compression": TopK(), "compression_scope": "whole"},
            ["lit_fed: FedYogi is not tested with wrappers; the paper index names"],
        ),
        ("FedYogi", {}, []),
        ("FedAdam", {"compression": TopK(), "compression_scope": "whole"}, []),
    ],
)
def test_it_is_said_of_what_is_not_promised(algorithm, options, said, capsys):
    rng = np.random.default_rng(0)
    clients = {name: (rng.normal(size=(6, 4)), np.arange(6) % 3) for name in "ab"}
    module = FederatedModule(algorithm, **options)
    quiet_trainer(1).fit(module, datamodule=FederatedDataModule.from_clients(clients, test_fraction=0))
    lines = [line for line in capsys.readouterr().err.splitlines() if "not tested" in line]
    assert [line[: len(part)] for line, part in zip(lines, said, strict=True)] == said


@dataclass(frozen=True)
class Damped(FedAvg):
    """An algorithm with a method of its own, with one of FedAvg's, and with a misspelt one."""

    def damping(self):
        return 0.5

    def client_final(self, ctx, shared, work, data):
        return super().client_final(ctx, shared, work, data)

    def sever_step(self, ctx, shared, reduced, client_ids):
        raise AssertionError


def test_a_method_that_is_named_almost_as_one_that_is_called_is_said(capsys):
    clients = {name: (np.random.default_rng(ord(name)).normal(size=(6, 4)), np.arange(6) % 3) for name in "ab"}
    data = FederatedDataModule.from_clients(clients, test_fraction=0)
    quiet_trainer(1).fit(FederatedModule(Damped()), datamodule=data)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if "nothing of lit_fed calls" in line]
    assert said == "lit_fed: nothing of lit_fed calls Damped.sever_step; is it server_step?"
