"""`--model.solver.lr auto`: the search ahead of the first round, and where its rate is kept."""

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from combination import refuse
from own_modules import LitClassifier
from quiet import assert_same_state, quiet_trainer
from running import folder, run

from lit_fed import MLP, Digits, FederatedModule, Linear, Regression, Task, rounds, serving
from lit_fed.algorithms import ConsensusADMM, FedAvg, Local
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Split
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.training import learning_rate
from lit_fed.training.history import refuse_other_run
from lit_fed.training.learning_rate import ADAM_RATES, SGD_RATES, Trial, best_rate
from lit_fed.wrappers.privacy.client_level import ClientPrivacy

ROUNDS = 16


def samples(scale=1.0):
    """Three clients with noisy lines; the inputs of the last one are multiplied by a scale."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=(40, 3)).astype("float32") for name in ("ann", "bob", "eve")}
    labels = {name: (x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=40)).astype("float32") for name, x in inputs.items()}
    inputs["eve"] *= scale
    return {name: (inputs[name], labels[name]) for name in inputs}


def module_and_data(lr="auto", algorithm=None, **settings):
    data = FederatedDataModule.from_clients(samples(), batch_size=8, **{"val_fraction": 0.2} | settings)
    return FederatedModule(algorithm or FedAvg(), LocalSolver(lr=lr)), data


def fit(out=None, num_rounds=ROUNDS, ckpt_path=None, version=None, **settings):
    module, data = module_and_data(**settings)
    quiet_trainer(num_rounds, out, version=version).fit(module, datamodule=data, ckpt_path=ckpt_path)
    return module, data


@pytest.mark.parametrize(("kind", "rates"), [(torch.optim.SGD, SGD_RATES), (torch.optim.NAdam, ADAM_RATES)])
def test_rates_fit_the_optimizer_of_a_module(kind, rates, capsys):
    """One of them is the rate of networks without an optimizer, and it is not taken for none."""

    class Mine(LitClassifier):
        def configure_optimizers(self):
            return kind(self.parameters(), 1e-9)

    data = FederatedDataModule(Digits(), num_clients=2, val_fraction=0.3)
    module = FederatedModule(FedAvg(), LocalSolver(lr="auto"), network=lambda: Mine(norm="group"))
    quiet_trainer(2).fit(module, data)
    assert {one.lr for one in module.trials} == {*rates}
    assert len({one.loss for one in module.trials if one.rounds == module.trials[0].rounds}) == len(rates)
    assert module.federation.terms.solver.rate == module.settings.solver.lr in rates
    assert capsys.readouterr().err.count("trains by its own training_step") == 1


@pytest.fixture
def three_rates(monkeypatch):
    monkeypatch.setattr(learning_rate, "SGD_RATES", (0.001, 0.1, 1e12))


def test_a_rate_that_is_too_small_and_one_that_diverges_lose(three_rates, tmp_path, capsys):
    """The run is that of the rate which was found, bit for bit."""
    module, _ = fit(tmp_path)
    table = pd.read_csv(folder(tmp_path, "run") / "learning_rates.csv")
    said = capsys.readouterr().err
    assert "lit_fed: --model.solver.lr is auto, here 0.1\n" in said
    first = f"0.001: {table.loss[0]:.3g}, 0.1: {table.loss[1]:.3g}, 1e+12: {table.loss[2]:.3g}\n"
    assert f"lit_fed: search of --model.solver.lr; rates and validation losses after round 1: {first}" in said
    assert list(zip(table.rounds, table.lr, strict=True)) == [
        (1, 0.001), (1, 0.1), (1, 1e12), (2, 0.1), (2, 0.001), (8, 0.1), (8, 0.001)
    ]  # fmt: skip
    assert table.loss[1] < table.loss[0] < table.loss[2]
    assert_same_state(module, fit(lr=0.1)[0])


def test_a_trial_is_the_beginning_of_the_run(three_rates):
    """Its loss is that of a run of so many rounds with its rate, and a second search finds the same."""
    module, _ = fit()
    assert module.trials == fit()[0].trials
    for trial in (module.trials[1], module.trials[-1]):
        started, data = module_and_data(lr=trial.lr)
        trainer = quiet_trainer(trial.rounds)
        trainer.fit(started, datamodule=data)
        seen = data.populations[0]
        scores = serving.evaluate(started.federation, seen.val.every_other(0), seen.train)
        assert float(f"{float(scores.loss.sum() / scores.samples.sum()):.5g}") == trial.loss


def test_half_of_the_rates_are_left_after_each_stage():
    module, _ = fit()
    assert [trial.rounds for trial in module.trials] == [1] * 6 + [2] * 3 + [8] * 2
    assert [trial.lr for trial in module.trials[:6]] == list(SGD_RATES)
    first, second, third = ({trial.lr for trial in module.trials if trial.rounds == one} for one in (1, 2, 8))
    assert first > second > third
    module, data = module_and_data()
    module.settings = replace(module.settings, solver=LocalSolver("adam", "auto"))
    quiet_trainer(1).fit(module, datamodule=data)
    assert module.settings.solver.lr in ADAM_RATES


def test_a_list_of_rates_is_searched(tmp_path):
    """Two are left to the last stage, and a resumed run takes what was found."""
    rates = (0.001, 0.1, 1.0, 0.01)
    module, _ = fit(tmp_path, 8, lr=rates)
    assert [one.lr for one in module.trials[:4]] == list(rates)
    assert [one.rounds for one in module.trials] == [1] * 4 + [4] * 2  # the first two stages are one
    assert_same_state(module, fit(num_rounds=8, lr=module.settings.solver.lr)[0])
    resumed, _ = fit(tmp_path, 9, folder(tmp_path, "run") / "checkpoints/last.ckpt", 0, lr=rates)
    assert resumed.settings.solver.lr == module.settings.solver.lr


def test_stages_of_a_short_run_are_not_compared_twice():
    assert [trial.rounds for trial in fit(num_rounds=1)[0].trials] == [1] * 6
    assert [trial.rounds for trial in fit(num_rounds=4)[0].trials] == [1] * 6 + [2] * 3


def test_equal_rates_and_rates_that_diverged_late():
    assert best_rate([Trial(0.1, 4, 1.0), Trial(0.2, 4, 1.0), Trial(0.3, 4, 2.0)], "FedAvg") == 0.1
    first = [Trial(0.1, 2, 3.0), Trial(0.2, 2, 2.0), Trial(0.3, 2, 1.0)]
    for late in (math.inf, 1e9):
        assert best_rate([*first, Trial(0.3, 4, late)], "FedAvg") == 0.2


def test_a_resumed_run_and_other_commands_take_the_rate_of_the_checkpoint(three_rates, tmp_path, monkeypatch):
    whole, data = fit(num_rounds=4)
    fit(tmp_path, 2)
    monkeypatch.setattr(learning_rate, "SGD_RATES", (3.0,))  # a second search would find another one
    last = folder(tmp_path, "run") / "checkpoints/last.ckpt"
    table = (folder(tmp_path, "run") / "learning_rates.csv").read_text()
    stored = torch.load(last, weights_only=True)["lit_fed"]["identity"]["solver"]["lr"]
    resumed, _ = fit(tmp_path, 4, last, 0)
    assert (folder(tmp_path, "run") / "learning_rates.csv").read_text() == table
    assert_same_state(resumed, whole)
    assert resumed.settings.solver.lr == resumed.federation.terms.solver.lr == stored == 0.1
    fresh, data = module_and_data()
    (found,) = quiet_trainer().test(fresh, datamodule=data, ckpt_path=last)
    (wanted,) = quiet_trainer().test(resumed, datamodule=data)
    assert found == wanted
    assert fresh.settings.solver.lr == 0.1


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("auto", 0.1, None), (0.1, "auto", None), ("auto", "auto", None), ([0.1, 1.0], "auto", None),
        ("auto", 0.2, "model.solver.lr is 0.2, in the checkpoint auto, which was 0.1."),
    ],
)  # fmt: skip
def test_a_searched_rate_is_compared_by_what_it_was(before, now, said):
    stored = {
        "arguments": {"model": {"solver": {"lr": before}}}, "schedule_rounds": 1,
        "identity": {"algorithm": {}, "solver": {"lr": 0.1}},
    }  # fmt: skip
    arguments = {"model": {"solver": {"lr": now}}}
    if said is None:
        assert refuse_other_run(stored, arguments, {}, FedAvg(), goes_on=True) == []
    else:
        with pytest.raises(ConfigError, match=re.escape(said)):
            refuse_other_run(stored, arguments, {}, FedAvg(), goes_on=True)


def test_two_ranks_agree_where_one_of_them_diverges(tmp_path):
    """The client whose inputs are large is on one rank alone."""
    rows = [pd.DataFrame(x, columns=["a", "b", "c"]).assign(client=name, y=y) for name, (x, y) in samples(1000).items()]
    pd.concat(rows).to_csv(tmp_path / "lines.csv", index=False)
    for ranks in (1, 2):
        found = run(
            [
                "fit", "--data.dataset", "Table", "--data.dataset.path", str(tmp_path / "lines.csv"),
                "--data.dataset.client_column", "client", "--data.dataset.label_column", "y",
                "--data.dataset.task", "regression", "--data.val_fraction", "0.2", "--model.algorithm", "FedAvg",
                "--model.solver.lr", "auto", "--model.solver.local_epochs", "40",
                "--data.batch_size", "4", "--trainer.max_epochs", "8", "--trainer.accelerator", "cpu",
                "--trainer.enable_progress_bar", "false", "--trainer.default_root_dir", str(tmp_path / str(ranks)),
                *(["--trainer.devices", "2", "--trainer.strategy", "fed_ddp"] if ranks == 2 else []),
            ],
            ranks=ranks,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
    tables = [pd.read_csv(folder(tmp_path / str(ranks), "FedAvg") / "learning_rates.csv") for ranks in (1, 2)]
    assert tables[0].equals(tables[1])
    assert np.isinf(tables[0].loss).any()


# ---------------------------------------------------------------------- refusals
def test_words_other_than_auto_are_refused():
    with pytest.raises(ConfigError, match=r"--model.solver.lr is best; give a number >= 0, auto, or a list"):
        LocalSolver(lr="best")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"val_fraction": 0.0}, r"judged by validation samples, and clients have none; give --data.val_fraction 0.1"),
        (
            {"algorithm": ConsensusADMM(local_solve="exact")},
            r"the rate changes nothing under ConsensusADMM; leave it out",
        ),
    ],
)
def test_a_search_without_a_meaning_is_refused(settings, said):
    with pytest.raises(ConfigError, match=said):
        fit(num_rounds=1, **settings)


def test_a_search_in_which_all_trials_diverge_is_refused(monkeypatch):
    monkeypatch.setattr(learning_rate, "SGD_RATES", (1e12, 1e13))
    with pytest.raises(ConfigError, match=r"all trials of FedAvg diverged, from 1000000000000.0 on; see to the inputs"):
        fit(num_rounds=3)


def test_client_states_in_files_are_refused():
    _, data = module_and_data()
    module = FederatedModule(Local(), LocalSolver(lr="auto"), partial(MLP, hidden_sizes=[1000]), client_memory_gb=1e-8)
    with pytest.raises(
        ConfigError, match=r"client states of 6 trials exceed --model.client_memory_gb 1e-08; give more"
    ):
        quiet_trainer().fit(module, datamodule=data)


def test_private_runs_are_refused():
    privacy = ClientPrivacy(clip_norm=1.0, noise_multiplier=1.0, delta=1e-5)
    with pytest.raises(ConfigError, match=r"on the clients' samples, and the ε of --model.privacy does not cover it"):
        FederatedModule(FedAvg(), LocalSolver(lr="auto"), privacy=privacy)


def test_clients_on_nodes_are_refused():
    with pytest.raises(ConfigError, match=r"on the clients' samples, and those of a federation are on their nodes"):
        refuse(FedAvg(), solver=LocalSolver(lr="auto"), deployed=True)


def test_what_is_no_fit_needs_a_number():
    module, data = module_and_data()
    with pytest.raises(ConfigError, match=r"nothing has decided it; give the --ckpt_path of a run, or a number"):
        quiet_trainer().test(module, datamodule=data)
    module.train()  # Lightning leaves it in evaluation mode
    quiet_trainer(2).fit(module, datamodule=data)  # which the refused test does not change
    assert_same_state(module, fit(num_rounds=2)[0])
    train = Split.of([(torch.zeros(4, 2), torch.zeros(4))])
    with pytest.raises(ConfigError, match=r"which only a fit searches"):
        rounds.start(FedAvg(), Task.create(lambda: Linear((2,), 1), Regression()), train, solver=LocalSolver(lr="auto"))
