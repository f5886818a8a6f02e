"""Pages of the documentation that are made of other files, so that a new file appears by itself.

There is one for each algorithm, for each folder of configurations and for each notebook.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import nbformat
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ALGORITHMS = "reference/algorithms"
CONFIGURATIONS = "reference/configurations"


@cache
def made_files() -> dict[str, str | bytes]:
    """Path below docs/ and content of every page that is made, and of the pictures in notebooks."""
    made: dict[str, str | bytes] = {f"{ALGORITHMS}/index.md": _index_of_algorithms()}
    made |= {f"{ALGORITHMS}/{path.stem}.md": _algorithm(path) for path in _algorithms()}
    made |= {f"{CONFIGURATIONS}/index.md": _index_of_configurations()}
    made |= {f"{CONFIGURATIONS}/{path.name}.md": _configurations(path) for path in _folders()}
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        made |= _notebook(path)
    return made


def page_of(file: str) -> str | None:
    """Path below docs/, with an anchor, of what is made of a file of the repository; None if nothing is.

    Args:
        file: its path in the repository.
    """
    path = Path(file)
    if file == "README.md":
        return "index.md"
    if path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    if file == "lit_fed/algorithms":
        return f"{ALGORITHMS}/index.md"
    if ROOT / file in _algorithms():
        return f"{ALGORITHMS}/{path.stem}.md"
    if path.parts[0] == "configs":
        return f"{CONFIGURATIONS}/{_page_of_configuration(path)}"
    return None


def module_of(file: str) -> str | None:
    """Name of a module of lit_fed, which stands in the reference; None for any other file."""
    path = Path(file)
    if path.parts[0] != "lit_fed" or path.suffix != ".py":
        return None
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def modules_left(package: str) -> list[str]:
    """The modules in a package, and in packages inside it, that no page of the reference names in another way."""
    pages = "\n".join(path.read_text() for path in DOCS.glob("reference/*.md"))
    named = set(re.findall(r"^::: ([\w.]+)$", pages, flags=re.MULTILINE))
    packages = re.findall(r"^::: ([\w.]+)\.\*$", pages, flags=re.MULTILINE)
    inside = tuple(f"{one}." for one in packages if one.startswith(f"{package}."))
    folder = ROOT.joinpath(*package.split("."))
    files = sorted(path for path in folder.rglob("*.py") if path.stem != "__init__")
    modules = [".".join((package, *path.relative_to(folder).with_suffix("").parts)) for path in files]
    return [module for module in modules if module not in named and not module.startswith(inside)]


# ---------------------------------------------------------------------- algorithms
def _algorithms() -> list[Path]:
    files = sorted((ROOT / "lit_fed/algorithms").glob("*.py"))
    return [path for path in files if path.stem not in ("__init__", "base")]


def _name_and_rest(path: Path) -> tuple[str, str]:
    """What the first line of an algorithm's file says: its name, and what it does."""
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    name, _, rest = " ".join(first.split()).partition(": ")
    return name, rest


def _classes(path: Path) -> list[str]:
    """Classes of an algorithm's file; the algorithm, a dataclass, before the named tuples that it passes on."""
    classes = [one for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)]
    return [one.name for one in sorted(classes, key=lambda one: not one.decorator_list)]


def _algorithm(path: Path) -> str:
    """What the file's docstrings say, and the file."""
    module = f"lit_fed.algorithms.{path.stem}"
    parts = [f"# {_name_and_rest(path)[0]}", _directive(module, "show_root_heading: false", "members: false")]
    parts += [_directive(f"{module}.{name}", "show_root_full_path: false") for name in _classes(path)]
    source = f'```python title="{path.relative_to(ROOT)}"\n{path.read_text()}```'
    return "\n\n".join([*parts, "## The whole file { data-search-exclude }", source, ""])


def _directive(name: str, *options: str) -> str:
    """Where mkdocstrings puts the docstrings of a module or class."""
    lines = ["show_root_toc_entry: false", *options]
    return "\n".join([f"::: {name}", "    options:", *(f"      {line}" for line in lines)])


def _index_of_algorithms() -> str:
    rows = []
    for path in _algorithms():
        name, rest = _name_and_rest(path)
        rows.append(f"| [{name}]({path.stem}.md) | {_cell(rest)} |")
    head = "One page for each file of `lit_fed/algorithms/`. The [paper index](../../paper_index.md) has the papers."
    return "\n".join(["# Algorithms", "", head, "", "| algorithm | what it does |", "| --- | --- |", *rows, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# ---------------------------------------------------------------------- configurations
def _folders() -> list[Path]:
    return [path for path in sorted((ROOT / "configs").iterdir()) if any(path.glob("*.yaml"))]


def _page_of_configuration(path: Path) -> str:
    """Page of configs/, of a folder in it or of a file in such a folder."""
    if path.suffix:
        return f"{path.parent.name}.md#{path.stem}"
    return f"{path.name}.md" if path.parent.name else "index.md"


def _configurations(folder: Path) -> str:
    files = sorted(folder.glob("*.yaml"))
    parts = [f"## {path.name} {{ #{path.stem} }}\n\n```yaml\n{path.read_text()}```" for path in files]
    return "\n\n".join([f"# configs/{folder.name}", *parts]) + "\n"


def _index_of_configurations() -> str:
    rows = []
    for folder in _folders():
        links = [f"[{path.stem}]({folder.name}.md#{path.stem})" for path in sorted(folder.glob("*.yaml"))]
        rows.append(f"| [configs/{folder.name}]({folder.name}.md) | {', '.join(links)} |")
    head = "`configs/experiment/` holds complete runs, the other folders parts to be stacked: `--config A --config B`."
    return "\n".join(["# Configurations", "", head, "", "| folder | files |", "| --- | --- |", *rows, ""])


# ---------------------------------------------------------------------- notebooks
def _notebook(path: Path) -> dict[str, str | bytes]:
    """The page of a notebook and its pictures, with the outputs that it holds; it is not run here."""
    text, resources = MarkdownExporter().from_notebook_node(nbformat.read(path, as_version=4))
    made: dict[str, str | bytes] = {}
    for name, picture in resources["outputs"].items():
        made[f"notebooks/{path.stem}_{name}"] = picture
        text = text.replace(f"({name})", f"({path.stem}_{name})")
    made[f"notebooks/{path.stem}.md"] = f'{text}\n<a href="../{path.name}" download>The notebook as a file</a>\n'
    return made
