"""Names go before numbers."""

import pytest
import torch

from lit_fed.core.types import Population, Split
from lit_fed.data.populations.find_client import find_client
from lit_fed.errors import ConfigError


def population(names, first_id=0):
    offsets = torch.arange(len(names) + 1)
    split = Split(torch.zeros(len(names), 1), torch.zeros(len(names)), offsets, first_id)
    return Population(split, split, split, names)


CLIENTS = {"seen": population(["anna", "4", "béla", "zoë"]), "unseen": population(["cleo", "anna"], first_id=4)}


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
def test_found(client, found):
    assert find_client(client, CLIENTS) == found


@pytest.mark.parametrize("client", ["6", "-1", "²", "Anna", "", "1.0"])
def test_not_found(client):
    with pytest.raises(ConfigError, match=r"seen: anna, 4, béla and 1 more; unseen: cleo, anna\)"):
        find_client(client, CLIENTS)
    with pytest.raises(ConfigError, match=r"\(seen: anna"):
        find_client(client, {"seen": CLIENTS["seen"], "unseen": None})
