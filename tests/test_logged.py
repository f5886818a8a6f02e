"""What a module's own steps log for each client, against Lightning's `Trainer.test` of the models that serve it."""

import json

import pytest
import torch
import torch.nn.functional as F
import torchmetrics
from lightning.pytorch import Trainer
from own_modules import LitClassifier, LitSegmenter
from quiet import quiet_trainer
from torch.utils.data import DataLoader, TensorDataset

from lit_fed import (
    Digits,
    Ditto,
    FedAvg,
    FedEM,
    FederatedDataModule,
    FederatedModule,
    OwnLoss,
    client_table,
    export,
)
from lit_fed.core import tree
from lit_fed.errors import ConfigError


class Measured(LitClassifier):
    """Logs numbers and objects of torchmetrics, in both steps."""

    def __init__(self):
        super().__init__(norm="group")
        self.hits = torchmetrics.Accuracy("multiclass", num_classes=10)
        self.f1 = torchmetrics.F1Score("multiclass", num_classes=10, average="macro")

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_hits", self.hits)
        self.hits(self(batch[0]), batch[1])
        return loss

    def test_step(self, batch, batch_idx):
        x, y = batch
        outputs = self(x)
        self.hits(outputs, y)
        self.f1.update(outputs, y)
        self.log_dict({"test_loss": F.cross_entropy(outputs, y), "test/f1": self.f1}, on_epoch=True)
        self.log("test_hits", self.hits)

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))


def data(**options):
    samples, clients, at = Digits().load(), {}, 0
    for name, size in {"anna": 50, "bela": 30, "cleo": 20}.items():
        clients[name] = samples.x[at : at + size].reshape(size, 64), samples.y[at : at + size]
        at += size
    return FederatedDataModule.from_clients(clients, batch_size=8, test_fraction=0.4, num_classes=10, **options)


def run(algorithm, network=Measured, **settings):
    given, module = data(), FederatedModule(algorithm, network=network, **settings)
    trainer = quiet_trainer(2)
    trainer.fit(module, given)
    trainer.test(module, given, verbose=False)
    return trainer, module, given


def by_lightning(network, given, client):
    """What `Trainer.test` logs for the samples of a client, in batches of the same size."""
    some = given.seen.test.client(client)
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    (found,) = trainer.test(network, DataLoader(TensorDataset(some.all_x, some.all_y), batch_size=8), verbose=False)
    return {name.replace("/", "_"): value for name, value in found.items()}


@pytest.mark.parametrize("algorithm", [FedAvg(), Ditto()], ids=["FedAvg", "Ditto"])
def test_it_is_what_trainer_test_logs(algorithm):
    trainer, module, given = run(algorithm)
    table = client_table(trainer)
    states = module.store.gather(torch.arange(3))["state"]
    for client in range(3):
        models = tree.row(states, client) if isinstance(algorithm, Ditto) else module.federation.shared.models
        network = Measured()
        network.load_state_dict(tree.index(models.parameters, 0))
        for name, value in by_lightning(network, given, client).items():
            assert table[name][client] == pytest.approx(value, abs=1e-6), name
    sizes = given.seen.test.sizes.double()
    mean = (torch.tensor(table["test_hits"].to_numpy()) * sizes).sum() / sizes.sum()
    assert float(trainer.callback_metrics["test/seen/test_hits"]) == pytest.approx(float(mean), abs=1e-6)


def test_a_mixture_is_measured_as_it_predicts():
    trainer, _, _ = run(FedEM(num_components=2))
    table = client_table(trainer)
    torch.testing.assert_close(torch.tensor(table["test_hits"].to_numpy()), torch.tensor(table["accuracy"].to_numpy()))
    assert table["test_loss"].to_numpy() == pytest.approx(table["loss"].to_numpy(), abs=1e-6)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2)], ids=["FedAvg", "FedEM"])
def test_steps_of_masks_see_pixels_in_their_places(algorithm):
    rng = torch.Generator().manual_seed(1)
    pictures = {name: torch.randn(10, 1, 4, 6, generator=rng) for name in ("anna", "bela")}
    clients = {name: (x, (x[:, 0] > 0).long() + (x[:, 0] > 1)) for name, x in pictures.items()}
    given = FederatedDataModule.from_clients(clients, batch_size=4, test_fraction=0.4)
    module, trainer = FederatedModule(algorithm, network=LitSegmenter), quiet_trainer(2)
    trainer.fit(module, given)
    trainer.test(module, given, verbose=False)
    table = client_table(trainer)
    assert table["pixels_right"].to_numpy() == pytest.approx(table["accuracy"].to_numpy(), abs=1e-6)


def test_where_the_loss_is_its_own_a_mixture_has_the_mean_of_its_models(capsys):
    class Errors(LitClassifier):
        def __init__(self):
            super().__init__(norm="group")

        def test_step(self, batch, batch_idx):
            self.log("first", self.head.bias[0])

    trainer, module, _ = run(FedEM(num_components=2), Errors, target=OwnLoss())
    assert "of a mixture, what Errors logs is the mean over its models, by their weights\n" in capsys.readouterr().err
    table, bias = client_table(trainer), module.federation.shared.models.parameters["head.bias"][:, 0]
    for client in range(3):
        wanted = table["pi_0"][client] * bias[0] + table["pi_1"][client] * bias[1]
        assert table["first"][client] == pytest.approx(float(wanted), abs=1e-6)


def test_each_split_has_its_step(tmp_path):
    module = FederatedModule(FedAvg(), network=Measured)
    trainer = quiet_trainer(1, tmp_path)
    given = data(val_fraction=0.2)
    trainer.fit(module, given)
    assert {"val/seen/val_loss", "train/seen/train_loss", "train/seen/train_hits"} <= trainer.callback_metrics.keys()
    assert "val/seen/test_loss" not in trainer.callback_metrics
    trainer.test(module, given, verbose=False)
    assert "test/seen/val_loss" not in trainer.callback_metrics
    summary = json.loads((tmp_path / "run" / "version_0" / "summary.json").read_text())
    assert summary["test/seen/test_loss"] == pytest.approx(float(trainer.callback_metrics["test/seen/test_loss"]))


class Reduced(LitClassifier):
    """Logs by other reductions, under names that results have already, and behind the last batch."""

    def __init__(self):
        super().__init__(norm="group")
        self.hits = torchmetrics.Accuracy("multiclass", num_classes=10)

    def test_step(self, batch, batch_idx):
        size = float(len(batch[1]))
        for how in ("sum", "max", "min"):
            self.log(how, size, reduce_fx=how)
        self.log("largest", size, reduce_fx=torch.max)
        self.log("accuracy", 7.0)
        self.hits.update(self(batch[0]), batch[1])

    def on_test_epoch_end(self):
        self.log("computed", self.hits.compute())


def test_reductions_taken_names_and_the_hook_behind_the_last_batch(capsys):
    trainer, module, given = run(FedAvg(), Reduced)
    said = capsys.readouterr().err
    assert "lit_fed: accuracy, which Reduced logs, is own_accuracy in results, which have this name already\n" in said
    table = client_table(trainer)
    for client in range(3):
        network = Reduced()  # whose metric Lightning does not reset
        network.load_state_dict(network.state_dict() | tree.index(module.federation.shared.models.parameters, 0))
        found = by_lightning(network, given, client)
        for name in ("sum", "max", "min", "largest", "computed"):
            assert table[name][client] == pytest.approx(found[name], abs=1e-6), name
    assert table["own_accuracy"].tolist() == [7.0] * 3
    assert table["accuracy"].to_numpy() == pytest.approx(table["computed"].to_numpy(), abs=1e-6)


LOGGED = {
    "tensor": (lambda self, batch, batch_idx: self.log("many", torch.ones(3)), "self.log\\('many'\\) has a tensor"),
    "dict": (lambda self, batch, batch_idx: self.log("many", {"a": 1.0}), "has a dict; use self.log_dict"),
    "reduction": (
        lambda self, batch, batch_idx: self.log("one", 1.0, reduce_fx=len), "has reduce_fx len; give mean, sum, min",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOGGED)
def test_what_is_no_number_is_refused_before_the_first_round(case):
    step, said = LOGGED[case]
    kind = type("Mine", (Measured,), {"test_step": step})
    module = FederatedModule(FedAvg(), network=kind)
    with pytest.raises(ConfigError, match=said):
        quiet_trainer(1).fit(module, data())


# ---------------------------------------------------------------------- back to Lightning
def test_a_client_has_a_checkpoint_that_its_class_loads(tmp_path):
    trainer, module, given = run(Ditto(), LitClassifier)
    export(trainer, module, given, client="bela", format="lightning", output=str(tmp_path / "bela"))
    loaded = LitClassifier.load_from_checkpoint(tmp_path / "bela" / "model.ckpt")
    assert dict(loaded.hparams) == {"width": 8, "norm": "batch", "lr": 0.1}
    table = client_table(trainer)
    assert by_lightning(loaded, given, 1)["test_loss"] == pytest.approx(table["test_loss"][1], abs=1e-6)


def test_a_mixture_has_a_checkpoint_for_each_component(tmp_path):
    trainer, module, given = run(FedEM(num_components=2), lambda: LitClassifier(norm="group"))
    export(trainer, module, given, client="anna", format="lightning", output=str(tmp_path / "anna"))
    about = json.loads((tmp_path / "anna" / "mixture.json").read_text())
    models = [LitClassifier.load_from_checkpoint(tmp_path / "anna" / f"{name}.ckpt") for name in about["weights"]]
    x = given.seen.test.client(0).all_x
    with torch.no_grad():
        mixed = sum(w * one.eval()(x).softmax(1) for w, one in zip(about["weights"].values(), models, strict=True))
    hits = (mixed.argmax(1) == given.seen.test.client(0).all_y).float().mean()
    assert float(hits) == pytest.approx(client_table(trainer)["accuracy"][0], abs=1e-6)


def test_training_starts_from_a_checkpoint_of_a_trainer(tmp_path):
    own = LitClassifier()
    trainer = Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, default_root_dir=tmp_path
    )
    some = Digits().load()
    rows = TensorDataset(torch.tensor(some.x[:32].reshape(32, 64)), torch.tensor(some.y[:32]))
    trainer.fit(own, DataLoader(rows, batch_size=8))
    trainer.save_checkpoint(tmp_path / "own.ckpt")
    module = FederatedModule(FedAvg(), network=LitClassifier)
    quiet_trainer(1).fit(module, data(), init_from=str(tmp_path / "own.ckpt"))
    start = module.federation.server.initial_shared.models
    for name, leaf in own.state_dict().items():
        assert torch.equal((start.parameters | start.buffers)[name][0], leaf), name


def test_a_network_that_is_no_lightning_module_has_no_such_checkpoint(tmp_path):
    given, module = data(), FederatedModule(FedAvg())
    trainer = quiet_trainer(1)
    trainer.fit(module, given)
    with pytest.raises(ConfigError, match="--format lightning writes checkpoints of a LightningModule, and Linear is"):
        export(trainer, module, given, client="anna", format="lightning", output=str(tmp_path / "anna"))
