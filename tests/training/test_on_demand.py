"""Fits on clients that are drawn when they are needed, and evaluations of some clients only."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from quiet import assert_same_state, quiet_trainer
from running import history, numbers

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.callbacks import FederatedCallback
from lit_fed.core.blocks import serving_blocks
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Population, ServingBlock
from lit_fed.data import Synthetic
from lit_fed.data.data_sets import synthetic as synthetic_module
from lit_fed.data.data_sets.base import ClientDataSet, make_split
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

DRAWN = Synthetic(num_clients=12, dimension=6, test_size=9, variant="corrected", on_demand=True)


@dataclass(frozen=True)
class Held(ClientDataSet):
    """The samples of a drawn data set in memory."""

    num_classes: ClassVar[int | None] = 2
    drawn: Synthetic = DRAWN

    def load(self):
        drawn, _ = self.drawn.load()
        splits = [one.select(torch.arange(one.num_clients)) for one in (drawn.train, drawn.val, drawn.test)]
        held = [make_split(one.x.numpy(), one.y.numpy(), one.sizes.numpy()) for one in splits]
        return Population(*held, drawn.names, drawn.groups), None


class PowerCutError(RuntimeError):
    pass


class PowerCut(FederatedCallback):
    """Fails in the middle of the third round."""

    def on_clients_end(self, trainer, module, num_clients):
        if module.num_rounds_done == 2:
            raise PowerCutError


def fit(
    out, dataset=DRAWN, *, algorithm=None, client_trainer="sequential", callbacks=(), ckpt_path=None, version=None,
    keep_rounds=0, **options,
):  # fmt: skip
    """Fit and test; returns the module and the run's folder."""
    options = {"unseen_fraction": 0.25, "clients_per_round": 5, "batch_size": 32} | options
    data = FederatedDataModule(dataset, **options)
    solver = LocalSolver(momentum=0.9, persist_optimizer=True)
    module = FederatedModule(algorithm or FedEM(), solver, client_trainer=client_trainer)
    trainer = quiet_trainer(4, out, version=version, keep_rounds=keep_rounds, callbacks=list(callbacks))
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    trainer.test(module, datamodule=data)
    return module, out / "run/version_0"


def assert_same(one, other):
    """Two runs left the same numbers."""
    (module, folder), (other_module, other_folder) = one, other
    assert_same_state(module, other_module)
    assert numbers(folder) == numbers(other_folder)
    assert history(folder) == history(other_folder)
    assert (folder / "clients.csv").read_text() == (other_folder / "clients.csv").read_text()


@pytest.mark.parametrize("client_trainer", ["sequential", "vectorized"])
@pytest.mark.parametrize("options", [{}, {"val_fraction": 0.3, "eval_clients": 4}], ids=["all", "some"])
def test_drawn_clients_give_the_numbers_of_held_ones(tmp_path, client_trainer, options):
    runs = [
        fit(tmp_path / str(place), dataset, client_trainer=client_trainer, **options)
        for place, dataset in enumerate((DRAWN, Held()))
    ]
    assert_same(*runs)


def test_the_size_of_blocks_changes_nothing(tmp_path):
    assert_same(fit(tmp_path / "one"), fit(tmp_path / "many", clients_per_block=2))


def test_resume_equals_uninterrupted(tmp_path):
    with pytest.raises(PowerCutError):
        fit(tmp_path / "cut", callbacks=[PowerCut()], eval_clients=3)
    last = tmp_path / "cut/run/version_0/checkpoints/last.ckpt"
    resumed = fit(tmp_path / "cut", ckpt_path=str(last), version=0, keep_rounds=2, eval_clients=3)
    assert_same(fit(tmp_path / "whole", eval_clients=3), resumed)


def test_other_drawn_data_are_refused_on_resume(tmp_path):
    _, folder = fit(tmp_path / "run")
    with pytest.raises(ConfigError, match="fingerprint"):
        fit(tmp_path / "other", replace(DRAWN, noise=0.2), ckpt_path=str(folder / "checkpoints/last.ckpt"))


@dataclass(frozen=True)
class Greedy(FedAvg):
    """Looks at all samples before the first round."""

    state_reads_data = True

    def state_init(self, ctx, shared, data):
        return {"sum": data.x.sum(), "samples": data.num_samples}

    def client_final(self, ctx, shared, work, data):
        result = super().client_final(ctx, shared, work, data)
        return result._replace(state={"sum": data.x.sum(), "samples": data.num_samples})


def test_the_first_states_draw_what_the_algorithm_reads(monkeypatch):
    drawn = []
    draw = synthetic_module._draw_client

    def watched(config, parameters, split, sizes, client_id):
        drawn.append((split, client_id))
        return draw(config, parameters, split, sizes, client_id)

    monkeypatch.setattr(synthetic_module, "_draw_client", watched)
    data = FederatedDataModule(DRAWN)
    data.setup()
    for algorithm, expected in ((FedEM(), []), (Greedy(), [("train", client) for client in range(12)])):
        drawn.clear()
        module = FederatedModule(algorithm)
        module.build(data.facts(weighting="samples", seed=0, num_rounds=1), *data.populations)
        assert sorted(set(drawn)) == expected
    held = data.seen.train.select(torch.arange(12))
    sums = torch.stack([held.client(client).x.sum() for client in range(12)])
    assert torch.equal(module.store.table["state"]["sum"], sums)
    assert module.store.table["state"]["samples"].tolist() == held.sizes.tolist()


# ---------------------------------------------------------------------- evaluation of some clients
@pytest.fixture(scope="module")
def everyone_and_some(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return {number: fit(out / str(number), eval_clients=number)[1] for number in (None, 2)}


def test_the_table_of_clients_speaks_of_those_measured(everyone_and_some):
    everyone, some = (pd.read_csv(folder / "clients.csv") for folder in everyone_and_some.values())
    assert everyone["population"].value_counts().to_dict() == {"seen": 9, "unseen": 3}
    assert some["population"].value_counts().to_dict() == {"seen": 2, "unseen": 2}
    assert not some.isna().any().any()
    assert (some["num_test"] == 9).all()
    pd.testing.assert_frame_equal(some, everyone.merge(some[["client", "population"]])[list(some)])


def test_the_summary_speaks_of_the_clients_measured(everyone_and_some):
    folder = everyone_and_some[2]
    summary, table = json.loads((folder / "summary.json").read_text()), pd.read_csv(folder / "clients.csv")
    for population, rows in table.groupby("population"):
        assert summary[f"test/{population}/accuracy_unweighted"] == pytest.approx(rows["accuracy"].mean())
        assert summary[f"test/{population}/accuracy_worst"] == pytest.approx(rows["accuracy"].min())


def test_the_sample_is_fixed_by_the_seed_of_the_data():
    def sample(number, **options):
        data = FederatedDataModule(replace(DRAWN, num_clients=50), eval_clients=number, **options)
        data.setup()
        return data.seen.measured

    assert sample(10).tolist() == sorted(set(sample(10).tolist()))
    assert len(sample(10)) == 10
    assert torch.equal(sample(10), sample(10, clients_per_block=3))
    assert not torch.equal(sample(10), sample(10, seed=1))
    assert sample(50) is None


def test_every_rank_measures_its_own_clients():
    data = FederatedDataModule(DRAWN, eval_clients=5, clients_per_block=2)
    data.setup()
    blocks = [
        serving_blocks(data.seen.test, data.seen.train, data.seen.measured, clients_per_block=2, rank=rank, num_ranks=2)
        for rank in (0, 1)
    ]
    assert len(blocks[0]) == len(blocks[1]) == 2
    ids = torch.cat([block.client_ids for one in blocks for block in one])
    assert ids.sort().values.tolist() == data.seen.measured.tolist()
    rows = torch.cat([block.rows for one in blocks for block in one])
    assert torch.equal(data.seen.measured[rows], ids)


@pytest.mark.parametrize("population", ["seen", "unseen"])
def test_a_rank_may_have_nobody_to_measure(population):
    data = FederatedDataModule(DRAWN, unseen_fraction=0.25)
    data.setup()
    module = FederatedModule()
    module.build(data.facts(weighting="samples", seed=0, num_rounds=1), *data.populations)
    chosen, nobody = getattr(data, population), torch.empty(0, dtype=torch.int64)
    module.measure(ServingBlock(nobody, nobody, chosen.test, chosen.train), population)
    assert float(module.tables[population].compute().sum()) == 0


@pytest.mark.parametrize("number", [0, -3])
def test_a_sample_of_nobody_is_refused(number):
    with pytest.raises(ConfigError, match=f"--data.eval_clients is {number}; give a whole number >= 1"):
        FederatedDataModule(DRAWN, eval_clients=number)


def test_200_000_clients_start_at_once_and_fit_into_a_small_checkpoint(monkeypatch):
    """FedEM asks nothing of a client before its first round, so that one is asked for all."""
    asked, start = [], FedEM.state_init
    monkeypatch.setattr(FedEM, "state_init", lambda self, *given: asked.append(given) or start(self, *given))
    data = FederatedDataModule(
        Synthetic(num_clients=200_000, dimension=5, test_size=3, variant="corrected", on_demand=True),
        clients_per_round=3, eval_clients=7,
    )  # fmt: skip
    data.setup()
    module = FederatedModule()
    module.build(data.facts(weighting="samples", seed=0, num_rounds=1), *data.populations)
    assert module.mixture_weights.shape == (200_000, 3)
    assert module.tables["seen"].rows.shape == (7, 6)
    assert module.facts.total_samples == int(data.seen.train.sizes.sum()) > 20_000_000
    np.testing.assert_allclose(module.mixture_weights[[0, 1024, 199_999]], 1 / 3)
    assert len(asked) < 5
    cohort = torch.tensor([3, 199_999])
    module.store.stage(cohort, module.store.gather(cohort))
    module.store.commit()
    kept = [*module.state_dict().values(), module.facts.plain()["groups"]]
    assert sum(leaf.nbytes for leaf in kept) < 250_000
    assert torch.equal(type(module.facts).from_plain(module.facts.plain()).groups, data.seen.groups)
    assert (data.seen.names[199_999], len(data.seen.names)) == ("199999", 200_000)
