"""A causal transformer of two layers with adapters: an algorithm for each kind of message, and what is refused."""

from functools import cache

import pytest
import torch
from federated_round import Federation

from lit_fed import algorithms
from lit_fed.clients import VectorizedTrainer
from lit_fed.core import tree
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.start import choose_trained
from lit_fed.core.targets import Sequences
from lit_fed.core.task import Task
from lit_fed.core.types import Split
from lit_fed.errors import ConfigError
from lit_fed.models import HuggingFaceCausalLM
from lit_fed.models.adapters import LowRankAdapters

pytest.importorskip("peft")
pytest.importorskip("transformers")

WORDS, LENGTH, IGNORED = 7, 5, -100
GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": WORDS, "n_positions": LENGTH}
KINDS = {
    "models": "FedAvg", "some of the models": "IFCA", "a part": "FedSALoRA", "nothing": "Local", "changes": "FedNova",
    "multiples": "AFL", "more than models": "SCAFFOLD", "rows": "FedFOMO", "mixtures": "FedEM",
}  # fmt: skip


@cache
def task_of():
    def network():
        made = HuggingFaceCausalLM((LENGTH,), WORDS, config=GPT2, gradient_checkpointing=True)
        choose_trained(made, [], may_be_none=True)
        return LowRankAdapters(2).add_to(made, lambda: made(texts().x))

    return Task.create(network, Sequences(WORDS, IGNORED), dtype=torch.float64)


def texts():
    x = torch.randint(WORDS, (12, LENGTH), generator=torch.Generator().manual_seed(0))
    y = torch.cat([x[:, 1:], torch.full((12, 1), IGNORED)], dim=1)
    y[0] = IGNORED  # a text without a label
    return Split(x, y, torch.tensor([0, 3, 8, 12]))


def rounds(name, per_block):
    federation = Federation(
        getattr(algorithms, name)(), texts(), task_of(), LocalSolver(lr=0.5), clients_per_block=per_block, batch_size=2,
        num_rounds=2,
    )  # fmt: skip
    for _ in range(2):
        federation.round()
    return federation


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_alone_are_trained_and_sent(kind):
    """Clients one at a time and together in blocks give the same."""
    one, other = rounds(KINDS[kind], 1), rounds(KINDS[kind], 3)
    for a, b in zip(tree.leaves(one.shared), tree.leaves(other.shared), strict=True):
        torch.testing.assert_close(a, b)
    names = {name for part in (one.shared, one.states) for models in tree.models(part) for name in models.parameters}
    assert names
    assert all("lora_" in name for name in names)
    assert all(prediction.isfinite().all() for prediction in one.predictions())


def test_clients_at_once_are_refused():
    with pytest.raises(ConfigError, match="HuggingFaceCausalLM"):
        VectorizedTrainer().check(task_of().network)
