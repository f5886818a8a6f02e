"""All tables and figures, by name."""

from reproduction import checks, every_algorithm, fedem, fedem_figures, fedem_images, federico, mixtures, robust, ucfl

MODULES = (fedem, fedem_figures, fedem_images, ucfl, federico, every_algorithm, checks, robust, mixtures)
TABLES = {table.name: table for module in MODULES for table in module.TABLES}
