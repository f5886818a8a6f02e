"""A light start of a command: heavy imports of Lightning that a run rarely uses are deferred.

Lightning names `torchmetrics.Metric`, whose package loads every metric there is, with torchvision, SciPy and
transformers behind them, and `torch._dynamo.OptimizedModule`, whose package is PyTorch's compiler. Both take longer
than Lightning itself. The base of a metric loads matplotlib for two annotations. Behind a counter of operations, which
no summary of lit_fed needs, waits Triton. A program that imports lit_fed gets these packages unchanged; a command has
its own process.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

__all__ = ["light_start"]

METRICS, COMPILER, LIGHTNING = "torchmetrics", "torch._dynamo", "lightning"
COUNTER, PLOT = "torch.utils.flop_counter", "torchmetrics.utilities.plot"

BASES = {"Metric": "torchmetrics.metric", "MetricCollection": "torchmetrics.collections"}
"""Classes that Lightning uses of torchmetrics, and the modules that define them."""


@contextmanager
def light_start() -> Iterator[None]:
    """Load PyTorch and Lightning without garbage collection, since loaded modules stay."""
    gc.disable()
    try:
        torch = importlib.import_module("torch")
        if METRICS not in sys.modules:
            _metrics_later()
        if COMPILER not in sys.modules and LIGHTNING not in sys.modules:
            _compiler_later(torch)
        yield
        gc.freeze()
        atexit.register(gc.unfreeze)  # so that everything is freed at the end, and no library warns of leaks
    finally:
        gc.enable()


def _metrics_later() -> None:
    """Install torchmetrics with its base classes only; access to anything else loads the whole package."""
    spec = find_spec(METRICS)
    if spec is None or spec.loader is None:
        return
    package: Any = module_from_spec(spec)
    package.__version__, package._logger = version(METRICS), logging.getLogger(METRICS)
    plot: Any = _Later(PLOT)  # would load matplotlib for two annotations
    plot._AX_TYPE, plot._PLOT_OUT_TYPE, plot.plot_single_or_multi_val = object, object, _plotted
    sys.modules.update({METRICS: package, PLOT: plot})
    try:
        importlib.import_module("torchmetrics.utilities")  # first, as in the package: the others import one another
        for name, module in BASES.items():
            setattr(package, name, getattr(importlib.import_module(module), name))
    except Exception:  # a version with another structure loads as usual
        _forget(METRICS)
        return
    del sys.modules[PLOT]
    package.__getattr__ = partial(_of_whole_package, package)


def _of_whole_package(package: Any, name: str) -> Any:
    """A name of a package, which is loaded as a whole for it."""
    if name.startswith("__") and name != "__all__":  # Python's questions to any module
        raise AttributeError(f"module {package.__name__!r} has no attribute {name!r}")
    asked = vars(package).pop("__getattr__")
    try:
        package.__spec__.loader.exec_module(package)
    except BaseException:
        package.__getattr__ = asked  # the next access raises the same error
        raise
    return getattr(package, name)


def _plotted(*arguments: Any, **options: Any) -> Any:
    """A figure of a metric, whose module is loaded for it."""
    return importlib.import_module(PLOT).plot_single_or_multi_val(*arguments, **options)


class _Compiled(type):
    """Stands for compiled networks, of which none exist before the compiler is loaded."""

    def __instancecheck__(cls, one: object) -> bool:
        loaded = sys.modules.get("torch._dynamo.eval_frame")
        return loaded is not None and isinstance(one, loaded.OptimizedModule)


class _OptimizedModule(metaclass=_Compiled):
    """The class that Lightning compares networks with."""


class _LaterAutograd:
    """`torch._dynamo.compiled_autograd` until it is loaded."""

    _disable = staticmethod(nullcontext)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch._dynamo.compiled_autograd"), name)


class _Later(ModuleType):
    """A module that is loaded when a name is asked of it that it does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _as_it_is(function: Any, *_: Any, **__: Any) -> Any:
    """Mark a function that Lightning keeps out of compiled modules; a run compiles none."""
    return function


def _counter(*arguments: Any, **options: Any) -> Any:
    """A counter of operations, whose module is loaded for it."""
    return importlib.import_module(COUNTER).FlopCounterMode(*arguments, **options)


def _compiler_later(torch: Any) -> None:
    """Load Lightning without compiler and counter, which are loaded at their first import."""
    compiler: Any = _Later(COMPILER)
    compiler.OptimizedModule, compiler.disable = _OptimizedModule, _as_it_is
    counter: Any = _Later(COUNTER)
    counter.FlopCounterMode = _counter
    absent = {COMPILER: compiler} | ({COUNTER: counter} if COUNTER not in sys.modules else {})
    sys.modules.update(absent)
    try:
        importlib.import_module("lightning.pytorch")
    except Exception:  # a version to which these do not fit loads as usual
        _forget(LIGHTNING)
    for name, later in absent.items():
        if sys.modules.get(name) is later:
            del sys.modules[name]
    if COMPILER not in sys.modules:
        torch._dynamo = _Later(COMPILER)
        torch._dynamo.compiled_autograd = _LaterAutograd()  # asked for at every gradient under `vmap`


def _forget(package: str) -> None:
    """Remove the loaded modules of a package."""
    for name in [one for one in sys.modules if f"{one}.".startswith(f"{package}.")]:
        del sys.modules[name]
