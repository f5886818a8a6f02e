"""Folders of pictures, made up here."""

import os
import shutil
import struct
import zlib

import numpy as np
import pytest
import torch
from federated_round import facts
from PIL import Image

from lit_fed.core.targets import Multiclass
from lit_fed.data import ImageFolder, build_populations
from lit_fed.data.data_sets import image_folder
from lit_fed.data.module import FederatedDataModule
from lit_fed.data.new_clients import NewClients
from lit_fed.data.populations.drawn_clients import DrawnSplit
from lit_fed.errors import ConfigError

CLIENTS = {"anna": {"cat": 6, "dog": 5}, "bela": {"cat": 5}, "cleo": {"dog": 7, "cat": 2}}


def picture(seed, size=(8, 8), mode="RGB"):
    shape = size[::-1] if mode == "L" else (*size[::-1], 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def write(root, tree=CLIENTS):
    """A folder for each dict and a picture for each number, of a number of its own."""
    for name, inside in tree.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        if isinstance(inside, dict):
            write(root / name, inside)
        else:
            for number in range(inside):
                picture(hash_of(root.name, name, number)).save(root / name / f"{number}.png")
    return root


def hash_of(*parts):
    return sum(ord(letter) * 31**place for place, letter in enumerate("/".join(map(str, parts)))) % 2**32


def load(root, **fields):
    return ImageFolder(str(root), **{"image_size": 8} | fields).load()


def refused(root, *words, **fields):
    with pytest.raises(ConfigError) as caught:
        load(root, **fields)
    for word in map(str, words):
        assert word in str(caught.value)


def populations(root, seed=0, unseen_fraction=0.0, **fields):
    return build_populations(
        ImageFolder(str(root), **{"image_size": 8} | fields), unseen_fraction=unseen_fraction, seed=seed
    )


def test_clients_and_classes(tmp_path):
    samples = load(write(tmp_path))
    assert samples.x.shape == (25, 3, 8, 8)
    assert samples.x.dtype == np.uint8
    assert samples.names == ["anna", "bela", "cleo"]
    assert samples.class_names == ("cat", "dog")
    assert samples.owner.tolist() == [0] * 11 + [1] * 5 + [2] * 9
    assert samples.y.tolist() == [0] * 6 + [1] * 5 + [0] * 5 + [0] * 2 + [1] * 7
    expected = np.asarray(picture(hash_of("bela", "cat", 3))).transpose(2, 0, 1)
    np.testing.assert_array_equal(samples.x[11 + 3], expected)


def test_a_partition_divides_classes(tmp_path):
    write(tmp_path, {"cat": 12, "dog": 12})
    samples = load(tmp_path, layout="classes")
    assert (samples.owner, samples.names) == (None, None)
    assert samples.y.tolist() == [0] * 12 + [1] * 12
    seen, _ = build_populations(ImageFolder(str(tmp_path), "classes", 8), num_clients=4)
    assert seen.train.num_clients == 4


def test_seen_and_unseen(tmp_path):
    write(tmp_path, {"seen": {"bela": {"cat": 5}, "cleo": {"dog": 5}}, "unseen": {"anna": {"cat": 5, "dog": 1}}})
    seen, unseen = populations(tmp_path)
    assert (seen.names, unseen.names) == (["bela", "cleo"], ["anna"])
    assert seen.class_names == unseen.class_names == ("cat", "dog")
    assert (seen.train.sizes.tolist(), unseen.train.sizes.tolist()) == ([4, 4], [5])
    assert set(seen.train.client(1).y.tolist()) == {1}
    with pytest.raises(ConfigError, match="has its own unseen clients"):
        populations(tmp_path, unseen_fraction=0.5)
    write(tmp_path, {"unseen": {"bela": {"cat": 1}}})
    refused(tmp_path, "'bela' is both seen and unseen")


def test_a_share_of_the_clients_is_unseen(tmp_path):
    seen, unseen = populations(write(tmp_path), unseen_fraction=0.4)
    assert sorted(seen.names + unseen.names) == ["anna", "bela", "cleo"]
    assert len(unseen.names) == 1


def test_numbers_are_classes_by_number(tmp_path):
    write(tmp_path, {"10": 1, "9": 1, "0": 1})
    assert load(tmp_path, layout="classes").class_names == ("0", "9", "10")
    chosen = load(tmp_path, layout="classes", classes=("9", "10", "0", "7"))
    assert chosen.class_names == ("9", "10", "0", "7")
    assert chosen.y.tolist() == [2, 1, 0]


def test_pictures_of_all_kinds(tmp_path):
    """Sizes, grey and colour, palettes, transparency, JPEG and a turned one all become arrays of one shape."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    picture(0).save(tmp_path / "a/0.png")
    picture(1, mode="L").save(tmp_path / "a/1.PNG", "png")
    picture(2).convert("P").save(tmp_path / "a/2.png", transparency=b"\x00\x80")
    picture(3).convert("RGBA").save(tmp_path / "a/3.png")
    picture(4).convert("1").save(tmp_path / "a/4.png")
    picture(5, (40, 20)).save(tmp_path / "b/5.jpg")
    sideways = Image.fromarray(np.repeat(np.uint8([[0, 255]]), 8, 0).repeat(4, 1))  # black left of white
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    sideways.save(tmp_path / "b/6.jpeg", exif=exif, quality=100)
    for name in (".DS_Store", "Thumbs.db"):
        (tmp_path / "b" / name).write_text("x")
    colours, grey = (load(tmp_path, layout="classes", channels=channels) for channels in (3, 1))
    assert colours.x.shape == (7, 3, 8, 8)
    assert grey.x.shape == (7, 1, 8, 8)
    np.testing.assert_array_equal(colours.x[1], np.repeat(grey.x[1], 3, 0))
    top, bottom = grey.x[6, 0, :3], grey.x[6, 0, 5:]
    assert int(top.max()) < 20
    assert int(bottom.min()) > 235


def test_a_picture_is_scaled_and_cut_to_its_central_square(tmp_path):
    wide = np.zeros((16, 64), dtype=np.uint8)
    wide[:, 24:40] = 200  # the central square
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.fromarray(wide).save(tmp_path / folder / "x.png")
    assert np.unique(load(tmp_path, layout="classes", channels=1).x[:, :, :, 1:-1]).tolist() == [200]


def test_pixels_become_numbers(tmp_path):
    write(tmp_path)
    plain, _ = populations(tmp_path)
    scaled, _ = populations(tmp_path, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    assert plain.train.x.dtype == torch.float32
    assert 0 <= float(plain.train.x.min()) < 0.1
    assert 0.9 < float(plain.train.x.max()) <= 1
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)))
    torch.testing.assert_close(scaled.train.x, (plain.train.x - mean) / std)
    assert ImageFolder(mean=(0.5,) * 3, std=(1.0,) * 3).normalisation == ((0.5,) * 3, (1.0,) * 3)
    assert ImageFolder().normalisation is None


@pytest.mark.parametrize("cache", [False, True])
def test_beyond_the_budget_clients_are_read_when_needed(tmp_path, cache):
    root, constants = write(tmp_path / "x"), {"mean": (0.5,) * 3, "std": (0.2,) * 3}
    budget = {"memory_gb": 0.0, "cache_dir": str(tmp_path / "cache") if cache else None}
    (held, _), (stored, _) = populations(root, **constants), populations(root, **constants, **budget)
    for one, other in ((held.train, stored.train), (held.test, stored.test)):
        assert isinstance(other, DrawnSplit)
        assert other.x.shape == (0, 3, 8, 8)
        for client_id in range(3):
            assert torch.equal(one.client(client_id).x, other.client(client_id).x)
            assert torch.equal(one.client(client_id).y, other.client(client_id).y)
    assert stored.class_names == ("cat", "dog")


def fingerprint_of(root, **fields):
    data = FederatedDataModule(ImageFolder(str(root), image_size=8, **fields))
    data.setup()
    return data.fingerprint


@pytest.mark.parametrize("memory_gb", [0.0, 1.0])
def test_the_fingerprint_tells_pictures_and_labels_apart(tmp_path, memory_gb):
    root = write(tmp_path)
    before = fingerprint_of(root, memory_gb=memory_gb)
    assert before == fingerprint_of(root, memory_gb=memory_gb)
    (root / "anna/cat/0.png").rename(root / "anna/dog/9.png")
    assert before != fingerprint_of(root, memory_gb=memory_gb)


def test_decoded_pictures_are_kept_until_a_file_changes(tmp_path, monkeypatch):
    root, cache, decoded = write(tmp_path / "x"), tmp_path / "cache", []
    decode = image_folder._decode
    monkeypatch.setattr(image_folder, "_decode", lambda path, **how: decoded.append(path) or decode(path, **how))
    dataset = ImageFolder(str(root), image_size=8, cache_dir=str(cache))
    dataset.prepare()
    first = dataset.load()
    assert len(decoded) == 25
    assert len(list(cache.iterdir())) == 1
    np.testing.assert_array_equal(first.x, load(root).x)
    decoded.clear()
    os.utime(root / "anna/cat/0.png", ns=(1, 1))
    dataset.load()
    assert len(decoded) == 25
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"layout": "folders"}, ("layout is folders", "clients, classes, masks or targets")),
        ({"image_size": 0}, ("image_size is 0",)),
        ({"channels": 2}, ("channels is 2", "1 (grey) or 3")),
        ({"memory_gb": -1}, ("memory_gb is -1",)),
        ({"mean": (0.5,)}, ("mean is (0.5,)", "3 channels")),
        ({"mean": (0.5,) * 3}, ("mean is", "or neither")),
        ({"mean": (0.5,) * 3, "std": (0.2, 0.0, 0.2)}, ("std is", "above 0")),
        ({"classes": ()}, ("classes is ()",)),
        ({"classes": ("a", "a")}, ("each folder once",)),
    ],
)
def test_wrong_fields(tmp_path, fields, words):
    refused(tmp_path, "--data.dataset.", *words, **fields)


def test_wrong_folders(tmp_path):
    refused("", "root is not set")
    refused(tmp_path / "none", tmp_path / "none", "no such folder")
    refused(tmp_path, tmp_path, "no client folder")
    write(tmp_path, {"anna": {}})
    refused(tmp_path, tmp_path, "no image (.png, .jpg, .jpeg)", "ROOT/<client>/<class>/*.png")
    write(tmp_path, {"anna": {"cat": 1}})
    refused(tmp_path, "only one class, 'cat'", "layout (clients)")
    write(tmp_path, {"anna": {"dog": 1}, "bela": {"cat": 0}})
    refused(tmp_path, tmp_path / "bela", "no image of a class")
    write(tmp_path, {"bela": {"cat": 1, "cow": 0}})
    refused(tmp_path, "no image of class ['cow']")
    assert load(tmp_path, classes=("cow", "dog", "cat")).class_names == ("cow", "dog", "cat")
    refused(tmp_path, "['cow'] is not in the classes dog, cat", classes=("dog", "cat"))
    write(tmp_path, {"bela": {"cow": 1, "Cow": 1}})


def test_classes_that_differ_in_case(tmp_path, capsys):
    write(tmp_path, {"anna": {"Cow": 5, "cow": 5, "dog": 5}})
    populations(tmp_path)
    assert "classes 'Cow' and 'cow' differ only in case" in capsys.readouterr().err


def test_pictures_drawn_in_transparency_are_refused(tmp_path):
    """Of one client alone, a line names it."""
    write(tmp_path)
    for file in tmp_path.rglob("*.png"):
        drawn = Image.new("RGBA", (8, 8))
        drawn.putalpha(Image.open(file).convert("L"))
        drawn.save(file)
    with pytest.raises(ConfigError, match=r"all \d+ training inputs are equal.* drawn in their transparency alone"):
        populations(tmp_path)


def test_masks_beyond_memory_are_numbered_by_the_user(tmp_path):
    for number in range(4):
        for folder in ("images", "masks"):
            (tmp_path / "anna" / folder).mkdir(parents=True, exist_ok=True)
        picture(number).save(tmp_path / f"anna/images/{number}.png")
        mask = np.full((8, 8), 255, np.uint8)
        mask[:number] = 0
        Image.fromarray(mask).save(tmp_path / f"anna/masks/{number}.png")
    data = FederatedDataModule(ImageFolder(str(tmp_path), "masks", 8, memory_gb=0.0))
    with pytest.raises(ConfigError, match="masks hold the values 0, 255, which are not the classes 0, 1, 2"):
        data.setup()
    data = FederatedDataModule(ImageFolder(str(tmp_path), "masks", 8), test_fraction=0)
    data.setup()
    assert data.seen.train.y.sum() == (8 + 7 + 6 + 5) * 8


def test_another_layout_is_told(tmp_path):
    write(tmp_path)
    refused(tmp_path, tmp_path / "anna/cat", "a folder where images are expected", "layout clients", layout="classes")
    refused(tmp_path / "anna", tmp_path / "anna/cat/0.png", "layout classes")
    (tmp_path / "notes.txt").write_text("x")
    refused(tmp_path, tmp_path / "notes.txt", "a file where a folder is expected", "move it away")
    (tmp_path / "notes.txt").rename(tmp_path / "anna/cat/notes.txt")
    refused(tmp_path, tmp_path / "anna/cat/notes.txt", "not an image by its name", ".jpeg")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_header_that_announces_more_pixels_than_there_are(tmp_path):
    write(tmp_path)
    path = tmp_path / "bela/cat/0.png"
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 13_000, 13_000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    refused(tmp_path, path, "169,000,000 pixels are announced", "134,217,728")


def test_pictures_that_cannot_be_read(tmp_path):
    write(tmp_path, {"a": 1, "b": 1})
    broken = tmp_path / "a/1.png"
    for content in (b"", b"text", (tmp_path / "a/0.png").read_bytes()[:90]):
        broken.write_bytes(content)
        refused(tmp_path, broken, "cannot be read as an image", "replace or remove", layout="classes")
    Image.fromarray(np.full((8, 8), 60000, dtype=np.uint16)).save(broken)
    refused(tmp_path, broken, "more than 8 bits", layout="classes")
    broken.unlink()
    broken.symlink_to(tmp_path / "gone")
    refused(tmp_path, broken, "a broken link", layout="classes")


def test_no_room_for_the_file(tmp_path, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(image_folder.tempfile, "TemporaryFile", full)
    refused(write(tmp_path), "No space left on device", "TMPDIR", "cache_dir", memory_gb=0.0)
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "anna", tmp_path / "file", "cannot be made", cache_dir=str(tmp_path / "file"), layout="classes")


def newcomers(root, shape=(3, 8, 8), names=("cat", "cow", "dog")):
    return NewClients(str(root), facts(Multiclass(3), shape)._replace(class_names=names)).unseen


def test_clients_who_come_later(tmp_path):
    write(tmp_path, {"dora": {"dog": 3, "cat": 2}, "emil": {"cow": 1}})
    picture(1, (20, 20)).save(tmp_path / "dora/b.png")
    picture(2).save(tmp_path / "dora/a.png")
    (tmp_path / "notes.txt").write_text("x")
    unseen = newcomers(tmp_path)
    assert (unseen.names, unseen.train.sizes.tolist(), unseen.test.sizes.tolist()) == (["dora", "emil"], [5, 1], [2, 0])
    assert (unseen.train.x.shape[1:], unseen.train.y.tolist()) == ((3, 8, 8), [0, 0, 2, 2, 2, 1])
    np.testing.assert_allclose(unseen.test.x[0] * 255, np.asarray(picture(2)).transpose(2, 0, 1), rtol=1e-6)


def test_later_clients_without_a_class(tmp_path):
    """All of their images are predicted, beside clients with classes and alone."""
    write(tmp_path, {"dora": 3, "emil": {"cow": 2}})
    unseen = newcomers(tmp_path)
    assert (unseen.train.sizes.tolist(), unseen.test.sizes.tolist()) == ([0, 2], [3, 0])
    (tmp_path / "emil").rename(tmp_path.with_name("emil"))
    unseen = newcomers(tmp_path)
    assert (unseen.train.sizes.tolist(), unseen.test.sizes.tolist()) == ([0], [3])
    assert unseen.test.x.shape == (3, 3, 8, 8)


def test_an_image_of_no_client_is_refused(tmp_path):
    write(tmp_path, {"emil": {"cow": 2}})
    for root, name in ((tmp_path, "0.PNG"), (tmp_path / "emil/cow", "0.png")):
        picture(1).save(root / name)
        with pytest.raises(ConfigError, match=rf"{root / name}: an image that belongs to no client; move it into"):
            newcomers(root)


@pytest.mark.parametrize(
    ("tree", "known", "words"),
    [
        ({"dora": {"cta": 1}}, {}, ("['cta'] is not in the classes cat, cow, dog", "rename, or remove the folder")),
        ({"dora": {"cat": 0}, "emil": {"cow": 1}}, {}, ("dora", "no image of a class", "cat/*.png")),
        ({"dora": {"cat": 1}}, {"names": None}, ("classes without names", ".npz")),
        ({"dora": {"cat": 1}}, {"shape": (64,)}, ("inputs of shape [64]", ".npz")),
    ],
)
def test_wrong_clients_who_come_later(tmp_path, tree, known, words):
    with pytest.raises(ConfigError) as caught:
        newcomers(write(tmp_path, tree), **known)
    for word in words:
        assert word in str(caught.value)


# ---------------------------------------------------------------------- masks and targets beside images
SIZE = (12, 8)  # width, height


def write_masks(root, clients=("ann", "bob"), num=5):
    """Pictures of 50 · class in both formats, with masks in two modes."""
    for client in clients:
        for folder in ("images", "masks"):
            (root / client / folder).mkdir(parents=True)
        for number in range(num):
            classes = np.random.default_rng(hash_of(client, number)).integers(0, 3, SIZE[::-1], dtype=np.uint8)
            mask = Image.fromarray(classes)
            if number % 2:
                mask.putpalette([9, 9, 9, 200, 0, 0, 0, 200, 0])
            mask.save(root / client / "masks" / f"{number}.png")
            Image.fromarray(50 * classes).save(root / client / "images" / f"{number}.png")
    return root


def test_masks_beside_images(tmp_path):
    write_masks(tmp_path / "seen")
    write_masks(tmp_path / "unseen", ["cid"])
    samples = load(tmp_path, layout="masks", channels=1)
    assert (samples.x.shape, samples.y.shape) == ((15, 1, 8, 8), (15, 8, 8))
    np.testing.assert_array_equal(samples.x[:, 0], 50 * samples.y)
    assert (samples.names, samples.unseen) == (["ann", "bob", "cid"], ("cid",))
    assert samples.owner.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert set(np.unique(load(tmp_path, layout="masks", channels=1, image_size=5).y)) == {0, 1, 2}
    both = []
    for memory_gb in (4.0, 0.0):
        fields = {"layout": "masks", "image_size": 8, "memory_gb": memory_gb, "classes": "sky, sea, ship"}
        data = FederatedDataModule(ImageFolder(str(tmp_path), **fields))
        data.setup()
        assert (data.target.num_classes, data.label_shape) == (3, (8, 8))
        both.append(data.seen.train)
    assert isinstance(both[1], DrawnSplit)
    assert torch.equal(both[1].client(1).y, both[0].client(1).y)


def test_clients_who_come_later_with_masks(tmp_path):
    """Images with a mask are adapted on, the others are predicted."""
    write_masks(tmp_path / "seen")
    data = FederatedDataModule(ImageFolder(str(tmp_path / "seen"), layout="masks", channels=1, image_size=8))
    data.setup()
    facts = data.facts(weighting="samples", seed=0, num_rounds=1)
    later = write_masks(tmp_path / "later", ["dora"])
    (later / "dora/masks/4.png").unlink()
    population = NewClients(str(later), facts).unseen
    assert (population.train.x.shape, population.train.y.shape) == ((4, 1, 8, 8), (4, 64))
    assert torch.equal((population.train.x * 255 / 50).round().long().flatten(1), population.train.y)
    assert population.test.num_samples == 1
    (later / "dora/images/0.png").unlink()
    with pytest.raises(ConfigError, match=r"masks/0.png: no image of this name in images"):
        NewClients(str(later), facts)
    (later / "dora/masks").rename(later / "dora/labels")
    with pytest.raises(ConfigError, match="dora: no folder masks; layout masks reads ROOT/<client>/images"):
        NewClients(str(later), facts)
    shutil.rmtree(later / "dora/labels")
    alone = NewClients(str(later), facts).unseen
    (later / "dora/masks").mkdir()
    empty = NewClients(str(later), facts).unseen
    assert alone.train.num_samples == empty.train.num_samples == 0
    assert alone.test.num_samples == 4
    assert torch.equal(alone.test.x, empty.test.x)


def test_a_mask_turns_and_scales_with_its_photograph(tmp_path):
    write_masks(tmp_path, ["ann"], 1)
    classes = np.repeat(np.uint8([[0], [1]]), 8, 0).repeat(16, 1)  # as it is seen: one above the other
    Image.fromarray(classes).save(tmp_path / "ann/masks/0.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # stored sideways
    Image.fromarray(np.rot90(255 * classes)).save(tmp_path / "ann/images/0.jpg", exif=exif, quality=100)
    (tmp_path / "ann/images/0.png").unlink()
    samples = load(tmp_path, layout="masks", channels=1)
    np.testing.assert_array_equal(samples.x[0, 0] > 127, samples.y[0] == 1)


def wrong_mask(root, mask, name="1.png"):
    mask.save(root / "ann/masks" / name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda root: (root / "ann/masks/1.png").unlink(), ["ann/images/1.png", "without a mask", "add it"]),
        (lambda root: (root / "ann/images/1.png").unlink(), ["ann/masks/1.png", "no image of this name"]),
        (lambda root: wrong_mask(root, picture(0, SIZE)), ["ann/masks/1.png", "mode RGB", "one channel of 8 bits"]),
        (lambda root: wrong_mask(root, picture(0, (8, 8), "L")), ["1.png: has 8 x 8 pixels", "has 12 x 8"]),
        (lambda root: wrong_mask(root, picture(0, SIZE, "L"), "1.jpg"), ["ann/masks/1.jpg", "has to be a .png"]),
        (lambda root: picture(0, SIZE).save(root / "ann/images/1.jpg"), ["the same mask, 1.png", "rename one"]),
        (lambda root: (root / "ann/masks/1.png").write_bytes(b"x"), ["1.png: cannot be read as a mask"]),
        (lambda root: (root / "ann/masks").rename(root / "ann/mask"), ["ann: no folder masks", "layout masks reads"]),
    ],
)
def test_masks_that_do_not_fit_are_named(tmp_path, change, words):
    change(write_masks(tmp_path))
    refused(tmp_path, *words, layout="masks")


def test_folders_of_masks_are_no_classes(tmp_path):
    refused(write_masks(tmp_path), "would be classes", "--data.dataset.layout masks")


def write_targets(root, lines=("file,weight", *(f"{number}.png,{number}.5" for number in range(5)))):
    for client in ("ann", "bob"):
        (root / client / "images").mkdir(parents=True, exist_ok=True)
        for number in range(5):
            picture(number).save(root / client / "images" / f"{number}.png")
        (root / client / "targets.csv").write_text("\n".join(lines) + "\n")
    return root


def test_numbers_from_a_table(tmp_path):
    samples = load(write_targets(tmp_path), layout="targets")
    assert (samples.x.shape, samples.y.dtype, samples.y.tolist()) == (
        (10, 3, 8, 8),
        np.float32,
        [0.5, 1.5, 2.5, 3.5, 4.5] * 2,
    )
    rows = [f"{number}.png,{number % 2},-1" for number in (4, 3, 2, 1, 0)]  # in any order
    write_targets(tmp_path, ["file,a,b", *rows])
    y = load(tmp_path, layout="targets", labels="multilabel").y
    assert (y.dtype, y.tolist()) == (np.int64, [[number % 2, -1] for number in range(5)] * 2)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["file,weight", "0.png,1", "2.png,3", "4.png,1"], ["ann/images/1.png", "bob/images/3.png", "without a row"]),
        (["file,weight", *(f"{number}.png,1" for number in range(6))], ["5.png", "there is no such image"]),
        (["0.png,1", "1.png,2"], ["the first line is '0.png,1'", "file,weight"]),
        (["file,weight", "0.png,1", "0.png,2"], ["row 2, column 'file': '0.png' is named a second time"]),
        (
            ["file,weight", *(f"{number}.png,heavy" for number in range(5))],
            ["row 1, column 'weight': 'heavy' is not a number"],
        ),
        (["file,weight", *(f"{number}.png" for number in range(5))], ["row 1, column 'weight': no value"]),
    ],
)
def test_tables_that_do_not_fit_are_named(tmp_path, lines, words):
    refused(write_targets(tmp_path, lines), *words, "targets.csv", layout="targets")


def test_a_table_for_each_client_alike(tmp_path):
    write_targets(tmp_path)
    (tmp_path / "bob/targets.csv").write_text("file,height\n" + "".join(f"{number}.png,1\n" for number in range(5)))
    refused(tmp_path, "bob/targets.csv: its columns differ from those of", layout="targets")
    (tmp_path / "bob/targets.csv").unlink()
    refused(tmp_path, "bob/targets.csv", "save a row for each image", layout="targets")
    refused(tmp_path, "targets.csv: a file where a folder is expected", "layout targets")
