"""The commands of `python -m lit_fed`, its start page, and a parser that needs neither PyTorch nor jsonargparse."""

from __future__ import annotations

import argparse
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from lit_fed.errors import ConfigError
from lit_fed.system.names import did_you_mean

__all__ = ["ABSENT", "COMMANDS", "OF_DEPLOYMENT", "PlainParser", "answer", "start_page"]

OF_DEPLOYMENT = ("flare-job", "flower-app", "certificates", "client", "federation")
"""Commands in `deployed.py`, which start before Lightning is loaded."""

COMMANDS = {
    "fit": "Train: federated rounds, then a test; all is kept in a folder.",
    "validate": "Measure the clients of a checkpoint on their validation samples.",
    "test": "Measure the clients of a checkpoint on their test samples.",
    "predict": "Write predictions for each sample of each client.",
    "personalize": "Serve unseen clients from a checkpoint alone.",
    "export": "Write one client's model as a file that loads without lit_fed.",
    "partition": "Show how samples are divided over clients, before any training.",
    "choose": "Does it pay to join? Try algorithms; tell each client its gain.",
    "blend": "Serve each client by a mixture of finished runs.",
    "compare": "Compare finished runs: a table and figures.",
    "report": "Write finished runs as one HTML page that can be sent to others.",
    "sweep": "Run many values of a command's arguments, from a sweep file.",
    "benchmark": "Tune and compare algorithms under one protocol, beside others.",
    "flare-job": "Write a training as a job of NVFlare, for a consortium.",
    "flower-app": "Write a training as an app of Flower, for sites that have it.",
    "certificates": "Make certificates for a federation of real machines.",
    "client": "Work on this machine's data for a federation's server.",
    "federation": "Try a federation of several processes on one machine.",
}

ROOMS = {
    "export": "training/export.py", "report": "command_line/report.py", "sweep": "command_line/sweep.py",
    "benchmark": "benchmark", **dict.fromkeys(OF_DEPLOYMENT, "deployment"),
}  # fmt: skip
"""Modules that a command needs and that may be absent."""

ABSENT = {name: room for name, room in ROOMS.items() if not Path(__file__).parents[1].joinpath(room).exists()}
COMMANDS = {name: what for name, what in COMMANDS.items() if name not in ABSENT}

EXAMPLES = (
    "fit --config configs/experiment/quickstart.yaml",
    "fit --config configs/experiment/quickstart.yaml --ckpt_path last",
    "test --ckpt_path runs/quickstart/version_0/checkpoints/last.ckpt",
)

START = "lit-fed"


def start_page() -> str:
    """The program, its commands, common command lines, and further reading."""
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
  README.md and docs/ in the source explain runs, data, algorithms and results.
"""


def answer(given: list[str]) -> bool:
    """Answer `--help`, `--version`, no argument, and commands that are absent; returns whether it was one of these."""
    if given in (["-h"], ["--help"]):
        sys.stdout.write(start_page())
    elif given == ["--version"]:
        sys.stdout.write(f"lit_fed {version('lit-fed')}\n")
    elif not given:
        sys.stderr.write(start_page())
        raise SystemExit(2)
    elif given[0] in ABSENT:
        sys.stderr.write(f"lit_fed: {given[0]}: lit_fed is installed here without its {ABSENT[given[0]]}\n")
        raise SystemExit(2)
    else:
        return False
    return True


class PlainParser(argparse.ArgumentParser):
    """A parser of a command, whose errors are a message, not a usage page.

    Args:
        command: its name.
        description: its description.
        usage: how it is called; by default its name and options.
    """

    def __init__(self, command: str, description: str, usage: str = "") -> None:
        program = "python -m lit_fed"
        super().__init__(
            prog=f"{program} {command}", usage=f"{program} {usage or f'{command} [options]'}", description=description,
            allow_abbrev=False,
        )  # fmt: skip
        self.gone: dict[str, str] = {}  # options that were removed, and what to do instead

    def error(self, message: str) -> NoReturn:
        """Stop with the message and, for an unknown option, the nearest one.

        Raises:
            ConfigError: always.
        """
        text = re.sub(r"^argument (?=-)", "", message).replace("the following arguments are required", "missing")
        _, found, unknown = text.partition("unrecognized arguments: ")
        if found and unknown.startswith("-"):
            known: list[Any] = [option for action in self._actions for option in action.option_strings]
            option = unknown.split()[0].partition("=")[0]
            meant = did_you_mean(option, known, "`--help` after the command lists its options")
            text += f"\n{self.gone.get(option, meant)}"
        raise ConfigError(text)
