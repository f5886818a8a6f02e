"""What most of the time of a small run goes into, and no test of a run is about: the parser, the digits, pictures."""

import base64
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

MADE = ("parser", "_subcommand_method_arguments", "_subcommand_parsers")
"""What building the parser leaves on the command line's object."""


PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg==")
"""A picture of one."""

RENDER = Figure.savefig

OF_EVERY_RUN = ("_history", "_histogram")
"""Figures in `lit_fed.pictures.run` of tables that every run has, whatever its algorithm."""


def do_not_render() -> None:
    """Draw the figures of a run, but write one pixel in the place of each.

    Those of every run are drawn once for each kind of table.
    """
    from lit_fed.pictures import run

    def savefig(figure: Figure, file: Any, **_: Any) -> None:
        file.write(PIXEL) if hasattr(file, "write") else Path(file).write_bytes(PIXEL)

    Figure.savefig = savefig
    for name in OF_EVERY_RUN:
        setattr(run, name, _once_for_each_kind(getattr(run, name)))


def _once_for_each_kind(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """A figure that is left empty where one of a table with the same columns, gaps and populations was drawn before.

    Errors, unlike accuracies, are drawn on a scale that follows from their values: these figures are always drawn.
    """
    drawn = set()

    @functools.wraps(draw)
    def figure(table: Any, *given: Any) -> Figure:
        gaps, people = table.isna(), set(table.get("population", ()))
        words = tuple(one for one in given if isinstance(one, str))
        kind = (*table, *gaps.any(), *gaps.all(), len(table) > 1, *sorted(people), words)
        if Figure.savefig is RENDER or "mse" in words or kind not in drawn:
            drawn.add(kind)
            return draw(table, *given)
        return given[-1]()

    return figure


@contextmanager
def rendering() -> Iterator[None]:
    """For tests that look at pictures."""
    before, Figure.savefig = Figure.savefig, RENDER
    try:
        yield
    finally:
        Figure.savefig = before


def read_digits_once() -> None:
    """Let all runs of this process, and of those forked from it, share what is read of scikit-learn's file."""
    from lit_fed.data.data_sets.digits import Digits

    Digits().load()


def build_parser_once() -> None:
    """Let all command lines of this process, and of those forked from it, share the parsers of the first ones.

    One that begins with a command makes the parser of that command alone.
    """
    from lit_fed.cli import FederatedCLI

    build, made = FederatedCLI.setup_parser, {}

    def setup_parser(self: Any, *args: Any) -> None:
        if self._only not in made:
            build(self, *args)
            made[self._only] = {name: getattr(self, name) for name in MADE}
        self.__dict__.update(made[self._only])

    FederatedCLI.setup_parser = setup_parser
