import pytest
import torch

from lit_fed.clients.store import ClientStore


def store():
    return ClientStore(lambda client: {"state": (torch.full((2,), float(client)), torch.tensor(client))}, 4)


def test_states_are_stacked_and_gathered():
    kept = store()
    first, second = kept.gather(torch.tensor([3, 1]))["state"]
    assert first.tolist() == [[3, 3], [1, 1]]
    assert second.tolist() == [3, 1]


def test_the_state_of_a_single_client_is_not_copied_unless_it_begins_where_its_own_memory_would_not():
    kept = ClientStore(lambda client: {"state": torch.full((16,), float(client))}, 3)
    alone = kept.gather(torch.tensor([2]))["state"]
    assert alone.tolist() == [[2.0] * 16]
    assert alone.data_ptr() == kept.table["state"][2].data_ptr()
    narrow = ClientStore(lambda client: {"state": torch.full((3,), float(client))}, 3)
    alone = narrow.gather(torch.tensor([2]))["state"]
    assert alone.tolist() == [[2.0] * 3]
    assert alone.data_ptr() % 64 == 0


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


def test_a_state_that_comes_back_as_it_was_can_be_committed():
    """It may share the memory of the table."""
    kept = ClientStore(lambda client: {"state": torch.full((16,), float(client))}, 3)
    alone = torch.tensor([2])
    kept.stage(alone, kept.gather(alone))
    kept.commit()
    assert kept.table["state"][:, 0].tolist() == [0, 1, 2]


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


# ---------------------------------------------------------------------- rows in checkpoints
def mixtures(num_clients, start=0.0, **settings):
    """A store of two numbers per client, which start from a number and the client's."""
    return ClientStore(lambda one: {"state": torch.tensor([start, float(one)])}, num_clients, **settings)


def trained(kept, client_ids, value):
    kept.stage(torch.tensor(client_ids), {"state": torch.full((len(client_ids), 2), value)})
    kept.commit()


def test_a_checkpoint_holds_the_rows_of_clients_that_trained():
    kept = mixtures(4)
    (name,) = kept.state_dict().keys() - {"trained"}
    trained(kept, [2, 0], 9.0)
    saved = kept.state_dict()
    assert saved["trained"].tolist() == [0, 2]
    assert saved[name].tolist() == [[9, 9], [9, 9]]
    again = mixtures(4)
    trained(again, [3], 7.0)  # which the checkpoint knows nothing of
    again.load_state_dict(saved)
    assert again.table["state"].tolist() == kept.table["state"].tolist() == [[9, 9], [0, 1], [9, 9], [0, 3]]
    assert again.state_dict()["trained"].tolist() == [0, 2]
    trained(again, [1, 3], 5.0)
    whole = again.state_dict()
    assert whole.keys() == {name}
    last = mixtures(4)
    last.load_state_dict(whole)
    assert last.table["state"].tolist() == [[9, 9], [5, 5], [9, 9], [5, 5]]


def test_rows_that_a_checkpoint_leaves_out_start_where_clients_start_now():
    """As a warm start, which a checkpoint brings back before its rows, has it."""
    kept = mixtures(3)
    trained(kept, [1], 9.0)
    again = mixtures(3, start=4.0)
    again.load_state_dict(kept.state_dict())
    assert again.table["state"].tolist() == [[4, 0], [9, 9], [4, 2]]


def test_rows_of_other_clients_are_refused():
    kept = mixtures(3)
    trained(kept, [2], 9.0)
    wrong = {key: value[:, :1] if value.ndim == 2 else value for key, value in kept.state_dict().items()}
    with pytest.raises(RuntimeError, match="size mismatch"):
        mixtures(3).load_state_dict(wrong)


def test_200_000_clients_that_start_alike_are_asked_once():
    asked = []
    kept = ClientStore(lambda one: asked.append(one) or {"state": torch.ones(3)}, 200_000, alike=True)
    trained_ids = torch.tensor([199_999, 5])
    kept.stage(trained_ids, {"state": torch.zeros(2, 3)})
    kept.commit()
    assert set(asked) == {0}
    assert sum(leaf.nbytes for leaf in kept.state_dict().values()) < 100
    assert kept.gather(torch.tensor([5, 6]))["state"].tolist() == [[0, 0, 0], [1, 1, 1]]
