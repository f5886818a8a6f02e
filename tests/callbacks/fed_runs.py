"""The command line within this process."""

import contextlib
import io

from lit_fed.cli import main


def run_cli(arguments):
    """Run and return what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(arguments)
    return out.getvalue()
