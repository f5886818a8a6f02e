import importlib
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, NamedTuple

import pytest

import lit_fed
from lit_fed.errors import ConfigError, check_settings, refuse_ignored_defaults


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


@dataclass(frozen=True)
class Typed:
    rate: float = 0.5
    steps: int | None = None
    rule: Literal["mean", "sum"] = "mean"


@pytest.mark.parametrize(
    ("value", "check", "holds"),
    [
        (0.0, "> 0", False), (0.0, ">= 0", True), (1e-9, "> 0", True), (float("inf"), "> 0", False),
        (float("nan"), ">= 0", False), (0.0, "[0, 1)", True), (1.0, "[0, 1)", False), (0.0, "(0, 1]", False),
        (1.0, "(0, 1]", True), (1.5, "[0, 1]", False), (-0.1, "[0, 1]", False),
    ],
)  # fmt: skip
def test_ends_of_ranges(value, check, holds):
    """A number that is not finite is in no range: parsers take 1e400 for one."""
    refused = pytest.raises(ConfigError, match=r"^--model\.algorithm\.rate is .*; give a number (>|in)")
    with nullcontext() if holds else refused:
        check_settings(Typed(rate=value), rate=check)


def test_null_is_within_every_range_and_words_are_checked_unasked():
    check_settings(Typed(), steps=">= 1")
    with pytest.raises(ConfigError, match=r"steps is 0; give a whole number >= 1, or null$"):
        check_settings(Typed(steps=0), steps=">= 1")
    with pytest.raises(ConfigError, match=r"rule is median; give mean or sum$"):
        check_settings(Typed(rule="median"))


def test_a_default_that_dataclasses_ignore_is_refused():
    @dataclass(frozen=True)
    class Base:
        steps: int = 1
        other: tuple = ()

    class Undecorated(Base):
        steps: int = 7

    @dataclass(frozen=True)
    class Unannotated(Base):
        steps = 7

    @dataclass(frozen=True)
    class Right(Base):
        steps: int = 7

    for cls in (Undecorated, Unannotated):
        with pytest.raises(
            ConfigError, match=rf"{cls.__name__} sets steps to 7, which is ignored: write `steps: int = 7`"
        ):
            refuse_ignored_defaults(cls, "--model.algorithm")
    refuse_ignored_defaults(Right, "--model.algorithm")


def test_an_attribute_that_a_module_misses_is_named(monkeypatch):
    def broken(module):
        raise AttributeError(f"{module} reads tree.walk, which is not there")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ImportError, match=r"^lit_fed\.rounds cannot be imported: .* reads tree\.walk") as refused:
        lit_fed.__getattr__("rounds")
    assert isinstance(refused.value.__cause__, AttributeError)
    with pytest.raises(ImportError, match=r"^lit_fed\.core\.task cannot be imported"):
        lit_fed.__getattr__("Task")
