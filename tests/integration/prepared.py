"""What most of the time of a small run goes into, and no test of a run is about: building the parser, and rendering."""

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

MADE = ("parser", "_subcommand_method_arguments", "_subcommand_parsers")
"""What building the parser leaves on the command line's object."""


PIXEL = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAG7buVgAAAABJRU5ErkJggg==")
"""A picture of one."""

RENDER = Figure.savefig


def do_not_render() -> None:
    """Draw the figures of a run, but write one pixel in the place of each."""

    def savefig(figure: Figure, file: Any, **_: Any) -> None:
        file.write(PIXEL) if hasattr(file, "write") else Path(file).write_bytes(PIXEL)

    Figure.savefig = savefig


@contextmanager
def rendering() -> Iterator[None]:
    """For tests that look at pictures."""
    before, Figure.savefig = Figure.savefig, RENDER
    try:
        yield
    finally:
        Figure.savefig = before


def build_parser_once() -> None:
    """Let all command lines of this process, and of those forked from it, share the first one's parser."""
    from lit_fed.cli import FederatedCLI

    build, made = FederatedCLI.setup_parser, {}

    def setup_parser(self: Any, *args: Any) -> None:
        if not made:
            build(self, *args)
            made.update({name: getattr(self, name) for name in MADE})
        self.__dict__.update(made)

    FederatedCLI.setup_parser = setup_parser
