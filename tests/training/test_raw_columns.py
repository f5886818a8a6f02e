"""Programs that take the columns of a table give what the encoded rows give."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from lit_fed.data.data_sets.base import Normalisation
from lit_fed.data.data_sets.columns import Feature, TableColumns, encode, fill_in, typed
from lit_fed.data.data_sets.rows import rows_of_frame
from lit_fed.errors import ConfigError
from lit_fed.training.export import PersonalModel, save_program

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
    inputs = torch.from_numpy(fill_in(x, COLUMNS, x))
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
