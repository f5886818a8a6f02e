"""The README of a release: relative links, which a package index cannot follow, become addresses."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


class Readme(MetadataHookInterface):
    """Sets the description that a package index shows."""

    def update(self, metadata: dict[str, Any]) -> None:
        urls, text = metadata["urls"], Path(self.root, "README.md").read_text(encoding="utf-8")
        text = RELATIVE.sub(lambda found: address(found[1], urls), text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def address(path: str, urls: dict[str, str]) -> str:
    """Address of a file: of docs/ its page of the documentation, otherwise the file in the repository."""
    if not path.startswith("docs/"):
        return f"{urls['Repository']}/blob/HEAD/{path}"
    page = re.sub(r"(?:\b(?:README|index))?\.(?:md|ipynb)$", "/", path.removeprefix("docs/")).replace("//", "/")
    return f"{urls['Documentation']}/{page.lstrip('/')}"
