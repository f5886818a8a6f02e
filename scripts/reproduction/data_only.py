"""The command line up to the data: for tables that count samples."""

from __future__ import annotations

from lit_fed.cli import FederatedCLI

__all__ = ["DataCLI"]


class DataCLI(FederatedCLI):
    """Loads and divides the data of a configuration; nothing is trained or written."""

    def _run_subcommand(self, subcommand: str) -> None:
        self.datamodule.prepare_data()
        self.datamodule.setup()
