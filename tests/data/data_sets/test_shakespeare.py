import json

import numpy as np
import pytest
import torch

from lit_fed.data import Shakespeare, build_populations
from lit_fed.data.data_sets.shakespeare import encode_text
from lit_fed.errors import ConfigError

PRINTABLE = "".join(map(chr, range(32, 127)))


def alphabet(length):
    """A text whose every ten characters differ from their neighbours': 0123456789abc…"""
    return ("0123456789abcdefghijklmnopqrstuvwxyz" * (length // 36 + 1))[:length]


def roles(root, **texts):
    root.mkdir(exist_ok=True)
    (root / "roles.json").write_text(json.dumps(texts), encoding="utf-8")
    return str(root)


def leaf(root, train, test):
    """LEAF's files; every user is a list of (string, next character)."""
    for name, users in (("train", train), ("test", test)):
        data = {user: {"x": [x for x, _ in pairs], "y": [y for _, y in pairs]} for user, pairs in users.items()}
        content = {"users": list(users), "num_samples": [len(pairs) for pairs in users.values()], "user_data": data}
        (root / name).mkdir()
        (root / name / "all_data.json").write_text(json.dumps(content))
    return str(root)


def sliding(text, length):
    """What LEAF makes of a text."""
    return [(text[start : start + length], text[start + length]) for start in range(len(text) - length)]


def load(root, **fields):
    return Shakespeare(root, **fields).load()[0]


def refused(root, *words, **fields):
    with pytest.raises(ConfigError) as caught:
        load(root, **fields)
    for word in words:
        assert word in str(caught.value)


def test_tokens():
    assert encode_text("09azAZ").tolist() == [0, 9, 10, 35, 36, 61]
    assert encode_text("! \t\n\r").tolist() == [62, 94, 95, 96, 97]
    assert len(set(encode_text(PRINTABLE).tolist())) == 95
    assert encode_text("é\N{PILE OF POO}\x00\x7f\ud800?").tolist() == [82] * 6  # one token each
    assert encode_text("").shape == (0,)


def test_windows_of_a_text(tmp_path):
    root = roles(tmp_path, one=alphabet(30))
    population = load(root, sequence_length=4, stride=4, test_fraction=0.3)
    # 21 characters train, 9 test; a window needs the character that follows it too
    assert population.train.x.tolist() == [[4 * row + k for k in range(4)] for row in range(5)]
    assert population.train.y.tolist() == [[4 * row + k + 1 for k in range(4)] for row in range(5)]
    assert population.test.x.tolist() == [[21, 22, 23, 24], [25, 26, 27, 28]]
    assert population.test.y.tolist() == [[22, 23, 24, 25], [26, 27, 28, 29]]
    assert population.train.x.dtype == population.train.y.dtype == torch.int64
    assert len(population.val.y) == 0
    assert population.names == ["one"]


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_stride(tmp_path, stride):
    train = load(roles(tmp_path, one=alphabet(36)), sequence_length=5, stride=stride, test_fraction=0).train
    assert train.x[:, 0].tolist() == list(range(0, 31, stride))
    assert (train.y - train.x == 1).all()


def test_windows_never_cross_the_cut(tmp_path):
    text = "a" * 80 + "b" * 20
    population = load(roles(tmp_path, one=text), sequence_length=6, stride=1)
    assert set(population.train.x.unique().tolist()) == set(population.train.y.unique().tolist()) == {10}
    assert set(population.test.x.unique().tolist()) == set(population.test.y.unique().tolist()) == {11}
    assert (len(population.train.y), len(population.test.y)) == (74, 14)


def test_short_roles_keep_a_window_for_testing(tmp_path):
    """Two windows of 5 characters and their successors take 12."""
    root = roles(tmp_path, enough=alphabet(12), short=alphabet(11), empty="")
    population = load(root, sequence_length=5, stride=5)
    assert population.names == ["enough"]
    assert population.train.x.tolist() == [[0, 1, 2, 3, 4]]
    assert population.test.x.tolist() == [[6, 7, 8, 9, 10]]


def test_without_a_test_split_shorter_roles_stay(tmp_path):
    root = roles(tmp_path, two=alphabet(11), one=alphabet(10), none=alphabet(5))
    fields = {"sequence_length": 5, "stride": 5, "test_fraction": 0.0}
    assert load(root, **fields).names == ["two"]
    population = load(root, **fields, min_sequences=1)
    assert population.names == ["one", "two"]
    assert population.test.sizes.tolist() == [0, 0]


def test_min_sequences(tmp_path, capsys):
    root = roles(tmp_path, long=alphabet(60), short=alphabet(24))
    fields = {"sequence_length": 5, "stride": 5}
    assert load(root, **fields, min_sequences=3).names == ["long", "short"]
    assert load(root, **fields, min_sequences=5).names == ["long"]
    assert capsys.readouterr().err == "lit_fed: clients without 5 windows are left out: 'short'\n"
    refused(root, "--data.dataset.min_sequences", "100 windows of 5", **fields, min_sequences=100)


def test_the_largest_roles_are_kept(tmp_path):
    root = roles(tmp_path, b=alphabet(40), a=alphabet(60), d=alphabet(60), c=alphabet(60))
    fields = {"sequence_length": 5, "stride": 5}
    assert load(root, **fields).names == ["a", "b", "c", "d"]
    assert load(root, **fields, max_clients=2).names == ["a", "c"]
    assert load(root, **fields, max_clients=9).names == ["a", "b", "c", "d"]


def test_clients_are_contiguous(tmp_path):
    root = roles(tmp_path, a="a" * 50, b="b" * 30)
    population = load(root, sequence_length=4, stride=4)
    assert population.train.sizes.tolist() == [9, 5]
    assert set(population.train.client(1).x.unique().tolist()) == {11}
    assert set(population.test.client(0).y.unique().tolist()) == {10}


def test_it_is_a_data_set_of_sequences(tmp_path):
    dataset = Shakespeare(roles(tmp_path, a=alphabet(200), b=alphabet(90)), sequence_length=4, stride=4)
    seen, _ = build_populations(dataset, val_fraction=0.25)
    assert dataset.num_classes == 100
    assert dataset.normalisation is None
    assert seen.val.sizes.tolist() == [10, 4]  # of 39 and 17 training windows
    assert seen.train.sizes.tolist() == [29, 13]


def test_leaf_files_and_roles_give_the_same_windows(tmp_path):
    texts = {"b": (alphabet(30), alphabet(12)), "a": (alphabet(21)[3:], alphabet(11))}
    root = leaf(
        tmp_path,
        {name: sliding(train, 5) for name, (train, _) in texts.items()},
        {name: sliding(test, 5) for name, (_, test) in texts.items()},
    )
    population = load(root, sequence_length=5)
    assert population.names == ["a", "b"]
    for place, split in enumerate((population.train, population.test)):
        for client_id, name in enumerate("ab"):
            folder = roles(tmp_path / "one", only=texts[name][place])
            alone = load(folder, sequence_length=5, stride=1, test_fraction=0, min_sequences=1).train
            np.testing.assert_array_equal(split.client(client_id).x, alone.x)
            np.testing.assert_array_equal(split.client(client_id).y, alone.y)


def test_leaf_pads_lines_with_spaces(tmp_path):
    root = leaf(tmp_path, {"a": [("    a", "b"), ("   ab", "\n")]}, {"a": [("   ab", "?")]})
    population = load(root, sequence_length=5)
    assert population.train.x.tolist() == [[94, 94, 94, 94, 10], [94, 94, 94, 10, 11]]
    assert population.train.y.tolist() == [[94, 94, 94, 10, 11], [94, 94, 10, 11, 96]]
    assert population.test.y.tolist() == [[94, 94, 10, 11, 82]]


def test_leaf_users_without_test_samples(tmp_path):
    text = sliding(alphabet(20), 5)
    root = leaf(tmp_path, {"a": text, "b": text, "c": []}, {"a": text, "c": text})
    assert load(root, sequence_length=5).names == ["a"]
    assert load(root, sequence_length=5, test_fraction=0).names == ["a", "b"]


def test_roles_come_before_leaf_files(tmp_path):
    leaf(tmp_path, {"leaf": sliding(alphabet(20), 5)}, {"leaf": sliding(alphabet(20), 5)})
    assert load(roles(tmp_path, role=alphabet(40)), sequence_length=5).names == ["role"]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ([("abcd", "e")], ("length 5", "--data.dataset.sequence_length")),
        ([("abcde", "f"), ("abc", "d")], ("length 5",)),
        ([("abcde", "fg")], ("y", "the character that follows")),
        ([([1, 2, 3, 4, 5], 6)], ("not strings",)),
    ],
)
def test_leaf_samples_of_another_kind(tmp_path, pairs, words):
    good = sliding(alphabet(20), 5)
    root = leaf(tmp_path, {"anna": good, "bela": pairs}, {"anna": good, "bela": good})
    refused(root, "all_data.json, user 'bela'", *words, sequence_length=5)


def test_leaf_samples_of_unequal_number(tmp_path):
    good = sliding(alphabet(20), 5)
    root = leaf(tmp_path, {"anna": good}, {"anna": good})
    content = {"users": ["anna"], "user_data": {"anna": {"x": ["abcde", "bcdef"], "y": ["f"]}}}
    (tmp_path / "train/all_data.json").write_text(json.dumps(content))
    refused(root, "2 samples in x, but 1 in y", sequence_length=5)


def test_nothing_there(tmp_path):
    refused(str(tmp_path), f"--data.dataset.root {tmp_path}", "roles.json", "'train' and 'test'")


@pytest.mark.parametrize(("text", "words"), [("{", "not valid JSON"), ('["a"]', "dictionary"), ('{"a": 1}', "texts")])
def test_roles_of_another_form(tmp_path, text, words):
    (tmp_path / "roles.json").write_text(text)
    refused(str(tmp_path), "roles.json", words)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sequence_length", 0),
        ("stride", 0),
        ("min_sequences", 0),
        ("max_clients", 0),
        ("test_fraction", 1.0),
        ("test_fraction", -0.1),
    ],
)
def test_fields_out_of_range(field, value):
    with pytest.raises(ConfigError, match=f"--data.dataset.{field} is {value}"):
        Shakespeare(**{field: value})
