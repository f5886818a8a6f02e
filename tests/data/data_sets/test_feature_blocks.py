import numpy as np
import pytest
import torch
from combination import refuse
from sklearn.datasets import load_breast_cancer, load_diabetes

from lit_fed.algorithms import FedAvg, SharingADMM
from lit_fed.data import Digits, FeatureBlocks, build_populations, infer_target
from lit_fed.errors import ConfigError


@pytest.mark.parametrize(
    ("table", "loader", "kind"),
    [("diabetes", load_diabetes, "regression"), ("breast_cancer", load_breast_cancer, "binary")],
)
def test_tables(table, loader, kind):
    seen, unseen = build_populations(FeatureBlocks(table, 4))
    whole = loader()
    rows, width = whole.data.shape
    assert unseen is None
    assert infer_target(seen.train.y).kind == kind
    assert len(set(seen.train.sizes.tolist())) == 1
    assert seen.train.num_samples // 4 + seen.test.num_samples == rows
    assert seen.test.num_samples == round(0.2 * rows)
    assert max(seen.test.sizes) - min(seen.test.sizes) <= 1
    joined = sum(seen.train.client(one).x for one in range(4))
    assert joined.shape == (rows - round(0.2 * rows), width)
    np.testing.assert_allclose(joined.mean(0), np.zeros(width), atol=1e-5)
    np.testing.assert_allclose(joined.std(0, correction=0), np.ones(width), atol=1e-5)
    assert sum((seen.train.client(one).x != 0).any(0).int() for one in range(4)).tolist() == [1] * width
    assert all(torch.equal(seen.train.client(one).y, seen.train.client(0).y) for one in range(4))
    # the rows are those of the table: each label stands with the features that it has there
    x, y = torch.cat([joined, seen.test.x]), torch.cat([seen.train.client(0).y, seen.test.y])
    for column in (0, width - 1):
        expected = np.corrcoef(whole.data[:, column], whole.target)[0, 1]
        assert np.corrcoef(x[:, column], y)[0, 1] == pytest.approx(expected, abs=1e-5)


def test_the_split_is_always_the_same():
    one, other = (build_populations(FeatureBlocks(num_parties=n), seed=n)[0] for n in (2, 5))
    assert torch.allclose(one.test.x.sum(0), other.test.x.sum(0), atol=1e-4)
    assert torch.equal(one.train.client(0).y, other.train.client(0).y)


def arrays(rows=6, width=2, test=3, **changes):
    rng = np.random.default_rng(width)
    return {"x_train": rng.normal(size=(rows, width)), "x_test": rng.normal(size=(test, width))} | changes


@pytest.fixture
def root(tmp_path):
    (tmp_path / "parties").mkdir()
    np.savez(tmp_path / "labels.npz", y_train=np.arange(6) % 2, y_test=np.array([0, 1, 1]))
    np.savez(tmp_path / "parties/bank.npz", **arrays())
    np.savez(tmp_path / "parties/shop.npz", **arrays(width=3))
    return tmp_path


def refused(root, *words):
    with pytest.raises(ConfigError) as caught:
        FeatureBlocks(root=str(root)).load()
    for word in words:
        assert str(word) in str(caught.value), caught.value


def test_a_folder_of_parties(root):
    seen, unseen = FeatureBlocks(root=str(root)).load()
    assert unseen is None
    assert seen.names == ["bank", "shop"]
    assert seen.train.sizes.tolist() == [6, 6]
    assert seen.test.sizes.tolist() == [2, 1]
    np.testing.assert_allclose(seen.train.client(0).x[:, :2], arrays()["x_train"], rtol=1e-6)
    np.testing.assert_allclose(seen.train.client(1).x[:, 2:], arrays(width=3)["x_train"], rtol=1e-6)
    assert not seen.train.client(0).x[:, 2:].any()
    assert not seen.train.client(1).x[:, :2].any()
    whole = np.append(arrays()["x_test"], arrays(width=3)["x_test"], 1)
    np.testing.assert_allclose(seen.test.x, whole[[0, 2, 1]], rtol=1e-6)
    assert seen.test.y.tolist() == [0, 1, 1]
    assert (seen.train.x.dtype, seen.train.y.dtype) == (torch.float32, torch.int64)


@pytest.mark.parametrize("changes", [{"rows": 5}, {"test": 2}])
def test_other_numbers_of_rows_are_refused(root, changes):
    np.savez(root / "parties/shop.npz", **arrays(**changes))
    refused(root, "shop.npz", *changes.values(), "labels.npz", "the same rows in the same order")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"x_train": np.zeros(6)}, ["shop.npz", "x_train", "[6]", "a table"]),
        ({"x_test": np.zeros((3, 5))}, ["shop.npz", "x_test", "[3, 5]", "as wide"]),
        ({"x_train": np.full((6, 2), np.nan)}, ["shop.npz", "x_train", "NaN"]),
    ],
)
def test_wrong_features_are_refused(root, changes, words):
    np.savez(root / "parties/shop.npz", **arrays(**changes))
    refused(root, *words)


def test_missing_files_are_named(root):
    refused(root / "nowhere", "nowhere", "no such folder")
    np.savez(root / "parties/shop.npz", x_train=np.zeros((6, 2)))
    refused(root, "shop.npz", "x_test is missing")
    (root / "labels.npz").unlink()
    refused(root, "labels.npz", "y_train and y_test")
    np.savez(root / "labels.npz", y_train=np.zeros(6))
    refused(root, "labels.npz", "y_test is missing")
    np.savez(root / "labels.npz", y_train=np.zeros(6), y_test=np.zeros(3))
    for file in (root / "parties").iterdir():
        file.unlink()
    refused(root, "parties", "no .npz file")
    (root / "parties").rmdir()
    refused(root, "parties", "no such folder")


def test_settings_out_of_range_are_named():
    with pytest.raises(ConfigError, match="table is iris; give diabetes or breast_cancer"):
        FeatureBlocks("iris")
    with pytest.raises(ConfigError, match="num_parties is 0"):
        FeatureBlocks(num_parties=0)
    with pytest.raises(ConfigError, match="num_parties = 11, but diabetes has 10 features"):
        FeatureBlocks(num_parties=11).load()


@pytest.mark.parametrize("name", ["val_fraction", "unseen_fraction"])
def test_parties_are_neither_held_out_nor_given_other_rows(name):
    with pytest.raises(ConfigError, match=rf"{name} = 0\.3: the parties of FeatureBlocks .*; leave {name} at 0"):
        build_populations(FeatureBlocks(), **{name: 0.3})


def test_algorithms_and_data_have_to_fit():
    refuse(SharingADMM(), dataset=("FeatureBlocks", FeatureBlocks.divided_by))
    refuse(FedAvg(), dataset=("Digits", Digits.divided_by))
    with pytest.raises(ConfigError, match="FedAvg needs clients with samples of their own, and FeatureBlocks has"):
        refuse(FedAvg(), dataset=("FeatureBlocks", FeatureBlocks.divided_by))
    with pytest.raises(
        ConfigError, match=r"SharingADMM needs parties that hold .*, and Digits has clients with samples"
    ):
        refuse(SharingADMM(), dataset=("Digits", Digits.divided_by))
