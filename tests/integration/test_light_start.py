"""What a command and the rooms without Lightning load, and what they leave to those who ask for it."""

import json
import os
import subprocess
import sys

import pytest
from lightning.pytorch.cli import LightningCLI

from lit_fed.cli import FederatedCLI
from lit_fed.command_line import light_start

ROUND_WITHOUT = {
    "lightning", "torchmetrics", "torchvision", "scipy", "sklearn", "pandas", "matplotlib", "networkx", "torch._dynamo",
}  # fmt: skip
"""What a program that runs rounds by itself, as a node of a federation does, has no use for."""

FIT_WITHOUT = ROUND_WITHOUT - {"lightning", "torchmetrics"} | {
    "torchmetrics.classification", "transformers", "wandb", "onnx", "tensorboard", "torch._inductor", "triton", "sympy",
    "lit_fed.training.export", "lit_fed.models.hugging_face", "lit_fed.callbacks.served_clients",
    "lit_fed.callbacks.wandb", "lit_fed.data.new_clients", "lit_fed.data.data_sets.table",
    "lit_fed.data.data_sets.synthetic", "lit_fed.system.whitelist", "lit_fed.training.learning_rate",
}  # fmt: skip
"""What a fit has no use for before its first round is over."""

PROGRAM = """
import json, os, sys
import lit_fed

def loaded(names):
    return sorted(set(names) & set(sys.modules))

lit_fed.FedEM, lit_fed.MLP, lit_fed.LocalSolver
from lit_fed import clients, rounds, serving
from lit_fed.clients import store
found = {"rooms": loaded(ROUND_WITHOUT)}

from lit_fed.__main__ import main

def first_round(record):
    found["fit"] = loaded(FIT_WITHOUT)
    import torch, torchmetrics
    from lightning.fabric.wrappers import _unwrap_compiled
    network = torch.nn.Linear(1, 1)
    found["compiled"] = [_unwrap_compiled(one)[0] is network for one in (network, torch.compile(network))]
    found["same compiler"] = torch._dynamo is sys.modules["torch._dynamo"]
    found["metric"] = issubclass(torchmetrics.MeanMetric, torchmetrics.Metric)
    metric = torchmetrics.MeanMetric()
    metric.update(1.0)
    found["plot"] = type(metric.plot()[1]).__module__.partition(".")[0]
    from lightning.fabric.utilities.throughput import measure_flops
    from lightning.pytorch.utilities.model_summary.model_summary import FlopCounterMode
    found["counter"] = measure_flops(network, lambda: network(torch.ones(1, 1))), type(FlopCounterMode()).__module__
    print(json.dumps(found), flush=True)
    os._exit(0)

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "lit_fed.cli":  # what is loaded before it is the light start
            sys.meta_path.remove(self)
            from lit_fed.rounds import FederatedRounds
            commit = FederatedRounds.commit
            FederatedRounds.commit = lambda federation: first_round(commit(federation))

sys.meta_path.insert(0, Watch())
main()
"""


@pytest.mark.parametrize("network", ["Linear", "MLP"])
def test_rooms_and_first_round_load_no_more_than_they_need(network, tmp_path):
    """And what is not loaded is there for those who ask: compiled networks are known, and metrics whole."""
    program = PROGRAM.replace("FIT_WITHOUT", repr(FIT_WITHOUT)).replace("ROUND_WITHOUT", repr(ROUND_WITHOUT))
    arguments = ["fit", "--config", "configs/experiment/quickstart.yaml", "--trainer.default_root_dir", str(tmp_path)]
    arguments += ["--model.network", network]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=environment, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "rooms": [],
        "fit": [],
        "compiled": [True, True],
        "same compiler": True,
        "metric": True,
        "plot": "matplotlib",
        "counter": [2, "torch.utils.flop_counter"],
    }


def test_a_name_that_a_fake_lacks_loads_the_module(monkeypatch):
    fake = light_start._Later("colorsys")
    monkeypatch.setitem(sys.modules, "colorsys", fake)
    assert fake.hsv_to_rgb(0, 0, 1) == (1, 1, 1)
    assert sys.modules["colorsys"] is not fake


@pytest.mark.parametrize("broken", ["BASES = {'Metric': 'torchmetrics.nowhere'}", "_as_it_is = None"])
def test_a_fake_that_does_not_fit_is_not_used(broken):
    program = f"""
from lit_fed.command_line import light_start
light_start.{broken}
with light_start.light_start():
    pass
import lightning.pytorch, torch, torchmetrics
print(torchmetrics.MeanMetric.__name__, torch._dynamo.optimize.__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "MeanMetric optimize\n", done.stderr


@pytest.fixture
def built(monkeypatch):
    """The commands whose parsers were made completely; the tests' shared parser is left alone."""
    made = []
    prepare = LightningCLI._prepare_subcommand_parser

    def noted(self, klass, subcommand, **kwargs):
        made.append(subcommand)
        return prepare(self, klass, subcommand, **kwargs)

    monkeypatch.setattr(LightningCLI, "_prepare_subcommand_parser", noted)
    monkeypatch.setattr(FederatedCLI, "setup_parser", LightningCLI.setup_parser)
    return made


class OnlyArguments(FederatedCLI):
    """Ends when the arguments are read."""

    def _set_seed(self):
        raise StopIteration


def test_one_command_makes_one_parser(built):
    with pytest.raises(StopIteration):
        OnlyArguments(["validate", "--trainer.max_epochs", "3"])
    assert built == ["validate"]
