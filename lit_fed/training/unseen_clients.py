"""Serving clients that come after the training, from a checkpoint alone."""

from __future__ import annotations

from typing import Any, Literal

from lit_fed.data.facts import TrainingFacts
from lit_fed.errors import ConfigError
from lit_fed.training.checkpoint import (
    CHECKPOINT_KEY,
    compare_arguments,
    compare_identities,
    not_about_serving,
    refuse_differences,
    schedule_rounds,
)
from lit_fed.training.module import FederatedModule
from lit_fed.training.warm_start import WarmStart

__all__ = ["restore_for_unseen_clients"]


def restore_for_unseen_clients(
    module: FederatedModule,
    checkpoint: dict[str, Any],
    path: str,
    unknown_categories: Literal["error", "zeros"] | None = None,
) -> TrainingFacts:
    """Give a fresh module what serving unseen clients takes: the shared state of a checkpoint, no seen client's.

    Args:
        module: a module that has not been built yet.
        checkpoint: content of one of its checkpoints.
        path: where the checkpoint was found, for error messages.
        unknown_categories: as of `Table`, for later tables; None: that of the training.

    Returns:
        What the checkpoint says of the training.

    Raises:
        ConfigError: if the checkpoint is of another run, or the module has a state already.
    """
    if module.is_built:
        raise ConfigError("personalize builds the module from the checkpoint; pass a FederatedModule without a state")
    stored = checkpoint.get(CHECKPOINT_KEY)
    if stored is None or "serving" not in stored:
        raise ConfigError(f"--ckpt_path {path} says nothing of how clients are served; give a checkpoint of a fit")
    settings = {"algorithm": module.algorithm, "solver": module.settings.solver}
    own = {name: repr(one) for name, one in settings.items()}
    kept = {name: stored["identity"][name] for name in own}
    found = compare_arguments(stored["arguments"], module.history.arguments), compare_identities(kept, own, settings)
    given, inside = (not_about_serving(each, module.algorithm) for each in found)
    refuse_differences(given or inside)
    facts = TrainingFacts.from_plain(stored["serving"])
    if unknown_categories is not None and facts.columns is not None:
        facts = facts._replace(columns=facts.columns._replace(unknown_categories=unknown_categories))
    module.history.warm_start = WarmStart.found_in(stored)
    module.build_shared(facts)
    module.federation.schedule_rounds = schedule_rounds(stored)
    server: Any = module.federation.server
    server.frozen_part.load(stored.get("frozen"), checkpoint["state_dict"])
    state = {name: leaf for name, leaf in checkpoint["state_dict"].items() if not name.startswith("store.")}
    module.load_state_dict(state)
    return facts
