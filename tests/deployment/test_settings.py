"""Settings of a node: its operator's file, which the server's settings have to equal."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from combination import option
from federated_round import facts

import lit_fed.cli
from lit_fed.command_line.client import node_settings, settings_in
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.targets import CrossEntropy, Sequences
from lit_fed.deployment.messages import facts_from_json
from lit_fed.deployment.settings import common_settings, refuse_other_settings
from lit_fed.errors import ConfigError
from lit_fed.models import MLP
from lit_fed.system.readers import FormError
from lit_fed.wrappers.compression.codecs import QSGD
from lit_fed.wrappers.faults.wrapper import Faults

QUICKSTART = Path(__file__).parents[2] / "configs" / "experiment" / "quickstart.yaml"


def written(*arguments):
    """Settings of a node from arguments of `fit`, and their section `model`."""
    return node_settings(lit_fed.cli.ArgumentsCLI(["fit", *arguments]))


def test_settings_are_those_of_the_file(tmp_path):
    """Also as a complete file that the command line has written."""
    given = [
        "--model.network", "MLP", "--model.network.hidden_sizes", "[7, 5]", "--model.compression", "QSGD",
        "--model.faults.on_bad_client", "drop", "--model.faults.dropout", "[0.1, 0.2]", "--model.solver.lr", "0.3",
        "--model.metrics", "AUROC,F1Score", "--model.target", "Sequences", "--model.target.ignore_index", "255",
    ]  # fmt: skip
    made, common = written(*given)
    assert made.solver == LocalSolver(lr=0.3)
    assert option(made, "compression") == QSGD()
    assert option(made, "faults") == Faults(dropout=[0.1, 0.2], on_bad_client="drop")
    assert made.target == Sequences(ignore_index=255)
    assert isinstance(made.network((4,), 3), MLP)
    (tmp_path / "run.json").write_text(json.dumps({"model": common}))
    again, read = settings_in([str(tmp_path / "run.json")], lambda: lit_fed.cli)
    assert replace(again, network=None) == replace(made, network=None)
    refuse_other_settings(common, read)


def test_later_files_come_over_earlier_ones(tmp_path):
    (tmp_path / "more.yaml").write_text("model: {algorithm: FedAvg}\n")
    made, _ = settings_in([str(QUICKSTART), str(tmp_path / "more.yaml")], lambda: lit_fed.cli)
    assert type(made.algorithm).__name__ == "FedAvg"
    with pytest.raises(ConfigError, match=r"--config nowhere\.yaml: no such file"):
        settings_in(["nowhere.yaml"], lambda: lit_fed.cli)


def test_other_settings_of_the_server_are_refused_by_name():
    """Nothing of what the server sends is imported, or made into an object."""
    _, own = written("--model.algorithm", "FedAvg", "--model.solver.lr", "0.1")
    sent = json.loads(json.dumps(own))
    refuse_other_settings(sent, own)
    sent["solver"]["lr"] = 0.2
    with pytest.raises(ConfigError, match=r"^--model.solver.lr is 0.2 at the server and 0.1 here; give --config"):
        refuse_other_settings(sent, own)
    sent["network"], sent["more"] = {"class_path": "os.system\x1b[2J"}, [1]
    with pytest.raises(ConfigError, match=r"--model.more is \[1\] .*--model.network.class_path is os.system\[2J at"):
        refuse_other_settings(sent, own)
    with pytest.raises(ConfigError, match="; and 30 more; give"):
        refuse_other_settings({str(number): 1 for number in range(40 - len(own))}, dict.fromkeys(own, 2))
    with pytest.raises(ConfigError, match="the server is a program that sends no settings"):
        refuse_other_settings(None, own)
    refuse_other_settings(sent, None)  # a program gives the same settings to both sides


def test_user_defined_classes_need_no_trust(monkeypatch, tmp_path):
    """The operator's file names them."""
    (tmp_path / "own_targets.py").write_text(
        "from dataclasses import dataclass\nfrom lit_fed import Likelihood\n\n\n@dataclass(frozen=True)\n"
        "class Times(Likelihood):\n    shortest: float = 1.0\n    num_outputs = 2\n\n"
        "    def log_likelihood(self, outputs, y):\n        return -outputs[..., 0] * y\n\n"
        "    def predict(self, outputs):\n        return outputs[..., 0]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made, _ = written("--model.target", "own_targets.Times", "--model.target.shortest", "0.5")
    assert made.target.shortest == 0.5
    sent = json.loads(json.dumps(facts(made.target).public.plain()))
    assert facts_from_json(sent, made.target).target == made.target
    with pytest.raises(FormError, match="labels are Times, which this version cannot learn"):
        facts_from_json(sent)


def test_nodes_take_weights_of_classes_and_refuse_to_count(tmp_path):
    (tmp_path / "loss.yaml").write_text("class_path: CrossEntropy\ninit_args: {weight: [1, 2.5], in_e_step: true}\n")
    options = (
        ("--model.loss", "CrossEntropy", "--model.loss.weight", "[1, 2.5]", "--model.loss.in_e_step", "true"),
        ("--model.loss", str(tmp_path / "loss.yaml")),
    )
    for one in options:
        assert written(*one)[0].loss == CrossEntropy((1.0, 2.5), in_e_step=True)
    with pytest.raises(ConfigError, match="inverse_frequency, and nodes do not tell how many labels of each class"):
        written("--model.loss", "CrossEntropy", "--model.loss.weight", "inverse_frequency")


def test_seeds_of_noise_and_patterns_of_names_are_not_in_common():
    given = ["--model.privacy", "LocalPrivacy", "--model.privacy.noise_multiplier", "2", "--model.privacy.delta", "0.1"]
    given += ["--model.privacy.clip_norm", "1", "--model.solver.client_lr", '{"0": 0.5}']
    made, common = written(*given, "--model.privacy.noise_seed", "5")
    assert option(made, "privacy").noise_seed is None, "each node draws its own"
    assert "noise_seed" not in common["privacy"]["init_args"]
    assert common["solver"]["client_lr"] == {}
    _, other = written(*given, "--model.privacy.noise_seed", "6", "--model.solver.client_work", '{"1": 0.5}')
    assert other == common
    assert common_settings({"privacy": None}) == {"privacy": None}
