"""Published tables: clients by the authors' rules, figures of their files, and the page of the record."""

import ast
import json
from pathlib import Path

import numpy as np
import published
import pytest

RECORD = json.loads(published.RESULTS.read_text())
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@pytest.fixture
def patients(tmp_path):
    """Files of four hospitals: 20 complete patients, one without a blood pressure; those of the last are all ill."""
    rng = np.random.default_rng(0)
    for name in HOSPITALS:
        lines = []
        for patient in range(21):
            measured = [f"{value:.1f}" for value in rng.normal(size=10)]
            measured[2], measured[6] = str(1 + patient % 4), str(patient % 3)
            measured[3] = "?" if patient == 7 else measured[3]
            ill = 3 if name == "va" else patient % 2
            lines.append(",".join([*measured, "?", "?", "?", str(ill)]))
        (tmp_path / f"processed.{name}.data").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_hearts_are_divided_by_the_rule_of_flamby(patients):
    clients = published.heart_clients(patients)
    assert tuple(clients) == HOSPITALS
    for name, one in clients.items():
        assert {key: array.shape for key, array in one.items()} == {
            "x_train": (13, 13), "y_train": (13,), "x_test": (7, 13), "y_test": (7,)
        }  # fmt: skip
        assert set(np.concatenate([one["y_train"], one["y_test"]])) == ({1} if name == "va" else {0, 1})
        categories = np.concatenate([one["x_train"], one["x_test"]])[:, 8:]
        assert set(categories.flat) == {0, 1}
        assert sorted(categories[:, :3].sum(1)) == [0] * 6 + [1] * 14  # six have the first kind of pain
    assert clients["cleveland"]["y_test"].sum() == 3  # by label: 9 of 20 patients are ill
    again = published.heart_clients(patients)
    assert all(np.array_equal(one, again["va"][key]) for key, one in clients["va"].items())


def test_hospitals_are_standardised_by_their_own_patients_and_the_pooled_test_by_all(patients, tmp_path):
    published.heart_files(patients, tmp_path / "files")
    own, pooled = tmp_path / "files/heart", tmp_path / "files/heart_pooled"
    for folder, seen, unseen in ((own, HOSPITALS, ["pooled"]), (pooled, ["pooled"], HOSPITALS)):
        assert sorted(path.stem for path in folder.glob("seen/*")) == sorted(seen)
        assert sorted(path.stem for path in folder.glob("unseen/*")) == sorted(unseen)
        for name in seen:
            with np.load(folder / f"seen/{name}.npz") as arrays:
                np.testing.assert_allclose(arrays["x_train"][:, :8].mean(0), 0, atol=1e-5)
                np.testing.assert_allclose(arrays["x_train"][:, :8].std(0, ddof=1), 1, atol=1e-5)
    with np.load(own / "unseen/pooled.npz") as apart, np.load(pooled / "seen/pooled.npz") as whole:
        assert set(apart.files) == {"x_test", "y_test"}
        assert np.array_equal(apart["x_test"], whole["x_test"])


def test_a_constant_input_is_divided_by_a_billionth():
    given = np.array([[2.0], [2.0]], dtype=np.float32)
    assert published.standardised({"x_test": np.array([[3.0]], dtype=np.float32)}, given)["x_test"] == pytest.approx(
        1e9
    )


def test_files_of_pfllib_become_clients_in_the_order_of_their_numbers(tmp_path):
    for part, count in (("train", 3), ("test", 1)):
        (tmp_path / part).mkdir()
        for client in (0, 2, 10):
            arrays = {"x": np.full((count, 1, 2, 2), client, dtype=np.float32), "y": np.arange(count)}
            np.savez_compressed(tmp_path / part / f"{client}.npz", data=arrays)
    published.image_files(tmp_path, tmp_path / "files")
    paths = sorted((tmp_path / "files/seen").iterdir())
    assert [path.name for path in paths] == ["00.npz", "02.npz", "10.npz"]
    with np.load(paths[2]) as arrays:
        assert arrays["x_train"].shape == (3, 1, 2, 2)
        assert arrays["x_test"].max() == 10
        assert arrays["y_train"].tolist() == [0, 1, 2]


def test_local_models_are_measured_on_their_own_centre(tmp_path):
    rows = [("Local 0", 0, 0.5), ("Local 1", 1, 0.7), ("Local 2", 2, 0.9), ("Local 3", 3, 0.9), ("Local 0", 1, 0.1)]
    lines = ["seed,Metric,Method,Test", *(f"1,{value},{method},client_test_{test}" for method, test, value in rows)]
    lines += [f"1,0.6,FedAvg100,client_test_{test}" for test in range(4)] + ["1,0.8,FedAvg100,Pooled Test"]
    (tmp_path / "results.csv").write_text("\n".join(lines) + "\n")
    figures = published.benchmark_figures(tmp_path / "results.csv")
    assert published.over_centres(figures, "Local") == pytest.approx(75)
    assert published.over_centres(figures, "FedAvg") == pytest.approx(60)
    assert published.over_centres(figures, "FedAvg", pooled=True) == pytest.approx(80)


def test_personal_models_are_the_last_that_pfllib_measures_in_a_round():
    both = "global\nAveraged Test Accuracy: 0.1000\npersonalized\nAveraged Test Accuracy: {}\n"
    printed = "".join(f"-------------Round number: {i}-------------\n" + both.format(0.5 + i / 4) for i in range(2))
    assert published.system_figures("set-up\n" + printed) == [50, 75]


def test_the_page_is_what_the_records_give():
    assert published.RESULTS.with_suffix(".md").read_text() == published.page(RECORD)


@pytest.mark.parametrize("place", RECORD["matched"])
def test_on_the_same_batches_ours_and_theirs_are_one_model(place):
    one = RECORD["matched"][place]
    assert one["apart"] < 1e-5
    assert one["moved"] > 1000 * one["apart"] or (place.endswith("/local") and one["moved"] == 0)  # nothing is shared
    assert one.get("ours", 0) == pytest.approx(one.get("theirs", 0), abs=1e-4)


def test_flamby_run_here_gives_its_published_figures():
    same, every = RECORD["equal"]
    assert (same, every) == (298, 300)


@pytest.mark.parametrize("setting", [published.HEART, *published.PFLLIB.values()], ids=lambda one: one.label)
def test_settings_are_read_by_the_command_line(setting, parser):
    config = Path(published.ROOT) / f"configs/experiment/{setting.config}.yaml"
    for run in setting.runs("")[:: len(setting.seeds)]:
        read = parser.parse_args(["--config", str(config), *run.arguments])
        assert read.seed_everything == setting.seeds[0]


def test_every_program_of_scripts_runs_its_main():
    """A program whose last lines are lost does nothing and ends with status 0."""
    for path in sorted(Path(published.__file__).parent.glob("*.py")):
        body = ast.parse(path.read_text()).body
        if any(isinstance(one, ast.FunctionDef) and one.name == "main" for one in body):
            assert ast.unparse(body[-1]) == "if __name__ == '__main__':\n    main()", path.name
