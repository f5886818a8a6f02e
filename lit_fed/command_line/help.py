"""The text of `--help`: short usage, types and classes by their names, Lightning's arguments in federated terms."""

from __future__ import annotations

import copy
import re
import sys
from argparse import SUPPRESS, Action
from collections.abc import Iterable
from typing import Any

from jsonargparse import DefaultHelpFormatter

__all__ = ["FederatedHelp", "HelpOfFit", "explain_arguments", "plain_type"]

CHECKPOINT = (
    "a .ckpt file of a run, or `last`, the newest run of --name under --trainer.default_root_dir, or `previous`, the "
    "checkpoint before that one"
)

MEANING = {
    "config": "path of a configuration, YAML or JSON; may be given often, later ones win.",
    "seed_everything": "seed of the training: initial models, cohorts, batches. `--data.seed` is that of the data.",
    "trainer.accelerator": "`cpu`, `gpu` or `auto`.",
    "trainer.strategy": "`fed_ddp` divides the clients of a round among `devices`; `auto` is `fed_ddp` for several.",
    "trainer.devices": "number of processes on this machine, each with its own GPU if there is one, else at most "
    "one for each core; on a GPU also a list of indices.",
    "trainer.num_nodes": "number of machines.",
    "trainer.precision": "`32-true`, or `bf16-mixed` to compute networks in bfloat16.",
    "trainer.logger": "loggers beside the run's own metrics.csv, such as WandbLogger; `false`: keep no folder.",
    "trainer.callbacks": "callbacks beside the usual ones; `--trainer.callbacks+=NAME` adds one.",
    "trainer.max_epochs": "number of rounds.",
    "trainer.min_epochs": "rounds before a callback may stop the run.",
    "trainer.max_steps": "the same as `max_epochs`: a round is a step; -1: no other limit.",
    "trainer.min_steps": "the same as `min_epochs`.",
    "trainer.max_time": "stop after the round that exceeds this time, DD:HH:MM:SS.",
    "trainer.limit_val_batches": "0: do not measure in validation; `--data.eval_clients` measures fewer clients.",
    "trainer.check_val_every_n_epoch": "measure the clients after every so many rounds.",
    "trainer.log_every_n_steps": "write metrics after every so many rounds.",
    "trainer.enable_checkpointing": "write last.ckpt after every round; by default, do.",
    "trainer.enable_progress_bar": "show progress; by default, do.",
    "trainer.enable_model_summary": "print the layers of the network; by default, do not.",
    "trainer.deterministic": "refuse operations whose results vary from run to run, or `warn` of them.",
    "trainer.benchmark": "let cuDNN choose the fastest algorithm by trying; null leaves it to PyTorch.",
    "trainer.timeout": "seconds that a rank may keep the others waiting in a collective; then all end.",
    "trainer.profiler": "`simple` or `advanced`: print how long each part of the run took.",
    "trainer.detect_anomaly": "look for NaN in gradients, slowly.",
    "trainer.plugins": "plugins of Lightning: precision, cluster environment, reading and writing of checkpoints.",
    "trainer.default_root_dir": "folder of all runs; a run's own is `<name>/version_<n>` in it.",
}
"""Meaning of arguments in federated runs; Lightning's help speaks of epochs and batches of one model."""

REFUSED_OR_FIXED = {
    "trainer.fast_dev_run", "trainer.limit_train_batches", "trainer.limit_predict_batches", "trainer.overfit_batches",
    "trainer.val_check_interval", "trainer.num_sanity_val_steps", "trainer.accumulate_grad_batches",
    "trainer.gradient_clip_val", "trainer.gradient_clip_algorithm", "trainer.inference_mode",
    "trainer.limit_test_batches", "trainer.barebones",
    "trainer.use_distributed_sampler", "trainer.sync_batchnorm", "trainer.reload_dataloaders_every_n_epochs",
    "trainer.enable_autolog_hparams", "trainer.model_registry",
}  # fmt: skip
"""Arguments that the trainer refuses, sets itself or never uses; the help leaves them out."""

FIRST_HOUR = (
    "config", "data.dataset", "data.num_clients", "data.partition", "data.unseen_fraction", "model.algorithm",
    "model.network", "model.solver.lr", "trainer.max_epochs", "name", "ckpt_path", "report",
)  # fmt: skip
"""Options that `fit --help` shows; `fit --help all` shows all."""

REST = """\
all options:              fit --help all
the options of a class:   fit --model.algorithm.help FedEM
a whole configuration:    fit --print_config; examples are in configs/experiment/"""

CONFIGURATION_OF = "path of a configuration of this section."

TYPES = {
    "seed_everything": "int",
    "trainer.precision": "32-true | bf16-mixed | null",
    "trainer.plugins": "a plugin | a list of plugins | null",
}
"""Short types of arguments whose full type is wider than federated runs accept, or too long to read."""

WORDS: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"\{'class_path': '(?:[\w.]+\.)?(\w+)'(?:, 'init_args': \{\})?\}"), r"\1"),
    (re.compile(r"\{'class_path': '(?:[\w.]+\.)?(\w+)', 'init_args': \{([^{}]+)\}\}"), r"\1 with \2"),
    (re.compile(r":\w+:`~?(?:[\w.]+\.)?(\w+)`"), r"`\1`"),
    (re.compile(r"``"), "`"),
)
"""Python's spelling of defaults, and Sphinx's of names, as they are written on a command line."""

BASES = {"Algorithm", "Network", "FederatedCallback"}
"""Base classes of user-defined classes, which are not listed."""

TYPE = re.compile(r"\((?:required, )?type: ")
"""Beginning of the type of an argument."""

CLASSES = re.compile(r", known subclasses: ([\w., ]+)")


def plain_type(spelled: str) -> str:
    """A type as it reads on a command line: alternatives between bars; for a function, the type that it returns.

    Example:
        >>> plain_type("Callable[[tuple[int, ...], int], lit_fed.models.Network] | None")
        'Network | null'
        >>> plain_type("Union[Literal['a', 'b'], list[Optional[int]]]")
        'a | b | list[int | null]'
    """
    return " | ".join(dict.fromkeys(_one_type(one) for one in _split(spelled, "|")))


def _one_type(spelled: str) -> str:
    """A type that is no union with bars."""
    spelled = spelled.strip()
    if spelled.startswith("<class '"):
        spelled = spelled.removeprefix("<class '").removesuffix("'>")
    name, bracket, inside = spelled.partition("[")
    name = name.rpartition(".")[2]
    parts = _split(inside.removesuffix("]"), ",") if bracket else []
    if name == "Literal":
        return " | ".join(part.strip(" '\"") for part in parts)
    if name in ("Union", "Optional"):
        return plain_type(" | ".join([*parts, *(["None"] if name == "Optional" else [])]))
    if name == "Callable":
        return plain_type(parts[-1])
    if bracket:
        return f"{name}[{', '.join(map(plain_type, parts))}]"
    return {"None": "null", "NoneType": "null"}.get(name, name) or spelled


def _split(text: str, marks: str) -> list[str]:
    """The parts between marks outside all brackets."""
    parts, depth = [""], 0
    for letter in text:
        if letter in marks and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
            depth += (letter in "[(") - (letter in "])")
    return parts


class FederatedHelp(DefaultHelpFormatter):
    """jsonargparse's help with a usage line instead of a usage page, and classes by their names."""

    def add_usage(
        self, usage: str | None, actions: Iterable[Action], groups: Iterable[Any], prefix: str | None = None
    ) -> None:
        """Leave the arguments to the lists below the usage; with a prefix, argparse names a command's own program."""
        if usage is None and prefix is None:
            usage = self._prog.replace(" [options]", "") + " [options]"
        super().add_usage(usage, actions, groups, prefix)

    def _expand_help(self, action: Action) -> str:
        text = CLASSES.sub(_names_of_classes, super()._expand_help(action))
        for pattern, word in WORDS:
            text = pattern.sub(word, text)
        if found := TYPE.search(text):
            before, rest = text[: found.end()], text[found.end() :]
            spelled = _split(rest, ",)")[0]
            within = f", {one}" if (one := getattr(action, "within", None)) else ""  # the range of a class's option
            text = before + TYPES.get(action.dest, plain_type(spelled)) + within + rest[len(spelled) :]
        if str(action.metavar).startswith("{"):  # the values are shown beside the name
            text = re.sub(r"\(type: [^,]*, ", "(", text)
        return text


class HelpOfFit(Action):
    """`--help` of a fit: the options of a first hour, or with `all` all of them."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        groups = parser._action_groups
        if values is None:
            first = copy.copy(groups[0])
            first.title = f"{len(FIRST_HOUR)} options to begin with"
            by_name = {action.dest: action for action in parser._actions}
            first._group_actions = [by_name[name] for name in FIRST_HOUR]
            parser._action_groups = [first]
        try:
            parser.print_help()
            if values is None:
                sys.stdout.write(f"\n{REST}\n")
        finally:
            parser._action_groups = groups
        parser.exit()


def _names_of_classes(found: re.Match[str]) -> str:
    paths = [path.rpartition(".") for path in found[1].split(", ")]
    own = [name for module, _, name in paths if module.startswith("lit_fed") and name not in BASES]
    others = [name for module, _, name in paths if module.startswith("lightning")]
    return (f", classes: {', '.join(own)}" if own else "") + (f", of Lightning: {', '.join(others)}" if others else "")


def explain_arguments(parser: Any) -> None:
    """Explain a command's arguments in federated terms, and list Lightning's last."""
    for action in parser._actions:
        if action.dest in REFUSED_OR_FIXED or action.dest.removesuffix(".help") in REFUSED_OR_FIXED:
            action.help = SUPPRESS
        elif action.dest == "ckpt_path" and (action.help or "").startswith(("Path/URL", "Either")):
            action.help = f"{CHECKPOINT}."
        elif action.help == "Path to a configuration file.":
            action.help = CONFIGURATION_OF
        elif action.help != SUPPRESS:
            action.help = MEANING.get(action.dest, action.help)
    parser._action_groups.sort(key=_group_position)
    for group in parser._action_groups:
        group.title = "this command" if _group_position(group) == 1 else group.title


def _group_position(group: Any) -> int:
    """Position of a group in the help: general options, those of the command, of model and data, of Lightning."""
    names = [action.dest for action in group._group_actions]
    if any(name.startswith("trainer.") for name in names):
        return 3
    return 1 if "ckpt_path" in names else 0 if "help" in names else 2
