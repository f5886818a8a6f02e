from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch

from lit_fed.core.targets import Binary, Multiclass, MultiLabel, Regression, Sequences, VectorRegression
from lit_fed.core.types import Population, Split
from lit_fed.data import IID, Dirichlet, Natural
from lit_fed.data.data_sets.base import ClientDataSet, PooledDataSet, Samples, empty_split, make_split
from lit_fed.data.data_sets.digits import Digits
from lit_fed.data.facts import TrainingFacts
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.populations.build import build_populations, infer_target, select_clients
from lit_fed.data.populations.checks import check_labels, find_client, fingerprint
from lit_fed.data.populations.splits import split_counts, split_rows
from lit_fed.errors import ConfigError


@dataclass(frozen=True)
class Pool(PooledDataSet):
    """Samples numbered 0 … n - 1."""

    num_samples: int = 60
    owned: bool = False
    bad_row: int | None = None

    def load(self) -> Samples:
        x = np.arange(self.num_samples, dtype=np.float32)[:, None]
        if self.bad_row is not None:
            x[self.bad_row] = np.nan
        owner = np.arange(self.num_samples) % 3 if self.owned else None
        return Samples(x, np.arange(self.num_samples) % 4, owner, ["ann", "bob", "cy"] if self.owned else None)


class OwnedPool(Pool):
    natural: ClassVar[bool] = True


@dataclass(frozen=True)
class Clients(ClientDataSet):
    """Clients given by their sizes."""

    sizes: tuple[int, ...] = (3, 5, 1, 4, 2)
    val: bool = False
    unseen: bool = False

    def load(self) -> tuple[Population, Population | None]:
        return population(self.sizes, self.val), population((2, 3), self.val) if self.unseen else None


def split(sizes):
    num_samples = sum(sizes)
    x = np.arange(num_samples, dtype=np.float32)[:, None]
    return make_split(x, np.arange(num_samples) % 2, np.array(sizes))


def population(sizes, val=False):
    train = split(sizes)
    names = [f"c{client_id}" for client_id in range(len(sizes))]
    return Population(train, split(sizes) if val else empty_split(train), split(sizes), names, torch.arange(len(sizes)))


def values(split):
    """The samples of each client, as lists."""
    return [split.client(client_id).x.flatten().tolist() for client_id in range(split.num_clients)]


def build(dataset, partition=None, num_clients=None, **options):
    options = {"val_fraction": 0.0, "test_fraction": 0.25, "unseen_fraction": 0.0, "seed": 0, **options}
    return build_populations(dataset, partition, num_clients, **options)


@pytest.mark.parametrize("val_fraction", [0.0, 0.05, 0.4])
@pytest.mark.parametrize("test_fraction", [0.0, 0.05, 0.5])
def test_split_counts_add_up(val_fraction, test_fraction):
    for num_samples in range(1, 60):
        num_train, num_val, num_test = split_counts(num_samples, val_fraction, test_fraction)
        assert num_train + num_val + num_test == num_samples
        assert num_train >= 1
        assert (num_test >= 1) == (test_fraction > 0 and num_samples >= 2)
        assert (num_val >= 1) == (val_fraction > 0 and num_samples >= (3 if test_fraction > 0 else 2))


def test_split_counts_round_half_up():
    assert split_counts(10, 0.25, 0.05) == (6, 3, 1)


@pytest.mark.parametrize("partition", [IID(), Dirichlet(), Dirichlet(label_groups=2)], ids=str)
def test_pool_is_covered_once(partition):
    seen, unseen = build(Pool(), partition, 7, val_fraction=0.2)
    assert unseen is None
    assert seen.names == [str(client_id) for client_id in range(7)]
    together = torch.cat([seen.train.x, seen.val.x, seen.test.x]).flatten()
    assert together.sort().values.tolist() == list(range(60))
    assert bool((seen.train.sizes >= 1).all() & (seen.test.sizes >= 1).all())
    for part in (seen.train, seen.val, seen.test):
        assert part.y.tolist() == (part.x.flatten() % 4).tolist()


def test_twenty_clients_by_default():
    assert build(Digits())[0].train.num_clients == 20


def test_a_client_with_one_sample_trains_on_it():
    seen, _ = build(Pool(4), IID(), 4, val_fraction=0.2)
    assert seen.train.sizes.tolist() == [1] * 4
    assert seen.test.sizes.tolist() == seen.val.sizes.tolist() == [0] * 4


def test_the_seed_decides():
    first, again, other = (build(Pool(), num_clients=5, seed=seed) for seed in (1, 1, 2))
    assert fingerprint(*first) == fingerprint(*again) != fingerprint(*other)


def test_owners_are_the_default_where_known():
    seen, _ = build(Pool(owned=True))
    assert seen.names == ["ann", "bob", "cy"]
    assert sorted(values(seen.train)[1] + values(seen.test)[1]) == list(range(1, 60, 3))


def test_an_owned_pool_may_be_partitioned_otherwise():
    assert build(Pool(owned=True), IID(), 4)[0].names == ["0", "1", "2", "3"]


def test_client_data_sets_keep_their_splits_and_memory():
    class Fixed(ClientDataSet):
        clients = population((3, 2))

        def load(self):
            return self.clients, None

    seen, _ = build(Fixed())
    assert seen.train.x.data_ptr() == Fixed.clients.train.x.data_ptr()
    assert seen.test is Fixed.clients.test


def test_validation_is_cut_from_training():
    seen, unseen = build(Clients(unseen=True), val_fraction=0.4)
    assert seen.train.sizes.tolist() == [2, 3, 1, 2, 1]
    assert seen.val.sizes.tolist() == [1, 2, 0, 2, 1]
    assert unseen.val.sizes.tolist() == [1, 1]
    together = [sorted(train + val) for train, val in zip(values(seen.train), values(seen.val), strict=True)]
    assert together == values(split((3, 5, 1, 4, 2)))
    assert values(seen.test) == together


def test_own_validation_is_kept():
    seen, _ = build(Clients(val=True), val_fraction=0.4)
    assert seen.val.sizes.tolist() == seen.train.sizes.tolist() == [3, 5, 1, 4, 2]


@pytest.mark.parametrize(("fraction", "expected"), [(0.01, 1), (0.4, 2), (0.99, 4)])
def test_unseen_clients(fraction, expected):
    seen, unseen = build(Clients(), unseen_fraction=fraction)
    assert len(unseen.names) == expected
    assert sorted(seen.names + unseen.names) == [f"c{client_id}" for client_id in range(5)]
    everyone = dict(zip((f"c{client_id}" for client_id in range(5)), values(split((3, 5, 1, 4, 2))), strict=True))
    for chosen in (seen, unseen):
        assert values(chosen.train) == values(chosen.test) == [everyone[name] for name in chosen.names]
        assert [f"c{group}" for group in chosen.groups.tolist()] == chosen.names


def test_unseen_clients_change_with_the_seed():
    assert len({tuple(build(Clients(), unseen_fraction=0.4, seed=seed)[1].names) for seed in range(20)}) > 5


def test_all_numbers_of_unseen_clients_are_exact():
    assert build(Pool(300), IID(), 100, unseen_fraction=0.29)[1].train.num_clients == 29


def test_consecutive_clients_are_views():
    everyone = population((3, 5, 1, 4))
    middle = select_clients(everyone, np.array([1, 2]))
    assert middle.train.x.data_ptr() == everyone.train.x[3:].data_ptr()
    assert middle.train.offsets.tolist() == [0, 5, 6]
    assert middle.names == ["c1", "c2"]
    assert select_clients(everyone, np.array([0, 3])).train.sizes.tolist() == [3, 4]


@pytest.mark.parametrize(
    ("dataset", "partition", "num_clients", "options", "message"),
    [
        (Clients(), None, 5, {}, "num_clients = 5: num_clients is for partitions; Clients"),
        (Clients(), IID(), None, {}, "partition IID: Clients .* leave the partition out"),
        (OwnedPool(owned=True), Dirichlet(), None, {}, "partition Dirichlet: OwnedPool"),
        (Pool(owned=True), Natural(), 3, {}, "num_clients = 3"),
        (Pool(), None, 0, {}, "num_clients = 0"),
        (Pool(), None, 61, {}, "num_clients = 61, but there are only 60"),
        (Pool(), Natural(), None, {}, "Natural"),
        (Pool(0), None, None, {}, "Pool has no samples"),
        (Pool(bad_row=17), None, None, {}, "client '.*': x contains NaN or infinity; clean"),
        (Clients((2, 0, 1)), None, None, {}, "seen client 'c1' has no training samples"),
        (
            Clients(unseen=True),
            None,
            None,
            {"unseen_fraction": 0.2},
            "unseen_fraction = 0.2.*leave unseen_fraction at 0",
        ),
        (Clients((3,)), None, None, {"unseen_fraction": 0.2}, "unseen_fraction = 0.2 needs at least 2"),
        (Pool(), None, None, {"val_fraction": 1.0}, r"val_fraction = 1\.0; choose"),
        (Pool(), None, None, {"unseen_fraction": -0.1}, r"unseen_fraction = -0\.1; choose"),
        (Pool(), None, None, {"val_fraction": 0.5, "test_fraction": 0.5}, "= 1 leaves nothing to train on"),
        (None, None, None, {}, "NoneType is not a data set"),
    ],
)
def test_wrong_requests_are_refused(dataset, partition, num_clients, options, message):
    with pytest.raises(ConfigError, match=message):
        build(dataset, partition, num_clients, **options)


def test_unequal_pool_is_refused():
    class Unequal(PooledDataSet):
        def load(self):
            return Samples(np.zeros((3, 1)), np.zeros(2, dtype=int))

    with pytest.raises(ConfigError, match="Unequal: 3 samples in x, but 2 in y"):
        build(Unequal())


@pytest.mark.parametrize("name", ["train", "val", "test"])
@pytest.mark.parametrize("array", ["x", "y", "offsets"])
@pytest.mark.parametrize("whose", [0, 1])
def test_fingerprint_sees_every_array(name, array, whose):
    pair = population((3, 2), val=True), population((2, 2), val=True)
    before = fingerprint(*pair)
    getattr(getattr(pair[whose], name), array)[1] += 1
    assert fingerprint(*pair) != before


def test_fingerprint_knows_places_and_types():
    one = population((3, 2))
    wide = one._replace(train=make_split(one.train.x.numpy().reshape(1, 5), one.train.y.numpy(), np.array([3, 2])))
    digests = {fingerprint(one, None), fingerprint(None, one), fingerprint(one), fingerprint(wide)}
    assert len(digests) == 4
    assert all(len(digest) == 32 for digest in digests)


@pytest.mark.parametrize(
    ("labels", "num_classes", "expected"),
    [
        (torch.tensor([0, 1, 1]), None, Binary()),
        (torch.tensor([0, 0]), None, Binary()),
        (torch.tensor([0, 4]), None, Multiclass(5)),
        (torch.tensor([0, 1]), 10, Multiclass(10)),
        (torch.tensor([[0, 1], [1, 1]]), None, Sequences(2)),
        (torch.tensor([0.0, 1.0]), None, Regression()),
        (torch.tensor([[0.0, 0.0], [0.0, 1.0]]), None, VectorRegression(2)),
    ],
)
def test_target(labels, num_classes, expected):
    assert infer_target(labels, num_classes) == expected


@pytest.mark.parametrize("labels", [torch.eye(2), torch.zeros(2, 1), torch.zeros(2, 2, 2, 2, dtype=torch.int64)])
def test_target_of_wrong_shape(labels):
    with pytest.raises(ConfigError, match=r"shape \[2, [12].*store"):
        infer_target(labels)


def test_several_labels_are_told():
    labels = torch.tensor([[0, 1, 1], [0, 0, 0]])
    assert infer_target(labels) == Sequences(2)
    assert infer_target(labels, labels="multilabel") == infer_target(labels, 3, "multilabel") == MultiLabel(3)
    for wrong, said in ((labels[:, 0], r"int64 of shape \[2\]"), (labels.float(), r"float32 of shape \[2, 3\]")):
        with pytest.raises(ConfigError, match=f"multilabel.*{said}; store whole numbers 0 and 1 of shape .n, L."):
            infer_target(wrong, labels="multilabel")
    with pytest.raises(ConfigError, match="num_classes is 4, but each sample has 3 labels; leave num_classes out"):
        infer_target(labels, 4, "multilabel")


@pytest.mark.parametrize("name", ["train", "val", "test"])
@pytest.mark.parametrize(("label", "fix"), [(2, "train with a larger num_classes"), (-1, "number the classes from 0")])
@pytest.mark.parametrize("whose", ["seen", "unseen"])
def test_labels_out_of_range_are_located(name, label, fix, whose):
    pair = {"seen": population((3, 2), val=True), "unseen": population((3, 2), val=True)}
    target = infer_target(pair["seen"].train.y)
    check_labels(target, **pair)
    getattr(pair[whose], name).y[3] = label
    with pytest.raises(
        ConfigError, match=f"{name} split of {whose} client 'c1': label {label} is outside 0 … 1.*{fix}"
    ):
        check_labels(target, **pair)


def test_wrong_label_within_a_sequence():
    clients = population((2,))._replace(test=make_split(np.zeros((2, 1)), np.array([[0, 1], [1, 9]]), np.array([2])))
    with pytest.raises(ConfigError, match="label 9 is outside"):
        check_labels(Sequences(2), clients)


def test_regression_has_no_wrong_labels():
    clients = population((2,))._replace(test=make_split(np.zeros((1, 1)), np.array([-7.5]), np.array([1])))
    check_labels(Regression(), clients)


def test_large_finite_inputs_are_no_infinity():
    class Huge(PooledDataSet):
        def load(self):
            return Samples(np.linspace(2e38, 3e38, 100, dtype=np.float32).reshape(50, 2), np.arange(50) % 2)

    assert build(Huge(), num_clients=2)[0].train.num_clients == 2


@dataclass(frozen=True)
class NamedPool(PooledDataSet):
    """Classes 0, 1, 0, 1, … of three that have names."""

    num_classes: int | None = None  # type: ignore[misc]

    def load(self) -> Samples:
        x = np.arange(40, dtype=np.float32)[:, None]
        return Samples(x, np.arange(40) % 2, class_names=("cat", "dog", "emu"))


def test_named_classes_count_also_where_nobody_has_them():
    data = FederatedDataModule(NamedPool(), IID(), num_clients=4, unseen_fraction=0.5)
    data.setup()
    assert data.target == Multiclass(3)
    assert [one.class_names for one in data.populations] == [("cat", "dog", "emu")] * 2
    facts = data.facts(weighting="samples", seed=0, num_rounds=1)
    assert TrainingFacts.from_plain(facts.plain()).class_names == ("cat", "dog", "emu")


def test_owners_that_stay_unseen_and_splits_of_the_data_set():
    class Told(PooledDataSet):
        def load(self) -> Samples:
            x = np.arange(12, dtype=np.float32)[:, None]
            split = np.array([0, 0, 2, 0, 0, 2, 0, 0, 2, 0, 0, 1])
            return Samples(x, np.arange(12) % 2, np.arange(12) // 6, ["ann", "bob"], split=split, unseen=("ann",))

    seen, unseen = build(Told(), val_fraction=0.5, test_fraction=0.4)
    assert (seen.names, unseen.names) == (["bob"], ["ann"])
    assert [one.x[:, 0].tolist() for one in (unseen.train, unseen.val, unseen.test)] == [[0, 1, 3, 4], [], [2, 5]]
    assert [one.x[:, 0].tolist() for one in (seen.train, seen.val, seen.test)] == [[6, 7, 9, 10], [11], [8]]
    with pytest.raises(ConfigError, match="partition IID makes new clients, but Told names unseen clients"):
        build(Told(), IID())


def test_another_number_of_classes_than_are_named():
    with pytest.raises(ConfigError, match="num_classes of NamedPool is 5, its data name 3 classes; leave"):
        FederatedDataModule(NamedPool(5), IID(), num_clients=4).setup()


def named_population(names, first_id=0):
    offsets = torch.arange(len(names) + 1)
    split = Split(torch.zeros(len(names), 1), torch.zeros(len(names)), offsets, first_id)
    return Population(split, split, split, names)


CLIENTS = {
    "seen": named_population(["anna", "4", "béla", "zoë"]),
    "unseen": named_population(["cleo", "anna"], first_id=4),
}


@pytest.mark.parametrize(
    ("client", "found"),
    [
        ("béla", ("seen", 2)),
        ("cleo", ("unseen", 0)),
        ("anna", ("seen", 0)),
        ("4", ("seen", 1)),  # a name, though client number 4 is cleo
        ("0", ("seen", 0)),
        ("5", ("unseen", 1)),
    ],
)
def test_a_client_is_found_by_name_or_number(client, found):
    assert find_client(client, CLIENTS) == found


@pytest.mark.parametrize("client", ["6", "-1", "²", "Anna", "", "1.0"])
def test_an_unknown_client_is_refused_with_some_that_there_are(client):
    with pytest.raises(ConfigError, match=r"seen: anna, 4, béla and 1 more; unseen: cleo, anna\)"):
        find_client(client, CLIENTS)
    with pytest.raises(ConfigError, match=r"\(seen: anna"):
        find_client(client, {"seen": CLIENTS["seen"], "unseen": None})


@pytest.mark.parametrize("seed", range(3))
def test_stratified_splits_have_their_share_of_each_class(seed):
    labels = np.repeat([0, 1, 2], [12, 60, 28])
    rows = np.random.default_rng(seed).permutation(100)
    parts = split_rows(rows, 0.2, 0.25, seed, 0, labels[rows])
    assert sorted(np.concatenate(parts)) == list(range(100))
    for part, share in zip(parts, (0.55, 0.2, 0.25), strict=True):
        assert len(part) == round(100 * share)
        counts = np.bincount(labels[part], minlength=3)
        assert (np.abs(counts - share * np.array([12, 60, 28])) < 2).all(), counts


def test_what_cannot_be_stratified_is_said(capsys):
    x, y = np.eye(9, 2, dtype=np.float32), np.array([0, 0, 0, 0, 1, 1, 1, 1, 2])
    data = FederatedDataModule.from_clients({"ann": (x, y)}, split="stratified", test_fraction=0.3)
    data.setup()
    assert set(data.seen.test.y.tolist()) >= {0, 1}
    assert "at 1 of 1 clients a class has fewer than 2 samples" in capsys.readouterr().err
    numbers = {"ann": (np.eye(30, 2, dtype=np.float32), np.linspace(0, 1, 30))}
    same = [FederatedDataModule.from_clients(numbers, split=split) for split in ("stratified", "random")]
    for one in same:
        one.setup()
    assert same[0].seen.test.y.equal(same[1].seen.test.y)
    assert "the labels are no classes of a sample, so splits are random" in capsys.readouterr().err


# ---------------------------------------------------------------------- test samples with a seed of their own
def test_with_a_test_seed_other_seeds_leave_clients_and_test_samples_as_they_are():
    options = {"val_fraction": 0.2, "unseen_fraction": 0.3, "test_seed": 7}
    one, other = (build(Pool(120), Dirichlet(), 6, seed=seed, **options) for seed in (0, 1))
    for first, second in zip(one, other, strict=True):
        assert first.names == second.names
        assert values(first.test) == values(second.test)
        for position in range(len(first.names)):
            parts = [{*values(split)[position]} for split in first.splits]
            assert len(set.union(*parts)) == sum(map(len, parts))
    assert values(one[0].train) != values(other[0].train)
    plain = build(Pool(120), Dirichlet(), 6, seed=1, val_fraction=0.2, unseen_fraction=0.3)[0]
    assert values(plain.test) != values(one[0].test)
    module = FederatedDataModule(Pool(120), Dirichlet(), 6, val_fraction=0.2, test_fraction=0.25, seed=1, test_seed=7)
    module.setup()
    assert {*module.seen.test.x.flatten().tolist()} >= {*one[0].test.x.flatten().tolist()}


@dataclass(frozen=True)
class Visits(PooledDataSet):
    """Persons with up to 6 samples, at any of 3 clients, or the days of these samples."""

    days: bool = False
    both: bool = False
    natural: ClassVar[bool] = True

    def load(self) -> Samples:
        rng = np.random.default_rng(2)
        persons, days = rng.integers(40, size=150), rng.integers(12, size=150).astype(float)
        x = np.arange(150, dtype=np.float32)[:, None]
        return Samples(
            x, np.arange(150) % 2, np.arange(150) % 3, ["ann", "bob", "cy"],
            groups=None if self.days and not self.both else persons, order=days if self.days else None,
        )  # fmt: skip


@pytest.mark.parametrize("split", ["random", "stratified"])
def test_a_person_is_in_one_split_across_clients(split):
    persons = Visits().load().groups
    seen, _ = build(Visits(), val_fraction=0.2, split=split)
    sides = [{*persons[one.x.flatten().long()]} for one in seen.splits]
    assert not sides[0] & sides[1] | sides[0] & sides[2] | sides[1] & sides[2]
    assert [len(one) for one in values(seen.test)] == pytest.approx([12.5] * 3, abs=4)
    assert sum(map(len, values(seen.val))) == pytest.approx(30, abs=6)


def test_by_time_the_last_samples_are_tested_and_those_of_one_time_stay_together():
    days = Visits(days=True).load().order
    first, second = (build(Visits(days=True), val_fraction=0.2, split="time", seed=seed)[0] for seed in (0, 1))
    assert values(first.test) == values(second.test)
    assert values(first.val) != values(second.val)
    for position in range(3):
        train, val, test = (days[np.array(values(split)[position], dtype=int)] for split in first.splits)
        assert max(*train, *val) < min(test)
        assert not {*train} & {*val}
        assert len(test) == pytest.approx(12.5, abs=3)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (Pool(), "Pool has no time of its samples; set its time_column, or give random"),
        (Clients(), "Clients has no time"), (Visits(days=True, both=True), "Visits has a group_column; leave one"),
    ],
)  # fmt: skip
def test_a_split_by_time_needs_times_and_no_persons(data, said):
    with pytest.raises(ConfigError, match=said):
        build(data, split="time")
