"""The row of bench.py about a causal language model with adapters: memory and speed beside a plain loop."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from bench_networks import Noise
from measuring import PlainLoop, in_process, peak_gigabytes
from torch import Tensor
from torch.nn.functional import cross_entropy

from lit_fed import FederatedModule
from lit_fed.algorithms import FedEM
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Sequences
from lit_fed.core.task import PIECE_BYTES
from lit_fed.data.module import FederatedDataModule
from lit_fed.models import HuggingFaceCausalLM

WORDS, LENGTH, SAMPLES, BATCH, COMPONENTS, RANK, ROUNDS = 50_257, 512, 4, 2, 3, 4, 2
LAYERS = ["c_attn", "c_proj", "c_fc"]
SGD = {"lr": 0.1, "momentum": 0.9}


def config(words: int) -> dict[str, Any]:
    """GPT-2 of two layers."""
    return {
        "model_type": "gpt2", "n_embd": 128, "n_layer": 2, "n_head": 2, "vocab_size": words, "n_positions": LENGTH,
    }  # fmt: skip


def measured(build: Callable[[], Callable[[], None]]) -> dict[str, float]:
    """Gigabytes by which building and rounds raise the peak, and CPU seconds of the last round."""
    before = peak_gigabytes()
    one_round, seconds = build(), []
    for _ in range(ROUNDS):
        start = time.process_time()
        one_round()
        seconds.append(time.process_time() - start)
    return {"before": before, "added": peak_gigabytes() - before, "seconds": seconds[-1]}


@in_process
def lit_fed(words: int) -> dict[str, float]:
    """FedEM of one client."""

    def build() -> Callable[[], None]:
        data = FederatedDataModule(Noise((LENGTH,), 1, SAMPLES, words), batch_size=BATCH)
        data.given_target = Sequences(words)
        data.setup()
        network = partial(HuggingFaceCausalLM, config=config(words), gradient_checkpointing=True)
        algorithm = FedEM(num_components=COMPONENTS)
        return PlainLoop(data, FederatedModule(algorithm, LocalSolver(**SGD), network, lora_rank=RANK)).round

    return measured(build)


@in_process
def plain(words: int, adapters: int) -> dict[str, float]:
    """A loop with transformers and peft that makes the same passes with some adapters on one network.

    Outputs are made in pieces of as many bytes as lit_fed's; the gradient of a piece is made with it.
    """

    def build() -> Callable[[], None]:
        import peft
        import transformers

        text = torch.from_numpy(np.random.default_rng(0).integers(0, words, (SAMPLES, LENGTH + 1)))
        x, y = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        settings = transformers.AutoConfig.for_model(**config(words), resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
        base = transformers.AutoModelForCausalLM.from_config(settings)
        names = [f"component_{m}" for m in range(adapters)]
        lora = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=LAYERS, fan_in_fan_out=True)
        model: Any = peft.get_peft_model(base, lora, names[0])
        for name in names[1:]:
            model.add_adapter(name, lora)
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.enable_input_require_grads()
        optimizers = []
        for name in names:
            leaves = [leaf for key, leaf in model.named_parameters() if name in key]
            optimizers.append((name, leaves, torch.optim.SGD(leaves, **SGD)))
        mixture = torch.full((adapters,), 1 / adapters)

        def one_round() -> None:
            q = torch.softmax(mixture.log() - torch.stack([e_step(model, name, x, y) for name in names], 1), 1)
            mixture.copy_(q.mean(0))
            for rows in torch.randperm(SAMPLES).split(BATCH):
                for m, (name, leaves, optimizer) in enumerate(optimizers):
                    model.set_adapter(name)
                    model.train()
                    for leaf in leaves:
                        leaf.requires_grad_()
                    features = base.transformer(x[rows], use_cache=False).last_hidden_state
                    optimizer.zero_grad()
                    features.backward(slopes(base.lm_head, features.detach(), y[rows], q[rows, m] / len(rows)))
                    optimizer.step()

        return one_round

    return measured(build)


def e_step(model: Any, name: str, x: Tensor, y: Tensor) -> Tensor:
    """Losses [n] of one component."""
    model.set_adapter(name)
    model.eval()
    found = []
    with torch.no_grad():
        for some, their in zip(x.split(BATCH), y.split(BATCH), strict=True):
            features = model.get_base_model().transformer(some, use_cache=False).last_hidden_state
            each = [
                cross_entropy(model.get_base_model().lm_head(piece), labels, reduction="none")
                for piece, labels in pieces(model.get_base_model().lm_head, features, their)
            ]
            found.append(torch.cat(each).view(their.shape).mean(1))
    return torch.cat(found)


def slopes(head: Any, features: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the weighted loss by the features [B, L, D]."""
    found, share = [], (weight / y.shape[1]).repeat_interleave(y.shape[1])
    for (piece, labels), their in zip(pieces(head, features, y), share.split(rows_of(head)), strict=True):
        given = piece.requires_grad_()
        loss = (cross_entropy(head(given), labels, reduction="none") * their).sum()
        found.append(torch.autograd.grad(loss, given)[0])
    return torch.cat(found).view(features.shape)


def rows_of(head: Any) -> int:
    """Positions of a piece."""
    return max(1, PIECE_BYTES // (4 * head.out_features))


def pieces(head: Any, features: Tensor, y: Tensor) -> zip:
    """Features [n, D] and labels [n] of some positions at a time."""
    return zip(features.flatten(0, 1).split(rows_of(head)), y.flatten().split(rows_of(head)), strict=True)


def language_model() -> dict[str, float]:
    """FedEM, M = 3, adapters on a GPT-2 of two layers, 50,257 words, 512 tokens, beside a loop with peft.

    Both run layers twice and make outputs in pieces. Memory is what is added to the imports, in processes of their own.
    The loop makes the same passes, E-step included; its memory is also given with one adapter.
    """
    rows = []
    for _ in range(3):
        ours, double = lit_fed(WORDS), lit_fed(2 * WORDS)
        loop, one = plain(WORDS, COMPONENTS), plain(WORDS, 1)
        tokens = SAMPLES * LENGTH
        rows.append(
            {
                "lit_fed, GB": ours["added"], "loop, GB": loop["added"], "loop with one adapter, GB": one["added"],
                "imports, GB": ours["before"], "lit_fed, GB for another 50,257 words": double["added"] - ours["added"],
                "lit_fed / loop with one adapter, GB": ours["added"] / one["added"],
                "lit_fed, tokens per CPU second": tokens / ours["seconds"],
                "loop, tokens per CPU second": tokens / loop["seconds"],
                "lit_fed / loop, tokens per CPU second": loop["seconds"] / ours["seconds"],
            }
        )  # fmt: skip
    return {name: float(np.median([row[name] for row in rows])) for name in rows[0]}


ROWS = (language_model,)
