"""The command that shows a partition before anything is trained."""

import re
import sys

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import yaml

import lit_fed.cli
from lit_fed.cli import main
from lit_fed.command_line.partition import partition_parser, partition_table, print_partition
from lit_fed.data import Digits, Dirichlet, LabelGroups, Sine, Synthetic
from lit_fed.data.module import FederatedDataModule
from lit_fed.pictures.partition import _figure

pytestmark = pytest.mark.usefixtures("rendered")

SPLITS = ["num_train", "num_val", "num_test"]
LABELS = [f"label_{label}" for label in range(10)]


def prepared(*arguments, **options):
    data = FederatedDataModule(*arguments, **options)
    data.setup()
    return data


def made(folder):
    """The table and the picture of a run of the command."""
    assert sorted(path.name for path in folder.iterdir()) == ["partition.csv", "partition.png"]
    picture = matplotlib.image.imread(folder / "partition.png")
    assert np.ptp(picture[..., :3]) == 1
    return pd.read_csv(folder / "partition.csv"), picture


def refused(capsys, tmp_path, *arguments):
    """What the command line says; nothing may be written."""
    with pytest.raises(SystemExit) as stopped:
        main(["partition", "--output", str(tmp_path / "out"), *arguments])
    assert stopped.value.code == 2
    assert not list(tmp_path.rglob("partition.*"))
    said = capsys.readouterr()
    assert not said.out
    return said.err


def test_table_says_what_the_clients_have():
    data = prepared(Digits(), Dirichlet(0.4), 12, unseen_fraction=0.25, val_fraction=0.1, seed=3)
    table = partition_table(data)
    assert table.columns.tolist() == ["client", "client_id", "population", *SPLITS, *LABELS]
    assert table["population"].tolist() == ["seen"] * 9 + ["unseen"] * 3
    assert table["client"].tolist() == data.seen.names + data.unseen.names
    assert table["client_id"].tolist() == list(range(12))
    for client, row in table.iterrows():
        population = data.seen if client < 9 else data.unseen
        splits = [one.client(client) for one in (population.train, population.val, population.test)]
        assert row[SPLITS].tolist() == [len(one.y) for one in splits]
        labels = np.concatenate([one.y.numpy() for one in splits])
        assert row[LABELS].tolist() == [(labels == label).sum() for label in range(10)]
    assert table[LABELS].sum().tolist() == np.bincount(Digits().load().y).tolist()


def test_masks_with_pixels_to_ignore_need_the_target_that_the_message_names(capsys, tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "seen").mkdir()
    for client in "ab":
        x, y = rng.normal(size=(4, 1, 6, 6)).astype(np.float32), rng.integers(2, size=(4, 6, 6))
        y[:, 0, 0] = 255
        np.savez(tmp_path / "seen" / f"{client}.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    data = ["--data.dataset", "ClientFolder", "--data.dataset.root", str(tmp_path)]
    advice = refused(capsys, tmp_path, *data).partition("do not count ")[2].split()
    main(["partition", "--output", str(tmp_path / "by_arguments"), *data, *advice])
    (tmp_path / "run.yaml").write_text(
        yaml.safe_dump({"model": {"target": {"class_path": "Segmentation", "init_args": {"ignore_index": 255}}}})
    )
    main(["partition", "--output", str(tmp_path / "by_file"), "-c", str(tmp_path / "run.yaml"), *data])
    tables = [pd.read_csv(tmp_path / folder / "partition.csv") for folder in ("by_arguments", "by_file")]
    assert tables[0].equals(tables[1])
    assert tables[0]["num_train"].tolist() == [4, 4]


def test_groups_are_in_the_table():
    table = partition_table(prepared(Digits(), LabelGroups(2), 10, unseen_fraction=0.3))
    assert table["group"].tolist() == [client % 2 for client in table["client"].astype(int)]


@pytest.mark.parametrize("dataset", [Sine(), Synthetic(num_clients=50, on_demand=True, variant="corrected")])
def test_without_classes_in_memory_there_are_sizes_alone(dataset):
    table = partition_table(prepared(dataset))
    assert not [column for column in table if column.startswith("label_")]
    assert (table["num_train"] > 0).all()


def test_printed_numbers(capsys):
    table = pd.DataFrame(
        {
            "client": list("abcd"), "population": ["seen", "seen", "seen", "unseen"], "group": [0, 1, 1, 1],
            "num_train": [4, 1000, 8, 3], "num_val": 0, "num_test": [1, 2, 3, 9],
            "label_0": [5, 0, 1, 0], "label_1": [0, 2, 10, 12],
        }
    )  # fmt: skip
    print_partition(table, "Some data")
    printed = capsys.readouterr().out
    assert "Some data" in printed
    cells = [[one.strip() for one in line.split("│")[1:-1]] for line in printed.splitlines() if "seen" in line]
    assert cells == [
        ["seen", "3", "4 / 8 / 1,000", "0 / 0 / 0", "1 / 2 / 3", "1 / 1 / 2", "2"],
        ["unseen", "1", "3 / 3 / 3", "0 / 0 / 0", "9 / 9 / 9", "1 / 1 / 1", "1"],
    ]


def test_picture_shows_shares_by_group_with_unseen_clients_last():
    table = partition_table(prepared(Digits(), LabelGroups(2), 10, unseen_fraction=0.3, seed=1))
    sizes, shares, bar = _figure(table).axes
    order = table.sort_values(["population", "group"], kind="stable")
    counts = order[LABELS].to_numpy()
    np.testing.assert_allclose(shares.images[0].get_array(), (counts / counts.sum(1, keepdims=True)).T)
    assert [one.get_text() for one in shares.get_xticklabels()] == order["client"].tolist()
    assert [one.get_text() for one in sizes.texts] == ["seen", "unseen"]
    unseen_from = [line.get_xdata()[0] for line in shares.lines if line.get_linestyle() == "--"]
    assert unseen_from == [6.5]
    tops = [patch.get_data().values for patch in sizes.patches]
    assert [one.tolist() for one in tops] == [order["num_train"].tolist(), order[SPLITS].sum(axis=1).tolist()]
    assert bar.get_ylabel() == "share of a client's samples"


@pytest.mark.parametrize("num_labels", [0, 100])
def test_picture_of_many_clients_has_no_names(num_labels, tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"client": "a rather long name", "population": "seen", "num_train": rng.permutation(500)})
    labels = pd.DataFrame(rng.integers(1, 9, (500, num_labels))).add_prefix("label_")
    table = pd.concat([table.assign(num_val=0, num_test=1), labels], axis=1)
    figure = _figure(table)
    figure.savefig(tmp_path / "picture.png")
    lowest = figure.axes[1 if num_labels else 0]
    assert not lowest.get_xticklabels()
    assert lowest.get_xlabel() == ("500 clients" if num_labels else "500 clients, ordered by size")
    shown = figure.axes[0].patches[0].get_data().values.tolist()
    assert shown == (table["num_train"].tolist() if num_labels else list(range(500)))
    if num_labels:
        assert len(lowest.get_yticks()) < 20


def test_command_with_arguments_alone(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lit_fed.cli, "FederatedCLI", None)  # no trainer, no model
    main(["partition", "--data.partition", "Dirichlet", "--data.partition.alpha", "0.4", "--data.num_clients", "30"])
    table, picture = made(tmp_path / "partition")
    assert len(table) == 30
    assert picture.shape[1] > picture.shape[0] > 300
    printed = capsys.readouterr().out
    assert "Digits, Dirichlet(alpha=0.4" in printed
    assert "results: partition" in printed


def test_command_with_the_configuration_of_a_run(tmp_path, capsys):
    config = tmp_path / "run.yaml"
    inside = {"class_path": "Dirichlet", "init_args": {"alpha": 100.0}}
    data = {"partition": {"class_path": "LabelGroups", "init_args": {"num_groups": 2, "inside": inside}}}
    run_options = {"seed_everything": 1, "name": "x", "trainer": {"max_epochs": 3}, "model": {"network": "Nonsense"}}
    config.write_text(yaml.safe_dump({"data": data | {"num_clients": 10}, **run_options}))
    changed = ["--data.partition.inside.alpha", "0.05"]
    main(["partition", "--config", str(config), *changed, "--output", str(tmp_path / "out")])
    table, _ = made(tmp_path / "out")
    expected = partition_table(prepared(Digits(), LabelGroups(2, Dirichlet(0.05)), 10))
    pd.testing.assert_frame_equal(table.astype({"client": str}), expected)
    assert "LabelGroups(num_groups=2, inside=Dirichlet(alpha=0.05" in capsys.readouterr().out


def test_natural_clients(tmp_path, capsys):
    main(["partition", "--data.dataset", "Sine", "--output", str(tmp_path / "out")])
    table, _ = made(tmp_path / "out")
    assert table.columns.tolist() == ["client", "client_id", "population", *SPLITS]
    assert "Sine, natural clients" in capsys.readouterr().out


def test_groups_inside_are_divided_as_the_command_line_says():
    parser = partition_parser()
    wanted = ["--data.partition", "LabelGroups", "--data.partition.inside", "Dirichlet"]
    made = parser.instantiate(parser.parse_args([*wanted, "--data.partition.inside.alpha", "0.7"])).data
    assert made.partition == LabelGroups(inside=Dirichlet(0.7))


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--data.numclients", "7"], ["numclients"]),
        (["--data.num_clients", "5000"], ["5000", "1797"]),
        (["--data.partition", "Pachinko"], ["hierarchy", "give the coarse label"]),
        (["--data.partition", "Pachinkoo"], ["Pachinkoo", "data.partition", "did you mean Pachinko?"]),
        (["--data.partition", "Halves"], ["Halves", "data.partition", "QuantitySkew", "Rotations"]),
        (["--data.partition", "Rotations", "--data.partition.num_groups", "3"], ["num_groups", "1, 2 or 4"]),
        (["--data.partition", "QuantitySkew", "--data.partition.alpha", "-1"], ["alpha", "-1", "> 0"]),
        (["--data.dataset", "Synthetic", "--data.num_clients", "30"], ["num_clients", "partitions"]),
        (["--config", "no.yaml"], ["no.yaml"]),
        (["--optimizer", "sgd"], ["optimizer"]),
    ],
    ids=lambda value: "_".join(value)[:60] if value[0].startswith("--") else "",
)
def test_wrong_input(capsys, tmp_path, arguments, parts):
    said = refused(capsys, tmp_path, *arguments)
    assert "Traceback" not in said
    for part in parts:
        assert part in said, said


@pytest.mark.parametrize("written", [{"data": {"clients": 7}}, {"dta": {"num_clients": 7}}], ids=str)
def test_unknown_keys_of_a_configuration_are_refused(capsys, tmp_path, written):
    config = tmp_path / "own.yaml"
    config.write_text(yaml.safe_dump(written))
    wrong = "clients" if "data" in written else "dta"
    assert wrong in refused(capsys, tmp_path, "--config", str(config))


def test_a_folder_with_something_in_it_stays_as_it_is(capsys, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "kept.txt").write_text("mine")
    assert f"--output {out} exists and is not empty" in refused(capsys, tmp_path)
    assert [path.name for path in out.iterdir()] == ["kept.txt"]
    (out / "kept.txt").unlink()
    main(["partition", "--output", str(out)])
    made(out)


def test_help(capsys, monkeypatch):
    for arguments, parts in (
        (["--help"], ["partition", "Show how samples are divided over clients"]),
        (["partition", "--help"], ["python -m lit_fed partition", "--data.partition", "--output", "partition.png"]),
    ):
        monkeypatch.setattr(sys, "argv", ["lit_fed", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0
        said = capsys.readouterr().out
        assert all(part in " ".join(said.split()) for part in parts)
    assert set(re.findall(r"--model\S*", said)) == {"--model.target", "--model.target.help"}
    assert "--trainer" not in said


def test_a_configuration_in_front_of_the_command_is_refused(capsys, tmp_path):
    config = tmp_path / "empty.yaml"
    config.write_text("{}")
    with pytest.raises(SystemExit) as stopped:
        main(["--config", str(config), "partition"])
    assert stopped.value.code == 2
    assert "python -m lit_fed partition" in capsys.readouterr().err
