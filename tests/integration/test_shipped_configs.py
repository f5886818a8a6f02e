"""Configurations that come with the package are found wherever a command is given."""

from pathlib import Path

import pytest

from lit_fed.cli import main
from lit_fed.command_line.arguments import CONFIG, configs_folder, shipped, with_values

QUICKSTART = "configs/experiment/quickstart.yaml"


def found_in(given):
    return with_values(given, lambda option, value: shipped(value) if option in CONFIG else value)


def test_folder_is_that_of_the_checkout():
    assert configs_folder() == Path(__file__).parents[2] / "configs"


def test_a_file_here_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = str(configs_folder() / "experiment/quickstart.yaml")
    given = ["fit", "--config", QUICKSTART, f"--config={QUICKSTART}", "-c", QUICKSTART, "--name", QUICKSTART]
    assert found_in(given) == ["fit", "--config", place, f"--config={place}", "-c", place, "--name", QUICKSTART]
    (tmp_path / "configs/experiment").mkdir(parents=True)
    (tmp_path / QUICKSTART).write_text("{}")
    assert found_in(given) == given


def test_what_is_not_shipped_stays_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["fit", "--config", "configs/experiment/mine.yaml", "--config", "experiment/quickstart.yaml", "--config"]
    assert found_in(given) == given


@pytest.mark.parametrize("command", ["fit", "partition"])
def test_commands_find_them(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main([command, "--config", QUICKSTART if command == "fit" else "configs/data/digits.yaml", "--print_config"])
    assert stopped.value.code in (None, 0)
    assert "class_path: lit_fed.Digits" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
