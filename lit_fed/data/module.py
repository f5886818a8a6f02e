"""The data module: from a data set to blocks of clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from lit_fed.core.blocks import draw_cohort, sampling_probability, serving_blocks
from lit_fed.core.likelihood import OwnLoss
from lit_fed.core.seeds import generator
from lit_fed.core.segmentation import Segmentation, flat_population
from lit_fed.core.targets import CLASSES, Target
from lit_fed.core.types import ClientBlock, Population, ServingBlock, Split
from lit_fed.data.augmentation import check_augmentation, mask_form, written_out
from lit_fed.data.data_sets.base import ANY_SEED, DataSet, Names, Normalisation, names_of
from lit_fed.data.data_sets.digits import Digits
from lit_fed.data.data_sets.texts import TOKENS
from lit_fed.data.facts import TrainingFacts, name_digests
from lit_fed.data.partitions.base import Partition
from lit_fed.data.poison.base import Poison, draw_attackers, poisoned
from lit_fed.data.populations.as_trained import as_trained, check_same_labels
from lit_fed.data.populations.build import build_populations, infer_target, told, with_labels
from lit_fed.data.populations.checks import (
    check_labels,
    check_mask_values,
    check_missing_classes,
    far_inputs,
    find_client,
    find_client_name,
    fingerprint,
    learned_constants,
    num_classes_of,
    outlying_inputs,
    rounded_numbers,
    say_rare_class,
    scale_of_labels,
    taken_labels,
    with_foreground,
    with_ignored,
    without_unlabelled,
)
from lit_fed.data.populations.splits import SplitKind
from lit_fed.errors import ClientError, ConfigError, check_settings, notice
from lit_fed.system.discovery import with_objects
from lit_fed.system.names import few
from lit_fed.system.packages import DataFrame

__all__ = ["ALL", "Blocks", "FederatedDataModule", "Predicted"]

ALL = "all"
"""Stands for all clients in place of a client's name."""

FIXES = {"dataset": "for samples in memory call FederatedDataModule.from_clients({name: (x, y), ...}), or from_frame"}
"""Arguments → the values that they take, for messages about other types."""

POPULATIONS: tuple[Literal["seen", "unseen"], ...] = ("seen", "unseen")

SplitName = Literal["train", "val", "test", "calibration"]

Block = TypeVar("Block")


@dataclass(frozen=True)
class Blocks(Generic[Block]):
    """Blocks as a data loader: a sized iterable, since nothing needs loading or collating."""

    blocks: Sequence[Block]

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self.blocks)


class Predicted(NamedTuple):
    """The clients and the split of a prediction run."""

    population: Literal["seen", "unseen"] = "seen"
    split: SplitName = "test"
    client: str | None = None  # predict this client alone, or `ALL`; None: all clients that the test measures
    responsibilities: bool = False  # of the components for each sample


@dataclass(eq=False, repr=False)
class FederatedDataModule(LightningDataModule):
    """A data set as clients: partition, splits, cohorts and blocks.

    What labels mean is inferred, or said by `--model.target`; `given_target` says it without a module. In Python,
    too, a class or its name stands for an object with its defaults: `FederatedDataModule("Digits")`.

    Args:
        dataset: the data set.
        partition: divides the samples among clients; null: the natural clients, or `Dirichlet` if there are none.
        num_clients: number of clients of a partition (default 20); refused if the data set has natural clients.
        batch_size: samples in a local batch; 0 takes a client's whole training split.
        val_fraction: share of each client's samples kept for validation.
        test_fraction: share of each client's samples kept for testing if the data set has no test split; 0: no test
            samples.
        split: how each client's samples are divided by these shares: at `random`, or `stratified`, with about the
            same share of each class in each split; or by `time`, so that each client's last samples are tested (its
            validation samples are drawn from the others; samples of one time stay together).
        unseen_fraction: share of the clients held out of training and served as unseen clients; if above 0 at least
            one, and at least one client trains.
        client_fraction: share of the clients sampled in each round, at least one; with `poisson` the probability of
            each client, and a round may have no client.
        clients_per_round: number of clients sampled in each round, instead of a share; with `poisson` on average.
        client_sampling: `uniform` without replacement; `size`: with replacement, in proportion to the samples (refused
            by algorithms that count each client once); `poisson`: each client independently with the same probability,
            as differential privacy requires.
        clients_per_block: upper limit of clients in a block for the client trainer; lower if client states lie in
            files.
        eval_clients: evaluate this many seen and this many unseen clients, sampled once from `seed`; null: all.
        seed: seed of the partition, the splits and the sample of evaluated clients.
        test_seed: seed of the partition, the unseen clients and the test samples, which are then the same for every
            `seed`; null: `seed` draws them, too.
        exclude_clients: names of clients that are left out, as if the data did not have them; for one that leaves the
            federation.
        attackers: clients that attack the training: their number, or their share if below 1; sampled from `seed`. They
            poison their samples (`poison`) or falsify their messages (`attack` of the model), and averages over honest
            clients leave them out.
        poison: how attackers change their training samples, `LabelFlip` or `Backdoor`; null: not at all.
        calibration_fraction: share of each client's remaining training samples that nothing is fitted to; they decide
            the thresholds of its prediction sets (`conformal` of the model).
        augment: torchvision transforms of images, and of masks with them, in local steps, by name, sampled anew in
            each step, such as `RandomHorizontalFlip, RandomCrop(32, padding=4)`; null: none.
    """

    dataset: DataSet = Digits()  # noqa: RUF009 - frozen
    partition: Partition | None = None
    num_clients: int | None = None
    batch_size: int = 128
    val_fraction: float = 0.0
    test_fraction: float = 0.2
    unseen_fraction: float = 0.0
    client_fraction: float = 1.0
    clients_per_round: int | None = None
    client_sampling: Literal["uniform", "size", "poisson"] = "uniform"
    clients_per_block: int = 1024
    eval_clients: int | None = None
    seed: int = 0
    augment: str | list[str] | None = None
    attackers: float | None = None
    poison: Poison | None = None
    split: SplitKind = "random"
    test_seed: int | None = None
    exclude_clients: Names = ()
    calibration_fraction: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()
        vars(self).update(with_objects(FederatedDataModule.__init__, vars(self), "data", FIXES))
        check_settings(
            self, prefix="--data", clients_per_block=">= 1", seed=ANY_SEED, test_seed=ANY_SEED,
            batch_size=(self.batch_size >= 0, "a whole number >= 1, or 0 for the whole local set"),
            client_fraction=(0 < self.client_fraction <= 1, "a number above 0 and up to 1"),
            eval_clients=(self.eval_clients is None or self.eval_clients >= 1, "a whole number >= 1, or null for all"),
        )  # fmt: skip
        if self.split != "random" and self.dataset.is_remote:
            raise ConfigError(f"--data.split is {self.split}, and nodes divide their own samples; leave it out")
        self.exclude_clients = names_of(self.exclude_clients)
        if self.exclude_clients and (self.dataset.is_remote or self.dataset.divided_by == "features"):
            fix = "stop its node and leave it out of --data.dataset.nodes" if self.dataset.is_remote else "leave it out"
            raise ConfigError(
                f"--data.exclude_clients is {', '.join(self.exclude_clients)}, and samples of "
                f"{type(self.dataset).__name__} are not divided by clients here; {fix}"
            )
        if self.clients_per_round is not None and self.client_fraction != 1:
            raise ConfigError(
                f"--data.clients_per_round is {self.clients_per_round} and --data.client_fraction "
                f"{self.client_fraction}; give only one of them (client_fraction 1 and clients_per_round null count as "
                "not given)"
            )
        self.transforms = written_out(self.augment)
        self.seen: Population | None = None
        self.unseen: Population | None = None
        self.given_target: Target | None = None
        self.predicted = Predicted()

    @classmethod
    def from_clients(
        cls, clients: Mapping[str, Any], unseen: Mapping[str, Any] | None = None, **settings: Any
    ) -> FederatedDataModule:
        """Build the module from samples in memory; `val_fraction` and `test_fraction` divide each client's samples.

        Args:
            clients: name -> (inputs [n, ...], labels [n] or [n, L]), as NumPy arrays, tensors or lists. Text labels
                are class names. Or name -> a `Dataset` or `DataLoader` of PyTorch: samples (x, y) are inputs and
                labels; any other dict or tuple of tensors is for a LightningModule that reads it, by the target
                `OwnLoss`. All samples are collated at once, by the loader's `collate_fn`.
            unseen: likewise, clients held out of training.
            settings: other arguments of the class, and `labels` and `num_classes` of `ClientFolder`.
        """
        from lit_fed.data.data_sets.in_memory import data_set_of_arrays, data_set_of_loaders, is_loader

        given = {name: settings.pop(name) for name in ("labels", "num_classes") if name in settings}
        if isinstance(clients, Mapping) and any(is_loader(one) for one in clients.values()):
            dataset = data_set_of_loaders(clients, unseen, **given)
        else:
            dataset = data_set_of_arrays(clients, unseen, **given)
        module = cls(dataset, **settings)
        inputs = dataset.load().inputs
        module.given_target = OwnLoss() if inputs is not None and inputs.hold_labels else None
        return module

    @classmethod
    def from_datasets(  # type: ignore[override]  # Lightning's has one data set for each split
        cls, clients: Mapping[str, Any], unseen: Mapping[str, Any] | None = None, **settings: Any
    ) -> FederatedDataModule:
        """`from_clients`, by the name of Lightning's method for data sets."""
        return cls.from_clients(clients, unseen, **settings)

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
        """Build the module from a data frame, one row per sample, read as `Table` reads a file.

        Args:
            frame: the frame.
            client: column with the client's name; None: `partition` divides the rows.
            label: column with the labels.
            features: input columns; None: all others.
            unseen: names of clients held out of training.
            table: other fields of `Table`, as in `{"split_column": "fold"}`.
            settings: other arguments of the class.
        """
        from lit_fed.data.data_sets.in_memory import data_set_of_frame

        return cls(data_set_of_frame(frame, client, label, features, unseen, **table or {}), **settings)

    def prepare_data(self) -> None:
        """Download missing files; Lightning calls this on one rank of each node before `setup`."""
        self.dataset.prepare()

    def setup(self, stage: str = "fit") -> None:
        """Load and divide the data; further calls do nothing."""
        given = self._settle_target()
        module = None if self.trainer is None else self.trainer.lightning_module
        # facts of the training whose models are taken, and their origin
        earlier, place = getattr(module, "earlier", None) or (None, "")
        as_read = None if earlier is None else earlier.as_read
        if self.seen is not None:
            if self._as_trained(self.seen, earlier, place, []) is not self.seen:
                raise ConfigError(
                    f"{place}: the data were set up before, with other columns, constants or classes; pass a new "
                    "FederatedDataModule"
                )
            return
        self.dataset = told(self.dataset, given)
        seen, unseen = build_populations(
            self.dataset, self.partition, self.num_clients,
            val_fraction=self.val_fraction, test_fraction=self.test_fraction,
            unseen_fraction=self.unseen_fraction, seed=self.seed, split=self.split,
            test_seed=self.test_seed, exclude=names_of(self.exclude_clients),
            calibration_fraction=self.calibration_fraction,
        )  # fmt: skip
        lines = list[str]()
        read, seen = seen, self._as_trained(seen, as_read, place, lines)
        unseen = None if unseen is None else self._as_trained(unseen, as_read, place, [])
        is_new = seen is read
        seen, unseen = self._labelled(seen, unseen)
        if earlier is not None:
            check_same_labels(self.target, earlier, place)
        masks = mask_form(self.target, self.label_shape)
        normalisation = seen.normalisation or self.dataset.normalisation
        check_augmentation(self.transforms, seen, type(self.dataset).__name__, normalisation, masks)
        if unseen is not None:
            for split in unseen.splits:
                split.first_id = seen.train.num_clients
        self.input_shape = tuple(seen.train.x.shape[1:])
        seen = self._with_attackers(seen)
        self.fingerprint = fingerprint(seen, unseen)
        self.seen = self._with_measured(seen, "evaluation/seen")
        self.unseen = None if unseen is None else self._with_measured(unseen, "evaluation/unseen")
        self.cohort(seed=0, round_idx=0)  # fail now, not in the first round, if no cohort can be sampled
        said_of_labels = None if given is not None else taken_labels(self.dataset, self.target, seen)
        far = (far_inputs(one, normalisation, seen.columns) for one in ([] if is_new else [seen]) + [unseen])
        said_of_inputs = *lines, rounded_numbers(seen), outlying_inputs(seen, unseen), *far
        for said in (said_of_labels, scale_of_labels(self.dataset, self.target, seen), *said_of_inputs):
            if said is not None and (self.trainer is None or self.trainer.is_global_zero):
                notice(said)

    def _as_trained(
        self, population: Population, earlier: TrainingFacts | None, place: str, said: list[str]
    ) -> Population:
        declared = self.dataset.normalisation
        return population if earlier is None else as_trained(population, earlier, place, declared, said)

    def _settle_target(self) -> Target | None:
        """The target of `--model.target`, or `given_target`; None: the labels decide."""
        module = None if self.trainer is None else self.trainer.lightning_module
        wanted: Target | None = getattr(getattr(module, "settings", None), "target", None)
        if self.seen is None:
            self.given_target = self.given_target if wanted is None else wanted
        elif wanted not in (None, self.given_target):
            raise ConfigError(
                "the data were set up without --model.target; set `given_target` of the data module before `setup`"
            )
        return self.given_target

    def _labelled(self, seen: Population, unseen: Population | None) -> tuple[Population, Population | None]:
        """The clients with labels in the form of the target, which is inferred if it is not given."""
        given, num_classes = self.given_target, num_classes_of(self.dataset, seen)
        declared = (given is not None and given.num_classes) or (not self.dataset.is_remote and num_classes) or 0
        if given is not None:
            seen, unseen = with_labels(seen, given), None if unseen is None else with_labels(unseen, given)
        if given is None or isinstance(given, Segmentation):
            seen, unseen = with_foreground(seen, unseen, None if given is None else given.ignored, declared)
        if given is None:
            target = infer_target(seen.train.y, num_classes, self.dataset.labels)
            check_missing_classes(self.dataset, target, seen, unseen)
        else:
            target = given.fitted(seen.train.y, num_classes)
        if isinstance(target, Segmentation) and not declared:
            check_mask_values(self.dataset, target, seen, unseen)
        self.target = with_ignored(target, seen, unseen, pads=self.augment is not None)
        if seen.label_scale is not None:
            self.target = target.standardised(seen.label_scale)
        check_labels(self.target, seen, unseen)
        self.label_shape = tuple(seen.train.y.shape[1:])
        if isinstance(self.target, Segmentation):
            seen, unseen = flat_population(seen), None if unseen is None else flat_population(unseen)
        seen, unseen = self._that_teach(seen), None if unseen is None else self._that_teach(unseen)
        say_rare_class(self.target, seen)
        if self.target.partly_labelled and not seen.train.num_samples:
            raise ConfigError(
                f"no training sample of {type(self.dataset).__name__} has a label; correct --data.dataset"
            )
        return seen, unseen

    def _that_teach(self, population: Population) -> Population:
        """The clients with their labelled training samples; a line counts the others."""
        fewer, number = without_unlabelled(self.target, population)
        if number and (self.trainer is None or self.trainer.is_global_zero):
            bare = ((population.train.sizes > 0) & (fewer.train.sizes == 0)).nonzero()[:, 0].tolist()
            whose = f", all those of {few(population.names[one] for one in bare)}" if bare else ""
            total = population.train.num_samples
            notice(f"{number:,} of {total:,} training samples have no label and are left out{whose}")
        return fewer

    def _with_attackers(self, seen: Population) -> Population:
        """The seen clients with attackers chosen and their training samples poisoned."""
        if self.attackers is None:
            if self.poison is not None:
                raise ConfigError(
                    f"--data.poison is {type(self.poison).__name__}, which needs --data.attackers; give the number of "
                    "clients that attack, or leave --data.poison out"
                )
            return seen
        seen = seen._replace(attackers=draw_attackers(self.attackers, seen.train.num_clients, self.seed))
        if self.poison is None:
            return seen
        alter = self.poison.prepare(seen, self.target, type(self.dataset).__name__)
        return poisoned(seen, alter, self.seed, repr(self.poison))

    def on_exception(self, exception: BaseException) -> None:
        """Add the client's name to a `ClientError`; Lightning calls this before it re-raises."""
        if isinstance(exception, ClientError):
            exception.client_name = find_client_name(exception.client_id, self.seen, self.unseen)

    def _with_measured(self, population: Population, purpose: str) -> Population:
        """The population with `measured` set to `eval_clients` sampled clients, if that is fewer than all."""
        num_clients = population.train.num_clients
        if self.eval_clients is None or self.eval_clients >= num_clients:
            return population
        drawn = generator(self.seed, 0, 0, purpose).choice(num_clients, self.eval_clients, replace=False)
        return population._replace(measured=torch.from_numpy(np.sort(drawn)))

    def facts(
        self, *, weighting: Literal["samples", "positions", "uniform"], seed: int, num_rounds: int
    ) -> TrainingFacts:
        """Facts of the training data from which a federation is built.

        Args:
            weighting: weight of a client's message.
            seed: the training seed.
            num_rounds: rounds of the training.
        """
        assert self.seen is not None
        train = self.seen.train
        either = self.normalisation or self.seen.columns  # normalised images may be stored as uint8 or float
        return TrainingFacts(
            input_shape=self.input_shape,
            input_type=str(train.x.dtype).removeprefix("torch."),
            label_shape=self.label_shape,
            label_scale=self.seen.label_scale,
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
            augment=self.transforms,
            sampling_probability=self.sampling_probability,
            attackers=self.seen.attackers,
            learned=learned_constants(self.dataset, self.seen, self.target),
            named=name_digests(self.seen.names),
            total_positions=self._num_positions() if weighting == "positions" else 0,
            stored_type="" if either else self.seen.stored_type,
            inputs=self.seen.inputs,
            texts=self.dataset.texts if self.seen.stored_type.startswith(TOKENS) else None,
        )

    def _num_positions(self) -> int:
        """Positions of the seen clients' training samples that count."""
        assert self.seen is not None
        if not self.target.positions:
            raise ConfigError(
                f"--model.weighting is positions, and the labels of {type(self.dataset).__name__} have none "
                f"({self.target.name}); give samples or uniform"
            )
        y = self.seen.train.y
        return int(self.target.num_positions(y, torch.ones(len(y))))

    def class_counts(self) -> Tensor:
        """Training labels of each class, of the seen clients together, [C] int64; labels to ignore are not counted.

        A sum over clients, of which each could send its own counts.

        Raises:
            ConfigError: if labels are no classes, or samples are not in memory.
        """
        assert self.seen is not None
        train, data = self.seen.train, type(self.dataset).__name__
        if self.target.name not in CLASSES or train.samples_per_block is not None:
            why = "are drawn when they are needed" if train.samples_per_block is not None else "have no classes"
            raise ConfigError(
                f"--model.loss.weight is inverse_frequency, and labels of {data} {why}; give a list of weights, or "
                "leave it out"
            )
        labelled = self.target.labelled(train.y)
        counted = train.y if labelled is None else train.y[labelled]
        return torch.bincount(counted.flatten().cpu(), minlength=self.target.num_classes)

    def guessing_loss(self) -> float | None:
        """Log-loss of predicting the shares, or the mean, of the seen clients' training labels for every sample.

        None if it is unknown: for user-defined likelihoods, and where samples are on nodes or drawn when needed.
        """
        assert self.seen is not None
        train = self.seen.train
        unknown = self.dataset.is_remote or train.samples_per_block is not None
        return None if unknown else self.target.guessing_loss(train.y)

    def capped_samples(self, cap: int) -> int:
        """Sum of the seen clients' training samples, at most `cap` for each client."""
        assert self.seen is not None
        return int(self.seen.train.sizes.clamp(max=cap).sum())

    @property
    def sampling_probability(self) -> float:
        """Probability that a client takes part in a round; with sampling by size, expected draws per client."""
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
        """Constants of the inputs' normalisation, from the training samples or from the data set."""
        assert self.seen is not None
        return self.seen.normalisation or self.dataset.normalisation

    @property
    def evaluation_split(self) -> Literal["val", "test"]:
        """Split of periodic evaluation: `val`, or `test` if there are no validation samples."""
        assert self.seen is not None
        return "val" if self.seen.val.num_samples else "test"

    def splits(self, population: Literal["seen", "unseen"], name: SplitName) -> tuple[Split, Split]:
        """The split to measure or predict, None without calibration samples, and the training split to adapt on."""
        chosen = self._chosen(population)
        return getattr(chosen, name), chosen.train

    def kept(self, names: Sequence[str]) -> DataFrame | None:
        """Columns of all rows of the table to write beside predictions; None without names.

        Raises:
            ConfigError: if the data are no table, or it has no such column.
        """
        if not names:
            return None
        if (cells := getattr(self.dataset, "cells", None)) is None:
            raise ConfigError(
                f"--keep copies columns of a table, and the data are {type(self.dataset).__name__}; leave it out"
            )
        found: DataFrame = cells(names)
        return found

    def _chosen(self, population: Literal["seen", "unseen"]) -> Population:
        chosen = self.seen if population == "seen" else self.unseen
        assert chosen is not None
        return chosen

    # ------------------------------------------------------------------ blocks
    def cohort(self, **draw: Any) -> np.ndarray:
        """The seen clients of a round, [C]; `draw` as for `draw_cohort`, such as seed and round."""
        assert self.seen is not None
        sizes = self.seen.train.sizes.numpy()
        return draw_cohort(
            len(sizes), sizes, fraction=self.client_fraction, number=self.clients_per_round,
            sampling=self.client_sampling, **draw,
        )  # fmt: skip

    @property
    def block_size(self) -> int:
        """Upper limit of clients in a block; lower if their states are read from files block by block."""
        assert self.trainer is not None
        store = getattr(self.trainer.lightning_module, "store", None)  # while rates are searched there is none
        return self.clients_per_block if store is None else min(self.clients_per_block, store.clients_per_block)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Move a block; skipped on a CPU, where the search for tensors costs a millisecond per round."""
        return batch if device.type == "cpu" else super().transfer_batch_to_device(batch, device, dataloader_idx)

    def train_dataloader(self) -> Blocks[ClientBlock]:
        """This rank's blocks of the next round; called once per round."""
        assert self.trainer is not None
        module: Any = self.trainer.lightning_module
        return Blocks(module.next_round(self))

    def val_dataloader(self) -> Blocks[ServingBlock]:
        return self.serving("seen", self.evaluation_split)

    def test_dataloader(self) -> Blocks[ServingBlock]:
        return self.serving("seen", "test")

    def predict_dataloader(self) -> Blocks[ServingBlock]:
        """This rank's blocks of the clients and split in `predicted`.

        Raises:
            ConfigError: if there are no such clients, or none of them has samples in that split.
        """
        population, split, client, _ = self.predicted
        if client == ALL:
            there = [one for one in (self.seen, self.unseen) if one is not None]
            each = [
                self.serving(name, split, torch.arange(len(one.names)))
                for name, one in zip(POPULATIONS, there, strict=False)
            ]
            return Blocks([block for blocks in each for block in blocks])
        if client is not None:
            name, position = find_client(client, {"seen": self.seen, "unseen": self.unseen})
            return self.serving(name, split, torch.tensor([position]))  # type: ignore[arg-type]
        if population == "unseen" and self.unseen is None:
            raise ConfigError("--population unseen: the data have no unseen clients; choose seen")
        held = self.splits(population, split)[0]
        if held is None or not held.num_samples:
            raise ConfigError(f"--split {split}: the {population} clients have no samples in it; choose another split")
        return self.serving(population, split)

    def serving(
        self,
        population: Literal["seen", "unseen"],
        name: SplitName,
        positions: Tensor | None = None,
    ) -> Blocks[ServingBlock]:
        """This rank's blocks for evaluation or prediction, of the clients at `positions` or of all measured ones."""
        assert self.trainer is not None
        data, train = self.splits(population, name)
        chosen = self._chosen(population)
        blocks = serving_blocks(
            data, train, chosen.measured if positions is None else positions, clients_per_block=self.block_size,
            rank=self.trainer.global_rank, num_ranks=self.trainer.world_size,
        )  # fmt: skip
        return Blocks([block._replace(calibration=chosen.calibration) for block in blocks])
