"""Completion of commands, options and their values in a shell: `lit-fed --print_completion bash`.

jsonargparse's own way to shtab follows every class that Lightning's trainer could be given, which takes minutes. Here
the options of a command are those of its help, and those of lit_fed's classes.
"""

from __future__ import annotations

import argparse
from typing import Any, get_args

import shtab

import lit_fed.callbacks
from lit_fed.command_line.classes import CLASSES, class_names, subclasses
from lit_fed.command_line.deployed import DEPLOYED
from lit_fed.command_line.help import BASES
from lit_fed.command_line.parser import FederatedParser
from lit_fed.command_line.start_page import COMMANDS
from lit_fed.errors import ConfigError

__all__ = ["completion_script"]

PATHS = {"config", "ckpt_path", "init_from", "output", "clients", "root", "path", "default_root_dir", "states", "tls"}
"""Options, by the last part of their names, that take a file or folder."""


def completion_script(shell: str, commands: dict[str, Any]) -> str:
    """A script that teaches a shell the program `lit-fed`.

    Args:
        shell: one of those that shtab knows: `bash`, `zsh` or `tcsh`.
        commands: the parser of each command but those of `DEPLOYED`.

    Raises:
        ConfigError: if the shell is another one.
    """
    if shell not in shtab.SUPPORTED_SHELLS:
        known = ", ".join(shtab.SUPPORTED_SHELLS)
        raise ConfigError(f"--print_completion {shell or '(no value)'}: no such shell; choose one of {known}")
    program = argparse.ArgumentParser(prog="lit-fed")
    program.add_argument("--version", action="store_true", help="print the version")
    program.add_argument("--print_completion", choices=shtab.SUPPORTED_SHELLS, help="print a script like this one")
    below = program.add_subparsers()
    for name, parser in {**commands, **{name: parser() for name, parser in DEPLOYED.items()}}.items():
        command = below.add_parser(name, help=COMMANDS[name])
        for action in (*parser._actions, *_of_classes(parser)):
            _add(command, action)
    return str(shtab.complete(program, shell))


def _of_classes(parser: Any) -> list[argparse.Action]:
    """The options of the classes that the command's own options can name."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    given = {option for action in shown for option in action.option_strings}
    actions: list[argparse.Action] = []
    for option, (_, base) in CLASSES.items():
        if given.intersection((option, option.rpartition(".")[0])):
            for one in subclasses(base):
                of_class = FederatedParser()
                skip = {2} if option == "--model.network" else set()  # sizes, which the data tell
                of_class.add_class_arguments(one, option.removeprefix("--"), skip=skip)
                actions += [action for action in of_class._actions if action.dest.startswith(option[2:] + ".")]
    return actions


def _add(command: argparse.ArgumentParser, action: argparse.Action) -> None:
    options = [option for option in action.option_strings if not option.endswith("+")]
    if action.help == argparse.SUPPRESS or action.dest == "help":
        return
    if not options:  # a file or a folder, by its place
        command.add_argument(action.dest, nargs=action.nargs, help=action.help).complete = shtab.FILE  # type: ignore[attr-defined]
        return
    known: Any = command._option_string_actions.get(options[0])
    if known is not None:  # of another class; its values may be others
        known.choices = list(dict.fromkeys([*(known.choices or ()), *(_values(action) or ())])) or None
        return
    if action.dest.endswith("print_config"):
        command.add_argument(*options, action="store_true", help="print the complete configuration")
        return
    text = (action.help or "").partition(". ")[0]
    added = command.add_argument(*options, help=text.replace("%", "%%"), choices=_values(action))
    if action.dest.rpartition(".")[2] in PATHS:
        added.complete = shtab.FILE  # type: ignore[attr-defined]


def _values(action: argparse.Action) -> list[str] | None:
    """What an option can be given; None: too much to be listed."""
    option = action.option_strings[-1].removesuffix(".help")
    if option.removesuffix("+") == "--trainer.callbacks":
        return [name for name in lit_fed.callbacks.__all__ if name[0].isupper() and name not in BASES]
    if option in CLASSES:
        return class_names(CLASSES[option][1])
    metavar = str(action.metavar)
    if metavar.startswith("{"):
        return metavar.strip("{}").split(",")
    return _literals(getattr(action, "_typehint", None)) or None


def _literals(kind: Any) -> list[str]:
    """The strings in a type such as Optional[Literal['samples', 'uniform']]."""
    return [word for one in get_args(kind) for word in ([one] if isinstance(one, str) else _literals(one))]
