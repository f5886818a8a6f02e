"""Clients that are drawn when they are needed, from the split to the data module."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch

from lit_fed.core.blocks import round_blocks, serving_blocks
from lit_fed.core.types import ClientData, LocalWork, Phase, Population
from lit_fed.data.data_sets.base import ClientDataSet, empty_split, make_split
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.populations import drawn_clients as drawn
from lit_fed.data.populations.build import build_populations, infer_target, select_clients
from lit_fed.data.populations.checks import check_labels, fingerprint
from lit_fed.data.populations.drawn_clients import DrawnSplit
from lit_fed.errors import ConfigError

SIZES = (3, 5, 1, 4, 2)


class Draws:
    """Sample i of client c is (c, i) with label i % 2; keeps the numbers of the clients that were drawn."""

    def __init__(self, sizes=SIZES):
        self.sizes, self.numbers = sizes, []

    def __call__(self, number):
        self.numbers.append(number)
        rows = np.arange(self.sizes[number])
        return np.stack([np.full(len(rows), number), rows], 1).astype(np.float32), rows % 2


def drawn_split(draw=None, sizes=SIZES, origin="test"):
    y = torch.empty(0, dtype=torch.int64)
    return DrawnSplit(draw or Draws(sizes), torch.tensor(sizes), torch.empty(0, 2), y, origin)


@dataclass(frozen=True)
class Clients(ClientDataSet):
    """The same clients, drawn or held."""

    num_classes: ClassVar[int | None] = 2
    held: bool = False
    sizes: tuple[int, ...] = SIZES

    def load(self):
        train, test = (drawn_split(sizes=self.sizes) for _ in range(2))
        if self.held:
            train, test = hold(train), hold(test)
        names = [f"c{client}" for client in range(len(self.sizes))]
        return Population(train, empty_split(train), test, names, torch.arange(len(names))), None


def hold(split):
    """An ordinary split with the samples of a drawn one."""
    samples = split.select(torch.arange(split.num_clients) + split.first_id)
    return make_split(samples.x.numpy(), samples.y.numpy(), samples.sizes.numpy())


def clients(split, ids=None):
    """Inputs of some clients, by id."""
    ids = range(split.first_id, split.first_id + split.num_clients) if ids is None else ids
    samples = split.select(torch.tensor(ids))
    return {one: samples.client(one).x.tolist() for one in ids}


def test_it_knows_sizes_and_holds_nothing():
    draw = Draws()
    split = drawn_split(draw)
    assert (split.num_clients, split.num_samples, split.sizes.tolist()) == (5, 15, list(SIZES))
    assert split.x.shape == (0, 2)
    assert draw.numbers == []


def test_selected_clients_are_held_by_ascending_id():
    draw = Draws()
    held = drawn_split(draw).select(torch.tensor([3, 0]))
    assert draw.numbers == [0, 3]
    assert held.ids.tolist() == [0, 3]
    assert held.offsets.tolist() == [0, 3, 7]
    assert held.x[:, 0].tolist() == [0, 0, 0, 3, 3, 3, 3]
    assert held.y.tolist() == [0, 1, 0, 0, 1, 0, 1]
    assert held.positions(torch.tensor([3, 0])).tolist() == [1, 0]
    assert int(held.client(3).client_id) == 3
    assert held.select(torch.tensor([3])) is held


def test_a_client_does_not_depend_on_the_others_or_on_the_order():
    split = drawn_split()
    everyone = clients(split)
    for ids in ([4], [2, 1], [1, 2], [4, 3, 0]):
        assert clients(split, ids) == {one: everyone[one] for one in ids}


def test_nobody_selected():
    held = drawn_split().select(torch.tensor([], dtype=torch.int64))
    assert (held.num_clients, held.x.shape, held.y.shape) == (0, (0, 2), (0,))


def test_a_client_is_drawn_when_its_samples_are_read():
    draw = Draws()
    client = drawn_split(draw).client(3)
    assert client.mask.tolist() == [1] * 4
    assert float(client.num_samples) == 4
    assert int(client.client_id) == 3
    assert client.index is None
    assert draw.numbers == []
    assert client.x.tolist() == client.all_x.tolist() == [[3, 0], [3, 1], [3, 2], [3, 3]]
    assert client.y.tolist() == client.all_y.tolist() == [0, 1, 0, 1]
    assert draw.numbers == [3]


def test_it_has_every_attribute_of_client_data():
    names = [name for name in dir(ClientData) if not name.startswith("_") and not hasattr(tuple, name)]
    client = drawn_split().client(0)
    assert {"x", "y", "mask", "num_samples", "all_x"} <= set(names)
    assert all(hasattr(client, name) for name in {*names, *ClientData._fields})


def test_other_samples_than_announced_are_refused():
    split = drawn_split(Draws((3, 5, 1, 4, 9)))
    with pytest.raises(ConfigError, match=r"client 4 of test .* \[9, 2\] instead of \[2, 2\]; correct"):
        split.select(torch.tensor([0, 4]))


def test_moved_to_a_device_once():
    split = drawn_split()
    assert split.to("cpu") is split
    moved = split.to("meta")
    assert split.to("meta") is moved
    assert moved.select(torch.tensor([1])).x.shape == (5, 2)
    assert moved.select(torch.tensor([1])).x.device.type == moved.client(1).mask.device.type == "meta"


# ---------------------------------------------------------------------- populations
def pairs(**options):
    """Populations of drawn and of held clients."""
    return [build_populations(Clients(held), **options) for held in (False, True)]


@pytest.mark.parametrize("options", [{"unseen_fraction": 0.4}, {"val_fraction": 0.4}, {"seed": 3}])
def test_populations_are_those_of_held_clients(options):
    for population, held in zip(*pairs(**({"unseen_fraction": 0.4, "val_fraction": 0.2} | options)), strict=True):
        assert population.names == held.names
        assert population.groups.tolist() == held.groups.tolist()
        for name in ("train", "val", "test"):
            split, wanted = getattr(population, name), getattr(held, name)
            assert split.sizes.tolist() == wanted.sizes.tolist()
            assert clients(split) == clients(wanted)


def test_nothing_but_a_few_clients_is_drawn_at_the_start(monkeypatch):
    numbers = []
    monkeypatch.setattr(Draws, "__call__", watched(Draws.__call__, numbers))
    data = FederatedDataModule(Clients(sizes=(2,) * 1000), unseen_fraction=0.1)
    data.setup()
    assert data.seen.train.num_clients == 900
    assert data.input_shape == (2,)
    assert len(set(numbers)) <= 3 * 8  # of all clients, then of the seen and of the unseen


def watched(draw, numbers):
    def call(self, number):
        numbers.append(number)
        return draw(self, number)

    return call


def test_unseen_clients_are_numbered_after_the_seen_ones():
    data = FederatedDataModule(Clients(), unseen_fraction=0.4)
    data.setup()
    assert data.unseen.train.first_id == 3
    drawn_first = [samples[0][0] for samples in clients(data.unseen.train).values()]
    assert [f"c{number:.0f}" for number in drawn_first] == data.unseen.names


def test_fingerprint():
    def digest(**fields):
        split = drawn_split(**fields)
        return fingerprint(Population(split, empty_split(split), split, [str(one) for one in range(5)]))

    assert digest() == digest()
    changed = [digest(origin="other"), digest(sizes=(3, 5, 1, 4, 3)), digest(draw=lambda number: shifted(number))]
    assert len({digest(), *changed}) == 4
    chosen = [select_clients(Clients().load()[0], np.array(ids)) for ids in ([0, 4], [0, 3])]
    assert fingerprint(chosen[0]) != fingerprint(chosen[1])


def shifted(number):
    x, y = Draws()(number)
    return x + 1, y


@pytest.mark.parametrize(("number", "kind"), [(0, "seen"), (4, "seen")])
def test_wrong_samples_of_the_clients_looked_at_are_located(number, kind):
    def not_finite(which):
        x, y = Draws()(which)
        return (np.full_like(x, np.nan), y) if which == number else (x, y)

    def wrong_label(which):
        x, y = Draws()(which)
        return (x, y + 7) if which == number else (x, y)

    class Wrong(ClientDataSet):
        num_classes = 2
        draw = staticmethod(not_finite)

        def load(self):
            split = drawn_split(self.draw)
            return Population(split, empty_split(split), drawn_split(), [f"c{one}" for one in range(5)]), None

    with pytest.raises(ConfigError, match=f"train split of {kind} client 'c{number}': x contains NaN"):
        build_populations(Wrong())
    Wrong.draw = staticmethod(wrong_label)
    seen, _ = build_populations(Wrong())
    with pytest.raises(ConfigError, match=rf"train split of {kind} client 'c{number}': label \d is outside 0 … 1"):
        check_labels(infer_target(seen.train.y, 2), seen)


def test_the_number_of_classes_cannot_be_seen_from_what_is_not_drawn():
    with pytest.raises(ConfigError, match="set its num_classes"):
        infer_target(drawn_split().y)


# ---------------------------------------------------------------------- blocks
def test_blocks_are_limited_by_their_samples(monkeypatch):
    assert drawn_split().samples_per_block == 2**27 // 16
    monkeypatch.setattr(drawn, "BYTES_PER_BLOCK", 6 * 16)
    split = drawn_split()
    phases = [Phase("train", torch.arange(5), LocalWork(epochs=1))]
    blocks = round_blocks(phases, split, batch_size=2, clients_per_block=1024)
    assert [block.phase.client_ids.tolist() for block in blocks] == [[1], [3], [0, 4, 2]]
    serving = serving_blocks(split, empty_split(split), clients_per_block=2)
    assert [block.client_ids.tolist() for block in serving] == [[0], [1, 2], [3, 4]]
    adapting = serving_blocks(split, split, clients_per_block=2)
    assert [block.client_ids.tolist() for block in adapting] == [[0], [1], [2], [3], [4]]


def test_every_rank_draws_its_own_clients():
    draws = [Draws(), Draws()]
    for rank, draw in enumerate(draws):
        phases = [Phase("train", torch.tensor([4, 1, 0, 2]), LocalWork(epochs=1))]
        make = partial(round_blocks, phases, drawn_split(draw), batch_size=2, clients_per_block=1)
        for block in make(rank=rank, num_ranks=2):
            block.data.select(block.phase.client_ids)
    assert sorted(draws[0].numbers + draws[1].numbers) == [0, 1, 2, 4]
    assert draws[0].numbers
    assert draws[1].numbers
