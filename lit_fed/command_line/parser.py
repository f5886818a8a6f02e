"""The parser of the command line."""

from __future__ import annotations

import inspect
import re
import sys
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn

import docstring_parser
from jsonargparse import ArgumentParser, Namespace, _loaders_dumpers
from jsonargparse.typing import import_object  # type: ignore[attr-defined]
from lightning.pytorch.cli import LightningArgumentParser

from lit_fed.command_line.arguments import with_place
from lit_fed.command_line.classes import NETWORK, as_function, near_class, options_of_own_network
from lit_fed.command_line.help import FederatedHelp
from lit_fed.command_line.start_page import COMMANDS
from lit_fed.errors import ConfigError
from lit_fed.system.discovery import import_all, import_named
from lit_fed.system.names import did_you_mean, nearest
from lit_fed.system.plain_yaml import PlainLoader
from lit_fed.system.upgrade import GONE, instead_of

__all__ = ["FederatedParser", "command_parser", "written"]

# of configurations, of arguments and of their parts; there is no public name for it
_loaders_dumpers.yaml_default_loader = PlainLoader  # type: ignore[assignment]

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

HELP = ("-h", "--help")

COMMENT = re.compile(r"(?:^|\s)#.*")

PLACE = re.compile(r'Parser key "([\w.]+)":')
"""jsonargparse's name of an option."""

UNKNOWN = re.compile(
    r"(invalid choice: '|unrecognized arguments: (?=-)|does not accept option '|Option '|path string: |class_path '|"
    r"Import path |'\. Got value: |class, but )([^\s']+)"
)
"""Its words before a command, an option or a class that does not exist, and the name."""

OPTIONAL = re.compile(r": Does not validate against .*? Errors: - (--.*) - Expected a <class 'NoneType'>.*$")
"""Its words about an option of a class that may be null."""

NESTED = re.compile(r"--([\w.]+): --([\w.]+):")
"""Its name of an option of a class, whose own parser knows the last part of the name only."""

BARE_LIST = re.compile(r"Expected a <class '(?:list|tuple)'>.* value: ([\w.+-]+(?:,[\w.+-]+)+)$")
"""Its words for a list without brackets, and the list."""

NOT_TEXT = re.compile(r"Expected a <class 'str'>.*? (?:Got|Given) value: ([\w.+-]+)(?= |$)")
"""Its words for a number or a truth value in place of a text, and the value."""

BARE_MAPPING = re.compile(r"Expected a <class 'dict'>.* value: (\S+: \S+)$")
"""Its words for a mapping without braces, and the mapping."""

LINKED = re.compile(r"^argument (?:\S+\()?([\w., ]+)\)? --> ([\w.]+): .*$")
"""Its words for an option that was given although others set it."""

NOT_BOOL = re.compile(r"Expected a <class 'bool'>.* value: (?:yes|no|on|off)$", re.IGNORECASE)
"""Its words for one of YAML's old truth values."""

NO_VALUE = re.compile(r"argument (?:-\w/)?(--[\w.]+): expected one argument")
"""Its words for an option without a value, and the option."""

HINTS = ("did you mean", "`--help`", "its nearest relative", " takes ", " was removed ", "options come after")
"""Words of hints; a message about an option of a class holds that of the class's own parser."""

LOGGERS = {
    "WandbLogger": ("wandb", "wandb>=0.18"), "MLFlowLogger": ("mlflow", "mlflow-skinny>=2.10"),
    "TensorBoardLogger": ("tensorboard", "tensorboard>=2.15"),
}  # fmt: skip
"""Loggers of Lightning whose packages are optional → their extra and its requirement."""

WITHOUT_PACKAGE = re.compile(r"class_path '[\w.]+\.(\w+)': (?:Requirement '.*?' not met|Neither `)")
"""Lightning's words for a logger whose package is not installed, behind jsonargparse's."""

NOT_VALID = "Does not validate against"
"""Its words if an object of several possible types cannot be made."""


class FederatedParser(LightningArgumentParser):
    """A parser whose errors are a message, not a usage page, and whose help is short."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", FederatedHelp)
        kwargs.setdefault("prog", "python -m lit_fed")
        kwargs.setdefault("allow_abbrev", False)  # a prefix would mean another option once there is one more
        about, _, path = str(kwargs.get("description")).partition(".help=")
        # jsonargparse's name of the parser of one class
        self._explained = about.removeprefix("Help for --") if about.startswith("Help for --") else ""
        if option := self._explained:
            chosen = f"--{option}{'+=' if option == 'trainer.callbacks' else ' '}{path.rpartition('.')[2]}"
            kwargs["usage"] = f"python -m lit_fed fit {chosen} [options]"
        super().__init__(*args, **kwargs)
        self.configurations: list[Namespace] = []  # of the arguments that were parsed last, in their order

    def add_class_arguments(self, theclass: type, *args: Any, **kwargs: Any) -> list[str]:
        """Add a class's arguments; in the help of one class, also describe the class."""
        added: list[str] = super().add_class_arguments(theclass, *args, **options_of_own_network(theclass, kwargs))
        if self._explained:
            said = docstring_parser.parse(inspect.getdoc(theclass) or "")
            self.description = " ".join(filter(None, (said.short_description, said.long_description)))
            self._action_groups[-1].title = "options" if added else None
            for one in fields(theclass) if is_dataclass(theclass) else ():
                for action in self._actions:
                    if action.dest == f"{self._explained}.{one.name}":
                        action.within = one.metadata.get("range")  # type: ignore[attr-defined]
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

    def parse_args(self, args: Any = None, *more: Any, **options: Any) -> Namespace:  # type: ignore[override]  # of overloads
        """Parse arguments, and forget the configurations of earlier ones."""
        self.configurations = []
        words = list(sys.argv[1:] if args is None else args)
        if any(one in HELP or ".help" in one for one in words):
            import_all()
        else:
            import_named(" ".join(words))
        try:
            parsed: Namespace = super().parse_args(args, *more, **options)
        except ConfigError as error:
            raise ConfigError(with_place(words, str(error))) from error
        return parsed

    def parse_string(self, content: str, *args: Any, **options: Any) -> Namespace:
        """Parse the text of a configuration, and remember it."""
        import_named(COMMENT.sub("", content))
        parsed: Namespace = super().parse_string(f"{content}\n", *args, **options)  # no argument
        self.configurations.append(parsed.clone())
        return parsed

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Stop with jsonargparse's message in one line, and the nearest names.

        Raises:
            ConfigError: always.
        """
        text = OPTIONAL.sub(r": \1", " ".join(PLACE.sub(r"--\1:", str(message)).split()))
        text = NESTED.sub(r"--\1.\2:", text)
        text = LINKED.sub(r"--\2 follows from \1; leave it out", text)
        found = None if any(one in text for one in HINTS) else UNKNOWN.search(text)
        hint = self._hint(found[1], found[2], text) if found else ""
        bare = BARE_LIST.search(text)
        hint = f"a list has brackets, as in '[{bare[1]}]'" if bare else hint
        bare = BARE_MAPPING.search(text)
        hint = f"a mapping has braces, as in '{{{bare[1]}}}'" if bare else hint
        if plain := NOT_TEXT.search(text):
            written = {"True": "true", "False": "false", "None": "null"}.get(plain[1], plain[1])
            hint = f"YAML reads {written} as no text; quote it, as '\"{written}\"'"
        hint = "give true or false" if NOT_BOOL.search(text) or self._wants_bool(text) else hint
        raise ConfigError(f"{text}; {hint}" if hint else text) from ex

    def _wants_bool(self, text: str) -> bool:
        """Whether the option of a message about a missing value is true or false."""
        found = NO_VALUE.search(text)
        return found is not None and any(
            found[1] in one.option_strings and getattr(one, "_typehint", None) is bool for one in self._actions
        )

    def _hint(self, words: str, name: str, text: str) -> str:
        """The nearest command, option or class to one that does not exist."""
        if words.startswith("invalid"):
            commands = {one: one for one in COMMANDS} | MEANT
            meant = [commands[one] for one in nearest(name, commands)]
            return did_you_mean(name, (), "`--help` says what each command does", first=meant)
        if words.startswith("Option"):  # this is the parser of a class
            gone = instead_of(next((one for one in GONE if one.rpartition(".")[2] == name), name))
            known = [one.dest for one in self._actions]
            otherwise = "`--help` and, as `fit --model.algorithm.help NAME`, that of a class list options"
            return "; ".join(gone) or did_you_mean(name, known, otherwise)
        if not words.startswith(("unrecognized", "does")):
            place, _, inner = text.partition(":")
            return "" if " --" in inner else near_class(place.removeprefix("--"), name)
        parsers = [self, *(self._subcommands_action._name_parser_map.values() if self._subcommands_action else ())]
        known = [option for parser in parsers for option in parser._option_string_actions]
        option = "--" + name.lstrip("-")
        if option in known:  # it is given before the command
            return f"options come after the command, as in `fit {option} …`"
        return "; ".join(instead_of(option[2:])) or _near_option(option, known)

    def instantiate(self, namespace: Namespace, *args: Any, **kwargs: Any) -> Namespace:
        """Make the objects, and raise the `ConfigError` that jsonargparse wraps for an object that may be null.

        Raises:
            ConfigError: if an object refuses its arguments, or needs a package that is not there.
        """
        try:
            command = namespace.get("subcommand")
            key = f"{command}.{NETWORK}" if command else NETWORK
            if key in namespace:
                namespace = namespace.clone()
                namespace[key] = as_function(namespace[key])
            made: Namespace = super().instantiate(namespace, *args, **kwargs)
            return made
        except (ValueError, ModuleNotFoundError) as error:
            if isinstance(error.__cause__, ConfigError):
                raise error.__cause__ from None
            if NOT_VALID not in str(error) and not isinstance(error, ModuleNotFoundError):
                raise
            if (absent := WITHOUT_PACKAGE.search(str(error))) and absent[1] in LOGGERS:
                extra, requirement = LOGGERS[absent[1]]
                raise ConfigError(
                    f'--trainer.logger {absent[1]} needs the package {extra}; pip install "{requirement}" '
                    f"(the extra {extra})"
                ) from error
            raise ConfigError(" ".join(str(error).split())) from error


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
    text: str = parser.dump(config, skip_unset=False, skip_validation=True, skip_link_targets=False, **options)
    return text


def _near_option(meant: str, known: list[str]) -> str:
    """Hint at options of the same last part, else those that begin like this one, else those of a similar spelling."""
    options = list(dict.fromkeys(one for one in known if not one.endswith(".help")))
    last = meant.lstrip("-").rpartition(".")[2]
    near = [one for one in options if one.endswith("." + SAME.get(last, last))]
    near = near or [one for one in options if one.startswith(meant)][:3]
    return did_you_mean(meant, options, "`--help` after a command lists its options", cutoff=0.8, most=2, first=near)
