"""Client trainers: run an algorithm's functions for a block of clients."""

from lit_fed.clients.base import ClientTrainer, PredictJob, TrainJob
from lit_fed.clients.choose import MemoryFormat, choose_trainer
from lit_fed.clients.sequential import DebugTrainer, SequentialTrainer
from lit_fed.clients.vectorized import VectorizedTrainer

__all__ = [
    "ClientTrainer", "DebugTrainer", "MemoryFormat", "PredictJob", "SequentialTrainer", "TrainJob",
    "VectorizedTrainer", "choose_trainer",
]  # fmt: skip
