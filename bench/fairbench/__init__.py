"""fairbench: is this LLM serving scheduler fair, and what does fairness cost?

The Python interface has the functions of the command: ``run`` and ``sweep`` take the command's
flags as keywords, ``load`` and ``load_sweep`` read saved runs and sweeps, and ``compare`` pairs
experiments by seed. ``diagnose``, ``score`` and ``plan`` read a log from a data frame, a table or
a file. ``import fairbench`` is fast, because modules are imported at first use.

    result = fairbench.run(scheduler="d2lpm", dp=4)
    result.summary["jain_index"]
    result.to_pandas()
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fairbench.version import __version__ as __version__

if TYPE_CHECKING:
    from fairbench.api.comparison import Comparison, compare
    from fairbench.api.logs import Answer, diagnose, plan, score
    from fairbench.api.result import Result, load, run
    from fairbench.api.sweeps import SweepResult, load_sweep, sweep
    from fairbench.errors import DataError, FairbenchError, Interrupted, RunFailed, UsageError

__all__ = [
    "Answer",
    "Comparison",
    "DataError",
    "FairbenchError",
    "Interrupted",
    "Result",
    "RunFailed",
    "SweepResult",
    "UsageError",
    "compare",
    "diagnose",
    "load",
    "load_sweep",
    "plan",
    "run",
    "score",
    "sweep",
]

_HOMES = {
    "Answer": "api.logs",
    "Comparison": "api.comparison",
    "DataError": "errors",
    "FairbenchError": "errors",
    "Interrupted": "errors",
    "Result": "api.result",
    "RunFailed": "errors",
    "SweepResult": "api.sweeps",
    "UsageError": "errors",
    "compare": "api.comparison",
    "diagnose": "api.logs",
    "load": "api.result",
    "load_sweep": "api.sweeps",
    "plan": "api.logs",
    "run": "api.result",
    "score": "api.logs",
    "sweep": "api.sweeps",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
