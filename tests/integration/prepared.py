"""What most of the time of a small run goes into, and no test of a run is about: the parser, the digits, pictures."""

import base64
import functools
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

MADE = ("parser", "_subcommand_method_arguments", "_subcommand_parsers")
"""What building the parser leaves on the command line's object."""


PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg==")
"""A picture of one."""

RENDER = Figure.savefig

DRAWN = "LIT_FED_TESTS_DRAWN"
"""Names a folder in which the processes of the tests note the kinds of figures that one of them has drawn."""

STARTED = "LIT_FED_TESTS_STARTED"
"""Names a file in which each real process that tests start has a line."""

FIGURES = {
    "lit_fed.pictures.run": (
        "_history", "_histogram", "mixture_heat_map", "_components", "_mixtures", "_heat_map", "_curves", "draw_graph",
    ),
    "lit_fed.callbacks.sample_pictures": ("samples_figure",),
}  # fmt: skip
"""Functions that make the figures of a run, by the module that calls them."""


def do_not_render() -> None:
    """Draw the figures of a run, but write one pixel in the place of each.

    Those of tables and weights of one kind are drawn once: that takes a quarter of a small run.
    """

    def savefig(figure: Figure, file: Any, **_: Any) -> None:
        file.write(PIXEL) if hasattr(file, "write") else Path(file).write_bytes(PIXEL)

    Figure.savefig = savefig
    for place, names in FIGURES.items():
        module = importlib.import_module(place)
        for name in names:
            setattr(module, name, _once_for_each_kind(getattr(module, name)))


def _once_for_each_kind(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """A figure that is left empty where one of its kind was drawn before, by any process of the tests.

    Errors, unlike accuracies, are drawn on a scale that follows from their values: these figures are always drawn.
    """

    @functools.wraps(draw)
    def figure(*given: Any) -> Figure:
        kind = repr((draw.__name__, *map(_kind, given)))
        note = Path(os.environ.get(DRAWN, os.devnull)) / hashlib.sha1(kind.encode()).hexdigest()
        errors = any(isinstance(one, str) and one == "mse" for one in given)
        if Figure.savefig is RENDER or errors or not note.exists():
            drawn = draw(*given)
            if note.parent.is_dir():
                note.touch()
            return drawn
        return Figure()

    return figure


def _kind(value: Any) -> Any:
    """What decides how a table, or weights, are drawn."""
    if isinstance(value, pd.DataFrame):
        gaps, people = value.isna(), set(value.get("population", ()))
        return *value, *gaps.any(), *gaps.all(), len(value) > 1, *sorted(people), len(set(value.get("group", ())))
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.kind, value.dtype.kind == "f" and bool(np.isfinite(value).all())
    if isinstance(value, dict):
        return [(name, _kind(one)) for name, one in sorted(value.items())]
    return value if isinstance(value, str) else type(value)


@contextmanager
def rendering() -> Iterator[None]:
    """For tests that look at pictures."""
    before, Figure.savefig = Figure.savefig, RENDER
    try:
        yield
    finally:
        Figure.savefig = before


def read_digits_once() -> None:
    """Let all runs of this process share what is read of scikit-learn's file."""
    from lit_fed.data.data_sets.digits import Digits

    Digits().load()


def build_parser_once() -> None:
    """Let all command lines of this process share the parsers of the first ones.

    One that begins with a command makes the parser of that command alone.
    """
    from jsonargparse import _subcommands

    from lit_fed.cli import FederatedCLI

    _subcommands.filter_non_parsing_actions = _once_for_each_list(_subcommands.filter_non_parsing_actions)

    build, made = FederatedCLI.setup_parser, {}

    def setup_parser(self: Any, *args: Any) -> None:
        key = self._only, type(self).add_arguments_to_parser  # a subclass may have its own arguments
        if key not in made:
            build(self, *args)
            made[key] = {name: getattr(self, name) for name in MADE}
        self.__dict__.update(made[key])

    FederatedCLI.setup_parser = setup_parser


def _once_for_each_list(choose: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What is chosen of a parser's three hundred actions, which is looked up for each of its arguments again."""
    chosen: dict[tuple[int, int], tuple[Any, Any]] = {}

    def found(actions: Any) -> Any:
        key = id(actions), len(actions)
        if key not in chosen:
            chosen[key] = actions, choose(actions)  # the list is kept, so that its number stays its own
        return chosen[key][1]

    return found
