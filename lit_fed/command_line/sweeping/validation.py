"""Whether the command line takes the arguments of a sweep, before anything is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jsonargparse import Namespace
from optuna.distributions import BaseDistribution, CategoricalDistribution

from lit_fed.callbacks.monitors import evaluation_keys, no_evaluation
from lit_fed.command_line.parser import FederatedParser
from lit_fed.command_line.sweeping.sweep_file import Sweep, choices_of
from lit_fed.data.module import FederatedDataModule
from lit_fed.errors import ConfigError
from lit_fed.metrics.selection import choose_metrics

__all__ = ["check_arguments"]

Parse = Callable[[list[str]], Namespace]
"""What the command line makes of arguments, without running anything."""


def check_arguments(sweep: Sweep, parse: Parse) -> None:
    """Parse the first point, then one with each other value; whether the first one measures the metric.

    Args:
        sweep: what is to be run.
        parse: the command line up to its parsed arguments.

    Raises:
        ConfigError: naming the file, the key and the value that the command line refuses, and why; or the metric, if
            no run has it.
    """
    values = {key: [value] for key, value in sweep.constants.items()}
    values |= {key: _probes(distribution) for key, distribution in sweep.parameters.items()}
    first = {key: some[0] for key, some in values.items()}
    if _refusal(sweep, parse, first) is not None:
        _blame(sweep, parse, first)
    for key, some in values.items():
        for value in some[1:]:
            _check(sweep, parse, {**first, key: value}, key)
    _check_metric(sweep, parse(sweep.arguments(first)).fit)


def _check_metric(sweep: Sweep, config: Namespace) -> None:
    """Refuse a metric of clients that the first point does not measure, with a look at its data.

    Metrics of the training depend on the algorithm, and the data of a federation are on its nodes.
    """
    split = sweep.metric.partition("/")[0]
    if split not in ("val", "test"):
        return
    parser = FederatedParser()
    parser.add_lightning_class_args(FederatedDataModule, "data")
    data: FederatedDataModule = parser.instantiate(Namespace(data=config.data)).data  # type: ignore[no-untyped-call]
    if data.dataset.is_remote:
        return
    data.prepare_data()
    data.setup()
    if split == "val" and data.evaluation_split != "val":
        raise ConfigError(
            f"{sweep.path}: metric {sweep.metric}: no client has validation samples; give --data.val_fraction 0.2, say"
        )
    known = evaluation_keys(data, choose_metrics(config.model.metrics, data.target), split)
    if sweep.metric not in known:
        raise ConfigError(
            f"{sweep.path}: metric {sweep.metric} is not measured; give one of {', '.join(sorted(known))}"
        )


def _probes(distribution: BaseDistribution) -> list[Any]:
    """Values to try: all choices, or both ends."""
    if isinstance(distribution, CategoricalDistribution):
        return choices_of(distribution)
    return [distribution.low, distribution.high]  # type: ignore[attr-defined]


def _blame(sweep: Sweep, parse: Parse, point: Mapping[str, Any]) -> None:
    """Find out what of a refused point is refused: the command, or the first key without which it passes."""
    bare = sweep._replace(constants={})
    error = _refusal(bare, parse, {})
    if error is not None:
        raise ConfigError(f"{sweep.path}: command is refused: {error}")
    given: dict[str, Any] = {}
    for key in sorted(point):
        given[key] = point[key]
        _check(bare, parse, given, key)


def _check(sweep: Sweep, parse: Parse, point: Mapping[str, Any], key: str) -> None:
    error = _refusal(sweep, parse, point)
    if error is not None:
        raise ConfigError(f"{sweep.path}: parameters.{key}: {point[key]} is refused: {error}")


def _refusal(sweep: Sweep, parse: Parse, point: Mapping[str, Any]) -> str | None:
    """What the command line says against a point, as one line."""
    try:
        config = parse(sweep.arguments(point))
    except ConfigError as error:
        return " ".join(str(error).split())
    if config.fit.trainer.logger not in (True, False, None):
        return (
            "trainer.logger is set, but runs are logged to their folders alone; set it by --config in a folder logger"
        )
    if sweep.metric.startswith("val/") and (reason := no_evaluation(config.fit.trainer)):
        return f"there is no {sweep.metric}: {reason}"
    return None
