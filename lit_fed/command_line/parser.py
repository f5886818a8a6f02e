"""The parser of the command line."""

from __future__ import annotations

import inspect
import re
from functools import partial
from typing import Any, NoReturn

import docstring_parser
from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import import_object  # type: ignore[attr-defined]
from lightning.pytorch.cli import LightningArgumentParser

from lit_fed.command_line.arguments import with_values
from lit_fed.command_line.classes import as_function, explain_class, options_of_own_network
from lit_fed.command_line.help import FederatedHelp
from lit_fed.command_line.start_page import COMMANDS
from lit_fed.errors import ConfigError
from lit_fed.system.names import did_you_mean, nearest
from lit_fed.system.upgrade import instead_of

__all__ = ["FederatedParser", "command_parser", "written"]

UNKNOWN_COMMAND = re.compile(r"invalid choice: '([^']*)' \(choose from")
"""Beginning of a message about a command that does not exist."""

MEANT = {
    "train": "fit", "run": "fit", "eval": "test", "evaluate": "test", "inference": "predict", "serve": "personalize",
    "personalise": "personalize", "adapt": "personalize", "save": "export", "split": "partition",
    "node": "client", "search": "sweep", "tune": "sweep", "diff": "compare", "plot": "compare",
}  # fmt: skip
"""Names of commands in other programs, and those here."""

SAME = {
    "learning_rate": "lr", "rounds": "max_epochs", "num_rounds": "max_epochs", "n_clients": "num_clients",
    "optimizer_lr": "lr", "l2": "weight_decay",
}  # fmt: skip
"""Names of options in other programs, and those here; last parts only."""

UNKNOWN = re.compile(r"(?:unrecognized arguments: |does not accept option ')(-*[\w.]+)")
"""Beginning of a message about an option that does not exist."""

REFUSED_OPTION = re.compile(r"^(?:--([\w.]+):\s+)?Option '(\w+)' is not accepted(?:[;\s]+did you mean \S*?(\w+)\?)?")
"""Beginning of a message about an option that a class or a section does not have, in its parser or, with the name of
the class's option, in one around it."""

BARE_LIST = re.compile(
    r"^(--[\w.]+):\s+expected (?:tuple|list|sequence)\b.*(?:Got|Given) value: ([^\s\[\]{}]*,[^\[\]{}]*)$", re.M | re.I
)
"""Message about a list without brackets."""

OF_CLASS = re.compile(r"--\w+(\.\w+)*:")
"""Beginning of a line about an option of a class or a section, after a line with the name of that."""

WORDS = (
    (re.compile(r"[Pp]arser key \"([\w.]+)\":"), r"--\1:"),
    (re.compile(r"Expected a dot import path string: (.*)"), r"there is no class \1"),
    (re.compile(r"(?:typing\.)?Literal\[(.*?)\]"), r"value out of \1"),
    (re.compile(r"<class '(?:[\w.]+\.)?(\w+)'>"), r"\1"),
    (re.compile(r"Expected an? (?=[\w'])"), "expected "),
)
"""jsonargparse's words, and what they mean on a command line."""

NO_SECTIONS = "--config: a configuration has sections, such as `model:` and `data:`"

CLASS_OPTIONS = "`fit --model.algorithm.help NAME` and the like list the options of a class"

LEFT_OUT = ("Expected a path but", "Does not validate against", "NoneType", "NestedArg")
LEFT_OUT_FROM_START = ("Subtypes: ", "Errors:", "Given value type")
"""Lines of its messages that name Python's types, or repeat other lines."""

REFUSED_BY_OBJECT = "Does not validate against any of the Union subtypes"
"""Its message if the class of an option of several kinds, such as a logger, raises an error."""

PACKAGE_IS_MISSING = ("No module named", "not met", "not installed", "pip install")


class FederatedParser(LightningArgumentParser):
    """A parser whose errors are a message, not a usage page, and whose help is short."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", FederatedHelp)
        kwargs.setdefault("prog", "python -m lit_fed")
        kwargs.setdefault("allow_abbrev", False)  # a prefix would mean another option once there is one more
        about, _, path = str(kwargs.get("description")).partition(".help=")
        self._explains_class = about.startswith("Help for --")  # jsonargparse's name of the parser of one class
        if self._explains_class:
            option = about.removeprefix("Help for ")
            chosen = f"{option}{'+=' if option == '--trainer.callbacks' else ' '}{path.rpartition('.')[2]}"
            kwargs["usage"] = f"python -m lit_fed fit {chosen} [options]"
        super().__init__(*args, **kwargs)
        self.configurations: list[Namespace] = []  # of the arguments that were parsed last, in their order

    def add_class_arguments(self, theclass: type, *args: Any, **kwargs: Any) -> list[str]:
        """Add a class's arguments; in the help of one class, also describe the class."""
        added: list[str] = super().add_class_arguments(theclass, *args, **options_of_own_network(theclass, kwargs))
        if self._explains_class:
            said = docstring_parser.parse(inspect.getdoc(theclass) or "")
            self.description = " ".join(filter(None, (said.short_description, said.long_description)))
            self._action_groups[-1].title = "options" if added else None
        return added

    def add_function_arguments(self, function: Any, *args: Any, **kwargs: Any) -> list[str]:
        """Add the arguments of a function that makes a network, without the sizes of the data."""
        added: list[str] = super().add_function_arguments(function, *args, **options_of_own_network(function, kwargs))
        return added

    def get_defaults(self, *args: Any, **kwargs: Any) -> Namespace:
        """The defaults, without options at the default of their class.

        Parsing completes the options of the class that is named in the end; another class would keep these.
        """
        found: Namespace = super().get_defaults(*args, **kwargs)
        for action in self._actions:
            chosen = found.get(action.dest)
            if isinstance(chosen, Namespace) and "class_path" in chosen and chosen.get("init_args"):
                own = inspect.signature(import_object(chosen.class_path)).parameters
                options = vars(chosen.pop("init_args")).items()
                given = {name: value for name, value in options if name not in own or own[name].default != value}
                if given:
                    chosen["init_args"] = Namespace(**given)  # type: ignore[no-untyped-call]
        return found

    def parse_args(  # type: ignore[override]  # of overloads
        self, args: Any = None, *more: Any, **options: Any
    ) -> Namespace:
        """Parse arguments; a list may be given without brackets, as `a,b`, wherever one is taken."""
        self.configurations = []
        try:
            parsed: Namespace = super().parse_args(args, *more, **options)
        except ConfigError as error:
            found = BARE_LIST.search(str(error))
            bracketed = [] if found is None else with_values(args or [], partial(_bracketed, found))
            if bracketed in ([], args):
                raise
            return self.parse_args(bracketed, *more, **options)
        return parsed

    def parse_string(self, *args: Any, **options: Any) -> Namespace:
        """Parse the text of a configuration, and remember it."""
        parsed: Namespace = super().parse_string(*args, **options)
        self.configurations.append(parsed.clone())
        return parsed

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Stop with jsonargparse's message in plain words and the nearest names.

        Raises:
            ConfigError: always.
        """
        lines = explain_class(message) or self._refused_option(message)
        lines = lines or [*_readable(message), *self._near_names(message)]
        raise ConfigError("\n".join(lines)) from ex

    def _near_names(self, message: str) -> list[str]:
        """Names of options or commands close to one that does not exist."""
        command = UNKNOWN_COMMAND.search(message)
        if command is not None and self._subcommands_action is not None:
            commands = {name: name for name in COMMANDS} | MEANT
            meant = [commands[one] for one in nearest(command[1], commands)]
            return [did_you_mean(command[1], (), "`--help` says what each command does", first=meant)]
        found = UNKNOWN.search(message)
        if found is None:
            refused = "is not accepted" in message and CLASS_OPTIONS not in message
            return [CLASS_OPTIONS] if refused else []
        known = [option for parser in self._parsers() for option in parser._option_string_actions]
        option = "--" + found[1].lstrip("-")
        if option in known:  # it is given before the command
            return [f"options come after the command, as in `fit {option} …`"]
        return [_near_option(option, known, "`--help` after a command lists its options")]

    def _parsers(self) -> list[Any]:
        """This parser, and those of the commands below it."""
        return [self, *(self._subcommands_action._name_parser_map.values() if self._subcommands_action else ())]

    def _refused_option(self, message: str) -> list[str]:
        """Lines about an option that a class or a section does not have, with the nearest; none if none is near."""
        found = REFUSED_OPTION.match(" ".join(_readable(message)))
        if found is None:
            return []
        place, name, near = found.groups()
        if gone := instead_of(f"{place or 'model.algorithm'}.{name}"):
            return gone
        if name in SAME:
            known = [option for parser in self._parsers() for option in parser._option_string_actions]
            meant = _of_same_part(name, known)[:1]
        elif place is None:  # this is the parser of the class
            meant = nearest(name, [one.dest for one in self._actions])
        else:
            meant = [f"--{place}.{near}"] if near else []
        refused = f"{f'--{place}: ' if place else ''}Option '{name}' is not accepted"
        return [refused, *(f"did you mean {one}?" for one in meant)] if meant else []

    def instantiate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> Namespace:
        """Make the objects, and raise the `ConfigError` that jsonargparse wraps for an object that may be null.

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


def command_parser(command: str, usage: str | None, about: str) -> FederatedParser:
    """The parser of a command without a trainer, before its arguments are added.

    Args:
        command: its name.
        usage: what follows the name; None: options alone.
        about: what its help says after the line of the start page.
    """
    program = f"python -m lit_fed {command}"
    usage = None if usage is None else f"{program} {usage}"
    return FederatedParser(prog=program, usage=usage, description=f"{COMMANDS[command]} {about}")


def written(parser: ArgumentParser, config: Namespace, **options: str) -> str:
    """All arguments as text, without checking them again, which takes longer than writing them."""
    text: str = parser.dump(config, skip_unset=False, skip_validation=True, **options)
    return text


def _bracketed(found: re.Match[str], option: str, value: str) -> str:
    return f"[{value}]" if (option, value) == (found[1], found[2]) else value


def _refused_by_object(message: str) -> list[str]:
    """Explain that an object, such as a logger, cannot be made."""
    lines = [line for line in _readable(message) if REFUSED_BY_OBJECT not in line and "xpected" not in line]
    if any(words in message for words in PACKAGE_IS_MISSING):
        lines.append(
            'extras bring the packages of loggers: pip install -e ".[tensorboard]", pip install -e ".[mlflow]"'
        )
    return ["an object cannot be made:", *lines]


def _of_same_part(meant: str, known: list[str]) -> list[str]:
    """Options whose last part is that of another one, or its name in other programs."""
    last = meant.lstrip("-").rpartition(".")[2]
    return [one for one in dict.fromkeys(known) if one.endswith("." + SAME.get(last, last))]


def _near_option(meant: str, known: list[str], otherwise: str) -> str:
    """Hint at options of the same last part, else those that begin like this one, else those of a similar spelling."""
    options = list(dict.fromkeys(one for one in known if not one.endswith(".help")))
    near = _of_same_part(meant, options) or [one for one in options if one.startswith(meant)][:3]
    return did_you_mean(meant, options, otherwise, cutoff=0.8, most=2, first=near)


def _readable(message: str) -> list[str]:
    """A message of jsonargparse in as many lines as it takes."""
    lines = [line.strip().removeprefix("- ") for line in str(message).splitlines()]
    kept = [line for line in lines if line and not line.startswith(LEFT_OUT_FROM_START)]
    kept = [line for line in kept if not any(words in line for words in LEFT_OUT)]
    for pattern, word in WORDS:
        kept = [pattern.sub(word, line) for line in kept]
    first, *rest = dict.fromkeys(NO_SECTIONS if one.startswith("Unexpected config:") else one for one in kept)
    while first.endswith(":") and rest and OF_CLASS.match(rest[0]) and not rest[0].startswith(f"{first[:-1]}."):
        first, rest = f"{first[:-1]}.{rest[0][2:]}", rest[1:]
    if first.endswith(":") and not rest:  # a part of an option that is a single value
        return [f"{first} it takes a value, and has no parts; give it without a dot"]
    together = f"{first} {'; '.join(rest)}"
    if first.endswith(":") and len(together) <= 100:
        return [together]
    return [first, *(f"  {line}" for line in rest[:10])]
