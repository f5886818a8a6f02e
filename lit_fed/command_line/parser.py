"""The parser of the command line."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from typing import Any, NoReturn, get_args

import docstring_parser
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch.cli import LightningArgumentParser

from lit_fed.command_line.classes import explain_class
from lit_fed.command_line.help import FederatedHelp, plain_type
from lit_fed.command_line.moved_classes import with_present_paths
from lit_fed.command_line.own_networks import as_function, options_of_own_network
from lit_fed.command_line.start_page import COMMANDS
from lit_fed.errors import ConfigError

__all__ = ["FederatedParser", "refuse_nulls", "written"]

UNKNOWN_COMMAND = re.compile(r"invalid choice: '([^']*)' \(choose from")
"""How a message begins about a command that cannot be found."""

MEANT = {
    "train": "fit", "run": "fit", "eval": "test", "evaluate": "test", "inference": "predict", "serve": "personalize",
    "personalise": "personalize", "adapt": "personalize", "save": "export", "split": "partition",
    "node": "client", "search": "sweep", "tune": "sweep", "diff": "compare", "plot": "compare",
}  # fmt: skip
"""Commands by the names that other programs have for them."""

SAME = {
    "learning_rate": "lr", "rounds": "max_epochs", "num_rounds": "max_epochs", "n_clients": "num_clients",
    "optimizer_lr": "lr", "l2": "weight_decay",
}  # fmt: skip
"""Options by the names that other programs have for them; last parts, here and there."""

UNKNOWN = re.compile(r"(?:unrecognized arguments: |does not accept option ')(-*[\w.]+)")
"""How a message begins about an option that cannot be found."""

WORDS = (
    (re.compile(r"[Pp]arser key \"([\w.]+)\":"), r"--\1:"),
    (re.compile(r"Expected a dot import path string: (.*)"), r"there is no class \1"),
    (re.compile(r"(?:typing\.)?Literal\[(.*?)\]"), r"value out of \1"),
    (re.compile(r"<class '(?:[\w.]+\.)?(\w+)'>"), r"\1"),
    (re.compile(r"Expected an? (?=[\w'])"), "expected "),
    (re.compile(r"^Unexpected config:.*"), "--config: a configuration has sections, such as `model:` and `data:`"),
)
"""jsonargparse's words, and what they mean on a command line."""

OF_SECTION = re.compile(r"^(--[\w.]+): --(\w+):")
"""How a message begins about an option of a section that may be left out."""

REFUSED_OPTION = re.compile(r"^--([\w.]+):\s+Option '(\w+)' is not accepted")
"""How one begins about an option that a class or a section does not have."""

CLASS_OPTIONS = "`fit --model.algorithm.help NAME` and the like list the options of a class"

SAID_ELSEWHERE = re.compile(
    r"Expected a path but|Does not validate against|^Subtypes: |^Errors:|NoneType|^Given value type|NestedArg"
)
"""Lines of its messages that name Python's types, or repeat what other lines say."""

CLASS_HELP = re.compile(r"Help for --([\w.]+)\.help=(?:[\w.]+\.)?(\w+)")
"""What jsonargparse calls the parser of one class, made for its help."""


REFUSED_BY_OBJECT = "Does not validate against any of the Union subtypes"
"""What it says where the class of an option that takes several kinds, such as a logger, raises an error."""

PACKAGE_IS_MISSING = re.compile(r"No module named|not met|not installed|pip install")


class FederatedParser(LightningArgumentParser):
    """A parser whose errors are a message, not a usage page, and whose help is short."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", FederatedHelp)
        kwargs.setdefault("prog", "python -m lit_fed")
        kwargs.setdefault("allow_abbrev", False)  # a prefix would mean another option once there is one more
        found = CLASS_HELP.fullmatch(kwargs.get("description") or "")
        self._explains_class = found is not None
        if found is not None:
            chosen = f"--{found[1]}{'+=' if found[1] == 'trainer.callbacks' else ' '}{found[2]}"
            kwargs["usage"] = f"python -m lit_fed fit {chosen} [options]"
        super().__init__(*args, **kwargs)

    def add_class_arguments(self, theclass: type, *args: Any, **kwargs: Any) -> list[str]:
        """Add a class's arguments; where a class alone is explained, say what it is even if it takes none."""
        added: list[str] = super().add_class_arguments(theclass, *args, **options_of_own_network(theclass, kwargs))
        if self._explains_class:
            said = docstring_parser.parse(inspect.getdoc(theclass) or "")
            self.description = " ".join(filter(None, (said.short_description, said.long_description)))
            self._action_groups[-1].title = "options" if added else None
        return added

    def add_function_arguments(self, function: Any, *args: Any, **kwargs: Any) -> list[str]:
        """Add a function's arguments, which makes a network; the data tell the sizes."""
        added: list[str] = super().add_function_arguments(function, *args, **options_of_own_network(function, kwargs))
        return added

    def parse_args(self, args: Any = None, *rest: Any, **kwargs: Any) -> Any:
        """Parse the command line; a class that has moved may be given by its former path."""
        given = [with_present_paths(one) for one in args] if isinstance(args, list) else args
        return super().parse_args(given, *rest, **kwargs)

    def parse_string(self, content: str, *rest: Any, **kwargs: Any) -> Any:
        """Parse a configuration; a class that has moved may be given by its former path."""
        return super().parse_string(with_present_paths(content), *rest, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Stop with a message that says what is known.

        Raises:
            ConfigError: always.
        """
        fields = self._near_fields(message)
        known = [line for line in _readable(message) if not fields or CLASS_OPTIONS not in line]
        lines = explain_class(message) or [*known, *(fields or self._near_names(message))]
        raise ConfigError("\n".join(lines)) from ex

    def _near_names(self, message: str) -> list[str]:
        """Names of options or commands close to one that does not exist."""
        command = UNKNOWN_COMMAND.search(message)
        if command is not None and self._subcommands_action is not None:
            commands = {name: name for name in COMMANDS} | MEANT
            close = difflib.get_close_matches(command[1].lower(), commands, 1)
            return [f"did you mean {commands[close[0]]}?" if close else "`--help` says what each command does"]
        found = UNKNOWN.search(message)
        if found is None:
            refused = "is not accepted" in message and CLASS_OPTIONS not in message
            return [CLASS_OPTIONS] if refused else []
        known = self._known_options()
        meant = "--" + found[1].lstrip("-")
        if meant in known:  # it stands before the command
            return [f"options stand behind a command, as in `fit {meant} …`"]
        near = _near_options(meant, known)
        return [f"did you mean {' or '.join(near)}?"] if near else ["`--help` behind a command lists its options"]

    def _known_options(self) -> list[str]:
        """All options of this parser, and of the commands below it."""
        below = self._subcommands_action._name_parser_map.values() if self._subcommands_action else ()
        return [option for parser in (self, *below) for option in parser._option_string_actions]

    def _near_fields(self, message: str) -> list[str]:
        """Names of a section's options close to one that it does not have; of a class's those with another name."""
        found = REFUSED_OPTION.match(" ".join(_readable(message)))
        if found is None:
            return []
        if found[2] in SAME:
            return [f"did you mean {one}?" for one in _near_options(found[2], self._known_options())[:1]]
        below = self._subcommands_action._name_parser_map.values() if self._subcommands_action else ()
        actions = [one for parser in (self, *below) for one in parser._actions if one.dest == found[1]]
        kinds = [kind for action in actions for kind in get_args(getattr(action, "_typehint", None))]
        fields = [one.name for kind in kinds if dataclasses.is_dataclass(kind) for one in dataclasses.fields(kind)]
        near = difflib.get_close_matches(found[2], fields, 1)
        return [f"did you mean --{found[1]}.{one}?" for one in near]

    def instantiate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> Namespace:
        """Make the objects. For one that may be null jsonargparse wraps what it refuses; the wrapping is taken off.

        Raises:
            ConfigError: if an object refuses its arguments, or needs a package that is not there.
        """
        try:
            made: Namespace = super().instantiate(as_function(namespace), *args, **kwargs)
            return made
        except (ValueError, ModuleNotFoundError) as error:
            if isinstance(error.__cause__, ConfigError):
                raise error.__cause__ from None
            if REFUSED_BY_OBJECT not in str(error) and not isinstance(error, ModuleNotFoundError):
                raise
            raise ConfigError("\n".join(_refused_by_object(str(error)))) from error


def refuse_nulls(parser: FederatedParser, config: Namespace) -> None:
    """Refuse null for an option that takes none; jsonargparse lets it through where a configuration says it.

    Args:
        parser: the parser of a command.
        config: what it made of the arguments.

    Raises:
        ConfigError: naming the option.
    """
    for action in parser._actions:
        hint = getattr(action, "_typehint", None)  # private; without it the classes themselves refuse null
        if hint is not None and action.default is not None:
            kind = plain_type(str(hint))
            if config.get(action.dest, "absent") is None and "null" not in kind.split(" | "):
                raise ConfigError(f"--{action.dest} is null; give a value of type {kind}, or leave it out")


def written(parser: ArgumentParser, config: Namespace, **options: str) -> str:
    """All arguments as text, which are not checked once more: that takes longer than writing them.

    Args:
        parser: the parser of a command.
        config: what it made of the arguments.
        options: of `ArgumentParser.dump`, such as the `format`.
    """
    text: str = parser.dump(config, skip_unset=False, skip_validation=True, **options)
    return text


def _refused_by_object(message: str) -> list[str]:
    """What is said of a logger, say, that cannot be made."""
    lines = [line for line in _readable(message) if REFUSED_BY_OBJECT not in line and "xpected" not in line]
    if PACKAGE_IS_MISSING.search(message):
        lines.append(
            'extras bring the packages of loggers: pip install -e ".[tensorboard]", pip install -e ".[mlflow]"'
        )
    return ["an object that was asked for cannot be made:", *lines]


def _near_options(meant: str, known: list[str]) -> list[str]:
    """Options of the same last part, else those that begin like this one, else those of a similar spelling."""
    options = list(dict.fromkeys(one for one in known if not one.endswith(".help")))
    last = meant.lstrip("-").rpartition(".")[2]
    near = [one for one in options if one.endswith("." + SAME.get(last, last))]
    near = near or [one for one in options if one.startswith(meant)][:3]
    return near or difflib.get_close_matches(meant, options, 2, 0.8)


def _readable(message: str) -> list[str]:
    """A message of jsonargparse in as many lines as it takes."""
    lines = [line.strip().removeprefix("- ") for line in str(message).splitlines()]
    kept = [line for line in lines if line and not SAID_ELSEWHERE.search(line)]
    for pattern, word in WORDS:
        kept = [pattern.sub(word, line) for line in kept]
    first, *rest = dict.fromkeys(kept)
    together = f"{first} {'; '.join(rest)}"
    if first.endswith(":") and len(together) <= 100:
        return [OF_SECTION.sub(r"\1.\2:", together)]
    return [first, *(f"  {line}" for line in rest[:10])]
