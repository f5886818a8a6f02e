"""Client trainers: run an algorithm's functions for a block of clients."""

from lit_fed.clients.base import ClientTrainer, PredictJob, TrainJob, add_scores, client_scores
from lit_fed.clients.choose import MemoryFormat, choose_trainer
from lit_fed.clients.debug import DebugTrainer
from lit_fed.clients.sequential import SequentialTrainer
from lit_fed.clients.vectorized import VectorizedTrainer

__all__ = [
    "ClientTrainer",
    "DebugTrainer",
    "MemoryFormat",
    "PredictJob",
    "SequentialTrainer",
    "TrainJob",
    "VectorizedTrainer",
    "add_scores",
    "choose_trainer",
    "client_scores",
]
