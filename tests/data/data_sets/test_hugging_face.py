"""Data sets of `datasets` on disk, made up here; the hub is never asked."""

import re
import sys
from datetime import datetime
from decimal import Decimal

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

from lit_fed.core.targets import IGNORED, Binary, Multiclass, MultiLabel, Regression, Sequences, VectorRegression
from lit_fed.data import IID, HuggingFace, build_populations
from lit_fed.data.data_sets.texts import NUM_BYTE_TOKENS, word_tokens
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

datasets = pytest.importorskip("datasets")
ClassLabel, Features, Image, List, Value = (
    getattr(datasets, name) for name in ("ClassLabel", "Features", "Image", "List", "Value")
)
datasets.disable_progress_bars()

LABEL = {"label": Value("int64")}

TABLE = {
    "a": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5], "b": [1, 2, 3, 4, 5, 6], "label": [0, 1, 2, 0, 1, 2],
    "who": ["x", "y", "x", "y", "x", "y"],
}  # fmt: skip


def saved(folder, columns, features=None, **splits):
    """A folder of `save_to_disk`, with the rows that each split names, or without splits."""
    given = None if features is None else Features(features)
    whole = datasets.Dataset.from_dict(columns, features=given)
    parts = datasets.DatasetDict({name: whole.select(rows) for name, rows in splits.items()}) if splits else whole
    parts.save_to_disk(str(folder))
    return str(folder)


def refused(*words, **fields):
    with pytest.raises(ConfigError) as caught:
        HuggingFace(**fields).load()
    for word in words:
        assert word in str(caught.value)


def picture(value, size=(4, 5), mode="L"):
    return Pillow.new(mode, size[::-1], value)


# ---------------------------------------------------------------------- what is read
def test_columns_of_numbers(tmp_path):
    samples = HuggingFace(saved(tmp_path / "d", TABLE), client_column="who").load()
    np.testing.assert_array_equal(samples.x, np.stack([TABLE["a"], TABLE["b"]], 1).astype(np.float32))
    assert samples.x.dtype == np.float32
    assert samples.y.tolist() == TABLE["label"]
    assert (samples.names, samples.owner.tolist()) == (["x", "y"], [0, 1, 0, 1, 0, 1])
    assert samples.class_names is None
    assert samples.split is None
    one = HuggingFace(str(tmp_path / "d"), input_columns=("b",), label_column="a").load()
    assert one.x.tolist() == [[1], [2], [3], [4], [5], [6]]
    assert one.y.dtype == np.float64
    assert one.owner is None


def test_columns_of_lists(tmp_path):
    columns = {"embedding": [[0.0, 1.0], [2.0, 3.0]], "tokens": [[1, 2, 3], [4, 5, 6]], "label": [0, 1]}
    path = saved(tmp_path / "d", columns)
    assert HuggingFace(path, input_columns=("embedding",)).load().x.tolist() == columns["embedding"]
    tokens = HuggingFace(path, input_columns=("tokens",)).load().x
    assert (tokens.tolist(), tokens.dtype) == (columns["tokens"], np.int64)
    assert HuggingFace(path).load().x.tolist() == [[0, 1, 1, 2, 3], [2, 3, 4, 5, 6]]


def test_pictures_are_scaled_and_named(tmp_path):
    columns = {"image": [picture(51), picture(255)], "label": [1, 0], "who": [7, 3]}
    features = {"image": Image(), "label": ClassLabel(names=["cat", "dog"]), "who": Value("int64")}
    data = FederatedDataModule(HuggingFace(saved(tmp_path / "d", columns, features), client_column="who"))
    data.setup()
    assert data.seen.names == ["3", "7"]
    assert data.seen.class_names == ("cat", "dog")
    assert data.seen.train.x.shape == (2, 1, 4, 5)
    assert data.seen.train.x[:, 0, 0, 0].tolist() == pytest.approx([1.0, 0.2])
    assert data.target == Binary()


def test_grey_pictures_among_others_and_sizes(tmp_path):
    images = [picture(9), picture((1, 2, 3), mode="RGB"), picture(7, size=(8, 8))]
    path = saved(tmp_path / "d", {"image": images, "label": [0, 1, 0]}, {"image": Image(), "label": Value("int64")})
    refused("row 2, column 'image'", "shape [3, 8, 8]", "shape [3, 4, 5]", "--data.dataset.image_size", path=path)
    x = HuggingFace(path, image_size=(2, 3)).load().x
    assert (x.shape, x.dtype) == ((3, 3, 2, 3), np.uint8)
    assert x[:, :, 0, 0].tolist() == [[9, 9, 9], [1, 2, 3], [7, 7, 7]]


def test_texts_are_bytes_and_classes_are_in_order(tmp_path):
    columns = {"text": ["hé", "", "hello"], "label": ["pos", "neg", "pos"]}
    samples = HuggingFace(saved(tmp_path / "d", columns), max_length=4).load()
    assert samples.x.tolist() == [[105, 196, 170, 0], [0, 0, 0, 0], [105, 102, 109, 109]]
    assert samples.x.max() < NUM_BYTE_TOKENS
    assert samples.stored_type == "tokens of bytes"
    assert (samples.y.tolist(), samples.class_names) == ([1, 0, 1], ("neg", "pos"))


def test_words_of_a_tokenizer(tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    model = tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2, "film": 3}, unk_token="[UNK]")
    raw = tokenizers.Tokenizer(model)
    raw.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    folder = str(tmp_path / "t")
    transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]").save_pretrained(folder)
    columns = {"text": ["good film", "film good film", "bad"], "label": [1, 1, 0]}
    samples = HuggingFace(saved(tmp_path / "d", columns), tokenizer=folder, max_length=2).load()
    assert samples.x.tolist() == [[2, 3], [3, 2], [1, 0]]
    assert re.fullmatch("tokens [0-9a-f]{8}", samples.stored_type)
    assert "1 of 3 texts (33.3%) are truncated to 2 tokens, the longest has 3" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"--x no/such/folder: cannot be loaded .*save_pretrained"):
        word_tokens(["a"], "no/such/folder", 2, "--x")


def test_official_splits_are_kept(tmp_path):
    path = saved(tmp_path / "d", TABLE, test=[4, 5], train=[0, 1, 2, 3])
    seen, _ = build_populations(HuggingFace(path, client_column="who"), test_fraction=0.5)
    assert [sorted(seen.train.client(who).x[:, 0].tolist()) for who in (0, 1)] == [[0.5, 2.5], [1.5, 3.5]]
    assert seen.test.x[:, 0].tolist() == [4.5, 5.5]
    assert seen.val.num_samples == 0
    refused("who (Value('string'))", "by --data.dataset.input_columns", path=path)
    seen, _ = build_populations(HuggingFace(path, input_columns=("a", "b")), IID(), 2, val_fraction=0.3)
    assert seen.stored_type == "columns a, b"
    assert sorted(seen.test.x[:, 0].tolist()) == [4.5, 5.5]
    assert seen.val.num_samples > 0
    pooled = HuggingFace(path, split="test+train", input_columns=("a",)).load()
    assert (pooled.split, pooled.x[:, 0].tolist()) == (None, [4.5, 5.5, 0.5, 1.5, 2.5, 3.5])
    assert len(HuggingFace(path, split="test", client_column="who").load().y) == 2


def test_a_folder_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/train.csv").write_text("a,label\n0.5,0\n1.5,1\n")
    (tmp_path / "d/test.csv").write_text("a,label\n2.5,1\n")
    samples = HuggingFace(str(tmp_path / "d")).load()
    assert (samples.x[:, 0].tolist(), samples.split.tolist()) == ([0.5, 1.5, 2.5], [0, 0, 2])


# ---------------------------------------------------------------------- several labels
SEVERAL = {
    "a": [0.0, 1.0, 2.0, 3.0], "tags": [[0, 2], [], [1], [2]], "one": [1, 0, 0, 1], "two": [0, 0, 1, 1],
    "u": [0.5, 1.5, 2.5, 3.5], "v": [1.0, 1.0, 2.0, 2.0], "lists": [[0, 1], [1, 1], [0, 0], [1, 0]],
}  # fmt: skip


def test_a_text_file_is_a_client(tmp_path, capsys):
    for name, text in {"ben": "hello\n\nyou\n", "anna": "a line", "bare": "\n"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    samples = HuggingFace(str(tmp_path), next_token=True, max_length=8).load()
    assert [samples.names[one] for one in samples.owner] == ["anna", "ben", "ben"]
    assert [bytes(one[one > 0].astype(np.uint8) - 1) for one in samples.x] == [b"a line", b"hello", b"you"]
    seen, _ = build_populations(HuggingFace(str(tmp_path), next_token=True, max_length=8))
    assert seen.names == ["anna", "ben"]
    assert "lit_fed: clients without a sample are left out: 'bare'\n" in capsys.readouterr().err
    (tmp_path / "anna.txt").write_bytes(b"\xff")
    refused("anna.txt", "no UTF-8 text", path=str(tmp_path), next_token=True)


def test_text_files_named_like_splits_are_splits(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "d").mkdir()
    for name in ("train", "test"):
        (tmp_path / f"d/{name}.txt").write_text("a\nb\n")
    samples = HuggingFace(str(tmp_path / "d"), next_token=True).load()
    assert (samples.owner, samples.split.tolist()) == (None, [0, 0, 2, 2])


@pytest.fixture
def several(tmp_path):
    features = {name: Value("float64") for name in ("a", "u", "v")} | {name: Value("int64") for name in ("one", "two")}
    features |= {"tags": List(ClassLabel(names=["red", "green", "blue"])), "lists": List(Value("int64"))}
    return saved(tmp_path / "several", SEVERAL, features)


@pytest.mark.parametrize(
    ("label_column", "labels", "target", "names", "expected"),
    [
        ("tags", "multilabel", MultiLabel(3), ("red", "green", "blue"), [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]]),
        (("one", "two"), "multilabel", MultiLabel(2), ("one", "two"), [[1, 0], [0, 0], [0, 1], [1, 1]]),
        ("lists", "multilabel", MultiLabel(2), None, SEVERAL["lists"]),
        (("u", "v"), "auto", VectorRegression(2), ("u", "v"), [[0.5, 1], [1.5, 1], [2.5, 2], [3.5, 2]]),
        ("u", "auto", Regression(), None, SEVERAL["u"]),
    ],
)
def test_several_labels(several, label_column, labels, target, names, expected):
    dataset = HuggingFace(several, input_columns=("a",), label_column=label_column, labels=labels)
    samples = dataset.load()
    assert (samples.y.tolist(), samples.class_names) == (expected, names)
    data = FederatedDataModule(dataset, IID(), 2)
    data.setup()
    assert data.target == target
    assert data.facts(weighting="samples", seed=0, num_rounds=1).target == target


def test_a_hidden_class_among_several(tmp_path):
    features = {"a": Value("float64"), "tags": List(ClassLabel(names=["red", "green"]))}
    path = saved(tmp_path / "d", {"a": [1.0, 2.0], "tags": [[0], [1, -1]]}, features)
    refused(
        "row 1, column 'tags': [ 1 -1] names a class outside 0", path=path, label_column="tags", labels="multilabel"
    )


def test_several_labels_that_are_none(several, tmp_path):
    given = {"path": several, "input_columns": ("a",)}
    refused("column 'tags' holds a list of classes", "--data.dataset.labels multilabel", label_column="tags", **given)
    refused("one, two", "integers", "--data.dataset.labels multilabel", label_column=("one", "two"), **given)
    refused("column 'one'", "one number per row", label_column="one", labels="multilabel", **given)
    columns = {"a": [1.0, 2.0], "one": [0, 3], "two": [1, 0]}
    path = saved(tmp_path / "d", columns)
    given = {"path": path, "label_column": ("one", "two"), "labels": "multilabel", "input_columns": ("a",)}
    refused("row 1, column 'one, two': 3 is no multilabel label", **given)


# ---------------------------------------------------------------------- classes by name
def in_two_orders(folder, **others):
    """Splits `train` and `test` that list classes, clients and tags in another order, of the same two rows."""
    parts = {}
    for split, names in (("train", ["no", "yes"]), ("test", ["late", "yes", "no"])):
        kind = ClassLabel(names=names)
        numbers = [names.index("no"), names.index("yes")]
        columns = {"a": [0.5, 1.5], "label": numbers, "who": numbers, "tags": [numbers, numbers[:1]]}
        features = Features({"a": Value("float32"), "label": kind, "who": kind, "tags": List(kind)})
        parts[split] = datasets.Dataset.from_dict(columns, features)
    datasets.DatasetDict(parts | others).save_to_disk(str(folder))
    return str(folder)


def test_splits_are_matched_by_the_names_of_classes(tmp_path, capsys):
    path = in_two_orders(tmp_path / "d")
    samples = HuggingFace(path, client_column="who", input_columns="a").load()
    assert (samples.y.tolist(), samples.owner.tolist()) == ([0, 1, 0, 1], [0, 1, 0, 1])
    assert samples.class_names == ("no", "yes", "late") == tuple(samples.names)
    said = capsys.readouterr().err
    assert "column 'label': parts of the data list the classes differently; they are matched by name: no, yes" in said
    pooled = HuggingFace(
        path, split="test+train", label_column="tags", labels="multilabel", input_columns="label"
    ).load()
    assert pooled.class_names == ("late", "yes", "no")
    assert pooled.y.tolist() == [[0, 1, 1], [0, 0, 1]] * 2
    assert pooled.x.tolist() == [[0, 0, 1], [0, 1, 0]] * 2


def test_splits_of_different_types(tmp_path):
    plain = datasets.Dataset.from_dict({"a": [0.5], "label": [1], "who": [0]})
    path = in_two_orders(tmp_path / "d", validation=plain)
    refused("split validation: column 'label' is Value('int64')", "train ClassLabel", path=path, input_columns="a")
    path = in_two_orders(tmp_path / "e", validation=plain.remove_columns("label").add_column("label", ["no"]))
    refused("split validation: column 'label' is Value('string')", path=path, input_columns="a")


def test_columns_of_classes_as_several_labels(tmp_path, capsys):
    features = {"a": Value("float32"), "rain": ClassLabel(names=["yes", "no"]), "wind": Value("int64")}
    path = saved(tmp_path / "d", {"a": [0.5, 1.5], "rain": [0, 1], "wind": [0, 1]}, features)
    HuggingFace(path, label_column="rain, wind", labels="multilabel").load()
    assert "label_column rain, wind: a label holds where rain is 'no'\n" in capsys.readouterr().err


def test_pixels_and_numbers_are_not_mixed(tmp_path):
    parts = {
        name: datasets.Dataset.from_dict({"a": [[1, 2]], "label": [0]}, Features({"a": List(Value(kind)), **LABEL}))
        for name, kind in (("train", "uint8"), ("test", "float32"))
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "d"))
    refused("split test: column 'a' is List(Value('float32'))", "store one type", path=str(tmp_path / "d"))


def test_classes_among_inputs(tmp_path, capsys):
    features = {"colour": ClassLabel(names=["red", "green", "blue"]), "size": Value("float32"), "label": Value("int64")}
    columns = {"colour": [1, 0, 1], "size": [2.5, 3.5, 4.5], "label": [0, 1, 0]}
    samples = HuggingFace(saved(tmp_path / "d", columns, features)).load()
    assert samples.x.tolist() == [[0, 1, 0, 2.5], [1, 0, 0, 3.5], [0, 1, 0, 4.5]]
    assert capsys.readouterr().err == ""
    path = saved(tmp_path / "e", columns | {"colour": [1, -1, 1]}, features)
    refused("row 1, column 'colour': -1 hides the class", path=path)


def test_columns_are_used_or_named(tmp_path, capsys):
    columns = {"when": [datetime(2024, 1, 2)] * 2, "both": [{"a": 1.0}] * 2, "none": [None] * 2, "label": [0, 1]}
    path = saved(tmp_path / "d", {"price": [Decimal("0.50"), Decimal(2)]} | columns)
    assert HuggingFace(path).load().x.tolist() == [[0.5], [2]]
    said = capsys.readouterr().err
    assert (
        "inputs are read from price, and not from when (Value('timestamp[us]')), both ({'a': Value('float64')}), "
        in said
    )
    assert "none (Value('null')); to use these, convert them to numbers, or give --data.dataset.input_columns" in said
    assert HuggingFace(path, input_columns="price", label_column="price").load().y.tolist() == [0.5, 2]
    refused("input_columns when: ", "timestamp", path=path, input_columns="when")
    refused(
        "label_column when: ", "has Value('timestamp[us]') there", path=path, input_columns="price", label_column="when"
    )
    images = {"image": [picture(0)] * 2, "age": [1, 2], "mask": [picture(1)] * 2, "label": [0, 1]}
    path = saved(tmp_path / "e", images)
    refused("label_column mask: ", "has Image(", path=path, input_columns="image", label_column="mask")
    HuggingFace(saved(tmp_path / "f", {name: images[name] for name in ("image", "age", "label")})).load()
    assert "inputs are read from image, and not from age (Value('int64'))" in capsys.readouterr().err


def test_texts_that_are_truncated_are_counted(tmp_path, capsys):
    given = {"path": saved(tmp_path / "d", {"text": ["abcdefg", "c", "defg"], "label": [0, 1, 0]}), "max_length": 4}
    HuggingFace(**given).load()
    said = "lit_fed: 1 of 3 texts (33.3%) are truncated to 4 tokens, the longest has 7; --data.dataset.max_length keeps"
    assert said in capsys.readouterr().err
    HuggingFace(**given, next_token=True, input_columns="text").load()
    assert "1 of 3 texts (33.3%) are truncated to 5 tokens, the longest has 8" in capsys.readouterr().err
    HuggingFace(**given, next_token=True, input_columns="text", packed=True).load()
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------------- what is wrong
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"label_column": "labels"}, ("--data.dataset.label_column labels", "no such column; it has a, b, label, who")),
        ({"client_column": "user"}, ("--data.dataset.client_column user", "it has a, b, label, who")),
        ({"input_columns": ("a", "c")}, ("--data.dataset.input_columns c", "it has a, b, label, who")),
        ({"input_columns": ("a", "who")}, ("input_columns a, who", "string", "one of texts, or columns of numbers")),
        ({"client_column": "a", "input_columns": ("b",)}, ("client_column a", "float64", "a text or a whole number")),
        ({"split": "train"}, ("--data.dataset.split train", "has no splits; leave it out")),
        ({"label_column": ()}, ("--data.dataset.label_column is empty",)),
    ],
)
def test_wrong_columns(fields, words, tmp_path):
    refused(*words, path=saved(tmp_path / "d", TABLE), **fields)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": [1.0, None], "label": [0, 1]}, ("row 1, column 'a': no value",)),
        ({"a": [1.0, float("inf")], "label": [0, 1]}, ("row 1, column 'a': inf is no number",)),
        ({"a": [[1.0, 2.0], [1.0]], "label": [0, 1]}, ("row 1, column 'a': its shape differs", "[2]")),
        ({"a": [[1.0, 2.0], [1.0, None]], "label": [0, 1]}, ("row 1, column 'a': nan is no number",)),
        (
            {"a": [1.0, 2.0], "label": [0, -1]},
            ("row 1, column 'label': -1 is no class", "hidden label", "--data.dataset.split"),
        ),
        ({"a": [1.0, 2.0], "label": ["x", None]}, ("row 1, column 'label': no value",)),
        (
            {"s": ["x", "y"], "t": ["x", "y"], "label": [0, 1]},
            ("s (Value('string')), t (Value('string'))", "by --data.dataset.input_columns"),
        ),
        ({"label": [0, 1]}, ("no column of inputs", "label (Value('int64'))")),
        ({"a": [], "label": []}, ("cannot be loaded", "save it again")),
    ],
)
def test_wrong_cells(columns, words, tmp_path):
    refused(*words, path=saved(tmp_path / "d", columns))


def test_a_picture_that_is_none(tmp_path):
    columns = {"image": [{"bytes": b"no picture", "path": None}], "label": [0]}
    path = saved(tmp_path / "d", columns, {"image": Image(), "label": Value("int64")})
    refused("row 0, column 'image' cannot be decoded", path=path)
    images = [Pillow.fromarray(np.zeros((2, 2), dtype=np.int32))]
    path = saved(tmp_path / "e", {"image": images, "label": [0]}, {"image": Image(), "label": Value("int64")})
    refused("row 0, column 'image'", "mode I", "convert it to L or RGB", path=path)


def test_splits_that_say_nothing(tmp_path):
    path = saved(tmp_path / "d", TABLE, train=[0, 1], unsupervised=[2, 3])
    refused("train, unsupervised", "not clear", "--data.dataset.split train+unsupervised", path=path)
    refused("no split 'tset'; it has train, unsupervised", path=path, split="train+tset")
    path = saved(tmp_path / "e", TABLE, train=[0, 2], test=[1, 3])
    with pytest.raises(ConfigError, match=r"client 'y' has no training samples; give it .*, or pool the splits"):
        build_populations(HuggingFace(path, client_column="who"))


def test_folders_and_the_hub(tmp_path, monkeypatch):
    refused("path is not set", path="")
    refused("./nowhere: no such folder", path="./nowhere")
    (tmp_path / "empty").mkdir()
    refused("cannot be loaded", "save_to_disk", path=str(tmp_path / "empty"))
    asked = []

    def load_dataset(*given, **options):
        asked.append((given, options))
        raise ConnectionError("Couldn't reach 'someone/digits' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ConfigError, match=r"someone/digits: cannot be loaded \(Couldn't reach.*give a folder"):
        HuggingFace("someone/digits", name="grey", revision="v1").prepare()
    assert asked == [(("someone/digits", "grey"), {"revision": "v1"})]
    HuggingFace(str(tmp_path / "empty")).prepare()
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused("needs the package datasets", 'pip install "datasets>=5.2"', path="someone/digits")


@pytest.mark.parametrize("fields", [{"labels": "many"}, {"num_classes": 1}, {"max_length": 0}, {"image_size": (0, 3)}])
def test_settings(fields):
    (name,) = fields
    with pytest.raises(ConfigError, match=f"--data.dataset.{name} is .*; give"):
        HuggingFace("x", **fields)


def test_classes_nobody_has(tmp_path):
    columns = TABLE | {"label": [0, 0, 0, 3, 3, 3]}
    path = saved(tmp_path / "d", columns)
    with pytest.raises(ConfigError, match=r"--data\.dataset\.num_classes"):
        FederatedDataModule(HuggingFace(path, input_columns=("a",)), IID(), 2).setup()
    data = FederatedDataModule(HuggingFace(path, input_columns=("a",), num_classes=5), IID(), 2)
    data.setup()
    assert data.target == Multiclass(5)
    assert data.seen.train.y.dtype == torch.int64


# ---------------------------------------------------------------------- language models
def test_labels_are_the_tokens_that_follow(tmp_path):
    columns = {"text": ["ab", "c", "defg"], "ask": ["x", "", "yz"], "who": ["anna", "bob", "anna"]}
    folder = saved(tmp_path / "d", columns)
    given = {"next_token": True, "max_length": 5, "client_column": "who", "input_columns": "text"}
    samples = HuggingFace(folder, **given, prompt_column="ask").load()
    a, none = ord("a") + 1, IGNORED
    x, y, z = (ord(one) + 1 for one in "xyz")
    assert samples.x.tolist() == [[x, a, a + 1, 0, 0], [a + 2, 0, 0, 0, 0], [y, z, a + 3, a + 4, a + 5]]
    assert samples.y.tolist() == [
        [a, a + 1, 0, none, none], [0, none, none, none, none], [none, a + 3, a + 4, a + 5, a + 6]
    ]  # fmt: skip
    packed = HuggingFace(folder, **given, packed=True).load()
    assert packed.x.tolist() == [[a, a + 1, 0, a + 3, a + 4], [a + 5, a + 6, 0, 0, 0], [a + 2, 0, 0, 0, 0]]
    assert packed.y.tolist() == [
        [a + 1, 0, a + 3, a + 4, a + 5], [a + 6, 0, none, none, none], [0, none, none, none, none]
    ]  # fmt: skip
    assert packed.owner.tolist() == [0, 0, 1]
    data = FederatedDataModule(HuggingFace(folder, **given), test_fraction=0)
    data.setup()
    assert data.target == Sequences(NUM_BYTE_TOKENS, IGNORED)


def test_wrong_settings_of_language_models(tmp_path):
    folder = saved(tmp_path / "d", {"text": ["a", "b"], "n": [1, 2]})
    refused("prompt_column is text, which needs --data.dataset.next_token true", path=folder, prompt_column="text")
    refused("a block may begin within a prompt", path=folder, next_token=True, packed=True, prompt_column="text")
    refused("next_token needs a column of texts", path=folder, next_token=True, input_columns="n")
    refused("prompt_column ask", "it has text, n", path=folder, next_token=True, prompt_column="ask")
