"""Client trainers: run an algorithm's functions for a block of clients."""

from lit_fed.clients.base import ClientTrainer, PredictJob, TrainJob, evaluate
from lit_fed.clients.debug import DebugTrainer
from lit_fed.clients.sequential import SequentialTrainer
from lit_fed.clients.vectorized import VectorizedTrainer

__all__ = [
    "ClientTrainer",
    "DebugTrainer",
    "PredictJob",
    "SequentialTrainer",
    "TrainJob",
    "VectorizedTrainer",
    "evaluate",
]
