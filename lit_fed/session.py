"""The session of a training: algorithm, task and terms, built from the settings and the facts of the data.

Server and nodes build the same session from the same settings, without Lightning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_fed.clients.base import ClientTrainer
from lit_fed.clients.choose import choose_trainer
from lit_fed.core.algorithm import Algorithm, takes_steps
from lit_fed.core.context import Context, Terms
from lit_fed.core.likelihood import OwnLoss
from lit_fed.core.local_solver import LocalSolver
from lit_fed.core.networks.start import HEAD, NetworkCopies, choose_trained, start_of
from lit_fed.core.networks.trial import check_kind, check_scores, try_network, why_alone
from lit_fed.core.own_module import OwnModule, maker_from_hparams, prepared, trains_itself
from lit_fed.core.own_optimizer import OwnOptimizer, own_solver
from lit_fed.core.plan import num_steps
from lit_fed.core.segmentation import Segmentation, pixels_last
from lit_fed.core.targets import Binary, Criterion, Multiclass, MultiLabel
from lit_fed.core.task import Task
from lit_fed.core.types import LocalWork, Tree
from lit_fed.data.augmentation import make_augmentation, mask_form
from lit_fed.data.data_sets.base import is_first_process, names_of
from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError, notice
from lit_fed.metrics.scores import reserved_keys
from lit_fed.models.adapters import LowRankAdapters
from lit_fed.models.base import build_network, check_outputs, zero_outputs
from lit_fed.settings import ModelSettings

__all__ = ["Session", "check_augmented_steps", "check_init_seeds", "solver_of"]


class Session(NamedTuple):
    """Parts of a training that are the same on every machine."""

    algorithm: Algorithm  # inside the wrappers that the settings ask for
    terms: Context  # context of all clients in all rounds
    shared: Tree  # the initial shared state
    choose: Callable[[torch.device], ClientTrainer]  # the client trainer for a device

    @classmethod
    def of(
        cls,
        settings: ModelSettings,
        facts: TrainingFacts,
        device: torch.device,
        start: Callable[[Task], Task] | None = None,
    ) -> Session:
        """The session of a training.

        Args:
            settings: settings of the module.
            facts: sizes of the training.
            device: device of the clients.
            start: replaces the initial models of the task; None: they are fresh, or those of a network given as a
                module.

        Raises:
            ConfigError: if network, data, client trainer and algorithm are incompatible.
        """
        task, init_seeds = _task_of(settings, facts, start), settings.init_seeds
        alone = partial(why_alone, task.network, task.frozen, task.resting, _example_of(task, facts))
        choose = partial(
            choose_trainer, _trainer_for(settings.client_trainer, task, _example_of(task, facts)), task.network,
            memory_format=settings.memory_format, alone=alone,
        )  # fmt: skip
        if settings.client_trainer != "auto":
            choose(device)  # a trainer that cannot train the network is refused now, unless it runs on nodes only
        if init_seeds is not None:
            check_init_seeds(tuple(init_seeds), settings.algorithm.num_models, facts.num_clients)
        algorithm, solver = settings.wrapped, solver_of(settings.solver, task, facts)
        if isinstance(solver, OwnOptimizer) and settings.client_trainer == "vectorized":
            raise ConfigError(
                f"--model.client_trainer vectorized has no rule of {solver.optimizer} for clients at once; give "
                "sequential, or --model.solver.optimizer"
            )
        common = {one.name: getattr(facts, one.name) for one in fields(Terms)}
        terms = Context(
            task=task, solver=solver, lr=solver.lr_in("init", 0, facts.num_rounds), round_idx=0, phase="init",
            aggregation=settings.aggregation, attackers=facts.attacking,
            augmentation=make_augmentation(
                facts.augment, facts.normalisation, mask_form(facts.target, facts.label_shape)
            ),
            **common,
        )  # fmt: skip
        for one in settings.features:
            terms = one.terms(terms)
        if terms.augmentation is not None:
            check_augmented_steps(algorithm, type(settings.algorithm).__name__, terms)
        shared = algorithm.shared_init(terms)
        for one in settings.features:
            one.check_models(algorithm, terms, shared)
        return cls(algorithm, terms, shared, choose)


def solver_of(given: LocalSolver, task: Task, facts: TrainingFacts) -> LocalSolver:
    """The local solver of the settings, with a rate, or that of a module's own optimizer, which a line says.

    Raises:
        ConfigError: if clients cannot step by the module's optimizer.
    """
    if task.own is None:
        return given.given
    epoch_steps = num_steps(facts.most_samples, LocalWork(epochs=1), facts.batch_size, task.smallest_batch)
    solver, said = own_solver(task.own, given, facts.num_rounds, max(epoch_steps, 1))
    if said and is_first_process():
        task.own.say(said)
    return solver.given if solver is given else solver


def check_augmented_steps(algorithm: Any, name: str, ctx: Context) -> None:
    """Refuse augmentation if clients take no local steps: only their inputs are augmented.

    Raises:
        ConfigError: naming the algorithm.
    """
    assert ctx.augmentation is not None
    if not takes_steps(algorithm, ctx):
        raise ConfigError(
            f"--data.augment {ctx.augmentation.said}: augments local steps, and {name} takes none with these settings; "
            "leave it out"
        )


def check_init_seeds(init_seeds: tuple[int, ...], num_models: int, num_clients: int) -> None:
    """Refuse seeds outside the range of generators, and a number of seeds that fits neither models nor clients.

    Raises:
        ConfigError: naming the seed, or the number of seeds.
    """
    for seed in init_seeds:
        if not 0 <= seed < 2**63:
            raise ConfigError(f"--model.init_seeds holds {seed}; give whole numbers from 0 to 2^63 - 1")
    # one seed suffices if all models start equal; only the start knows how many seeds are too few
    if len(init_seeds) not in (1, num_models, num_clients, num_clients * num_models):
        raise ConfigError(f"--model.init_seeds has {len(init_seeds)} seeds; give one for each of {num_models}")


def _task_of(settings: ModelSettings, facts: TrainingFacts, start: Callable[[Task], Task] | None) -> Task:
    shape = facts.input_shape
    init_seeds = None if settings.init_seeds is None else tuple(settings.init_seeds)
    if settings.loss is None and isinstance(settings.network, nn.Module) and trains_itself(settings.network):
        prepared(settings.network)
    build = partial(_build, settings.network, settings.trainable, settings.adapters, facts, settings.loss is None)
    task = Task.create(
        build, facts.target, facts.seed, init_seeds=init_seeds,
        criterion=None if settings.loss is None else Criterion(settings.loss.fitted(facts.class_counts), facts.target),
    )  # fmt: skip
    given = settings.network if isinstance(settings.network, nn.Module) else None
    if settings.loss is None and trains_itself(task.network):
        task = _with_own_steps(task, facts)
    types = set() if given is None else {str(leaf.dtype) for leaf in given.parameters() if leaf.requires_grad}
    if types - {"torch.float32"} and is_first_process():
        notice(f"{type(given).__name__} has parameters of {', '.join(sorted(types))}, which are trained as float32")
    if given is not None and settings.lora_rank is None:  # with adapters it is frozen, or fresh
        anew = task.own is not None and maker_from_hparams(given) is not None
        task = replace(task, start=start_of(given, frozenset(task.frozen), others_fresh=anew))
    if start is not None:
        task = start(task)
    if isinstance(facts.target, OwnLoss):
        return task
    softmax = ": two classes by a softmax are --model.target Multiclass, in Python target=Multiclass()"
    of_two = softmax if isinstance(facts.target, Binary) else ""
    check_outputs(task.network, shape, facts.dtype, facts.target.output_shape(facts.label_shape), of_two)
    example = _example_of(task, facts)
    _try(task, example, has_scores=isinstance(facts.target, Multiclass | Binary | MultiLabel))
    return task if task.own is not None else task.with_end(example)


def _with_own_steps(task: Task, facts: TrainingFacts) -> Task:
    """The task of a network that computes its loss itself; a line says what of it is not called."""
    no_label = facts.target.as_labels(torch.zeros(facts.label_shape))
    mask = facts.label_shape if isinstance(facts.target, Segmentation) else None
    own = OwnModule(
        task.network, facts.inputs, is_target=isinstance(facts.target, OwnLoss),
        no_label=no_label if mask is None else no_label.flatten(), mask=mask,
        reserved=reserved_keys(facts.target.metric),
    )  # fmt: skip
    hooks = f"; clients do not call its {', '.join(own.not_called)}" if own.not_called else ""
    if is_first_process():
        notice(f"{own.name} trains by its own training_step{hooks}")
    leaves = {**dict(task.network.named_parameters()), **dict(task.network.named_buffers())}
    own.learn_names({name: leaf.detach() for name, leaf in leaves.items()}, _example_of(task, facts))
    return replace(task, own=own)


def _trainer_for(name: str, task: Task, example: Tensor) -> str:
    """The client trainer of a module that computes its loss itself: one client after another, unless asked otherwise.

    Raises:
        ConfigError: if the one that is asked for cannot run it.
    """
    if task.own is None:
        return name
    why = "it records steps of a network alone" if name == "graphed" else ""
    if name == "vectorized":
        leaves = {**dict(task.network.named_parameters()), **dict(task.network.named_buffers())}
        why = task.own.why_alone({key: leaf.detach() for key, leaf in leaves.items()}, example)
        if not why and is_first_process():
            task.own.say(f"clients run at once, and what {task.own.name}.training_step logs is not measured")
    if why:
        raise ConfigError(
            f"--model.client_trainer {name} cannot run the training_step of {task.own.name} ({why}); give sequential, "
            "or auto"
        )
    return "sequential" if name == "auto" else name


def _try(task: Task, example: Tensor, has_scores: bool) -> None:
    """Refuse a network that no local step can call as a pure function; mark one whose samples depend on others.

    Raises:
        ConfigError: naming the network, and what to write in its forward pass.
    """
    network = task.network
    check_kind(network)
    if has_scores:
        check_scores(network, task.frozen, example)
    if task.closed_form is not None:  # no pass calls it
        return
    tried = try_network(network, task.resting, example)
    network.mixes_samples = tried.mixes_samples  # type: ignore[assignment]
    said = {
        "predicts a sample otherwise among other samples of a batch, so that clients run one after another, and "
        "results depend on the batch size": tried.mixes_samples,
        "draws numbers that no seed of torch decides, such as NumPy's, so that equal runs differ": not tried.is_seeded,
    }
    for found in (found for found, holds in said.items() if holds and is_first_process()):
        notice(f"{type(network).__name__} {found}")


def _build(
    given: Any, trainable: list[str] | str | None, adapters: LowRankAdapters, facts: TrainingFacts, own_steps: bool
) -> nn.Module:  # fmt: skip
    """A network with the trained parameters of the settings; with adapters by default at most the last layer."""
    shape, input_type = facts.input_shape, facts.dtype
    maker = NetworkCopies(given) if isinstance(given, nn.Module) else given
    if own_steps and isinstance(given, nn.Module) and trains_itself(given):
        maker = maker_from_hparams(given) or maker
    sizes = None if isinstance(facts.target, OwnLoss) else facts.target.num_outputs
    network = build_network(maker, shape, input_type, sizes, facts.inputs, own_steps=own_steps)
    adapted = adapters.rank is not None
    if trainable is None and adapted:
        trainable = [] if getattr(network, "keeps_head", False) else HEAD
    if trainable is not None:
        choose_trained(network, list(names_of(trainable)), may_be_none=adapted)
    short = _short(network, shape)
    network = adapters.add_to(network, lambda: zero_outputs(network, short, input_type))
    others = [name for name, leaf in network.named_parameters() if leaf.requires_grad and "lora_" not in name]
    if others and getattr(network, "frozen_dtype", None) is not None:
        raise ConfigError(
            f"--model.network.frozen_dtype is for networks whose adapters alone are trained, but {others[0]} is, "
            "too; give --model.lora_rank without --model.trainable, or float32"
        )
    return pixels_last(network, facts.target, facts.label_shape)


def _short(network: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a sample for trying a network; language models accept texts of any length.

    Outputs of a long text over many words would take more memory than the training.
    """
    return (min(8, *shape),) if getattr(network, "keeps_head", False) else shape


def _example(shape: tuple[int, ...], input_type: torch.dtype) -> Tensor:
    """Two samples that differ where their type allows it; tokens are 0, since their range is unknown."""
    if not input_type.is_floating_point:
        return torch.zeros(2, *shape, dtype=input_type)
    return torch.linspace(0, 1, 2 * math.prod(shape), dtype=input_type).view(2, *shape)


def _example_of(task: Task, facts: TrainingFacts) -> Tensor:
    """Two samples for trial passes."""
    if facts.inputs is not None:
        return facts.inputs.example()
    return _example(_short(task.network, facts.input_shape), facts.dtype)
