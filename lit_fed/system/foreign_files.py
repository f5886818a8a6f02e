"""Files that others may have written: at most so many bytes, plain values, and a form that a reader checks."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lit_fed.errors import ConfigError
from lit_fed.system.files import require_file
from lit_fed.system.packages import pd
from lit_fed.system.plain_yaml import PlainLoader, read_yaml
from lit_fed.system.readers import FormError, Reader
from lit_fed.system.spreadsheets import unquoted_table

__all__ = ["MOST_BYTES", "MOST_TIMES", "check_unpacked", "json_lines", "read_file", "read_table", "yaml_value"]

MOST_BYTES = 2**26
"""Upper limit of a file of plain values, packed and unpacked."""

MOST_OF_TABLE = 2**30
"""Upper limit of the bytes of a table."""

MOST_OF_YAML = 2**20
"""Upper limit of a YAML file, whose parser is slow."""

MOST_TIMES, ALWAYS = 100, 2**28
"""An archive unpacks to at most so many times its size; so many bytes are never too many."""


def check_unpacked(path: Path, fix: str) -> None:
    """Refuse a .zip or .gz file that is small, and would fill memory or disk; other files pass.

    Raises:
        ConfigError: naming the file, its limit and the fix.
    """
    most = max(ALWAYS, MOST_TIMES * path.stat().st_size)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            size = sum(one.file_size for one in archive.infolist())  # a member is not read beyond it
    elif path.suffix.lower() == ".gz":
        with gzip.open(path) as file:
            size = 0
            while size <= most and (part := file.read(2**20)):
                size += len(part)
    else:
        return
    if size > most:
        raise ConfigError(f"{path} unpacks to more than {most:,} bytes, {MOST_TIMES} times its own; {fix}")


@contextmanager
def _named(path: Path, fix: str, most: int) -> Iterator[None]:
    """Name the file and the fix if it is no file, too large, or cannot be read."""
    require_file(path, fix)
    if (size := path.stat().st_size) > most:
        raise ConfigError(f"{path} has {size:,} bytes, and at most {most:,} are read; {fix}")
    try:
        yield
    except ConfigError:
        raise
    except (OSError, EOFError, ValueError, OverflowError, RecursionError, zlib.error, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}; {fix}") from error


def read_file(path: Path, parse: Callable[[bytes], Any], form: Reader, fix: str) -> Any:
    """Read the plain values of a file.

    Args:
        path: the file.
        parse: makes values of its content: `json.loads`, `json_lines`, `yaml_value`.
        form: reader of these values.
        fix: what to do, for the message.

    Raises:
        ConfigError: naming the file, the entry and the fix.
    """
    with _named(path, fix, MOST_BYTES):
        return form(parse(path.read_bytes()), "the content")


def json_lines(content: bytes) -> list[Any]:
    """The values of a JSON Lines file, which may be packed by gzip."""
    if content.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise FormError(f"it unpacks to more than {MOST_BYTES:,} bytes")
    return list(map(json.loads, content.splitlines()))


def yaml_value(content: bytes | str) -> Any:
    """The value of a YAML document without aliases, by which a few bytes become large."""
    text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    if len(text) > MOST_OF_YAML:
        raise FormError(f"a YAML file has at most {MOST_OF_YAML:,} letters")
    anchors: set[Any] = set()
    for event in yaml.parse(text, Loader=PlainLoader):
        if not isinstance(event, yaml.AliasEvent):
            anchors.add(getattr(event, "anchor", None))
        elif event.anchor in anchors:  # else it is a text, such as *.weight, or an error
            line = getattr(event.start_mark, "line", 0) + 1
            raise FormError(f"line {line} has an alias, *{event.anchor}; write out its value")
    return read_yaml(text)


def read_table(path: Path, fix: str, texts: Sequence[str] = (), wholes: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV file of numbers and booleans.

    Args:
        path: the file.
        fix: what to do, for the message.
        texts: columns of texts, as they are written: 01 is not 1.
        wholes: columns of whole numbers >= 0.

    Raises:
        ConfigError: naming the file, the column and the fix.
    """
    with _named(path, fix, MOST_OF_TABLE):
        numbers = pd.read_csv(path, nrows=0).columns.difference(list(texts))
        table = pd.read_csv(
            path, dtype=dict.fromkeys(texts, str), keep_default_na=False, low_memory=False,
            na_values={name: ["", "nan"] for name in numbers},  # NA is a name
        )  # fmt: skip
        table = unquoted_table(table)
        if not isinstance(table.index, pd.RangeIndex):
            raise FormError("its rows are longer than its header")
        if lacks := [name for name in (*texts, *wholes) if name not in table]:
            raise FormError(f"it has no column {lacks[0]}")
        for name in table if len(table) else ():
            kind = table[name].dtype
            if name in wholes and not (kind.kind == "i" and (table[name] >= 0).all()):
                raise FormError(f"column {name} holds something else than whole numbers >= 0")
            if name not in texts and kind.kind not in "biuf":
                raise FormError(f"column {str(name)[:100]!r} holds something else than numbers")
        return table
