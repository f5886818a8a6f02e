"""Clients of text files: lines, JSON objects and chats, read alike in a training and later."""

import json

import numpy as np
import pandas as pd
import pytest
from federated_round import facts

from lit_fed.core.targets import IGNORED, Multiclass
from lit_fed.data import HuggingFace, build_populations
from lit_fed.data.data_sets.texts import NUM_BYTE_TOKENS, Texts, encoding, read_lines, text_clients
from lit_fed.data.new_clients import NewClients
from lit_fed.errors import ConfigError

pytest.importorskip("datasets")

TEMPLATE = (
    "{% for one in messages %}{% if one.role == 'nobody' %}{{ raise_exception('nobody speaks') }}{% endif %}"
    "<{{ one.role }}> {{ one.content }} {% endfor %}"
)
WORDS = ["[PAD]", "[UNK]", "[EOS]", "<user>", "<assistant>", "good", "film", "bad"]


def write(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [one if isinstance(one, str) else json.dumps(one) for one in lines]
    path.write_text("\n".join(texts), encoding="utf-8")


def words(tokens):
    """Bytes as a text."""
    return bytes(one - 1 for one in tokens if one).decode()


def chat(*said):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[turn % 2], "content": one} for turn, one in enumerate(said)]}


@pytest.fixture
def tokenizer(tmp_path):
    """Makes a folder of a tokenizer of words with this template."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")

    def make(template=TEMPLATE, vocabulary=WORDS, name="tokenizer"):
        model = tokenizers.models.WordLevel({one: place for place, one in enumerate(vocabulary)}, unk_token="[UNK]")
        raw = tokenizers.Tokenizer(model)
        raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]", eos_token="[EOS]")
        fast.chat_template = template
        fast.save_pretrained(tmp_path / name)
        return str(tmp_path / name)

    return make


# ---------------------------------------------------------------------- files
def test_a_client_is_a_file_or_a_folder_of_files(tmp_path):
    root = tmp_path / "texts"
    write(root / "ann.txt", "one", "", "two\x0bthree")
    write(root / "bob.jsonl", {"text": "four\u2028five"}, "", {"text": "six", "page": 3})
    write(root / "cy/a.txt", "seven")
    write(root / "cy/b.jsonl", {"text": "eight"})
    samples = HuggingFace(str(root), next_token=True, max_length=12).load()
    found = {name: [] for name in samples.names}
    for row, owner in zip(samples.x, samples.owner, strict=True):
        found[samples.names[owner]].append(words(row))
    assert found == {"ann": ["one", "two\x0bthree"], "bob": ["four\u2028five", "six"], "cy": ["seven", "eight"]}
    assert samples.split is None


def test_splits_of_a_client_and_clients_that_never_train(tmp_path):
    root = tmp_path / "texts"
    for name in ("seen/ann", "unseen/bob"):
        write(root / name / "train.jsonl", *({"text": f"train {one}"} for one in range(3)))
        write(root / name / "test.txt", "test 0")
    seen, unseen = build_populations(HuggingFace(str(root), next_token=True, max_length=9), test_fraction=0.5)
    for population, name in ((seen, "ann"), (unseen, "bob")):
        assert list(population.names) == [name]
        assert [words(one.tolist()) for one in population.train.x] == ["train 0", "train 1", "train 2"]
        assert [words(one.tolist()) for one in population.test.x] == ["test 0"]
    write(root / "unseen/ann.txt", "twice")
    with pytest.raises(ConfigError, match=r"client \['ann'\] is both seen and unseen"):
        HuggingFace(str(root), next_token=True).load()


def test_clients_without_files_of_splits_are_divided_by_fractions(tmp_path, capsys):
    """Beside clients with test samples of their own; a line names both."""
    for name in ("ann/train.txt", "bob.txt", "cy/a.txt", "dan/train.txt"):
        write(tmp_path / name, *(f"{name} {one}" for one in range(10)))
    write(tmp_path / "ann/test.txt", "first", "second", "third")
    data = HuggingFace(str(tmp_path), next_token=True, max_length=20)
    for test_seed in (None, 1):
        seen, _ = build_populations(data, test_fraction=0.2, val_fraction=0.1, test_seed=test_seed)
        sizes = {name: [one.sizes[place] for one in seen.splits] for place, name in enumerate(seen.names)}
        assert sizes == {"ann": [9, 1, 3], "bob": [7, 1, 2], "cy": [7, 1, 2], "dan": [9, 1, 0]}
        assert [words(one.tolist()) for one in seen.test.client(0).x] == ["first", "second", "third"]
    assert "files of ann, dan are splits by their names, such as test.txt; the samples of bob, cy are divided by" in (
        capsys.readouterr().err
    )


def test_a_name_of_two_clients_is_refused(tmp_path):
    write(tmp_path / "ann.txt", "one")
    write(tmp_path / "ann/a.txt", "two")
    with pytest.raises(ConfigError, match=rf"{tmp_path}/ann and {tmp_path}/ann.txt both name client 'ann'; rename one"):
        HuggingFace(str(tmp_path), next_token=True).load()


def test_other_files_beside_texts_are_said(tmp_path, capsys):
    """As is what `datasets` reads; clients that come later are refused."""
    write(tmp_path / "ann.txt", "one", "two")
    write(tmp_path / "bob.txt", "three")
    write(tmp_path / "scan.pdf", "%PDF")
    samples = HuggingFace(str(tmp_path), next_token=True).load()
    assert (samples.owner, len(samples.x)) == (None, 3)
    assert (
        f"--data.dataset.path {tmp_path}: texts of ann, bob stand beside scan.pdf, so they are no clients: `datasets` "
        "reads 3 rows with text; move the others away to make each text a client\n"
    ) in capsys.readouterr().err
    known = facts(Multiclass(NUM_BYTE_TOKENS), (8,))._replace(texts=HuggingFace(next_token=True).texts)
    with pytest.raises(ConfigError, match=rf"--clients {tmp_path}: scan.pdf beside texts; move them away"):
        NewClients(str(tmp_path), known)


def test_labels_are_fields(tmp_path):
    write(tmp_path / "ann.jsonl", {"text": "hi", "label": "pos"}, {"text": "no", "label": "neg"})
    write(tmp_path / "bob.jsonl", {"text": "hi", "label": "pos"})
    samples = HuggingFace(str(tmp_path), max_length=4).load()
    assert (samples.y.tolist(), samples.class_names, samples.owner.tolist()) == ([1, 0, 1], ("neg", "pos"), [0, 0, 1])


@pytest.mark.parametrize(
    "names", [("train.jsonl", "test.jsonl"), ("data/one.jsonl",), ("train/a.txt",), ("a.csv",), ()]
)
def test_files_of_splits_and_other_files_are_no_clients(tmp_path, names):
    for name in names:
        write(tmp_path / name, {"text": "hi"})
    assert text_clients(tmp_path) is None


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("{", ("line 2: no JSON", 'one object {"text": …}')),
        ({"body": "hi"}, ("line 2: neither a text nor a chat",)),
        ({"text": "hi", "messages": []}, ("line 2: neither a text nor a chat",)),
        (["hi"], ("line 2: neither a text nor a chat",)),
        ({"text": 3}, ("line 2: its text has another form",)),
        *(
            ({"messages": one}, ("line 2: its messages has another form",))
            for one in (
                [],
                "hi",
                ["hi"],
                [{"role": "user"}],
                [{"role": "user", "content": None}],
                {"role": "user", "content": "hi"},
            )
        ),
    ],
)
def test_lines_that_cannot_be_read(tmp_path, line, parts):
    write(tmp_path / "ann.jsonl", {"text": "hi"}, line)
    with pytest.raises(ConfigError) as caught:
        read_lines(tmp_path / "ann.jsonl")
    assert all(part in str(caught.value) for part in (str(tmp_path / "ann.jsonl"), *parts))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"ab\xff"])
def test_a_file_that_is_no_text(tmp_path, content):
    (tmp_path / "ann.txt").write_bytes(content)
    with pytest.raises(ConfigError, match=r"ann\.txt: no UTF-8 text"):
        read_lines(tmp_path / "ann.txt")


# ---------------------------------------------------------------------- chats
def test_chats_become_tokens_by_the_template(tmp_path, tokenizer):
    write(tmp_path / "c/ann.jsonl", chat("good film", "bad"), chat("film"))
    samples = HuggingFace(str(tmp_path / "c"), tokenizer=tokenizer(), next_token=True, max_length=6).load()
    assert samples.x.tolist() == [[3, 5, 6, 4, 0, 0], [3, 0, 0, 0, 0, 0]]
    assert samples.y.tolist() == [[5, 6, 4, 7, IGNORED, IGNORED], [6, *[IGNORED] * 5]]
    labelled = [one | {"label": place} for place, one in enumerate((chat("good film"), chat("bad")))]
    write(tmp_path / "l/ann.jsonl", *labelled)
    samples = HuggingFace(str(tmp_path / "l"), tokenizer=tokenizer(), max_length=4).load()
    assert (samples.x.tolist(), samples.y.tolist()) == ([[3, 5, 6, 0], [3, 7, 0, 0]], [0, 1])


def test_chats_of_a_saved_data_set(tmp_path, tokenizer):
    datasets = pytest.importorskip("datasets")
    rows = [chat("good film") | {"who": "ann"}, chat("bad") | {"who": "bob"}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "d")
    given = {"client_column": "who", "next_token": True, "tokenizer": tokenizer(), "max_length": 3}
    samples = HuggingFace(str(tmp_path / "d"), input_columns="messages", **given).load()
    assert (samples.x.tolist(), samples.names) == ([[3, 5, 0], [3, 0, 0]], ["ann", "bob"])


@pytest.mark.parametrize(
    ("template", "lines", "parts"),
    [
        (None, [chat("good")], ("column 'messages' holds chats", "has no chat template; give a tokenizer with one")),
        (TEMPLATE, [{"messages": [{"role": "nobody", "content": ""}]}], ("chat template refuses it (nobody speaks)",)),
        (TEMPLATE, [chat("bad"), {"text": "bad"}], ("ann.jsonl holds messages, and ", "ann.jsonl text")),
    ],
)
def test_chats_that_cannot_be_read(tmp_path, tokenizer, template, lines, parts):
    write(tmp_path / "c/ann.jsonl", *lines)
    with pytest.raises(ConfigError) as caught:
        HuggingFace(str(tmp_path / "c"), tokenizer=tokenizer(template), next_token=True, max_length=6).load()
    assert all(part in str(caught.value) for part in parts), caught.value


def test_a_chat_without_turns_in_a_saved_data_set(tmp_path, tokenizer):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([chat("bad"), {"messages": []}]).save_to_disk(tmp_path / "d")
    with pytest.raises(ConfigError, match="row 1, column 'messages': is no list of turns"):
        HuggingFace(str(tmp_path / "d"), tokenizer=tokenizer(), next_token=True).load()


def test_bytes_have_no_template(tmp_path):
    write(tmp_path / "ann.jsonl", chat("good"))
    with pytest.raises(ConfigError, match=r"--data\.dataset\.tokenizer null has no chat template"):
        HuggingFace(str(tmp_path), next_token=True).load()


# ---------------------------------------------------------------------- later clients
def later(path, class_names=None, *, continuous=False, num_classes=NUM_BYTE_TOKENS, **texts):
    data = HuggingFace(str(path), num_classes=num_classes, **texts)
    return data.later(class_names, continuous=continuous)


def test_texts_without_a_label_are_predicted(tmp_path):
    write(tmp_path / "ann.jsonl", {"text": "a", "label": "pos"}, {"text": "b"}, {"text": "c", "label": "neg"})
    write(tmp_path / "bob.txt", "d")
    found = later(tmp_path, ("neg", "pos", "none"), max_length=1)
    assert found.y.tolist() == [1, 0, 0, 0]
    assert found.labelled.tolist() == [True, False, True, False]
    assert found.split.tolist() == [0, 2, 0, 2]
    write(tmp_path / "cy.jsonl", {"text": "e", "label": "maybe"})
    with pytest.raises(ConfigError, match="is no class of the training"):
        later(tmp_path, ("neg", "pos"), max_length=1)


@pytest.mark.parametrize(("continuous", "y"), [(True, [1.5, 2.0, 0.0]), (False, [1, 2, 0])])
def test_numbers_of_later_clients(tmp_path, continuous, y):
    write(tmp_path / "ann.jsonl", {"text": "a", "label": y[0]}, {"text": "b", "label": y[1]}, {"text": "c"})
    found = later(tmp_path, continuous=continuous, max_length=1)
    assert (found.y.tolist(), found.labelled.tolist()) == (y, [True, True, False])


def test_without_any_label_all_are_predicted(tmp_path):
    write(tmp_path / "ann.txt", "a", "b")
    found = later(tmp_path, ("neg", "pos"), max_length=1)
    assert (found.labelled.any(), found.split.tolist()) == (False, [2, 2])


def test_a_client_with_test_samples_alone(tmp_path):
    write(tmp_path / "ann/test.txt", "ab")
    found = later(tmp_path, next_token=True, max_length=2)
    assert (found.split.tolist(), found.labelled.tolist()) == ([2], [True])


# ---------------------------------------------------------------------- tokens in words
def test_bytes_in_words():
    texts = Texts(None, 4, next_token=True, packed=False, prompt_column=None, label_column="")
    assert texts.words(np.array([105, 0, 196, 33, IGNORED])).tolist() == ["h", "<end>", "\\xc3", " ", ""]


@pytest.mark.parametrize(
    ("texts", "stored_type", "tokenizer", "said"),
    [
        ((None, 4, True, False, None, ""), "tokens of bytes", None, "UTF-8 bytes, byte b as b + 1, truncated"),
        (("owner/words", 4, True, False, None, ""), "int64", "owner/words", "token ids without special tokens"),
        (("FOLDER/words", 4, False, False, None, "label"), "tokens 12", "words", "token ids with special tokens"),
        (None, "tokens of bytes", None, "UTF-8 bytes"),
        (None, "tokens 12", None, "token ids with special tokens"),
    ],
)
def test_how_texts_become_tokens_in_words(tmp_path, texts, stored_type, tokenizer, said):
    """Of several labels the checkpoint does not name the tokenizer; the path of a folder is not told."""
    (tmp_path / "words").mkdir()
    if texts is not None:
        texts = Texts(*[one.replace("FOLDER", str(tmp_path)) if isinstance(one, str) else one for one in texts])
    found = encoding(texts, stored_type)
    assert found["tokenizer"] == tokenizer
    assert found["encoding"].startswith(said)
    assert encoding(None, "int64") == {}


def test_words_of_a_tokenizer(tokenizer):
    texts = Texts(tokenizer(), 4, next_token=True, packed=False, prompt_column=None, label_column="")
    assert texts.words(np.array([6, IGNORED, 2, 6])).tolist() == ["film", "", "[EOS]", "film"]


def test_a_report_reads_words_that_look_like_gaps(tmp_path):
    from lit_fed.command_line.report_predictions import Predictions

    columns = {"client": ["a"] * 3, "label": ["NA", "x", "nan"], "prediction": ["NA", "y", "nan"]}
    pd.DataFrame(columns | {"p_label": 0.5, "p_prediction": 0.5}).to_csv(tmp_path / "predictions.csv", index=False)
    found = Predictions.of(tmp_path)
    assert found.positive is None
    assert found.groups("client") == (["client", "samples", "accuracy (%)"], [["a", "3", "66.7"], ["all", "3", "66.7"]])
