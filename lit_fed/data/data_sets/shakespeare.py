"""Shakespeare's plays for next-character prediction; each speaking role is a client.

Communication-Efficient Learning of Deep Networks from Decentralized Data (McMahan, Moore, Ramage, Hampson, Agüera y
Arcas; AISTATS 2017, arXiv:1602.05629), and LEAF (Caldas et al., arXiv:1812.01097).

ROOT/roles.json                               {"play/ROLE": text of the role, ...}
ROOT/train/*.json, ROOT/test/*.json           LEAF's layout: x a list of strings, y the character after each
"""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lit_fed.core.types import Population
from lit_fed.data.data_sets.base import PLACE, ClientDataSet, empty_split, make_split, require, say_left_out
from lit_fed.data.data_sets.leaf import LeafUser, read_json, read_leaf_users
from lit_fed.errors import check_settings
from lit_fed.system.files import given_path

__all__ = ["UNKNOWN", "VOCABULARY", "Shakespeare", "encode_text"]

VOCABULARY = string.printable
"""The 100 characters in the order of their tokens, as in the code published with the FedEM paper."""

UNKNOWN = VOCABULARY.index("?")
"""Token of every character outside the vocabulary: the question mark's."""


class _Windows(NamedTuple):
    """Windows of one role and split."""

    x: np.ndarray  # [n, L] int64
    y: np.ndarray  # [n, L] int64, the token after each of x


class _Role(NamedTuple):
    """The windows of one role, which is a client."""

    name: str
    train: _Windows
    test: _Windows


@dataclass(frozen=True)
class Shakespeare(ClientDataSet):
    """Text of speaking roles: x [n, L] int64 tokens, y [n, L] int64, the following token; 100 characters.

    Tokens are positions in Python's `string.printable`; other characters become question marks. Line breaks are kept.
    Each role's text is split in time: the first part for training, the last for testing, without windows across the
    cut. LEAF's samples are used as they are: split by LEAF, one character apart, lines with leading spaces.

    Args:
        root: folder with `roles.json`, or with LEAF's `train/*.json` and `test/*.json`.
        sequence_length: tokens in a window L.
        stride: characters between the starts of windows; below `sequence_length` they overlap. Ignored for LEAF.
        test_fraction: share of a role's characters for testing, at least one window; 0: no test split (LEAF: keep users
            without test samples).
        min_sequences: minimum number of windows in training and test together; roles too short for a window in each
            split are always left out.
        max_clients: keep the roles with most windows (ties by name); null: all.
    """

    root: str = "data/shakespeare"
    sequence_length: int = 80
    stride: int = 80
    test_fraction: float = 0.2
    min_sequences: int = 2
    max_clients: int | None = None

    num_classes = len(VOCABULARY)

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("sequence_length", "stride", "min_sequences", "max_clients"), ">= 1")
        check_settings(self, counts, PLACE, test_fraction="[0, 1)")

    def load(self) -> tuple[Population, None]:
        """The roles by name; the validation split is empty."""
        root, option = given_path(self.root, "--data.dataset.root"), f"--data.dataset.root {self.root}"
        leaf = (root / "train").is_dir() and (root / "test").is_dir()
        require(
            (root / "roles.json").is_file() or leaf,
            f"{option}: Shakespeare has neither roles.json nor LEAF's folders 'train' and 'test' there; correct the "
            'folder, or write {"play/ROLE": text} to roles.json in it',
        )
        roles = self._from_roles(root / "roles.json") if (root / "roles.json").is_file() else self._from_leaf(root)
        roles = self._selected(roles)
        require(
            bool(roles),
            f"{option}: no role has the {self.min_sequences} windows of {self.sequence_length} characters that "
            "--data.dataset.min_sequences asks for; lower it or --data.dataset.sequence_length",
        )
        train, test = (
            make_split(
                np.concatenate([one.x for one in windows]),
                np.concatenate([one.y for one in windows]),
                np.array([len(one.x) for one in windows]),
            )
            for windows in ([role.train for role in roles], [role.test for role in roles])
        )
        return Population(train, empty_split(train), test, [role.name for role in roles]), None

    def _from_roles(self, path: Path) -> list[_Role]:
        """All roles of `roles.json`, cut in time."""
        content = read_json(path)
        texts = isinstance(content, dict) and all(isinstance(text, str) for text in content.values())
        require(texts, f'{path}: is not a dictionary of texts; write {{"play/ROLE": text}} to it')
        roles = []
        for name in sorted(content):
            tokens = encode_text(content[name])
            cut = self._cut(len(tokens))
            roles.append(_Role(name, self._windows(tokens[:cut]), self._windows(tokens[cut:])))
        return roles

    def _cut(self, num_characters: int) -> int:
        """Number of training characters; the test part gets at least a window if the text is long enough for two."""
        if self.test_fraction == 0:
            return num_characters
        shortest = self.sequence_length + 1  # a window and its last target
        num_test = max(shortest, math.floor(self.test_fraction * num_characters + 0.5))
        return max(shortest, num_characters - num_test)

    def _windows(self, tokens: np.ndarray) -> _Windows:
        if len(tokens) <= self.sequence_length:
            return _no_windows(self.sequence_length)
        view = np.lib.stride_tricks.sliding_window_view(tokens, self.sequence_length + 1)[:: self.stride]
        return _Windows(view[:, :-1], view[:, 1:])

    def _from_leaf(self, root: Path) -> list[_Role]:
        """LEAF's users; the two folders are its training and test splits."""
        train, test = read_leaf_users(root / "train"), read_leaf_users(root / "test")
        return [
            _Role(name, self._leaf_windows(train.get(name)), self._leaf_windows(test.get(name)))
            for name in sorted(train.keys() | test.keys())
        ]

    def _leaf_windows(self, user: LeafUser | None) -> _Windows:
        """Windows of one user; y follows the last token of x."""
        if user is None or len(user.x) == 0:
            return _no_windows(self.sequence_length)
        fix = "use one length, equal to --data.dataset.sequence_length"
        _check_strings(user.x, self.sequence_length, f"{user.source}: x", fix)
        _check_strings(user.y, 1, f"{user.source}: y", "give the character that follows each x")
        require(
            len(user.x) == len(user.y),
            f"{user.source}: {len(user.x)} samples in x, but {len(user.y)} in y; make them equal",
        )
        x, y = _encode_array(user.x), _encode_array(user.y)
        return _Windows(x, np.concatenate([x[:, 1:], y], axis=1))

    def _selected(self, roles: list[_Role]) -> list[_Role]:
        """The largest roles with enough windows, in their order."""
        enough = [role for role in roles if self._is_long_enough(role)]
        say_left_out(
            sorted({one.name for one in roles} - {one.name for one in enough}), f"{self.min_sequences} windows"
        )
        by_size = sorted(enough, key=_num_windows, reverse=True)  # stable: ties by name
        kept = {role.name for role in by_size[: self.max_clients]}
        return [role for role in enough if role.name in kept]

    def _is_long_enough(self, role: _Role) -> bool:
        tested = self.test_fraction == 0 or len(role.test.x) > 0
        return tested and len(role.train.x) > 0 and _num_windows(role) >= self.min_sequences


def encode_text(text: str) -> np.ndarray:
    """Tokens of a text.

    Args:
        text: any text of n characters.

    Returns:
        Positions in `VOCABULARY` [n] int64; `UNKNOWN` for characters that are not in it.

    Example:
        >>> encode_text("1aé").tolist()
        [1, 10, 82]
    """
    return _tokens(np.frombuffer(text.encode("utf-32-le", errors="replace"), dtype="<u4"))


def _encode_array(strings: np.ndarray) -> np.ndarray:
    """Tokens [n, L] of n strings that all have L characters."""
    return _tokens(np.ascontiguousarray(strings).view(np.uint32).reshape(len(strings), -1))


def _tokens(code_points: np.ndarray) -> np.ndarray:
    table = np.full(128, UNKNOWN, dtype=np.int64)
    table[[ord(character) for character in VOCABULARY]] = np.arange(len(VOCABULARY))
    tokens: np.ndarray = table[np.minimum(code_points, 127)]  # 127 is not in the vocabulary
    return tokens


def _no_windows(sequence_length: int) -> _Windows:
    empty = np.empty((0, sequence_length), dtype=np.int64)
    return _Windows(empty, empty)


def _num_windows(role: _Role) -> int:
    return len(role.train.x) + len(role.test.x)


def _check_strings(array: np.ndarray, length: int, source: str, fix: str) -> None:
    right = array.dtype.kind == "U" and array.ndim == 1 and bool((np.char.str_len(array) == length).all())
    require(right, f"{source} holds samples that are not strings of length {length}; {fix}")
