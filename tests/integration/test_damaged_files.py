"""Damaged files of a run are refused by name, or hold every number that was written: 300 of them, no code run.

Only damage beside the values may go unseen: times of day, flags, padding. Each file is made from a real checkpoint, or
a real client file, by a damage drawn from its number alone.
"""

import io
import os
import pickle
import random
import shutil
import struct
import zipfile
from functools import partial

import pytest
import torch
from running import SMALL, folder

from lit_fed.cli import main
from lit_fed.clients.store_files import ClientFiles
from lit_fed.errors import ClientError, ConfigError
from lit_fed.training.checkpoint import load_checkpoint

ARGUMENTS = [
    *SMALL, "--model.algorithm", "Local", "--model.client_trainer", "sequential", "--model.client_memory_gb", "0",
    "--data.num_clients", "4", "--trainer.max_epochs", "3", "--trainer.enable_progress_bar", "false",
]  # fmt: skip


class Runs:
    """An object whose unpickling writes a file."""

    def __init__(self, marker, how):
        self.marker, self.how = marker, how

    def __reduce__(self):
        code = f"open({str(self.marker)!r}, 'w').close()"
        return {"system": (os.system, (f"touch {self.marker}",)), "eval": (eval, (code,)), "exec": (exec, (code,))}[
            self.how
        ]


class Kit:
    """Files of a run, and where damaged ones are put.

    Args:
        run: the run's folder.
        place: a new folder.
    """

    def __init__(self, run, place):
        self.last = run / "checkpoints/last.ckpt"
        versions = torch.load(self.last, weights_only=True)["state_dict"]["store.versions"].tolist()
        self.clients = [(one, version) for one, version in enumerate(versions) if version >= 0]
        self.files = {pair: run / "clients/{}.{}.pt".format(*pair) for pair in self.clients}
        self.old = next(path for path in sorted((run / "clients").glob("*.pt")) if path not in self.files.values())
        self.marker = place / "code_ran"
        self.names = list(torch.load(self.files[self.clients[0]], weights_only=True))[1:]


# ---------------------------------------------------------------------- damages: bytes -> bytes
def flipped(data, rng, kit):
    place = rng.randrange(8 * len(data))
    return data[: place // 8] + bytes([data[place // 8] ^ 1 << place % 8]) + data[place // 8 + 1 :]


def cut(data, rng, kit):
    return data[: rng.choice([0, 1, len(data) - 1, rng.randrange(len(data)), rng.randrange(len(data))])]


def zeroed(data, rng, kit):
    """A sector that the disk has lost."""
    start = rng.randrange(len(data) // 512) * 512
    lost = data[:start] + bytes(512) + data[start + 512 :]
    return lost if lost != data else cut(data, rng, kit)


def lengthened(data, rng, kit):
    extra = rng.randbytes(rng.randrange(1, 100))
    return extra + data if rng.random() < 0.5 else data + extra


def entries_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(one.filename, archive.read(one)) for one in archive.infolist()]


def archived(entries):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return out.getvalue()


def swapped_contents(data, rng, kit):
    """Two tensors in each other's place, where the directory does not know of it."""
    entries = entries_of(data)
    long = [content for name, content in entries if "/data/" in name and len(content) >= 16]
    one = rng.choice(long)
    other = one[len(one) // 2 :] + one[: len(one) // 2] if len(long) == 1 or rng.random() < 0.5 else rng.choice(long)
    other = (other * (len(one) // len(other) + 1))[: len(one)]
    if other == one:
        return flipped(data, rng, kit)
    return data.replace(one, other, 1)


def without_an_entry(data, rng, kit):
    entries = entries_of(data)
    entries.pop(rng.randrange(len(entries)))
    return archived(entries)


def lying(data, rng, kit):
    """A number in a header that is not true: of an entry, of the directory or of the end."""
    places = {b"PK\x01\x02": (10, 12, 16, 20, 24, 28, 42), b"PK\x03\x04": (26, 28), b"PK\x05\x06": (8, 12, 16, 20)}
    mark = rng.choice(list(places))
    starts = [place for place in range(len(data) - 4) if data[place : place + 4] == mark]
    start, offset = rng.choice(starts), rng.choice(places[mark])
    size = (
        4 if offset in (12, 16, 20, 24, 42) and mark != b"PK\x03\x04" and (mark, offset) != (b"PK\x05\x06", 20) else 2
    )
    if (mark, offset) == (b"PK\x01\x02", 12):
        size = 2  # a time of day
    number = rng.choice([0, 1, 255, 2 ** (8 * size) - 1, rng.randrange(2 ** (8 * size))]).to_bytes(size, "little")
    lied = data[: start + offset] + number + data[start + offset + size :]
    return lied if lied != data else flipped(data, rng, kit)


def lying_tensors(data, rng, kit):
    """A pickle that says other sizes than there are values, with its right CRC."""
    entries = entries_of(data)
    name, plain = next(one for one in entries if one[0].endswith("data.pkl"))
    at = plain.index(b"QK\x00")  # behind a storage: where the tensor begins in it
    lied = plain[:at] + b"QJ" + struct.pack("<i", rng.randrange(2**20, 2**31 - 1)) + plain[at + 3 :]
    return archived([(one, lied if one == name else content) for one, content in entries])


def pickled(data, rng, kit):
    """A pickle that runs code: alone, in PyTorch's former format, or inside an archive with the right CRCs."""
    evil, out = Runs(kit.marker, rng.choice(["system", "eval", "exec"])), io.BytesIO()
    way = rng.randrange(4)
    content = {"state_dict": evil, "lit_fed": evil}
    if way == 0:
        pickle.dump(content, out, protocol=rng.choice([2, 4]))
    elif way == 1:
        torch.save(content, out, _use_new_zipfile_serialization=False)
    elif way == 2:
        torch.save(content, out)
    else:
        pickle.dump(content, out, protocol=2)
        entries = entries_of(data)
        return archived([(name, out.getvalue() if name.endswith("data.pkl") else one) for name, one in entries])
    return out.getvalue()


CHECKPOINTS = {
    flipped: 80, cut: 20, zeroed: 10, lengthened: 5, swapped_contents: 10, without_an_entry: 15, lying: 20,
    lying_tensors: 5, pickled: 15,
}  # fmt: skip
CLIENT_FILES = {
    flipped: 50, cut: 15, zeroed: 5, lengthened: 5, swapped_contents: 5, without_an_entry: 5, lying: 10,
    lying_tensors: 5, pickled: 5,
}  # fmt: skip
SWAPPED_FILES = 15

LEAST_SEEN = {flipped: 0.6, zeroed: 0.7, lengthened: 0.0, without_an_entry: 0.5, lying: 0.5}
"""Share of damages that are refused; all of the others."""

assert sum(CHECKPOINTS.values()) + sum(CLIENT_FILES.values()) + SWAPPED_FILES == 300


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a small run whose clients keep their states in files."""
    out = tmp_path_factory.mktemp("damaged")
    main(["fit", *ARGUMENTS, "--trainer.default_root_dir", str(out)])
    return folder(out, "Local")


@pytest.fixture
def kit(run, tmp_path):
    return Kit(run, tmp_path)


def in_lists(entry):
    """A nested dict with lists in the place of tensors."""
    if isinstance(entry, dict):
        return {name: in_lists(one) for name, one in entry.items()}
    return entry.tolist() if isinstance(entry, torch.Tensor) else entry


def refusal_of_client_file(kit, place, pair):
    files = ClientFiles(kit.names)
    files.folder = place
    with pytest.raises(ClientError) as refused:
        files.read(*pair)
    return str(refused.value)


def refused_or_whole(read, whole, begin):
    """Whether a file is refused by a message that begins like this; else it has to hold what was written."""
    try:
        content, said = read(), None
    except (ConfigError, ClientError) as error:
        content, said = whole, str(error)
    assert in_lists(content) == in_lists(whole)
    assert said is None or (said.startswith(begin) and "\n" not in said)
    return said is not None


@pytest.mark.parametrize("damage", CHECKPOINTS)
def test_a_damaged_checkpoint_is_refused(damage, kit, tmp_path):
    whole, before, seen = kit.last.read_bytes(), load_checkpoint(kit.last), 0
    for number in range(CHECKPOINTS[damage]):
        path = tmp_path / f"{number}.ckpt"
        path.write_bytes(damage(whole, random.Random(f"checkpoint {damage.__name__} {number}"), kit))
        assert path.read_bytes() != whole
        seen += refused_or_whole(partial(load_checkpoint, path), before, f"--ckpt_path {path} cannot be read: ")
    assert seen >= LEAST_SEEN.get(damage, 1.0) * CHECKPOINTS[damage]
    assert not kit.marker.exists(), "code ran"


@pytest.mark.parametrize("damage", CLIENT_FILES)
def test_a_damaged_client_file_is_refused(damage, kit, tmp_path):
    seen = 0
    for number in range(CLIENT_FILES[damage]):
        rng = random.Random(f"client {damage.__name__} {number}")
        pair = rng.choice(kit.clients)
        whole, files = kit.files[pair].read_bytes(), ClientFiles(kit.names)
        files.folder = kit.files[pair].parent
        before = dict(enumerate(files.read(*pair)))
        files.folder = tmp_path / str(number)
        path = files.folder / kit.files[pair].name
        files.folder.mkdir()
        path.write_bytes(damage(whole, rng, kit))
        assert path.read_bytes() != whole
        begin = f"client {pair[0]}, its kept state: cannot be read from {path}: "
        seen += refused_or_whole(lambda files=files, pair=pair: dict(enumerate(files.read(*pair))), before, begin)
    assert seen >= LEAST_SEEN.get(damage, 1.0) * CLIENT_FILES[damage]
    assert not kit.marker.exists(), "code ran"


def test_every_flipped_bit_of_a_value_is_found_and_its_entry_named(kit, tmp_path):
    whole, path = kit.last.read_bytes(), tmp_path / "last.ckpt"
    with zipfile.ZipFile(kit.last) as archive:
        values = [(one.filename, archive.read(one)) for one in archive.infolist() if "/data/" in one.filename]
    for number, (name, content) in enumerate(one for one in values if len(one[1]) >= 16):
        start = whole.index(content)
        path.write_bytes(whole[:start] + flipped(content, random.Random(number), kit) + whole[start + len(content) :])
        with pytest.raises(ConfigError, match=f"its entry '{name}' does not have the content that was written"):
            load_checkpoint(path)


def test_a_file_in_the_place_of_another_is_refused(kit, tmp_path):
    for number in range(SWAPPED_FILES):
        rng = random.Random(f"swapped {number}")
        pair = rng.choice(kit.clients)
        others = [path for other, path in kit.files.items() if other != pair] + [kit.old, kit.last]
        path = tmp_path / str(number) / kit.files[pair].name
        path.parent.mkdir()
        shutil.copyfile(others[number % len(others)], path)
        said = refusal_of_client_file(kit, path.parent, pair)
        assert said.startswith(f"client {pair[0]}, its kept state: cannot be read from {path}: it holds ")


def test_whole_files_are_read(kit):
    """Or all of the above would be refused for nothing."""
    assert load_checkpoint(kit.last)["global_step"] == 3
    files = ClientFiles(kit.names)
    files.folder = kit.files[kit.clients[0]].parent
    assert all(len(files.read(*pair)) == len(kit.names) for pair in kit.clients)


def test_a_reader_that_never_compares_would_load_most_of_them(kit, tmp_path):
    """What PyTorch does by itself."""
    whole, loaded = kit.last.read_bytes(), 0
    for number in range(40):
        (tmp_path / "one.ckpt").write_bytes(flipped(whole, random.Random(f"checkpoint flipped {number}"), kit))
        try:
            torch.load(tmp_path / "one.ckpt", weights_only=True)
            loaded += 1
        except Exception:
            continue
    assert loaded > 10


# ---------------------------------------------------------------------- the command line
def refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert "Traceback" not in said
    return said


def test_the_checkpoint_before_is_offered_with_its_command(run, tmp_path, capsys):
    own = folder(tmp_path, "Local")
    shutil.copytree(run, own)
    last, previous = own / "checkpoints/last.ckpt", own / "checkpoints/previous.ckpt"
    base = [*ARGUMENTS, "--trainer.default_root_dir", str(tmp_path), "--ckpt_path"]
    good = last.read_bytes()
    last.write_bytes(flipped(good, random.Random(0), None))
    said = refused(["fit", *base, "last"], capsys)
    assert f"--ckpt_path {last} cannot be read: " in said
    assert f"the checkpoint before it, {previous}, is whole" in said
    assert said.splitlines()[-1] == f"  python -m lit_fed fit {' '.join(base)} previous"
    assert refused(["test", *base, str(last)], capsys).endswith(f"{previous}\n")
    with pytest.warns(UserWarning, match=r"last\.ckpt cannot be read .* client files that it may need are kept"):
        main(["fit", *base, "previous"])
    assert load_checkpoint(last)["global_step"] == 3
    assert load_checkpoint(previous)["global_step"] == 2, "the damaged one has not taken its place"
    ours, whole = load_checkpoint(last)["state_dict"], load_checkpoint(run / "checkpoints/last.ckpt")["state_dict"]
    assert all(torch.equal(ours[name], leaf) for name, leaf in whole.items() if name != "store.versions")
    kept = {tuple(one.name.split(".")[:2]) for one in (own / "clients").iterdir()}
    indices = [load_checkpoint(one)["state_dict"]["store.versions"].tolist() for one in (last, previous)]
    assert kept == {(str(one), str(version)) for index in indices for one, version in enumerate(index) if version >= 0}
    last.unlink()
    assert "--ckpt_path previous takes the one before it" in refused(["test", *base, "last"], capsys)
    previous.write_bytes(b"")
    assert f"{previous} cannot be read: its end is missing" in refused(["test", *base, "previous"], capsys)


def test_a_damaged_client_file_ends_a_fit_with_a_message(run, tmp_path, capsys):
    own = folder(tmp_path, "Local")
    shutil.copytree(run, own)
    for path in (own / "clients").glob("*.pt"):
        path.write_bytes(flipped(path.read_bytes(), random.Random(path.name), None))
    given = [*ARGUMENTS, "--trainer.default_root_dir", str(tmp_path), "--trainer.max_epochs", "5"]
    said = refused(["fit", *given, "--ckpt_path", "last"], capsys)
    assert ", its kept state: cannot be read from " in said
    assert str(own / "clients") in said
