"""What the README says is so: files exist, commands are those of CI, code runs, metric keys are those of a run."""

import csv
import importlib
import re
import shlex
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest
from lightning.pytorch import seed_everything

from lit_fed.algorithms import Algorithm, FedAvg, FedEM
from lit_fed.callbacks import RunReport, with_defaults
from lit_fed.cli import main
from lit_fed.data import ClientFolder, DataSet
from lit_fed.data.module import FederatedDataModule
from lit_fed.training import FederatedModule, FederatedTrainer, RoundLogger

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TEXTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/architecture.md", "docs/paper_index.md"]
MADE_BY_THE_READER = {"x.py", "test_x.py", "x_numpy.py", "x.yaml"}


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands():
    return [line for block in blocks("bash") for line in block.splitlines()]


def trainer_of(folder, rounds, callbacks=None):
    usual = with_defaults([RunReport(pictures=False)], checkpoint=False, progress=False)
    return FederatedTrainer(
        max_epochs=rounds, accelerator="cpu", devices=1, default_root_dir=str(folder), enable_model_summary=False,
        logger=[RoundLogger(str(folder), "readme")], callbacks=callbacks or usual, enable_progress_bar=False,
        enable_checkpointing=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The README's Python blocks that define classes, as modules of the reader's own."""
    folder = tmp_path_factory.mktemp("reader")
    sys.path.insert(0, str(folder))
    made = []
    for position, text in enumerate(block for block in blocks("python") if "\nclass " in block):
        (folder / f"readme_block_{position}.py").write_text(text, encoding="utf-8")
        made.append(importlib.import_module(f"readme_block_{position}"))
    yield made
    sys.path.remove(str(folder))


def test_what_is_named_exists():
    for text in TEXTS:
        content = (ROOT / text).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", content):
            place = (ROOT / text).parent / target
            assert place.exists(), f"{text} links to {target}"
        for named in re.findall(r"(?:lit_fed|configs|tests|docs|scripts|\.ci)/[\w./]+\w", content):
            if Path(named).name not in MADE_BY_THE_READER:
                assert (ROOT / named).exists(), f"{text} names {named}"


def test_first_command_installs_and_runs_the_quickstart():
    (first,) = [line for line in commands() if line.startswith("pip install -e . ")]
    assert first == "pip install -e . && python -m lit_fed fit --config configs/experiment/quickstart.yaml"
    in_ci = (ROOT / ".ci/run").read_text()
    assert first.split(" && ")[1] in in_ci


def test_second_command_is_that_of_ci():
    assert 'pip install -e ".[dev]" && pytest' in commands()
    assert "dev" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    in_ci = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line]
    assert any(line.endswith('pip install --quiet --disable-pip-version-check -e ".[dev]"') for line in in_ci)
    assert in_ci[-1].endswith("pytest")


@pytest.mark.parametrize("command", [line for line in commands() if line.startswith("python -m lit_fed")])
def test_command_parses(command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    arguments = shlex.split(command)[3:]
    if arguments[-2:] == ["--ckpt_path", "last"]:  # needs an earlier run
        arguments = arguments[:-2]
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--print_config"])
    assert stopped.value.code in (None, 0)
    assert "data:" in capsys.readouterr().out.splitlines()


def test_added_algorithm_trains(modules, tmp_path):
    """Without trimming and with equal weights it is FedAvg; with trimming it is not."""
    (own,) = [one for one in vars(modules[0]).values() if _is_own(one, Algorithm, modules[0])]
    results = []
    for algorithm in (FedAvg(), own(trim_fraction=0.0), own()):
        seed_everything(0, verbose=False)
        module = FederatedModule(algorithm, weighting="uniform")
        trainer_of(tmp_path, 2).fit(module, datamodule=FederatedDataModule(num_clients=10))
        results.append(module.models__parameters__linear_weight.detach().clone())
    plain, untrimmed, trimmed = results
    assert (plain - untrimmed).abs().max() < 1e-7
    assert (plain - trimmed).abs().max() > 1e-4


def test_added_data_set_trains(modules, tmp_path):
    (own,) = [one for one in vars(modules[1]).values() if _is_own(one, DataSet, modules[1])]
    module = FederatedModule(FedEM())
    data = FederatedDataModule(own(), num_clients=5)
    trainer = trainer_of(tmp_path, 5)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data, verbose=False)
    assert module.target.num_classes == own.num_classes
    assert module.results["test/seen/accuracy"] > 0.5


def test_own_classes_are_named_on_the_command_line(modules, capsys):
    names = re.findall(r"`(--[^`]* my_module\.\w+[^`]*)`", README)
    assert len(names) == 2
    for text, module in zip(names, modules, strict=True):
        with pytest.raises(SystemExit) as stopped:
            main(["fit", *shlex.split(text.replace("my_module", module.__name__)), "--print_config"])
        assert stopped.value.code in (None, 0)
        assert module.__name__ in capsys.readouterr().out


def test_own_folder_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (text,) = [block for block in blocks("python") if "\nclass " not in block]
    exec(compile(text, "README.md", "exec"), {"__name__": "readme"})
    (root,) = set(re.findall(r"--data\.dataset\.root (\w+)", README))
    seen, unseen = ClientFolder(root=root).load()
    assert (seen.names, unseen.names) == (["anna", "bela"], ["cleo"])


def test_metric_keys_are_those_of_a_run(tmp_path):
    seed_everything(0, verbose=False)
    module = FederatedModule(FedEM())
    data = FederatedDataModule(unseen_fraction=0.2, val_fraction=0.2)
    trainer = trainer_of(tmp_path, 2)
    trainer.fit(module, datamodule=data)
    trainer.test(module, datamodule=data, verbose=False)
    with (Path(trainer.log_dir) / "metrics.csv").open() as file:
        logged = set(next(csv.reader(file))) - {"step"}
    assert set(module.results) | logged == set(_documented_keys())


def _documented_keys():
    rows = re.search(r"^## Metric keys\n(.*?)^## ", README, flags=re.MULTILINE | re.DOTALL).group(1).splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    for key in (key for cell in cells for key in re.findall(r"`([^`]+)`", cell)):
        for split, population in product(("val", "test"), ("seen", "unseen")):
            yield key.format(split=split, population=population)


def _is_own(one, base, module):
    return isinstance(one, type) and issubclass(one, base) and one.__module__ == module.__name__
