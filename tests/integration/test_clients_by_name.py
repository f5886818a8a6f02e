"""What is said of one client calls it by the name that its owner gave it."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from lit_fed import FederatedModule, FederatedTrainer
from lit_fed.algorithms import FedAvg, FedAvgPlus
from lit_fed.cli import main
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.types import Population
from lit_fed.data import ClientDataSet, ClientFolder, Digits, Synthetic
from lit_fed.data.data_sets.base import empty_split, make_split
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ClientError

NAMES = ("ann", "bob", "cleo", "dan")


def folder(root, **scales):
    """Clients with inputs of variance 1, times a scale; those whose name starts with u are unseen."""
    for seed, name in enumerate((*NAMES, *(one for one in scales if one.startswith("u")))):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(9, 3)) * scales.get(name, 1.0), np.arange(9) % 3
        path = root / ("unseen" if name.startswith("u") else "seen") / f"{name}.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, x_train=x[:6], y_train=y[:6], x_test=x[6:], y_test=y[6:])
    return root


def fit(data, algorithm=None, lr=0.1, **options):
    torch.manual_seed(0)  # the first models, whatever ran before
    module = FederatedModule(algorithm or FedAvg(), LocalSolver(lr=lr), **options)
    trainer = FederatedTrainer(accelerator="cpu", max_epochs=2, logger=False, enable_progress_bar=False,
                               enable_checkpointing=False)  # fmt: skip
    trainer.fit(module, datamodule=data)
    return module


def diverged(data, *arguments, **options):
    with pytest.raises(ClientError) as caught:
        fit(data, *arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("client_trainer", ["sequential", "vectorized", "debug"])
def test_a_seen_client_that_diverges(tmp_path, client_trainer):
    data = FederatedDataModule(ClientFolder(str(folder(tmp_path, cleo=1e30))))
    assert diverged(data, lr=1e20, client_trainer=client_trainer).startswith("client 'cleo' (2), round 0, client_")


def test_an_unseen_client_that_diverges(tmp_path):
    data = FederatedDataModule(ClientFolder(str(folder(tmp_path, una=1.0, ute=1e30))))
    said = diverged(data, FedAvgPlus(fine_tune_epochs=1), lr=1e10)
    assert said.startswith("client 'ute' (5), round ")


def test_clients_that_are_numbered_have_no_other_name():
    said = diverged(FederatedDataModule(Digits(), num_clients=3), lr=1e38)
    assert said.startswith("client ")
    assert "'" not in said.partition(",")[0]


def test_an_unseen_client_from_a_file(tmp_path, capsys):
    cpu = ["--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(tmp_path / "runs")]
    root = folder(tmp_path / "data", una=1.0, ute=1e30)
    (root / "unseen").rename(tmp_path / "unseen")
    main(["fit", *cpu, "--data.dataset", "ClientFolder", "--data.dataset.root", str(root), "--trainer.max_epochs", "1",
          "--model.algorithm", "FedAvgPlus", "--model.solver.lr", "1e10"])  # fmt: skip
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["personalize", *cpu, "--name", "FedAvgPlus", "--ckpt_path", "last", "--clients",
              str(tmp_path / "unseen"), "--output", str(tmp_path / "served")])  # fmt: skip
    assert stopped.value.code == 2
    assert "lit_fed: client 'ute' (5), round 1, client_" in capsys.readouterr().err
    assert not (tmp_path / "served").exists()


# ---------------------------------------------------------------------- clients that outweigh all others
def notices(capsys):
    """Lines about clients; others say what labels are taken for, and that a training diverged."""
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lit_fed: ")]
    others = ("lit_fed: labels are taken for ", "lit_fed: the training loss ended at ")
    return [line for line in said if not line.startswith(others)]


def test_one_client_with_huge_inputs_is_said_once(tmp_path, capsys):
    data = FederatedDataModule(ClientFolder(str(folder(tmp_path, bob=1e20))))
    fit(data, lr=0.0)
    of_inputs, of_loss = notices(capsys)
    assert of_inputs.startswith("lit_fed: client 'bob' has inputs up to 2.")
    assert "e+20, the median of all clients is " in of_inputs
    assert "clean or scale them" in of_inputs
    assert of_loss.startswith("lit_fed: client 'bob' has a test loss of ")
    assert "the median of the seen clients is 1." in of_loss


def test_an_unseen_client_with_a_huge_loss_is_said(tmp_path, capsys):
    fit(FederatedDataModule(ClientFolder(str(folder(tmp_path, una=1.0, ute=1e20, uwe=1.0)))), lr=0.0)
    of_inputs, of_loss = notices(capsys)
    assert of_inputs.startswith("lit_fed: client 'ute' has inputs")
    assert of_loss.startswith("lit_fed: client 'ute' has a test loss")
    assert "unseen clients" in of_loss


def test_the_client_is_right_where_a_sample_is_measured(tmp_path, capsys):
    data = FederatedDataModule(ClientFolder(str(folder(tmp_path, dan=1e20))), eval_clients=3, seed=2)
    module = fit(data, lr=0.0)
    assert data.seen.measured.tolist() == [0, 2, 3]
    assert len(module.client_scores["seen"].samples) == 3
    assert [line.split("'")[1] for line in notices(capsys)] == ["dan", "dan"]


def test_ordinary_clients_are_not_spoken_of(tmp_path, capsys):
    fit(FederatedDataModule(ClientFolder(str(folder(tmp_path, bob=1e3, ute=30.0)))))
    fit(FederatedDataModule(Synthetic(num_clients=6, test_size=5, dimension=4, on_demand=True, variant="corrected")))
    tokens = FederatedDataModule(Tokens())
    tokens.setup()
    assert notices(capsys) == []


@dataclass(frozen=True)
class Tokens(ClientDataSet):
    """Token ids, of which one client has a large one."""

    def load(self):
        x = np.array([[1, 2], [2, 1], [1, 10**9]])
        train = make_split(x, x % 2, np.ones(3, dtype=np.int64))
        return Population(train, empty_split(train), train, ["a", "b", "c"]), None


@dataclass(frozen=True)
class Drawn(Synthetic):
    """A drawn population whose last client has huge inputs."""

    def _drawn(self, parameters):
        splits = super()._drawn(parameters)
        for split in splits:
            split.draw = scaled(split.draw, self.num_clients - 1)
        return splits


def scaled(draw, client_id):
    def change(number):
        x, y = draw(number)
        return x * (1e12 if number == client_id else 1), y

    return change


def test_a_few_clients_are_looked_at_where_they_are_drawn(capsys):
    data = FederatedDataModule(Drawn(num_clients=50, test_size=5, dimension=4, on_demand=True, variant="corrected"))
    data.setup()
    assert "lit_fed: client '49' has inputs up to 9.98e+11" in notices(capsys)[0]
    assert torch.is_tensor(data.seen.train.x)
