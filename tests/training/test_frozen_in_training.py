"""A frozen body of random weights, whole runs: the module holds it once, and checkpoints its digest and its source."""

import re

import numpy as np
import pandas as pd
import pytest
import torch
from fit_all import fit
from lightning.pytorch import seed_everything
from quiet import assert_same_state, quiet_trainer
from running import folder, history
from torch import nn

from lit_fed import FederatedModule, export, personalize
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.callbacks import FederatedCallback, NetworkSummary
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.start import digest_of
from lit_fed.data import Digits
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.models import Network


class RandomFeatures(Network):
    """A trained layer on random features of an image."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 4), nn.Tanh(), nn.Flatten()).requires_grad_(False)
        self.head = nn.Linear(75, num_outputs)

    def forward(self, x):
        return self.head(self.body(x))


class Whole(RandomFeatures):
    """The same, all of it trained."""

    def __init__(self, input_shape, num_outputs):
        super().__init__(input_shape, num_outputs)
        self.requires_grad_(True)


class Lazy(Network):
    """Layers whose sizes follow from the images."""

    def __init__(self, input_shape, num_outputs):
        super().__init__()
        self.layers = nn.Sequential(
            nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d(), nn.Dropout(0.5), nn.Flatten(), nn.LazyLinear(num_outputs)
        )

    def forward(self, x):
        return self.layers(x)


class KeepHalf(FederatedCallback):
    """Keeps a checkpoint of the first two rounds."""

    def __init__(self, path):
        self.path = path

    def on_validation_end(self, trainer, pl_module):
        if pl_module.num_rounds_done == 2:
            trainer.save_checkpoint(self.path)


BODY = 3 * (16 + 1)
HEAD = 10 * (75 + 1)
MODEL = {"network": RandomFeatures, "init_seeds": [4, 5, 6]}
SOLVER = LocalSolver(momentum=0.9, persist_optimizer=True)


def trainer(tmp_path):
    return quiet_trainer(default_root_dir=tmp_path)


def digits():
    return FederatedDataModule(
        Digits(), num_clients=8, unseen_fraction=0.25, client_fraction=0.7, clients_per_block=2, batch_size=32
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """FedEM after four rounds: module, folder, and a checkpoint of two rounds."""
    out = tmp_path_factory.mktemp("whole")
    module, _ = fit("FedEM", out, rounds=4, model=MODEL, callbacks=[KeepHalf(out / "half.ckpt")])
    return module, folder(out, "FedEM"), out / "half.ckpt"


def test_a_checkpoint_holds_the_digest_and_messages_nothing(run):
    module, out, _ = run
    content = torch.load(out / "checkpoints/last.ckpt", weights_only=True)
    assert not [name for name in content["state_dict"] if "body" in name]
    torch.manual_seed(4)
    first = RandomFeatures((1, 8, 8), 10)
    assert torch.equal(module.frozen_part.frozen__body_0_weight, first.body[0].weight)
    leaves = {f"body.{name}": leaf for name, leaf in first.body.named_parameters()}
    source = "RandomFeatures() from seed 4"
    assert content["lit_fed"]["frozen"] == {
        "digest": digest_of(leaves), "source": source, "tensors": 2, "numbers": BODY,
    }  # fmt: skip
    table = pd.read_csv(out / "metrics.csv")
    assert (table["comm/bytes_down"].dropna() == 4 * 3 * 4 * HEAD).all()  # four clients, three models, four bytes each


def test_one_copy_in_the_process(run):
    """Module, task and template share it, whatever its layout has become."""
    module, _, _ = run
    task = module.federation.terms.task
    held = module.frozen_part.frozen__body_0_weight, task.frozen["body.0.weight"], task.network.body[0].weight
    assert len({leaf.data_ptr() for leaf in held}) == 1
    assert task.end.name == "head"


def test_resume_equals_uninterrupted(run, tmp_path):
    module, out, half = run
    resumed, _ = fit("FedEM", tmp_path, rounds=4, model=MODEL, ckpt_path=str(half))
    assert_same_state(module, resumed)
    assert history(out)[-1] == history(folder(tmp_path, "FedEM"))[-1]


FOUR = r"part is RandomFeatures\(\) from seed 4 \(51 numbers, digest \w{12}\), and that of this run "


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            {"init_seeds": [7, 8, 9]},
            FOUR + r"RandomFeatures\(\) from seed 7 \(51 numbers, digest \w{12}\); give the same --model\.netwo",
        ),
        (
            {"trainable": "*"},
            r"run froze a part of its network \(RandomFeatures\(\) from seed 4\), and this run trains all of it; give ",
        ),
        (
            {"trainable": ["head.weight"]},
            FOUR + r"R.* from seed 4 \(61 numbers, digest \w{12}\); give the same --model\.network and the same --mod",
        ),
    ],
    ids=["seed", "all", "less"],
)
def test_another_frozen_part_is_refused(run, tmp_path, model, message):
    _, out, _ = run
    ckpt_path = str(out / "checkpoints/last.ckpt")
    seed_everything(3, verbose=False)
    other = FederatedModule(FedEM(), SOLVER, **MODEL | model)
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path).test(other, datamodule=digits(), ckpt_path=ckpt_path, verbose=False)


def test_other_numbers_from_the_same_source(run, tmp_path):
    """A file that has changed, or another processor."""
    _, out, _ = run
    content = torch.load(out / "checkpoints/last.ckpt", weights_only=True)
    content["lit_fed"]["frozen"]["digest"] = "0" * 64
    torch.save(content, tmp_path / "other.ckpt")
    seed_everything(3, verbose=False)
    with pytest.raises(ConfigError, match=FOUR + r".*the same source gave other numbers: a weights file that has cha"):
        trainer(tmp_path).test(
            FederatedModule(FedEM(), SOLVER, **MODEL), datamodule=digits(), ckpt_path=str(tmp_path / "other.ckpt")
        )


def test_a_run_that_trained_all_is_not_gone_on_with_frozen(tmp_path):
    fit("FedEM", tmp_path, rounds=1, model={"network": Whole})
    ckpt_path = str(folder(tmp_path, "FedEM") / "checkpoints/last.ckpt")
    seed_everything(3, verbose=False)
    other = FederatedModule(FedEM(), SOLVER, network=Whole, trainable="head")
    with pytest.raises(ConfigError, match=r"trained its whole network, and this run froze a part of it: Whole\(\)"):
        trainer(tmp_path).test(other, datamodule=digits(), ckpt_path=ckpt_path, verbose=False)


def test_what_serves_clients(run, tmp_path):
    """Test, predict, export and personalize in a process of their own."""
    module, out, _ = run
    ckpt_path = str(out / "checkpoints/last.ckpt")
    seed_everything(3, verbose=False)
    one, data, serving = FederatedModule(FedEM(), SOLVER, **MODEL), digits(), trainer(tmp_path)
    (found,) = serving.test(one, datamodule=data, ckpt_path=ckpt_path, verbose=False)
    assert found["test/seen/loss"] == np.float32(module.results["test/seen/loss"])
    table = serving.predict(one, datamodule=data, population="unseen", output=str(tmp_path / "p.csv"))
    rows = table[table["client_id"] == 7]
    expected = rows[[name for name in rows if name.startswith("p_")]].to_numpy()
    name, x = data.unseen.names[1], data.unseen.test.client(7).x
    path = tmp_path / "client.pt2"
    export(serving, one, data, client=name, output=str(path))
    np.testing.assert_allclose(torch.export.load(path).module()(x).detach(), expected, rtol=0, atol=1e-6)

    (tmp_path / "new").mkdir()
    for position in (0, 1):
        train, test = (split.client(6 + position) for split in (data.unseen.train, data.unseen.test))
        arrays = {"x_train": train.x, "y_train": train.y, "x_test": test.x, "y_test": test.y}
        np.savez(tmp_path / f"new/client_{position}.npz", **{key: leaf.numpy() for key, leaf in arrays.items()})
    unseen_clients = FederatedModule(FedEM(), SOLVER, **MODEL)
    served = personalize(trainer(tmp_path), unseen_clients, ckpt_path, str(tmp_path / "new"), str(tmp_path / "served"))
    hits = (rows["label"] == rows["prediction"]).mean()
    np.testing.assert_allclose(served["accuracy"].iloc[1], hits, rtol=1e-12)
    another = FederatedModule(FedEM(), SOLVER, **MODEL | {"init_seeds": [7, 8, 9]})
    with pytest.raises(ConfigError, match="and that of this run"):
        personalize(trainer(tmp_path), another, ckpt_path, str(tmp_path / "new"), str(tmp_path / "never"))
    other = FederatedModule(FedAvg(), SOLVER, **MODEL)
    with pytest.raises(ConfigError, match=f"^--ckpt_path {re.escape(str(ckpt_path))} is of another run: algorithm is"):
        personalize(trainer(tmp_path), other, ckpt_path, str(tmp_path / "new"), str(tmp_path / "never"))
    assert not (tmp_path / "never").exists()


def test_parameters_chosen_by_name_are_those_that_the_network_leaves_to_be_trained(run, tmp_path, capsys):
    _, _, half = run
    model = MODEL | {"network": Whole, "trainable": "head"}
    chosen, _ = fit("FedEM", tmp_path, rounds=2, model=model, callbacks=[NetworkSummary()])
    state = chosen.state_dict()
    for key, leaf in torch.load(half, weights_only=True)["state_dict"].items():
        assert key.startswith("tables.") or torch.equal(leaf, state[key]), key
    said = capsys.readouterr()
    assert (
        "lit_fed: each model trains 760 numbers (head.weight, head.bias); 51 are frozen, held once and never sent; what"
        " comes before head is computed once for all models; the frozen ones are random: no weights were loaded\n"
    ) in said.err
    (row,) = [line.split("│") for line in said.out.splitlines() if "network.body" in line]
    assert [cell.strip() for cell in row[3:5]] == ["51", "frozen"]


@pytest.mark.parametrize("loaded", [False, True])
def test_random_frozen_weights_are_named(tmp_path, capsys, loaded):
    class Loaded(RandomFeatures):
        def __init__(self, input_shape, num_outputs):
            super().__init__(input_shape, num_outputs)
            for leaf in self.body.parameters():
                leaf.data = torch.linspace(-1, 1, leaf.numel()).view(leaf.shape)

    fit("FedEM", tmp_path, rounds=1, model=MODEL | {"network": Loaded if loaded else RandomFeatures})
    assert ("the frozen ones are random: no weights were loaded" in capsys.readouterr().err) is not loaded


def test_bf16_and_algorithms_for_linear_models(tmp_path):
    """Initial states are made outside autocast, and rounds inside."""
    module, _ = fit("MOCHA", tmp_path, rounds=1, precision="bf16-mixed")
    assert module.results["test/seen/accuracy"] > 0.3
    module, _ = fit("SharingADMM", tmp_path, rounds=1, precision="bf16-mixed")
    assert all(leaf.dtype == torch.float32 for name, leaf in module.state_dict().items() if name.endswith("_fit"))


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_get_their_sizes_from_the_samples(tmp_path):
    class Eager(Lazy):
        def __init__(self, input_shape, num_outputs):
            super().__init__(input_shape, num_outputs)
            self.layers = nn.Sequential(
                nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Flatten(), nn.Linear(72, num_outputs)
            )

    results = []
    for network in (Lazy, Eager):
        seed_everything(3, verbose=False)
        module = FederatedModule(FedAvg(), LocalSolver(), network=network, client_trainer="sequential")
        trainer(tmp_path).fit(module, datamodule=digits())
        results.append(module.state_dict())
    lazy, eager = results
    assert lazy.keys() == eager.keys()
    assert_same_state(lazy, eager)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_lazy_layers_that_the_forward_pass_does_not_use(tmp_path):
    class Half(Lazy):
        def __init__(self, input_shape, num_outputs):
            super().__init__(input_shape, num_outputs)
            self.spare = nn.LazyLinear(2)

    with pytest.raises(ConfigError, match=r"Half has lazy layers .* does not use \(spare\.weight, spare\.bias\); give"):
        trainer(tmp_path).fit(FederatedModule(network=Half), datamodule=digits())
