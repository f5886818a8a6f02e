"""What mkdocs takes from outside docs/ when it builds the documentation: a hook of mkdocs.yml.

Links of the written pages to files outside docs/ work on the disk and on a code-hosting page; in the site they lead to
the pages that documentation_pages.py makes of these files, or become plain text where it makes none.
"""

from __future__ import annotations

import os
import posixpath
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from documentation_pages import ROOT, made_files, module_of, modules_left, page_of
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)")
ALL_MODULES = re.compile(r"^::: (?P<package>[\w.]+)\.\*$", flags=re.MULTILINE)


def on_config(config: MkDocsConfig) -> None:
    """Write out the folders of the navigation."""
    made_files.cache_clear()  # `mkdocs serve` builds again in the same process
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages = sorted(written | set(made_files()))
    config.nav = [_written_out(entry, pages) for entry in config.nav or []]


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are made, and the pictures of notebooks."""
    for path, content in made_files().items():
        files.append(File.generated(config, path, content=content))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Name the modules that `::: package.*` stands for, and lead links out of docs/ to pages."""
    if page.parent is None:  # beside a page without neighbours the navigation would be a column with one entry
        page.meta.setdefault("hide", ["navigation"] if "\n## " in markdown else ["navigation", "toc"])
    markdown = ALL_MODULES.sub(lambda found: _directives(found["package"]), markdown)
    return LINK.sub(lambda found: _link(found, page.file.src_uri), markdown)


def _written_out(entry: Any, pages: list[str]) -> Any:
    """The entry of the navigation with the pages that it stands for; the index comes first."""
    if not isinstance(entry, dict):
        return entry
    ((title, target),) = entry.items()
    if isinstance(target, list):
        return {title: [_written_out(one, pages) for one in target]}
    if not target.endswith(("/", "*")):
        return entry
    here = [page for page in pages if fnmatch(page, target.removesuffix("*") + "*")]
    beside = [page for page in here if posixpath.dirname(page) == posixpath.dirname(target)]
    return {title: sorted(beside, key=lambda page: not _is_index(page))}


def _is_index(page: str) -> bool:
    return Path(page).stem in ("index", "README")


def _directives(package: str) -> str:
    return "\n\n".join(f"::: {module}" for module in modules_left(package))


def _link(found: re.Match[str], src_uri: str) -> str:
    """The link as it is, or one to the page that stands for a file outside docs/, or its text and the file's name."""
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
