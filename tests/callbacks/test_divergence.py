"""A training that diverged is said: by its status if its loss is not finite, else by one line."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from quiet import quiet_trainer

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg
from lit_fed.callbacks.divergence import Divergence, divergence_in_words
from lit_fed.cli import main
from lit_fed.command_line.report import write_report
from lit_fed.command_line.sweep_file import Sweep
from lit_fed.command_line.sweep_results import result_of
from lit_fed.core.forecasting import Quantiles
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Binary, CrossEntropy, Multiclass, MultiLabel, Regression, Sequences, VectorRegression
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import DivergedError
from lit_fed.metrics.scores import ClientScores

SMALL = ["--data.num_clients", "4", "--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
CALMER = "start again with --model.solver.clip_norm 1 or a lower --model.solver.lr"


@pytest.fixture(autouse=True)
def _seed(monkeypatch):
    """Losses at a rate of 1e6 are chaotic, and commands of other tests leave their seed."""
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")


@dataclass(frozen=True)
class Reported(FedAvg):
    """FedAvg that reports another training loss: `reported` times the number of the round."""

    reported: float = 100.0

    def client_final(self, ctx, shared, work, data):
        result = super().client_final(ctx, shared, work, data)
        loss = result.metrics["loss"]
        return result._replace(metrics={"loss": torch.full_like(loss, self.reported) * (ctx.round_idx + 1)})


@dataclass(frozen=True)
class Infinite(Reported):
    """Its training loss is infinite."""

    reported: float = math.inf


def fit(algorithm, rounds=3, lr=0.1, out=None, **settings):
    module = FederatedModule(algorithm, LocalSolver(lr=lr), client_trainer="sequential", **settings)
    trainer = quiet_trainer(rounds, out)
    trainer.fit(module, datamodule=FederatedDataModule(Digits(), num_clients=4))
    (found,) = (one for one in trainer.callbacks if isinstance(one, Divergence))
    return found


@dataclass(frozen=True)
class Falling(FedAvg):
    """It explodes in its first round, and its training loss falls from there."""

    def client_final(self, ctx, shared, work, data):
        result = super().client_final(ctx, shared, work, data)
        return result._replace(metrics={"loss": torch.full_like(result.metrics["loss"], 1e6) / (ctx.round_idx + 1)})


def test_a_loss_that_falls_from_an_explosion_is_said_too(capsys):
    assert fit(Falling(), lr=1e6).found.startswith(
        "the training loss ended at 3.3333e+05, far above guessing, and for 4 "
    )
    assert fit(Falling(), lr=0.1).found == ""  # the clients themselves are better than guessing


def test_a_command_says_what_to_try_and_advises_no_use(tmp_path, capsys):
    line = ["fit", *SMALL, "--model.algorithm", "FedAvg", "--trainer.max_epochs", "3", "--name", "run"]
    root = ["--trainer.default_root_dir", str(tmp_path)]
    main([*line, *root, "--model.solver.lr", "1e6"])
    shown = capsys.readouterr()
    (said,) = [one for one in shown.err.splitlines() if "training loss" in one]
    assert "above the first round (" in said
    assert "for 4 of 4 clients above guessing (2.30" in said
    assert said.endswith(f"{CALMER}, or with --model.solver.lr auto --data.val_fraction 0.1")
    assert "next: " not in shown.out
    folder = tmp_path / "run/version_0"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["diverged"] == said.removeprefix("lit_fed: ")

    write_report([folder], tmp_path / "report.html")
    assert f"{said.removeprefix('lit_fed: ')}.</strong>" in (tmp_path / "report.html").read_text()
    sweep = Sweep(Path("one.yaml"), "grid", "train/seen/loss", "minimize", ("${args}",), {}, {}, None)
    assert result_of(sweep, 0, {}, [summary]).diverged == 1

    main([*line, *root, "--model.solver.lr", "0.1"])
    shown = capsys.readouterr()
    assert "training loss" not in shown.err
    assert "next: " in shown.out
    assert "diverged" not in json.loads((tmp_path / "run/version_1/summary.json").read_text())


def test_a_loss_that_is_not_finite_ends_with_status_2(tmp_path, capsys):
    algorithm = ["--model.algorithm", f"{__name__}.Infinite"]
    with pytest.raises(SystemExit) as stopped:
        main(["fit", *SMALL, *algorithm, "--trainer.max_epochs", "2", "--trainer.default_root_dir", str(tmp_path)])
    assert stopped.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"lit_fed: the training loss ended at inf, not finite; {CALMER}")


def test_in_python_it_is_an_error_with_the_round():
    with pytest.raises(DivergedError, match="not finite") as stopped:
        fit(Infinite(), rounds=2)
    assert stopped.value.round_idx == 1


def test_another_scale_of_the_training_loss_is_no_divergence():
    assert fit(Reported()).found == ""  # it rises to 300, and the models are better than guessing
    assert fit(FedAvg(), lr=1e6, loss=CrossEntropy()).found
    assert fit(FedAvg(), loss=CrossEntropy()).found == ""


def test_the_first_round_is_kept_in_checkpoints(tmp_path):
    whole = fit(FedAvg(), rounds=2, lr=1e6, out=tmp_path)
    trainer, module = quiet_trainer(3, tmp_path), FederatedModule(FedAvg(), LocalSolver(lr=1e6))
    last = tmp_path / "run/version_0/checkpoints/last.ckpt"
    trainer.fit(module, datamodule=FederatedDataModule(Digits(), num_clients=4), ckpt_path=str(last))
    (found,) = (one for one in trainer.callbacks if isinstance(one, Divergence))
    assert found.first == whole.first
    assert "above the first round" in found.found


def test_clients_on_nodes_are_judged_by_the_training_loss_alone():
    assert divergence_in_words(9.0, 2.3, None, None) == "the training loss ended at 9, above the first round (2.3)"
    assert divergence_in_words(math.nan, 2.3, None, None) == "the training loss ended at nan, not finite"
    clients = ClientScores.of_rows(torch.tensor([[2.0, math.nan, 0.0], [2.0, 2.0, 1.0], [0.0, 0.0, 0.0]]))
    said = "the training loss ended at nan, not finite; so is that of 1 of 2 clients after it"
    assert divergence_in_words(math.nan, 2.3, 2.0, clients) == said


def entropy(*shares):
    return -sum(share * math.log(share) for share in shares if share)


@pytest.mark.parametrize(
    ("target", "labels", "guessing"),
    [
        (Multiclass(3), [0, 0, 1, 2], entropy(0.5, 0.25, 0.25)),
        (Binary(), [0, 0, 0, 1], entropy(0.75, 0.25)),
        (MultiLabel(2), [[0, 1], [1, 1], [0, 1], [1, 1]], entropy(0.5, 0.5)),
        (Sequences(2), [[0, 0], [1, 1]], entropy(0.5, 0.5)),
        (Sequences(2, ignore_index=5), [[0, 5], [1, 5]], entropy(0.5, 0.5)),
        (Regression(), [1.0, 3.0], 0.5),
        (Regression().standardised((2.0, 2.0)), [-1.0, 1.0], 0.5),
        (VectorRegression(2), [[1.0, 0.0], [3.0, 4.0]], 2.5),
        (Quantiles(), [1.0, 2.0], None),
    ],
)
def test_guessing_is_the_loss_of_the_best_constant(target, labels, guessing):
    y = torch.tensor(labels)
    assert target.guessing_loss(y) == (None if guessing is None else pytest.approx(guessing))
    if guessing is not None and not target.continuous and not target.vectors and not target.positions:
        shares = torch.bincount(y).double() / len(y)
        outputs = shares.log() if target.num_outputs > 1 else (shares[1] / shares[0]).log().reshape(1)
        assert target.losses(outputs.expand(len(y), -1), y).mean() == pytest.approx(guessing)
