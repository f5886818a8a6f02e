"""The Lightning shell around core, clients and algorithms."""

from lit_fed.training.client_store import ClientStore
from lit_fed.training.module import FederatedModule
from lit_fed.training.round_logger import RoundLogger
from lit_fed.training.server_step import Assign
from lit_fed.training.trainer import FederatedTrainer

__all__ = ["Assign", "ClientStore", "FederatedModule", "FederatedTrainer", "RoundLogger"]
