"""What a LightningModule cannot have is refused before the first round, and what is guessed is said."""

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from own_modules import LitClassifier, LitText, LitWithLosses, Texts, padded
from quiet import quiet_trainer
from torch import nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, WeightedRandomSampler

from lit_fed import (
    FML,
    MOON,
    Digits,
    FedAvg,
    FedEM,
    FederatedDataModule,
    FederatedModule,
    FedLC,
    FedNova,
    LocalSolver,
    OwnLoss,
    Regression,
)
from lit_fed.errors import ConfigError


def group_norm():
    return LitClassifier(norm="group")


def data():
    samples, clients = Digits().load(), {}
    for place, name in enumerate(("anna", "bela")):
        rows = slice(16 * place, 16 * place + 16)
        clients[name] = samples.x[rows].reshape(16, 64), samples.y[rows]
    return FederatedDataModule.from_clients(clients, batch_size=6, test_fraction=0.25, num_classes=10)


def fit(algorithm, network, given=None, **settings):
    module = FederatedModule(algorithm, network=network, **settings)
    quiet_trainer(1).fit(module, given or data())
    return module


def module_with(**methods):
    """A class of `LitClassifier` with GroupNorm and other methods."""
    own = {"__init__": lambda self: LitClassifier.__init__(self, norm="group")}
    return type("Mine", (LitClassifier,), own | methods)


def contrastive(self, batch, batch_idx):
    features = F.normalize(self.body(batch[0]), dim=1)
    return F.cross_entropy(features @ features.T / 0.1, torch.arange(len(features)))


def of_optimizers(make):
    return {"configure_optimizers": make}


def plateau(self):
    optimizer = torch.optim.SGD(self.parameters(), 0.1)
    return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)}


def manual(self):
    LitClassifier.__init__(self, norm="group")
    self.automatic_optimization = False


SGD = torch.optim.SGD
REFUSED = {
    "manual": (FedAvg(), {"__init__": manual}, "Mine optimises manually, and its steps cannot be"),
    "no loss": (FedAvg(), {"training_step": lambda *_: None}, "Mine.training_step returns NoneType; return the mean"),
    "losses": (FedAvg(), {"training_step": lambda self, batch: self(batch[0])}, r"returns a tensor \[6, 10\]; return"),
    "detached": (
        FedAvg(), {"training_step": lambda self, batch: self(batch[0]).mean().detach()}, "has no gradient; return a",
    ),
    "datamodule": (
        FedAvg(), {"training_step": lambda self, batch: self.trainer.datamodule}, "a client has no trainer.datamodule;",
    ),
    "contrastive": (FedEM(), {"training_step": contrastive}, "compares the samples of a batch: alone each has"),
    "mean of losses": (
        FedEM(), {"sample_losses": lambda self, batch: self(batch[0]).mean()}, r"sample_losses returns \[\] for 8",
    ),
    "two optimizers": (
        FedAvg(), of_optimizers(lambda self: [SGD(self.parameters(), 0.1), SGD(self.parameters(), 0.1)]),
        "Mine.configure_optimizers returns 2 optimizers, and a client steps by one",
    ),
    "no optimizer": (FedAvg(), of_optimizers(lambda self: None), "returns NoneType; return an optimizer of"),
    "lbfgs": (FedAvg(), of_optimizers(lambda self: torch.optim.LBFGS(self.parameters())), "whose closure trains"),
    "plateau": (FedAvg(), of_optimizers(plateau), "ReduceLROnPlateau, which waits for a metric of one machine"),
    "a part": (
        FedAvg(), of_optimizers(lambda self: SGD(self.head.parameters(), 0.1)),
        "leaves out body.1.weight, one of 6 leaves that require a gradient; give all of them",
    ),
    "no sgd": (FedNova(), of_optimizers(lambda self: torch.optim.NAdam(self.parameters())), "give sgd, since FedNova"),
    "objective": (FedLC(), {}, "own local loss reads outputs or features of the network, and Mine computes its loss"),
    "features": (
        MOON(), {"forward": lambda self, x: self.head(self.body(x)) + 0},
        "and for a loss of the algorithm also --model.loss",
    ),
    "soft labels": (FML(), {}, "takes the predictions of another model for labels, and Mine computes its loss itself"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_before_the_first_round(case):
    algorithm, methods, said = REFUSED[case]
    module = FederatedModule(algorithm, network=module_with(**methods))
    with pytest.raises(ConfigError, match=said):
        quiet_trainer(1).fit(module, data())
    assert "federation" not in vars(module) or module.num_rounds_done == 0


def test_batch_norm_needs_losses_of_samples_for_a_mixture():
    with pytest.raises(ConfigError, match=r"with the BatchNorm of LitClassifier a sample has none in training; define"):
        fit(FedEM(), LitClassifier)
    fit(FedEM(), LitWithLosses)


def by_epoch(self, batch):
    return LitClassifier.training_step(self, batch, 0) * (1 + self.current_epoch)


def by_index(self, batch, batch_idx):
    return LitClassifier.training_step(self, batch, 0) * (1 + batch_idx % 2)


def by_value(self, batch):
    return LitClassifier.training_step(self, batch, 0) * (1 if batch[0].sum().item() else 2)


@pytest.mark.parametrize(
    ("step", "why"),
    [(by_epoch, "it reads self.current_epoch"), (by_index, "unsupported operand"), (by_value, "vmap: It looks like")],
)
def test_clients_at_once_are_refused_if_a_trial_fails(step, why):
    with pytest.raises(ConfigError, match=rf"client_trainer vectorized cannot run the training_step of Mine \({why}"):
        fit(FedAvg(), module_with(training_step=step), client_trainer="vectorized")


def test_an_optimizer_without_a_rule_takes_one_client_after_another():
    nadam = module_with(**of_optimizers(lambda self: torch.optim.NAdam(self.parameters())))
    with pytest.raises(ConfigError, match=r"vectorized has no rule of torch.optim.nadam.NAdam for clients at once"):
        fit(FedAvg(), nadam, client_trainer="vectorized")


def test_a_network_without_steps_has_no_loss_of_its_own():
    with pytest.raises(ConfigError, match=r"--model.target is OwnLoss, the loss of a module's training_step, and"):
        fit(FedAvg(), lambda: nn.Linear(64, 10), target=OwnLoss())


# ---------------------------------------------------------------------- what is said
def test_what_is_not_called_is_said(capsys):
    fit(FedAvg(), module_with(on_train_epoch_end=lambda self: None, backward=lambda self, loss: loss.backward()))
    said = capsys.readouterr().err
    assert (
        "lit_fed: Mine trains by its own training_step; clients do not call its on_train_epoch_end, backward\n" in said
    )


def test_losses_of_batches_and_samples_that_differ_are_said(capsys):
    def weighted(self, batch, batch_idx):
        weight = torch.where(batch[1] > 4, 3.0, 1.0)
        return (F.cross_entropy(self(batch[0]), batch[1], reduction="none") * weight).sum() / weight.sum()

    fit(FedEM(num_components=2), module_with(training_step=weighted))
    said = capsys.readouterr().err
    assert "lit_fed: the loss of Mine.training_step on a batch is 2." in said
    assert "; weights of samples act on the latter\n" in said


def test_single_samples_in_turn_are_said_and_equal(capsys):
    def looked_at(self, batch, batch_idx):
        loss = LitClassifier.training_step(self, batch, batch_idx)
        return loss if loss.item() > -1 else -loss

    torch.manual_seed(0)
    module = fit(FedEM(num_components=2), module_with(training_step=looked_at))
    assert "Mine.training_step runs on one sample after another, as vmap cannot run it (" in capsys.readouterr().err
    other = fit(FedEM(num_components=2), group_norm)
    for name, leaf in module.federation.shared.models.parameters.items():
        torch.testing.assert_close(leaf, other.federation.shared.models.parameters[name], rtol=0, atol=1e-6)


def test_attributes_that_steps_change_are_put_back(capsys):
    def counting(self, batch, batch_idx):
        self.seen = [*getattr(self, "seen", []), batch_idx]
        self.log("steps", float(len(self.seen)))
        return LitClassifier.training_step(self, batch, batch_idx)

    module = FederatedModule(FedAvg(), network=module_with(training_step=counting))
    trainer = quiet_trainer(2)
    trainer.fit(module, data())
    assert "Mine changes self.seen in its steps, which is put back after each client" in capsys.readouterr().err
    assert trainer.callback_metrics["train/seen/steps"] == 1.5  # each client counts 1 and 2, in every round


def test_counters_are_those_of_a_run_of_the_client():
    def looked_at(self, batch, batch_idx):
        self.log("epoch", float(self.current_epoch))
        self.log("step", float(self.global_step))
        self.log("last", float(self.trainer.max_epochs))
        return LitClassifier.training_step(self, batch, batch_idx)

    module = FederatedModule(FedAvg(), LocalSolver(local_epochs=2), module_with(training_step=looked_at))
    trainer = quiet_trainer(3)
    trainer.fit(module, data())
    found = {name: float(trainer.callback_metrics[f"train/seen/{name}"]) for name in ("epoch", "step", "last")}
    assert found == {"epoch": 4.5, "step": 9.5, "last": 6.0}  # of epochs 4 and 5, of two steps each


def test_a_given_loss_trains_the_forward_instead(capsys):
    from lit_fed import CrossEntropy

    module = fit(FedAvg(), group_norm, loss=CrossEntropy())
    assert module.federation.terms.task.own is None
    assert "trains by its own" not in capsys.readouterr().err


def test_a_lightning_module_without_steps_is_a_network():
    class Plain(LightningModule):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(64, 10)

        def forward(self, x):
            return self.model(x)

    assert fit(FedAvg(), Plain).federation.terms.task.own is None


# ---------------------------------------------------------------------- hooks and instances
class Lazy(LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.save_hyperparameters()
        self.model = None

    def configure_model(self):
        if self.model is None:
            self.model = nn.Sequential(nn.Linear(64, self.hparams.width), nn.ReLU(), nn.Linear(self.hparams.width, 10))

    def setup(self, stage):
        self.scale = 2.0 if stage == "fit" else 0.0

    def on_after_batch_transfer(self, batch, dataloader_idx):
        return batch[0] / self.scale, batch[1]

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch):
        self.log("mean", batch[0].mean())
        return {"loss": F.cross_entropy(self(batch[0]), batch[1]), "extra": 1}


@pytest.mark.parametrize("given", [Lazy, Lazy(), Lazy(width=4)], ids=["class", "instance", "other width"])
def test_hooks_are_called_and_components_are_built_anew(given):
    module = fit(FedEM(num_components=2), given)
    start = module.federation.server.initial_shared.models.parameters
    assert all(not torch.equal(leaf[0], leaf[1]) for leaf in start.values())
    if not isinstance(given, type):
        own = dict(given.named_parameters())
        assert all(torch.equal(leaf[0], own[name]) for name, leaf in start.items())
    train = data()
    train.setup()
    x = train.seen.train.client(0).all_x[:4]
    with torch.no_grad():
        model = {name: leaf[:1] for name, leaf in module.federation.shared.models.parameters.items()}
        outputs = module.federation.terms.task.outputs(type(module.federation.shared.models)(model, {}), x)[:, 0]
        alone = torch.func.functional_call(
            module.federation.terms.task.network, {name: leaf[0] for name, leaf in model.items()}, (x / 2,)
        )
    torch.testing.assert_close(outputs, alone)


# ---------------------------------------------------------------------- loaders
def texts(number=6, seed=0, **options):
    return DataLoader(Texts(number, seed), collate_fn=padded, **options)


def test_loaders_of_pairs_are_clients_with_inputs_and_labels():
    samples = Digits().load()
    rows = torch.utils.data.TensorDataset(torch.tensor(samples.x[:12].reshape(12, 64)), torch.tensor(samples.y[:12]))
    some = FederatedDataModule.from_clients(
        {"anna": Subset(rows, range(6)), "bela": DataLoader(rows, sampler=SubsetRandomSampler([11, 8, 9]))},
        test_fraction=0.0, num_classes=10,
    )  # fmt: skip
    some.setup()
    assert some.seen.train.sizes.tolist() == [6, 3]
    torch.testing.assert_close(some.seen.train.client(1).all_x, rows.tensors[0][[8, 9, 11]])


def test_texts_are_padded_by_the_function_of_the_user_over_all_clients():
    some = FederatedDataModule.from_clients({"anna": texts(), "bela": texts(4, 1)}, test_fraction=0.0)
    module = FederatedModule(FedAvg(), network=LitText)
    quiet_trainer(1).fit(module, some)
    batch = module.federation.terms.task.own.batch(some.seen.train.client(1).all_x, torch.zeros(4))
    both = padded([*Texts(6, 0), *Texts(4, 1)])
    assert {name: leaf.dtype for name, leaf in batch.items()} == {name: leaf.dtype for name, leaf in both.items()}
    rows = [
        sorted(torch.cat([one["ids"], one["labels"]], 1).tolist())
        for one in (batch, {k: v[6:] for k, v in both.items()})
    ]
    assert rows[0] == rows[1]


class Keyed(LightningModule):
    """Reads whatever a batch is."""

    def __init__(self, read):
        super().__init__()
        self.read, self.out = read, nn.Linear(64, 64)

    def training_step(self, batch, batch_idx):
        return self.out(self.read(batch)).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


class Rows(torch.utils.data.Dataset):
    def __init__(self, make):
        self.make, self.x = make, torch.tensor(Digits().load().x[:9].reshape(9, 64))

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return self.make(self.x[index])


BATCHES = {
    "one tensor": (lambda x: x, lambda batch: batch),
    "a key y": (lambda x: {"x": x, "y": x}, lambda batch: batch["y"]),
    "three": (lambda x: (x, x.sum(), x > 0), lambda batch: batch[0]),
    "labels of one number": (lambda x: {"x": x, "y": x[:1]}, lambda batch: batch["x"] + batch["y"]),
}


@pytest.mark.parametrize("case", BATCHES)
def test_batches_of_any_form_reach_the_steps(case):
    make, read = BATCHES[case]
    some = FederatedDataModule.from_clients({"anna": Rows(make), "bela": Rows(make)}, batch_size=4, test_fraction=0.2)
    module = fit(FedEM(num_components=2), lambda: Keyed(read), some)
    start, end = (one.models.parameters for one in (module.federation.server.initial_shared, module.federation.shared))
    assert all(not torch.equal(leaf, end[name]) for name, leaf in start.items())


def test_a_forward_that_reads_no_batch_makes_no_predictions(capsys):
    class Plain(Keyed):
        def __init__(self):
            super().__init__(lambda batch: batch["image"])

        def forward(self, x):
            return self.out(x)

    some = FederatedDataModule.from_clients({"anna": Rows(lambda x: {"image": x})}, test_fraction=0.2)
    fit(FedAvg(), Plain, some)
    assert "lit_fed: Plain.forward cannot read a batch (" in capsys.readouterr().err


LOADERS = {
    "batch_sampler": (
        {"anna": DataLoader(Texts(6, 0), batch_sampler=[[0, 1], [2]], collate_fn=padded)},
        "'anna' has a list; give torch.utils.data.Subset in place of a batch_sampler",
    ),
    "mixed": ({"anna": texts(), "bela": ([[1.0]], [1])}, "client 'bela' is a tuple, and others are loaders"),
    "sampler": (
        {"anna": texts(sampler=WeightedRandomSampler([1.0] * 6, 6))}, "'anna' has a WeightedRandomSampler; give torch",
    ),
    "ragged": ({"anna": Texts(6, 0)}, "cannot be collated .*; give DataLoaders with a collate_fn that pads"),
    "text": (
        {"anna": DataLoader(Texts(3, 0), collate_fn=lambda some: {**padded(some), "words": ["a", "b", "c"]})},
        "a batch holds 'words', a list, which is no tensor with a row for each sample; leave it out by a collate_fn",
    ),
    "collate": (
        {"anna": texts(), "bela": DataLoader(Texts(3, 0), collate_fn=lambda some: padded(some))},
        "the loaders of clients have different collate_fn",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOADERS)
def test_loaders_that_cannot_be_read_are_refused(case):
    clients, said = LOADERS[case]
    with pytest.raises(ConfigError, match=said):
        FederatedDataModule.from_clients(clients)


def test_a_target_of_labels_has_none_in_such_batches():
    with pytest.raises(ConfigError, match=r"samples hold their labels .* where --model.target Regression cannot find"):
        fit(FedAvg(), LitText, FederatedDataModule.from_clients({"anna": texts()}), target=Regression())
