"""What README and documentation say is so: every command and snippet is run, links lead somewhere, keys are a run's."""

import csv
import importlib
import json
import re
import shlex
import sys
import tomllib
from itertools import product
from pathlib import Path

import pytest
import yaml
from doc_pages import ROOT, ROUNDS, Block, blocks, lines, packages, pages, run, run_page, shortened
from lightning.pytorch import seed_everything
from reproduction import quickstart
from reproduction.runs import Kept
from reproduction.tables import Results

import lit_fed
from lit_fed import FederatedModule, FederatedTrainer, RoundLogger
from lit_fed.algorithms import Algorithm, FedAvg, FedEM
from lit_fed.benchmark.command import benchmark_parser
from lit_fed.callbacks import RunReport
from lit_fed.cli import FederatedCLI, main
from lit_fed.data import ClientFolder
from lit_fed.data.module import FederatedDataModule
from lit_fed.metrics.scores import STATISTICS

TEXTS = [*pages(), "CONTRIBUTING.md", "CHANGELOG.md"]
MADE_BY_THE_READER = {"x.py", "test_x.py", "x_numpy.py", "x.yaml", "x.md"}
LANGUAGES = {"bash", "python", "yaml", "text"}
RENDERED = {"docs/guides/pictures.md"}
"""Pages whose pictures are rendered, one of each kind; elsewhere they are drawn alone."""
NAMED = re.compile(r"(?<![\w/])(?:lit_fed|configs|tests|docs|scripts|\.ci)/[-\w./]*\w\b(?![*<{])")
"""Files and folders of the repository."""
REASONS = "GPU|machines|cluster|account|download|minutes|hours"


def trainer_of(folder, rounds):
    return FederatedTrainer(
        max_epochs=rounds, accelerator="cpu", devices=1, enable_progress_bar=False, enable_checkpointing=False,
        logger=[RoundLogger(str(folder), "documentation")], callbacks=[RunReport(pictures=False)],
    )  # fmt: skip


def titled(page, title, folder):
    """A Python block of a page as a module of the reader's own."""
    (block,) = [block for block in blocks(page) if block.title == title]
    (folder / title).write_text(block.text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(Path(title).stem)
    finally:
        sys.path.remove(str(folder))


@pytest.mark.parametrize("page", pages())
def test_commands_and_snippets_run(page, tmp_path):
    for package in packages(page):
        pytest.importorskip(package)
    for block, done in run_page(page, tmp_path, rendered=page in RENDERED):
        assert done.status == 0, f"{page}\n{block.text}\n{done.output}"


@pytest.mark.parametrize(
    ("language", "text", "status", "output"),
    [
        ("bash", "python -m lit_fed fit --model.algorithm NoSuch\n", 2, "NoSuch"),
        ("bash", "lit-fed fit --nome x\n", 2, "--nome"),
        ("bash", "ls no_such_file\n", 2, "no_such_file"),
        ("python", "raise ValueError('wrong')\n", 1, "ValueError: wrong"),
    ],
)
def test_a_block_that_fails_is_noticed(language, text, status, output, tmp_path):
    (done,) = run(Block(language, text, None, None), tmp_path)
    assert done.status == status
    assert output in done.output


def test_blocks_are_of_known_kinds():
    found = {page: blocks(page) for page in pages()}
    for page, its_blocks in found.items():
        fences = re.findall(r"^```\w", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert len(its_blocks) == len(fences), f"{page}: a block that is not read as one"
        for block in its_blocks:
            assert block.language in LANGUAGES, page
            assert block.reason is None or re.search(REASONS, block.reason), f"{page}: {block.reason}"
            assert block.language != "yaml" or yaml.safe_load(block.text), page
    assert sum(block.reason is None for its_blocks in found.values() for block in its_blocks) > 40


def too_long():
    """Commands that no test runs; of the results' pages, whose commands are those of their records, one each."""
    for page in pages():
        for block in blocks(page):
            if block.reason is not None:
                yield from (line for line in lines(block) if "-m lit_fed" in line and "lit_fed sweep" not in line)
    for path in sorted((ROOT / "docs/results").glob("*.md")):
        found = [line for block in blocks(str(path)) for line in lines(block) if line.startswith("python -m lit_fed")]
        yield from found[-1:]


@pytest.mark.parametrize("command", list(too_long()))
def test_commands_that_are_not_run_are_parsed(command, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    arguments = shlex.split(command.partition("-m lit_fed ")[2])
    if arguments[0] == "benchmark":
        assert benchmark_parser().parse_args(arguments[1:]).action in ("run", "submit-check")
        return
    with pytest.raises(SystemExit) as stopped:
        main([*arguments, "--print_config"])
    assert stopped.value.code in (None, 0)
    assert "data:" in capsys.readouterr().out.splitlines()


def test_fits_are_shortened_and_installations_left_to_ci():
    text = 'pip install -e . && python -m lit_fed fit \\\n  --name x\npip install "x[dev]"\nls\n'
    block = Block("bash", text, None, None)
    assert [shortened(line) for line in lines(block)] == [f"python -m lit_fed fit --name x {ROUNDS}", "ls"]


def test_what_is_named_exists():
    for text in TEXTS:
        content = (ROOT / text).read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", content):
            place = (ROOT / text).parent / target
            drawn = place.suffix == ".png" and place.parent == ROOT / "docs/results"  # tests of the site look for these
            assert drawn or place.exists(), f"{text} links to {target}"
        for named in NAMED.findall(content):
            if Path(named).name not in MADE_BY_THE_READER and str(text) != "docs/removed.md":
                assert (ROOT / named).exists(), f"{text} names {named}"


def test_a_page_places_every_algorithm():
    text = (ROOT / "docs/guides/which_algorithm.md").read_text(encoding="utf-8")
    shipped = [yaml.safe_load(file.read_text("utf-8")) for file in (ROOT / "configs/algorithm").glob("*.yaml")]
    names = {config["model"]["algorithm"]["class_path"] for config in shipped if "algorithm" in config["model"]}
    assert len(names) > 40
    assert not {name for name in names if not re.search(rf"\b{name}\b", text)}


def commands_of(page, anchor):
    """Number of commands of a page, or of its section; of a notebook, of its cells of code."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    if page.endswith(".ipynb"):
        return sum(cell["cell_type"] == "code" for cell in json.loads(text)["cells"])
    if anchor:
        sections = {re.sub(r"[^\w ]", "", one.partition("\n")[0]): one for one in text.split("\n## ")}
        text = sections[next(title for title in sections if title.lower().replace(" ", "-") == anchor)]
    ours = [block for block in blocks(f"docs/{page}") if block.language == "bash" and block.text in text]
    return sum(len(lines(block)) for block in ours if block.title is None and block.reason is None)


def test_the_first_page_counts_the_commands_of_each_walk():
    walks = (ROOT / "docs/index.md").read_text(encoding="utf-8").partition("## Six walks\n")[2]
    rows = re.findall(r"^\| .* \| \[.*\]\(([\w./]+)#?(\S*)\) \| (\d+)", walks.partition("\n## ")[0], flags=re.MULTILINE)
    assert len(rows) == 6
    assert {page: int(count) for page, _, count in rows} == {page: commands_of(page, one) for page, one, _ in rows}


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/quickstart.md"])
def test_the_first_table_is_that_of_the_records(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = [re.findall(r"\d[\d.]* ± [\d.]+", row) for row in re.findall(r"^\|.*±.*\|$", text, re.MULTILINE)]
    kept = Results(Kept(ROOT / "docs/results/runs/reduced"), "reduced", quickstart.TABLES[0].seeds)
    assert shown == [row[1:] for row in quickstart.rows(kept)]
    assert len(shown) == 6


def test_first_command_installs_and_runs_the_quickstart():
    for page in ("README.md", "docs/quickstart.md"):
        first = blocks(page)[0].text.strip()
        assert first == "pip install -e . && python -m lit_fed fit --config configs/experiment/quickstart.yaml"
    assert first.split(" && ")[1] in (ROOT / ".ci/run").read_text()


def test_second_command_is_that_of_ci():
    assert 'pip install -e ".[dev]" && pytest' in [block.text.strip() for block in blocks("README.md")]
    assert "dev" in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    in_ci = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line]
    assert any(line.endswith('pip install --quiet --disable-pip-version-check -e ".[dev]"') for line in in_ci)
    assert in_ci[-1] == 'step "tests" pytest --drawn "$drawn"'


def test_what_pip_is_told_to_install_is_there():
    """The package is in no index, so its extras work from a checkout alone, and elsewhere what they consist of."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    places = [*(ROOT / page for page in pages()), *(ROOT / "lit_fed").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    texts = "\n".join(place.read_text("utf-8") for place in places)
    named = set(re.findall(r"pip install -e \S+\[(\w+)\]", texts))
    assert {"dev", "docs", "onnx", "sweep"} <= named <= set(extras)
    required = {one for command in re.findall(r'pip install((?: "[\w>=<,.]+")+)', texts) for one in command.split()}
    assert {'"pyarrow>=15"', '"onnx>=1.17"'} <= required <= {f'"{one}"' for parts in extras.values() for one in parts}
    assert not re.findall(r"pip install \S*lit.fed\S*", texts)


def test_added_algorithm_trains(tmp_path):
    """Without trimming and with equal weights it is FedAvg; with trimming it is not."""
    own = titled("docs/guides/own_algorithm.md", "my_algorithm.py", tmp_path).TrimmedMean
    assert issubclass(own, Algorithm)
    results = []
    for algorithm in (FedAvg(), own(trim_fraction=0.0), own()):
        seed_everything(0, verbose=False)
        module = FederatedModule(algorithm, weighting="uniform")
        trainer_of(tmp_path, 2).fit(module, datamodule=FederatedDataModule(num_clients=10))
        results.append(module.models__parameters__linear_weight.detach().clone())
    plain, untrimmed, trimmed = results
    assert (plain - untrimmed).abs().max() < 1e-7
    assert (plain - trimmed).abs().max() > 1e-4


def test_added_data_set_trains(tmp_path):
    own = titled("docs/guides/own_data.md", "my_data.py", tmp_path).Wine
    module = FederatedModule(FedEM())
    data = FederatedDataModule(own(), num_clients=5)
    trainer = trainer_of(tmp_path, 5)
    trainer.fit(module, data)
    trainer.test(module, data)
    assert module.target.num_classes == own.num_classes
    assert module.results["test/seen/accuracy"] > 0.5


def test_own_folder_is_read(tmp_path):
    first = blocks("docs/guides/own_data.md")[0]
    assert [done.status for done in run(first, tmp_path)] == [0]
    seen, unseen = ClientFolder(root=str(tmp_path / "clients")).load()
    assert (seen.names, unseen.names) == (["anna", "bela"], ["cleo"])


def test_quickstart_in_python_has_the_numbers_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = [block for block in blocks("docs/guides/library.md") if block.title == "quickstart.py"]
    text = block.text.replace("max_epochs=100, check_val_every_n_epoch=10", "max_epochs=4")
    assert text != block.text
    assert len([line for line in block.text.splitlines() if line.strip()]) <= 20
    names = {}
    exec(compile(text, "quickstart.py", "exec"), names)
    quickstart = ["--config", str(ROOT / "configs/experiment/quickstart.yaml")]
    main(["fit", *quickstart, "--trainer.max_epochs", "4", "--trainer.check_val_every_n_epoch", "1", "--name", "x"])
    files = (Path("runs") / name / "version_0/metrics.csv" for name in ("ResponsibilityFedEM", "x"))
    here, there = (list(csv.DictReader(file.read_text().splitlines())) for file in files)
    assert len(here) == 5
    for one, other in zip(here, there, strict=True):
        assert {**one, "time/round_seconds": ""} == {**other, "time/round_seconds": ""}


def test_an_argument_of_ones_own_sets_the_number_of_rounds(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    own = titled("docs/guides/lightning.md", "budget.py", tmp_path)
    given = [
        "fit",
        "--data.num_clients",
        "3",
        "--trainer.callbacks+=RunReport",
        "--trainer.callbacks.pictures",
        "false",
    ]
    main([*given, "--budget", "6", "--model.solver.local_epochs", "3", "--name", "first"], own.BudgetCLI)
    config = Path("runs/first/version_0/config.yaml")
    written = yaml.safe_load(config.read_text())
    assert (written["budget"], written["trainer"]["max_epochs"]) == (6, 2)
    with Path("runs/first/version_0/metrics.csv").open() as file:
        assert len([row for row in csv.DictReader(file) if row["train/seen/loss"]]) == 2
    main(["fit", "--config", str(config), "--budget", "9", "--name", "second"], own.BudgetCLI)
    assert yaml.safe_load(Path("runs/second/version_0/config.yaml").read_text())["trainer"]["max_epochs"] == 3
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--trainer.max_epochs", "5"], own.BudgetCLI)
    assert stopped.value.code == 2
    said = "--trainer.max_epochs follows from budget, model.solver.local_epochs; leave it out"
    assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):  # several runs know the options of lit-fed alone
        main(["fit", "--seeds", "2", "--budget", "6"], own.BudgetCLI)
    assert "--budget" in capsys.readouterr().err


class SizedCLI(FederatedCLI):
    """Its argument sets options of the data, which a checkpoint keeps."""

    def add_arguments_to_parser(self, parser):
        super().add_arguments_to_parser(parser)
        parser.add_argument("--size", type=int, default=20)
        parser.link_arguments("size", "data.num_clients")


def test_a_checkpoint_has_the_options_that_follow_from_an_argument_of_ones_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    brief = ["--trainer.max_epochs", "1", "--trainer.callbacks+=RunReport", "--trainer.callbacks.pictures", "false"]
    main(["fit", "--size", "3", "--name", "sized", *brief], SizedCLI)
    main(["predict", "--ckpt_path", "last", "--name", "sized"])
    with Path("runs/sized/version_0/predictions.csv").open() as file:
        assert len({row["client"] for row in csv.DictReader(file)}) == 3
    with pytest.raises(SystemExit):
        main(["fit", "--size", "3", "--data.num_clients", "4"], SizedCLI)
    assert "--data.num_clients follows from size; leave it out" in capsys.readouterr().err


def test_what_the_top_level_offers():
    for name in (
        "FedEM",
        "FederatedTrainer",
        "FederatedCLI",
        "Digits",
        "LocalSolver",
        "ErdosRenyi",
        "ConfigError",
        "MLP",
    ):
        assert name in lit_fed.__all__
        assert getattr(lit_fed, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'FedEMM'"):
        _ = lit_fed.FedEMM


def test_metric_keys_are_those_of_a_run(tmp_path):
    seed_everything(0, verbose=False)
    module = FederatedModule(FedEM())
    data = FederatedDataModule(unseen_fraction=0.2, val_fraction=0.2)
    trainer = trainer_of(tmp_path, 2)
    trainer.fit(module, data)
    trainer.test(module, data)
    with (Path(trainer.log_dir) / "metrics.csv").open() as file:
        logged = set(next(csv.reader(file))) - {"step"}
    assert set(module.results) | logged == set(_documented_keys())


@pytest.mark.parametrize(
    ("page", "metric", "of_chosen"), [("run_folder", "accuracy", False), ("metrics", "auroc", True)]
)
def test_metric_keys_of_statistics_have_their_meaning_and_direction(page, metric, of_chosen):
    text = (ROOT / f"docs/guides/{page}.md").read_text(encoding="utf-8")
    for suffix, one in STATISTICS.items():
        if (one.of is None) == of_chosen:
            better = "smaller" if one.larger_is_better is False else "larger"  # as the accuracy and the AUROC
            assert f"| `{{split}}/{{population}}/{metric}{suffix}` | {one.meaning} | {better} |\n" in text


def _documented_keys():
    page = (ROOT / "docs/guides/run_folder.md").read_text(encoding="utf-8")
    rows = page.partition("## Metric keys\n")[2].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    for key in (key for cell in cells for key in re.findall(r"`([^`]+)`", cell)):
        for split, population in product(("val", "test"), ("seen", "unseen")):
            yield key.format(split=split, population=population)


def test_bytes_of_a_personal_head_are_those_of_its_run(tmp_path, capsys):
    page = "docs/guides/personal_parts.md"
    command = next(line for block in blocks(page) for line in lines(block) if "fedrep.yaml" in line)
    config = shlex.split(command.partition("-m lit_fed ")[2])
    main([*config, "--trainer.max_epochs", "1", "--trainer.default_root_dir", str(tmp_path)])
    (file,) = tmp_path.rglob("metrics.csv")
    table = file.read_text().splitlines()
    (sent,) = {float(row["comm/bytes_up"]) for row in csv.DictReader(table) if row["comm/bytes_up"]}
    said = re.search(
        r"A message holds the other ([\d,]+): ([\d,]+) bytes .*\n([\d,]+) clients of a round send ([\d,]+) bytes",
        (ROOT / page).read_text(),
    )
    numbers, message, clients, together = (int(one.replace(",", "")) for one in said.groups())
    assert 4 * numbers == message
    assert clients * message == together == sent
