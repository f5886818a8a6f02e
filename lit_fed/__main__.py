"""`python -m lit_fed`, or `lit-fed`."""

import sys

from lit_fed.command_line.start_page import answer

__all__ = ["main"]


def main() -> None:
    """Run the command line; what needs no command is answered without PyTorch, at once."""
    if answer(sys.argv[1:]):
        return
    try:
        from lit_fed.cli import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


if __name__ == "__main__":
    main()
