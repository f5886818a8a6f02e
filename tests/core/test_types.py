import pytest
import torch
from federated_round import make_clients, make_context

from lit_fed.core.types import ClientData, Split


def arange_split(sizes=(2, 0, 3), first_id=0):
    num_samples = sum(sizes)
    offsets = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    return Split(torch.arange(num_samples, dtype=torch.float32)[:, None], torch.arange(num_samples), offsets, first_id)


def test_split_gives_views_of_each_clients_rows():
    split = arange_split()
    assert split.num_clients == 3
    assert split.sizes.tolist() == [2, 0, 3]
    client = split.client(2)
    assert client.y.tolist() == [2, 3, 4]
    assert client.y.data_ptr() == split.y[2:].data_ptr()
    assert split.client(0).x.data_ptr() == split.x.data_ptr()
    assert client.x.tolist() == [[2], [3], [4]]
    assert client.x.data_ptr() % 64 == 0, "a product of matrices adds up in another order elsewhere"
    assert int(client.client_id) == 2
    assert client.mask.tolist() == [1, 1, 1]
    assert float(split.client(1).num_samples) == 0
    assert split.client(1).x.shape == (0, 1)


def test_identities_may_start_after_those_of_others():
    client = arange_split(first_id=10).client(12)
    assert client.y.tolist() == [2, 3, 4]
    assert int(client.client_id) == 12


def test_identities_may_have_gaps():
    whole = arange_split()
    split = Split(whole.x, whole.y, whole.offsets, first_id=10, ids=torch.tensor([11, 14, 90]))
    assert split.positions(torch.tensor([90, 11])).tolist() == [2, 0]
    assert split.client(90).y.tolist() == [2, 3, 4]
    assert int(split.client(14).num_samples) == 0
    assert split.to("meta").ids.tolist() == [11, 14, 90]
    for absent in (10, 13, 91):
        with pytest.raises(KeyError, match=str(absent)):
            split.positions(torch.tensor([11, absent]))


def test_positions_count_from_the_first_identity():
    assert arange_split(first_id=7).positions(torch.tensor([9, 7])).tolist() == [2, 0]


def test_select_is_the_split_itself_where_all_samples_are_held():
    split = arange_split()
    assert split.select(torch.tensor([2])) is split
    assert split.samples_per_block is None
    assert split.num_samples == 5


def test_subset():
    split = arange_split((2, 0, 3, 1))
    middle = split.subset(torch.tensor([1, 2]))
    assert middle.x.data_ptr() == split.x[2:].data_ptr()
    assert middle.offsets.tolist() == [0, 0, 3]
    gaps = split.subset(torch.tensor([0, 3]))
    assert gaps.y.tolist() == [0, 1, 5]
    assert gaps.offsets.tolist() == [0, 2, 3]
    assert gaps.first_id == 0


def test_split_moves_to_a_device_once():
    split = arange_split()
    assert split.to("cpu") is split
    moved = split.to("meta")
    assert moved.x.device.type == moved.y.device.type == "meta"
    assert moved.offsets.device.type == "cpu"
    assert split.to(torch.device("meta"), non_blocking=True) is moved
    assert moved.first_id == split.first_id


def test_client_data_looks_rows_up_only_when_read():
    class Counting:
        reads = 0

        def __getitem__(self, rows):
            Counting.reads += 1
            return torch.arange(10.0)[rows]

    data = ClientData(Counting(), Counting(), torch.tensor([3, 1, 1]), torch.tensor([1.0, 1.0, 0.0]), torch.tensor(0))
    assert float(data.num_samples) == 2
    assert Counting.reads == 0
    assert data.x.tolist() == data.y.tolist() == [3, 1, 1]
    assert Counting.reads == 2


def test_number_of_samples_is_exact():
    data = ClientData(torch.empty(0), torch.empty(0), None, torch.ones(2**24 + 1), torch.tensor(0))
    assert data.num_samples.dtype == torch.float64
    assert float(data.num_samples) == 2**24 + 1


@pytest.mark.parametrize(("weighting", "expected"), [("samples", 3.0), ("uniform", 1.0)])
def test_client_weight(weighting, expected):
    weight = make_context(weighting=weighting).client_weight(make_clients([3]).client(0))
    assert weight.dtype == torch.float64
    assert weight.shape == ()
    assert float(weight) == expected


def test_client_weight_without_samples():
    empty = make_clients([3, 0]).client(1)
    assert float(make_context(weighting="samples").client_weight(empty)) == 0
    assert float(make_context(weighting="uniform").client_weight(empty)) == 1


def test_all_samples_of_a_client_as_one_batch():
    train = make_clients([3, 2])
    data = train.client(1)
    padded = ClientData(train.x, train.y, torch.tensor([3, 4, 3]), torch.tensor([1.0, 1.0, 0.0]), data.client_id)
    for one, mask in ((data, [1.0, 1.0]), (padded, [1.0, 1.0, 0.0])):
        batch = one.batch
        assert torch.equal(batch.x, one.x)
        assert torch.equal(batch.y, one.y)
        assert batch.index.tolist() == list(range(len(mask)))
        assert batch.mask.tolist() == mask


def test_the_total_weight_is_that_of_all_clients():
    assert make_context(num_clients=7, total_samples=50, weighting="samples").total_weight == 50
    assert make_context(num_clients=7, total_samples=50, weighting="uniform").total_weight == 7


def test_shares_of_clients_are_1_on_average():
    """With and without samples of its own: a share divides, so it is never 0."""
    split = make_clients([4, 1, 7])
    for weighting, expected in (("samples", [1.0, 0.25, 1.75]), ("uniform", [1.0, 1.0, 1.0])):
        ctx = make_context(num_clients=3, total_samples=12, weighting=weighting)
        shares = [ctx.client_share(split.client(one)) for one in range(3)]
        assert {share.dtype for share in shares} == {torch.float64}
        assert [float(share) for share in shares] == expected
        assert float(ctx.client_share(arange_split().client(1))) > 0
