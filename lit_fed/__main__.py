"""`python -m lit_fed`, or `lit-fed`."""

import contextlib
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from lit_fed.command_line.start_page import answer

__all__ = ["main"]


def main() -> None:
    """Run the command line; what needs no command is answered without PyTorch, at once."""
    if answer(sys.argv[1:]):
        return
    # Libraries print tracebacks, or worse, when Ctrl-C meets them while they load or unload.
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores it
    if heard:
        signal.signal(signal.SIGINT, _leave)
    from lit_fed.command_line.light_start import light_start

    with light_start():
        from lit_fed.cli import main as run

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    finally:
        if heard:
            signal.signal(signal.SIGINT, _leave)


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
