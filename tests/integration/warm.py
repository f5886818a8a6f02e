"""Import this before forking: loads lit_fed and all that its runs load, and fills the caches of its command line."""

import atexit
import contextlib
import gc
import importlib
import os
import sys

import torch

from lit_fed.cli import main

LOADED_WITH_LIT_FED = frozenset(sys.modules)
"""What is loaded with the command line, before a run asks for more."""

for name in ("matplotlib.backends.backend_agg", "pandas"):
    importlib.import_module(name)
prepared = importlib.import_module("prepared")  # which loads pictures, and with them pandas
torch.set_num_threads(1)
prepared.build_parser_once()
REFUSED = {
    **dict.fromkeys(("fit", "test", "predict", "personalize", "export"), "--model.solver.lr=-1"),
    "partition": "--data.seed=-1", "sweep": "-1", "compare": "-1",
}  # fmt: skip
for arguments in REFUSED.items():
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere), contextlib.suppress(SystemExit):
        main(list(arguments))
# Behind the parser: which of two types a union tries first is that of its first use in a process.
prepared.read_digits_once()
gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # or libraries complain of what is left at the end of this process
