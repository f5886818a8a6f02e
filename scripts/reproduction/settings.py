"""The data sets of the papers with the algorithms run on them, at each scale: what `settings.yaml` says."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from reproduction.runs import Run
from reproduction.tables import Method, Scale, Setting

FILE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
LABELS: dict[str, str] = FILE["labels"]  # of algorithms, by the names of methods


@cache
def settings_of(group: str, scale: Scale) -> dict[str, Setting]:
    """The settings of a group by their names; where it has none of its own for a scale, those of `reduced`."""
    names = FILE["groups"][group]
    every = some_settings("", scale)
    return {name: every[name] for name in names.get(scale, names["reduced"])}


def runs_of(
    settings: str | Callable[[Scale], Iterable[Setting]], methods: Sequence[str] | None = None
) -> Callable[[Scale, Sequence[int]], list[Run]]:
    """The runs of some methods, by default of all, in all settings of a group or of a scale."""

    def runs(scale: Scale, seeds: Sequence[int]) -> list[Run]:
        found = settings_of(settings, scale).values() if isinstance(settings, str) else settings(scale)
        return [run for setting in found for run in setting.runs(seeds, methods)]

    return runs


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


class Choice(NamedTuple):
    """One of the values that a name stands for."""

    name: str
    label: str
    words: str

    @classmethod
    def of(cls, name: Any, choices: Mapping[Any, Any] | list[Any]) -> Choice:
        """What a file says of a choice: words, a label with words, or in a list nothing else."""
        given = choices[name] if isinstance(choices, Mapping) else name
        label, text = given if isinstance(given, list) else (name, given)
        return cls(str(name), str(label), str(text))


Chosen = dict[str, Choice]


def _variants(pattern: str, each: Mapping[str, Any]) -> Iterator[tuple[str, Chosen]]:
    """The names in a product of choices, each with what was chosen."""
    choices = [[(key, Choice.of(name, each[key])) for name in each[key]] for key in each]
    for pairs in product(*choices):
        chosen = dict(pairs)
        yield pattern.format_map({key: one.name for key, one in chosen.items()}), chosen


def _setting(name: str, fields: Mapping[str, Any], chosen: Chosen, smoke: bool) -> Setting:
    less: Mapping[str, Any] = fields.get("smoke", {}) if smoke else {}
    known = {**FILE["words"], **fields.get("with", {}), **less.get("with", {})}
    known |= {key: one.words for key, one in chosen.items()}
    arguments = (*words(fields.get("arguments", ""), known), *words(less.get("arguments", ""), known))
    methods, choices = _methods(fields, known)
    for only in (fields.get("only"), less.get("only")):
        methods = tuple(one for one in methods if only is None or one.name in only)
    label = fields["label"].format_map({key: one.label for key, one in chosen.items()})
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
            shown = {key: choice.label for key, choice in chosen.items()}
            label = one["label"].format_map(shown) if "label" in one else _label(name)
            text = one.get("words", " ".join(f"{{{key}}}" for key in chosen))
            arguments = words(text, {**known, **{key: choice.words for key, choice in chosen.items()}})
            found.append(Method(name, label, arguments, tuple(one.get("measures", ()))))
            for key, choice in chosen.items():
                choices.setdefault(key, {}).setdefault(choice.name, choice.label)
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
    """The arguments that a text in short stands for, see the head of `settings.yaml`."""
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
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for column, row in columns.items():
        pairs = [(name, one) for name, one in zip(methods, row.split(), strict=True) if one != "-"]
        found[str(column)] = {name: tuple(map(float, one.split("/"))) for name, one in pairs}
    return found
