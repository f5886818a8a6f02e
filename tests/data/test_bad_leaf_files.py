"""JSON files that people bring, each with one thing wrong: one message that names file, user, value and fix."""

import json
import os

import pytest
from bad_files import raw, refused, set_up, text

from lit_fed.data import ClientFolder

USER = {"x": [[0.5, 1.0], [0.25, 0.0]], "y": [0, 1]}
DEEP = "[" * 100_000 + "]" * 100_000


def leaf(data, **changes):
    content = {"users": list(data), "num_samples": [2] * len(data), "user_data": data} | changes
    return json.dumps({name: value for name, value in content.items() if value is not None})


def user(**changes):
    return leaf({"u": USER | changes}, num_samples=None)


LEAF = {
    "pipe": (os.mkfifo, ("pipe", "JSON")),
    "folder": (os.mkdir, ("a folder", "JSON")),
    "empty": (text(""), ("not valid JSON", "write it again")),
    "half": (text(leaf({"u": USER})[:60]), ("not valid JSON", "write it again")),
    "Latin-1": (raw('{"users": ["é"]}'.encode("latin1")), ("not valid JSON", "utf-8")),
    "binary": (raw(bytes(range(256))), ("not valid JSON",)),
    "deep": (text('{"users": ["u"], "user_data": {"u": {"x": ' + DEEP + "}}}"), ("too deep",)),
    "a number of 5000 digits": (text(f'{{"users": {"9" * 5000}}}'), ("not valid JSON", "digits")),
    "a list": (text("[1, 2]"), ("'users' or 'user_data' is missing", "LEAF")),
    "null": (text("null"), ("'users' or 'user_data' is missing", "LEAF")),
    "no users": (text('{"user_data": {}}'), ("'users' or 'user_data' is missing",)),
    "no data": (text('{"users": ["u"], "num_samples": [2]}'), ("'users' or 'user_data' is missing",)),
    "data in a list": (text(leaf({"u": USER}, user_data=[USER])), ("'users' or 'user_data' is missing",)),
    "users: 5": (text(leaf({"u": USER}, users=5)), ("'users' is 5", "list of names")),
    "users: a name": (text(leaf({"u": USER}, users="u")), ("'users' is \"u\"", "list of names")),
    "users: null": (text('{"users": null, "user_data": {}}'), ("'users' is null", "list of names")),
    "users without data": (text(leaf({"u": USER}, users=["u", "w"], num_samples=None)), ("'w'", "x or y is missing")),
    "user twice": (text(leaf({"u": USER}, users=["u", "u"], num_samples=None)), ("'u'", "twice", "keep one")),
    "too few num_samples": (text(leaf({"u": USER}, num_samples=[])), ("'num_samples' is []", "1 users")),
    "num_samples: 2": (text(leaf({"u": USER}, num_samples=2)), ("'num_samples' is 2", "a number for each")),
    "wrong num_samples": (text(leaf({"u": USER}, num_samples=[9])), ("'u'", "num_samples is 9", "y has 2")),
    "x only": (text(leaf({"u": {"x": [[1.0]]}})), ("'u'", "x or y is missing")),
    "x: a number": (text(user(x=3)), ("'u'", "x is 3", "entry per sample")),
    "x: a dict": (text(user(x={"a": 1})), ("'u'", 'x is {"a": 1}', "entry per sample")),
    "ragged": (text(user(x=[[1.0], [1.0, 2.0]])), ("'u'", "x differ in shape", "the same shape")),
    "null inside": (text(user(x=[[1.0, None], [1.0, 2.0]])), ("'u'", "x_train", "object", "store numbers")),
    "text": (text(user(x=["to be", "or not"])), ("'u'", "x_train", "<U6", "store numbers")),
    "huge numbers": (text(user(x=[[10**30, 1], [1, 1]])), ("'u'", "x_train", "object", "store numbers")),
    "NaN": (text(user(x=[[float("nan"), 1], [1, 1]])), ("'u'", "x_train", "NaN", "sample 0")),
    "fewer labels": (text(user(y=[0])), ("'u'", "x_train has 2", "y_train has 1")),
    "no samples": (text(user(x=[], y=[])), ("'u'", "x_train is empty")),
    "label 1e9": (text(user(y=[0, 10**9])), ("'u'", "label 1000000000", "no sample has class 2")),
}  # fmt: skip


@pytest.mark.parametrize("name", LEAF)
def test_leaf_files(tmp_path, name):
    make, words = LEAF[name]
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "good.json").write_text(leaf({"v": USER}))
    make(tmp_path / "train/bad.json")
    place = () if "label 1e9" in name else ("train/bad.json",)
    refused(tmp_path, set_up(ClientFolder(str(tmp_path))), (*place, *words))
