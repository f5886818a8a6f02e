"""Folders and files of results."""

import pytest

from lit_fed.errors import ConfigError
from lit_fed.training.output import check_new_folder, check_table_file, new_folder


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
