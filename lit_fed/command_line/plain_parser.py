"""The parser of commands that start without PyTorch and Lightning."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import Any, NoReturn

from lit_fed.errors import ConfigError

__all__ = ["PlainParser"]


class PlainParser(argparse.ArgumentParser):
    """A parser of a command, whose errors are a message, not a usage page.

    Args:
        command: its name.
        description: what it does.
        usage: how it is called; by default its name and options.
    """

    def __init__(self, command: str, description: str, usage: str = "") -> None:
        program = "python -m lit_fed"
        super().__init__(
            prog=f"{program} {command}", usage=f"{program} {usage or f'{command} [options]'}", description=description,
            allow_abbrev=False,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        """Stop with a message that says what is known.

        Raises:
            ConfigError: always.
        """
        text = re.sub(r"^argument (?=-)", "", message).replace("the following arguments are required", "missing")
        unknown = re.search(r"unrecognized arguments: (-\S+)", text)
        if unknown is not None:
            known: list[Any] = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[1].partition("=")[0], known, 1)
            text += f"\ndid you mean {near[0]}?" if near else "\n`--help` behind the command lists its options"
        raise ConfigError(text)
