"""Texts as token ids of one length."""

from __future__ import annotations

import importlib

import numpy as np

from lit_fed.errors import ConfigError

__all__ = ["NUM_BYTE_TOKENS", "byte_tokens", "word_tokens"]

NUM_BYTE_TOKENS = 257
"""Tokens of `byte_tokens`: 256 bytes, and 0 behind the end of a text."""


def byte_tokens(texts: list[str], max_length: int) -> np.ndarray:
    """The bytes of UTF-8, b as the token b + 1, and 0 behind the end of a text; [n, max_length] int64.

    No vocabulary is collected from anybody's texts, and those of a later client are read alike.

    Args:
        texts: n texts.
        max_length: tokens of a text; a longer one is cut off.

    Example:
        >>> byte_tokens(["hi", "h"], 3).tolist()
        [[105, 106, 0], [105, 0, 0]]
    """
    tokens = np.zeros((len(texts), max_length), dtype=np.int64)
    for row, text in zip(tokens, texts, strict=True):
        encoded = np.frombuffer(text.encode("utf-8", "surrogatepass")[:max_length], dtype=np.uint8)
        row[: len(encoded)] = encoded
        row[: len(encoded)] += 1
    return tokens


def word_tokens(texts: list[str], tokenizer: str, max_length: int, option: str) -> np.ndarray:
    """What a tokenizer of `transformers` makes of texts, cut off or padded to one length; [n, max_length] int64.

    Args:
        texts: n texts.
        tokenizer: its folder, or name on the hub.
        max_length: tokens of a text.
        option: where the tokenizer was given, for messages.

    Raises:
        ConfigError: if the package is missing, or the tokenizer cannot be loaded.
    """
    try:
        transformers = importlib.import_module("transformers")
    except ImportError as error:
        raise ConfigError(
            f'{option} {tokenizer} needs the package transformers; pip install "transformers>=5.24" (the extra hf), or '
            "leave it out for bytes as tokens"
        ) from error
    try:
        known = transformers.AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
    except Exception as error:  # of the network, the hub, or its files
        raise ConfigError(
            f"{option} {tokenizer}: cannot be loaded ({str(error).partition(chr(10))[0]}); correct the folder or the "
            "name, or without access to the hub give a folder that save_pretrained wrote"
        ) from error
    if known.pad_token is None:
        known.pad_token = known.eos_token
    if known.pad_token is None:
        raise ConfigError(f"{option} {tokenizer}: has no token to fill short texts up with; give its pad_token a value")
    found = known(texts, truncation=True, max_length=max_length, padding="max_length", return_tensors="np")
    return np.asarray(found["input_ids"], dtype=np.int64)
