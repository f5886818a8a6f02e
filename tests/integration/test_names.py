"""Names of clients, classes and inputs from a table to predictions, programs and clients that come later."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from lit_fed import FederatedModule, FederatedTrainer, personalize
from lit_fed.cli import main
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

CPU = ["--trainer.accelerator", "cpu"]
COLUMNS = ["--data.dataset.client_column", "who", "--data.dataset.label_column", "kind"]


def frame(clients, seed):
    """Twenty rows of each client, 30 ± 10 years old, of two towns and three kinds."""
    rng = np.random.default_rng(seed)
    who = np.repeat(clients, 20)
    kind = rng.choice(["ant", "bee", "cat"], len(who))
    age = 30 + 10 * rng.normal(size=len(who)) + 20 * (kind == "bee")
    return pd.DataFrame({"who": who, "age": age, "town": rng.choice(["Oslo", "Rome"], len(who)), "kind": kind})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with tables of seen and unseen clients, and a run on them."""
    place = tmp_path_factory.mktemp("table")
    frame(["ann", "bob", "cy"], 0).to_csv(place / "seen.csv", index=False)
    frame(["dan"], 1).to_csv(place / "unseen.csv", index=False)
    main(["fit", *CPU, "--data.dataset", "Table", "--data.dataset.path", str(place / "seen.csv"), *COLUMNS,
          "--data.dataset.unseen_path", str(place / "unseen.csv"), "--trainer.max_epochs", "2", "--name", "run",
          "--trainer.default_root_dir", str(place / "runs")])  # fmt: skip
    return place


@pytest.fixture(scope="module")
def last(place):
    return ["--ckpt_path", str(place / "runs/run/version_0/checkpoints/last.ckpt"), *CPU]


def test_predictions_stand_in_the_run_unless_they_are_told_where(place, last, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    main(["predict", *last, "--population", "unseen"])
    assert list(tmp_path.iterdir()) == []
    table = pd.read_csv(place / "runs/run/version_0/predictions.csv")
    assert table.columns.tolist() == [
        "client", "client_id", "sample", "row", "label", "prediction", "p_ant", "p_bee", "p_cat",
    ]  # fmt: skip
    assert (set(table["client"]), set(table["client_id"])) == ({"dan"}, {3})
    assert set(table["label"]) <= {"ant", "bee", "cat"}
    probabilities = table[["p_ant", "p_bee", "p_cat"]].to_numpy()
    assert table["prediction"].tolist() == np.array(["ant", "bee", "cat"])[probabilities.argmax(1)].tolist()
    main(["predict", *last, "--population", "unseen", "--output", "~/deep/told.csv"])
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "deep/told.csv"), table)


def test_a_table_of_clients_is_served_as_the_run_served_them(place, last, tmp_path):
    """The rows that the run trained on have labels here, and those that it tested have none."""
    data = FederatedDataModule.from_frame(
        pd.concat([pd.read_csv(place / name) for name in ("seen.csv", "unseen.csv")]), client="who", label="kind",
        unseen=["dan"], table={"unknown_categories": "zeros"},
    )  # fmt: skip
    data.setup()
    rows, constants = pd.read_csv(place / "unseen.csv"), data.normalisation
    age = (rows["age"].to_numpy(np.float32) - np.float32(constants.mean[0])) / np.float32(constants.std[0])
    tested = np.isclose(age[:, None], data.unseen.test.x[:, 0].numpy(), atol=1e-6).any(1)
    assert tested.sum() == 4
    new = pd.concat([rows[~tested], rows[tested].assign(kind=None)])
    new.to_csv(tmp_path / "new.csv", index=False)
    main(["personalize", *last, "--clients", str(tmp_path / "new.csv"), "--output", str(tmp_path / "served")])
    main(["predict", *last, "--population", "unseen", "--output", str(tmp_path / "told.csv")])
    found, told = pd.read_csv(tmp_path / "served/predictions.csv"), pd.read_csv(tmp_path / "told.csv")
    classes = ["p_ant", "p_bee", "p_cat"]
    found, told = (one.sort_values(classes).reset_index(drop=True) for one in (found, told))
    np.testing.assert_allclose(found[classes], told[classes], atol=1e-6)
    assert found["prediction"].tolist() == told["prediction"].tolist()
    assert found["label"].isna().all()
    assert found["client"].tolist() == ["dan"] * 4


def test_a_program_tells_its_inputs_and_classes(place, last, tmp_path):
    main(["export", *last, "--client", "dan", "--output", str(tmp_path / "dan.pt2")])
    files = {"about.json": ""}
    program = torch.export.load(tmp_path / "dan.pt2", extra_files=files).module()
    about = json.loads(files["about.json"])
    assert about["input_names"] == ["age", "town=Oslo", "town=Rome"]
    assert (about["classes"], about["client"]) == (["ant", "bee", "cat"], "dan")
    assert program(torch.tensor([[30.0, 0, 1], [50.0, 1, 0]])).sum(1).tolist() == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("dan,thirty,Rome,ant", "row 2, column 'age': 'thirty' is not a number"),
        ("dan,30,Bern,ant", "row 2, column 'town': 'Bern' is in no training sample of a seen client"),
        ("dan,30,Rome,elk", "row 2, column 'kind': 'elk' is not a class of the training (ant, bee, cat)"),
    ],
)
def test_wrong_clients_are_refused_before_anything_is_served(last, tmp_path, capsys, line, message):
    (tmp_path / "new.csv").write_text(f"who,age,town,kind\neve,1,Rome,ant\n{line}\n")
    with pytest.raises(SystemExit) as stopped:
        main(["personalize", *last, "--clients", str(tmp_path / "new.csv"), "--output", str(tmp_path / "served")])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "served").exists()


def test_a_table_for_a_checkpoint_without_columns(tmp_path):
    trainer = FederatedTrainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_progress_bar=False, enable_checkpointing=False
    )
    rng = np.random.default_rng(0)
    arrays = {name: (rng.normal(size=(20, 2)), ["dog", "cat"] * 10) for name in ("ann", "bob")}
    data = FederatedDataModule.from_clients(arrays, unseen={"cy": arrays["ann"]})
    module = FederatedModule()
    trainer.fit(module, data)
    table = trainer.predict(module, datamodule=data, population="unseen")
    assert set(table["label"]) | set(table["prediction"]) <= {"cat", "dog"}
    assert set(table["client"]) == {"cy"}
    assert {"p_cat", "p_dog"} < set(table.columns)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(ConfigError, match="the checkpoint was not trained on a table; pass a folder"):
        personalize(trainer, FederatedModule(), str(tmp_path / "one.ckpt"), "new.csv", str(tmp_path / "served"))


def test_names_that_a_spreadsheet_would_run(tmp_path, capsys):
    """They are quoted in every file of results, and the quoted names are understood."""
    table = frame(["=cmd|' C calc'!A0", "@ben"], 0).replace({"kind": {"ant": "+ant", "bee": "-bee"}})
    table.to_csv(tmp_path / "all.csv", index=False)
    main(["fit", *CPU, "--data.dataset", "Table", "--data.dataset.path", str(tmp_path / "all.csv"), *COLUMNS,
          "--trainer.max_epochs", "1", "--name", "run", "--trainer.default_root_dir", str(tmp_path)])  # fmt: skip
    run = tmp_path / "run/version_0"
    last = ["--ckpt_path", str(run / "checkpoints/last.ckpt"), *CPU]
    main(["predict", *last])
    main(["personalize", *last, "--clients", str(tmp_path / "all.csv"), "--output", str(tmp_path / "served")])
    written = [run / "clients.csv", run / "predictions.csv", *(tmp_path / "served").glob("*.csv")]
    assert len(written) == 4
    for path in written:
        cells = pd.read_csv(path, dtype=str, header=None, keep_default_na=False).to_numpy().flatten()
        assert not [one for one in cells if one.startswith(tuple("=+-@\t\r")) and not _is_number(one)], path
    quoted = pd.read_csv(run / "clients.csv")["client"][0]
    assert quoted == "'=cmd|' C calc'!A0"
    main(["export", *last, "--client", quoted, "--output", str(tmp_path / "one.pt2")])
    main(["compare", str(run), str(run), "--output", str(tmp_path / "compared")])
    capsys.readouterr()


def _is_number(text):
    try:
        return float(text) == float(text)
    except ValueError:
        return False
