"""One CUDA device gives the numbers of the CPU, and several give those of one."""

from functools import partial

import numpy as np
import pytest
import torch
from federated_round import BINARY, MULTICLASS, POSITIONS, Tagger, distance, make_clients, make_task, run_rounds
from fit_all import fit
from lightning.pytorch import Callback, seed_everything
from local_norm import local_norm
from normalised import NormalisedMLP
from running import SMALL, folder, history, numbers, start
from torch import nn

from lit_fed import FederatedModule, FederatedTrainer
from lit_fed.algorithms import FedAvg, FedAvgPlus, FedEM, Local, OfficialFedEM
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.clients.graphed import GraphedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.task import Task
from lit_fed.core.types import Split
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.models import MLP, LeNet5, Linear

DEVICE = torch.device("cuda", 0)
ON_DEVICE = {"accelerator": "gpu", "devices": 1}

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none"),
]


def small_mlp(shape, outputs):
    return MLP(shape, outputs, (8,))


def frozen_mlp(shape, outputs):
    """Of which the device needs a copy of the frozen layer, too."""
    network = small_mlp(shape, outputs)
    next(layer for layer in network.modules() if isinstance(layer, nn.Linear)).requires_grad_(False)
    return network


def tabular(network, target=MULTICLASS, dtype=torch.float64):
    """Seven clients of six sizes: the last batches of a round have three widths."""
    return make_clients([9, 5, 7, 3, 6, 12, 9], target=target, dtype=dtype), make_task(
        target, network=network, dtype=dtype
    )


def images(dtype=torch.float64):
    """Three clients with pictures of 16 x 16 pixels."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(14, 1, 16, 16, generator=rng, dtype=torch.float64), torch.randint(3, (14,), generator=rng)
    task = Task.create(lambda: LeNet5((1, 16, 16), 3), MULTICLASS, dtype=dtype)
    return Split(x.to(dtype), y, torch.tensor([0, 6, 11, 14])), task


def texts():
    """Three clients with sequences of five tokens."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randint(7, (14, 5), generator=rng), torch.randint(3, (14, 5), generator=rng)
    return Split(x, y, torch.tensor([0, 6, 11, 14])), make_task(POSITIONS, network=Tagger)


ALGORITHMS = [
    FedAvg(),
    FedAvgPlus(),
    FedEM(num_components=2),
    OfficialFedEM(num_components=2),
    Local(),
]
KINDS = {
    "closed form": partial(tabular, Linear),
    "binary": partial(tabular, Linear, BINARY),
    "dense": partial(tabular, small_mlp),
    "frozen": partial(tabular, frozen_mlp),
    "BatchNorm": partial(tabular, NormalisedMLP),
    "images": images,
    "sequences": texts,
}
every_algorithm = pytest.mark.parametrize(
    "algorithm", ALGORITHMS, ids=["FedAvg", "FedAvgPlus", "FedEM", "FedEM own batches", "Local"]
)
every_kind = pytest.mark.parametrize("kind", KINDS)


def results(algorithm, trainer, data, device):
    """Shared state, client states, states of unseen clients and predictions after three rounds, on the CPU."""
    train, task = data()
    unseen = Split(train.x, train.y, train.offsets, first_id=train.num_clients)
    solver = LocalSolver(lr=0.1, momentum=0.9, weight_decay=1e-3, clip_norm=5.0)
    federation = run_rounds(algorithm, trainer, train.to(device), task=task, solver=solver)
    served = federation.serve(unseen.to(device), seen=False)
    found = federation.shared, federation.states, served, federation.predictions(unseen.to(device), served)
    devices = {leaf.device for leaf in tree.leaves(found)}
    assert devices == {device}
    return tree.map_leaves(lambda leaf: leaf.cpu(), found)


@every_algorithm
@every_kind
def test_float64_is_that_of_the_cpu(algorithm, kind):
    here, there = (results(algorithm, SequentialTrainer(), KINDS[kind], one) for one in (torch.device("cpu"), DEVICE))
    assert distance(here, there) < 1e-9


@every_algorithm
@pytest.mark.parametrize("network", [Linear, small_mlp], ids=["closed form", "dense"])
def test_float32_is_that_of_the_cpu_up_to_rounding(algorithm, network):
    data = partial(tabular, network, dtype=torch.float32)
    here, there = (results(algorithm, SequentialTrainer(), data, one) for one in (torch.device("cpu"), DEVICE))
    assert distance(here, there) < 1e-4


@every_algorithm
@every_kind
def test_clients_at_once_equal_clients_one_by_one(algorithm, kind):
    one, other = (
        results(algorithm, trainer, KINDS[kind], DEVICE) for trainer in (SequentialTrainer(), VectorizedTrainer())
    )
    assert distance(one, other) < 1e-9


@every_algorithm
@every_kind
def test_replayed_steps_are_those_of_the_sequential_trainer(algorithm, kind):
    one, other = (
        results(algorithm, trainer, KINDS[kind], DEVICE) for trainer in (SequentialTrainer(), GraphedTrainer())
    )
    assert distance(one, other) < 1e-9


@every_algorithm
def test_local_batch_norm(algorithm):
    runs = [(SequentialTrainer(), torch.device("cpu")), (SequentialTrainer(), DEVICE), (VectorizedTrainer(), DEVICE)]
    cpu, cuda, at_once = (results(local_norm(algorithm), trainer, KINDS["BatchNorm"], one) for trainer, one in runs)
    assert distance(cpu, cuda) < 1e-9
    assert distance(cuda, at_once) < 1e-9


def test_channels_last_changes_rounding_only():
    one, other = (
        results(FedEM(num_components=2), SequentialTrainer(channels_last=last), images, DEVICE)
        for last in (False, True)
    )
    assert distance(one, other) < 1e-9


# ---------------------------------------------------------------------- whole fits
def accuracy(out, seed, precision):
    """Test accuracy in percent of FedAvg on Digits after 15 rounds."""
    seed_everything(seed, verbose=False)
    network = partial(MLP, hidden_sizes=(32,))
    module = FederatedModule(FedAvg(), LocalSolver(momentum=0.9), network=network, client_trainer="sequential")
    data = FederatedDataModule(Digits(), num_clients=6, batch_size=32)
    trainer = FederatedTrainer(
        **ON_DEVICE, precision=precision, max_epochs=15, logger=False, check_val_every_n_epoch=15,
        enable_checkpointing=False,
        enable_progress_bar=False, default_root_dir=str(out),
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data)
    return 100 * module.results["test/seen/accuracy"]


def test_bf16_is_within_half_a_point_of_float32(tmp_path):
    exact, mixed = (
        np.mean([accuracy(tmp_path, seed, precision) for seed in range(3)]) for precision in ("32-true", "bf16-mixed")
    )
    assert exact > 90
    assert abs(exact - mixed) < 0.5


class Places(Callback):
    """Where the training samples of each block lie."""

    def __init__(self):
        self.found = set()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        split = batch.data
        self.found |= {(leaf.device, leaf.untyped_storage().data_ptr()) for leaf in (split.x, split.y)}


def test_samples_are_copied_to_the_device_once(tmp_path):
    places = Places()
    module, trainer = fit("FedEM", tmp_path, rounds=2, callbacks=[places], **ON_DEVICE)
    split = trainer.datamodule.seen.train
    assert len(places.found) == 2  # inputs and labels
    assert {device for device, _ in places.found} == {DEVICE}
    assert split.to(DEVICE) is split.to(DEVICE)
    assert module.num_rounds_done == 2


@pytest.mark.parametrize("client_memory_gb", [4.0, 0.0], ids=["states in memory", "states in files"])
@pytest.mark.parametrize("name", ["FedEM", "Local"])
def test_resume_equals_uninterrupted_on_the_device(tmp_path, name, client_memory_gb):
    options = {"client_memory_gb": client_memory_gb, **ON_DEVICE}
    whole, _ = fit(name, tmp_path / "whole", rounds=4, **options)
    fit(name, tmp_path / "cut", rounds=2, **options)
    last = folder(tmp_path / "cut", name) / "checkpoints/last.ckpt"
    resumed, _ = fit(name, tmp_path / "cut", rounds=4, ckpt_path=str(last), version=0, keep_rounds=2, **options)
    assert numbers(folder(tmp_path / "whole", name)) == numbers(folder(tmp_path / "cut", name))
    for key, leaf in whole.state_dict().items():
        assert torch.equal(leaf, resumed.state_dict()[key]), key


@pytest.mark.parametrize("name", ["FedEM", "FedAvgPlus", "Local"])
def test_predictions_and_unseen_clients_are_those_of_the_cpu(tmp_path, name):
    """One checkpoint, written on the device, served on both."""
    fit(name, tmp_path, rounds=2, **ON_DEVICE)
    last = folder(tmp_path, name) / "checkpoints/last.ckpt"
    tables = []
    for place in ({"accelerator": "cpu", "devices": 1}, ON_DEVICE):
        seed_everything(3, verbose=False)
        data = FederatedDataModule(
            Digits(), num_clients=8, unseen_fraction=0.25, client_fraction=0.7, clients_per_block=2, batch_size=32
        )
        algorithm = {"FedEM": FedEM, "FedAvgPlus": FedAvgPlus, "Local": Local}[name]()
        module = FederatedModule(
            algorithm, LocalSolver(momentum=0.9, persist_optimizer=True), client_trainer="sequential"
        )
        trainer = FederatedTrainer(
            **place, logger=False, enable_progress_bar=False,
            default_root_dir=str(tmp_path),
        )  # fmt: skip
        output = str(tmp_path / f"{place['accelerator']}.csv")
        tables.append(trainer.predict(module, datamodule=data, ckpt_path=str(last), population="unseen", output=output))
    here, there = tables
    shares = [column for column in here.columns if column.startswith("p_")]
    assert here[["client", "sample", "label"]].equals(there[["client", "sample", "label"]])
    np.testing.assert_allclose(here[shares], there[shares], rtol=0, atol=1e-4)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("name", ["FedEM", "Local"])
def test_two_devices_equal_one(tmp_path, name):
    """Ranks talk by NCCL; with the sequential trainer sums over clients are the same to the last bit."""
    arguments = ["fit", *SMALL, "--trainer.accelerator", "gpu", "--model.algorithm", name]
    arguments += ["--model.client_trainer", "sequential"]
    ranks = {"one": ["--trainer.devices", "1"], "two": ["--trainer.devices", "2", "--trainer.strategy", "fed_ddp"]}
    for place, extra in ranks.items():
        fit = start([*arguments, *extra, "--trainer.default_root_dir", str(tmp_path / place)])
        said = fit.communicate(300)
        assert fit.returncode == 0, said
    one, two = (folder(tmp_path / place, name) for place in ranks)
    assert numbers(one) == numbers(two)
    assert history(one) == history(two)
    assert (one / "clients.csv").read_text() == (two / "clients.csv").read_text()
