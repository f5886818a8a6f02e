"""Compatibility: the combinations of features, data and algorithms that are refused before training.

A *fact* has a name and a text that messages may quote, e.g. `ef21`, or `privacy` → `ClientPrivacy`. A row of the table
names incompatible facts (`!ef21`: the fact is false) and the message. The first row whose facts are all true is raised.
Rows about algorithm, solver and data are here; a `Feature` brings its own rows and facts, and an algorithm declares its
limits by `message`, `participation` and `incompatible`. A reason may have its own fix, `REASON; FIX`, which replaces
that of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from lit_fed.core.local_solver import BY_CLIENT
from lit_fed.errors import ConfigError
from lit_fed.system.names import lies_below
from lit_fed.wrappers.base import innermost
from lit_fed.wrappers.feature import Feature, features

__all__ = ["REASONS", "facts_of_data", "reasons", "refuse_incompatible", "table"]

REASONS = {
    "size_sampling": "--data.client_sampling size",
    "loss": "--model.loss",
    **{name: f"--model.solver.{name}" for name in BY_CLIENT},
    "deployment": "clients on machines of their own",
}
"""Keys of `Algorithm.incompatible` that are about no feature, and what each is about."""

BY_SIZE = "--data.client_sampling is size, by which a client may be drawn twice in a round, and {name} %s; give uniform"
DIVIDED = "{name} needs %s, and {dataset} has %s; give another --data.dataset or --model.algorithm"
SAMPLES = "clients with samples of their own"
PARTIES = "parties that hold different features of the same samples, such as FeatureBlocks"
SIMULATE = (
    "{name} %s; choose another --model.algorithm for clients on machines of their own, or simulate it with data on "
    "this one"
)
SEARCHES = "--model.solver.lr is searched on the clients' samples, and %s; give a number"
POSITIONS = "--model.weighting is positions, and %s; give samples or uniform"

REFUSED: dict[str, str] = {
    "stale_fill own_filling": (
        "--model.aggregation is stale_fill, and {name} says itself what absent clients count for; leave it out"
    ),
    "by_positions size": POSITIONS % "--data.client_sampling size draws clients by their samples",
    "by_positions deployed": POSITIONS % "nodes tell their numbers of samples alone",
    "searched deployed": SEARCHES % "those of a federation are on their nodes",
    "loss refuses_loss": (
        "--model.loss is {loss}, and {name} {refuses_loss}; leave it out, or choose another --model.algorithm"
    ),
    **{
        f"{one} refuses_{one}": f"--model.solver.{one} is given, and {{name}} {{refuses_{one}}}; leave it out"
        for one in BY_CLIENT
    },
    "counted_classes deployed": (
        "--model.loss.weight is inverse_frequency, and nodes do not tell how many labels of each class they have; give "
        "a list of weights"
    ),
    # ------------------------------------------------------------------ how clients are sampled
    "poisson probability needs_all": (
        "--data.client_sampling is poisson, by which a client takes part in a round with probability {probability}, "
        "and {name} needs every client in every round; leave out --data.client_fraction and --data.clients_per_round"
    ),
    "size needs_all": BY_SIZE % "needs every client once in every round",
    "size refuses_size_sampling": BY_SIZE % "{refuses_size_sampling}",
    "size stale_fill": (
        "--data.client_sampling is size, whose draws stand for all clients, so that --model.aggregation stale_fill has "
        "no absent ones to fill in; give renormalised, or sample uniformly"
    ),
    "size by_samples counts_draws": (
        "--data.client_sampling is size, by which large clients are drawn more often, and --model.weighting is "
        "samples, by which they would count for more once again; give uniform, or sample uniformly"
    ),
    # ------------------------------------------------------------------ what clients hold, and where they run
    "has_features needs_samples": DIVIDED % (SAMPLES, PARTIES),
    "has_samples needs_features": DIVIDED % (PARTIES, SAMPLES),
    "deployed serverless": SIMULATE % "has no server: one that played the network would see every client's model",
    "deployed refuses_deployment": SIMULATE % "{refuses_deployment}",
    "deployed poison": "--data.poison alters samples, and those of a federation are on their nodes; leave it out",
    "deployed drops_nodes !forgives": (
        "--data.dataset.missing is drop, and nothing says what a round without a client is; add "
        "--model.faults.on_bad_client drop, or choose wait or stop"
    ),
}
"""Facts that do not go together, all of them, and the message.

Why size sampling is refused: with p_i = n_i/n the probability of client i, the mean over C draws of their messages is
on average the mean weighted by samples, E[Σ_draws m_i / C] = Σ_i p_i m_i. So every draw weighs the same and no
client is absent. This does not hold if each client has to count once.
"""


@cache
def table() -> dict[str, str]:
    """All rows, those of the features behind; the order decides which of several messages is raised."""
    found = dict(REFUSED)
    for one in features():
        found |= one.rows() | one.refused
    return found


@cache
def reasons() -> dict[str, str]:
    """All keys of `Algorithm.incompatible`, and what each is about."""
    found = dict(REASONS)
    for one in features():
        found |= one.reasons
    return found


def refuse_incompatible(algorithm: Any, given: Sequence[Feature], facts: dict[str, Any]) -> None:
    """Refuse an algorithm with features, settings and data that do not go together.

    Args:
        algorithm: it may be inside wrappers.
        given: the features.
        facts: of settings and data, by name; False or None for what is not true.

    Raises:
        ConfigError: with the message of the first row of `table` whose facts are all true.
    """
    facts = _of_algorithm(algorithm) | facts
    for one in given:
        facts |= one.facts(algorithm)
    held = {name: str(value) for name, value in facts.items() if value not in (None, False)}
    for names, message in table().items():
        if all((name.removeprefix("!") in held) != name.startswith("!") for name in names.split()):
            raise ConfigError(_filled_in(names, message, held))


def _of_algorithm(algorithm: Any) -> dict[str, Any]:
    message, takes = algorithm.message, algorithm.participation
    name, refused = type(innermost(algorithm)).__name__, algorithm.incompatible
    for key in refused:
        if key not in reasons() and not lies_below(
            type(innermost(algorithm)).__module__, "lit_fed"
        ):  # of an absent room
            raise ConfigError(f"{name}.incompatible has {key!r}; give some of {', '.join(reasons())}")
    return {f"refuses_{key}": reason for key, reason in refused.items()} | {
        "name": name,
        message.kind: True,
        "stacked": message.reduce == "stack",
        "incomplete": not message.complete,
        "accumulates": message.accumulates,
        "second_part": message.beside_models,
        "needs_all": takes.needs_all_clients,
        "counts_draws": takes.counts_draws,
        "own_filling": not takes.fills_in_absent,
        f"needs_{takes.divided_by}": True,
        "serverless": not algorithm.has_server,
    }


def facts_of_data(
    sampling: str | None = None,
    probability: float = 1.0,
    dataset: tuple[str, str] | None = None,
    deployed: bool = False,
    missing: str | None = None,
    poison: bool = False,
) -> dict[str, Any]:
    """Facts of the data, as far as they are known.

    Args:
        sampling: `--data.client_sampling`.
        probability: probability that a client takes part in a round.
        dataset: the data set's name, and the unit that it divides among clients.
        deployed: whether clients are on separate machines.
        missing: `--data.dataset.missing` of a federation.
        poison: whether some clients' samples are altered.
    """
    name, divided_by = dataset or (None, None)
    return {
        "sampling": sampling,
        "size": sampling == "size",
        "poisson": sampling == "poisson",
        "uniformly": sampling == "uniform",
        "probability": f"{probability:.4g}" if probability < 1 else None,
        "dataset": name,
        f"has_{divided_by}": dataset is not None,
        "deployed": deployed,
        "drops_nodes": missing == "drop",
        "poison": poison,
    }


def _filled_in(names: str, message: str, facts: dict[str, str]) -> str:
    """The message of a row with the facts; if the algorithm's reason has a fix, that replaces the row's."""
    refused = next((name for name in names.split() if name.startswith("refuses_")), "")
    reason, _, fix = facts.get(refused, "").partition("; ")
    if not fix:
        return message.format_map(facts)
    return f"{message.rpartition('; ')[0].format_map(facts | {refused: reason})}; {fix}"
