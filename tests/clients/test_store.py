import torch

from lit_fed.clients.store import ClientStore


def store():
    return ClientStore(lambda client: {"state": (torch.full((2,), float(client)), torch.tensor(client))}, 4)


def test_states_are_stacked_and_gathered():
    kept = store()
    first, second = kept.gather(torch.tensor([3, 1]))["state"]
    assert first.tolist() == [[3, 3], [1, 1]]
    assert second.tolist() == [3, 1]


def test_staged_states_are_seen_by_gather_but_not_by_the_table_until_commit():
    kept = store()
    new = {"state": (torch.tensor([[9.0, 9.0], [8.0, 8.0]]), torch.tensor([9, 8]))}
    kept.stage(torch.tensor([2, 0]), new)
    assert kept.gather(torch.tensor([0, 1, 2]))["state"][1].tolist() == [8, 1, 9]
    assert kept.table["state"][1].tolist() == [0, 1, 2, 3]
    kept.commit()
    assert kept.table["state"][1].tolist() == [8, 1, 9, 3]
    kept.discard()
    assert kept.table["state"][1].tolist() == [8, 1, 9, 3]


def test_discard_forgets():
    kept = store()
    kept.stage(torch.tensor([2]), {"state": (torch.ones(1, 2), torch.tensor([7]))})
    kept.discard()
    kept.commit()
    assert kept.table["state"][1].tolist() == [0, 1, 2, 3]


def test_stateless_clients_cost_nothing():
    kept = ClientStore(lambda _: {"state": ()}, 5)
    assert list(kept.buffers()) == []
    assert kept.gather(torch.tensor([1, 2])) == {"state": ()}


def test_the_initial_states_are_copies():
    leaf = torch.zeros(2)
    kept = ClientStore(lambda _: {"state": {"mixture": leaf}}, 3)
    kept.stage(torch.tensor([0]), {"state": {"mixture": torch.ones(1, 2)}})
    kept.commit()
    assert leaf.tolist() == [0, 0]
    assert kept.mixture_weights.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_large_states_of_a_single_rank_are_gathered_in_portions_and_not_copied(monkeypatch):
    monkeypatch.setattr("lit_fed.clients.store.BYTES_AT_ONCE", 40)  # two states and a half
    kept = store()
    assert kept.portions(5) == [slice(0, 2), slice(2, 4), slice(4, 5)]
    rows = [torch.full((1, 2), 9.0), torch.full((2, 2), 8.0)]
    kept.stage(torch.tensor([3]), {"state": (rows[0], torch.tensor([9]))})
    kept.stage(torch.tensor([0, 2]), {"state": (rows[1], torch.tensor([8, 7]))})
    kept.exchange(torch.tensor([2, 0, 1]), [3], torch.tensor([0, 2, 3]))
    assert kept._staged[0][1][0].data_ptr() == rows[0].data_ptr()
    assert kept.gather(torch.tensor([0, 1, 2, 3]))["state"][1].tolist() == [8, 1, 7, 9]
    kept.commit()
    assert kept.table["state"][0][:, 0].tolist() == [8, 1, 8, 9]
    assert kept.table["state"][1].tolist() == [8, 1, 7, 9]


def test_small_states_are_gathered_at_once():
    assert store().portions(5) == [slice(0, 5)]
    assert ClientStore(lambda _: {"state": ()}, 5).portions(5) == [slice(0, 5)]
