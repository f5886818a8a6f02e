import numpy as np
import pytest
import torch

from lit_fed.core.targets import Binary, Multiclass, MultiLabel, Regression, Sequences
from lit_fed.core.types import Population, Split
from lit_fed.data.poison import Backdoor, LabelFlip
from lit_fed.data.poison.backdoor import marked
from lit_fed.data.poison.base import poisoned
from lit_fed.data.populations.checks import fingerprint
from lit_fed.data.populations.drawn_clients import DrawnSplit
from lit_fed.errors import ConfigError

ATTACKERS = torch.tensor([1, 3])


def draw(number):
    rng = np.random.default_rng(number)
    return rng.random((10, 1, 4, 4), dtype=np.float32), rng.integers(0, 10, 10)


def population(kind="held", numbers=(0, 1, 2, 3)):
    split = Split.of([tuple(map(torch.from_numpy, draw(number))) for number in numbers])
    train = split
    if kind == "drawn":
        sizes = torch.full((len(numbers),), 10)
        train = DrawnSplit(draw, sizes, split.x[:0], split.y[:0], "test", torch.tensor(numbers))
    return Population(train, split, split, [str(number) for number in numbers], attackers=ATTACKERS)


def poison(how, kind="held", seed=0, target=Multiclass(10), **more):  # noqa: B008 - frozen
    clean = population(kind, **more)
    return poisoned(clean, how.prepare(clean, target, "test"), seed, repr(how))


def held(split):
    return split.select(torch.arange(split.num_clients))


@pytest.mark.parametrize("kind", ["held", "drawn"])
def test_attackers_alone_train_on_flipped_labels(kind):
    clean, after = population(), poison(LabelFlip(), kind)
    x, y = held(after.train).x, held(after.train).y
    assert torch.equal(x, clean.train.x)
    for client in range(4):
        rows = slice(10 * client, 10 * client + 10)
        wanted = 9 - clean.train.y[rows] if client in (1, 3) else clean.train.y[rows]
        assert torch.equal(y[rows], wanted)
    assert after.test is after.val  # those of the population, which nobody touches
    assert torch.equal(after.test.y, clean.test.y)


@pytest.mark.parametrize("target", [Binary(), Sequences(4)])
def test_labels_of_other_kinds_are_flipped_too(target):
    alter = LabelFlip().prepare(population(), target, "test")
    y = torch.tensor([[0, 1], [1, 0]])
    assert torch.equal(alter(y, y, np.random.default_rng(0))[1], target.num_classes - 1 - y)


@pytest.mark.parametrize("target", [Regression(), MultiLabel(3)])
@pytest.mark.parametrize("how", [LabelFlip(), Backdoor()])
def test_labels_that_are_no_classes_are_refused(how, target):
    with pytest.raises(ConfigError, match=f"{type(how).__name__} changes classes, the labels of test are"):
        how.prepare(population(), target, "test")


def test_the_square_covers_the_last_rows_and_columns():
    found = marked(torch.zeros(2, 3, 4, 4), 2, torch.tensor([1.0, 2.0, 3.0]))
    wanted = torch.zeros(2, 3, 4, 4)
    for channel in range(3):
        wanted[:, channel, 2:, 2:] = channel + 1
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("kind", ["held", "drawn"])
def test_a_share_of_the_attackers_pictures_gets_the_square_and_the_target(kind):
    clean, after = population(), held(poison(Backdoor(2, 7, 0.3), kind).train)
    brightest = clean.train.x.max()
    changed = (after.x != clean.train.x).flatten(1).any(1)
    assert changed.view(4, 10).sum(1).tolist() == [0, 3, 0, 3]
    assert torch.equal(after.x[changed], marked(clean.train.x[changed], 2, brightest[None]))
    assert after.y[changed].tolist() == [7] * 6
    assert torch.equal(after.y[~changed], clean.train.y[~changed])


def test_a_drawn_attacker_is_poisoned_alike_wherever_it_stands():
    chosen = held(poison(Backdoor(2, 7, 0.3), "drawn", numbers=(9, 1, 5, 3)).train)
    every = held(poison(Backdoor(2, 7, 0.3), "drawn").train)
    assert torch.equal(chosen.y[10:20], every.y[10:20])
    assert torch.equal(chosen.y[30:], every.y[30:])


@pytest.mark.parametrize("kind", ["held", "drawn"])
def test_the_fingerprint_tells_poisoned_data(kind):
    several = [population(kind), poison(LabelFlip(), kind), poison(Backdoor(), kind), poison(Backdoor(), kind, seed=1)]
    assert len({fingerprint(one) for one in several}) == 4
    assert fingerprint(poison(Backdoor(), kind)) == fingerprint(several[2])
    if kind == "drawn":  # of many clients none that attacks may be looked at
        assert several[2].train.origin == f"test, {Backdoor()!r} at [1, 3]"


def test_a_square_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="size is 5, the images have 4 × 4 pixels"):
        poison(Backdoor(5))
    with pytest.raises(ConfigError, match="target is 10, there are 10 classes; give a number from 0 to 9"):
        poison(Backdoor(2, 10))
    flat = population()
    flat = flat._replace(train=Split(flat.train.x.flatten(1), flat.train.y, flat.train.offsets))
    with pytest.raises(ConfigError, match=r"Backdoor needs images .*inputs of test have shape \[16\]"):
        Backdoor().prepare(flat, Multiclass(10), "test")


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"size": 0}, "poison.size is 0"), ({"target": -1}, "poison.target is -1"), ({"share": 0.0}, "poison.share is 0")],
)
def test_settings_outside_their_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Backdoor(**settings)
