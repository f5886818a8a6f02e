"""From a data set to blocks of clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from lit_fed.core.blocks import draw_cohort, sampling_probability, serving_blocks
from lit_fed.core.seeds import generator
from lit_fed.core.targets import Target
from lit_fed.core.types import ClientBlock, Population, ServingBlock, Split
from lit_fed.data.augmentation import check_augmentation, written_out
from lit_fed.data.data_sets.base import DataSet, Normalisation
from lit_fed.data.data_sets.digits import Digits
from lit_fed.data.data_sets.in_memory import data_set_of_arrays, data_set_of_frame
from lit_fed.data.facts import TrainingFacts, name_digests
from lit_fed.data.partitions.base import Partition
from lit_fed.data.poison.base import Poison
from lit_fed.data.populations.attackers import draw_attackers
from lit_fed.data.populations.build import build_populations, infer_target
from lit_fed.data.populations.checks import (
    check_labels,
    check_missing_classes,
    find_client_name,
    learned_constants,
    num_classes_of,
    outlying_inputs,
    taken_labels,
)
from lit_fed.data.populations.find_client import find_client
from lit_fed.data.populations.fingerprint import fingerprint
from lit_fed.data.populations.poisoned import poisoned
from lit_fed.errors import ClientError, ConfigError, notice
from lit_fed.system.packages import DataFrame

__all__ = ["Blocks", "FederatedDataModule", "Predicted"]

Block = TypeVar("Block")


class Blocks(Generic[Block]):
    """Blocks as a data loader: a plain sized iterable, since nothing is to be loaded or collated."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)


class Predicted(NamedTuple):
    """Which clients a prediction run predicts, on which of their samples."""

    population: Literal["seen", "unseen"] = "seen"
    split: Literal["train", "val", "test"] = "test"
    client: str | None = None  # serve this client alone, whatever its population; None: all that the test measures


class RoundPlanner(Protocol):
    """What a data module asks of the side that runs the rounds."""

    @property
    def next_draw(self) -> dict[str, Any]:
        """What the coming round's cohort depends on: arguments of `draw_cohort`, its seed and round among them."""

    @property
    def most_per_block(self) -> int | None:
        """Most clients whose states may be gathered at once; None: any number."""

    def blocks(self, client_ids: np.ndarray, train: Split, **division: int) -> list[ClientBlock]:
        """One rank's blocks of the coming round, see `core.blocks.round_blocks`."""


class FederatedDataModule(LightningDataModule):
    """A data set as clients: partition, splits, cohorts and blocks.

    Args:
        dataset: the data set.
        partition: how its samples are divided over clients; null takes its natural clients, or else `Dirichlet`.
        num_clients: clients of a partition (default 20); an error where the data set has natural clients.
        batch_size: samples in a local batch; 0 takes a client's whole training split.
        val_fraction: share of each client's samples kept for validation.
        test_fraction: share of each client's samples kept for testing, where the data set has no test split; 0 tests
            nothing.
        unseen_fraction: share of the clients kept out of training, which are served as unseen clients; above 0 at
            least one, and at least one is left to train.
        client_fraction: share of the clients sampled in each round, at least one; with `poisson` the probability with
            which each takes part, and there may be none.
        clients_per_round: number of clients sampled in each round, instead of a share; with `poisson` on average.
        client_sampling: `uniform` without replacement; `size`: with replacement, in proportion to the samples, refused
            by algorithms in which each client has to count once; or `poisson`: each client for itself, with the same
            probability, as guarantees of differential privacy want it.
        clients_per_block: most clients handed to a client trainer at once; fewer where their states lie in files.
        eval_clients: measure only so many clients, the same ones in every validation and test: a sample of the seen
            clients and one of the unseen, drawn from `seed`; null measures all.
        seed: seed of partition, splits and the sample of clients that is measured.
        attackers: clients of the training that attack, to try out what becomes of the others: a whole number of them,
            or a share below 1; drawn from `seed`. They lie about their samples (`poison`) or about what they learnt
            (`attack` of the model), and take no part in averages over honest clients.
        poison: what attackers do to their training samples, `LabelFlip` or `Backdoor`; null: nothing.
        augment: torchvision's transforms of pictures in local steps, by name, drawn anew for each of them, such as
            `RandomHorizontalFlip, RandomCrop(32, padding=4)`; null takes pictures as they are.
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
        client_sampling: Literal["uniform", "size", "poisson"] = "uniform",
        clients_per_block: int = 1024,
        eval_clients: int | None = None,
        seed: int = 0,
        augment: str | list[str] | None = None,
        attackers: float | None = None,
        poison: Poison | None = None,
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
        if clients_per_round is not None and client_fraction != 1:
            raise ConfigError(
                f"--data.clients_per_round is {clients_per_round} and --data.client_fraction {client_fraction}; give "
                "one of them (a client_fraction of 1 and a clients_per_round of null are the same as none)"
            )
        if clients_per_block < 1:
            raise ConfigError(f"--data.clients_per_block is {clients_per_block}; give a whole number >= 1")
        if eval_clients is not None and eval_clients < 1:
            raise ConfigError(f"--data.eval_clients is {eval_clients}; give a whole number >= 1, or null for all")
        self.dataset, self.partition, self.num_clients = dataset, partition, num_clients
        self.batch_size, self.seed = batch_size, seed
        self.val_fraction, self.test_fraction, self.unseen_fraction = val_fraction, test_fraction, unseen_fraction
        self.client_fraction, self.clients_per_round = client_fraction, clients_per_round
        self.client_sampling, self.clients_per_block = client_sampling, clients_per_block
        self.eval_clients, self.augment = eval_clients, written_out(augment)
        self.attackers, self.poison = attackers, poison
        self.seen: Population | None = None
        self.unseen: Population | None = None
        self.predicted = Predicted()
        self.planner: RoundPlanner | None = None

    @classmethod
    def from_clients(
        cls, clients: Mapping[str, Any], unseen: Mapping[str, Any] | None = None, **settings: Any
    ) -> FederatedDataModule:
        """Clients whose samples a program holds; `val_fraction` and `test_fraction` divide them.

        Args:
            clients: inputs [n, ...] and labels [n] or [n, L] of each by name, as in `{"alice": (x, y), "bob": …}`:
                arrays of NumPy, tensors or lists. Labels of text are classes that keep their names.
            unseen: likewise clients that take no part in the training.
            settings: other arguments of the class; also `labels` and `num_classes` of `ClientFolder`.
        """
        given = {name: settings.pop(name) for name in ("labels", "num_classes") if name in settings}
        return cls(data_set_of_arrays(clients, unseen, **given), **settings)

    @classmethod
    def from_frame(
        cls,
        frame: DataFrame,
        *,
        client: str | None,
        label: str,
        features: Sequence[str] | None = None,
        unseen: Sequence[str] = (),
        table: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> FederatedDataModule:
        """The rows of a data frame, a sample each, read as `Table` reads a file.

        Args:
            frame: the frame.
            client: column that says whose a sample is; None: `partition` divides the rows.
            label: column with the labels.
            features: columns that inputs are made from; None: all others.
            unseen: names of clients that take no part in the training.
            table: other fields of `Table`, as in `{"split_column": "fold"}`.
            settings: other arguments of the class.
        """
        return cls(data_set_of_frame(frame, client, label, features, unseen, **table or {}), **settings)

    def prepare_data(self) -> None:
        """Fetch missing files; Lightning calls this on one rank of each node, before any `setup`."""
        self.dataset.prepare()

    def setup(self, stage: str = "fit") -> None:
        """Load and divide the data, once."""
        if self.seen is not None:
            return
        seen, unseen = build_populations(
            self.dataset, self.partition, self.num_clients,
            val_fraction=self.val_fraction, test_fraction=self.test_fraction,
            unseen_fraction=self.unseen_fraction, seed=self.seed,
        )  # fmt: skip
        self.target: Target = infer_target(seen.train.y, num_classes_of(self.dataset, seen), self.dataset.labels)
        check_missing_classes(self.dataset, self.target, seen, unseen)
        check_labels(self.target, seen, unseen)
        check_augmentation(self.augment, seen, type(self.dataset).__name__, self.dataset.normalisation)
        if unseen is not None:
            for split in (unseen.train, unseen.val, unseen.test):
                split.first_id = seen.train.num_clients
        self.input_shape = tuple(seen.train.x.shape[1:])
        seen = self._with_attackers(seen)
        self.fingerprint = fingerprint(seen, unseen)
        self.seen = self._with_measured(seen, "evaluation/seen")
        self.unseen = None if unseen is None else self._with_measured(unseen, "evaluation/unseen")
        self._draw(seed=0, round_idx=0)  # a cohort that cannot be drawn is an error now, not in the first round
        for said in (taken_labels(self.dataset, self.target, seen), outlying_inputs(seen, unseen)):
            if said is not None and (self.trainer is None or self.trainer.is_global_zero):
                notice(said)

    def _with_attackers(self, seen: Population) -> Population:
        """The clients of the training, some of which attack; their training samples are poisoned."""
        if self.attackers is None:
            if self.poison is not None:
                raise ConfigError(
                    f"--data.poison is {type(self.poison).__name__}, and nobody attacks; give --data.attackers, the "
                    "number of clients that do, or leave it out"
                )
            return seen
        seen = seen._replace(attackers=draw_attackers(self.attackers, seen.train.num_clients, self.seed))
        if self.poison is None:
            return seen
        alter = self.poison.prepare(seen, self.target, type(self.dataset).__name__)
        return poisoned(seen, alter, self.seed, repr(self.poison))

    def on_exception(self, exception: BaseException) -> None:
        """Tell an error the name of the client that it is about; Lightning calls this before it raises it again."""
        if isinstance(exception, ClientError):
            exception.client_name = find_client_name(exception.client_id, self.seen, self.unseen)

    def _with_measured(self, population: Population, purpose: str) -> Population:
        """The population with the clients that evaluation measures, if these are not all."""
        num_clients = population.train.num_clients
        if self.eval_clients is None or self.eval_clients >= num_clients:
            return population
        drawn = generator(self.seed, 0, 0, purpose).choice(num_clients, self.eval_clients, replace=False)
        return population._replace(measured=torch.from_numpy(np.sort(drawn)))

    def facts(self, *, weighting: Literal["samples", "uniform"], seed: int, num_rounds: int) -> TrainingFacts:
        """What a federation is built from.

        Args:
            weighting: weight of a client's message.
            seed: the training seed.
            num_rounds: rounds of the training.
        """
        assert self.seen is not None
        train = self.seen.train
        either = self.normalisation or self.seen.columns  # pictures that are normalised may come in either type
        return TrainingFacts(
            input_shape=self.input_shape,
            input_type=str(train.x.dtype).removeprefix("torch."),
            label_shape=tuple(train.y.shape[1:]),
            target=self.target,
            num_clients=train.num_clients,
            total_samples=train.num_samples,
            most_samples=int(train.sizes.max()),
            groups=self.seen.groups,
            batch_size=self.batch_size,
            clients_per_block=self.clients_per_block,
            weighting=weighting,
            seed=seed,
            num_rounds=num_rounds,
            normalisation=self.normalisation,
            class_names=self.seen.class_names,
            columns=self.seen.columns,
            augment=self.augment,
            sampling_probability=self.sampling_probability,
            attackers=self.seen.attackers,
            learned=learned_constants(self.dataset, self.seen, self.target),
            named=name_digests(self.seen.names),
            stored_type="" if either else self.seen.stored_type,
        )

    def capped_samples(self, cap: int) -> int:
        """Training samples of all seen clients, of each no more than a cap."""
        assert self.seen is not None
        return int(self.seen.train.sizes.clamp(max=cap).sum())

    @property
    def sampling_probability(self) -> float:
        """With which a client takes part in a round; where draws are by size, draws per client."""
        assert self.seen is not None
        number = self.seen.train.num_clients
        return sampling_probability(number, self.client_fraction, self.clients_per_round, self.client_sampling)

    @property
    def populations(self) -> tuple[Population, Population | None]:
        """Seen and unseen clients."""
        assert self.seen is not None
        return self.seen, self.unseen

    @property
    def normalisation(self) -> Normalisation | None:
        """Constants by which inputs were normalised: learnt from the training samples, or those of the data set."""
        assert self.seen is not None
        return self.seen.normalisation or self.dataset.normalisation

    @property
    def evaluation_split(self) -> Literal["val", "test"]:
        """What periodic evaluation measures: the validation samples, or without any the test samples."""
        assert self.seen is not None
        return "val" if self.seen.val.num_samples else "test"

    def splits(
        self, population: Literal["seen", "unseen"], name: Literal["train", "val", "test"]
    ) -> tuple[Split, Split]:
        """The split to measure or predict, and the training split to adapt on."""
        chosen = self._chosen(population)
        return {"train": chosen.train, "val": chosen.val, "test": chosen.test}[name], chosen.train

    def _chosen(self, population: Literal["seen", "unseen"]) -> Population:
        chosen = self.seen if population == "seen" else self.unseen
        assert chosen is not None
        return chosen

    # ------------------------------------------------------------------ blocks
    def _draw(self, **draw: Any) -> np.ndarray:
        assert self.seen is not None
        sizes = self.seen.train.sizes.numpy()
        return draw_cohort(
            len(sizes), sizes, fraction=self.client_fraction, number=self.clients_per_round,
            sampling=self.client_sampling, **draw,
        )  # fmt: skip

    def plan_with(self, planner: RoundPlanner) -> None:
        """Ask this planner for the blocks of each round."""
        self.planner = planner

    @property
    def block_size(self) -> int:
        """Most clients in a block, fewer where their states are read from files for one block at a time."""
        assert self.planner is not None
        return min(self.clients_per_block, self.planner.most_per_block or self.clients_per_block)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a block; on a CPU there is nothing to move, and looking for it costs a millisecond per round."""
        return batch if device.type == "cpu" else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def train_dataloader(self) -> Blocks[ClientBlock]:
        """This rank's blocks of the coming round; made anew for every round."""
        assert self.trainer is not None
        assert self.seen is not None
        assert self.planner is not None
        return Blocks(
            self.planner.blocks(
                self._draw(**self.planner.next_draw), self.seen.train, clients_per_block=self.block_size,
                rank=self.trainer.global_rank, num_ranks=self.trainer.world_size,
            )
        )  # fmt: skip

    def val_dataloader(self) -> Blocks[ServingBlock]:
        """This rank's seen clients, for periodic evaluation."""
        return self.serving("seen", self.evaluation_split)

    def test_dataloader(self) -> Blocks[ServingBlock]:
        """This rank's seen clients, for the test."""
        return self.serving("seen", "test")

    def predict_dataloader(self) -> Blocks[ServingBlock]:
        """This rank's clients of `predicted`.

        Raises:
            ConfigError: if there are no such clients, or none of them has samples in that split.
        """
        population, split, client = self.predicted
        if client is not None:
            name, position = find_client(client, {"seen": self.seen, "unseen": self.unseen})
            return self.serving(name, split, torch.tensor([position]))  # type: ignore[arg-type]
        if population == "unseen" and self.unseen is None:
            raise ConfigError("--population unseen: the data have no unseen clients; choose seen")
        if not self.splits(population, split)[0].num_samples:
            raise ConfigError(f"--split {split}: the {population} clients have no samples in it; choose another split")
        return self.serving(population, split)

    def serving(
        self,
        population: Literal["seen", "unseen"],
        name: Literal["train", "val", "test"],
        positions: Tensor | None = None,
    ) -> Blocks[ServingBlock]:
        """This rank's blocks of clients to be served and measured, or predicted: those at `positions`, or all."""
        assert self.trainer is not None
        data, train = self.splits(population, name)
        measured = self._chosen(population).measured if positions is None else positions
        return Blocks(
            serving_blocks(
                data, train, measured, clients_per_block=self.block_size,
                rank=self.trainer.global_rank, num_ranks=self.trainer.world_size,
            )
        )  # fmt: skip
