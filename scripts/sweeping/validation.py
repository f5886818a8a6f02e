"""Whether the command line takes the arguments of a sweep, before anything is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution

from lit_fed.cli import FederatedCLI, keep_notices_out
from lit_fed.core.errors import ConfigError
from sweeping.sweep_file import Sweep

__all__ = ["check_arguments"]


class ArgumentsCLI(FederatedCLI):
    """The command line up to its parsed arguments."""

    def instantiate_classes(self) -> None:
        """Make no objects: whether the arguments are taken is known without."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Run no command: whether the arguments are taken is known without."""


def check_arguments(sweep: Sweep) -> None:
    """Parse the first point, then one with each other value.

    Raises:
        ConfigError: naming the file, the key and the value that the command line refuses, and why.
    """
    keep_notices_out()
    values = {key: [value] for key, value in sweep.constants.items()}
    values |= {key: _probes(distribution) for key, distribution in sweep.parameters.items()}
    first = {key: some[0] for key, some in values.items()}
    if _refusal(sweep, first) is not None:
        _blame(sweep, first)
    for key, some in values.items():
        for value in some[1:]:
            _check(sweep, {**first, key: value}, key)


def _probes(distribution: BaseDistribution) -> list[Any]:
    """Values to try: all choices, or both ends."""
    if isinstance(distribution, CategoricalDistribution):
        return [json.loads(one) for one in distribution.choices]
    return [distribution.low, distribution.high]  # type: ignore[attr-defined]


def _blame(sweep: Sweep, point: Mapping[str, Any]) -> None:
    """Find out what of a refused point is refused: the command, or the first key without which it passes."""
    bare = sweep._replace(constants={})
    error = _refusal(bare, {})
    if error is not None:
        raise ConfigError(f"{sweep.path}: command is refused: {error}")
    given: dict[str, Any] = {}
    for key in sorted(point):
        given[key] = point[key]
        _check(bare, given, key)


def _check(sweep: Sweep, point: Mapping[str, Any], key: str) -> None:
    error = _refusal(sweep, point)
    if error is not None:
        raise ConfigError(f"{sweep.path}: parameters.{key}: {point[key]} is refused: {error}")


def _refusal(sweep: Sweep, point: Mapping[str, Any]) -> str | None:
    """What the command line says against a point, as one line."""
    try:
        config = ArgumentsCLI(sweep.arguments(point)).config
    except ConfigError as error:
        return " ".join(str(error).split())
    if config.fit.trainer.logger not in (True, False, None):
        return (
            "trainer.logger is set, but runs are logged to their folders alone; set it by --config in a folder logger"
        )
    return None
