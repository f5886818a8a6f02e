"""The command line: Lightning's CLI with the names, folders and errors of federated runs."""

from __future__ import annotations

import copy
import importlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jsonargparse import Namespace
from jsonargparse.typing import PositiveInt
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.fabric.utilities.rank_zero import _get_rank
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from lit_fed import commands
from lit_fed.callbacks.checkpoint import last_checkpoint
from lit_fed.callbacks.defaults import keep_notices_out
from lit_fed.callbacks.divergence import Divergence
from lit_fed.command_line.arguments import (
    CONFIG,
    default_name,
    divided,
    giving_way,
    options_in,
    prepared,
    with_checkpoint,
    with_values,
)
from lit_fed.command_line.classes import (
    check_modules,
    check_parsed,
    classes_in,
    options_of_other_classes,
    trusted_arguments,
)
from lit_fed.command_line.help import HelpOfFit, explain_arguments
from lit_fed.command_line.parser import FederatedParser, written
from lit_fed.command_line.several_fits import DECIDED
from lit_fed.command_line.start_page import ABSENT, COMMANDS
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ClientError, ConfigError, DivergedError, LostNodesError, WriteError, notice
from lit_fed.system.files import quote, write_atomically
from lit_fed.system.folder_lock import FolderLock
from lit_fed.trainer import FederatedTrainer
from lit_fed.training.checkpoint import CHECKPOINT_KEY, DamagedCheckpointError, load_checkpoint
from lit_fed.training.hooks import federated, results_folder
from lit_fed.training.module import FederatedModule
from lit_fed.training.output import check_creatable, check_run_name
from lit_fed.training.round_logger import KEYWORDS, RoundLogger, newest_checkpoint, writer_of, writing
from lit_fed.training.stopping import CutShort, Terminated, ends_in_order
from lit_fed.training.strategy import LostRanksError
from lit_fed.wrappers.blend import why_not

__all__ = ["FederatedCLI", "main"]


NEXT_OF_NODES = """\
next: on a node, lit-fed client measure, predict and export serve its clients; here
      test takes --ckpt_path {last} --data.dataset {dataset}
      the same fit with --ckpt_path {word} and a larger --trainer.max_epochs adds rounds
"""
"""Last lines of a fit whose clients are on nodes."""

NEXT = """\
next: test, predict, personalize and export take it as --ckpt_path {last}
      the same fit with --ckpt_path {word} and a larger --trainer.max_epochs adds rounds
"""
"""Last lines of a fit."""

CHOOSE = "      which clients gain by joining is said by\n      lit-fed choose {options}\n"
"""Further lines where clients are natural ones, and blends can serve them."""

RATES = ("--model.solver.lr", "--model.solver.adapt_lr")
"""Options that suit one algorithm: `choose` searches the rate of each candidate."""

SEEDS = (
    "fit with so many training seeds from 0 on, several at a time, and print means and deviations; the same command "
    "goes on after an interrupt."
)
"""Help of `--seeds`."""

TRUST = (
    "module whose classes are imported although the checkpoint alone names them; classes that the command line names, "
    "and those of lit_fed, are in any case. May be given often."
)
"""Help of the option that lets a checkpoint name user-defined classes."""


class Command(NamedTuple):
    """A command that needs no trainer; its module is imported when the command is given, or its help."""

    module: str
    parser: str  # function that makes its parser
    run: str  # function that takes its arguments

    def find(self, name: str) -> Any:
        """One of its functions."""
        return getattr(importlib.import_module(f"lit_fed.{self.module}"), name)


WITHOUT_TRAINER = {
    "partition": Command("command_line.partition", "partition_parser", "show_partition"),
    "compare": Command("command_line.compare", "compare_parser", "compare_runs"),
    "report": Command("command_line.report", "report_parser", "report_runs"),
    "blend": Command("choosing.blend", "blend_parser", "blend_runs"),
    "choose": Command("choosing.choose", "choose_parser", "choose_run"),
    "sweep": Command("command_line.sweep", "sweep_parser", "run_sweep"),
    "benchmark": Command("benchmark.command", "benchmark_parser", "run_benchmark"),
}
"""Commands that need no trainer."""


class CommandTrainer(FederatedTrainer):
    __doc__ = FederatedTrainer.__doc__  # the heading of its options

    personalize = commands.personalize
    export = commands.export


@dataclass(eq=False)
class SaveConfig(Callback):
    """Writes config.yaml into the run's folder: complete, without the checkpoint, so that it runs again unchanged.

    Options of `fit` alone are left out at their defaults. A run that is refused at its start leaves no folder.
    """

    parser: LightningArgumentParser
    config: Namespace

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        config = copy.deepcopy(self.config)
        module = federated(pl_module)
        config["init_from"] = module.history.warm_start.path if module.history.warm_start else None
        del config["ckpt_path"], config["resume_with_changes"]
        for option in ("init_from", "report", "seeds"):  # which commands that read the file lack
            if not config[option]:
                del config[option]
        solver, horizon = module.settings.solver, module.federation.schedule_rounds
        if solver.has_horizon and horizon not in (None, module.num_rounds):
            config["model.solver.schedule_rounds"] = solver.schedule_rounds or horizon
        plain = json.loads(written(self.parser, config, format="json"))
        for logger in trainer.loggers:
            logger.log_hyperparams(plain)
        if trainer.is_global_zero and trainer.log_dir is not None:
            folder = Path(trainer.log_dir)
            folder.mkdir(parents=True, exist_ok=True)
            line = "# changed on resume, after {after_rounds} rounds: {setting} from {from} to {to}\n"
            comments = "".join(line.format(**change) for change in module.history.changes)
            write_atomically(folder / "config.yaml", comments + written(self.parser, config))


class CommandParser(FederatedParser):
    """The parser of all commands."""

    only: str | None = None
    """The command that is given; only its parser is complete. None: all parsers are."""

    def add_subcommands(self, *args: Any, **kwargs: Any) -> Any:
        commands = super().add_subcommands(*args, **kwargs)
        for name, one in WITHOUT_TRAINER.items():
            if name in COMMANDS:
                parser = FederatedParser() if self.only else one.find(one.parser)()
                commands.add_subcommand(name, parser, help=COMMANDS[name])
        return commands


class FederatedCLI(LightningCLI):
    """The commands of federated runs; a subclass adds arguments in `add_arguments_to_parser`."""

    def __init__(self, args: ArgsType = None) -> None:
        self._only = next((one for one in _given(args)[:1] if one in self.subcommands()), None)
        self._typed = _given(args)[1:]
        self._keep_rounds = 0
        self._resume_version: int | None = None
        self._writer: FolderLock | None = None
        self._settings_of: Path | None = None  # the checkpoint whose arguments are the defaults
        with ExitStack() as self._held:
            defaults = {"max_epochs": 50, "log_every_n_steps": 1, "default_root_dir": "runs", "logger": True}
            try:
                super().__init__(
                    FederatedModule, FederatedDataModule, save_config_callback=None, trainer_class=CommandTrainer,
                    trainer_defaults=defaults, seed_everything_default=0, parser_class=CommandParser,
                    auto_configure_optimizers=False, load_from_checkpoint_support=False, args=args,
                )  # fmt: skip
            except ConfigError as error:
                if self._settings_of is None:
                    raise
                raise ConfigError(with_checkpoint(_given(args), str(error), self._settings_of)) from error

    def _hold(self, folder: Path, **fix: str) -> None:
        """Lock a run's folder against other processes until this command is over; rank zero does so for all ranks."""
        if not _get_rank():  # from the environment: there is no trainer yet
            self._writer = self._held.enter_context(writer_of(folder, **fix))

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """The commands, and the arguments of their methods that are not for the command line."""
        hidden = {
            "model", "dataloaders", "train_dataloaders", "val_dataloaders", "datamodule", "return_predictions",
            "weights_only", "verbose",
        }  # fmt: skip
        commands = ("fit", "validate", "test", "predict", "personalize", "export")
        return dict.fromkeys((one for one in commands if one in COMMANDS), hidden)

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        assert isinstance(parser, CommandParser)
        parser.only = self._only
        super()._add_subcommands(parser, **kwargs)

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        if self._only not in (None, subcommand):  # each parser takes a tenth of a second, and one of them is asked
            self._subcommand_method_arguments[subcommand] = []
            return self.init_parser(description=COMMANDS[subcommand])
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs | {"description": COMMANDS[subcommand]})
        explain_arguments(parser)
        if subcommand == "fit":
            usual = next(one for one in parser._actions if one.dest == "help")  # argparse adds it itself
            usual.__class__, usual.nargs, usual.choices, usual.metavar = HelpOfFit, "?", ["all"], "all"
            usual.help = "show these options, or all of them."
            # a flag: it needs no value
            parser.add_argument("--report", type=bool, default=False, help="write report.html into the run's folder.")
            parser.add_argument("--seeds", type=PositiveInt | None, default=None, help=SEEDS)
            for flag in (one for one in parser._actions if one.dest in ("resume_with_changes", "report")):
                flag.nargs, flag.const = "?", True
        else:
            parser.add_argument("--trust", type=str, action="append", default=[], metavar="MODULE", help=TRUST)
        return parser

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--name", type=str | None, default=None,
            help="name of the run's folder; by default the last config's file name, else the algorithm's class.",
        )  # fmt: skip

    # ------------------------------------------------------------------ arguments
    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse the arguments and find the checkpoint, which except for `fit` brings its own arguments as defaults."""
        given = prepared(_given(args))
        parsed = parser.parse_args(given)
        command = parsed.subcommand
        if command in WITHOUT_TRAINER:
            raise ConfigError(f"{command} takes its arguments after its name; start with `python -m lit_fed {command}`")
        config = parsed[command]
        check_parsed(self._parser(command), config)
        if more := giving_way(given, config.data):
            given += more
            parsed = parser.parse_args(given)
            config = parsed[command]
        check_run_name(config.name)
        name = config.name or default_name(given, str(config.get("model.algorithm.class_path")))
        try:
            path = self._find_checkpoint(command, config.ckpt_path, Path(config.trainer.default_root_dir) / name)
            if path is not None and command != "fit":
                stored = load_checkpoint(path, values=False)[CHECKPOINT_KEY]["arguments"]
                check_modules(config.trust)
                self._settings_of = path
                stored = trusted_arguments(
                    stored, path, classes_in(config), config.trust, reads_data=command != "personalize"
                )
                behind = given.index(command) + 1
                parsed = parser.parse_args([*given[:behind], "--config", json.dumps(stored), *given[behind:]])
                config = parsed[command]
                check_parsed(self._parser(command), config)
        except DamagedCheckpointError as error:
            raise ConfigError(with_command(error, given)) from error
        if not 0 <= int(config.seed_everything) < 2**32:  # what all generators in use can take
            raise ConfigError(f"--seed_everything is {config.seed_everything}; give a number from 0 to {2**32 - 1}")
        parsers: tuple[Any, Any] = (parser, self._parser(command))
        layers = [one.get(command, one) for each in parsers for one in each.configurations]
        for line in options_of_other_classes(layers, config, [option for option, _ in options_in(given)]):
            notice(line)
        config.name = name
        if command == "fit":
            root = Path(config.trainer.default_root_dir or "")
            in_series = os.path.isfile(root / "series.json")  # of `fit --seeds`; False of a name that is too long
            name_wandb_run(config.trainer.logger, f"{root.name}_{name}" if in_series else name)
        if path is not None:
            config.ckpt_path = str(path)
        self.config = parsed

    def _parse_ckpt_path(self) -> None:
        """Do nothing: a checkpoint's arguments never override those of the command line silently."""

    def _find_checkpoint(self, command: str, given: str | None, folder: Path) -> Path | None:
        """The path of the given checkpoint; a fit from `last` continues in that run's folder.

        Args:
            command: the command.
            given: a path, or one of `KEYWORDS`.
            folder: folder of the runs of this name.
        """
        if given is None:
            if command in ("predict", "personalize", "export"):
                raise ConfigError("--ckpt_path is not set; give a .ckpt file of a run, or last")
            return None
        if given not in KEYWORDS:
            if not os.path.isfile(given):  # false too for a name that no file can have
                raise ConfigError(f"--ckpt_path {quote(given)}: no such file; give a .ckpt file, or last")
            if command == "fit":
                load_checkpoint(Path(given), resumable=True, values=False)  # before the data are read
            return Path(given)
        path, version = newest_checkpoint(folder, given)
        if command == "fit":
            self._hold(run_folder(path))  # before it is read: rounds that another process adds would be removed
            checkpoint = load_checkpoint(path, resumable=True, values=False)
            self._resume_version, self._keep_rounds = version, checkpoint["global_step"]
        return path

    # ------------------------------------------------------------------ objects
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        command = self.subcommand
        parser, config = self._parser(command), self.config[command]
        kwargs["logger"] = False
        if command == "fit":
            of_run = config.name, self._resume_version, self._keep_rounds, self._writer
            kwargs["logger"] = _loggers(self.config_init.fit.trainer, of_run, report=config.report)
        trainer = super().instantiate_trainer(**kwargs)
        if command == "fit":
            trainer.callbacks.insert(0, SaveConfig(parser, config))  # type: ignore[attr-defined]
        settings = json.loads(written(parser, config, format="json"))
        precision = str(settings["trainer"].get("precision") or "32-true")
        shared = {name: settings[name] for name in ("seed_everything", "model", "data")}
        self.model.history.arguments = shared | {"trainer": {"precision": precision}}  # as those of its checkpoint
        return trainer

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        """Checkpoints hold plain types only, so nothing in one is ever executed."""
        given = super()._prepare_subcommand_kwargs(subcommand)
        if subcommand == "personalize":  # works from the checkpoint alone, without the data of the training
            return {name: value for name, value in given.items() if name != "datamodule"}
        if subcommand == "predict" and given["output"] is None:
            folder = run_folder(Path(given["ckpt_path"]))
            given["output"] = str(folder / "predictions.csv")
            if folder.name != Path(given["ckpt_path"]).parent.name:
                self._hold(folder, fix="wait until it ends, or give --output FILE elsewhere")
        return given | {"weights_only": True}

    def _run_subcommand(self, subcommand: str) -> None:
        """Run a command; if it is cut short, the message says how to continue."""
        try:
            with writing(self.trainer.loggers, self.config[subcommand].name if subcommand == "fit" else None):
                super()._run_subcommand(subcommand)
        except KeyboardInterrupt as error:
            raise CutShort(f"interrupted{self._how_to_go_on()}", 130) from error
        except Terminated as error:
            raise CutShort(f"terminated{self._how_to_go_on()}", int(str(error.code))) from error
        except (LostRanksError, LostNodesError) as lost:
            raise CutShort(f"{lost}{self._how_to_go_on()}", 1) from lost
        except WriteError as error:
            error.args = (f"{error}{self._how_to_go_on()}",)
            raise

    def _how_to_go_on(self) -> str:
        if self.subcommand != "fit":
            return ""
        if last_checkpoint(self.trainer) is None and self._resume_version is None:
            return "; there is no checkpoint to go on from"
        if self.trainer.state.fn != "fit":
            return "; the training is complete: the same fit with --ckpt_path last makes the test and its files again"
        if self.trainer.log_dir is None:  # `last` is looked for in folders of loggers
            return f"; --ckpt_path {last_checkpoint(self.trainer)} goes on from the last finished round"
        return "; the last finished round is in last.ckpt, --ckpt_path last goes on from it"

    def after_fit(self) -> None:
        """Measure the test split, and print the next commands."""
        self.trainer.test(self.model, datamodule=self.datamodule)
        folder = results_folder(self.trainer) if self.config.fit.report else None
        if folder is not None:
            from lit_fed.command_line.report import write_report

            write_report([folder], folder / "report.html")
            sys.stdout.write(f"report: {folder / 'report.html'}\n")
        last = last_checkpoint(self.trainer)
        callbacks: list[Callback] = self.trainer.callbacks  # type: ignore[attr-defined]
        diverged = any(one.found for one in callbacks if isinstance(one, Divergence))
        if self.trainer.is_global_zero and last is not None and not diverged:
            data, module = self.datamodule.dataset, federated(self.model)
            text = NEXT_OF_NODES if data.is_remote else NEXT
            word, dataset = last if self.trainer.log_dir is None else "last", type(data).__name__
            sys.stdout.write(text.format(last=last, word=word, dataset=dataset))
            judged = data.natural and not data.is_remote and self.config.fit.init_from is None
            model = self.config.fit.model  # None of a configuration that says so
            has_rate = model is not None and isinstance(model.solver.lr, int | float)
            if module.settings.is_private and not has_rate:
                judged = False  # a search for a rate, which choose makes, is not covered by ε
            if judged and not why_not(module.settings.features, module.target, module.federation.terms.task):
                options = divided(self._typed, DECIDED)[1]
                if has_rate and not module.settings.is_private:  # of this algorithm; candidates have their own
                    searched = ["--model.solver.lr", "auto"] if divided(options, CONFIG)[0] else []
                    options = [*divided(options, RATES)[1], *searched]
                sys.stdout.write(CHOOSE.format(options=shlex.join(options)))


def _loggers(trainer: Namespace, of_run: tuple[Any, ...], *, report: bool) -> Any:
    """The loggers of a fit: that of the run's folder, and the given ones; False: none.

    Args:
        trainer: arguments of the trainer.
        of_run: name, version and more of the run, for `RoundLogger`.
        report: a report is written into the folder.
    """
    given, root = trainer.logger, str(trainer.default_root_dir)
    if given is False:
        if report:
            raise ConfigError("--report needs the run's folder; leave out --trainer.logger false")
        return False
    if report and "report" in ABSENT:
        raise ConfigError(f"--report: lit_fed is installed here without its {ABSENT['report']}; leave it out")
    if not root:
        raise ConfigError("--trainer.default_root_dir is empty; give a folder, or leave it out for runs/")
    check_creatable(Path(root), "--trainer.default_root_dir")
    extra = [] if given in (True, None) else given if isinstance(given, list) else [given]
    return [RoundLogger(root, *of_run), *extra]


def name_wandb_run(loggers: Any, name: str) -> None:
    """Give the W&B run the name of the run's folder, in place of a drawn one, unless it has one."""
    for one in loggers if isinstance(loggers, list) else [loggers]:
        is_wandb = isinstance(one, Namespace) and str(one.get("class_path")).endswith("WandbLogger")
        if is_wandb and one.init_args.get("name") is None and "WANDB_NAME" not in os.environ:
            one.init_args.name = name


# ---------------------------------------------------------------------- the checkpoint of a command
def run_folder(checkpoint: Path) -> Path:
    """The folder of a checkpoint's run: that around `checkpoints`, or else the checkpoint's own."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else checkpoint.parent


def with_command(error: DamagedCheckpointError, given: Sequence[str]) -> str:
    """The message about a damaged checkpoint, with the command that takes the one before it, if there is one."""
    if error.previous is None:
        return str(error)
    instead = {"last": "previous", str(error.path): str(error.previous)}
    changed = with_values(given, lambda option, one: instead.get(one, one) if option == "--ckpt_path" else one)
    return f"{error}; go on from that one with\n  python -m lit_fed {shlex.join(changed)}"


class ArgumentsCLI(FederatedCLI):
    """The command line up to its parsed arguments: makes no objects and runs nothing."""

    def _set_seed(self) -> None:
        """Draw nothing."""

    def instantiate_classes(self) -> None:
        """Make no objects."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Run no command."""


class UntestedCLI(FederatedCLI):
    """A fit whose caller measures what it needs: test samples are not read."""

    def after_fit(self) -> None:
        """Measure nothing."""


def arguments_of(given: list[str]) -> Namespace:
    """The parsed arguments of a command, without running it.

    Raises:
        ConfigError: if an argument is refused.
    """
    config: Namespace = ArgumentsCLI(given).config
    return config


OF_RUNS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "sweep": lambda: (arguments_of, FederatedCLI), "choose": lambda: (arguments_of, FederatedCLI),
    "benchmark": lambda: (UntestedCLI,),
}  # fmt: skip
"""Names of this module that commands with several runs use."""


def main(args: ArgsType = None, cli: type[FederatedCLI] = FederatedCLI) -> None:
    """Run the command line; expected failures end with a message and a non-zero status, without a traceback.

    Args:
        args: the arguments; None: those of the process.
        cli: runs the commands that have a trainer.
    """
    keep_notices_out()
    if os.environ.get("LIT_FED_DEBUG") == "1":
        _run(args, cli)
        return
    try:
        _run(args, cli)
    except (ConfigError, DivergedError, MisconfigurationException) as error:
        _stop(f"lit_fed: {error}", 2)  # the same on every rank
    except CutShort as stop:
        _stop(f"lit_fed: {stop.message}", int(str(stop.code)))
    except Terminated as stop:
        _stop("lit_fed: terminated", int(str(stop.code)))
    except (ClientError, WriteError) as error:
        sys.stderr.write(f"lit_fed: {error}\n")  # known only to the rank that ran the client, or could not write
        sys.exit(2 if isinstance(error, ClientError) else 1)
    except Exception as error:
        if str(error).startswith("Early stopping conditioned on metric"):  # with callbacks that may log any key
            _stop(f"lit_fed: {error}", 2)
        if not type(error).__module__.startswith("wandb"):
            raise
        _stop(f"lit_fed: W&B: {error}", 2)  # a missing key, say; imported lazily, so its errors are known by name
    except KeyboardInterrupt:
        _stop("lit_fed: interrupted", 130)


def _given(args: ArgsType) -> list[str]:
    return list(sys.argv[1:] if args is None else args)


def _run(args: ArgsType, cli: type[FederatedCLI]) -> None:
    """Run a command: those that need no trainer by themselves, all others by Lightning's command line."""
    given = _given(args)
    command = WITHOUT_TRAINER.get(given[0]) if given else None
    if given[:1] == ["fit"] and any(one.partition("=")[0] == "--seeds" for one in given):
        from lit_fed.command_line.seeds import fit_with_seeds

        fit_with_seeds(given, arguments_of, FederatedCLI)
    elif command is None:
        with ends_in_order():
            cli(args)
    else:
        command.find(command.run)(given[1:], *OF_RUNS.get(given[0], tuple)())


def _stop(message: str, status: int) -> NoReturn:
    if int(os.environ.get("LOCAL_RANK", "0")) == 0:
        sys.stderr.write(message + "\n")
    sys.stderr.flush()
    sys.exit(status)  # W&B replaces this function, to know how the run ended
