"""All tables and figures, by name."""

from __future__ import annotations

from reproduction import (
    compression,
    fedem,
    fedem_components,
    fedem_convergence,
    fedem_data,
    fedem_images,
    fedem_mixtures,
    fedem_more,
    federico,
    federico_figures,
    federico_sensitivity,
    federico_sine,
    optimization,
    precision,
    privacy,
    robust,
    trainer,
    ucfl,
    when_mixtures_help,
)

__all__ = ["TABLES"]

MODULES = (
    fedem, fedem_data, fedem_components, fedem_mixtures, fedem_more, fedem_convergence, fedem_images,
    precision, ucfl, federico, federico_figures, federico_sensitivity, federico_sine,
    optimization, privacy, compression, robust, when_mixtures_help,
    trainer,
)  # fmt: skip
TABLES = {table.name: table for module in MODULES for table in module.TABLES}
