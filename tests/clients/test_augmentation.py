"""Pictures augmented in local steps: the same ones wherever a client runs, and nowhere else."""

from collections import Counter

import pytest
import torch
from federated_round import MULTICLASS, Federation, distance, make_context, make_task, run_rounds, small_mlp
from torch import nn
from torchvision.transforms import v2

from lit_fed.algorithms import (
    GADMM,
    L2GD,
    MOCHA,
    ConsensusADMM,
    FedAvg,
    FedAvgPlus,
    FedEM,
    OfficialFedEM,
    PerFedAvg,
    ProxAvg,
)
from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.clients.base import augmented
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.seeds import Secret, seed_of
from lit_fed.core.types import LocalWork, Split
from lit_fed.data.augmentation import Augmentation, MaskForm, in_batches, make_augmentation
from lit_fed.errors import ConfigError
from lit_fed.models import Linear
from lit_fed.session import check_augmented_steps
from lit_fed.wrappers.privacy.example_level import ExamplePrivacy

SIZES = [9, 1, 6, 2]
TRANSFORMS = (in_batches(v2.RandomHorizontalFlip()), v2.RandomCrop(5, padding=1))


class Recorded(Augmentation):
    """Keeps what it made of each stream."""

    def __init__(self, transforms=TRANSFORMS, **constants):
        super().__init__(transforms, **constants, said="'these'")
        self.made = {}

    def __call__(self, x, y, stream):
        key = tuple(stream.entropy.tolist())
        assert key not in self.made, "a stream is drawn from once"
        self.made[key], y = super().__call__(x, y, stream)
        return self.made[key], y


def pictures(sizes=SIZES, dtype=torch.float64):
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(sum(sizes), 1, 5, 5, generator=rng, dtype=torch.float64).to(dtype)
    y = torch.randint(3, (sum(sizes),), generator=rng)
    return Split(x, y, torch.tensor([0, *sizes]).cumsum(0))


def task(network=small_mlp):
    return make_task(MULTICLASS, (1, 5, 5), lambda _, outputs: network((1, 5, 5), outputs))


def trained(algorithm, trainer=None, rounds=2, augmentation=None, **options):
    options = {"batch_size": 4, "task": task(), "solver": LocalSolver(local_epochs=2)} | options
    return run_rounds(algorithm, trainer, pictures(), rounds=rounds, augmentation=augmentation, **options)


@pytest.mark.parametrize(
    ("algorithm", "solver"),
    [
        (FedAvg(), {"local_epochs": 2}),
        (FedAvg(), {"local_epochs": 3, "straggler_fraction": 0.7}),
        (OfficialFedEM(num_components=2), {}),
        (PerFedAvg(), {}),
        (FedAvgPlus(), {}),
    ],
    ids=["FedAvg", "stragglers", "FedEM", "PerFedAvg", "FedAvgPlus"],
)
def test_client_trainers_see_the_same_pictures(algorithm, solver):
    each = []
    for trainer in (SequentialTrainer(), VectorizedTrainer()):
        augmentation = Recorded()
        run = trained(algorithm, trainer, augmentation=augmentation, solver=LocalSolver(**solver))
        run.predictions()  # adapts where the algorithm asks for it
        each.append((run, augmentation.made))
    (one, here), (other, there) = each
    assert here.keys() == there.keys()
    assert len(here) > 8
    assert all(torch.equal(here[key], there[key]) for key in here)
    assert distance(one.shared, other.shared) < 1e-12
    assert distance(one.states, other.states) < 1e-12


def test_blocks_change_no_bit():
    one, other = (trained(FedEM(), augmentation=Recorded(), clients_per_block=size) for size in (1, 4))
    assert distance(one.shared, other.shared) == 0
    assert distance(one.shared, trained(FedEM()).shared) > 1e-3


def test_a_run_that_goes_on_draws_what_it_would_have_drawn():
    whole, first = trained(FedAvg(), rounds=3, augmentation=Recorded()), trained(FedAvg(), augmentation=Recorded())
    rest = Federation(
        FedAvg(), pictures(), task(), LocalSolver(local_epochs=2), shared=first.shared, round_idx=2, num_rounds=3,
        augmentation=Recorded(),
    )  # fmt: skip
    rest.round()
    assert distance(rest.shared, whole.shared) == 0


@pytest.mark.parametrize("trainer", [SequentialTrainer(), VectorizedTrainer()], ids=lambda one: one.name)
def test_an_expectation_step_sees_the_originals(trainer):
    """The first one knows the initial models alone; blank pictures would change it."""
    blank = Augmentation([torch.zeros_like])
    plain, changed = (trained(FedEM(), trainer, rounds=1, augmentation=one) for one in (None, blank))
    assert distance(plain.states, changed.states) < 1e-12
    assert distance(plain.shared, changed.shared) > 1e-3


def test_predictions_are_of_the_originals():
    augmentation = Recorded()
    run = trained(FedAvg(), augmentation=augmentation)
    steps = len(augmentation.made)
    run.evaluate()
    assert steps == len(augmentation.made) == 2 * 2 * (3 + 1 + 2 + 1)


def dropping_mlp(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(25, 4), nn.Dropout(0.5), nn.Linear(4, outputs))


@pytest.mark.parametrize(
    ("network", "drawn", "trainer"),
    [
        (small_mlp, True, SequentialTrainer()),
        (small_mlp, True, VectorizedTrainer()),
        (dropping_mlp, False, SequentialTrainer()),
    ],
    ids=["sequential", "vectorized", "dropout"],
)
def test_privacy_of_samples_draws_for_them_in_secret(network, drawn, trainer):
    """Of draws that follow from the training seed, one sample more would change those of all samples after it."""
    privacy = ExamplePrivacy(noise_multiplier=0, clip_norm=1.0, sample_rate=1.0, delta=1e-3)
    augmentation = Augmentation(TRANSFORMS) if drawn else None

    def models(key):
        fields = {"secret": Secret.of_seed(key), "task": task(network)}
        return trained(privacy.around(FedAvg()), trainer, augmentation=augmentation, **fields).shared

    assert distance(models(0), models(0)) == 0
    assert distance(models(0), models(1)) > 1e-4


def test_without_augmentation_inputs_are_the_same_object():
    x, y = torch.zeros(2, 1, 5, 5), torch.zeros(2)
    found = augmented(make_context(), LocalWork(), x, y, 0, 0)
    assert (found[0] is x, found[1] is y) == (True, True)


@pytest.mark.parametrize(
    "transform",
    [
        v2.RandomHorizontalFlip(0.3),
        v2.RandomVerticalFlip(0.8),
        v2.RandomCrop(3),
        v2.RandomCrop((4, 3), padding=1, fill=-1),
        v2.RandomCrop(4, padding=[0, 1, 2, 0]),
    ],
    ids=repr,
)
def test_batches_have_the_pictures_that_torchvision_has_one_by_one(transform):
    picture = torch.arange(2 * 4 * 4.0).view(2, 4, 4) + 1
    batched, draws = in_batches(transform), 600
    assert batched is not transform
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        each = [
            [tuple(one.flatten().tolist()) for one in many]
            for many in (batched(picture.expand(draws, 2, 4, 4)), [transform(picture) for _ in range(draws)])
        ]
    here, there = map(Counter, each)
    assert here.keys() == there.keys()
    assert max(abs(here[one] - there[one]) for one in here) < 0.15 * draws


def test_each_picture_has_its_own_draws_and_is_left_as_it_was():
    x = torch.arange(25.0).view(1, 1, 5, 5).repeat(8, 1, 1, 1)
    before, state = x.clone(), torch.get_rng_state()
    y = torch.arange(8)
    out, same = Augmentation(TRANSFORMS)(x, y, seed_of(0, 0, 0, "x"))
    assert same is y
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert len({tuple(one.flatten().tolist()) for one in out}) > 4
    assert torch.equal(out, Augmentation(TRANSFORMS)(x.view(2, 4, 1, 5, 5), y, seed_of(0, 0, 0, "x"))[0].flatten(0, 1))
    assert not torch.equal(out, Augmentation(TRANSFORMS)(x, y, seed_of(0, 0, 1, "x"))[0])


def test_transforms_see_pixels_in_0_to_1():
    """Padding is black, not the mean; what is not moved comes back as it was, up to rounding."""
    seen = []
    look = Augmentation([lambda one: seen.append(one) or one, v2.Pad([1, 0, 0, 0]), v2.CenterCrop(5)], (0.5,), (0.25,))
    x = (torch.rand(3, 1, 5, 5) - 0.5) / 0.25
    out, _ = look(x, torch.zeros(3), seed_of(0, 0, 0, "x"))
    assert all(0 <= float(one.min()) <= float(one.max()) <= 1 for one in seen)
    torch.testing.assert_close(torch.stack(seen), x * 0.25 + 0.5)
    torch.testing.assert_close(out[..., 1:], x[..., :-1] if (out[..., 0] == -2).all() else x[..., 1:])


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (v2.CenterCrop(3), ("makes float32 of shape [1, 3, 3] of a picture of shape [1, 5, 5]", "restores it")),
        (v2.RandomCrop(9), ("fails on pictures of shape [1, 5, 5]", "(9, 9)")),
        (v2.ToPILImage(), ("fails on pictures of shape [1, 5, 5]", "Image")),
    ],
)
def test_pictures_keep_their_shape(transform, words):
    with pytest.raises(ConfigError) as caught:
        Augmentation([transform], said="'x'")(torch.rand(2, 1, 5, 5), torch.zeros(2), seed_of(0, 0, 0, "x"))
    for word in ("--data.augment 'x'", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("algorithm", "solver"),
    [
        (ConsensusADMM(local_solve="exact"), {}),
        (GADMM(local_solve="exact"), {}),
        (ProxAvg(local_solve="exact"), {}),
        (FedAvg(), {"local_epochs": 0}),
    ],
    ids=lambda one: type(one).__name__,
)
def test_algorithms_without_local_steps_refuse(algorithm, solver):
    ctx = make_context(solver=LocalSolver(**solver), augmentation=Recorded())
    with pytest.raises(ConfigError, match="augments local steps, and X takes none"):
        check_augmented_steps(algorithm, "X", ctx)


def test_coins_that_leave_a_round_without_steps_are_no_reason_to_refuse():
    for seed in range(8):
        ctx = make_context(seed=seed, num_rounds=20, augmentation=Recorded())
        check_augmented_steps(L2GD(communication_probability=0.5), "L2GD", ctx)


def test_dual_variables_are_of_samples_as_they_are():
    with pytest.raises(ConfigError, match="MOCHA has dual variables"):
        run_rounds(MOCHA(), None, pictures(), rounds=1, augmentation=Recorded(), task=task(Linear))


# ---------------------------------------------------------------------- masks
MASKS = MaskForm((6, 8), ignored=255)


@pytest.mark.parametrize(
    "augment",
    [
        "RandomHorizontalFlip(1.0)",
        "RandomVerticalFlip, RandomCrop((6, 8), padding=2)",
        "RandomCrop((6, 8), [0, 3], padding_mode='reflect')",
        "RandomRotation(90)",
        "RandomApply([RandomAffine(20, scale=(0.5, 2.0))], p=0.7)",
        "RandomPerspective(interpolation=0)",
        "RandomResizedCrop((6, 8), interpolation=0)",
    ],
)
def test_masks_move_with_their_pictures(augment):
    """Pictures of 1 + class: from outside come 0, and the label to ignore."""
    y = torch.randint(4, (12, 6, 8), generator=torch.Generator().manual_seed(0))
    x, before = 1.0 + y[:, None], y.clone()
    made = make_augmentation(augment, None, MASKS)
    moved, masks = made(x.view(3, 4, 1, 6, 8), y.view(3, 4, 48), seed_of(0, 0, 0, "x"))
    moved, masks = moved.view(12, 6, 8), masks.view(12, 6, 8)
    assert torch.equal(torch.where(moved == 0, 255, moved.long() - 1), masks)
    assert masks.dtype == torch.int64
    assert torch.equal(y, before)
    assert not torch.equal(masks, y)
    alone, _ = make_augmentation(augment)(x, torch.zeros(12), seed_of(0, 0, 0, "x"))
    assert torch.equal(alone[:, 0], moved), "masks change no draw of a picture"


def test_a_given_fill_is_that_of_pictures():
    x, y = torch.zeros(8, 1, 6, 8), torch.zeros(8, 48, dtype=torch.long)
    for augment in ("RandomCrop((6, 8), 2, fill=0.5)", "RandomAffine(0, (0.5, 0.5), None, None, 0, 0.5)"):
        moved, masks = make_augmentation(augment, None, MASKS)(x, y, seed_of(0, 0, 0, "x"))
        assert torch.equal(moved.flatten(1) == 0.5, masks == 255)
        assert bool((masks == 255).any())


def test_changes_of_colour_leave_masks():
    x, y = torch.rand(4, 3, 6, 8), torch.randint(4, (4, 48))
    made = make_augmentation("ColorJitter(0.5), GaussianBlur(3)", None, MASKS)
    moved, masks = made(x, y, seed_of(0, 0, 0, "x"))
    assert torch.equal(masks, y)
    assert not torch.equal(moved, x)
    with pytest.raises(ConfigError, match=r"RandAugment.*fails on pictures of shape \[3, 6, 8\]"):
        make_augmentation("RandAugment", None, MASKS)(x, y, seed_of(0, 0, 0, "x"))
