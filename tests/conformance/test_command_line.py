"""Every class that can be named on the command line has its fields checked there."""

import inspect
import json
import sys

import pytest
from jsonargparse import ArgumentParser

import lit_fed.algorithms
import lit_fed.core.mixtures.surrogate
import lit_fed.data
import lit_fed.models
from lit_fed.benchmark.task import read_task
from lit_fed.cli import arguments_of
from lit_fed.core.local_solver import LocalSolver
from lit_fed.system.discovery import import_all

BASES = (
    lit_fed.algorithms.Algorithm,
    lit_fed.core.mixtures.surrogate.Surrogate,
    lit_fed.data.DataSet,
    lit_fed.data.Partition,
    lit_fed.models.Network,
)


def named_classes():
    yield LocalSolver
    import_all()
    for base in BASES:
        below = list(base.__subclasses__())
        while below:
            one = below.pop()
            below += one.__subclasses__()
            if one.__module__.startswith("lit_fed.") and not inspect.isabstract(one):
                yield one


@pytest.mark.parametrize("cls", dict.fromkeys(named_classes()), ids=lambda one: one.__name__)
def test_the_type_of_every_field_is_known(cls):
    # a type that cannot be resolved turns all fields of its class into unchecked ones, without a word
    parser = ArgumentParser()
    parser.add_class_arguments(cls, "one")
    assert "Unvalidated" not in parser.format_help()


# ---------------------------------------------------------------------- defaults of a named class
OWN = """
from dataclasses import dataclass
from lit_fed import ErdosRenyi, OfficialFedEM

@dataclass(frozen=True)
class Mine(OfficialFedEM):
    em_steps: int = 7

@dataclass(frozen=True)
class Dense(ErdosRenyi):
    edge_probability: float = 0.9
"""


FEDAVG = '{"model": {"algorithm": "FedAvg"}}'


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_defaults.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "own_defaults"
    sys.modules.pop("own_defaults", None)


def in_a_file(tmp_path, **algorithm):
    path = tmp_path / "first.yaml"
    path.write_text(json.dumps({"model": {"algorithm": algorithm}}))
    return ["--config", str(path)]


def algorithm_of(*given):
    chosen = arguments_of(["fit", *given]).fit.model.algorithm
    return chosen.class_path, chosen.get("init_args")


def test_what_is_not_given_is_the_default_of_the_class_itself(own, tmp_path, capsys):
    mine = (f"{own}.Mine", 7)
    for given in (
        ["--model.algorithm", f"{own}.Mine"],
        ["--model.algorithm.num_components", "2", "--model.algorithm", f"{own}.Mine"],
        in_a_file(tmp_path, class_path=f"{own}.Mine", init_args={"num_components": 2}),
        ["--config", json.dumps(read_task("digits_label_groups").arguments(f"{own}.Mine", {"lr": 0.1}, 0))],
    ):
        path, options = algorithm_of(*given)
        assert (path, options.em_steps) == mine
    _, options = algorithm_of("--model.algorithm", "DFedEM", "--model.algorithm.topology", f"{own}.Dense")
    assert options.topology.init_args.edge_probability == 0.9
    assert "kept" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("second", "em_steps", "said"),
    [
        ([], 10, None),
        (["--model.algorithm.em_steps", "4"], 4, None),
        (["--model.algorithm", "{own}.Mine"], 10, "Mine: {of} OfficialFedEM, {kept}, {habit}=False kept"),
        (["--model.algorithm={own}.Mine", "--model.algorithm.em_steps=4"], 4, "Mine: {of} {first}, {others} kept"),
        (["--model.algorithm", "DFedEM"], 10, "DFedEM: {of} OfficialFedEM, {kept} kept, {habit} left out"),
        (["--model.algorithm", "FedAvgPlus"], None, "FedAvgPlus: {of} OfficialFedEM, {both}, {habit} left out"),
        (["--config", FEDAVG, "--model.algorithm", "FedEM"], 1, "FedEM: {of} OfficialFedEM, {both}, {habit} left out"),
    ],
)
def test_options_stay_where_the_other_class_has_them_and_it_is_said(own, tmp_path, capsys, second, em_steps, said):
    given = {"num_components": 2, "em_steps": 10, "shuffle_per_component": False}
    first = in_a_file(tmp_path, class_path="OfficialFedEM", init_args=given)
    _, options = algorithm_of(*first, *(one.replace("{own}", own) for one in second))
    assert (options.get("em_steps") if options else None) == em_steps
    lines = [line for line in capsys.readouterr().err.splitlines() if "configuration" in line]
    words = {"both": "num_components, em_steps", "others": "num_components=2, shuffle_per_component=False"}
    words["kept"] = "num_components=2, em_steps=10"
    words |= {"habit": "shuffle_per_component", "first": "OfficialFedEM"}
    words["of"] = "of the configuration's options of"
    assert lines == ([] if said is None else [f"lit_fed: --model.algorithm {said.format(**words)}"])
