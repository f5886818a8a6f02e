"""Causal language models: their last layer, and losses in pieces of positions."""

import pytest
import torch
from federated_round import Federation, perturbed

from lit_fed.algorithms import FedEM
from lit_fed.clients import sequential
from lit_fed.core import task as tasks
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.start import choose_trained
from lit_fed.core.targets import Sequences
from lit_fed.core.task import Task
from lit_fed.core.types import Batch, Split
from lit_fed.errors import ConfigError
from lit_fed.models import HuggingFaceCausalLM
from lit_fed.models.adapters import LowRankAdapters, merge_adapters

pytest.importorskip("transformers")

WORDS, LENGTH = 11, 6
GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": WORDS, "n_positions": 9}
UNTIED = GPT2 | {"tie_word_embeddings": False}
IGNORED = -100


def make(config=GPT2, **options):
    return HuggingFaceCausalLM((LENGTH,), WORDS, config=config, **options)


def task_of(config=GPT2, build=None):
    return Task.create(build or (lambda: make(config)), Sequences(WORDS, IGNORED), seed=3, dtype=torch.float64)


def texts(num_texts=4):
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(WORDS, (num_texts, LENGTH), generator=rng)
    y = torch.cat([x[:, 1:], torch.full((num_texts, 1), IGNORED)], dim=1)
    y[0, :3] = IGNORED  # a prompt
    return x, y


def with_adapters(trained):
    network = make(UNTIED)
    choose_trained(network, trained, may_be_none=True)
    return LowRankAdapters(2, ["*c_attn"]).add_to(network, lambda: network(texts()[0]))


def test_weights_without_a_last_layer_are_refused(tmp_path):
    make(UNTIED).model.base_model.save_pretrained(tmp_path / "body")
    with pytest.raises(ConfigError, match=r"body lacks the last layer \(lm_head.weight\), and predicts no words"):
        make(None, weights=str(tmp_path / "body"))
    make().model.base_model.save_pretrained(tmp_path / "tied")  # the embedding is the last layer
    assert make(None, weights=str(tmp_path / "tied")).head_names == {"model.transformer.wte.weight"}


def test_the_last_layer_is_that_of_the_model_and_shares_its_weights():
    network = make()
    assert network.head_names == {"model.transformer.wte.weight"}
    body, top = network.eval().split()
    x, _ = texts()
    assert torch.equal(top(body(x)), network(x))
    assert make(UNTIED).head_names == {"model.lm_head.weight"}
    other = x.clone()
    other[:, 4:] = 9
    assert torch.equal(network(x)[:, :4], network(other)[:, :4])


@pytest.mark.parametrize(
    "build",
    [None, lambda: make(UNTIED), lambda: with_adapters("head"), lambda: with_adapters([])],
    ids=["tied", "untied", "adapters-and-head", "adapters"],
)
def test_losses_in_pieces_are_those_of_all_outputs(build, monkeypatch):
    """Tied, trained and frozen last layers; two models."""
    task, (x, y) = task_of(build=build), texts()
    models = task.init(2, seed=1)
    batch = Batch(x, y, torch.arange(4), torch.tensor([1.0, 1, 1, 0]))
    weight = torch.rand(4, 2, dtype=torch.float64)
    whole = task.losses_of(models, x, y), *task.value_and_grad(models, batch, weight)
    monkeypatch.setattr(tasks, "PIECE_BYTES", 5 * WORDS * 8)  # five positions
    made = []
    monkeypatch.setattr(type(task), "outputs", lambda *_: made.append(1))
    pieces = task.losses_of(models, x, y), *task.value_and_grad(models, batch, weight)
    assert not made
    for one, other in zip(whole[:2], pieces[:2], strict=True):
        torch.testing.assert_close(one, other)
    assert whole[2].keys() == pieces[2].keys()
    for name, leaf in whole[2].items():
        torch.testing.assert_close(leaf, pieces[2][name])
    assert any(leaf.abs().max() > 0 for leaf in whole[2].values())


@pytest.mark.parametrize(("targets", "changed"), [(None, 4), (["*lm_head"], 1)], ids=["default", "last-layer"])
def test_merged_adapters_leave_the_embedding_as_it_is(targets, changed):
    """The last layer, which shares its weights, has an adapter only if it is named."""
    network, (x, _) = make(), texts()
    choose_trained(network, [], may_be_none=True)
    LowRankAdapters(2, targets).add_to(network, lambda: network(x))
    with torch.no_grad():
        drawn = [leaf.normal_() for name, leaf in network.named_parameters() if "lora_B" in name]
        expected = network.eval()(x)
        assert len(drawn) == changed
        torch.testing.assert_close(merge_adapters(network)(x), expected)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("build", ["trained", "adapters"])
def test_gradients_of_layers_that_run_twice(build, dropout, monkeypatch):
    """Two models, whose leaves are not those of the template; with dropout the same units drop in both runs."""
    runs, config = [], UNTIED | {"n_layer": 2}

    def gradient(**options):
        def network():
            made = make(config, dropout=dropout, **options)
            if build == "adapters":
                choose_trained(made, [], may_be_none=True)
                LowRankAdapters(2).add_to(made, lambda: made(texts()[0]))
            return made

        task, (x, y) = task_of(build=network), texts()
        models = perturbed(task.init(2, seed=1))
        for block in task.network.model.transformer.h:
            block.mlp.register_forward_pre_hook(lambda *_: runs.append(1))
        torch.manual_seed(5)
        runs.clear()
        return task.value_and_grad(models, Batch(x, y, torch.arange(4), torch.ones(4))), len(runs)

    (kept, once), (again, twice) = gradient(), gradient(gradient_checkpointing=True)
    torch.testing.assert_close(kept, again)
    assert (once, twice) == (4, 8)


def test_frozen_parameters_in_bfloat16():
    """The gradient of the adapters is that of float32 up to the rounding of the frozen network."""

    def gradient(frozen_dtype):
        def network():
            made = make(frozen_dtype=frozen_dtype)
            choose_trained(made, [], may_be_none=True)
            return LowRankAdapters(2).add_to(made, lambda: made(texts()[0]))

        task, (x, y) = Task.create(network, Sequences(WORDS, IGNORED), seed=3), texts()
        assert {leaf.dtype for leaf in task.frozen.values()} == {getattr(torch, frozen_dtype)}
        models = perturbed(task.init(2, seed=1), scale=0.5)
        found = task.value_and_grad(models, Batch(x, y, torch.arange(4), torch.ones(4)))[1].values()
        assert {leaf.dtype for leaf in found} == {torch.float32}
        return torch.cat([leaf.flatten() for leaf in found])

    exact, rounded = gradient("float32"), gradient("bfloat16")
    assert 0 < (exact - rounded).norm() < 0.05 * exact.norm()


def test_a_mixture_trained_in_pieces(monkeypatch):
    x, y = texts(9)
    train = Split(x, y, torch.tensor([0, 4, 9]))

    def rounds():
        federation = Federation(
            FedEM(num_components=2), train, task_of(), LocalSolver(lr=0.1, momentum=0.9), batch_size=2, num_rounds=2
        )
        federation.round()
        federation.round()
        return federation

    whole = rounds()
    monkeypatch.setattr(tasks, "PIECE_BYTES", 5 * WORDS * 8)
    pieces = rounds()
    torch.testing.assert_close(whole.states.mixture, pieces.states.mixture)
    for name, leaf in whole.shared.models.parameters.items():
        torch.testing.assert_close(leaf, pieces.shared.models.parameters[name])


def test_predictions_take_as_many_texts_at_a_time_as_memory_allows(monkeypatch):
    x, y = texts(5)
    federation = Federation(FedEM(num_components=2), Split(x, y, torch.tensor([0, 5])), task_of())
    (whole,) = federation.predictions()
    monkeypatch.setattr(sequential, "OUTPUT_BYTES", 2 * 2 * LENGTH * WORDS * 8)  # two texts of two components
    seen, outputs = [], Task.outputs
    monkeypatch.setattr(Task, "outputs", lambda task, models, x: (seen.append(len(x)), outputs(task, models, x))[1])
    (parts,) = federation.predictions()
    assert seen[-3:] == [2, 2, 1]
    torch.testing.assert_close(whole, parts)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (((LENGTH,), 7), "GPT2Config has 11 words, and labels have 7 values; give --model.target Sequences"),
        (((3, 8, 8), WORDS), "reads texts \\[length\\], the samples are \\[3, 8, 8\\]"),
        (((20,), WORDS), "reads at most 9 tokens, but the texts have 20"),
    ],
)
def test_wrong_sizes(given, message):
    with pytest.raises(ConfigError, match=message):
        HuggingFaceCausalLM(*given, config=GPT2)


def test_layers_that_cannot_run_twice_and_types_of_the_frozen_part():
    with pytest.raises(ConfigError, match="names no layers of CTRLLMHeadModel that can run twice"):
        make(GPT2 | {"model_type": "ctrl", "dff": 8}, gradient_checkpointing=True)
    with pytest.raises(ConfigError, match="frozen_dtype is int8; give float32 or bfloat16"):
        make(frozen_dtype="int8")


def test_classifiers_without_a_language_model_are_refused():
    with pytest.raises(ConfigError, match="no causal language model for ViTConfig"):
        make({"model_type": "vit"})
