"""UCI's files of patients and hospitals, on a few rows of the public format."""

import gzip

import numpy as np
import pytest
import torch

from lit_fed.data import HeartDisease, Parkinsons
from lit_fed.data.data_sets import uci
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError

VOICE = [f"m{number}" for number in range(16)]
ROW = "63.0,1.0,{cp}.0,{pressure},{chol},1.0,2.0,150.0,0.0,2.3,3.0,?,6.0,{num}\n"


def recordings():
    head = ",".join(["subject#", "age", "sex", "test_time", "motor_UPDRS", "total_UPDRS", *VOICE])
    rows = [
        ",".join(map(str, [patient, 60, 0, 1.5, 20 + row / 2, 30.25, *(patient + row * place for place in range(16))]))
        for patient in (1, 2)
        for row in range(6)
    ]
    return "\n".join([head, *rows]) + "\n"


@pytest.mark.parametrize("packed", [False, True])
def test_patients_are_clients(tmp_path, packed):
    name = tmp_path / "parkinsons_updrs.data"
    if packed:
        name.with_name(f"{name.name}.gz").write_bytes(gzip.compress(recordings().encode()))
    else:
        name.write_text(recordings())
    data = FederatedDataModule(Parkinsons(str(tmp_path)), test_fraction=0.5)
    data.setup()
    assert list(data.seen.names) == ["1", "2"]
    assert data.input_shape == (16,)
    assert data.target.name == "regression"
    y = data.target.in_units(torch.cat([data.seen.train.y, data.seen.test.y])).tolist()
    assert sorted(y) == pytest.approx(sorted([20 + row / 2 for row in range(6)] * 2))


@pytest.fixture
def hospitals(tmp_path):
    for place, name in enumerate(uci.HOSPITALS):
        rows = [
            ROW.format(cp=1 + row % 2, pressure=130 + row, chol=0 if place == 2 else 200 + row, num=row % 3)
            for row in range(6)
        ]
        (tmp_path / f"processed.{name}.data").write_text("".join(rows).replace("?", "1.0" if place == 0 else "?"))
    return tmp_path


def test_hospitals_are_clients_and_missing_values_are_filled_in(hospitals):
    data = FederatedDataModule(HeartDisease(str(hospitals)), test_fraction=0.5)
    data.setup()
    assert list(data.seen.names) == list(uci.HOSPITALS)
    assert set(data.seen.train.y.tolist()) == {0, 1}
    assert bool(data.seen.train.x.isfinite().all())
    chol = [one.name for one in data.seen.columns.features].index("chol")
    low, high = data.seen.train.offsets[2:4].tolist()
    place = sum(len(one.input_names) for one in data.seen.columns.features[:chol])
    assert len(np.unique(data.seen.train.x[low:high, place])) == 1  # the hospital that wrote 0 has the median of all


def test_missing_files_name_their_address(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"download true, or save https://archive\.ics\.uci\.edu"):
        HeartDisease(str(tmp_path)).load()
    (tmp_path / "source").write_text(recordings())
    monkeypatch.setattr(uci, "ARCHIVE", (tmp_path / "source").as_uri().removesuffix("/source"))
    monkeypatch.setattr(Parkinsons, "folder", ".")
    (tmp_path / "parkinsons_updrs.data").write_text(recordings())
    Parkinsons(str(tmp_path / "here"), download=True).prepare()
    assert (tmp_path / "here/parkinsons_updrs.data").read_text() == recordings()
