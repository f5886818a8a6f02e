"""Reader of LEAF's JSON layout.

LEAF: A Benchmark for Federated Settings (Caldas, Duddu, Wu, Li, Konečný, McMahan, Smith, Talwalkar;
arXiv:1812.01097): {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lit_fed.data.data_sets.base import files_of, input_array, require
from lit_fed.errors import ConfigError
from lit_fed.system.files import require_file

__all__ = ["LeafUser", "read_json", "read_leaf_users"]


class LeafUser(NamedTuple):
    """One user of one JSON file."""

    x: np.ndarray  # [n, ...]
    y: np.ndarray  # [n] or [n, L]
    source: str  # the file, and the user within it


def read_leaf_users(folder: Path) -> dict[str, LeafUser]:
    """Read the users of all JSON files of a folder, by name; text becomes arrays of strings.

    Raises:
        ConfigError: if there is no file, a file does not follow the layout, or a user occurs twice.
    """
    paths = files_of(folder, ".json")
    require(bool(paths), f"{folder}: no .json file; LEAF's layout has them in 'train' and in 'test'")
    users: dict[str, LeafUser] = {}
    for path in paths:
        for name, user in _users_of(path):
            require(name not in users, f"{user.source}: is also in another file or twice in this; keep one of them")
            users[name] = user
    return users


def read_json(path: Path) -> Any:
    """Read a JSON file; a `ConfigError` names an invalid file."""
    require_file(path, "put a JSON file in its place")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid JSON ({error}); write it again") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: lists are nested too deeply; write one list per axis") from error


def _users_of(path: Path) -> Iterator[tuple[str, LeafUser]]:
    content = read_json(path)
    known = isinstance(content, dict) and isinstance(content.get("user_data"), dict) and "users" in content
    require(known, f"{path}: 'users' or 'user_data' is missing; follow LEAF's layout")
    users = content["users"]
    require(
        isinstance(users, list),
        f"{path}: 'users' is {_shown(users)}; give a list of names, and their data in user_data",
    )
    counts = content.get("num_samples", [None] * len(users))
    require(
        isinstance(counts, list) and len(counts) == len(users),
        f"{path}: 'num_samples' is {_shown(counts)}, there are {len(users)} users; give a number for each, or "
        "leave it out",
    )
    for name, count in zip(map(str, users), counts, strict=True):
        data, source = content["user_data"].get(name), f"{path}, user {name!r}"
        complete = isinstance(data, dict) and {"x", "y"} <= data.keys()
        require(complete, f"{source}: x or y is missing in 'user_data'; add both or remove the user")
        user = LeafUser(_array(data, "x", source), _array(data, "y", source), source)
        require(
            count is None or count == len(user.y),
            f"{source}: num_samples is {_shown(count)}, but y has {len(user.y)}; correct it, or leave num_samples out",
        )
        yield name, user


def _shown(value: Any, most: int = 40) -> str:
    """A value for error messages, truncated."""
    text = json.dumps(value)
    return text if len(text) <= most else f"{text[:most]}…"


def _array(data: dict, key: str, source: str) -> np.ndarray:
    """A JSON list as an array, fractions as float32 to save memory."""
    require(
        isinstance(data[key], list), f"{source}: {key} is {_shown(data[key])}; give a list with an entry per sample"
    )
    try:
        array = np.asarray(data[key])
    except ValueError as error:
        raise ConfigError(f"{source}: the samples of {key} differ in shape; give all the same shape") from error
    return input_array(array) if array.dtype.kind == "f" else array
