import pickle

import numpy as np
import pytest

from lit_fed.data import Pachinko
from lit_fed.data.partitions.pachinko import CIFAR100_COARSE_LABELS
from lit_fed.errors import ConfigError

HIERARCHY = (0, 0, 1, 1, 1, 2)
LABELS = np.random.default_rng(0).integers(0, 6, size=1200)
CIFAR100 = np.repeat(np.arange(100), 600)


def counts(parts, labels, num_labels):
    return np.array([np.bincount(labels[part], minlength=num_labels) for part in parts])


@pytest.mark.parametrize("alpha", [1e-300, 1e-3, 0.4, 1e4])
@pytest.mark.parametrize("num_clients", [1, 7, 1200])
def test_every_sample_has_one_client_and_sizes_differ_by_one(alpha, num_clients):
    parts = Pachinko(alpha, hierarchy=HIERARCHY)(LABELS, num_clients, seed=3)
    assert [len(part) for part in parts] == [len(one) for one in np.array_split(LABELS, num_clients)]
    assert np.sort(np.concatenate(parts)).tolist() == list(range(1200))
    assert all((np.diff(part) > 0).all() for part in parts)


def test_the_seed_decides():
    first, again, other = (
        [part.tolist() for part in partition(LABELS, 9, seed)]
        for partition, seed in (
            (Pachinko(hierarchy=HIERARCHY), 0),
            (pickle.loads(pickle.dumps(Pachinko(hierarchy=HIERARCHY))), 0),
            (Pachinko(hierarchy=HIERARCHY), 1),
        )
    )
    assert first == again
    assert first != other


def drawn_one_by_one(alpha, beta, labels, num_clients, rng):
    """The allocation as the paper tells it: a draw per sample, and a tree that loses its empty nodes."""
    pools = {label: list(rng.permutation(np.flatnonzero(labels == label))) for label in range(len(HIERARCHY))}
    tree = {one: [label for label, above in enumerate(HIERARCHY) if above == one] for one in set(HIERARCHY)}
    table = np.zeros((num_clients, len(HIERARCHY)), dtype=int)
    for client in range(num_clients):
        root = dict(zip(tree, rng.dirichlet([alpha] * len(tree)), strict=True))
        leaves = {one: dict(zip(tree[one], rng.dirichlet([beta] * len(tree[one])), strict=True)) for one in tree}
        for _ in range(len(labels) // num_clients):
            one = rng.choice(list(root), p=np.array(list(root.values())) / sum(root.values()))
            inside = leaves[one]
            label = rng.choice(list(inside), p=np.array(list(inside.values())) / sum(inside.values()))
            pools[label].pop()
            table[client, label] += 1
            if not pools[label]:
                del inside[label]
                tree[one].remove(label)
                if not tree[one]:
                    del root[one], tree[one]
    return table


def test_the_distribution_is_that_of_single_draws():
    """Means and standard deviations of all counts, over repetitions; labels run out in most of them."""
    labels = np.repeat(np.arange(6), [6, 3, 8, 2, 3, 8])
    repeats, rng = 1000, np.random.default_rng(1)
    partition = Pachinko(0.5, 2.0, HIERARCHY)
    own = np.array([counts(partition(labels, 3, seed), labels, 6) for seed in range(repeats)])
    wanted = np.array([drawn_one_by_one(0.5, 2.0, labels, 3, rng) for _ in range(repeats)])
    spread = wanted.std(0)
    assert (np.abs(own.mean(0) - wanted.mean(0)) < 5 * spread * np.sqrt(2 / repeats)).all()
    np.testing.assert_allclose(own.std(0), spread, rtol=0.15)


def test_a_label_that_is_used_up_leaves_its_share_to_those_beside_it():
    """Coarse labels stay at a half each; nothing of the share of label 0 may go to label 2."""
    labels = np.array([0] + [1] * 29 + [2] * 30)
    first = [Pachinko(1e9, 1e9, (0, 0, 1))(labels, 6, seed)[0] for seed in range(1000)]
    assert np.mean([(labels[part] == 2).sum() for part in first]) == pytest.approx(5, abs=0.25)  # 5 standard errors
    assert np.mean([(labels[part] == 0).sum() for part in first]) > 0.9


def test_chance_says_which_samples_of_a_label_a_client_gets():
    first = [Pachinko(hierarchy=(0,))(np.zeros(100, dtype=int), 2, seed)[0] for seed in range(100)]
    np.testing.assert_allclose(np.bincount(np.concatenate(first), minlength=100) / 100, 0.5, atol=0.25)


def test_proportions_of_the_first_clients():
    """E[p²] of Dirichlet(a) over K labels is (a + 1) / (K a + 1) / K, here of coarse labels and of those inside one."""
    parts = [part for seed in range(20) for part in Pachinko(0.4, 10.0)(CIFAR100, 100, seed)[:3]]
    table = counts(parts, CIFAR100, 100)
    coarse = np.stack([table[:, np.array(CIFAR100_COARSE_LABELS) == one] for one in range(20)], axis=1)
    total = coarse.sum(2)
    assert (total * (total - 1)).sum(1).mean() / (600 * 599) == pytest.approx(1.4 / 9, rel=0.15)
    pairs = (coarse * (coarse - 1)).sum(2)[total > 100] / (total * (total - 1))[total > 100]
    assert pairs.mean() == pytest.approx(11 / 51, rel=0.02)


def test_small_alpha_leaves_few_coarse_labels_and_small_beta_few_fine_ones():
    coarse = np.array(CIFAR100_COARSE_LABELS)

    def seen(partition):
        parts = partition(CIFAR100, 100, seed=0)[:50]
        return (
            np.mean([len(np.unique(coarse[CIFAR100[part]])) for part in parts]),
            np.mean([len(np.unique(CIFAR100[part])) for part in parts]),
        )

    few, many = seen(Pachinko(alpha=0.01)), seen(Pachinko(alpha=100.0))
    assert few[0] < 3
    assert many[0] == 20
    narrow = seen(Pachinko(alpha=0.01, beta=0.01))
    assert narrow[1] / narrow[0] < 2 < 4 < few[1] / few[0]


def test_the_superclasses_of_cifar100():
    sizes = np.bincount(CIFAR100_COARSE_LABELS)
    assert sizes.tolist() == [5] * 20
    people = [2, 11, 35, 46, 98]  # baby, boy, girl, man, woman
    assert np.flatnonzero(np.array(CIFAR100_COARSE_LABELS) == 14).tolist() == people


def test_names_of_coarse_labels_play_no_part():
    first, renamed = (Pachinko(hierarchy=one)(LABELS, 9, 0) for one in (HIERARCHY, (-3, -3, 40, 40, 40, 41)))
    assert [part.tolist() for part in first] == [part.tolist() for part in renamed]


@pytest.mark.parametrize(("field", "value"), [("alpha", 0.0), ("alpha", np.inf), ("beta", -1.0)])
def test_out_of_range_fields_are_named(field, value):
    with pytest.raises(ConfigError, match=rf"Pachinko.{field} is {value}; give"):
        Pachinko(**{field: value})


@pytest.mark.parametrize(
    ("hierarchy", "labels", "message"),
    [
        (None, LABELS, r"hierarchy = None .* largest label is 5; give the coarse label"),
        ((0, 0, 1), LABELS, "hierarchy has 3 coarse labels, the labels range from 0 to 5; give one for each"),
        (HIERARCHY, LABELS - 1, "labels range from -1 to 4"),
        (HIERARCHY, np.linspace(0, 1, 50), "the partition Pachinko needs class labels"),
    ],
)
def test_labels_without_a_coarse_one_are_refused(hierarchy, labels, message):
    with pytest.raises(ConfigError, match=message):
        Pachinko(hierarchy=hierarchy)(labels, 4, seed=0)


def test_more_clients_than_samples():
    with pytest.raises(ConfigError, match=r"1201.*at most 1200"):
        Pachinko(hierarchy=HIERARCHY)(LABELS, 1201, seed=0)
