"""A client that is excluded is as if the data had never held it."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from running import folder
from test_predict import CPU

from lit_fed import FederatedDataModule
from lit_fed.cli import main
from lit_fed.data import ClientFolder, Digits, FeatureBlocks, Table
from lit_fed.errors import ConfigError


def rows(seed=0):
    """A table of four clients, with a text column that has a value of cy's alone."""
    rng = np.random.default_rng(seed)
    site = np.repeat(["ann", "bo", "cy", "di"], 30)
    table = pd.DataFrame(rng.normal(size=(120, 2)), columns=["a", "b"]).assign(site=site)
    table["kind"] = rng.choice(["x", "y"], 120)
    table.loc[table["site"] == "cy", "kind"] = "z"
    table.loc[table["site"] == "cy", "a"] += 9
    return table.assign(ill=(table["b"] > 0).astype(int))


def from_file(table, path, **settings):
    table.to_csv(path, index=False)
    dataset = Table(path=str(path), client_column="site", label_column="ill")
    data = FederatedDataModule(dataset, val_fraction=0.2, **settings)
    data.setup()
    return data


def in_memory(names, **settings):
    clients = {name: (part[["a", "b"]].to_numpy(), part["ill"].to_numpy()) for name, part in rows().groupby("site")}
    data = FederatedDataModule.from_clients({name: clients[name] for name in names}, **settings)
    data.setup()
    return data


def equal(one, other):
    """Whether two data modules have the same clients, samples, and constants."""
    facts = [each.facts(weighting="samples", seed=0, num_rounds=1).plain() for each in (one, other)]
    assert facts[0].keys() == facts[1].keys()
    assert all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(facts[0].values(), facts[1].values(), strict=True)
    )
    return (one.fingerprint, one.seen.names) == (other.fingerprint, other.seen.names)


def test_a_table_without_a_client_is_one_without_its_rows(tmp_path):
    """Constants and categories of the encoding are those of the others, too."""
    table = rows()
    left = from_file(table, tmp_path / "all.csv", exclude_clients="cy")
    assert equal(left, from_file(table[table["site"] != "cy"], tmp_path / "less.csv"))
    assert [one.categories for one in left.seen.columns.features] == [None, None, ("x", "y")]


def test_clients_in_memory():
    left = in_memory(["ann", "bo", "cy", "di"], exclude_clients=("bo", "cy"))
    assert equal(left, in_memory(["ann", "di"]))


def in_files(names, root, **settings):
    (root / "seen").mkdir(parents=True)
    for name, part in rows().groupby("site"):
        if name in names:
            x, y = part[["a", "b"]].to_numpy(), part["ill"].to_numpy()
            np.savez(root / "seen" / f"{name}.npz", x_train=x[:20], y_train=y[:20], x_test=x[20:], y_test=y[20:])
    data = FederatedDataModule(ClientFolder(root=str(root)), val_fraction=0.2, **settings)
    data.setup()
    return data


def test_files_of_clients(tmp_path):
    """Validation samples are drawn as without the client, too."""
    left = in_files(["ann", "bo", "cy", "di"], tmp_path / "all", exclude_clients="bo")
    assert equal(left, in_files(["ann", "cy", "di"], tmp_path / "less"))


def test_parties_with_features_of_the_same_rows_are_not_left_out():
    with pytest.raises(ConfigError, match="samples of FeatureBlocks are not divided by clients here; leave it out"):
        FederatedDataModule(FeatureBlocks(num_parties=4), exclude_clients="2")


def test_a_client_of_a_partition():
    whole, left = (FederatedDataModule(Digits(), num_clients=5, exclude_clients=one) for one in ((), "2"))
    for one in (whole, left):
        one.setup()
    assert left.seen.names == ["0", "1", "3", "4"]
    for position, before in enumerate((0, 1, 3, 4)):
        assert torch.equal(left.seen.train.client(position).x, whole.seen.train.client(before).x)


@pytest.mark.parametrize(
    ("names", "said"),
    [("zoe", "names 'zoe', which is no client of the data"), ("ann, bo, cy, di", "names all clients")],
)
def test_wrong_names(names, said, tmp_path):
    with pytest.raises(ConfigError, match=said):
        from_file(rows(), tmp_path / "all.csv", exclude_clients=names)


def test_a_run_that_starts_from_models_of_the_client_says_so(tmp_path, capsys):
    """Also by way of a run between."""
    rows().to_csv(tmp_path / "all.csv", index=False)
    fit = ["fit", *CPU, "--data.dataset", "Table", "--data.dataset.path", str(tmp_path / "all.csv"),
           "--model.algorithm", "FedAvg", "--data.dataset.client_column", "site", "--data.dataset.label_column", "ill",
           "--data.dataset.ignored_columns", "kind", "--trainer.default_root_dir", str(tmp_path),
           "--trainer.max_epochs", "1"]  # fmt: skip
    main([*fit, "--name", "a"])
    start = tmp_path / "nowhere"
    for name, told in (("b", ["cy"]), ("c", ["cy"])):
        start = folder(tmp_path, "a" if name == "b" else "b") / "checkpoints/last.ckpt"
        capsys.readouterr()
        main([*fit, "--name", name, "--init_from", str(start), "--data.exclude_clients", "cy"])
        assert "the models of --init_from learned from cy, which --data.exclude_clients" in capsys.readouterr().err
        summary = json.loads((folder(tmp_path, name) / "summary.json").read_text())
        assert summary["init_from"]["learned_from_excluded"] == told
    main([*fit, "--name", "d", "--data.exclude_clients", "cy"])
    assert "init_from" not in json.loads((folder(tmp_path, "d") / "summary.json").read_text())
