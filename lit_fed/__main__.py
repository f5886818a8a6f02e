"""`python -m lit_fed`, or `lit-fed`."""

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType, ModuleType
from typing import NoReturn

from lit_fed.command_line.light_start import light_start
from lit_fed.command_line.start_page import OF_DEPLOYMENT, answer

__all__ = ["command_line", "main"]


def main() -> None:
    """Run the command line; help and version are printed without loading PyTorch."""
    with contextlib.suppress(FileNotFoundError):  # the folder was deleted
        if not sys.flags.safe_path and not {"", os.getcwd()} & {*sys.path}:
            sys.path.insert(0, os.getcwd())  # as by `python -m`, so that `lit-fed` finds the same user-defined classes
    if answer(sys.argv[1:]):
        return
    # Libraries print tracebacks, or worse, if Ctrl-C interrupts their import or exit.
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if handled:
        signal.signal(signal.SIGINT, _leave)
    run: Callable[[], None]
    if sys.argv[1] in OF_DEPLOYMENT:
        run = partial(importlib.import_module("lit_fed.command_line.deployed").main, command_line)
    else:
        run = command_line().main

    try:
        if handled:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:  # while no command handles it
        if os.environ.get("LIT_FED_DEBUG") == "1":
            raise
        sys.stderr.write("lit_fed: interrupted\n")
        sys.exit(130)
    finally:
        if handled:
            signal.signal(signal.SIGINT, _leave)


def command_line() -> ModuleType:
    """The command line of all other commands, which loads Lightning."""
    with light_start():
        return importlib.import_module("lit_fed.cli")


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
