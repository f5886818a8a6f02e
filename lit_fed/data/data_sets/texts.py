"""Texts of clients: files of lines, of JSON objects and of chat turns, and how they become tokens.

ROOT/<client>.txt       each line is a text
ROOT/<client>.jsonl     in each line {"text": "…"}, or {"messages": [{"role": "user", "content": "…"}, …]}, with further
                        fields, such as a label
ROOT/<client>/*         such files of one client; those named like splits, as train.txt and test.jsonl, are these splits

If files of some clients are splits, the samples of the others are divided by the fractions of the data module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lit_fed.core.targets import IGNORED
from lit_fed.data.data_sets.base import PLACE, require, say
from lit_fed.data.data_sets.rows import TableRows
from lit_fed.errors import ConfigError
from lit_fed.system.files import given_path
from lit_fed.system.packages import hub_or_cache, optional_package

__all__ = [
    "CHAT", "NUM_BYTE_TOKENS", "ROLES", "TEXT", "TOKENS", "TextClients", "Texts", "byte_tokens", "encoding", "is_chat",
    "next_tokens", "read_lines", "split_of", "text_clients", "texts_of", "token_lists", "vocabulary", "vocabulary_size",
    "word_tokens",
]  # fmt: skip

ROLES = {"train": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2}
"""Role of official splits by name: 0 training, 1 validation, 2 test."""

TEXT, CHAT = "text", "messages"
"""Fields of a line that hold a text, or the turns of a chat."""

TOKENS = "tokens "
"""Beginning of `Samples.stored_type` of texts."""

ENDINGS = (".txt", ".jsonl")

BESIDE = {"readme.md", "readme.txt", "license", "license.txt", "thumbs.db", "desktop.ini"}
"""Names, in small letters, of files beside clients' texts that are no client."""

OF_HUBS = {*ROLES, "data"}
"""Names that files and folders of a data set have on hubs, which are those of no clients."""


# ------------------------------------------------------------------ files
class TextClients(NamedTuple):
    """The text files of clients by name, and the names of those held out of training."""

    files: dict[str, list[Path]]
    unseen: tuple[str, ...] = ()
    others: tuple[Path, ...] = ()  # files of another kind beside them


def text_clients(root: Path) -> TextClients | None:
    """The clients of a folder of text files; None without texts, or with files of splits alone.

    Raises:
        ConfigError: naming a client that is both seen and unseen, or two entries of the name of one client.
    """
    if not (root / "seen").is_dir():
        found = _clients_in(root)
        return found if found.files.keys() - OF_HUBS else None
    seen, unseen = (_clients_in(root / name) for name in ("seen", "unseen"))
    if not seen.files:
        return None
    both = sorted(seen.files.keys() & unseen.files.keys())
    require(not both, f"{root}: client {both[:1]} is both seen and unseen; remove one of them")
    return TextClients(seen.files | unseen.files, tuple(unseen.files), seen.others + unseen.others)


def _clients_in(folder: Path) -> TextClients:
    """Files by client, each a file or a folder of files, and files of another kind.

    Notes and thumbnails beside them, `BESIDE`, are no data.
    """
    clients: dict[str, list[Path]] = {}
    others, twice = list[Path](), list[tuple[Path, Path]]()
    entries: dict[str, Path] = {}
    for one in sorted(folder.glob("[!.]*")):
        if one.name.lower() in BESIDE:
            continue
        name = one.name if one.is_dir() else one.stem
        for file in sorted(one.glob("[!.]*")) if one.is_dir() else [one]:
            if file.suffix not in ENDINGS or not file.is_file():
                others.append(file)
                continue
            clients.setdefault(name, []).append(file)
            if (first := entries.setdefault(name, one)) != one and name not in OF_HUBS:
                twice.append((first, one))
    if twice and not others:
        first, one = twice[0]
        raise ConfigError(
            f"{first} and {one} both name client {first.stem!r}; rename one, or move both into one folder"
        )
    return TextClients(clients, others=tuple(others))


def split_of(client: str, file: Path) -> str | None:
    """The split that a client's file is by its name; None: it is all of the client's samples, or some of them."""
    return file.stem if file.stem in ROLES and file.parent.name == client else None


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a text file that are not blank, each with its fields: a text or a chat, and further ones.

    Raises:
        ConfigError: naming the line that is no JSON, or holds neither or both.
    """
    try:
        whole = file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: no UTF-8 text ({error}); save it as UTF-8") from error
    if file.suffix != ".jsonl":
        return [{TEXT: line} for line in whole.split("\n") if line.strip()]
    rows, form = [], f'one object {{"{TEXT}": …}} or {{"{CHAT}": [{{"role": …, "content": …}}, …]}}'
    for number, line in enumerate(whole.split("\n"), 1):  # texts may hold other ends of lines
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{file}, line {number}: no JSON ({error}); write {form}") from error
        held = isinstance(row, dict) and (TEXT in row) != (CHAT in row)
        require(held, f"{file}, line {number}: neither a text nor a chat; write {form}")
        is_right = _are_turns(row[CHAT]) if CHAT in row else isinstance(row[TEXT], str)
        require(is_right, f"{file}, line {number}: its {CHAT if CHAT in row else TEXT} has another form; write {form}")
        rows.append(row)
    return rows


def _are_turns(given: Any) -> bool:
    """Whether this is a list of at least one turn, with role and content as texts."""
    if not isinstance(given, list | tuple | np.ndarray) or not len(given):
        return False
    return all(
        isinstance(one, dict) and {str} == {type(one.get(name)) for name in ("role", "content")} for one in given
    )


# ------------------------------------------------------------------ columns
def is_chat(feature: Any) -> bool:
    """Whether a column of `datasets` holds lists of turns with role and content."""
    turn = getattr(feature, "feature", None)
    return isinstance(turn, dict) and {"role", "content"} <= turn.keys()


def texts_of(rows: TableRows, column: str, tokenizer: str | None) -> tuple[list[str], bool]:
    """The texts of a column, of which some may be empty, and whether they are chats, in the tokenizer's template.

    Raises:
        ConfigError: naming the row without a text, or with turns that the template refuses; or the tokenizer without
            a template.
    """
    rows.refuse(column, rows.frame[column].isna().to_numpy(), "no text; fill it in, or leave the row out")
    cells = list(rows.frame[column])
    if not cells or isinstance(cells[0], str):
        return cells, False
    option = f"{PLACE}.tokenizer"
    known = None if tokenizer is None else _tokenizer(tokenizer)
    if known is None or not getattr(known, "chat_template", None):
        raise ConfigError(
            f"{rows.source}: column {column!r} holds chats, and {option} {tokenizer or 'null'} has no chat template; "
            f"give a tokenizer with one (chat_template in its folder), or write the chats as {TEXT}"
        )
    return [_written(known, rows, column, row, turns) for row, turns in enumerate(cells)], True


def _written(known: Any, rows: TableRows, column: str, row: int, turns: Any) -> str:
    """A chat in the tokenizer's template."""
    if not _are_turns(turns):
        raise rows.error(row, column, "is no list of turns with the texts role and content; correct it")
    said = [{name: value for name, value in one.items() if value is not None} for one in turns]
    try:
        return str(known.apply_chat_template(said, tokenize=False))
    except Exception as error:  # of the template, such as roles that do not alternate
        raise rows.error(row, column, f"the tokenizer's chat template refuses it ({error}); correct it") from error


# ------------------------------------------------------------------ tokens
class Texts(NamedTuple):
    """How the texts of a training become tokens: fields of `HuggingFace` that clients who come later need."""

    tokenizer: str | None
    max_length: int
    next_token: bool
    packed: bool
    prompt_column: str | None
    label_column: str

    def words(self, tokens: np.ndarray) -> np.ndarray:
        """Each token [n] as text, [n] of objects: a byte, or what the tokenizer makes of it; "" of ignored ones."""
        numbers, places = np.unique(tokens.clip(-1), return_inverse=True)
        if self.tokenizer is None:
            each = [_byte_in_words(one) for one in numbers.tolist()]
        else:
            with hub_or_cache(is_here=True):
                known = _tokenizer(self.tokenizer)
            each = ["" if one < 0 else _word(known, one) for one in numbers.tolist()]
        return np.array(each, dtype=object)[places]


def encoding(texts: Texts | None, stored_type: str) -> dict[str, str | None]:
    """How texts become the inputs of a training, in words for files; {} if its inputs are no texts.

    Args:
        texts: of the training; None: its labels are of another kind, or it read no texts.
        stored_type: see `Samples`.
    """
    if texts is None and not stored_type.startswith(TOKENS):
        return {}
    if stored_type == vocabulary(None) if texts is None else texts.tokenizer is None:
        return {"tokenizer": None, "encoding": "UTF-8 bytes, byte b as b + 1, truncated or padded with 0"}
    name = None if texts is None else str(texts.tokenizer)
    if name is not None and given_path(name, PLACE).is_dir():
        name = Path(name).name  # paths of this machine stay here
    special = "without" if texts is not None and texts.next_token else "with"
    said = f"token ids {special} special tokens, of chats those of the template, truncated or padded"
    return {"tokenizer": name, "encoding": said}


def _byte_in_words(token: int) -> str:
    if token == 0:
        return "<end>"
    return bytes([token - 1]).decode("ascii", "backslashreplace") if 0 < token < NUM_BYTE_TOKENS else ""


def _word(known: Any, token: int) -> str:
    text = str(known.decode([token]))
    parts = "\ufffd" in text or not text  # of a letter, or a word that decoding leaves out
    return str(known.convert_ids_to_tokens(token)) if parts else text


NUM_BYTE_TOKENS = 257
"""Vocabulary of `byte_tokens`: 256 bytes, and 0 for padding."""


def byte_tokens(texts: list[str], max_length: int) -> np.ndarray:
    """UTF-8 bytes as tokens, byte b as b + 1, padded with 0; [n, max_length] int64.

    No vocabulary is learned from clients' texts, so later clients are read alike.

    Args:
        texts: n texts.
        max_length: tokens of a text; longer texts are truncated.

    Example:
        >>> byte_tokens(["hi", "h"], 3).tolist()
        [[105, 106, 0], [105, 0, 0]]
    """
    tokens = np.zeros((len(texts), max_length), dtype=np.int64)
    lengths = []
    for row, text in zip(tokens, texts, strict=True):
        encoded = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
        lengths.append(len(encoded))
        row[: len(encoded)] = encoded[:max_length]
        row[: len(encoded)] += 1
    _say_cut(lengths, max_length)
    return tokens


def _say_cut(lengths: Sequence[int], max_length: int) -> None:
    """Say in one line how many of the texts with these numbers of tokens are truncated."""
    cut = sum(one > max_length for one in lengths)
    if cut:
        say(
            f"{cut:,} of {len(lengths):,} texts ({cut / len(lengths):.1%}) are truncated to {max_length:,} tokens, the "
            f"longest has {max(lengths):,}; {PLACE}.max_length keeps more"
        )


def word_tokens(texts: list[str], tokenizer: str, max_length: int, option: str, *, is_chat: bool = False) -> np.ndarray:
    """Tokens of a tokenizer of `transformers`, truncated or padded; [n, max_length] int64.

    Args:
        texts: n texts.
        tokenizer: folder or hub name.
        max_length: tokens of a text.
        option: option of the tokenizer, for messages.
        is_chat: whether they are chats in the tokenizer's template, which brings its special tokens.

    Raises:
        ConfigError: if the package is missing, or the tokenizer cannot be loaded.
    """
    with _tokenizing(f"{option} {tokenizer}"):
        known = _tokenizer(tokenizer, option)
        special = {"add_special_tokens": not is_chat}
        fitted = {"truncation": True, "max_length": max_length, "padding": "max_length", "return_tensors": "np"}
        found = known(texts, **fitted, **special)
        lengths = [len(one) for one in known(texts, verbose=False, **special)["input_ids"]]
    _say_cut(lengths, max_length)
    return np.asarray(found["input_ids"], dtype=np.int64)


@contextmanager
def _tokenizing(place: str) -> Iterator[None]:
    """Name the tokenizer in an error of its library, whose panics in Rust are no `Exception`."""
    try:
        with hub_or_cache(given_path(place.partition(" ")[2], PLACE).exists()):
            yield
    except (ConfigError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # of the network, the hub, or its files
        raise ConfigError(
            f"{place}: cannot be loaded ({str(error).partition(chr(10))[0]}); correct the folder or the name, or "
            "without access to the hub give a folder that save_pretrained wrote"
        ) from error


def _tokenizer(tokenizer: str, option: str = f"{PLACE}.tokenizer") -> Any:
    """The library's tokenizer, with a padding token."""
    transformers = optional_package("transformers", "transformers>=5.24,<6", "hf", f"{option} {tokenizer}")
    with _tokenizing(f"{option} {tokenizer}"):
        known = transformers.AutoTokenizer.from_pretrained(tokenizer, trust_remote_code=False)
        if known.pad_token is None:
            known.pad_token = known.eos_token
        has_padding = known.pad_token is not None
    if not has_padding:
        raise ConfigError(f"{option} {tokenizer}: has no padding token; set its pad_token")
    return known


def vocabulary_size(tokenizer: str | None) -> int:
    """Number of tokens of a tokenizer; None: of bytes."""
    return NUM_BYTE_TOKENS if tokenizer is None else len(_tokenizer(tokenizer))


def vocabulary(tokenizer: str | None) -> str:
    """Digest of a tokenizer's words and their ids, for `Samples.stored_type`."""
    if tokenizer is None:
        return f"{TOKENS}of bytes"
    words = json.dumps(_tokenizer(tokenizer).get_vocab(), sort_keys=True)
    return f"{TOKENS}{hashlib.blake2b(words.encode(), digest_size=4).hexdigest()}"


def token_lists(texts: list[str], tokenizer: str | None, *, ends: bool = True) -> tuple[list[list[int]], int]:
    """Tokens of each text, whole, and the padding token.

    Args:
        texts: n texts.
        tokenizer: folder or hub name; None: bytes, as `byte_tokens`, in which 0 ends a text.
        ends: whether the token that ends a text follows, if there is one.
    """
    if tokenizer is None:
        end = [0] if ends else []
        return [[*(one + 1 for one in text.encode("utf-8", "surrogatepass")), *end] for text in texts], 0
    with _tokenizing(f"{PLACE}.tokenizer {tokenizer}"):
        known = _tokenizer(tokenizer)
        end = [known.eos_token_id] if ends and known.eos_token_id is not None else []
        found = known(texts, add_special_tokens=False)["input_ids"] if texts else []
    return [[*one, *end] for one in found], known.pad_token_id


def next_tokens(ids: list[list[int]], prompts: list[int], max_length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and those that follow, both [n, max_length] int64, from the first `max_length` + 1 tokens of each text.

    Args:
        ids: tokens of n texts.
        prompts: how many tokens at the beginning of each are not learned.
        max_length: L.
        pad: padding token.

    Example:
        >>> x, y = next_tokens([[5, 6, 7], [5, 6, 7, 8]], [0, 2], 3, pad=0)
        >>> x.tolist(), y.tolist()
        ([[5, 6, 0], [5, 6, 7]], [[6, 7, -100], [-100, 7, 8]])
    """
    _say_cut([len(one) for one in ids], max_length + 1)
    x = np.full((len(ids), max_length), pad, dtype=np.int64)
    y = np.full((len(ids), max_length), IGNORED, dtype=np.int64)
    for row, (text, prompt) in enumerate(zip(ids, prompts, strict=True)):
        known = text[: max_length + 1]
        x[row, : len(known) - 1] = known[:-1]
        y[row, : len(known) - 1] = known[1:]
        y[row, : max(prompt - 1, 0)] = IGNORED
    return x, y
