"""The documentation builds without a warning, and whatever its pages refer to is there."""

import importlib
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

from lit_fed.command_line.start_page import COMMANDS

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


class Document(HTMLParser):
    """What a page offers and what it refers to."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loaded, self.text = set(), [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors.update(given[name] for name in ("id", "name") if given.get(name))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") != "canonical" and given.get("href"):
            self.loaded.append(given["href"])

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def documents(site):
    """Every page of the site by its path."""
    return {path.resolve(): Document(path) for path in site[0].rglob("*.html") if path.name != "404.html"}


def target_of(page, reference, root):
    """File and anchor of an internal reference; None for one that leaves the site."""
    parts = urlsplit(reference)
    if parts.scheme or parts.netloc:
        return None
    place = unquote(parts.path)
    path = root / place.lstrip("/") if place.startswith("/") else page.parent / place
    path = path.resolve() if place else page
    return (path / "index.html" if path.is_dir() else path), unquote(parts.fragment)


def test_no_warning(site):
    lines = site[1].splitlines()
    assert lines[-1] == "exit status 0"
    assert [line for line in lines[:-1] if line and not line.startswith("INFO")] == []


def test_links_and_anchors(site, documents):
    dead = []
    for page, document in documents.items():
        for link in document.links:
            found = target_of(page, link, site[0])
            if found is None:
                continue
            path, anchor = found
            if not path.is_file() or (anchor and path in documents and anchor not in documents[path].anchors):
                dead.append(f"{page.relative_to(site[0].resolve())}: {link}")
    assert dead == []
    assert sum(len(document.links) for document in documents.values()) > 1000


def test_what_pages_load_is_of_the_site(site, documents):
    """Pictures, scripts, fonts and styles, so that the site needs no network."""
    missing = []
    for page, document in documents.items():
        for reference in document.loaded:
            found = target_of(page, reference, site[0])
            if not reference.startswith("data:") and (found is None or not found[0].is_file()):
                missing.append(f"{page.relative_to(site[0].resolve())}: {reference}")
    assert missing == []
    for style in site[0].rglob("*.css"):
        assert "url(http" not in style.read_text(encoding="utf-8")


def test_links_out_of_the_documents_lead_to_pages(site):
    page = Document(site[0] / "paper_index/index.html")
    assert "../reference/algorithms/fedem/" in page.links
    assert "../reference/configurations/experiment/#quickstart" in page.links
    assert "../reference/topologies/#lit_fed.core.graphs.mixing" in page.links


FILES = sorted((ROOT / "lit_fed/algorithms").glob("[!_]*.py"))


@pytest.mark.parametrize("path", [path for path in FILES if path.stem != "base"], ids=lambda path: path.stem)
def test_every_algorithm_has_a_page(site, path):
    page = Document(site[0] / f"reference/algorithms/{path.stem}/index.html")
    text = "".join(page.text)
    for block in ("Symbols", "Deviations"):
        assert (block in page.text) == (f"\n{block}:\n" in path.read_text())
    assert any(anchor.startswith(f"lit_fed.algorithms.{path.stem}.") for anchor in page.anchors)
    assert path.read_text().splitlines()[-1].strip() in text


@pytest.mark.parametrize(
    "package", ["data", "models", "callbacks", "clients", "algorithms", "rounds", "serving", "trainer", "commands"]
)
def test_every_public_name_is_in_the_reference(documents, package):
    module = importlib.import_module(f"lit_fed.{package}")
    named = [getattr(module, name) for name in module.__all__]
    paths = {f"{one.__module__}.{one.__qualname__}" for one in named if hasattr(one, "__qualname__")}
    paths = {path for path in paths if path.startswith("lit_fed.")}
    assert paths
    assert paths - set().union(*(document.anchors for document in documents.values())) == set()


@pytest.mark.parametrize("room", ["callbacks", "clients", "core", "data", "metrics", "models", "pictures", "training"])
def test_every_module_is_in_the_reference(documents, room):
    """Also one that stands in a folder of its own."""
    folder = ROOT / "lit_fed"
    modules = [path.relative_to(folder).with_suffix("") for path in (folder / room).rglob("*.py")]
    named = {".".join(("lit_fed", *module.parts)) for module in modules if module.name != "__init__"}
    assert len(named) > 2
    assert named - set().union(*(document.anchors for document in documents.values())) == set()


def test_links_of_the_readme_on_a_package_index_are_pages(site, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    address = importlib.import_module("hatch_build").address
    paths = re.findall(r"\]\((docs/[^)#\s]+)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(paths) > 50
    for path in paths:
        place = site[0] / address(path, {"Documentation": ""}).removeprefix("/")
        assert (place / "index.html" if place.suffix == "" else place).is_file(), path


def test_every_command_is_described(site):
    page = Document(site[0] / "reference/command_line/index.html")
    assert set(COMMANDS) <= set(page.text)


@pytest.fixture(scope="module")
def kernel():
    """One process for all notebooks: loading what they import takes longer than they do."""
    manager = KernelManager()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "ignore:IProgress not found")  # tqdm's, where a package of an extra loads it
        manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, kernel):
    """With fewer rounds, whose numbers are others: what is kept are the kinds of outputs."""
    kept = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    (training,) = [cell for cell in run.cells if "max_epochs=100" in cell.source]
    training.source = training.source.replace("max_epochs=100", "max_epochs=4")
    fresh = nbformat.v4.new_code_cell(f"%cd -q {tmp_path}\n%reset -f")  # no name of the notebook before it is left
    run.cells.insert(0, fresh)
    client = NotebookClient(run, timeout=300, km=kernel)
    try:
        client.execute()
    finally:
        client.kc.stop_channels()
    del run.cells[0]
    assert [kinds(cell) for cell in run.cells] == [kinds(cell) for cell in kept.cells]
    assert list(tmp_path.iterdir()) == []
    outputs = [output for cell in run.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.get("name") == "stderr"]  # no notices


def test_the_notebook_shows_progress_and_what_a_model_is():
    """A live bar, which stays below the cell of its training, and a module printed in a few lines."""
    cells = nbformat.read(ROOT / "docs/notebooks/personalised_models.ipynb", as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    shown = [output["data"].get("text/html", "") for output in outputs if "data" in output]
    assert len([one for one in shown if re.search(r"<progress .*</progress> round 100/100, test accuracy", one)]) == 2
    (printed,) = [output["text"] for output in outputs if "FederatedModule(" in output.get("text", "")]
    assert "network:   MLP, 310 parameters trained, 3 models" in printed
    assert len(printed.splitlines()) <= 10


def kinds(cell):
    """Kinds of the outputs of a cell, to be those of the committed run; one text may arrive in several pieces."""
    found = [sorted(output.get("data", {output.get("name"): None})) for output in cell.get("outputs", [])]
    return [kind for kind, _ in itertools.groupby(found)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_shown_with_its_outputs(site, path):
    page = Document(site[0] / f"notebooks/{path.stem}/index.html")
    outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    shown = [reference for reference in page.loaded if reference.endswith(".png") and path.stem in reference]
    assert len(shown) == len(pictures) > 0
    assert "unseen" in "".join(page.text)


def test_the_navigation_names_pages_alone(site):
    """Pictures that are drawn beside the pages are not entries."""
    page = (site[0] / "results/leaderboard/index.html").read_text()
    entries = re.findall(r'href="([^"]*)" class="md-nav__link', page)
    assert [one for one in entries if one.endswith(".png")] == []
    assert len(entries) > 100


def test_figures_have_the_size_they_were_drawn_for(site):
    """One of 3.4 inches takes the width of half a column of text."""
    page = (site[0] / "index.html").read_text()
    (tag,) = re.findall(r"<img[^>]*mixture_weights.png[^>]*>", page)
    assert re.search(r'width="(\d+)"', tag)[1] == "442"
