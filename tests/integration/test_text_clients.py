"""Clients of text files: trained, predicted in words, and served later from the same forms of files."""

import json
from pathlib import Path

import pandas as pd
import pytest
from running import folder, run

from lit_fed.cli import main

pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """A folder of clients with chats, and the folder of a tokenizer of words with a chat template."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("chats")
    words = ["[PAD]", "[UNK]", "<user>", "<bot>", *(f"w{one}" for one in range(26))]
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({one: n for n, one in enumerate(words)}, unk_token="[UNK]"))
    raw.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="[PAD]")
    fast.chat_template = "{% for one in messages %}<{{ one.role }}> {{ one.content }} {% endfor %}"
    fast.save_pretrained(root / "words")
    for client in ("train/ann", "train/bob", "later/cy"):
        write_chats(root / f"{client}.jsonl", 6)
    return root


def write_chats(path, number):
    path.parent.mkdir(exist_ok=True)
    answer = {"role": "bot", "content": "w3"}
    chats = [[{"role": "user", "content": f"w1 w{place}"}, answer] for place in range(4, 4 + number)]
    path.write_text("\n".join(json.dumps({"messages": one}) for one in chats))


@pytest.fixture(scope="module")
def trained(chats):
    data = ["--data.dataset", "HuggingFace", "--data.dataset.path", str(chats / "train"), "--data.dataset.next_token",
            "true", "--data.dataset.tokenizer", str(chats / "words"), "--data.dataset.max_length", "6"]  # fmt: skip
    model = ["--model.network", "CharLSTM", "--model.network.hidden_size", "4", "--model.algorithm", "FedAvg"]
    trainer = ["--trainer.max_epochs", "1", "--trainer.accelerator", "cpu", "--trainer.default_root_dir", str(chats)]
    done = run(["fit", *data, *model, *trainer])
    assert done.returncode == 0, done.stderr
    return folder(chats, "FedAvg") / "checkpoints/last.ckpt"


def said_in(path):
    """Next tokens by client and sample, of a table of predictions."""
    table = pd.read_csv(path)
    assert table.columns[2:].tolist() == ["sample", "position", "label", "prediction", "p_label", "p_prediction"]
    assert set(table["prediction"]) <= {"[PAD]", "[UNK]", "<user>", "<bot>", *(f"w{one}" for one in range(26))}
    assert (table["p_prediction"] >= table["p_label"]).all()
    said = table.groupby(["client", "sample"])["label"].agg(" ".join)
    return said.str.replace(r"w[4-9] ", "w4 ", regex=True).to_dict()  # each chat has another second word


def test_a_program_says_how_texts_become_tokens(trained, tmp_path):
    import torch

    out = str(tmp_path / "ann.pt2")
    assert run(["export", "--ckpt_path", str(trained), "--client", "ann", "--output", out]).returncode == 0
    notes = {"about.json": ""}
    program = torch.export.load(out, extra_files=notes).module()
    found = json.loads(notes["about.json"])["texts"]
    assert (found["tokenizer"], found["length"]) == ("words", 6)
    assert program(torch.zeros(3, 6, dtype=torch.int64)).shape[:2] == (3, 6)
    with pytest.raises(RuntimeError, match="to be equal to 6"):
        program(torch.zeros(3, 5, dtype=torch.int64))


def test_predictions_are_words(trained, tmp_path):
    assert run(["predict", "--ckpt_path", str(trained), "--output", str(tmp_path / "p.csv")]).returncode == 0
    assert said_in(tmp_path / "p.csv") == {("ann", 0): "w1 w4 <bot> w3", ("bob", 0): "w1 w4 <bot> w3"}


def personalized(trained, clients, output):
    return run(["personalize", "--ckpt_path", str(trained), "--clients", str(clients), "--output", str(output)])


def test_later_clients_give_the_same_files(trained, chats, tmp_path):
    done = personalized(trained, chats / "later", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "1 clients, with 5 samples to adapt on; 1 samples predicted, 1 of them measured" in done.stdout
    assert said_in(tmp_path / "out/predictions.csv") == {("cy", 0): "w1 w4 <bot> w3"}
    (row,) = pd.read_csv(tmp_path / "out/clients.csv").to_dict("records")
    assert (row["client"], row["num_train"], row["num_test"]) == ("cy", 5, 1)


def test_other_tokenizers_and_missing_ones_are_refused(trained, chats, tmp_path):
    vocabulary, config = (chats / "words" / name for name in ("tokenizer.json", "tokenizer_config.json"))
    before = vocabulary.read_text()
    vocabulary.write_text(before.replace('"w25"', '"w26"'))
    try:
        done = personalized(trained, chats / "later", tmp_path / "out")
        assert done.returncode == 2
        assert "has other words than in the training" in done.stderr
    finally:
        vocabulary.write_text(before)
    moved = (chats / "words").rename(chats / "moved")
    try:
        done = personalized(trained, chats / "later", tmp_path / "out")
        assert done.returncode == 2
        assert f"{config.parent}: cannot be loaded" in done.stderr
    finally:
        moved.rename(chats / "words")
    assert not (tmp_path / "out").exists()


def test_texts_after_a_training_on_others(chats, tmp_path):
    fit = ["fit", "--data.num_clients", "3", "--trainer.max_epochs", "1", "--trainer.accelerator", "cpu"]
    assert run([*fit, "--trainer.default_root_dir", str(tmp_path)]).returncode == 0
    last = folder(tmp_path, "FedEM") / "checkpoints/last.ckpt"
    done = personalized(last, chats / "later", tmp_path / "out")
    assert done.returncode == 2
    assert "has files of texts, and the checkpoint was not trained on such; pass a folder with a .npz" in done.stderr


def test_a_later_client_with_texts_to_predict_alone_is_served_and_an_empty_one_is_left_out(
    tmp_path, monkeypatch, capsys
):
    """A transformer has no pass for an empty batch: the mean mixture serves this client as any other."""
    monkeypatch.chdir(tmp_path)
    for who, line in {"ann": "the tide is high.", "bo": "a ship sails.", "README": "no client"}.items():
        Path("notes").mkdir(exist_ok=True)
        Path(f"notes/{who}.{'md' if who == 'README' else 'txt'}").write_text("\n".join(6 * [line]))
    main([
        "fit", "--data.dataset", "HuggingFace", "--data.dataset.path", "notes", "--data.dataset.next_token", "true",
        "--data.dataset.max_length", "8", "--data.batch_size", "2", "--model.algorithm", "FedEM",
        "--model.algorithm.num_components", "2", "--model.network", "HuggingFaceCausalLM",
        "--model.network.config",
        "{model_type: gpt2, n_embd: 8, n_layer: 1, n_head: 2, vocab_size: 257, n_positions: 8}", "--trainer.max_epochs",
        "1", "--trainer.accelerator", "cpu",
        "--name", "notes",
    ])  # fmt: skip
    assert pd.read_csv("runs/notes/version_0/clients.csv")["client"].tolist() == ["ann", "bo"]
    Path("later/gil").mkdir(parents=True)
    Path("later/gil/test.txt").write_text("the tide")
    Path("later/hal.txt").write_text("")
    capsys.readouterr()
    main(["personalize", "--ckpt_path", "runs/notes/version_0/checkpoints/last.ckpt", "--clients", "later",
          "--output", "served", "--trainer.accelerator", "cpu"])  # fmt: skip
    said = capsys.readouterr()
    assert "clients without a sample are left out: hal" in said.err
    assert "served by the mean mixture" in said.out
    assert len(pd.read_csv("served/predictions.csv")) > 0
