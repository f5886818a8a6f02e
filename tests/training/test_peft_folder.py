"""Adapters of a client as peft and transformers load them: the outputs of the run, and what cannot be written."""

import json
from functools import partial

import pytest
import torch
from doc_pages import blocks
from federated_round import facts

from lit_fed import FederatedModule
from lit_fed.algorithms import FedAvg, FedEM
from lit_fed.algorithms.fedem import MixtureState
from lit_fed.core.targets import Sequences
from lit_fed.data.data_sets.texts import byte_tokens
from lit_fed.errors import ConfigError
from lit_fed.models import CharLSTM, HuggingFaceCausalLM, HuggingFaceClassifier
from lit_fed.training.export import check_program_file
from lit_fed.training.peft_folder import save_client

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to:UserWarning"),
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
]

WORDS, LENGTH = 11, 6
GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": WORDS, "n_positions": 9}
LANGUAGE = partial(HuggingFaceCausalLM, config=GPT2)
TOKENS = partial(HuggingFaceClassifier, config=GPT2, per_token=True)


def built(algorithm, network=LANGUAGE, **options):
    """A module with random adapters, and texts."""
    module = FederatedModule(algorithm, network=network, **({"lora_rank": 3, "lora_alpha": 6.0} | options))
    module.build(facts(Sequences(WORDS), (LENGTH,), input_type=torch.int64, label_shape=(LENGTH,)))
    with torch.no_grad():
        for name, leaf in module.named_parameters():
            if "lora" in name or "classifier" in name:
                leaf.normal_(std=0.5)
    return module, torch.randint(WORDS, (4, LENGTH), generator=torch.Generator().manual_seed(0))


def saved(module, x, path, state=(), sets=None):
    assert save_client(path, "peft", module.federation, module.facts, state, x, "anna", sets) is None
    return path


def loaded(folder, base, kind=transformers.AutoModelForCausalLM):
    return peft.PeftModel.from_pretrained(kind.from_pretrained(base), folder).eval()


def test_components_of_a_mixture_are_folders_with_weights(tmp_path):
    module, x = built(FedEM(num_components=3), lora_targets=["*c_attn", "*lm_head"])
    state, ctx = MixtureState(torch.tensor([0.2, 0.0, 0.8])), module.federation.context("evaluate")
    folder = saved(module, x, tmp_path / "anna", state)
    assert sorted(one.name for one in folder.iterdir()) == ["base", "component_0", "component_2", "mixture.json"]
    about = json.loads((folder / "mixture.json").read_text())
    weights = torch.tensor([about["weights"]["component_0"], about["weights"]["component_2"]])
    torch.testing.assert_close(weights, torch.tensor([0.2, 0.8]), rtol=0, atol=1e-5)
    with torch.no_grad():
        outputs = ctx.task.outputs(module.shared.models, x)  # [B, M, L, K]
        each = [loaded(folder / f"component_{m}", folder / "base")(x).logits for m in (0, 2)]
        mixed = sum(share * one.softmax(-1) for share, one in zip(weights, each, strict=True))
        expected = module.algorithm.log_prob(ctx, module.shared, state, x, outputs).exp()
    torch.testing.assert_close(torch.stack(each, 1), outputs[:, [0, 2]], rtol=0, atol=1e-5)
    torch.testing.assert_close(mixed, expected, rtol=0, atol=1e-5)


def test_a_folder_has_the_sets_of_programs(tmp_path):
    module, x = built(FedAvg())
    sets = {"coverage": 0.9, "rule": "…", "thresholds": {"anna": 0.4}, "own_threshold": {"anna": True}}
    folder = saved(module, x, tmp_path / "anna", sets={"sets": sets})
    assert json.loads((folder / "sets.json").read_text()) == sets


@pytest.mark.parametrize(
    ("network", "kind"),
    [(LANGUAGE, transformers.AutoModelForCausalLM), (TOKENS, transformers.AutoModelForTokenClassification)],
    ids=["language-model", "classifier"],
)
def test_one_model_is_one_folder_that_transformers_loads_too(network, kind, tmp_path):
    """A classifier is trained whole beside the adapters."""
    module, x = built(FedAvg(), network)
    folder = saved(module, x, tmp_path / "anna")
    assert {one.name for one in folder.iterdir()} >= {"base", "adapter_config.json", "adapter_model.safetensors"}
    assert not (folder / "mixture.json").exists()
    task = module.federation.context("evaluate").task
    with torch.no_grad():
        expected = task.outputs(module.shared.models, x)[:, 0]
        found = loaded(folder, folder / "base", kind)(x).logits
        other = kind.from_pretrained(folder / "base")
        if network is LANGUAGE:
            other.load_adapter(str(folder))
            torch.testing.assert_close(other.eval()(x).logits, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_program_of_the_guide_gives_the_predictions_of_the_run(tmp_path, monkeypatch, capsys):
    """With the tokens of the training: byte b is b + 1."""
    whole = partial(HuggingFaceCausalLM, config=GPT2 | {"vocab_size": 257, "n_positions": 32})
    module = FederatedModule(FedEM(num_components=2), network=whole, lora_rank=3)
    module.build(facts(Sequences(257), (9,), input_type=torch.int64, label_shape=(9,)))
    with torch.no_grad():
        for name, leaf in module.named_parameters():
            if "lora" in name:
                leaf.normal_(std=0.5)
    x = torch.from_numpy(byte_tokens(["the ship "], 9))
    state = MixtureState(torch.tensor([0.3, 0.7]))
    saved(module, x, tmp_path / "anna", state)
    (block,) = [one for one in blocks("docs/guides/adapters.md") if one.title == "write_on.py"]
    monkeypatch.chdir(tmp_path)
    program = {}
    with torch.no_grad():
        exec(block.text, program)
        ctx = module.federation.context("evaluate")
        outputs = ctx.task.outputs(module.shared.models, x)
        expected = module.algorithm.log_prob(ctx, module.shared, state, x, outputs).exp()
    torch.testing.assert_close(program["mixed"], expected, rtol=0, atol=1e-5)
    assert capsys.readouterr().out.startswith("the ship ")


def test_trained_weights_are_not_written_again(tmp_path):
    base = transformers.AutoModelForCausalLM.from_config(transformers.GPT2Config(**GPT2))
    base.save_pretrained(tmp_path / "trained")
    network = partial(HuggingFaceCausalLM, weights=str(tmp_path / "trained"))
    module, x = built(FedAvg(), network)
    folder = saved(module, x, tmp_path / "anna")
    assert not (folder / "base").exists()
    found = peft.AutoPeftModelForCausalLM.from_pretrained(folder).eval()(x).logits
    expected = module.federation.context("evaluate").task.outputs(module.shared.models, x)[:, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


class Sharpened(FedAvg):
    """Its prediction is not that of its network."""

    def log_prob(self, ctx, shared, state, x, outputs):
        return (2 * outputs[:, 0]).log_softmax(-1)


def test_what_cannot_be_written(tmp_path):
    module, x = built(Sharpened())
    with pytest.raises(ConfigError, match="Sharpened does not predict by a mixture of models"):
        saved(module, x, tmp_path / "a")
    module, x = built(FedAvg(), partial(CharLSTM, hidden_size=2), lora_rank=None, lora_alpha=None)
    with pytest.raises(ConfigError, match="CharLSTM has none; train with"):
        saved(module, x, tmp_path / "a")
    module, x = built(FedAvg(), trainable=["*wte*"])
    with pytest.raises(ConfigError, match=r"trained transformer\.wte\.weight is also another layer's"):
        saved(module, x, tmp_path / "b")
    assert not list(tmp_path.iterdir())
    (tmp_path / "c").mkdir()
    (tmp_path / "c/there").touch()
    with pytest.raises(ConfigError, match="choose a new folder"):
        check_program_file(tmp_path / "c", "peft")
