"""`python -m lit_fed` as soak.py starts it: nothing is compiled meanwhile, and the clock may jump.

`SOAK_CLOCK` holds pairs of seconds after the start and seconds that `time.time` jumps by then, as JSON. Python would
keep modules that it compiles under a limit on the size of files as far as they go, and fail to load them ever after.
"""

from __future__ import annotations

import json
import os
import sys
import time

sys.dont_write_bytecode = True


def jump(jumps: list[tuple[float, float]]) -> None:
    """Let the clock jump; what measures durations by `time.monotonic` does not see it."""
    true, begin = time.time, time.monotonic()
    time.time = lambda: true() + sum(by for after, by in jumps if time.monotonic() - begin >= after)


if __name__ == "__main__":
    jump(json.loads(os.environ.get("SOAK_CLOCK", "[]")))

    from lit_fed.__main__ import main

    main()
