"""Classifiers of transformers, of random weights and of weights in a folder."""

import re

import pytest
import torch
from federated_round import MULTICLASS

from lit_fed.clients import SequentialTrainer, VectorizedTrainer
from lit_fed.clients.choose import choose_trainer
from lit_fed.core.networks.layers import drops_units
from lit_fed.core.networks.start import choose_trained
from lit_fed.core.task import Task
from lit_fed.errors import ConfigError
from lit_fed.models import HuggingFaceClassifier

pytest.importorskip("transformers")

BERT = {
    "model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "vocab_size": 11, "max_position_embeddings": 9,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 9}
VIT = {
    "model_type": "vit", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "patch_size": 4,
}  # fmt: skip
TEXTS = torch.tensor([[3, 4, 5, 0, 0, 0], [3, 4, 5, 6, 7, 8]])


def make(config=BERT, shape=(6,), num_outputs=3, **options):
    torch.manual_seed(1)
    return HuggingFaceClassifier(shape, num_outputs, config=config, **options).eval()


@pytest.fixture
def saved(tmp_path):
    """A folder that `save_pretrained` wrote, and the network in it."""
    network = make()
    network.model.save_pretrained(tmp_path / "bert")
    return str(tmp_path / "bert"), network


def test_padding_takes_no_part():
    network = make()
    with torch.no_grad():
        padded, alone = network(TEXTS), network(TEXTS[:1, :3])
    torch.testing.assert_close(padded[:1], alone)
    assert padded.shape == (2, 3)
    assert not torch.equal(padded[0], make(pad_token_id=10)(TEXTS)[0])
    assert network(torch.zeros(2, 6, dtype=torch.int64)).isfinite().all()


def test_an_output_for_each_token_that_sees_those_before_it():
    network = make(GPT2, num_outputs=11, per_token=True)
    other = TEXTS.clone()
    other[:, 4:] = 9
    with torch.no_grad():
        one, changed = network(TEXTS), network(other)
    assert one.shape == (2, 6, 11)
    torch.testing.assert_close(one[:, :4], changed[:, :4])
    assert not torch.equal(one[:, 4:], changed[:, 4:])


def test_images_have_the_sizes_of_the_samples():
    network = make(VIT, shape=(1, 8, 8), num_outputs=2)
    assert network(torch.rand(3, 1, 8, 8)).shape == (3, 2)
    assert network.model.config.num_channels == 1


def test_weights_of_a_folder_are_taken_and_their_classifier_if_it_fits(saved):
    folder, network = saved
    torch.manual_seed(2)
    same, other = HuggingFaceClassifier((6,), 3, weights=folder), HuggingFaceClassifier((6,), 4, weights=folder)
    assert all(torch.equal(leaf, network.state_dict()[name]) for name, leaf in same.state_dict().items())
    unlike = {
        name for name, leaf in other.state_dict().items() if leaf.shape != network.state_dict()[name].shape
    }  # of the classifier alone
    assert unlike == other.head_names == {"model.classifier.weight", "model.classifier.bias"}
    assert torch.equal(other.model.bert.pooler.dense.weight, network.model.bert.pooler.dense.weight)
    choose_trained(other, "head")
    assert {name for name, leaf in other.named_parameters() if leaf.requires_grad} == other.head_names


def test_a_body_alone_leaves_the_classifier_random_by_the_seed(saved, tmp_path):
    _, network = saved
    network.model.bert.save_pretrained(tmp_path / "body")
    task = Task.create(lambda: HuggingFaceClassifier((6,), 3, weights=str(tmp_path / "body")), MULTICLASS, 5)
    one, other = task.init(2, 5).parameters["model.classifier.weight"]
    assert not torch.equal(one, other)
    assert torch.equal(one, task.init(1, 5).parameters["model.classifier.weight"][0])


def test_nothing_drops_unless_asked_for():
    network = make()
    assert network.model.config.hidden_dropout_prob == network.model.config.attention_probs_dropout_prob == 0
    assert not drops_units(network)
    assert make(dropout=0.3).model.config.hidden_dropout_prob == 0.3
    assert make(dropout=None).drops.p == 0.1
    assert make(BERT | {"hidden_dropout_prob": 0.4}).drops.p == 0.4
    assert drops_units(make(dropout=0.3))


def test_clients_are_trained_one_after_another():
    with pytest.raises(ConfigError, match="vectorized cannot train a network with HuggingFaceClassifier, which vmap"):
        VectorizedTrainer().check(make())
    assert isinstance(choose_trainer("auto", make(), torch.device("cuda")), SequentialTrainer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"config": None},
            "--model.network has no weights and no config; give weights, or as a config a folder or file",
        ),
        ({"config": {"hidden_size": 8}}, r"config has no model_type; give .* such as \{model_type: bert"),
        ({"config": {"model_type": "brt"}}, "model_type is brt; give a type of transformers, did you mean bert"),
        (
            {"config": BERT | {"hiden_size": 8}},
            "'hiden_size', which is not a field of BertConfig; did you mean hidden_size",
        ),
        (
            {"config": BERT | {"hidden_size": 9}},
            r"config cannot be built \(ValueError: The hidden size \(9\) is not a mul",
        ),
        ({"config": BERT, "shape": (10,)}, "reads at most 9 tokens, but the texts have 10; shorten them"),
        (
            {"config": BERT, "shape": (2, 3)},
            r"reads texts \[length\] or images .*, the samples are \[2, 3\]; choose anot",
        ),
        ({"config": GPT2}, r"pad_token_id: GPT2Config has no padding token; give .*, or -1 if"),
        ({"config": VIT}, "transformers has no classifier of texts for ViTConfig; choose another model_type"),
        ({"config": BERT, "dropout": 1.0}, r"--model\.network\.dropout is 1\.0; give a number in \[0, 1\)"),
        ({"config": "./none"}, r"--model\.network\.config \./none does not exist; give a folder of save_pretrained"),
    ],
)
def test_what_is_no_network(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_weights_that_do_not_fit(saved, tmp_path):
    folder, _ = saved
    fault = (
        rf"weights {re.escape(folder)}: \d+ parameters of BertForSequenceClassification are missing or of another sh"
    )
    with pytest.raises(ConfigError, match=fault):
        make({"hidden_size": 4}, weights=folder)
    with pytest.raises(ConfigError, match="is of the type bert; leave model_type out of the config"):
        make({"model_type": "gpt2"}, weights=folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"weights .*empty cannot be read \(.*; give a folder of save_pretrained"):
        make(None, weights=str(tmp_path / "empty"))


def test_tokens_that_it_does_not_know():
    with pytest.raises(
        ConfigError, match="a token is outside the vocabulary of 11, or a text too long; correct it, or gi"
    ):
        make()(torch.full((1, 6), 11))
    with pytest.raises(ConfigError, match=r"reads tokens, the samples hold torch\.float32; store them as int64"):
        make()(torch.zeros(1, 6))
