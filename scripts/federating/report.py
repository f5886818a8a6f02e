"""docs/results/federation.md, from its record."""

from __future__ import annotations

from typing import Any

__all__ = ["page"]


def page(record: dict[str, Any]) -> str:
    return "# Federations of real processes\n"
