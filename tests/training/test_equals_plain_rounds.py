"""The trainer's rounds are the plain rounds of `federated_round`, bit for bit: for every algorithm, on a CPU.

The two share the algorithms and the client trainer; cohorts, blocks, multiplicities, phases, staging, the schedule and
the server's step are written twice. A cohort is a part of the clients, drawn uniformly or, where that is allowed, by
size, so that some clients are drawn twice.
"""

import pytest
import torch
from combination import refuse
from federated_round import BINARY, make_clients, make_parties, run_rounds, same_bits
from fit_all import NAMES, OPTIONS, StackedAverage, solver_of
from lightning.pytorch import seed_everything
from quiet import quiet_trainer

from lit_fed import FederatedModule, algorithms
from lit_fed.core.blocks import draw_cohort
from lit_fed.core.types import Population
from lit_fed.data import Digits, FeatureBlocks
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

SIZES = [9, 2, 14, 5, 1, 7]
GROUPS = torch.tensor([0, 1, 0, 1, 1, 0])
SEED, ROUNDS = 3, 3


class Clients(FederatedDataModule):
    """Six small clients in the place of a data set."""

    def __init__(self, *, parties, **options):
        super().__init__(FeatureBlocks() if parties else Digits(), batch_size=4, clients_per_block=2, **options)
        self.parties = parties

    def setup(self, stage="fit"):
        train, test = (make_clients(SIZES, num_features=6, seed=seed, dtype=torch.float32) for seed in (0, 1))
        if self.parties:
            train, test = make_parties(train), make_parties(test)
        none = make_clients([0] * 6, num_features=6, dtype=torch.float32)
        self.seen = Population(train, none, test, [str(one) for one in range(6)], GROUPS)
        self.target, self.input_shape, self.fingerprint = BINARY, (6,), "six clients"
        self.label_shape = ()


def settings(algorithm):
    """How clients are drawn: by size where that is allowed, else uniformly, and all where all are needed."""
    if algorithm.participation.needs_all_clients:
        return {}
    try:
        refuse(algorithm, sampling="size")
    except ConfigError:
        return {"clients_per_round": 3}
    return {"client_sampling": "size", "clients_per_round": 5}


CASES = [*((name, None) for name in NAMES), *((name, {"clients_per_round": 3}) for name in ("FedAvg", "FedEM"))]
"""Weights are uniform where clients are drawn by size; those of the last cases are numbers of samples."""


@pytest.mark.every_combination
@pytest.mark.parametrize(("name", "sampling"), CASES, ids=str)
def test_the_trainer_s_rounds_are_the_plain_ones(tmp_path, name, sampling):
    algorithm = StackedAverage() if name == "StackedAverage" else getattr(algorithms, name)(**OPTIONS.get(name, {}))
    solver = solver_of(name, lr=0.1, schedule="cosine", local_epochs=2)
    seed_everything(SEED, verbose=False)
    sampling = settings(algorithm) if sampling is None else sampling
    data = Clients(parties=algorithm.participation.divided_by == "features", **sampling)
    module = FederatedModule(algorithm, solver, client_trainer="sequential")
    trainer = quiet_trainer(ROUNDS, default_root_dir=str(tmp_path), check_val_every_n_epoch=ROUNDS)
    trainer.fit(module, datamodule=data)

    drawn = [sampling.get("clients_per_round"), sampling.get("client_sampling", "uniform")]
    sizes = data.seen.train.sizes.numpy()
    cohorts = [
        draw_cohort(6, sizes, number=drawn[0], sampling=drawn[1], seed=SEED, round_idx=one) for one in range(ROUNDS)
    ]
    federation = run_rounds(
        algorithm, train=data.seen.train, rounds=ROUNDS, cohorts=cohorts, task=module.federation.terms.task,
        solver=solver, seed=SEED, clients_per_block=2, groups=GROUPS,
        weighting="uniform" if drawn[1] == "size" else None,
    )  # fmt: skip
    kept = module.store.gather(torch.arange(6))
    assert same_bits(module.shared, federation.shared)
    assert same_bits(kept["state"], federation.states)
    assert same_bits(kept.get("optimizer"), federation.optimizers)
    traffic = torch.tensor([[phase.bits_up, phase.bits_down] for phase in module.record.phases], dtype=torch.float64)
    assert traffic.sum(0).tolist() == federation.bits.tolist()
    number, loss, _ = federation.evaluate(data.seen.test).sum(0).tolist()
    assert module.results["test/seen/loss"] == pytest.approx(loss / number, rel=1e-12)
