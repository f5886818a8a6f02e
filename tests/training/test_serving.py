"""What a checkpoint tells of its training, and folders of results."""

import pytest
import torch

from lit_fed.core.targets import Sequences
from lit_fed.data import Normalisation
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.training.output import check_new_folder, check_table_file, new_folder


@pytest.mark.parametrize("normalisation", [None, Normalisation((0.1, 0.2), (0.3, 0.4))])
def test_facts_survive_a_checkpoint(tmp_path, normalisation):
    facts = TrainingFacts(
        (2, 3), "float32", (5,), Sequences(4), 7, 90, 33, torch.arange(7), 16, 8,
        "uniform", 3, 20, normalisation,
    )  # fmt: skip
    torch.save(facts.plain(), tmp_path / "facts.pt")
    found = TrainingFacts.from_plain(torch.load(tmp_path / "facts.pt", weights_only=True))
    assert torch.equal(found.groups, facts.groups)
    assert found._replace(groups=None) == facts._replace(groups=None)


def test_a_folder_of_results_appears_whole_or_not_at_all(tmp_path):
    target, beside = tmp_path / "results", tmp_path / ".results.partial"
    beside.mkdir()
    (beside / "left by a killed run").touch()
    with pytest.raises(FileNotFoundError), new_folder(target, owner=True) as partial:
        (partial / "no such folder/table.csv").write_text("a\n")
    assert not list(tmp_path.iterdir())
    with new_folder(target, owner=True) as partial, new_folder(target, owner=False) as other:
        assert partial == other == beside
        partial.mkdir()
        (other / "table.csv").write_text("a\n")
        assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert (target / "table.csv").read_text() == "a\n"


def test_folders_and_files_that_cannot_be_written(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/table.csv").touch()
    with pytest.raises(ConfigError, match="not empty"):
        check_new_folder(tmp_path / "full")
    with pytest.raises(ConfigError, match="not empty"):
        check_new_folder(tmp_path / "full/table.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        check_table_file(tmp_path / "folder.csv")
    check_table_file(tmp_path / "full/table.csv")  # a table of an earlier run is replaced
    with pytest.raises(ConfigError, match=r"table\.xlsx"):
        check_table_file(tmp_path / "table.xlsx")
