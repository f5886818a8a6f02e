"""From a data set to blocks of clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from lit_fed.core.errors import ConfigError
from lit_fed.core.plan import num_steps
from lit_fed.core.task import Target
from lit_fed.core.types import ClientBlock, Phase, Population, ServingBlock, Split
from lit_fed.data.blocks import draw_cohort, make_blocks, split_by_work
from lit_fed.data.dataset import DataSet
from lit_fed.data.digits import Digits
from lit_fed.data.partition import Partition
from lit_fed.data.population import build_populations, check_labels, fingerprint, infer_target

__all__ = ["Blocks", "FederatedDataModule", "round_blocks", "serving_blocks"]

Block = TypeVar("Block")


class Blocks(Generic[Block]):
    """Blocks as a data loader: a plain sized iterable, since nothing is to be loaded or collated."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)


class FederatedDataModule(LightningDataModule):
    """A data set as clients: partition, splits, cohorts and blocks.

    Args:
        dataset: the data set.
        partition: how its samples are divided over clients; null takes its natural clients, or else `Dirichlet`.
        num_clients: clients of a partition (default 20); an error where the data set has natural clients.
        batch_size: samples in a local batch; 0 takes a client's whole training split.
        val_fraction: share of each client's samples kept for validation.
        test_fraction: share of each client's samples kept for testing, where the data set has no test split.
        unseen_fraction: share of the clients kept out of training, to be served as newcomers.
        client_fraction: share of the clients sampled in each round.
        clients_per_round: number of clients sampled in each round, instead of a share.
        client_sampling: `uniform` without replacement, or `size`: with replacement, in proportion to the samples.
        clients_per_block: most clients handed to a client trainer at once.
        seed: seed of partition and splits.
    """

    def __init__(
        self,
        dataset: DataSet = Digits(),  # noqa: B008 - frozen
        partition: Partition | None = None,
        num_clients: int | None = None,
        batch_size: int = 128,
        val_fraction: float = 0.0,
        test_fraction: float = 0.2,
        unseen_fraction: float = 0.0,
        client_fraction: float = 1.0,
        clients_per_round: int | None = None,
        client_sampling: Literal["uniform", "size"] = "uniform",
        clients_per_block: int = 1024,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if batch_size < 0:
            raise ConfigError(
                f"--data.batch_size is {batch_size}; give a whole number >= 1, or 0 for the whole local set"
            )
        if not 0 < client_fraction <= 1:
            raise ConfigError(f"--data.client_fraction is {client_fraction}; give a number above 0 and up to 1")
        if not 0 <= seed < 2**32:
            raise ConfigError(f"--data.seed is {seed}; give a whole number from 0 to {2**32 - 1}")
        if clients_per_block < 1:
            raise ConfigError(f"--data.clients_per_block is {clients_per_block}; give a whole number >= 1")
        self.dataset, self.partition, self.num_clients = dataset, partition, num_clients
        self.batch_size, self.seed = batch_size, seed
        self.val_fraction, self.test_fraction, self.unseen_fraction = val_fraction, test_fraction, unseen_fraction
        self.client_fraction, self.clients_per_round = client_fraction, clients_per_round
        self.client_sampling, self.clients_per_block = client_sampling, clients_per_block
        self.seen: Population | None = None
        self.unseen: Population | None = None

    def setup(self, stage: str = "fit") -> None:
        """Load and divide the data, once."""
        if self.seen is not None:
            return
        seen, unseen = build_populations(
            self.dataset, self.partition, self.num_clients,
            val_fraction=self.val_fraction, test_fraction=self.test_fraction,
            unseen_fraction=self.unseen_fraction, seed=self.seed,
        )  # fmt: skip
        self.target: Target = infer_target(seen.train.y, self.dataset.num_classes)
        check_labels(self.target, seen, unseen)
        if unseen is not None:
            for split in (unseen.train, unseen.val, unseen.test):
                split.first_id = seen.train.num_clients
        self.input_shape = tuple(seen.train.x.shape[1:])
        self.fingerprint = fingerprint(seen, unseen)
        self.seen, self.unseen = seen, unseen
        self._draw(0, 0)  # a cohort that cannot be drawn is an error now, not in the first round

    @property
    def evaluation_split(self) -> Literal["val", "test"]:
        """What periodic evaluation measures: the validation samples, or without any the test samples."""
        assert self.seen is not None
        return "val" if len(self.seen.val.y) else "test"

    def splits(self, population: Literal["seen", "unseen"], name: Literal["val", "test"]) -> tuple[Split, Split]:
        """The split to measure and the training split to adapt on."""
        chosen = self.seen if population == "seen" else self.unseen
        assert chosen is not None
        return (chosen.val if name == "val" else chosen.test), chosen.train

    # ------------------------------------------------------------------ blocks
    def _draw(self, seed: int, round_idx: int) -> np.ndarray:
        assert self.seen is not None
        sizes = self.seen.train.sizes.numpy()
        return draw_cohort(
            len(sizes), sizes, fraction=self.client_fraction, number=self.clients_per_round,
            sampling=self.client_sampling, seed=seed, round_idx=round_idx,
        )  # fmt: skip

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a block; on a CPU there is nothing to move, and looking for it costs a millisecond per round."""
        return batch if device.type == "cpu" else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def train_dataloader(self) -> Blocks[ClientBlock]:
        """This rank's blocks of the coming round; made anew for every round."""
        assert self.trainer is not None
        assert self.seen is not None
        module: Any = self.trainer.lightning_module
        phases = module.phases(self._draw(module.seed, module.num_rounds_done))
        return Blocks(
            round_blocks(
                phases, self.seen.train, batch_size=self.batch_size, clients_per_block=self.clients_per_block,
                rank=self.trainer.global_rank, num_ranks=self.trainer.world_size,
            )
        )  # fmt: skip

    def val_dataloader(self) -> Blocks[ServingBlock]:
        """This rank's seen clients, for periodic evaluation."""
        return self.serving("seen", self.evaluation_split)

    def test_dataloader(self) -> Blocks[ServingBlock]:
        """This rank's seen clients, for the test."""
        return self.serving("seen", "test")

    def serving(self, population: Literal["seen", "unseen"], name: Literal["val", "test"]) -> Blocks[ServingBlock]:
        """This rank's blocks of clients to be served and measured."""
        assert self.trainer is not None
        data, train = self.splits(population, name)
        return Blocks(
            serving_blocks(
                data, train, clients_per_block=self.clients_per_block,
                rank=self.trainer.global_rank, num_ranks=self.trainer.world_size,
            )
        )  # fmt: skip


def round_blocks(
    phases: Sequence[Phase], data: Split, *, batch_size: int, clients_per_block: int, rank: int = 0, num_ranks: int = 1
) -> list[ClientBlock]:
    """One rank's blocks of a round, the same number on every rank: a rank short of clients gets a ghost.

    Args:
        phases: phases of the round; ids may stand in one more than once.
        data: training split.
        batch_size: default batch size, to weigh the work of clients.
        clients_per_block: most clients in a block.
        rank: this rank.
        num_ranks: number of ranks.
    """
    blocks: list[ClientBlock] = []
    sizes = data.sizes.numpy()
    for phase in phases:
        ids, counts = np.unique(phase.client_ids.numpy(), return_counts=True)
        work = np.zeros(len(sizes))
        work[ids] = [max(1, num_steps(int(size), phase.work, batch_size)) for size in sizes[ids]]
        ordered = [make_blocks(share, sizes, clients_per_block) for share in split_by_work(ids, work, num_ranks)]
        slices = tuple(torch.from_numpy(np.concatenate([ids[:0], *one])) for one in ordered)
        for position in range(max(map(len, ordered))):
            present = position < len(ordered[rank])
            chosen = ordered[rank][position] if present else ids[:1]
            multiplicity = counts[np.searchsorted(ids, chosen)] * present
            blocks.append(
                ClientBlock(
                    phase._replace(client_ids=torch.from_numpy(chosen)),
                    torch.from_numpy(multiplicity.astype(np.float64)), data, slices, False, False,
                )
            )  # fmt: skip
        blocks[-1] = blocks[-1]._replace(ends_phase=True)
    blocks[-1] = blocks[-1]._replace(ends_round=True)
    return blocks


def serving_blocks(
    data: Split, train: Split, *, clients_per_block: int, rank: int = 0, num_ranks: int = 1
) -> list[ServingBlock]:
    """One rank's blocks of clients to be served, the same number on every rank; a block may be empty."""
    all_ids = np.arange(data.num_clients)
    shares = split_by_work(all_ids, data.sizes.numpy() + 1, num_ranks)
    most = max(len(share) for share in shares)
    ids = [torch.from_numpy(shares[rank][lo : lo + clients_per_block]) for lo in range(0, most, clients_per_block)]
    return [ServingBlock(_identities(some, data), data, train) for some in ids]


def _identities(positions: Tensor, data: Split) -> Tensor:
    return positions + data.first_id
