"""Clients in the terms of an earlier training, whose models are taken: its columns, categories, constants and classes.

The third input of a model is a column, its second output a class. Inputs and labels are rearranged by name; a name that
the training did not have is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lit_fed.core.targets import Target
from lit_fed.core.types import Population, Split
from lit_fed.data.data_sets.base import PLACE, Normalisation, require
from lit_fed.data.data_sets.columns import TableColumns
from lit_fed.data.facts import TrainingFacts
from lit_fed.system.names import few

__all__ = ["as_trained", "check_same_labels"]

Names = Sequence[str] | None


def as_trained(
    population: Population, earlier: TrainingFacts, place: str, declared: Normalisation | None, said: list[str]
) -> Population:
    """The clients with the inputs and classes of an earlier training; the same object if they have them already.

    Args:
        population: clients as their data set reads them.
        earlier: facts of the training.
        place: origin of the facts, for messages.
        declared: constants of the data set, where the population has not learned some.
        said: gets lines on what is changed or guessed.

    Raises:
        ConfigError: naming a column, category, class, input or type that the training did not have, or lacks.
    """
    _check_types(population, earlier, place)
    own, before = population.normalisation or declared, earlier.normalisation
    inputs = _places(population.columns, earlier, place, said)
    classes = _classes(population.class_names, earlier, place, said)
    changes = {
        "the inputs and their order": inputs is not None,
        "means and deviations of the inputs": own != before,
        "mean and deviation of the labels": population.label_scale != earlier.label_scale,
        "the classes": classes is not None,
    }
    changed = [name for name, differs in changes.items() if differs]
    if not changed:
        return population
    require(
        all(type(split) is Split for split in population.splits),
        f"{place}: {changed[0]} differ, and these samples are read when they are needed, so that they cannot be "
        "changed; give the data set of that training",
    )
    said.append(f"{place}: {', '.join(changed)} are those of that training")
    names, scale = population.class_names, population.label_scale
    same = None if declared is None else Normalisation((0.0,) * len(declared.mean), (1.0,) * len(declared.std))
    return population.with_splits(
        lambda split: Split(
            _inputs(split.x, inputs, own, before), _labels(split.y, classes, scale, earlier), split.offsets,
            split.first_id, split.ids,
        )
    )._replace(
        columns=_columns(population.columns, earlier.columns),
        class_names=names if classes is None else earlier.class_names,
        normalisation=before or same, label_scale=earlier.label_scale,
    )  # fmt: skip


def check_same_labels(target: Target, earlier: TrainingFacts, place: str) -> None:
    """Raise a `ConfigError` if outputs of the earlier training mean another kind of label."""
    kinds = [one.continuous or (one.kind, one.positions) for one in (target, earlier.target)]
    require(
        kinds[0] == kinds[1],
        f"{place}: its labels are {earlier.target.name}, and here they are {target.name}; give labels of the same "
        "kind, or start from fresh models",
    )


def _check_types(population: Population, earlier: TrainingFacts, place: str) -> None:
    """Refuse other inputs, columns or tokens by name, and pixels in another range."""
    named = [
        None if one is None else ", ".join(f"{part.name} ({part.kind})" for part in one.inputs)
        for one in (population.inputs, earlier.inputs)
    ]
    require(
        named[0] == named[1],
        f"{place}: the inputs are {named[0] or 'one array'}, those of that training {named[1] or 'one array'}; give "
        "the same",
    )
    stored = population.stored_type, earlier.stored_type
    require(
        stored[0] == stored[1] or not all(" " in one for one in stored),
        f"{place}: inputs are {stored[0]}, and in that training {stored[1]}; give the same by {PLACE}.tokenizer or "
        f"{PLACE}.input_columns",
    )
    require(
        not all(stored) or len({one == "uint8" for one in stored}) == 1,
        f"{place}: inputs are stored as {stored[0]}, those of that training as {stored[1]}; store them alike, since "
        "uint8 is scaled to 0..1 and other types are not",
    )


def _places(own: TableColumns | None, earlier: TrainingFacts, place: str, said: list[str]) -> list[int] | None:
    """Place of each input of the training among the own ones, -1 for a category without rows; None: they are equal."""
    columns = earlier.columns
    if own is None or columns is None:
        named = own or columns
        if named is not None:
            whose = ("that training", "these data")[own is None]
            said.append(
                f"{place}: inputs of {whose} have no names; they are taken for {few(named.input_names, 6)}, in this "
                "order"
            )
        return None
    if own.label_column != columns.label_column:
        said.append(f"{place}: labels {own.label_column!r} are taken for {columns.label_column!r} of that training")
    mine = {one.name: one for one in own.features}
    for one in columns.features:
        feature = mine.pop(one.name, None)
        require(
            feature is not None,
            f"{place} was trained on the column {one.name!r}, which is missing here; add it, or take fresh models",
        )
        assert feature is not None
        kinds = ["numbers" if each.categories is None else "categories" for each in (feature, one)]
        require(
            kinds[0] == kinds[1],
            f"{place}: column {one.name!r} holds {kinds[0]}, and held {kinds[1]} in that training; see "
            f"{PLACE}.category_columns",
        )
        new = sorted({*(feature.categories or ())} - {*(one.categories or ())})
        require(
            not new or own.unknown_categories == "zeros",
            f"{place}: column {one.name!r} has {few(map(repr, new))}, and in that training only "
            f"{few(map(repr, one.categories or ()), 6)}; correct it, or give {PLACE}.unknown_categories zeros",
        )
        if feature.fill != one.fill and None not in (feature.fill, one.fill):
            said.append(
                f"{place}: missing values of {one.name!r} are filled in by {feature.fill!r} of these rows, in that "
                f"training by {one.fill!r}"
            )
    require(
        not mine,
        f"{place} was not trained on the column {few(map(repr, mine))}; leave it out by {PLACE}.ignored_columns",
    )
    names = own.input_names
    places = [names.index(one) if one in names else -1 for one in columns.input_names]
    return None if places == [*range(len(names))] else places


def _columns(own: TableColumns | None, before: TableColumns | None) -> TableColumns | None:
    """The columns of the training, as this table has them beside the inputs."""
    return before if own is None else own if before is None else own._replace(features=before.features)


def _classes(own: Names, earlier: TrainingFacts, place: str, said: list[str]) -> list[int] | None:
    """Number in the training of each own class; None: they are equal."""
    before = earlier.class_names
    if own is None or before is None:
        named, whose = own or before, ("that training", "these data")[own is None]
        numbered = tuple(named or ()) == tuple(map(str, range(len(named or ()))))
        if not numbered and not earlier.target.continuous:
            said.append(
                f"{place}: classes of {whose} have no names; they are taken for {few(named or (), 6)}, in this order"
            )
        return None
    new = [name for name in own if name not in before]
    require(
        not new,
        f"{place}: {few(map(repr, new))} is no class of that training, whose classes are {few(map(repr, before), 6)}; "
        "correct the labels, or start from fresh models",
    )
    return None if tuple(own) == tuple(before) else [before.index(name) for name in own]


def _inputs(x: Tensor, places: list[int] | None, own: Normalisation | None, before: Normalisation | None) -> Tensor:
    """Inputs [n, W, ...] in the order and by the constants of the training; those at place -1 are 0."""
    if places is None and own == before:
        return x
    at = torch.arange(x.shape[1]) if places is None else torch.tensor(places)
    there, shape = at >= 0, (-1, *[1] * (x.ndim - 2))

    def constants(given: Normalisation | None, number: int) -> list[Tensor]:
        both = given or ((0.0,) * number, (1.0,) * number)
        return [torch.tensor(one, dtype=torch.float64) for one in both]

    (mean, std), (mean_then, std_then) = constants(own, x.shape[1]), constants(before, len(at))
    scale, shift = std[at] / std_then, (mean[at] - mean_then) / std_then
    x = x[:, at] * scale.to(x.dtype).view(shape) + shift.to(x.dtype).view(shape)
    return x * there.to(x.dtype).view(shape)


def _labels(y: Tensor, classes: list[int] | None, scale: tuple[float, float] | None, earlier: TrainingFacts) -> Tensor:
    """Labels [n, ...] by the classes and in the units of the training; labels to ignore stay."""
    if y.is_floating_point():
        (mean, std), (mean_then, std_then) = scale or (0.0, 1.0), earlier.label_scale or (0.0, 1.0)
        return y if scale == earlier.label_scale else y * (std / std_then) + (mean - mean_then) / std_then
    if classes is None:
        return y
    if earlier.target.vectors:
        wider = y.new_zeros(len(y), earlier.target.num_classes)
        wider[:, classes] = y
        return wider
    known = (y >= 0) & (y < len(classes))
    return torch.where(known, torch.tensor(classes)[y.where(known, torch.zeros_like(y))], y)
