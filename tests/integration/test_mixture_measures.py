"""What the tables measure on mixtures, by hand; that a refused run leaves the others alone."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from reproduction import runs
from reproduction.measures import first_samples, mixture_entropy, recovery

from lit_fed.core.types import Split
from lit_fed.data.data_sets.synthetic import Synthetic, synthetic_parameters
from lit_fed.errors import ConfigError


def split(*sizes, first_id=7):
    offsets = torch.tensor([0, *np.cumsum(sizes).tolist()])
    n = int(offsets[-1])
    return Split(torch.arange(n)[:, None].float(), torch.arange(n), offsets, first_id)


def labels(some, position):
    return some.y[some.offsets[position] : some.offsets[position + 1]].tolist()


def test_shares_are_rounded_up_and_hold_each_other():
    whole = split(10, 3, 25)
    shares = [first_samples(whole, share, seed=1) for share in (0.0, 0.02, 0.5, 1.0)]
    assert [one.sizes.tolist() for one in shares] == [[0, 0, 0], [1, 1, 1], [5, 2, 13], [10, 3, 25]]
    for position in range(3):
        none, least, half, every = (labels(one, position) for one in shares)
        assert none == []
        assert half[:1] == least
        assert every[: len(half)] == half
        assert sorted(every) == labels(whole, position)
    assert labels(shares[3], 2) != labels(whole, 2)  # shuffled
    assert torch.equal(shares[2].x[:, 0].long(), shares[2].y)
    assert shares[2].first_id == 7
    assert torch.equal(first_samples(whole, 0.5, seed=1).y, shares[2].y)
    assert not torch.equal(first_samples(whole, 0.5, seed=2).y, shares[2].y)


def test_entropy_is_that_of_each_client_and_then_the_mean(tmp_path):
    rows = ["client_id,population,pi_0,pi_1", "a,seen,0.5,0.5", "b,seen,1.0,0.0", "c,unseen,0.25,0.75"]
    (tmp_path / "clients.csv").write_text("\n".join(rows))
    wanted = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert mixture_entropy(None, tmp_path) == pytest.approx({"seen": math.log(2) / 2, "unseen": wanted})


def run_with(components, mixtures, dataset):
    models = SimpleNamespace(parameters={"linear.weight": torch.as_tensor(components)[:, None]})
    model = SimpleNamespace(shared=SimpleNamespace(models=models), mixture_weights=torch.as_tensor(mixtures))
    return SimpleNamespace(model=model, datamodule=SimpleNamespace(dataset=dataset))


def test_recovery_knows_no_order_and_no_length(tmp_path):
    dataset = Synthetic(num_clients=12, dimension=40, test_size=1, one_hot_mixtures=True)
    truth = synthetic_parameters(dataset)
    order = [2, 0, 1]
    perfect = run_with(3 * truth.components[order], truth.mixtures[:, order], dataset)
    assert recovery(perfect, tmp_path) == {"cosines": [1.0, 1.0, 1.0], "mixture_l1": 0.0, "clusters": 1.0}
    wrong = truth.mixtures[:, order].copy()
    wrong[0] = np.roll(wrong[0], 1)  # one client of twelve: a weight of 1 in another place
    found = recovery(run_with(truth.components[order], wrong, dataset), tmp_path)
    assert found["mixture_l1"] == pytest.approx(2 / 12)
    assert found["clusters"] == pytest.approx(11 / 12)
    noise = np.random.default_rng(0).normal(size=truth.components.shape)
    assert max(recovery(run_with(noise, truth.mixtures, dataset), tmp_path)["cosines"]) < 0.6


def test_a_refused_run_leaves_the_others_alone(tmp_path, monkeypatch, capsys):
    def make(run, extra, unfinished):
        if run.name.startswith("absent"):
            raise ConfigError("no such folder")
        return {"config": run.config, "arguments": list(run.arguments), "summary": {}, "curve": {}}

    monkeypatch.setattr(runs, "make", make)
    wanted, done = [runs.Run("absent/a-1", "quickstart"), runs.Run("there/b-1", "quickstart")], []
    kept = runs.Kept(tmp_path)
    runs.make_missing(wanted, kept, lambda run: (), 1, done.append)
    assert done == wanted[1:]
    assert [kept.find(run) is None for run in wanted] == [True, False]
    assert capsys.readouterr().err == "absent/a-1 is not run: no such folder\n"
