"""Masks: losses, mixtures pixel by pixel, Dice and IoU, against torch, torchmetrics and by hand."""

import numpy as np
import pytest
import torch
from federated_round import distance, facts, run_rounds
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassF1Score, MulticlassJaccardIndex

import lit_fed
from lit_fed import (
    Binary,
    CrossEntropy,
    DiceLoss,
    FedAvg,
    FedEM,
    FederatedDataModule,
    FederatedModule,
    FocalLoss,
    Multiclass,
    Regression,
    Segmentation,
    Sequences,
    UNet,
    personal_model,
)
from lit_fed.algorithms import IFCA, SCAFFOLD, UCFL, Ditto, FedADMM, FedNova, Local, QFedAvg
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.segmentation import pixels_last
from lit_fed.core.targets import Criterion, Target
from lit_fed.core.task import Task
from lit_fed.core.types import Split
from lit_fed.data.augmentation import make_augmentation, mask_form
from lit_fed.data.new_clients import NewClients
from lit_fed.errors import ConfigError
from lit_fed.metrics.selection import choose_metrics
from lit_fed.session import Session
from lit_fed.training.export import save_program

SHAPE, TARGET = (8, 8), Segmentation(3, ignore_index=255)


def small(num_outputs=3):
    return UNet((1, *SHAPE), num_outputs, channels=(2, 3))


def task(target=TARGET, **fields):
    return Task.create(lambda: pixels_last(small(), target, SHAPE), target, dtype=torch.float64, **fields)


def pictures(num=6, seed=0, *, void=True):
    """Pictures [n, 1, 8, 8] and masks [n, 8, 8], with a border that does not count."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 1, *SHAPE, generator=rng, dtype=torch.float64)
    y = (x[:, 0] > 0).long() + (x[:, 0] > 1).long()
    y[:, 0] = 255 if void else 0
    return x, y


def clients(num=6):
    x, y = pictures(num)
    return Split(x, y.flatten(1), torch.tensor([0, num // 2, num]))


# ---------------------------------------------------------------------- outputs and losses
def test_losses_are_torchs_of_the_outputs_of_the_network():
    some, (x, y) = task(), pictures()
    models = some.init(2, 0)
    outputs = some.outputs(models, x)
    assert outputs.shape == (6, 2, 64, 3)
    plain = small().double()
    plain.load_state_dict({name: leaf[1] for name, leaf in models.parameters.items()})
    expected = F.cross_entropy(plain(x), y, ignore_index=255, reduction="none").flatten(1).sum(1) / 56
    torch.testing.assert_close(some.losses(outputs, y.flatten(1))[:, 1], expected, rtol=0, atol=1e-12)


def test_a_mixture_mixes_pixels():
    some, (x, _) = task(), pictures(2)
    outputs = some.outputs(some.init(2, 0), x)
    weights = torch.tensor([0.25, 0.75], dtype=torch.float64)
    mixed = some.mix(weights, outputs).exp()
    assert mixed.shape == (2, 64, 3)
    probabilities = outputs.softmax(-1)
    torch.testing.assert_close(mixed, 0.25 * probabilities[:, 0] + 0.75 * probabilities[:, 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(num_components=2), FedEM(num_components=2, position_loss="sum")])
@pytest.mark.parametrize("loss", [None, DiceLoss(), FocalLoss()])
def test_both_trainers(algorithm, loss):
    criterion = None if loss is None else Criterion(loss, TARGET)
    terms = {"train": clients(), "solver": LocalSolver(lr=0.1), "rounds": 2}
    one = run_rounds(algorithm, SequentialTrainer(), task=task(criterion=criterion), **terms)
    other = run_rounds(algorithm, VectorizedTrainer(), task=task(criterion=criterion), **terms)
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-10
    assert bool(one.evaluate().isfinite().all())


@pytest.mark.parametrize(
    "algorithm",
    [Local(), FedNova(), FedADMM(), QFedAvg(), SCAFFOLD(), IFCA(num_clusters=2), Ditto(), UCFL()],
    ids=lambda one: type(one).__name__,
)
def test_both_trainers_send_each_kind_of_message(algorithm):
    terms = {"train": clients(4), "solver": LocalSolver(lr=0.1), "rounds": 1, "task": task()}
    one, other = (run_rounds(algorithm, trainer, **terms) for trainer in (SequentialTrainer(), VectorizedTrainer()))
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-10
    assert bool(one.evaluate().isfinite().all())


@pytest.mark.parametrize("augment", ["RandomHorizontalFlip, RandomCrop(8, padding=2)", "RandomRotation(45)"])
def test_both_trainers_augment_masks(augment):
    made = make_augmentation(augment, None, mask_form(TARGET, SHAPE))
    terms = {"train": clients(7), "solver": LocalSolver(lr=0.1), "rounds": 2, "batch_size": 2}
    one, other, plain = (
        run_rounds(FedEM(num_components=2), trainer, task=task(), augmentation=augmentation, **terms)
        for trainer, augmentation in (
            (SequentialTrainer(), made), (VectorizedTrainer(), made), (SequentialTrainer(), None)
        )
    )  # fmt: skip
    assert distance((one.shared, one.states), (other.shared, other.states)) < 1e-10
    assert distance(one.shared, plain.shared) > 1e-4


LOGITS = torch.tensor([[[2.0, 0.0], [0.0, 1.0], [-1.0, 1.0]]], dtype=torch.float64)  # [B, L, K]
CLASSES = torch.tensor([[0, 1, 0]])


def test_dice_by_hand():
    p = LOGITS.softmax(-1)[0]
    background = (2 * (p[0, 0] + p[2, 0]) + 1) / (p[:, 0].sum() + 2 + 1)
    front = (2 * p[1, 1] + 1) / (p[:, 1].sum() + 1 + 1)
    target = Segmentation(2)
    close = {"rtol": 0, "atol": 1e-14}
    torch.testing.assert_close(DiceLoss().losses(target, LOGITS, CLASSES)[0], 1 - (background + front) / 2, **close)
    torch.testing.assert_close(DiceLoss(background=False).losses(target, LOGITS, CLASSES)[0], 1 - front, **close)
    perfect = 200 * F.one_hot(CLASSES, 2).double()
    assert float(DiceLoss().losses(target, perfect, CLASSES)) == 0
    void = torch.tensor([[0, 1, 255]])  # as if the pixel were not there
    first = DiceLoss().losses(Segmentation(2, 255), LOGITS, void)
    torch.testing.assert_close(first, DiceLoss().losses(target, LOGITS[:, :2], CLASSES[:, :2]), **close)
    nothing = DiceLoss().losses(Segmentation(2, 255), LOGITS, torch.full((1, 3), 255))
    assert nothing.tolist() == [0]


def test_focal_by_hand():
    p = LOGITS.softmax(-1)[0, torch.arange(3), CLASSES[0]]
    found = FocalLoss(gamma=2).losses(Segmentation(2), LOGITS, CLASSES)
    torch.testing.assert_close(found[0], (-((1 - p) ** 2) * p.log()).mean(), rtol=0, atol=1e-14)
    plain = FocalLoss(gamma=0).losses(Segmentation(2), LOGITS, CLASSES)
    torch.testing.assert_close(plain, CrossEntropy().losses(Segmentation(2), LOGITS, CLASSES), rtol=0, atol=1e-14)
    sure = torch.tensor([[1000.0, 0.0]], dtype=torch.float64)  # p = 1
    gradient = FocalLoss(gamma=0.5).residual(Multiclass(2), sure, torch.tensor([0]))
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize(
    ("loss", "target", "message"),
    [
        (DiceLoss(), Multiclass(3), "DiceLoss is for masks, and these labels are multiclass"),
        (FocalLoss(), Binary(), "FocalLoss is for classes with an output each, and these labels are binary"),
        (FocalLoss(), Regression(), "these labels are regression"),
    ],
)
def test_losses_for_other_labels_are_refused(loss, target, message):
    with pytest.raises(ConfigError, match=message):
        Criterion(loss, target)


# ---------------------------------------------------------------------- metrics
def test_iou_and_dice_of_each_client_are_those_of_torchmetrics():
    _, y = pictures(4)
    prediction = torch.randn(2, 2, 64, 3, generator=torch.Generator().manual_seed(3)).log_softmax(-1)
    labels = y.flatten(1).unflatten(0, (2, 2))
    chosen = choose_metrics(None, TARGET)
    assert chosen.names == ["jaccard_index", "dice"]
    meter = chosen.meter(2)
    meter.add(torch.arange(2), prediction, labels, torch.ones(2, 2))
    called, found = prediction.argmax(-1), torch.stack([*meter.values().values()])
    for client in range(2):
        iou = MulticlassJaccardIndex(3, average="none", ignore_index=255)(called[client], labels[client])[1:].mean()
        dice = MulticlassF1Score(3, average="none", ignore_index=255)(called[client], labels[client])[1:].mean()
        torch.testing.assert_close(found[:, client], torch.stack([iou, dice]).double(), rtol=0, atol=1e-6)
        kept = labels[client] != 255
        p, t = called[client][kept], labels[client][kept]
        both = [int(((p == c) & (t == c)).sum()) for c in (1, 2)]
        sums = [int((p == c).sum() + (t == c).sum()) for c in (1, 2)]
        by_hand = np.mean([2 * b / s for b, s in zip(both, sums, strict=True)])
        assert float(found[1, client]) == pytest.approx(by_hand, abs=1e-6)


def test_the_background_is_an_option():
    """Without foreground in labels and predictions, the foreground's metrics are undefined."""
    y = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]])
    prediction = torch.eye(2)[torch.tensor([[0, 1, 1, 1], [0, 0, 0, 0]])].log()
    given = {
        "iou": {"class_path": "JaccardIndex", "init_args": {"average": "macro"}},
        "dice": {"class_path": "F1Score", "init_args": {"average": "macro", "include_background": True}},
    }
    found = []
    for metrics in (None, given):
        chosen = choose_metrics(metrics, Segmentation(2))
        meter = chosen.meter(2)
        meter.add(torch.arange(2), prediction[:, None], y[:, None], torch.ones(2, 1))
        found.append(torch.stack([*meter.values().values()]))
    torch.testing.assert_close(found[0][:, 0], torch.tensor([2 / 3, 4 / 5]).double(), rtol=0, atol=1e-7)
    assert bool(found[0][:, 1].isnan().all())
    by_hand = [[(2 / 3 + 1 / 2) / 2, 1], [(4 / 5 + 2 / 3) / 2, 1]]
    torch.testing.assert_close(found[1], torch.tensor(by_hand).double(), rtol=0, atol=1e-7)
    for wrong in ({"JaccardIndex": {"average": "micro"}}, {"AUROC": {"average": "macro"}}):
        ((name, arguments),) = wrong.items()
        with pytest.raises(ConfigError, match=f"--model.metrics {name} has include_background, which is for macro"):
            choose_metrics({name: arguments | {"include_background": False}}, Segmentation(3))


# ---------------------------------------------------------------------- networks and data
def built(network, shape=(1, *SHAPE), target=None, label_shape=SHAPE):
    settings = FederatedModule(algorithm=FedAvg(), network=network).settings
    about = facts(target or Segmentation(3), shape, label_shape=label_shape)
    return Session.of(settings, about, torch.device("cpu"))


class Wrong(nn.Module):
    def __init__(self, in_channels):
        super().__init__()
        self.layer = nn.Conv2d(in_channels, 1, 1)

    def forward(self, x):
        return self.layer(x)


def test_errors_name_what_the_network_returns_and_what_masks_need():
    said = r"the network Wrong returns \[B, 1, 8, 8\]; for masks of 3 classes it should return \[B, 3, 8, 8\]"
    with pytest.raises(ConfigError, match=said):
        built(Wrong)
    with pytest.raises(ConfigError, match=r"Linear returns \[B, 3\]; for masks of 3 classes .* such as UNet"):
        built(lit_fed.Linear)
    assert built(UNet).terms.task.network(torch.zeros(2, 1, 8, 8)).shape == (2, 64, 3)


def colours(num_outputs):
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.LazyLinear(num_outputs))


@pytest.mark.parametrize(
    ("shape", "any_channels", "three"),
    [
        ((32, 30, 3), "np.moveaxis(x, -1, 1), which is [n, 3, 32, 30]", None),
        (
            (28, 28, 1),
            "np.moveaxis(x, -1, 1), which",
            "np.repeat(np.moveaxis(x, -1, 1), 3, 1), which is [n, 3, 28, 28]",
        ),
        ((28, 28, 4), "np.moveaxis(x, -1, 1), which", "np.moveaxis(x, -1, 1)[:, :3], which is [n, 3, 28, 28]"),
        ((784,), "x.reshape(-1, 1, 28, 28)", "np.repeat(x.reshape(-1, 1, 28, 28), 3, 1)"),
        ((3072,), "x.reshape(-1, 3, 32, 32)", None),
        ((28, 28), "x[:, None], which is [n, 1, 28, 28]", "np.repeat(x[:, None], 3, 1), which is [n, 3, 28, 28]"),
        ((1, 28, 28), None, "np.repeat(x, 3, 1)"),
    ],
)
def test_pictures_in_another_layout_are_named(shape, any_channels, three):
    for network in (lit_fed.LeNet5, lit_fed.ResNet18, colours):
        hint = any_channels if network is lit_fed.LeNet5 else three or any_channels
        if hint is not None:
            with pytest.raises(ConfigError) as caught:
                built(network, shape, Multiclass(3), ())
            assert f"store x = {hint}" in str(caught.value)


def test_a_network_for_channels_reads_no_height():
    with pytest.raises(ConfigError, match=r"Wrong needs in_channels, but the samples are \[8, 8, 3\].*np.moveaxis"):
        built(Wrong, (8, 8, 3))


def data_of(y, given=None, **settings):
    x = np.random.default_rng(0).random((len(y), 1, 8, 8), np.float32)
    data = FederatedDataModule.from_clients({"ann": (x, y.numpy())}, test_fraction=0, **settings)
    data.given_target = given
    data.setup()
    return data


@pytest.mark.parametrize("settings", [{}, {"given": Segmentation()}, {"num_classes": 2}])
def test_two_values_are_background_and_foreground(settings, capsys, tmp_path):
    y = (pictures(void=False)[1] > 0).long()
    data = data_of(255 * y, **settings)
    assert "lit_fed: masks hold 0 and 255, which are read as the classes 0 and 1\n" in capsys.readouterr().err
    assert data.target == Segmentation(2)
    assert data.seen.train.y.sum() == y.sum()
    np.savez(tmp_path / "bob.npz", x_train=data.seen.train.x.numpy(), y_train=255 * y.numpy())
    later = NewClients(str(tmp_path), data.facts(weighting="samples", seed=0, num_rounds=1)).unseen
    assert later.train.y.equal(y.flatten(1))
    assert data_of(15 * y, Segmentation(21)).seen.train.y.max() == 15
    void = torch.where(torch.arange(8) < 2, 255, 7 * y)
    data = data_of(void, Segmentation(ignore_index=255))
    assert (data.target, data.seen.train.y.unique().tolist()) == (Segmentation(2, 255), [0, 1, 255])
    with pytest.raises(ConfigError, match="besides 255, which is ignored, masks hold 0 alone; give masks of two"):
        data_of(255 * y, Segmentation(ignore_index=255))


def test_masks_are_inferred():
    _, y = pictures(void=False)
    data = data_of(y)
    assert data.target == Segmentation(3)
    about = data.facts(weighting="samples", seed=0, num_rounds=1)
    assert (about.label_shape, data.seen.train.y.shape) == ((8, 8), (6, 64))
    assert type(about).from_plain(about.plain()) == about
    assert Target.from_plain(*TARGET.plain) == TARGET
    assert Target.from_plain("multiclass", 3, True) == Sequences(3)
    with pytest.raises(ConfigError, match=r"the values 0, 1, 2, 255, which.* --model.target.ignore_index 255"):
        data_of(pictures()[1])
    for given in (None, Segmentation()):
        with pytest.raises(ConfigError, match=r"masks hold the values 0, 7, 200, which are not .*; number the classes"):
            data_of(torch.tensor([0, 7, 200])[y], given)
    assert data_of(torch.tensor([0, 7, 200])[y], Segmentation(201)).target == Segmentation(201)
    assert data_of(y, augment="RandomHorizontalFlip").target.ignored == -100


def test_a_fit_measures_dice_and_exports(tmp_path):
    clients = {}
    for number in range(3):
        x, y = pictures(8, seed=number)
        clients[f"c{number}"] = (x.float().numpy(), y.numpy())
    data = FederatedDataModule.from_clients(clients)
    module = FederatedModule(
        FedEM(num_components=2), LocalSolver(lr=0.1), network=small_network, target=Segmentation(ignore_index=255)
    )
    trainer = lit_fed.FederatedTrainer(
        max_epochs=2, accelerator="cpu", devices=1, enable_progress_bar=False, default_root_dir=tmp_path,
        logger=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    found = trainer.test(module, datamodule=data, verbose=False)[0]
    assert {"test/seen/accuracy", "test/seen/dice", "test/seen/jaccard_index"} <= found.keys()
    personal = personal_model(trainer, module, data, client="c1")
    x = torch.rand(2, 1, 8, 8)
    assert personal(x).shape == (2, 64, 3)
    save_program(personal, tmp_path / "model.pt2")
    torch.testing.assert_close(torch.export.load(tmp_path / "model.pt2").module()(x), personal(x), rtol=0, atol=1e-6)


def small_network(input_shape, num_outputs):
    return UNet(input_shape, num_outputs, channels=(2, 3))
