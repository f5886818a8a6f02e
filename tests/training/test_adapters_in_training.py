"""A causal transformer of random weights with adapters and FedEM on roles: memory, traffic, ranks, resume, export."""

import gc
import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch import seed_everything
from prepared import do_not_render
from quiet import assert_same_state, quiet_trainer
from running import folder, history, in_two_ranks, numbers

from lit_fed import FederatedModule, export
from lit_fed.algorithms import FedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.data import Shakespeare
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.models import HuggingFaceCausalLM

pytest.importorskip("peft")
pytest.importorskip("transformers")

SIZES = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100, "n_positions": 8}
SIZES["tie_word_embeddings"] = False
BACKBONE = 4 * (100 * 64 + 8 * 64 + 2 * 49_984 + 2 * 64)
"""Bytes: embeddings of tokens and positions, two layers, the last normalisation."""
ADAPTER = 4 * 2 * 4 * ((64 + 192) + (64 + 64) + (64 + 256) + (256 + 64)) + 4 * 64 * 100
"""Bytes of one: two layers of four matrices at rank 4, and the last layer of 64 × 100."""
ROLES, CLIENTS = ("the ship sails ", "oh my lord! ", "to be or not ", "my kingdom! ", "good night "), 4


def module_of(**options):
    return FederatedModule(
        FedEM(num_components=3),
        LocalSolver(lr=0.5),
        network=partial(HuggingFaceCausalLM, config=SIZES, gradient_checkpointing=True),
        **({"lora_rank": 4, "trainable": "head"} | options),
    )


def data_of(root):
    roles = Shakespeare(root=str(root), sequence_length=8, stride=8)
    return FederatedDataModule(roles, unseen_fraction=0.2, clients_per_block=2, batch_size=4)


def fit(root, out, rounds=2, ckpt_path=None, module=None, **arguments):
    """FedEM's three adapters over one backbone."""
    seed_everything(3, verbose=False)
    module = module or module_of()
    trainer = quiet_trainer(rounds, out, "adapters", **{"devices": 1} | arguments)
    data = data_of(root)
    trainer.fit(module, datamodule=data, ckpt_path=ckpt_path)
    trainer.test(module, datamodule=data, verbose=False)
    return module, trainer


def fit_as_rank(root, out):
    do_not_render()
    fit(root, out, devices=2, strategy="fed_ddp")


def live_bytes():
    """Bytes of all tensors that the process holds, each memory once."""
    gc.collect()
    held = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, torch.nn.Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(one):
            held[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
    return sum(held.values())


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A text for each role."""
    place = tmp_path_factory.mktemp("texts")
    texts = {f"play/ROLE {number}": 9 * text for number, text in enumerate(ROLES)}
    (place / "roles.json").write_text(json.dumps(texts))
    return place


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    """Module, trainer and folder after two rounds, and the bytes of tensors that it has added."""
    out, before = tmp_path_factory.mktemp("whole"), live_bytes()
    module, trainer = fit(root, out)
    return module, trainer, folder(out, "adapters"), live_bytes() - before


def test_memory_is_that_of_the_backbone_and_three_adapters(run):
    module, _, _, added = run
    task, models = module.federation.terms.task, module.shared.models
    assert sum(leaf.nbytes for leaf in task.frozen.values()) == BACKBONE
    assert sum(leaf.nbytes for leaf in (*models.parameters.values(), *models.buffers.values())) == 3 * ADAPTER
    # beside the three that are trained those that they began as, and the template's own; and a little of a run
    assert BACKBONE + 3 * ADAPTER <= added < 1.25 * BACKBONE + (3 + 3 + 1) * ADAPTER


def test_only_adapters_and_heads_are_sent_and_kept_in_checkpoints(run):
    _, _, out, _ = run
    table = pd.read_csv(out / "metrics.csv")
    for direction in ("up", "down"):
        assert (table[f"comm/bytes_{direction}"].dropna() == CLIENTS * 3 * ADAPTER).all()
    content = torch.load(out / "checkpoints/last.ckpt", weights_only=True)
    kept = [leaf.nbytes for leaf in content["state_dict"].values() if leaf.ndim > 2]
    assert sum(kept) == 3 * ADAPTER
    assert not [name for name in content["state_dict"] if "base_layer" in name]


def test_every_component_has_trained_its_adapters(run):
    losses = pd.read_csv(run[2] / "metrics.csv")["train/seen/loss"].dropna()
    assert losses.iloc[-1] < losses.iloc[0] - 0.3
    models = run[0].shared.models.parameters
    stacked = [leaf for name, leaf in models.items() if "lora_B" in name]
    assert len(stacked) == 8
    assert all(one.any() for leaf in stacked for one in leaf)


def test_two_ranks_equal_one_bit_for_bit(run, root, tmp_path):
    in_two_ranks(partial(fit_as_rank, root, tmp_path))
    two = folder(tmp_path, "adapters")
    assert numbers(run[2]) == numbers(two)
    assert history(run[2]) == history(two)
    one, other = (torch.load(path / "checkpoints/last.ckpt", weights_only=True) for path in (run[2], two))
    assert_same_state(one["state_dict"], other["state_dict"])


def test_resume_equals_an_uninterrupted_run(run, root, tmp_path):
    fit(root, tmp_path / "half", rounds=1)
    half = str(folder(tmp_path / "half", "adapters") / "checkpoints/last.ckpt")
    resumed, _ = fit(root, tmp_path / "rest", ckpt_path=half)
    assert_same_state(run[0], resumed)
    assert history(run[2])[-1] == history(folder(tmp_path / "rest", "adapters"))[-1]


def test_an_exported_client_has_its_adapters_merged(run, root, tmp_path):
    module, trainer, _, _ = run
    data, path = data_of(root), tmp_path / "client.pt2"
    table = trainer.predict(module, datamodule=data, population="seen", output=str(tmp_path / "seen.csv"))
    rows = table[table["client_id"] == 1]
    export(trainer, module, data, client=data.seen.names[1], output=str(path))
    program = torch.export.load(path)
    x = data.seen.test.client(1).x
    found = program.module()(x).detach().flatten(0, 1)
    expected = rows[[column for column in rows if column.startswith("p_")]].to_numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert program.state_dict
    assert not [leaf for leaf in program.state_dict if "lora" in leaf or "base_layer" in leaf]


def test_settings_are_refused_before_anything_is_trained(root, tmp_path):
    with pytest.raises(ConfigError, match="lora_targets has 'zzz', which matches no linear layer of HuggingFace"):
        fit(root, tmp_path, module=module_of(lora_targets=["zzz"]))
    with pytest.raises(ConfigError, match=r"lora_targets is \['c_attn'\], .* give --model\.lora_rank"):
        module_of(lora_rank=None, lora_targets=["c_attn"])
    assert not list(tmp_path.iterdir())
