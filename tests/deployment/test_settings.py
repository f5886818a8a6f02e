"""Settings of a training as the command line writes them, and what a node makes of them."""

import json
from pathlib import Path

import pytest
from federated_round import facts

from lit_fed.cli import ArgumentsCLI
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import Sequences
from lit_fed.deployment.messages import facts_from_json
from lit_fed.deployment.settings import settings_from_json
from lit_fed.errors import ConfigError
from lit_fed.models import MLP
from lit_fed.system.readers import FormError
from lit_fed.wrappers.compression.codecs import QSGD
from lit_fed.wrappers.faults.wrapper import Faults

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "algorithm").glob("*.yaml"))


def written(*arguments):
    """The section `model` of a configuration that the command line writes, and the objects that it makes itself."""
    cli = ArgumentsCLI(["fit", *arguments])
    parser = cli._parser("fit")
    plain = json.loads(parser.dump(cli.config["fit"], skip_unset=False, format="json"))
    return plain["model"], parser.instantiate_classes(cli.config["fit"]).model.settings


def plain(value):
    """What equal settings have in common: functions that make networks are told by their class and options."""
    made = getattr(value, "func", None)
    return (made, value.keywords) if made is not None else value


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_every_algorithm_arrives_as_it_was_configured(config):
    section, own = written("--config", str(config))
    made = settings_from_json(section)
    assert made.algorithm == own.algorithm
    assert made.solver == own.solver


def test_all_kinds_of_settings_arrive():
    section, own = written(
        "--model.network", "MLP", "--model.network.hidden_sizes", "[7, 5]", "--model.compression", "QSGD",
        "--model.faults.on_bad_client", "drop", "--model.faults.dropout", "[0.1, 0.2]", "--model.solver.lr", "0.3",
        "--model.metrics", "AUROC,F1Score",
    )  # fmt: skip
    made = settings_from_json(section)
    assert made.solver == LocalSolver(lr=0.3)
    assert made.compression == QSGD()
    assert made.faults == Faults(dropout=[0.1, 0.2], on_bad_client="drop") == own.faults
    network = made.network((4,), 3)
    assert isinstance(network, MLP)
    assert str(network) == str(own.network((4,), 3))
    same = own._replace(network=None, metrics=None)
    assert made._replace(network=None, metrics=None) == same


def test_targets_arrive(monkeypatch, tmp_path):
    section, own = written("--model.target", "Sequences", "--model.target.ignore_index", "255")
    assert settings_from_json(section).target == own.target == Sequences(ignore_index=255)
    (tmp_path / "own_targets.py").write_text(
        "from dataclasses import dataclass\nfrom lit_fed import Likelihood\n\n\n@dataclass(frozen=True)\n"
        "class Times(Likelihood):\n    shortest: float = 1.0\n    num_outputs = 2\n\n"
        "    def log_likelihood(self, outputs, y):\n        return -outputs[..., 0] * y\n\n"
        "    def predict(self, outputs):\n        return outputs[..., 0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    section, own = written("--model.target", "own_targets.Times", "--model.target.shortest", "0.5")
    with pytest.raises(ConfigError, match=r"asks for own_targets.Times .* start the client with --trust own_targets"):
        settings_from_json(section)
    made = settings_from_json(section, trusted=["own_targets"])
    assert (made.target, made.target.shortest) == (own.target, 0.5)
    sent = json.loads(json.dumps(facts(own.target).public.plain()))
    assert facts_from_json(sent, made.target).target == own.target
    with pytest.raises(FormError, match="labels are Times, which this version cannot learn"):
        facts_from_json(sent)


def test_trusted_modules_are_made(monkeypatch, tmp_path):
    (tmp_path / "own_networks.py").write_text("from lit_fed.models import MLP\n\n\nclass Mine(MLP):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    section, _ = written()
    section["network"] = {"class_path": "own_networks.Mine", "init_args": {"hidden_sizes": [3]}}
    with pytest.raises(ConfigError, match=r"own_networks\.Mine .*--trust own_networks"):
        settings_from_json(section)
    assert type(settings_from_json(section, ["own_networks"]).network((2,), 2)).__name__ == "Mine"


def test_private_modules_are_not_imported():
    """Not even to find that there is none."""
    section, _ = written()
    section["network"] = {"class_path": "lit_fed.models._absent.Net", "init_args": {}}
    with pytest.raises(ConfigError, match=r"lit_fed\.models\._absent\.Net .*--trust"):
        settings_from_json(section)
