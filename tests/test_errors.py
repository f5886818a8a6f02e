from typing import NamedTuple

import pytest

from lit_fed.errors import ConfigError, check_settings


class Settings(NamedTuple):
    rate: float = 0.5
    steps: int | None = None


RANGES = {"rate": (False, "a number > 0"), "steps": (True, "a whole number >= 1")}


def test_settings_within_their_range_pass():
    assert check_settings(Settings(), {"rate": (True, "a number > 0"), "steps": (True, "a whole number >= 1")}) is None
    assert check_settings(Settings(), {}) is None


def test_the_value_the_place_and_the_fix_are_named():
    with pytest.raises(ConfigError) as refused:
        check_settings(Settings(rate=-1.0), RANGES)
    assert str(refused.value) == "--model.algorithm.rate is -1.0; give a number > 0"


def test_the_first_wrong_setting_is_named():
    both = {"steps": (False, "a whole number >= 1, or null"), "rate": (False, "a number > 0")}
    with pytest.raises(ConfigError, match=r"--model\.algorithm\.steps is None; give a whole number >= 1, or null$"):
        check_settings(Settings(), both)


def test_settings_of_another_place():
    with pytest.raises(ConfigError, match=r"^--model\.solver\.rate is 0\.5; give a number > 0$"):
        check_settings(Settings(), RANGES, "--model.solver")
