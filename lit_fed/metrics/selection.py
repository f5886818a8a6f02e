"""User-defined metrics: parse names and arguments, fill in the labels' properties, refuse misfits before training."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lit_fed.core.likelihood import Likelihood
from lit_fed.core.targets import Target
from lit_fed.errors import ConfigError
from lit_fed.metrics.chosen import ChosenMetrics, ClientMetric, quiet
from lit_fed.metrics.scores import STATISTICS, USUAL
from lit_fed.system.names import check_library_options, did_you_mean, import_path, lies_below, names_in
from lit_fed.system.packages import imported_later

if TYPE_CHECKING:
    import torchmetrics
    import torchmetrics.retrieval
    import torchmetrics.text
else:
    torchmetrics = imported_later("torchmetrics")

__all__ = ["MetricsGiven", "WantedMetric", "choose_metrics", "wanted_metrics", "with_classes"]

MetricsGiven = str | list[Any] | dict[str, Any] | None
"""Class names, alone, listed or separated by commas; classes with arguments; user-defined names for both."""

OPTION = "--model.metrics"

TASKS = {
    "binary": ("Binary", "Multiclass"),
    "multiclass": ("Multiclass",),
    "multilabel": ("Multilabel",),
    "segmentation": ("Multiclass",),
}
"""Prefixes of metric classes for each kind of class labels."""

EXAMPLES = {True: "R2Score or MeanAbsoluteError", False: "AUROC or F1Score"}
"""Examples of metrics of numbers (True) and of classes."""

COLUMNS = {"client", "client_id", "population", "num_train", "num_test", "group", "attacker", "kept"}
"""Columns of clients.csv beside results and mixture weights."""

LIBRARY = ("torchmetrics.classification", "torchmetrics.regression", "torchmetrics.retrieval")
"""Packages whose classes may be named by text."""

ARGUMENTS = names_in(
    """
    adaptive_k adjusted aggregation alternative average beta empty_target_action fpr_range ignore_index
    include_background keep_sequence_dim log_prob max_fpr max_k min_precision min_recall
    min_sensitivity min_specificity multiclass_mode multidim_average multioutput n_bins norm normalization normalize
    num_classes num_groups num_labels num_outputs p power reduction squared t_test task threshold thresholds top_k
    validate_args variant weights zero_division
    """
)
"""Allowed arguments of metrics; none takes a file, an address or a function."""


BACKGROUND = "include_background"
"""Argument of macro averages, as of metrics of `torchmetrics.segmentation`."""


class WantedMetric(NamedTuple):
    """A requested metric."""

    name: str  # key in the results
    given: type[torchmetrics.Metric] | torchmetrics.Metric
    arguments: dict[str, Any]

    @property
    def shown(self) -> str:
        """Name of the class for messages."""
        return self.given.__name__ if isinstance(self.given, type) else type(self.given).__name__


def with_classes(given: MetricsGiven) -> MetricsGiven:
    """Import user-defined classes: replace each path outside torchmetrics by its class.

    Args:
        given: see `wanted_metrics`; paths must come from the local user.

    Raises:
        ConfigError: if there is no such class.
    """
    if isinstance(given, str):
        parts = [one.strip() for one in given.split(",")]
        if not any(map(_is_own, parts)):
            return given
        return [_own_class(one) if _is_own(one) else one for one in parts]
    if isinstance(given, list | tuple):
        return [with_classes(one) for one in given]
    if isinstance(given, dict) and "class_path" in given:
        path = given["class_path"]
        return given | {"class_path": _own_class(path)} if isinstance(path, str) and _is_own(path) else given
    if isinstance(given, dict):
        return {
            _own_class(name) if isinstance(name, str) and _is_own(name) else name: (
                one if one is None or (isinstance(one, dict) and "class_path" not in one) else with_classes(one)
            )
            for name, one in given.items()
        }
    return given


def _is_own(path: str) -> bool:
    return "." in path and not lies_below(path, "torchmetrics")


def _own_class(path: str) -> Any:
    try:
        return import_path(path)
    except (AttributeError, ImportError, ValueError) as error:
        raise _no_such_metric(path, error) from error


def wanted_metrics(given: MetricsGiven) -> list[WantedMetric]:
    """Parse the requested metrics, independently of the labels.

    Args:
        given: `AUROC`; several in a list, or separated by commas; `{F1Score: {average: macro}}` for a class with
            arguments; `{macro: {class_path: F1Score, init_args: {average: macro}}}` for a user-defined name. In Python
            also metrics, classes and collections.

    Raises:
        ConfigError: if there is no such class, or two metrics have the same name.

    Example:
        >>> [one.name for one in wanted_metrics("AUROC, F1Score")]
        ['auroc', 'f1_score']
    """
    wanted = [_wanted(name, one) for name, one in _items(given)]
    known = COLUMNS | {f"{name}{suffix}" for name in USUAL for suffix, one in STATISTICS.items() if one.of is not None}
    for one in wanted:
        how = f"give it another name, as in {{my_name: {{class_path: {one.shown}, init_args: {{}}}}}}"
        if not re.fullmatch(r"[A-Za-z][\w-]*", one.name) or re.fullmatch(r"pi?_\d+", one.name):
            raise ConfigError(f"{OPTION}: {one.name!r} cannot be the name of a metric; give letters, digits and _")
        keys = {f"{one.name}{suffix}" for suffix in STATISTICS}
        if one.name in ("accuracy", "mse"):
            raise ConfigError(f"{OPTION} has {one.shown}, but {one.name} is always measured; leave it out, or {how}")
        if keys & known:
            raise ConfigError(f"{OPTION} has {one.shown}, but {sorted(keys & known)[0]} exists already; {how}")
        known |= keys
    return wanted


def _items(given: Any) -> Iterator[tuple[str | None, Any]]:
    """Yield (name or None, metric) of each request."""
    if given is None:
        return
    if isinstance(given, str):
        yield from ((None, one.strip()) for one in given.split(","))
    elif isinstance(given, torchmetrics.MetricCollection):
        yield from given.items(keep_base=False, copy_state=False)
    elif isinstance(given, dict) and "class_path" not in given:
        yield from given.items()
    elif isinstance(given, list | tuple):
        for one in given:
            yield from _items(one)
    else:
        yield None, given


def _wanted(name: str | None, given: Any) -> WantedMetric:
    arguments: dict[str, Any] = {}
    if isinstance(given, torchmetrics.Metric):
        return WantedMetric(name or _snake_case(type(given).__name__), given, arguments)
    if isinstance(given, dict) and "class_path" in given:
        more = given.keys() - {"class_path", "init_args"}
        if more:
            raise ConfigError(f"{OPTION}: {sorted(more)[0]} beside class_path; put arguments into init_args")
        arguments, given = given.get("init_args") or {}, given["class_path"]
    elif name is not None and (given is None or isinstance(given, dict)):  # F1Score: {average: macro}
        arguments, given, name = given or {}, name, None
    if not isinstance(arguments, dict):
        raise ConfigError(
            f"{OPTION}: the arguments of {given} are {arguments!r}; give them by name, {{average: macro}}"
        )
    cls = _found(given) if isinstance(given, str) else given
    if not (isinstance(cls, type) and issubclass(cls, torchmetrics.Metric)):
        raise ConfigError(
            f"{OPTION} has {given!r}, which is not a torchmetrics.Metric; give a class such as AUROC or R2Score"
        )
    return WantedMetric(name or _snake_case(cls.__name__), cls, dict(arguments))


def _found(name: str) -> Any:
    """Find a class of torchmetrics by name or path; a `ConfigError` names similar classes."""
    try:
        if "." not in name:
            return next(getattr(place, name) for place in _places() if name in _names_of_metrics(place))
        module = name.rpartition(".")[0]
        if module != "torchmetrics" and not any(lies_below(module, one) for one in LIBRARY):
            raise ValueError(name)
        return import_path(name)
    except (AttributeError, ImportError, StopIteration, ValueError) as error:
        raise _no_such_metric(name, error) from error


def _no_such_metric(path: str, error: Exception) -> ConfigError:
    known = [one for place in _places() for one in _names_of_metrics(place)]
    begin = sorted({one for one in known if path and one.lower().startswith(path.lower())}, key=len)
    otherwise = "give a class of torchmetrics, or the path of a user-defined one"
    fix = did_you_mean(path, known, otherwise, cutoff=0.7, first=begin[:1])
    why = f" ({error})" if isinstance(error, ImportError) else ""
    return ConfigError(f"{OPTION} {path or repr(path)}: there is no such metric{why}; {fix}")


def _places() -> tuple[ModuleType, ...]:
    return torchmetrics, torchmetrics.classification, torchmetrics.regression, torchmetrics.retrieval


def _names_of_metrics(place: ModuleType) -> list[str]:
    found = ((name, getattr(place, name)) for name in place.__all__)
    return [name for name, one in found if isinstance(one, type) and issubclass(one, torchmetrics.Metric)]


def _snake_case(name: str) -> str:
    """Key of a class name: MatthewsCorrCoef -> matthews_corr_coef, AUROC -> auroc."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name.lstrip("_")).lower()


def choose_metrics(given: MetricsGiven, target: Target) -> ChosenMetrics:
    """Build the requested metrics for these labels and try each on synthetic predictions.

    Args:
        given: see `wanted_metrics`; None: those of the target.
        target: the prediction target.

    Raises:
        ConfigError: naming the metric, the labels and an alternative.
    """
    given = with_classes(target.metrics) if given is None else given
    return ChosenMetrics([_chosen(one, target) for one in wanted_metrics(given)], target)


def _chosen(wanted: WantedMetric, target: Target) -> ClientMetric:
    classes = f"{target.name}, {target.num_classes} classes"
    labels = f"the labels are {'numbers' if target.continuous else classes}"
    _refuse_other_labels(wanted, target, labels)
    if lies_below(wanted.given.__module__, "torchmetrics"):
        check_library_options(wanted.arguments, ARGUMENTS, f"{OPTION} {wanted.shown}", "torchmetrics")
    try:
        with quiet():  # torchmetrics warns of memory for all predictions; here they are one client's
            metric = _made(wanted, target)
    except Exception as error:
        raise ConfigError(f"{OPTION} {wanted.shown} refuses its arguments: {error}") from error
    allowed = TASKS.get(target.kind, ())
    name = type(metric).__name__
    if name.startswith(("Binary", "Multiclass", "Multilabel")) and not name.startswith(allowed):
        raise ConfigError(
            f"{OPTION} {wanted.shown} is {name}, but {labels}; leave out its task, or give a class named "
            f"{' or '.join(f'{one}…' for one in allowed)}"
        )
    background = _includes_background(wanted)
    if not background and not (isinstance(metric, _counts()) and getattr(metric, "average", "") == "macro"):
        raise ConfigError(
            f"{OPTION} {wanted.shown} has include_background, which is for macro averages of classes: give such as "
            "{JaccardIndex: {average: macro, include_background: false}}, or leave it out"
        )
    measured = ClientMetric(wanted.name, metric, target, background=background)
    if not isinstance(target, Likelihood):  # the shape of a user-defined label is unknown
        _try_out(measured, wanted, labels)
    return measured


def _refuse_other_labels(wanted: WantedMetric, target: Target, labels: str) -> None:
    """Refuse class metrics for numbers, number metrics for classes, and metrics of texts, images and so on."""
    cls = wanted.given if isinstance(wanted.given, type) else type(wanted.given)
    package, _, rest = cls.__module__.partition(".")
    kind = rest.partition(".")[0]
    wrong = {True: "classification", False: "regression"}[target.continuous]
    if package == "torchmetrics" and kind == wrong:
        found = "classes" if target.continuous else "numbers"
        raise ConfigError(
            f"{OPTION} {wanted.shown} measures {found}, but {labels}; choose for example {EXAMPLES[target.continuous]}"
        )
    if (package, kind) == ("torchmetrics", "retrieval"):
        if target.kind not in ("binary", "regression") and not isinstance(target, Likelihood):
            raise ConfigError(
                f"{OPTION} {wanted.shown} ranks by one score for each sample, but {labels}; give two classes, numbers, "
                "or --model.target Ranking"
            )
        return
    if issubclass(cls, torchmetrics.text.Perplexity) and target.kind == "multiclass":
        return
    if package == "torchmetrics" and kind not in ("classification", "regression"):
        raise ConfigError(
            f"{OPTION} {wanted.shown} is of torchmetrics.{kind} and measures neither classes nor numbers; choose for "
            f"example {EXAMPLES[target.continuous]}"
        )


def _made(wanted: WantedMetric, target: Target) -> torchmetrics.Metric:
    """Build the metric, with arguments known from the labels."""
    if isinstance(wanted.given, torchmetrics.Metric):
        metric = wanted.given.clone()
        metric.reset()
        return metric
    task = "multiclass" if target.positions else target.kind
    known = {"task": task, "num_classes": target.num_classes, "num_labels": target.num_classes}
    asked = inspect.signature(wanted.given).parameters
    filled = {name: value for name, value in known.items() if name in asked and not target.continuous}
    own = {name: value for name, value in wanted.arguments.items() if name != BACKGROUND or name in asked}
    return wanted.given(**filled | own)


def _includes_background(wanted: WantedMetric) -> bool:
    """Whether class 0 counts; classes that have the argument see to it themselves."""
    own = isinstance(wanted.given, type) and BACKGROUND in inspect.signature(wanted.given).parameters
    return own or bool(wanted.arguments.get(BACKGROUND, True))


def _counts() -> tuple[type[torchmetrics.Metric], ...]:
    """Base classes of metrics of each class whose macro averages may leave out the background."""
    kinds = torchmetrics.classification
    return kinds.MulticlassStatScores, kinds.MulticlassJaccardIndex


def _try_out(measured: ClientMetric, wanted: WantedMetric, labels: str) -> None:
    """Refuse a metric that fails or gives no single number for these labels."""
    metric = measured.metric
    try:
        with quiet():
            metric.update(*measured.facing(*_made_up(measured.target)))
            found = metric.compute()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{OPTION} {wanted.shown} cannot measure these: {labels}, and it says: {reason}") from error
    metric.reset()
    if measured.averages and isinstance(found, Tensor) and found.ndim == 1:
        return
    if not (isinstance(found, Tensor) and found.numel() == 1):
        what = f"{found.numel()} numbers" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ConfigError(
            f"{OPTION} {wanted.shown} gives {what} per client instead of one; set an average such as macro, or choose "
            "another metric"
        )


def _made_up(target: Target) -> tuple[Tensor, Tensor]:
    """Synthetic predictions and labels for `ClientMetric.update`."""
    size = (8, target.num_classes)
    if target.kind == "multilabel":
        labels = torch.arange(size[0] * size[1]).view(size) % 2
        return 0.25 + 0.5 * labels, labels
    if target.continuous:
        values = torch.linspace(0.1, 0.9, size[0])
        values = values if target.kind == "regression" else values[:, None].expand(size)
        return values + 0.05, values
    labels = torch.arange(2 * target.num_classes) % target.num_classes
    return (torch.eye(target.num_classes)[labels.roll(1)] + 1) / (target.num_classes + 1), labels
