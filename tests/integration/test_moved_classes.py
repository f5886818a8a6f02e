"""Configurations and checkpoints that name classes where they stood before."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from running import history

import lit_fed
from lit_fed.cli import main
from lit_fed.command_line.moved_classes import MODULES, with_present_paths
from lit_fed.training.checkpoint import CHECKPOINT_KEY, compare_arguments

OLD, NEW = "lit_fed.core.surrogates.MixtureSurrogate", "lit_fed.MixtureSurrogate"

CONFIG = f"""
model:
  algorithm:
    class_path: lit_fed.SurrogateOptimization
    init_args:
      surrogate:
        class_path: {OLD}
        init_args:
          num_components: 2
data:
  dataset:
    class_path: lit_fed.data.digits.Digits
  partition:
    class_path: lit_fed.data.partition.IID
  num_clients: 4
trainer:
  accelerator: cpu
  max_epochs: 1
"""


def printed(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--print_config"])
    assert stopped.value.code in (None, 0)
    return capsys.readouterr().out


def test_a_configuration(tmp_path, capsys):
    path = tmp_path / "old.yaml"
    path.write_text(CONFIG)
    for given in (str(path), json.dumps(yaml.safe_load(CONFIG))):
        text = printed(["fit", "--config", given], capsys)
        for name in ("MixtureSurrogate", "Digits", "IID"):
            assert f"class_path: lit_fed.{name}\n" in text
        assert "num_components: 2" in text


@pytest.mark.parametrize("command", ["fit", "partition"])
def test_the_command_line(command, capsys):
    given = [command, "--data.dataset=lit_fed.data.sine.Sine", "--data.partition", "lit_fed.data.shards.Shards"]
    text = printed([*given, "--data.partition.shards_per_client", "3"], capsys)
    assert "class_path: lit_fed.Sine\n" in text
    assert "class_path: lit_fed.Shards\n" in text
    assert "shards_per_client: 3" in text


def test_a_checkpoint(tmp_path):
    """It goes on, and is measured, as if its arguments named the classes that there are."""
    (tmp_path / "old.yaml").write_text(CONFIG)
    place = ["--trainer.default_root_dir", str(tmp_path), "--name", "old"]
    fit = ["fit", "--config", str(tmp_path / "old.yaml"), *place]
    main(fit)
    last = tmp_path / "old/version_0/checkpoints/last.ckpt"
    checkpoint = torch.load(last, weights_only=True)
    arguments = checkpoint[CHECKPOINT_KEY]["arguments"]
    assert arguments["model"]["algorithm"]["init_args"]["surrogate"]["class_path"] == NEW
    now = {**arguments["model"]["algorithm"]["init_args"]["surrogate"]}
    arguments["model"]["algorithm"]["init_args"]["surrogate"]["class_path"] = OLD
    assert compare_arguments({"surrogate": {**now, "class_path": OLD}}, {"surrogate": now}) == []
    torch.save(checkpoint, last)

    main(["test", "--ckpt_path", str(last), "--trainer.accelerator", "cpu"])
    main([*fit, "--ckpt_path", "last", "--trainer.max_epochs", "2"])
    assert len(history(last.parents[1])) == 1 + 2 + 1  # a header, two rounds, the final test


def test_every_moved_module_is_gone():
    """A module that is there again would be shadowed."""
    for module in MODULES:
        path = Path(lit_fed.__file__).parent.joinpath(*module.split("."))
        assert not path.with_suffix(".py").exists()
        assert not path.is_dir()


@pytest.mark.parametrize("text", ["lit_fed.data.sine", "mine.lit_fedora.data.sine.Sine", "lit_fed.data.synthetic.draw"])
def test_what_has_not_moved_stays(text):
    assert with_present_paths(text) == text
