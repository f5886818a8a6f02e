"""The data sets of the papers with the algorithms run on them, at each scale: what `settings.yaml` says."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from reproduction.tables import Method, Scale, Setting

__all__ = ["LABELS", "facts", "published", "settings_of", "some_settings"]

FILE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
LABELS: dict[str, str] = FILE["labels"]
"""Of algorithms, by the names of methods."""


@cache
def settings_of(group: str, scale: Scale) -> dict[str, Setting]:
    """The settings of a group by their names; where it has none of its own for a scale, those of `reduced`."""
    names = FILE["groups"][group]
    every = some_settings("", scale)
    return {name: every[name] for name in names.get(scale, names["reduced"])}


@cache
def some_settings(prefix: str, scale: Scale) -> dict[str, Setting]:
    """All settings whose names begin so."""
    return {
        name: _setting(name, fields, chosen, scale == "smoke")
        for pattern in FILE["settings"]
        for fields in [_inherited(pattern)]
        for name, chosen in _variants(pattern, fields.get("each", {}))
        if name.startswith(prefix)
    }


def _inherited(pattern: str) -> dict[str, Any]:
    """The fields of a setting with those of the one that it is like."""
    fields: dict[str, Any] = FILE["settings"][pattern]
    if "like" not in fields:
        return fields
    base = _inherited(fields["like"])
    return base | fields | {key: base.get(key, {}) | fields.get(key, {}) for key in ("with", "each")}


def _variants(pattern: str, each: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, tuple[str, str, str]]]]:
    """The names in a product of choices, each with the name, label and words of what was chosen, by choice."""
    choices = [[(key, _choice(name, each[key])) for name in each[key]] for key in each]  # a list is one of plain values
    for chosen in product(*choices):
        yield pattern.format_map({key: name for key, (name, _, _) in chosen}), dict(chosen)


def _choice(name: Any, choices: Mapping[Any, Any] | list[Any]) -> tuple[str, str, str]:
    given = choices[name] if isinstance(choices, Mapping) else str(name)
    label, text = given if isinstance(given, list) else (str(name), given)
    return str(name), str(label), str(text)


def _setting(name: str, fields: Mapping[str, Any], chosen: Mapping[str, tuple[str, str, str]], smoke: bool) -> Setting:
    less: Mapping[str, Any] = fields.get("smoke", {}) if smoke else {}
    known = {**FILE["words"], **fields.get("with", {}), **less.get("with", {})}
    known |= {key: text for key, (_, _, text) in chosen.items()}
    arguments = (*words(fields.get("arguments", ""), known), *words(less.get("arguments", ""), known))
    methods, choices = _methods(fields, known)
    for only in (fields.get("only"), less.get("only")):
        methods = tuple(one for one in methods if only is None or one.name in only)
    label = fields["label"].format_map({key: shown for key, (_, shown, _) in chosen.items()})
    draws = {key: fields[key] for key in ("draws_data", "draws_pool") if key in fields}
    found = Setting(name, label, fields["config"], methods, arguments, tuple(fields.get("measures", ())), **draws)
    return found._replace(choices=choices).without(*less.get("without", ()))


def _methods(fields: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[tuple[Method, ...], dict[str, Any]]:
    """The methods of a setting, and the labels of the choices that they are products of."""
    found, choices = [], {}
    for pattern, given in fields["methods"].items():
        one = given if isinstance(given, Mapping) else {"words": given}
        for name, chosen in _variants(pattern, one.get("each", {})):
            if name in (*one.get("but", ()), *fields.get("but", ())):
                continue
            shown = {key: label for key, (_, label, _) in chosen.items()}
            label = one["label"].format_map(shown) if "label" in one else _label(name)
            text = one.get("words", " ".join(f"{{{key}}}" for key in chosen))
            arguments = words(text, {**known, **{key: value for key, (_, _, value) in chosen.items()}})
            found.append(Method(name, label, arguments, tuple(one.get("measures", ()))))
            for key, (choice, shown_as, _) in chosen.items():
                choices.setdefault(key, {}).setdefault(choice, shown_as)
    for more in fields.get("added", ()):
        arguments, measures = words(more["words"], known), tuple(more.get("measures", ()))
        found = [one.more(arguments, measures) if one.name in more["to"] else one for one in found]
    return tuple(found), choices


def _label(name: str) -> str:
    """The usual label of a method, whose name may say more at its end."""
    while name and name not in LABELS:
        name = name.rpartition("_")[0]
    return LABELS.get(name, "")


def words(text: str, known: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments that a text in short stands for.

    Example:
        >>> words("FedEM num_components=3 | lr={rate} --data.seed 1", {"rate": 0.1})[2:]
        ('--model.algorithm.num_components', '3', '--model.solver.lr', '0.1', '--data.seed', '1')
    """
    while "{" in text:
        text = text.format_map(known)
    found: list[str] = []
    group, parts = "algorithm", iter(shlex.split(text))
    for part in parts:
        key, equals, value = part.partition("=")
        if part == "|":
            group = "solver"
        elif part.startswith("--"):
            found += [part] if equals else [part, next(parts)]
        else:
            found += [f"--model.{group}.{key}", value] if equals else ["--model.algorithm", part]
    return tuple(found)


@cache
def facts() -> dict[str, Any]:
    """What the papers print: `published.yaml`."""
    return yaml.safe_load(Path(__file__).with_name("published.yaml").read_text())  # type: ignore[no-any-return]


@cache
def published(table: str) -> dict[str, dict[str, tuple[float, ...]]]:
    """The figures of a table in `published.yaml`, by column and method."""
    columns = dict(facts()[table])
    methods = columns.pop("methods")
    return {
        str(column): {
            name: tuple(map(float, one.split("/")))
            for name, one in zip(methods, row.split(), strict=True)
            if one != "-"
        }
        for column, row in columns.items()
    }
