"""What `python -m lit_fed` can do, told without loading what does it."""

from __future__ import annotations

import sys
from importlib.metadata import version

__all__ = ["COMMANDS", "WITHOUT_LIGHTNING", "answer", "start_page"]

COMMANDS = {
    "fit": "Train: federated rounds, then a test; all is kept in a folder.",
    "validate": "Measure the clients of a checkpoint on their validation samples.",
    "test": "Measure the clients of a checkpoint on their test samples.",
    "predict": "Write what a trained model says about each sample of each client.",
    "personalize": "Serve unseen clients from a checkpoint alone.",
    "export": "Write one client's model as a file that loads without lit_fed.",
    "partition": "Show how samples are divided over clients, before any training.",
    "compare": "Put finished runs side by side: a table and pictures.",
    "sweep": "Run many values of a command's arguments, from a sweep file.",
    "flower-app": "Write a training as an app of Flower, for sites that have it.",
    "certificates": "Make certificates for a federation of real machines.",
    "client": "Work on this machine's data for a federation's server.",
    "federation": "Try a federation of several processes on one machine.",
}

EXAMPLES = (
    "fit --config configs/experiment/quickstart.yaml",
    "fit --config configs/experiment/quickstart.yaml --ckpt_path last",
    "test --ckpt_path runs/quickstart/version_0/checkpoints/last.ckpt",
)

WITHOUT_LIGHTNING = ("certificates", "client", "federation")
"""Commands that are run before Lightning is loaded."""

START = "lit-fed"


def start_page() -> str:
    """What the program is, its commands, the commonest command lines, and where to read on."""
    commands = "\n".join(f"  {name:<12} {what}" for name, what in COMMANDS.items())
    examples = "\n".join(f"  {START} {example}" for example in EXAMPLES)
    return f"""lit_fed {version("lit-fed")}: personalised federated learning on PyTorch Lightning

usage: {START} COMMAND [options], or python -m lit_fed COMMAND [options]

commands:
{commands}

train, go on after an interrupt, measure again:
{examples}

more:
  COMMAND --help                      the options of a command
  fit --model.algorithm.help FedEM    the options of a class
  fit --print_config                  a complete configuration
  --print_completion bash             completion of commands and options; or zsh
  README.md and docs/ in the source explain runs, data, algorithms and results.
"""


def answer(given: list[str]) -> bool:
    """Answer `--help`, `--version` and a command line without any argument; returns whether it was one of these.

    Args:
        given: the arguments of the program.
    """
    if given in (["-h"], ["--help"]):
        sys.stdout.write(start_page())
    elif given == ["--version"]:
        sys.stdout.write(f"lit_fed {version('lit-fed')}\n")
    elif not given:
        sys.stderr.write(start_page())
        raise SystemExit(2)
    else:
        return False
    return True
