"""The documentation's extensions: a hook of mkdocs and an extension of griffe, both named in mkdocs.yml.

The hook adds pages made from other files (one for each algorithm, folder of configurations and notebook), draws the
pictures of the results from their records, writes out the navigation, and leads links from the pages to files outside
docs/ to the pages made of them, or replaces them by plain text. The extension shows symbols, deviations and fields of
named tuples in the reference.
"""

import ast
import os
import posixpath
import re
import struct
import sys
import tempfile
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from griffe import Class, Extension, Module, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import leaderboard  # noqa: E402
import reproduce  # noqa: E402

DOCS = ROOT / "docs"
ALGORITHMS = "reference/algorithms"
CONFIGURATIONS = "reference/configurations"
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
FIGURE = re.compile(r"!\[[^\]]*\]\((?P<target>[^)\s:]+\.png)\)")
METRES_PER_INCH = 0.0254
INCH = 130
"""Pixels of a page for an inch of a figure: its letters of 8 points are then nearly as large as the text."""
ALL_MODULES = re.compile(r"^::: (?P<package>[\w.]+)\.\*$", flags=re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Expand the folders of the navigation."""
    made_files.cache_clear()  # `mkdocs serve` builds again in the same process
    written = {path.relative_to(DOCS).as_posix() for path in (DOCS).rglob("*.md")}
    pages = sorted(written | {path for path in made_files() if path.endswith(".md")})
    config.nav = _entries(config.nav or [], pages)


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add made pages, the images of notebooks and the pictures of results, in place of those that a run left here."""
    for path, content in made_files().items():
        if (older := files.get_file_from_path(path)) is not None:
            files.remove(older)
        files.append(File.generated(config, path, content=content))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Expand `::: package.*`, lead links out of docs/ to pages, and show figures at the size they are drawn for."""
    if page.parent is None:  # a page without neighbours needs no navigation column
        page.meta.setdefault("hide", ["navigation"] if "\n## " in markdown else ["navigation", "toc"])
    markdown = ALL_MODULES.sub(lambda found: "\n\n".join(map("::: {}".format, modules_left(found[1]))), markdown)
    markdown = LINK.sub(lambda found: _link(found, page.file.src_uri), markdown)
    return FIGURE.sub(lambda found: _at_size(found, page.file.src_uri, files), markdown)


def _entries(nav: list[Any], pages: list[str]) -> list[Any]:
    """Expand the entries of a list, without folders that are empty."""
    every = [_written_out(entry, pages) for entry in nav]
    return [one for one in every if not isinstance(one, dict) or all(one.values())]


def _written_out(entry: Any, pages: list[str]) -> Any:
    """Expand an entry of the navigation; the index comes first."""
    if not isinstance(entry, dict):
        return entry
    ((title, target),) = entry.items()
    if isinstance(target, list):
        return {title: _entries(target, pages)}
    if not target.endswith(("/", "*")):
        return entry
    here = [page for page in pages if fnmatch(page, target.removesuffix("*") + "*")]
    beside = [page for page in here if posixpath.dirname(page) == posixpath.dirname(target)]
    return {title: sorted(beside, key=lambda page: Path(page).stem not in ("index", "README"))}


def _link(found: re.Match[str], src_uri: str) -> str:
    """The link itself, a link to the page made of a file outside docs/, or plain text with the file's name."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(src_uri), found["target"]))
    if not os.path.exists(ROOT / target) or (target.startswith("docs/") and not target.endswith(".ipynb")):
        return found[0]
    page = page_of(target)
    if page is not None:
        return f"[{found['text']}]({posixpath.relpath(page, posixpath.dirname(src_uri) or '.')})"
    module = module_of(target)
    if module is not None:
        return f"[{found['text']}][{module}]"
    return found["text"] if target in found["text"] else f"{found['text']} (`{target}`)"


def _at_size(found: re.Match[str], src_uri: str, files: Files) -> str:
    """A figure as wide as it was drawn; pictures without a resolution stay as they are."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(src_uri), found["target"]))
    file = files.get_file_from_path(path)
    content = b"" if file is None else file.content_bytes
    place = content.find(b"pHYs")
    if place < 0:
        return found[0]
    (pixels,), (per_metre,) = struct.unpack_from(">I", content, 16), struct.unpack_from(">I", content, place + 4)
    return f"{found[0]}{{ width={round(pixels / (per_metre * METRES_PER_INCH) * INCH)} }}"


# ---------------------------------------------------------------------- pages made of files
@cache
def made_files() -> dict[str, str | bytes]:
    """Path below docs/ and content of each made page, of the images in notebooks and of the pictures of results."""
    made: dict[str, str | bytes] = {f"{ALGORITHMS}/index.md": _index_of_algorithms()}
    made |= {f"{ALGORITHMS}/{path.stem}.md": _algorithm(path) for path in _algorithms()}
    made |= {f"{CONFIGURATIONS}/index.md": _index_of_configurations()}
    made |= {f"{CONFIGURATIONS}/{path.name}.md": _configurations(path) for path in _folders()}
    for path in sorted((DOCS / "notebooks").glob("*.ipynb")):
        made |= _notebook(path)
    return made | _pictures()


def _pictures() -> dict[str, bytes]:
    """The pictures of the pages of results, which are not kept in the repository."""
    kept = reproduce.kept_of("reduced", DOCS / "results")
    with tempfile.TemporaryDirectory() as folder:
        for table in reproduce.TABLES.values():
            reproduce.draw(table, kept, "reduced", table.seeds, Path(folder, f"{table.name}.png"))
        leaderboard.pictures(Path(folder))
        return {f"results/{path.name}": path.read_bytes() for path in sorted(Path(folder).iterdir())}


def page_of(file: str) -> str | None:
    """Path below docs/, with an anchor, of the page made of a file of the repository; None without one."""
    path, known = Path(file), {"README.md": "index.md", "lit_fed/algorithms": f"{ALGORITHMS}/index.md"}
    if path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    if path.parts[0] == "configs":
        return f"{CONFIGURATIONS}/{_page_of_configuration(path)}"
    return f"{ALGORITHMS}/{path.stem}.md" if ROOT / file in _algorithms() else known.get(file)


def module_of(file: str) -> str | None:
    """Name of a module of lit_fed, which is in the reference; None for other files."""
    path = Path(file).with_suffix("")
    inside = path.parts[0] == "lit_fed" and file.endswith(".py")
    return ".".join(path.parts).removesuffix(".__init__") if inside else None


def modules_left(package: str) -> list[str]:
    """Modules of a package and its subpackages that no page of the reference names otherwise."""
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
    """Name and description in the first line of an algorithm's file."""
    first = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")[0]
    name, _, rest = " ".join(first.split()).partition(": ")
    return name, rest


def _classes(path: Path) -> list[str]:
    """Classes of an algorithm's file, the algorithm (a dataclass) before named tuples."""
    classes = [one for one in ast.parse(path.read_text()).body if isinstance(one, ast.ClassDef)]
    return [one.name for one in sorted(classes, key=lambda one: not one.decorator_list)]


def _algorithm(path: Path) -> str:
    """The page of an algorithm: its docstrings and its file."""
    module = f"lit_fed.algorithms.{path.stem}"
    parts = [f"# {_name_and_rest(path)[0]}", _directive(module, "show_root_heading: false", "members: false")]
    parts += [_directive(f"{module}.{name}", "show_root_full_path: false") for name in _classes(path)]
    source = f'```python title="{path.relative_to(ROOT)}"\n{path.read_text()}```'
    return "\n\n".join([*parts, "## The whole file { data-search-exclude }", source, ""])


def _directive(name: str, *options: str) -> str:
    """A directive of mkdocstrings."""
    lines = ["show_root_toc_entry: false", *options]
    return "\n".join([f"::: {name}", "    options:", *(f"      {line}" for line in lines)])


def _index_of_algorithms() -> str:
    rows = []
    for path in _algorithms():
        name, rest = _name_and_rest(path)
        rows.append(f"| [{name}]({path.stem}.md) | {_cell(rest)} |")
    head = "One page for each file of `lit_fed/algorithms/`. The [paper index](../../paper_index.md) has the papers."
    return "\n".join(["# Algorithms", "", head, "", "| algorithm | what it does |", "| --- | --- |", *rows, ""])


# ---------------------------------------------------------------------- configurations
def _folders() -> list[Path]:
    return [path for path in sorted((ROOT / "configs").iterdir()) if any(path.glob("*.yaml"))]


def _page_of_configuration(path: Path) -> str:
    """Page of configs/, of a folder in it, or of a file."""
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
    """The page of a notebook and its images, with stored outputs."""
    text, resources = MarkdownExporter().from_notebook_node(nbformat.read(path, as_version=4))
    made: dict[str, str | bytes] = {}
    for name, picture in resources["outputs"].items():
        made[f"notebooks/{path.stem}_{name}"] = picture
        text = text.replace(f"({name})", f"({path.stem}_{name})")
    made[f"notebooks/{path.stem}.md"] = f'{text}\n<a href="../{path.name}" download>The notebook as a file</a>\n'
    return made


# ---------------------------------------------------------------------- docstrings
BLOCK = r"^{name}:\n(?P<lines>(?: {{4}}.*\n?)+)"
SYMBOLS = re.compile(BLOCK.format(name="Symbols"), flags=re.MULTILINE)
DEVIATIONS = re.compile(BLOCK.format(name="Deviations"), flags=re.MULTILINE)
NAME = r"[A-Za-z_][\w.]*(?:\[\d\])?"
PLACE = re.compile(rf"(?P<names>{NAME}(?:, {NAME})*)(?P<end>  |: |, | |$)(?P<meaning>.*)")
EXAMPLE = re.compile(r"^Example:$", flags=re.MULTILINE)
COMMENT = re.compile(r"  # (?:type: ignore\S* # )?(?P<text>.*)$")


class FieldsAndSymbols(Extension):
    """Tables of papers' symbols and of named tuples' fields (from comments); lists of deviations."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Rename `Example:` to `Examples:`, which griffe expects."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub("Examples:", obj.docstring.value)

    def on_module_instance(self, *, mod: Module, **kwargs: Any) -> None:
        """Format symbols and deviations in a module's docstring."""
        if mod.docstring is not None:
            text = SYMBOLS.sub(lambda found: _table(found["lines"]), mod.docstring.value)
            mod.docstring.value = DEVIATIONS.sub(lambda found: _list(found["lines"]), text)

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        """Leave out `__post_init__` of dataclasses."""
        cls.members.pop("__post_init__", None)

    def on_class_instance(self, *, node: ast.AST, cls: Class, **kwargs: Any) -> None:
        """Describe the fields of a named tuple by their comments."""
        if cls.docstring and isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases):
            fields = [_field(one, cls) for one in node.body if isinstance(one, ast.AnnAssign)]
            cls.docstring.value = "\n".join([cls.docstring.value, "", "Attributes:", *fields])


def _field(node: ast.AnnAssign, cls: Class) -> str:
    line = cls.module.lines_collection[cls.filepath][node.end_lineno - 1]
    comment = COMMENT.search(line)
    return f"    {ast.unparse(node.target)}: {comment['text'] if comment else '…'}"


def _table(lines: str) -> str:
    """Rows `symbol -> place  meaning` as a table; indented lines continue a row; prose may follow."""
    rows: list[list[str]] = []
    prose: list[str] = []
    for line in lines.splitlines():
        symbol, arrow, rest = line.partition(" -> ")
        if line.startswith(" " * 8) and rows:
            rows[-1][-1] += " " + line.strip()
        elif arrow:
            rows.append([symbol.strip(), *_place_and_meaning(rest.strip())])
        else:
            prose.append(line.strip())
    table = [f"| {' | '.join(map(_cell, row))} |" for row in (["paper", "here", "meaning"], ["---"] * 3, *rows)]
    return "\n".join(["**Symbols**", "", *table, "", " ".join(prose), "", ""])


def _place_and_meaning(text: str) -> tuple[str, str]:
    found = PLACE.fullmatch(text)
    if found is None or (found["end"] == " " and "." not in found["names"]):  # prose
        return "", text
    return f"`{found['names']}`", found["meaning"].strip()


def _cell(text: str) -> str:
    """A table cell with escaped Markdown."""
    return text.replace("|", "\\|").replace("{", "&#123;")


def _list(lines: str) -> str:
    """Lines of prose as a list; a full stop or colon at a line's end ends an item."""
    items = re.split(r"(?<=[.:])\n", lines.strip())
    return "\n".join(["**Deviations**", "", *("- " + " ".join(item.split()) for item in items)])
