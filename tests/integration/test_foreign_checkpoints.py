"""A checkpoint cannot run code: what it names is imported only if it is known, named or trusted."""

import copy
import os
import pickle
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from running import SMALL, folder
from watched import touched

from lit_fed.cli import main
from lit_fed.command_line.classes import classes_in, trusted_arguments
from lit_fed.errors import ConfigError
from lit_fed.training.checkpoint import load_checkpoint

ARGUMENTS = [
    *SMALL, "--model.algorithm", "FedAvg", "--data.num_clients", "4", "--trainer.max_epochs", "1",
    "--trainer.enable_progress_bar", "false",
]  # fmt: skip

MODULE = """
from pathlib import Path
Path(__file__).with_name("code_ran").touch()
import torch
from torch import nn
from torchmetrics import Accuracy

class Net(nn.Sequential):
    def __init__(self, input_shape, num_outputs, note=None):
        super().__init__(nn.Flatten(), nn.Linear(torch.Size(input_shape).numel(), num_outputs))

class Metric(Accuracy):
    pass

def make(input_shape, num_outputs) -> nn.Module:
    return nn.Linear(input_shape[0], num_outputs)
"""

LAMBDA = {"class_path": "torchvision.transforms.Lambda", "init_args": {"lambd": "os.system"}}


def source(name, **options):
    inner = {"class_path": f"torchvision.datasets.{name}", "init_args": options}
    return {"data": {"dataset": {"class_path": "lit_fed.TorchDataset", "init_args": {"source": inner}}}}


def network(path, **options):
    return {"model": {"network": {"class_path": path, "init_args": options}}}


MODULES_OF_ONE_S_OWN = {
    "class": network("foreign.Net"),
    "text": {"model": {"network": "foreign.make"}},
    "target": {"model": {"target": {"class_path": "foreign.Net"}}},
    "metric": {"model": {"metrics": "AUROC, foreign.Metric"}},
    "metric in a list": {"model": {"metrics": ["foreign.Metric"]}},
    "metric with options": {"model": {"metrics": {"foreign.Metric": {"task": "binary"}}}},
    "metric as a class": {"model": {"metrics": [{"class_path": "foreign.Metric"}]}},
    "data set": {"data": {"dataset": {"class_path": "foreign.Set"}}},
    "source": {"data": {"dataset": {"class_path": "lit_fed.TorchDataset", "init_args": {"source": "foreign.Set"}}}},
    "option of a class": source("FakeData", transform="foreign.make"),
    "class in an option": source("FakeData", transform={"class_path": "foreign.Net"}),
    "further options": {"model": {"network": {"class_path": "lit_fed.MLP", "dict_kwargs": {"norm": "foreign.Net"}}}},
    "below an option of any type": network("lit_fed.Timm", options={"act": {"class_path": "foreign.Net"}}),
    "partition": {"data": {"partition": {"class_path": "foreign.Net"}}},
    "algorithm": {"model": {"algorithm": {"class_path": "foreign.Net"}}},
}

CALLABLES = [
    "os.system", "builtins.eval", "builtins.exec", "subprocess.Popen", "runpy.run_path", "pickle.loads",
    "torch.load", "torch.hub.load", "torch.jit.load", "torch.ops.load_library", "torch.classes.load_library",
    "torch.utils.cpp_extension.load", "torch.package.PackageImporter", "torch.serialization.os.system",
    "torch.nn.Module.load_state_dict", "torch.fx.GraphModule", "torchvision.os.system",
    "torchvision.extension.os.system",
    "torchvision.datasets.utils.download_and_extract_archive", "torchvision.models.get_model",
    "lit_fed.cli.os.system", "lit_fed.cli.main", "lit_fed.models.base.build_network", "lit_fed.errors.ConfigError",
    "torchmetrics.functional.accuracy", "lightning.pytorch.Trainer", "jsonargparse.CLI",
]  # fmt: skip

NO_ARGUMENTS = {
    "callbacks": {"trainer": {"callbacks": [{"class_path": "foreign.Net"}]}},
    "key with a dot": {"trainer.callbacks": [{"class_path": "foreign.Net"}]},
    "another configuration": {"config": "foreign.yaml"},
    "a section from a file": {"model": "foreign.yaml"},
    "a class from a file": {"model": {"algorithm": "foreign.yaml"}},
    "a class from a text": {"model": {"network": "{class_path: foreign.Net}"}},
    "a text of any type": network("lit_fed.Timm", options={"act": "{class_path: foreign.Net}"}),
    "an option with a dot": {"model": {"network.class_path": "foreign.Net"}},
    "a path that is no text": {"model": {"network": {"class_path": ["foreign.Net"]}}},
    "keys beside a class": {"model": {"network": {"class_path": "lit_fed.MLP", "__path__": "foreign.yaml"}}},
    "precision": {"trainer": {"precision": {"class_path": "foreign.Net"}}},
    "seed": {"seed_everything": {"class_path": "foreign.Net"}},
    "no options": {"model": {"network": {"class_path": "lit_fed.MLP", "init_args": "foreign.yaml"}}},
    "a list": ["foreign.Net"],
    "a tensor": {"model": {"network": torch.zeros(1)}},
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a module that writes a file when it is imported, which is where programs start."""
    (tmp_path / "foreign.py").write_text(MODULE)
    (tmp_path / "foreign.yaml").write_text("class_path: foreign.Net\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    __import__("sys").modules.pop("foreign", None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The checkpoint of a small run."""
    out = tmp_path_factory.mktemp("foreign")
    main(["fit", *ARGUMENTS, "--trainer.default_root_dir", str(out)])
    return folder(out, "FedAvg") / "checkpoints/last.ckpt"


def changed(whole, path, arguments):
    """A copy of a checkpoint with other arguments, section by section."""
    content = load_checkpoint(whole)
    stored = content["lit_fed"]["arguments"] = copy.deepcopy(content["lit_fed"]["arguments"])
    for section, values in arguments.items():
        stored[section] |= values
    torch.save(content, path)
    return path


def refusal(arguments, named=(), trusted=()):
    with pytest.raises(ConfigError) as refused:
        trusted_arguments(arguments, Path("its.ckpt"), set(named), list(trusted))
    return str(refused.value)


# ---------------------------------------------------------------------- the arguments in a checkpoint
@pytest.mark.parametrize("way", MODULES_OF_ONE_S_OWN)
def test_a_module_that_nobody_named_is_not_imported(way, place):
    said = refusal(MODULES_OF_ONE_S_OWN[way], named={"foreign.Other"}, trusted=["foreigner", "my.foreign"])
    assert said.startswith("--ckpt_path its.ckpt names foreign.")
    assert f"to import foreign ({place / 'foreign.py'}) may run any code" in said
    assert "add --trust foreign, or name the class yourself, as in --" in said
    assert not (place / "code_ran").exists()


@pytest.mark.parametrize("path", CALLABLES)
def test_only_classes_of_the_right_kind_are_taken(path, place):
    for arguments in (network(path), source("ImageFolder", root="here", loader=path)):
        said = refusal(arguments)
        assert f"names {path} (" in said or "cannot be imported" in said
    assert not (place / "code_ran").exists()


def test_options_of_known_classes_are_looked_at(place):
    assert "names os.system" in refusal(source("FakeData", transform=LAMBDA))
    assert "names os.system" in refusal(source("FakeData", transform=[LAMBDA]))


@pytest.mark.parametrize("way", NO_ARGUMENTS)
def test_what_is_no_argument_of_a_run_is_refused(way, place):
    assert refusal(NO_ARGUMENTS[way]).startswith("--ckpt_path its.ckpt")
    assert not (place / "code_ran").exists()


REACHING = {
    "Federation": {"data": {"dataset": {"class_path": "lit_fed.Federation"}}},
    "long path": {"data": {"dataset": {"class_path": "lit_fed.deployment.federation.Federation"}}},
    "name alone": {"data": {"dataset": "Federation"}},
    "path alone": {"data": {"dataset": "lit_fed.Federation"}},
    "in another": {
        "data": {"dataset": {"class_path": "lit_fed.FrozenFeatures", "init_args": {"dataset": "Federation"}}}
    },
    "hub": {"data": {"dataset": {"class_path": "lit_fed.HuggingFace", "init_args": {"path": "some/one"}}}},
    "tokenizer": {
        "data": {"dataset": {"class_path": "lit_fed.HuggingFace", "init_args": {"path": ".", "tokenizer": "gpt2"}}}
    },
    "weights": network("lit_fed.HuggingFaceClassifier", weights="some/one"),
    "config": network("lit_fed.HuggingFaceClassifier", config="some/one"),
    "pretrained": network("lit_fed.Timm", name="resnet18", pretrained=True),
    "torchvision": network("lit_fed.ResNet18", weights="IMAGENET1K_V1"),
    "function": network("torchvision.models.resnet18", weights="DEFAULT"),
    "further options": {
        "model": {"network": {"class_path": "torchvision.models.resnet18", "dict_kwargs": {"weights": "DEFAULT"}}}
    },
}


@pytest.mark.parametrize("way", REACHING)
def test_a_class_that_reaches_other_machines_is_refused(way, place):
    said = refusal(REACHING[way])
    assert "a checkpoint alone may not do that; name the class yourself, as in --" in said
    assert "waits for other machines" in said or "loads from a hub by its" in said or "downloads weights by its" in said


def test_what_reaches_other_machines_is_taken_from_the_command_line(place):
    for way, name in (
        ("long path", "lit_fed.Federation"),
        ("name alone", "lit_fed.Federation"),
        ("hub", "lit_fed.HuggingFace"),
    ):
        given = copy.deepcopy(REACHING[way])
        assert trusted_arguments(given, Path("its.ckpt"), {name}, []) == given
        assert trusted_arguments(given, Path("its.ckpt"), set(), [], reads_data=False) == given
    for arguments in (
        {"data": {"dataset": {"class_path": "lit_fed.HuggingFace", "init_args": {"path": "."}}}},
        network("lit_fed.ResNet18", weights="mine.pt"), network("lit_fed.Timm", name="resnet18", pretrained=False),
    ):  # fmt: skip
        assert trusted_arguments(arguments, Path("its.ckpt"), set(), []) == arguments


def test_a_test_listens_only_if_the_command_line_says_so(whole, place, capsys):
    """Its other options come from the checkpoint."""
    inner = {
        "class_path": "lit_fed.Federation",
        "init_args": {"listen": "127.0.0.1:0", "num_nodes": 7, "patience": -1.0},
    }
    path = changed(whole, place / "theirs.ckpt", {"data": {"dataset": inner}})
    with touched("") as found:
        assert "names lit_fed.Federation (data.dataset), which waits for" in ended(
            ["test", "--ckpt_path", str(path)], capsys
        )
    assert not [event for event, _ in found if event.startswith("socket.")]
    said = ended(["test", "--ckpt_path", str(path), "--data.dataset", "Federation"], capsys)
    assert "patience is -1.0" in said, "it is made, with the options of the checkpoint"


def test_a_name_of_another_package_is_not_imported(place, monkeypatch):
    point = EntryPoint("ForeignNet", "foreign:Net", "lit_fed.algorithms")
    monkeypatch.setattr("lit_fed.command_line.classes.entry_points", lambda: {"ForeignNet": point})
    for arguments in ({"model": {"algorithm": "ForeignNet"}}, network("lit_fed.Timm", options={"act": "ForeignNet"})):
        assert "names foreign.Net (arguments), and to import foreign" in refusal(arguments)
    assert not (place / "code_ran").exists()


def test_known_classes_are_taken(place):
    for arguments in (
        network("lit_fed.MLP", hidden=[8]),
        network("torchvision.models.resnet18", norm_layer="torch.nn.BatchNorm2d"),
        network("torchvision.models.resnet.ResNet", block="torchvision.models.resnet.BasicBlock", layers=[1, 1, 1, 1]),
        source("FakeData", size=10, transform={"class_path": "torchvision.transforms.ToTensor"}),
        {"model": {"metrics": {"mine": {"class_path": "torchmetrics.classification.MulticlassAUROC"}}}},
        {"data": {"dataset": {"class_path": "lit_fed.Table", "init_args": {"path": "foreign.csv"}}}},  # a value
        {"data": {"partition": {"class_path": "lit_fed.data.partitions.iid.IID"}}},
    ):
        assert trusted_arguments(arguments, Path("its.ckpt"), set(), []).keys() == arguments.keys()
    assert not (place / "code_ran").exists()


def test_what_is_named_or_trusted_is_taken(place):
    own = network("foreign.Net", note="torch.load")
    for named, trusted in (({"foreign.Net"}, []), (set(), ["foreign"]), (set(), ["other", "foreign.Net"])):
        assert trusted_arguments(own, Path("its.ckpt"), named, trusted) == own
    nested = network("foreign.Net", note={"class_path": "os.system"})
    assert "names os.system" in refusal(nested, trusted=["foreign"]), "trust in one module is not trust in another"


@pytest.mark.parametrize(
    "given",
    ["AUROC, foreign.Metric", ["foreign.Metric"], {"foreign.Metric": {"task": "binary"}}, {"x": "foreign.Metric"}],
    ids=["text", "list", "key", "value"],
)
def test_a_metric_that_the_command_line_names_is_taken(given, place):
    stored = {"model": {"metrics": {"foreign.Metric": {}}}}
    assert trusted_arguments(stored, Path("its.ckpt"), classes_in({"model": {"metrics": given}}), []) == stored


# ---------------------------------------------------------------------- the command line
def ended(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["test"], ["predict"], ["personalize", "--clients", ".", "--output", "new"],
        ["export", "--client", "0", "--output", "new.pt2"],
    ],
)  # fmt: skip
def test_no_command_imports_what_a_checkpoint_names(command, whole, place, capsys):
    path = changed(whole, place / "theirs.ckpt", network("foreign.Net"))
    said = ended([*command, "--ckpt_path", str(path), "--trust", "foreigner"], capsys)
    assert said.startswith(f"lit_fed: --ckpt_path {path} names foreign.Net (model.network)")
    assert not (place / "code_ran").exists()


def test_a_class_of_lit_fed_that_was_removed_is_looked_up_on_its_page(whole, place, capsys):
    path = changed(whole, place / "old.ckpt", network("lit_fed.RemovedNet"))
    assert "docs/removed.md has what was removed" in ended(["test", "--ckpt_path", str(path)], capsys)


def test_a_pickle_in_a_checkpoint_is_not_run(place, capsys):
    class Evil:
        def __reduce__(self):
            return os.system, ("touch code_ran",)

    torch.save({"state_dict": {}, "lit_fed": Evil()}, place / "archive.ckpt")
    (place / "plain.ckpt").write_bytes(pickle.dumps({"lit_fed": Evil()}))
    for name, given in (("archive.ckpt", ["fit", *ARGUMENTS, "--init_from"]), ("plain.ckpt", ["test", "--ckpt_path"])):
        assert f"{given[-1]} {name} cannot be read: " in ended([*given, name], capsys)
    assert not (place / "code_ran").exists()


def test_a_network_of_one_s_own_is_served_once_it_is_trusted(place, capsys):
    main(["fit", *ARGUMENTS, "--model.network", "foreign.Net", "--trainer.default_root_dir", "out"])
    fitted = capsys.readouterr().out
    table = fitted[fitted.index("clients") : fitted.index("results:")]
    path = str(folder(place / "out", "FedAvg") / "checkpoints/last.ckpt")
    main(["test", "--ckpt_path", path, "--trust", "other", "--trust", "foreign"])
    assert table in capsys.readouterr().out
    main(["test", "--ckpt_path", path, "--model.network", "foreign.Net"])
    assert table in capsys.readouterr().out
    assert "--trust foreign.py: give the name of a module" in ended(
        ["test", "--ckpt_path", path, "--trust", "foreign.py"], capsys
    )
