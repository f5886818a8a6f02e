"""Whole fits in this process: Lightning's own callbacks, and resuming for every algorithm."""

import csv
import shutil
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from fit_all import NAMES, RUN, fit, resumed, whole
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, EarlyStopping, LearningRateMonitor, ModelCheckpoint
from quiet import assert_same_state, quiet_trainer
from running import folder, history, numbers

from lit_fed import (
    FederatedModule,
    FederatedTrainer,
    Multiclass,
    client_table,
    plot_mixtures,
    plot_partition,
    plot_rounds,
)
from lit_fed.algorithms import Algorithm, FedAvg, FedU
from lit_fed.callbacks import (
    FederatedCallback,
    RunReport,
    SimulatedTime,
    TrainingSplitEvaluation,
)
from lit_fed.core.algorithm import Participation
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.plan import num_steps
from lit_fed.core.types import LocalWork, Phase
from lit_fed.data import Digits, Synthetic
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError


class FailureError(RuntimeError):
    pass


class Failure(FederatedCallback):
    """Fails in the middle of round `round_idx`."""

    def __init__(self, round_idx):
        self.round_idx = round_idx

    def on_clients_end(self, trainer, module, num_clients):
        if module.num_rounds_done == self.round_idx:
            raise FailureError


def trainer(folder, rounds, *callbacks, **arguments):
    return quiet_trainer(rounds, folder, callbacks=list(callbacks), **arguments)


def digits(**arguments):
    return FederatedDataModule(Digits(), num_clients=6, **arguments)


@pytest.mark.every_combination
@pytest.mark.parametrize("name", NAMES)
def test_resume_equals_uninterrupted(tmp_path, shared_folder, name):
    uninterrupted, cut = whole(name, shared_folder), folder(tmp_path, name)
    shutil.copytree(uninterrupted.cut, cut)
    module, _ = resumed(name, tmp_path)
    assert numbers(uninterrupted.folder) == numbers(cut)
    assert history(uninterrupted.folder) == history(cut)
    assert_same_state(uninterrupted.state, module)


def test_resume_after_an_error_equals_uninterrupted(tmp_path, shared_folder):
    """An error inside a round leaves what a power cut leaves."""
    with pytest.raises(FailureError):
        fit("FedEM", tmp_path, callbacks=[TrainingSplitEvaluation(), Failure(2)], **RUN)
    resumed("FedEM", tmp_path)
    uninterrupted = whole("FedEM", shared_folder).folder
    assert numbers(uninterrupted) == numbers(folder(tmp_path, "FedEM"))
    assert history(uninterrupted) == history(folder(tmp_path, "FedEM"))


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
def test_a_checkpoint_at_the_end_of_a_round_has_all_that_the_round_produced(tmp_path):
    """Lightning's callbacks may write one as soon as the last block is done, before the round is evaluated."""
    saved = tmp_path / "saved"
    each = ModelCheckpoint(saved, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer(tmp_path, 2, each, SimulatedTime()).fit(FederatedModule(), datamodule=digits())
    first, second = (torch.load(saved / f"step={step}.ckpt", weights_only=True) for step in (1, 2))
    kept = (found["callbacks"] for found in (first, second))
    one, two = (each["CommunicationCost"]["totals"] | each["SimulatedTime"] for each in kept)
    assert {key: 2 * value for key, value in one.items()} == two
    assert all(value > 0 for value in one.values())
    assert first["lit_fed"]["results"]["train/seen/loss"] > second["lit_fed"]["results"]["train/seen/loss"] > 0


def test_a_trained_module_needs_data_to_be_measured(tmp_path):
    module = FederatedModule()
    trainer(tmp_path, 1).fit(module, datamodule=digits())
    with pytest.raises(ConfigError, match=r"FederatedModule has no data; pass datamodule=FederatedDataModule"):
        trainer(tmp_path, 1).test(module)


def test_a_checkpoint_written_inside_a_round_replays_it(tmp_path):
    class SaveInside(FederatedCallback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if pl_module.num_rounds_done == 2 and batch_idx == 0:
                trainer.save_checkpoint(tmp_path / "inside.ckpt")

    module, _ = fit("FedEM", tmp_path / "whole", rounds=4, callbacks=[SaveInside()])
    later, _ = fit("FedEM", tmp_path / "resumed", rounds=4, ckpt_path=str(tmp_path / "inside.ckpt"))
    assert_same_state(module, later)


def test_checkpoints_early_stopping_and_learning_rate_work_on_rounds(tmp_path):
    best = ModelCheckpoint(
        dirpath=tmp_path / "best", monitor="val/seen/accuracy", mode="max", save_top_k=2, filename="{step}",
        auto_insert_metric_name=False,
    )  # fmt: skip
    stop = EarlyStopping("val/seen/loss", patience=1, min_delta=10.0)
    run = trainer(tmp_path, 9, best, stop, LearningRateMonitor())
    solver = LocalSolver(lr=0.2, schedule="linear")
    run.fit(FederatedModule(solver=solver), datamodule=digits(clients_per_block=2, val_fraction=0.2))
    assert run.global_step == run.current_epoch == 2  # the first evaluation sets the mark, the second has no patience
    assert sorted(path.name for path in (tmp_path / "best").glob("*.ckpt")) == ["1.ckpt", "2.ckpt"]
    rows = (tmp_path / "run/version_0/metrics.csv").read_text().splitlines()
    place = rows[0].split(",").index("lr")
    assert [float(row.split(",")[place]) for row in rows[1:]] == pytest.approx([0.2, 0.1])


def test_rounds_are_counted_by_max_steps_too(tmp_path):
    run = trainer(tmp_path, 50, max_steps=3)
    module = FederatedModule()
    run.fit(module, datamodule=digits(clients_per_block=2))
    assert run.global_step == module.num_rounds_done == 3
    assert module.num_rounds == 3


def test_validation_sees_the_committed_model(tmp_path):
    class Compare(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch.ends_round:
                self.after_round = pl_module.models__parameters__linear_weight.clone()

        def on_validation_start(self, trainer, pl_module):
            assert torch.equal(self.after_round, pl_module.models__parameters__linear_weight)
            assert pl_module.num_rounds_done == trainer.current_epoch + 1
            self.seen = True

    compare = Compare()
    trainer(tmp_path, 2, compare).fit(FederatedModule(), datamodule=digits())
    assert compare.seen


def test_sampling_in_proportion_to_size_weighs_uniformly(tmp_path):
    module = FederatedModule()
    data = digits(client_sampling="size", clients_per_round=10)
    trainer(tmp_path, 2).fit(module, datamodule=data)
    assert module.facts.weighting == "uniform"
    assert torch.isfinite(module.mixture_weights).all()


def test_clients_that_were_not_sampled_keep_their_mixture(tmp_path):
    module = FederatedModule()
    data = FederatedDataModule(Synthetic(num_clients=20, test_size=10, dimension=5), clients_per_round=4)
    trainer(tmp_path, 2).fit(module, datamodule=data)
    weights = module.mixture_weights
    untouched = (weights == torch.full_like(weights, 1 / 3)).all(1)
    assert 12 <= int(untouched.sum()) <= 16
    np.testing.assert_allclose(weights.sum(1), 1, rtol=1e-6)
    assert dict(module.named_buffers())["store.mixture_weights"] is weights


@pytest.mark.usefixtures("rendered")
def test_a_notebook_gets_tables_and_figures(tmp_path):
    module, options = FederatedModule(), {"accelerator": "cpu", "max_epochs": 2, "enable_progress_bar": False}
    run = FederatedTrainer(default_root_dir=tmp_path, **options)
    run.fit(module, datamodule=digits(unseen_fraction=0.25))
    with pytest.raises(ConfigError, match=r"no client was measured yet"):
        client_table(FederatedTrainer(logger=False, enable_checkpointing=False, **options))
    with pytest.raises(AttributeError, match=r"trainer\.export is now a function: lit_fed\.export\(trainer, \.\.\.\)"):
        run.export  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'exports'"):
        run.exports  # noqa: B018
    table = client_table(run)
    weights = table.loc[table["population"] == "seen", ["pi_0", "pi_1", "pi_2"]]
    np.testing.assert_allclose(weights.to_numpy(), module.mixture_weights, rtol=1e-6)
    figure = plot_mixtures(run)
    (cells,) = figure.axes[0].images
    assert figure._repr_png_().startswith(b"\x89PNG")  # what IPython shows
    assert cells.get_array().shape == (3, len(weights))
    (axes,) = plot_rounds(run, "loss").axes
    assert [line.get_label() for line in axes.lines][:1] == ["seen, mean"]
    with pytest.raises(ConfigError, match=r"metric is 'hits'; .*metrics.csv has accuracy, .*loss"):
        plot_rounds(run, "hits")


@pytest.mark.usefixtures("rendered")
def test_a_notebook_gets_the_figure_of_data_ahead_of_a_fit():
    data = digits(unseen_fraction=0.25)
    figure = plot_partition(data)
    assert figure._repr_png_().startswith(b"\x89PNG")
    sizes, shares, _ = figure.axes
    highest = max(steps.get_data().values.max() for steps in sizes.patches)
    assert highest == max(sum(split.sizes for split in one.splits).max() for one in data.populations)
    assert shares.images[0].get_array().shape == (10, sum(len(one.names) for one in data.populations))


def test_a_fit_by_another_trainer_is_refused():
    run = Trainer(accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, enable_checkpointing=False)
    with pytest.raises(ConfigError, match=r"without a server; take lit_fed\.FederatedTrainer"):
        run.fit(FederatedModule(), datamodule=digits())


@pytest.mark.filterwarnings("ignore:.*no `val_dataloader`")
def test_a_module_without_federated_data_is_refused():
    with pytest.raises(ConfigError, match="FederatedDataModule"):
        quiet_trainer().fit(FederatedModule(), train_dataloaders=[1])


def test_validation_split_is_measured_where_there_is_one(tmp_path):
    run = trainer(tmp_path, 1)
    module = FederatedModule()
    run.fit(module, datamodule=digits(val_fraction=0.2))
    assert "val/seen/accuracy" in module.results
    assert "test/seen/accuracy" not in module.results
    run.test(module, datamodule=run.datamodule)
    assert "test/seen/accuracy" in module.results


def test_bf16_mixed_stays_near_float32(tmp_path):
    results = {}
    for precision in ("32-true", "bf16-mixed"):
        module = FederatedModule(client_trainer="sequential")
        trainer(tmp_path / precision, 5, precision=precision).fit(module, datamodule=digits())
        assert all(leaf.dtype == torch.float32 for leaf in module.parameters())
        results[precision] = module.results["test/seen/accuracy"]
    assert abs(results["32-true"] - results["bf16-mixed"]) < 0.03


def test_a_checkpoint_without_data_is_refused(tmp_path):
    run = trainer(tmp_path, 1)
    run.fit(FederatedModule(), datamodule=digits())
    with pytest.raises(ConfigError, match="datamodule"):
        FederatedModule.load_from_checkpoint(tmp_path / "run/version_0/checkpoints/last.ckpt", weights_only=True)


def test_unseen_clients_are_measured_in_every_evaluation(tmp_path):
    run = trainer(tmp_path, 4)
    run.fit(FederatedModule(), datamodule=digits(unseen_fraction=0.34))
    rows = (tmp_path / "run/version_0/metrics.csv").read_text().splitlines()
    place = rows[0].split(",").index("test/unseen/accuracy")
    assert [row_idx for row_idx, row in enumerate(rows[1:]) if row.split(",")[place]] == [0, 1, 2, 3]


# ---------------------------------------------------------------------- what an algorithm says of itself
@dataclass(frozen=True)
class Demanding(Algorithm):
    """FedAvg with uniform weights that wants every client."""

    participation = Participation(weighting="uniform", fills_in_absent=False, needs_all_clients=True)


@pytest.mark.parametrize(("given", "taken"), [(None, "uniform"), ("samples", "samples")])
def test_the_algorithm_s_weighting_holds_unless_another_is_given(tmp_path, given, taken):
    module = FederatedModule(Demanding(), weighting=given)
    trainer(tmp_path, 1).fit(module, datamodule=digits())
    assert module.facts.weighting == module.federation.context("train").weighting == taken


def test_an_algorithm_that_needs_all_clients_refuses_fewer(tmp_path):
    with pytest.raises(ConfigError, match=r"Demanding needs every client in every round, and 3 of 6 are drawn; leave"):
        trainer(tmp_path, 1).fit(FederatedModule(Demanding()), datamodule=digits(client_fraction=0.5))
    trainer(tmp_path, 1).fit(FederatedModule(Demanding()), datamodule=digits())


def test_a_pull_that_would_diverge_is_refused_before_training(tmp_path):
    """The bound depends on the local steps of the largest client, and so on the batch size of the data."""
    for batch_size in (16, 64):
        module = FederatedModule(FedU(1.0), solver=LocalSolver(lr=0.1))
        data = digits(batch_size=batch_size)
        with pytest.raises(ConfigError, match=r"laplacian_weight is 1\.0, .* give a number below") as found:
            trainer(tmp_path, 1).fit(module, datamodule=data)
        assert (module.num_rounds_done, module.federation.context("plan").batch_size) == (0, batch_size)
        steps = num_steps(int(data.seen.train.sizes.max()), LocalWork(epochs=1), batch_size)
        assert f"below {2 / (0.1 * steps * 6):.3g}," in str(found.value)


def test_stale_fill_is_refused_where_it_means_nothing():
    with pytest.raises(ConfigError, match=r"--model\.aggregation is stale_fill, and Demanding says itself"):
        FederatedModule(Demanding(), aggregation="stale_fill")


@dataclass(frozen=True)
class TwoPhases(Algorithm):
    """FedAvg in even rounds; a phase without local work after it, and alone in odd rounds."""

    def phases(self, ctx, client_ids):
        idle = Phase("idle", client_ids, LocalWork())
        return (idle,) if ctx.round_idx % 2 else (*super().phases(ctx, client_ids), idle)

    def client_final(self, ctx, shared, work, data):
        result = super().client_final(ctx, shared, work, data)
        return result if ctx.phase == "train" else result._replace(metrics={})


def test_a_phase_without_local_work_has_no_loss(tmp_path):
    module = FederatedModule(TwoPhases())
    trainer(tmp_path, 4).fit(module, datamodule=digits())
    table = pd.read_csv(folder(tmp_path, "run") / "metrics.csv")
    losses = table.groupby("step")["train/seen/loss"].max()
    assert losses.notna().tolist()[:4] == [True, False, True, False]
    assert float(losses.dropna().min()) > 0


@dataclass(frozen=True)
class InTurn(Algorithm):
    """FedAvg with a phase for each client, all from the server's first model of the round."""

    def phases(self, ctx, client_ids):
        return tuple(Phase(f"client {one}", client_ids[one : one + 1], LocalWork()) for one in range(len(client_ids)))

    def client_final(self, ctx, shared, work, data):
        return super().client_final(ctx, shared, work, data)._replace(metrics={"loss": data.num_samples})


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_loss_of_a_round_is_the_mean_over_its_phases(tmp_path, weighting):
    module, data = FederatedModule(InTurn(), weighting=weighting), digits()
    trainer(tmp_path, 1).fit(module, datamodule=data)
    sizes = data.seen.train.sizes.double()
    weights = sizes if weighting == "samples" else torch.ones_like(sizes)
    assert module.results["train/seen/loss"] == pytest.approx(float(weights @ sizes / weights.sum()))


# ---------------------------------------------------------------------- words for checkpoints, in Python
def of_folder(folder, rounds, **arguments):
    data = FederatedDataModule(Synthetic(num_clients=4, dimension=4, test_size=20))
    return FederatedTrainer(
        max_epochs=rounds, accelerator="cpu", default_root_dir=str(folder), enable_progress_bar=False,
        callbacks=[RunReport(pictures=False)], **arguments,
    ), FederatedModule(FedAvg()), data  # fmt: skip


def test_last_goes_on_with_the_newest_run(tmp_path):
    trainer, module, data = of_folder(tmp_path, 3)
    trainer.fit(module, data)
    trainer, module, data = of_folder(tmp_path, 5)
    trainer.fit(module, data, ckpt_path="last")
    trainer.test(module, data, ckpt_path="last")
    straight, whole, data = of_folder(tmp_path / "straight", 5)
    straight.fit(whole, data)
    assert module.num_rounds_done == 5
    assert all(torch.equal(leaf, whole.state_dict()[name]) for name, leaf in module.state_dict().items())
    (run,) = (tmp_path / "FedAvg").iterdir()
    table = csv.DictReader((run / "metrics.csv").read_text().splitlines())
    rows = [row["step"] for row in table if row["train/seen/loss"]]
    assert rows == ["0", "1", "2", "3", "4"]


def test_last_without_a_run_is_refused(tmp_path):
    trainer, module, data = of_folder(tmp_path, 1)
    with pytest.raises(ConfigError, match=r"ckpt_path last: no checkpoint under .*FedAvg/version_\*/checkpoints"):
        trainer.fit(module, data, ckpt_path="last")
    trainer, module, data = of_folder(tmp_path, 1, logger=False)
    with pytest.raises(ConfigError, match="looked for in the folder of a RoundLogger; give a path"):
        trainer.test(module, data, ckpt_path="last")


# ---------------------------------------------------------------------- messages of Python programs
def test_a_fit_names_its_folder(tmp_path, capsys):
    trainer, module, data = of_folder(tmp_path, 1)
    trainer.fit(module, data)
    assert capsys.readouterr().err == f"lit_fed: the run is written to {tmp_path}/FedAvg/version_0\n"


def test_runs_without_a_logger_keep_apart(tmp_path, capsys):
    """The second run takes a folder of its own; the first one goes on in its own."""
    for name in ("checkpoints", "checkpoints_1"):
        trainer, module, data = of_folder(tmp_path, 1, logger=False)
        trainer.fit(module, data)
        assert capsys.readouterr().err == f"lit_fed: the run is written to {tmp_path}/{name}\n"
    trainer, module, data = of_folder(tmp_path, 2, logger=False)
    trainer.fit(module, data, ckpt_path=str(tmp_path / "checkpoints/last.ckpt"))
    done = {path.parent.name: torch.load(path)["global_step"] for path in tmp_path.glob("*/last.ckpt")}
    assert done == {"checkpoints": 2, "checkpoints_1": 1}


@pytest.mark.parametrize(("given", "name"), [({}, "last"), ({"logger": False}, "{folder}/checkpoints/last.ckpt")])
def test_an_interrupt_says_how_to_go_on(tmp_path, given, name):
    class Stop(Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            if pl_module.num_rounds_done:
                raise KeyboardInterrupt

    trainer, module, data = of_folder(tmp_path, 2, **given)
    trainer.callbacks.insert(0, Stop())
    with pytest.raises(KeyboardInterrupt) as stopped:
        trainer.fit(module, data)
    name = name.format(folder=tmp_path)
    assert str(stopped.value).endswith(f"last.ckpt has the last finished round; fit(..., ckpt_path='{name}') goes on")


def test_untrained_models_are_said_to_be(tmp_path, capsys):
    trainer, module, data = of_folder(tmp_path, 1)
    trainer.test(module, data)
    trainer.predict(module, datamodule=data)
    said = capsys.readouterr().err
    assert said.splitlines() == [
        f"lit_fed: {name} without --ckpt_path: of models not yet trained" for name in ("test", "predict")
    ]
    trainer, module, data = of_folder(tmp_path, 1)
    trainer.fit(module, data)
    capsys.readouterr()
    trainer.test(module, data)
    trainer, module, data = of_folder(tmp_path, 1)
    trainer.test(module, data, ckpt_path="last")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", ["fit", "validate", "test", "predict"])
def test_data_loaders_are_refused(tmp_path, command):
    """Also by a trainer that has a data module from before."""
    trainer, module, data = of_folder(tmp_path, 1, logger=False, enable_checkpointing=False)
    trainer.validate(module, data)
    with pytest.raises(ConfigError, match=r"pass datamodule=FederatedDataModule\(...\)"):
        getattr(trainer, command)(module, [torch.zeros(2, 4)])


def test_a_trained_module_goes_on_for_the_rounds_of_the_run(tmp_path):
    trainer, module, data = of_folder(tmp_path, 2)
    trainer.fit(module, data)
    trainer, *_ = of_folder(tmp_path, 3)
    trainer.fit(module, data, ckpt_path="last")
    assert module.num_rounds == module.num_rounds_done == 3


def test_a_trainer_that_has_done_its_rounds_takes_no_other_module(tmp_path):
    trainer, module, data = of_folder(tmp_path, 1)
    trainer.fit(module, data)
    with pytest.raises(ConfigError, match=r"has done 1 rounds of another module.* make a new FederatedTrainer"):
        trainer.fit(FederatedModule(FedAvg()), data)


def test_a_resumed_run_has_the_patience_that_is_given(tmp_path):
    """Lightning restores that of the checkpoint."""
    for rounds, patience, path in ((2, 1, None), (3, 7, "last")):
        stop = EarlyStopping("train/seen/loss", patience=patience)
        run = trainer(tmp_path, rounds, stop)
        run.fit(FederatedModule(FedAvg()), digits(), ckpt_path=path)
    assert stop.patience == 7
    assert stop.best_score < float("inf")


def test_two_outputs_for_two_classes_are_told_what_they_are(tmp_path):
    trainer, _, data = of_folder(tmp_path, 1)
    with pytest.raises(ConfigError, match=r"--model.target Multiclass, in Python target=Multiclass\(\)"):
        trainer.fit(FederatedModule(FedAvg(), network=torch.nn.Linear(4, 2)), data)
    trainer, _, data = of_folder(tmp_path, 1)
    trainer.fit(FederatedModule(FedAvg(), network=torch.nn.Linear(4, 2), target=Multiclass()), data)


def test_a_folder_holds_one_run(tmp_path):
    """A version that is given is no licence to overwrite its run; its own checkpoint and its test go on in it."""

    def run(rounds, path=None, command="fit"):
        _, module, data = of_folder(tmp_path, rounds)
        made = trainer(tmp_path, rounds, RunReport(pictures=False), name="run", version=0)
        getattr(made, command)(module, data, ckpt_path=path)

    def steps():
        rows = csv.DictReader((tmp_path / "run/version_0/metrics.csv").read_text().splitlines())
        return [row["step"] for row in rows if row["train/seen/loss"]]

    last = str(tmp_path / "run/version_0/checkpoints/last.ckpt")
    run(2)
    with pytest.raises(ConfigError, match=r"run/version_0 holds a run; leave its version out for a new one"):
        run(2)
    run(2, last, "test")
    assert steps() == ["0", "1"]
    run(3, last)
    assert steps() == ["0", "1", "2"]
