"""Every shipped configuration parses, and every experiment is complete and names the command that runs it."""

import functools
from pathlib import Path

import pytest
import yaml
from jsonargparse import ArgumentError

from lit_fed.algorithms import Algorithm
from lit_fed.data import DataSet
from lit_fed.errors import ConfigError
from lit_fed.models import Network
from lit_fed.system.discovery import subclasses

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "configs/benchmark"  # no configurations of a run
CONFIGS = sorted(path for path in (ROOT / "configs").rglob("*.yaml") if path.parent != TASKS)
EXPERIMENTS = [path for path in CONFIGS if path.parent.name == "experiment"]
SWEEPS = [path for path in CONFIGS if path.parent.name == "sweep"]
PARTS = [path for path in CONFIGS if path not in EXPERIMENTS + SWEEPS]


def name_of(path):
    return str(path.relative_to(ROOT))


@pytest.fixture(scope="module")
def parse(parser):
    """Parse configurations, the later ones over the earlier ones; the same ones only once."""

    @functools.cache
    def parsed(*paths):
        return parser.parse_args([part for path in paths for part in ("--config", str(path))])

    return lambda *paths: parsed(*paths).clone()


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name_of)
def test_experiment_is_complete(path):
    written = yaml.safe_load(path.read_text())
    assert {"seed_everything", "model", "data", "trainer"} <= set(written)
    assert {"algorithm", "solver", "network"} <= set(written["model"])
    assert "dataset" in written["data"]
    assert {"accelerator", "max_epochs"} <= set(written["trainer"])


@pytest.mark.parametrize("path", EXPERIMENTS, ids=name_of)
def test_experiment_begins_with_its_command(path):
    first, second = path.read_text().splitlines()[:2]
    assert first == f"# python -m lit_fed fit --config {name_of(path)}"
    assert second.startswith("#")


@pytest.mark.parametrize("path", PARTS, ids=name_of)
def test_part_says_what_it_is_and_holds_one_section(path):
    assert path.read_text().startswith("# ")
    assert len(yaml.safe_load(path.read_text())) == 1


@pytest.mark.parametrize("path", EXPERIMENTS + PARTS, ids=name_of)
def test_model_and_data_can_be_made(parser, parse, path):
    config = parse(path)
    config.trainer = parser.get_defaults().trainer  # a GPU, two ranks or W&B may be missing here
    objects = parser.instantiate(config)
    written = yaml.safe_load(path.read_text())
    assert all(config.get(section) is not None for section in written)
    for section, key, made in (
        ("model", "algorithm", objects.model.algorithm),
        ("data", "dataset", objects.data.dataset),
    ):
        wanted = written.get(section, {}).get(key)
        if wanted is not None:
            assert type(made).__name__ == wanted["class_path"].rpartition(".")[2]


def test_parts_stack(parse):
    one_of_each = [sorted((ROOT / "configs" / kind).glob("*.yaml")) for kind in ("data", "model", "algorithm")]
    for paths in zip(*(group[:3] for group in one_of_each), strict=True):
        config = parse(*paths, ROOT / "configs/trainer/cpu.yaml", ROOT / "configs/logger/wandb.yaml")
        for path, chosen in zip(
            paths, (config.data.dataset, config.model.network, config.model.algorithm), strict=True
        ):
            (section,) = yaml.safe_load(path.read_text()).values()
            wanted = (section.get("dataset") or section.get("network") or section.get("algorithm"))["class_path"]
            assert chosen.class_path.rpartition(".")[2] == wanted
        assert config.trainer.accelerator == "cpu"
        assert config.trainer.logger.class_path.endswith("WandbLogger")


@pytest.mark.parametrize("path", sorted((ROOT / "configs/trainer").glob("*.yaml")), ids=lambda path: path.stem)
def test_trainer_goes_over_an_experiment(parse, path):
    config = parse(ROOT / "configs/experiment/quickstart.yaml", path)
    for name, value in yaml.safe_load(path.read_text())["trainer"].items():
        assert config.trainer[name] == value


@pytest.mark.parametrize("algorithm", ["fedavg", "fedavg_plus", "fedem", "local"])
def test_algorithm_goes_over_an_experiment(parse, algorithm):
    part = ROOT / f"configs/algorithm/{algorithm}.yaml"
    config = parse(ROOT / "configs/experiment/quickstart.yaml", part)
    wanted = yaml.safe_load(part.read_text())["model"]["algorithm"]
    assert config.model.algorithm.class_path.endswith(wanted["class_path"])
    assert config.data.partition.init_args.num_groups == 3


@pytest.mark.parametrize(("folder", "base"), [("algorithm", Algorithm), ("model", Network), ("data", DataSet)])
def test_every_class_of_the_package_has_a_part(folder, base):
    found = [one for one in subclasses(base) if one.__module__.startswith("lit_fed.")]
    around = "lit_fed.benchmark.", "lit_fed.wrappers."  # around other data, around trained algorithms
    found = [one for one in found if not one.__module__.startswith(around)]
    classes = {one.__name__ for one in found if not getattr(one, "is_remote", False)}  # nodes bring their own data
    key = {"algorithm": "algorithm", "model": "network", "data": "dataset"}[folder]
    parts = [yaml.safe_load(path.read_text()) for path in (ROOT / "configs" / folder).glob("*.yaml")]
    assert classes <= {part["data" if folder == "data" else "model"][key]["class_path"] for part in parts}


def test_unknown_field_is_refused(parser):
    with pytest.raises((ConfigError, ArgumentError), match="componnets"):
        parser.parse_args(["--model.algorithm", "FedEM", "--model.algorithm.componnets", "3"])
