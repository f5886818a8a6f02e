"""Facts of a training, through a checkpoint and through JSON."""

import json

import pytest
import torch

from lit_fed.core.targets import Sequences
from lit_fed.data import Normalisation
from lit_fed.data.facts import TrainingFacts


@pytest.mark.parametrize("normalisation", [None, Normalisation((0.1, 0.2), (0.3, 0.4))])
def test_facts_survive_a_checkpoint_and_the_public_ones_json(tmp_path, normalisation):
    facts = TrainingFacts(
        input_shape=(2, 3), input_type="float32", label_shape=(5,), target=Sequences(4), num_clients=7,
        total_samples=90, most_samples=33, groups=torch.arange(7), batch_size=16, clients_per_block=8,
        weighting="uniform", seed=3, num_rounds=20, normalisation=normalisation, learned=("a mean",),
        named=torch.arange(7), sizes=torch.full((7,), 300),
    )  # fmt: skip
    torch.save(facts.plain(), tmp_path / "facts.pt")
    found = TrainingFacts.from_plain(torch.load(tmp_path / "facts.pt", weights_only=True))
    for name in ("groups", "named", "sizes"):
        assert torch.equal(getattr(found, name), getattr(facts, name))
    nothing = {"groups": None, "named": None, "sizes": None}
    assert found._replace(**nothing) == facts._replace(**nothing)
    sent = TrainingFacts.from_plain(json.loads(json.dumps(facts.public.plain())))
    assert sent == facts._replace(**nothing, learned=())
