"""What most of the time of a small run goes into, and no test of a run is about: building the parser, and rendering."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

MADE = ("parser", "_subcommand_method_arguments", "_subcommand_parsers")
"""What building the parser leaves on the command line's object."""


RENDER = Figure.savefig


def do_not_render() -> None:
    """Draw the figures of a run, but write empty files."""

    def savefig(figure: Figure, file: Any, **_: Any) -> None:
        file.write(b"") if hasattr(file, "write") else Path(file).touch()

    Figure.savefig = savefig


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
