"""Programs that take the columns of a table give what the encoded rows give."""

import hashlib
import json
import zipfile

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import torch

from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.data_sets.columns import Feature, TableColumns, encode, fill_in, typed
from lit_fed.data.data_sets.rows import rows_of_frame
from lit_fed.errors import ConfigError
from lit_fed.training.export import PersonalModel, legal_columns, save_program

COLUMNS = TableColumns(
    (Feature("age", None, 40.0, True), Feature("town", ("Bari", "Oslo"), "Oslo"), Feature("kind", ("a", "b", "c"), "")),
    "y", None, None, ",", "zeros",
)  # fmt: skip


class Rows(torch.nn.Module):
    def forward(self, x, outputs):
        return outputs[0] + 0.0


def test_columns_are_encoded_in_the_program(tmp_path):
    frame = pd.DataFrame({"age": [30.0, np.nan, 50], "town": ["Bari", None, "Rome"], "kind": ["c", "b", None]})
    x = encode(typed(rows_of_frame(frame), COLUMNS, "--"), COLUMNS)
    inputs = torch.from_numpy(fill_in(x, COLUMNS, x)).float()
    constants = Normalisation((1.0,) * 7, (2.0,) * 7)
    about = {"network": "Identity", "output": "value"}
    model = PersonalModel([torch.nn.Identity()], Rows(), constants, torch.zeros(2, 7), about)
    expected = model(inputs)
    model.take_columns(COLUMNS)
    raw = torch.tensor([[30.0, 0, 2], [np.nan, np.nan, 1], [50, 9, np.nan]])
    torch.testing.assert_close(model(raw), expected)
    save_program(model, tmp_path / "model.pt2")
    notes = {"about.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=notes).module()
    torch.testing.assert_close(program(raw), expected)
    known = json.loads(notes["about.json"])
    assert (known["input_names"], known["input_shape"]) == (["age", "town", "kind"], ["N", 3])
    assert known["columns"][1] == {"name": "town", "categories": ["Bari", "Oslo"]}
    with pytest.raises(ConfigError, match="filled in by each client's own rows"):
        model.take_columns(COLUMNS._replace(own_fills="mean"))
    with pytest.raises(ConfigError, match="was not on a table"):
        model.take_columns(None)


LEGAL = [[30.0, 0, 2], [float("nan"), 1, 1]]
ILLEGAL = {
    "a category that is none": [30.0, 7, 2], "a negative category": [30.0, -1, 2], "half a category": [30.0, 1.5, 2],
    "a missing value without a fill": [30.0, float("nan"), 2], "a number out of range": [1e30, 0, 2],
    "infinity": [float("inf"), 0, 2],
}  # fmt: skip


@pytest.mark.parametrize("raw", [True, False], ids=["columns", "encoded"])
def test_a_program_refuses_illegal_inputs(tmp_path, raw):
    age, town, kind = COLUMNS.features
    columns = COLUMNS._replace(features=(age, town._replace(fill=None), kind), unknown_categories="error")
    model = PersonalModel(
        [torch.nn.Linear(7, 2)], Rows(), Normalisation((40.0, *[0.0] * 6), (10.0, *[1.0] * 6)), torch.zeros(2, 7),
        {"network": "Linear", "output": "value"}, legal_columns(columns, None),
    )  # fmt: skip
    legal, illegal = torch.tensor(LEGAL), torch.tensor([*ILLEGAL.values()])
    if raw:
        model.take_columns(columns)
    else:
        legal = torch.tensor([[30.0, 0, 1, 0, 0, 0, 1]])
        wrong = [(0, 1e30), (0, float("nan")), (1, 7.0), (2, -1.0), (3, 0.5)]
        illegal = torch.stack([legal[0].index_fill(0, torch.tensor(place), value) for place, value in wrong])
    expected = model(legal)
    assert not expected.isnan().any()
    save_program(model, tmp_path / "model.pt2")
    notes = {"about.json": ""}
    stored = torch.export.load(tmp_path / "model.pt2", extra_files=notes)
    program = stored.module()
    torch.testing.assert_close(program(legal), expected)
    assert not program(legal).requires_grad
    for row in illegal:
        with pytest.raises(RuntimeError, match="see legal_inputs of about"):
            program(row[None])
    about = json.loads(notes["about.json"])
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        names = [one for one in archive.namelist() if not one.endswith(("about.json", "serialization_id"))]
        digest = hashlib.sha256(b"".join(map(archive.read, sorted(names))))
    assert digest.hexdigest() == about["digest"]
    assert about["illegal_inputs"] == "RuntimeError"
    if not raw:
        return
    with pytest.raises(RuntimeError, match="town is not a whole number from 0 to 1; see"):
        program(torch.tensor([[30.0, 7, 2]]))
    assert about["legal_inputs"][1] == {"name": "town", "least": 0.0, "most": 1.0, "whole": True, "may_miss": False}
    save_program(model, tmp_path / "model.onnx", "onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (found,) = session.run(None, {"x": torch.cat([legal, illegal]).numpy()})
    np.testing.assert_allclose(found[: len(legal)], expected.detach(), atol=1e-6)
    assert np.isnan(found[len(legal) :]).all()
    written = onnx.load(tmp_path / "model.onnx")
    known = json.loads(written.metadata_props.pop().value)
    assert hashlib.sha256(written.SerializeToString()).hexdigest() == known["digest"]
    assert known["illegal_inputs"] == "NaN in all outputs of the sample"
