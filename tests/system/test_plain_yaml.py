"""Words and keys of YAML stay text."""

from enum import StrEnum

import pytest
import yaml

from lit_fed.system.plain_yaml import PlainLoader, read_yaml


@pytest.mark.parametrize(
    "word",
    ["no", "Yes", "on", "off", "010", "00", "1:30", "190:20:30", "2020-01-01", "0x1F", "0b1", "nan", "=", "1.2.3"],
)
def test_words_are_text(word):
    assert read_yaml(f"[{word}]") == [word]
    assert yaml.safe_load(yaml.safe_dump([word])) == read_yaml(yaml.safe_dump([word])) == [word]


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ("0", 0), ("-12", -12),
        ("1_000", 1000), ("0.5", 0.5), (".5", 0.5), ("1.", 1.0), ("1e-4", 1e-4), ("1.0e+3", 1000.0),
        ("-.inf", float("-inf")),
    ],
)  # fmt: skip
def test_numbers_truth_values_and_null_are_values(word, value):
    (found,) = read_yaml(f"a: {word}").values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["Unnamed: 0", "class: y", "a: {b: 1}"])
def test_an_argument_is_no_mapping_without_braces(text):
    assert yaml.load(text, PlainLoader) == text
    assert isinstance(yaml.load(f"{{{text}}}", PlainLoader), dict)
    assert isinstance(read_yaml(text), dict), "a file of one line, which may end without one"


def test_keys_are_text():
    read = read_yaml("{0: 0.5, no: 1, 010: 2, null: 3, 1.50: {true: 4}}")
    assert read == {"0": 0.5, "no": 1, "010": 2, "null": 3, "1.50": {"true": 4}}
    assert read_yaml("a: &one {1: 2}\nb: {<<: *one, 3: 4}") == {"a": {"1": 2}, "b": {"1": 2, "3": 4}}


@pytest.mark.parametrize("text", ["1e-4", "1e3", "true", "null", "12", "", "<<"])
def test_texts_that_look_like_values_are_written_in_quotes(text):
    assert read_yaml(yaml.safe_dump({"a": [text]})) == {"a": [text]}


def test_members_of_enumerations_are_written_by_their_value():
    class Interval(StrEnum):
        step = "step"

    assert yaml.safe_dump({"interval": Interval.step}) == "interval: step\n"
