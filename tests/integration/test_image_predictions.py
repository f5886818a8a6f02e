"""What a run on folders of images leaves behind: names of files, masks, and a figure of samples."""

import base64

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from quiet import quiet_trainer
from running import folder, run

from lit_fed import FederatedDataModule, FederatedModule
from lit_fed.algorithms import FedAvg, FedEM, Local
from lit_fed.callbacks import sample_pictures as module_of_samples
from lit_fed.callbacks.sample_pictures import sample_pictures
from lit_fed.data import ImageFolder
from lit_fed.wrappers import ClientPrivacy

CLIENTS = ("seen/ann", "seen/bob", "unseen/cy", "later/dan")


def picture(path, value, size=(8, 8)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L", size, int(value)).save(path)


def images(root):
    """Options of images of 8 x 8 grey pixels."""
    return ["--data.dataset", "ImageFolder", "--data.dataset.root", str(root), "--data.dataset.image_size", "8",
            "--data.dataset.channels", "1", "--trainer.accelerator", "cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Dark and light images of four clients, those of two larger than the others."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for client in CLIENTS:
        place = root / ("new/dan" if client == "later/dan" else f"all/{client}")
        for number in range(10):
            name, low = ("light", 150) if number % 2 else ("dark", 0)
            folder = place if client == "later/dan" and number > 7 else place / name
            picture(folder / f"{number}.png", random.integers(low, low + 100), (16, 10) if number == 3 else (8, 8))
    return root


@pytest.fixture(scope="module")
def done(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    fit = ["fit", *images(root / "all"), "--trainer.max_epochs", "2", "--model.network", "Linear", "--report"]
    return run([*fit, "--trainer.default_root_dir", str(out)]), folder(out, "FedEM")


def test_predictions_name_their_files(done, root):
    _, where = done
    for population, clients in (("seen", {"ann", "bob"}), ("unseen", {"cy"})):
        for split in ("train", "test"):
            table = where / f"{population}-{split}.csv"
            said = run(["predict", "--ckpt_path", str(where / "checkpoints/last.ckpt"), "--population", population,
                        "--split", split, "--output", str(table)])  # fmt: skip
            assert said.returncode == 0, said.stderr
            found = pd.read_csv(table)
            assert found.columns[:4].tolist() == ["client", "client_id", "sample", "file"]
            assert set(found["client"]) == clients
            for row in found.itertuples():
                assert (root / "all" / row.file).is_file()
                assert row.file.split("/")[:3] == [population, row.client, row.label]
    each = [pd.read_csv(where / f"seen-{split}.csv")["file"] for split in ("train", "test")]
    assert sorted(pd.concat(each)) == sorted(
        one.relative_to(root / "all").as_posix() for one in root.glob("all/seen/*/*/*")
    )


def test_later_clients_name_their_files(done, root, tmp_path):
    where = done[1] / "checkpoints/last.ckpt"
    said = run(
        ["personalize", "--ckpt_path", str(where), "--clients", str(root / "new"), "--output", str(tmp_path / "o")]
    )
    assert said.returncode == 0, said.stderr
    assert pd.read_csv(tmp_path / "o/predictions.csv")["file"].tolist() == ["dan/8.png", "dan/9.png"]


def test_a_later_client_may_have_images_without_a_class_alone(done, root, tmp_path):
    where = done[1] / "checkpoints/last.ckpt"
    for number in (3, 4):
        picture(tmp_path / f"new/eve/{number}.png", 40 * number)
    said = run(
        ["personalize", "--ckpt_path", str(where), "--clients", str(tmp_path / "new"), "--output", str(tmp_path / "o")]
    )
    assert said.returncode == 0, said.stderr
    assert "have no labelled samples and are served by the mean mixture of the seen clients" in said.stdout
    table = pd.read_csv(tmp_path / "o/predictions.csv")
    assert table["file"].tolist() == ["eve/3.png", "eve/4.png"]
    assert table["prediction"].isin(["dark", "light"]).all()


def test_an_excluded_client_leaves_the_files_of_the_others(root):
    data = FederatedDataModule(
        ImageFolder(str(root / "all"), image_size=8, channels=1), exclude_clients="ann", num_clients=None
    )
    data.setup()
    named = [data.seen.files[one] for rows in data.seen.rows for one in rows.tolist()]
    assert sorted(named) == sorted(one.relative_to(root / "all").as_posix() for one in root.glob("all/seen/bob/*/*"))


def test_scaled_pictures_are_counted_once(done):
    said = done[0].stderr
    wanted = "3 of 30 pictures are scaled to 8 x 8 pixels, from 16 x 10; the training's --data.dataset.image_size"
    assert said.count("are scaled") == said.count(wanted) == 1


def test_several_sizes_are_named_from_the_smallest_to_the_largest(tmp_path, capsys):
    for number, size in enumerate(((9, 9), (8, 8), (4, 9), (30, 20))):
        picture(tmp_path / f"ann/{'ab'[number % 2]}/{number}.png", 0, size)
    ImageFolder(str(tmp_path), image_size=8).load()
    assert (
        "3 of 4 pictures are scaled to 8 x 8 pixels, from 4 x 9 … 30 x 20; the training's "
        "--data.dataset.image_size sets the size\n" in capsys.readouterr().err
    )


# ---------------------------------------------------------------------- masks
def test_masks_are_named_by_images(tmp_path):
    for number in range(5):
        for kind, value in (("images", 200 * (number % 2)), ("masks", number % 2)):
            picture(tmp_path / f"data/ann/{kind}/{number}.png", value)
            if (kind, number) != ("masks", 4):
                picture(tmp_path / f"new/bob/{kind}/{number}.png", value)
    model = ["--model.network", "UNet", "--model.network.channels", "[2, 2]", "--model.algorithm", "FedAvg"]
    done = run(["fit", *images(tmp_path / "data"), "--data.dataset.layout", "masks", *model, "--trainer.max_epochs",
                "1", "--trainer.default_root_dir", str(tmp_path)])  # fmt: skip
    assert done.returncode == 0, done.stderr
    where = folder(tmp_path, "FedAvg")
    for command in (
        ["predict"],
        ["personalize", "--clients", str(tmp_path / "new"), "--output", str(tmp_path / "out")],
    ):
        done = run([*command, "--ckpt_path", str(where / "checkpoints/last.ckpt")])
        assert done.returncode == 0, done.stderr
    for table, client, kept in (
        (where / "predictions.csv", "ann", "data"),
        (tmp_path / "out/predictions.csv", "bob", "new"),
    ):
        (row,) = pd.read_csv(table).to_dict("records")
        assert row["file"].startswith(f"{client}/images/")
        assert (tmp_path / kept / row["file"]).is_file()
        stem = row["file"].removeprefix(f"{client}/images/")
        assert row["prediction"] == f"predictions_masks/{client}/{stem}"
        with Image.open(table.parent / row["prediction"]) as mask:
            assert (mask.mode, mask.size) == ("L", (8, 8))
            assert set(np.unique(np.asarray(mask))) <= {0, 1}
        assert (row["accuracy"] != row["accuracy"]) == (client == "bob")  # has no mask


# ---------------------------------------------------------------------- a figure of samples
@pytest.mark.usefixtures("rendered")
def test_the_figure_is_in_the_folder_and_in_the_report(tmp_path):
    fit = ["fit", "--data.num_clients", "3", "--trainer.max_epochs", "1", "--trainer.accelerator", "cpu", "--report"]
    assert run([*fit, "--trainer.default_root_dir", str(tmp_path)]).returncode == 0
    where = folder(tmp_path, "FedEM")
    drawn = (where / "plots/test_samples.png").read_bytes()
    assert matplotlib.image.imread(where / "plots/test_samples.png").std() > 0.1
    assert base64.b64encode(drawn).decode() in (where / "report.html").read_text()
    for options, there in (([], True), (["--anonymous"], False)):
        assert run(["report", str(where), "--output", str(tmp_path / "r.html"), *options]).returncode == 0
        assert (base64.b64encode(drawn).decode() in (tmp_path / "r.html").read_text()) == there


def shown(monkeypatch, module, data):
    """Inputs and table that the figure of a run is made of."""
    found = []
    monkeypatch.setattr(module_of_samples, "samples_figure", lambda *given: found.append(given))
    sample_pictures(module, data)
    return found


def fitted(algorithm, *, num_clients=4, sampling="uniform", **settings):
    trainer, module = quiet_trainer(1), FederatedModule(algorithm, **settings)
    data = FederatedDataModule(num_clients=num_clients, client_sampling=sampling)
    trainer.fit(module, datamodule=data)
    return trainer, module, data


@pytest.mark.parametrize("algorithm", [FedAvg(), FedEM(), Local()], ids=lambda one: type(one).__name__)
def test_samples_are_the_first_ones_of_the_first_clients(monkeypatch, algorithm):
    trainer, module, data = fitted(algorithm)
    ((images, table, num_classes),) = shown(monkeypatch, module, data)
    assert table["client"].tolist() == ["0", "0", "1", "1", "2", "3"]
    assert num_classes == 10
    every = trainer.predict(module, datamodule=data)
    first = every[every["sample"] < every["client"].map({"0": 2, "1": 2, "2": 1, "3": 1})].reset_index(drop=True)
    pd.testing.assert_frame_equal(table, first, rtol=1e-5)
    wanted = [
        data.seen.test.client(int(one)).x[place] for one, place in zip(table["client"], table["sample"], strict=True)
    ]
    np.testing.assert_array_equal(images, np.stack(wanted))


def test_of_many_clients_each_shows_one_sample(monkeypatch):
    _, module, data = fitted(FedAvg(), num_clients=9)
    ((_, table, _),) = shown(monkeypatch, module, data)
    assert table["client"].tolist() == ["0", "1", "2", "3", "4", "5"]
    assert not table["sample"].any()


def test_private_runs_show_no_sample(monkeypatch):
    privacy = ClientPrivacy(clip_norm=1.0, noise_multiplier=1.0, delta=1e-3)
    _, module, data = fitted(FedAvg(), sampling="poisson", privacy=privacy)
    assert not shown(monkeypatch, module, data)


def test_samples_of_thresholds_name_their_files_beside_unseen_clients(root, tmp_path):
    """The clients are selected from those that were read: the origin of each split is, too."""
    for client in ("ann", "bob"):
        for number in range(12):
            picture(tmp_path / f"data/seen/{client}/{'ab'[number % 2]}/{number}.png", 20 * number)
            picture(tmp_path / f"data/unseen/cy/{'ab'[number % 2]}/{number}.png", 20 * number)
    fit = ["fit", *images(tmp_path / "data"), "--model.algorithm", "FedAvg", "--model.network", "Linear",
           "--data.calibration_fraction", "0.3", "--model.conformal", "0.6", "--trainer.max_epochs", "1",
           "--trainer.default_root_dir", str(tmp_path)]  # fmt: skip
    assert run(fit).returncode == 0
    last = str(folder(tmp_path, "FedAvg") / "checkpoints/last.ckpt")
    done = run(["predict", "--ckpt_path", last, "--split", "calibration", "--output", str(tmp_path / "p.csv")])
    assert done.returncode == 0, done.stderr
    table = pd.read_csv(tmp_path / "p.csv")
    assert table["file"].str.startswith("seen/").all()
    assert table["file"].is_unique
