"""Unseen clients without training samples: a global test set, or LEAF's split by user."""

import numpy as np
import pandas as pd
import pytest
import torch
from quiet import quiet_trainer

from lit_fed import serving
from lit_fed.algorithms import IFCA, SCAFFOLD, FedAvg, FedAvgPlus, FedEM, Local, MixedEffects
from lit_fed.commands import personalize
from lit_fed.core.fine_tuning import FineTuning
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import ClientFolder
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.training.module import FederatedModule
from lit_fed.wrappers.base import AlgorithmWrapper


def folder(root):
    """Three clients, and one set of samples that all are measured on."""
    rng = np.random.default_rng(0)
    for name, size in (("a", 30), ("b", 20), ("c", 25)):
        x = rng.normal(size=(size + 5, 3)).astype(np.float32)
        y = (x.sum(1) > 0).astype(int)
        (root / "seen").mkdir(parents=True, exist_ok=True)
        np.savez(root / "seen" / f"{name}.npz", x_train=x[5:], y_train=y[5:], x_test=x[:5], y_test=y[:5])
    x = rng.normal(size=(200, 3)).astype(np.float32)
    (root / "unseen").mkdir()
    np.savez(root / "unseen/everywhere.npz", x_test=x, y_test=(x.sum(1) > 0).astype(int))
    return str(root)


def fit(root, out, algorithm, **settings):
    data = FederatedDataModule(ClientFolder(root))
    module = FederatedModule(algorithm, LocalSolver(lr=0.3), **settings)
    trainer = quiet_trainer(5, out)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data)
    return module, data, trainer


@pytest.mark.parametrize("algorithm", [FedAvg(), SCAFFOLD(), FedAvgPlus()])
def test_a_global_test_set(tmp_path, algorithm):
    module, data, trainer = fit(folder(tmp_path / "data"), tmp_path, algorithm)
    assert module.results["test/unseen/accuracy"] > 0.7
    table = pd.read_csv(f"{trainer.log_dir}/clients.csv").set_index("client")
    assert table.loc["everywhere", ["num_train", "num_test"]].tolist() == [0, 200]
    predicted = trainer.predict(module, datamodule=data, population="unseen")
    assert (predicted["label"] == predicted["prediction"]).mean() == module.results["test/unseen/accuracy"]


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [(IFCA(), {}), (Local(), {}), (FedAvg(), {"batch_norm": "local", "network": "BatchNorm"})],
)
def test_algorithms_that_adapt_need_training_samples(tmp_path, algorithm, settings):
    if "network" in settings:
        from test_idle_clients import Normalised

        settings = settings | {"network": lambda shape, outputs: Normalised(shape, outputs, 3)}
    with pytest.raises(
        ConfigError, match=r"unseen client 'everywhere' has no training samples, and .* adapts to those"
    ):
        fit(folder(tmp_path / "data"), tmp_path, algorithm, **settings)


@pytest.mark.parametrize("labelled", [True, False])
def test_a_later_client_with_test_samples_alone(tmp_path, labelled, capsys):
    """It is served by what does not adapt, and refused by name by what does."""
    root, last = folder(tmp_path / "data"), {}
    arrays = dict(np.load(f"{root}/unseen/everywhere.npz"))
    (tmp_path / "later").mkdir()
    np.savez(tmp_path / "later/dora.npz", **(arrays if labelled else {"x_test": arrays["x_test"]}))
    (tmp_path / "data/unseen/everywhere.npz").unlink()
    (tmp_path / "data/unseen").rmdir()
    for algorithm in (FedAvg(), MixedEffects(), FedEM(), Local()):
        name = type(algorithm).__name__
        _, _, trainer = fit(root, tmp_path / name, algorithm)
        last[name] = f"{trainer.log_dir}/checkpoints/last.ckpt"

    def served(algorithm):
        module, output = FederatedModule(algorithm, LocalSolver(lr=0.3)), tmp_path / type(algorithm).__name__ / "served"
        return personalize(
            quiet_trainer(), module, last[type(algorithm).__name__], str(tmp_path / "later"), str(output)
        )

    said = {}
    for algorithm in (FedAvg(), MixedEffects(), FedEM()):
        table = served(algorithm)
        said[type(algorithm).__name__] = capsys.readouterr().out
        assert table[["num_train", "num_test"]].to_numpy().tolist() == [[0, 200]]
        assert (table["accuracy"] > 0.7).tolist() == [labelled]
    for name, what in {
        "FedAvg": "the shared model", "MixedEffects": "the fixed effects",
        "FedEM": "the mean mixture of the seen clients",
    }.items():  # fmt: skip
        assert f"1 of them have no labelled samples and are served by {what}\n" in said[name]
    with pytest.raises(ConfigError, match="unseen client 'dora' has no training samples, and Local adapts"):
        served(Local())


@pytest.mark.parametrize("tuned", [False, True])
def test_without_samples_a_mixture_is_the_mean_one(tmp_path, tuned):
    """In the test of the run and from its checkpoint, inside wrappers, too; with private clients it stays uniform."""
    root = folder(tmp_path / "data")
    features = {"serving": FineTuning(fine_tune_epochs=1)} if tuned else {}
    module, data, trainer = fit(root, tmp_path, FedEM(num_components=2), **features)
    mean = module.mixture_weights.mean(0)
    table = pd.read_csv(f"{trainer.log_dir}/clients.csv").set_index("client")
    assert float(abs(mean - 0.5).max()) > 1e-3
    np.testing.assert_allclose(table.loc["everywhere", ["pi_0", "pi_1"]].to_numpy(float), mean, rtol=1e-6)
    (tmp_path / "later").mkdir()
    np.savez(tmp_path / "later/dora.npz", x_test=dict(np.load(f"{root}/unseen/everywhere.npz"))["x_test"])
    last = f"{trainer.log_dir}/checkpoints/last.ckpt"
    later = FederatedModule(FedEM(num_components=2), LocalSolver(lr=0.3), **features)
    served = personalize(quiet_trainer(), later, last, str(tmp_path / "later"), str(tmp_path / "out"))
    np.testing.assert_allclose(served[["pi_0", "pi_1"]].to_numpy()[0], mean, rtol=1e-6)
    predicted = pd.read_csv(tmp_path / "out/predictions.csv")["prediction"]
    x = data.populations[1].test.x
    outputs = module.federation.terms.task.outputs(module.shared.models, x)
    expected = module.target.mix(mean, outputs).argmax(1)
    assert (predicted.to_numpy() == expected.numpy()).all()
    if not tuned:
        federation = module.federation
        assert federation.without_samples == "the mean mixture of the seen clients"
        federation.algorithm = Hiding(federation.algorithm)
        assert federation.without_samples == "equal weights of all components"
        ids = data.populations[1].train.first_id + torch.arange(1)
        assert serving.serve(federation, ids, data.populations[1].train, seen=False).mixture.tolist() == [[0.5, 0.5]]


class Hiding(AlgorithmWrapper):
    """Privacy of clients, as far as serving asks for it."""

    hides_cohort = True
