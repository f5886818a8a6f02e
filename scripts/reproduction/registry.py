"""All tables and figures, by name."""

from __future__ import annotations

from reproduction import checks, every_algorithm, fedem, fedem_figures, fedem_images, federico, mixtures, robust, ucfl

__all__ = ["TABLES"]

MODULES = (fedem, fedem_figures, fedem_images, ucfl, federico, every_algorithm, checks, robust, mixtures)
TABLES = {table.name: table for module in MODULES for table in module.TABLES}
