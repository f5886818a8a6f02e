"""Advice in messages works: every option that the code names is one, and values that it gives are taken."""

import ast
import inspect
import re
import shlex
from argparse import ArgumentError
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from running import run
from test_wrong_command_lines import FIT

import lit_fed
from lit_fed.benchmark.command import benchmark_parser
from lit_fed.cli import ArgumentsCLI
from lit_fed.command_line.classes import CLASSES
from lit_fed.command_line.client import client_parser, serving_parser
from lit_fed.command_line.compare import compare_parser
from lit_fed.command_line.deployed import certificates_parser, federation_parser
from lit_fed.command_line.flare_job import flare_job_parser
from lit_fed.command_line.flower_app import flower_app_parser
from lit_fed.command_line.partition import partition_parser
from lit_fed.command_line.report import report_parser
from lit_fed.command_line.sweep import sweep_parser
from lit_fed.errors import ConfigError
from lit_fed.system.discovery import subclasses
from lit_fed.wrappers.faults.wrapper import Faults

ROOT = Path(lit_fed.__file__).parent
OPTION = re.compile(
    r"(?<![\w-])--([a-z][\w-]*(?:\.\w+)*)(?![\w{])"
    r"(?: ([^\s,;:(){}'\"`]+)(?=[\s,;:)]|$))?"
)
HOLE = "{}"

OTHERS = {"run-config", "node-config", "dataset", "version", *("head", "ink", "line", "page", "soft")}
"""Options of other programs, and variables of a style sheet."""

WORDS = re.compile(
    "above|adds|alters|and|as|asks|below|bounds|caps|charges|clips|counts|covers|does|encode|encodes|finds|gives|for|has|holds|"
    "included|instead|is|keeps|loses|makes|measures|needs|of|or|out|reads|says|shows|than|that|their|up|weighs|with|"
    "without|writes"
)
"""Words behind an option that are no value."""

OF_ONE_CLASS = {"model.faults": Faults}

GONE = {"trainer.strategy.timeout", "model.algorithm.refresh_mixture_at_eval", "model.algorithm.shuffle_per_component"}
"""Options that are named in order to say what takes their place."""


def messages(tree):
    """Texts of the code that are no docstrings, with holes for values, and their lines."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else HOLE for part in node.values]
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inner:
            yield node.lineno, node.value


@cache
def advice():
    """Places by option and the word behind it, "" without one."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        for line, text in messages(ast.parse(path.read_text(encoding="utf-8"))):
            for option, value in OPTION.findall(text):
                value = "" if WORDS.fullmatch(value) or value.isupper() else value.rstrip(".")
                found.setdefault((option, value), []).append(f"{path.relative_to(ROOT)}:{line}")
    return found


class Built(ArgumentsCLI):
    """The command line up to its parser."""

    def parse_arguments(self, parser, args):
        raise StopIteration(parser)


@cache
def parsers():
    """Parsers of Lightning's commands, by name, and the options of the other commands."""
    with pytest.raises(StopIteration) as stopped:
        Built([])
    own = stopped.value.value._subcommands_action._name_parser_map
    others = [
        benchmark_parser(), client_parser(), serving_parser("predict"), serving_parser("verdict"),
        compare_parser(), certificates_parser(),
        federation_parser(), flare_job_parser(), flower_app_parser(), partition_parser(), report_parser(),
        sweep_parser(), *own.values(),
    ]  # fmt: skip
    return own, {name.lstrip("-") for one in others for action in one._actions for name in action.option_strings}


def ways(option):
    """Arguments that come ahead of an option of a class, for each class that has it; [] once if it is of no class."""
    place = max((one for one in CLASSES if option.startswith(f"{one}.")), key=len, default=None)
    if place is None:
        return [[]]
    field = option.removeprefix(f"{place}.").partition(".")[0]
    kinds = [one for one in subclasses(CLASSES[place]) if field == "help" or field in inspect.signature(one).parameters]
    return [[f"--{place}", one.__name__] for one in kinds]


def is_known(option):
    own, others = parsers()
    if option in others | OTHERS | GONE:
        return True
    if any(option.startswith(f"{place}.") for place in CLASSES):
        return bool(ways(option))
    place, _, field = option.rpartition(".")
    if place in OF_ONE_CLASS:
        return field in inspect.signature(OF_ONE_CLASS[place]).parameters
    dests = {action.dest for action in own["fit"]._actions}
    return option in dests or any(one.startswith(f"{option}.") for one in dests)


def test_options_that_messages_name_are_options():
    wrong = {option: places for (option, _), places in advice().items() if not is_known(option)}
    assert not wrong
    assert len(advice()) > 200


def test_values_that_messages_give_are_taken():
    """Values of options of a class by the first class that takes them."""
    fit, refused, taken = parsers()[0]["fit"], {}, 0
    for (option, value), places in advice().items():
        if (
            not value
            or "." not in option
            or option in GONE
            or option.endswith(".help")
            or option.rpartition(".")[0] in OF_ONE_CLASS
        ):
            continue
        said = []
        for before in ways(option):
            try:
                fit.parse_args([*before, f"--{option}", value])
                taken += 1
                break
            except (ConfigError, ArgumentError, SystemExit) as error:
                said.append(str(error))
        else:
            refused[f"--{option} {value}"] = places, said[:1]
    assert not refused, "\n".join(map(str, refused.items()))
    assert taken > 60


def followed():
    """Wrong arguments of a fit, the advice, and the arguments that it leads to, from the table beside this file."""
    lines = (Path(__file__).parent / "followed_advice.txt").read_text(encoding="utf-8").splitlines()
    return [tuple(part.strip() for part in line.split(" | ")) for line in lines if not line.startswith("#")]


@pytest.mark.parametrize(("wrong", "advice", "mended"), followed(), ids=[row[0][:60] for row in followed()])
def test_advice_is_followed_to_the_end(tmp_path, monkeypatch, wrong, advice, mended):
    monkeypatch.chdir(tmp_path)
    refused = run([*FIT, *shlex.split(wrong)])
    assert refused.returncode == 2
    assert advice in refused.stderr
    done = run([*FIT, *shlex.split(mended)])
    assert done.returncode == 0, done.stderr


def test_names_of_columns_may_hold_what_yaml_reads(tmp_path, monkeypatch):
    """The column of row numbers that pandas writes, `Unnamed: 0`, is left out as the message says."""
    monkeypatch.chdir(tmp_path)
    rows = [{"who": "ab"[row // 2 % 2], "x": row % 7, "kind: of": "pq"[row % 2]} for row in range(40)]
    pd.DataFrame(rows).to_csv("t.csv")
    table = [*FIT, "--data.dataset", "Table", "--data.dataset.path", "t.csv", "--data.dataset.client_column", "who",
             "--data.dataset.label_column", "kind: of"]  # fmt: skip
    refused = run(table)
    assert refused.returncode == 2
    option = re.search(r"--data\.dataset\.ignored_columns '.*?'", refused.stderr)
    done = run([*table, *shlex.split(option[0])])
    assert done.returncode == 0, done.stderr
    (tmp_path / "one_line.yaml").write_text("name: short")
    assert run([*table, *shlex.split(option[0]), "--config", "one_line.yaml"]).returncode == 0
    said = run([*FIT, "--model.solver.client_lr", "a: 0.5"])
    assert "a mapping has braces, as in '{a: 0.5}'" in said.stderr
