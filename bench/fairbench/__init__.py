"""fairbench measures whether an LLM serving scheduler is fair, and what its fairness costs.

Each main command has a Python function. The functions ``run`` and ``sweep`` take the flags of the
command as keyword arguments. ``load`` and ``load_sweep`` read saved results, and ``compare``
compares experiments that have the same seeds. ``diagnose``, ``score`` and ``plan`` read a request
log from a data frame, a table or a file. ``import fairbench`` imports a module only when one of its
functions is first used.

    result = fairbench.run(scheduler="d2lpm", dp=4)
    print(result.summary["jain_index"])
    table = result.to_pandas()
"""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names
from fairbench.version import __version__ as __version__

if TYPE_CHECKING:
    from fairbench.api.comparison import Comparison as Comparison
    from fairbench.api.comparison import compare as compare
    from fairbench.api.logs import Answer as Answer
    from fairbench.api.logs import diagnose as diagnose
    from fairbench.api.logs import plan as plan
    from fairbench.api.logs import score as score
    from fairbench.api.result import Result as Result
    from fairbench.api.result import load as load
    from fairbench.api.result import run as run
    from fairbench.api.sweeps import SweepResult as SweepResult
    from fairbench.api.sweeps import load_sweep as load_sweep
    from fairbench.api.sweeps import sweep as sweep
    from fairbench.errors import DataError as DataError
    from fairbench.errors import FairbenchError as FairbenchError
    from fairbench.errors import Interrupted as Interrupted
    from fairbench.errors import RunFailed as RunFailed
    from fairbench.errors import UsageError as UsageError

_NAMES = {
    "api.comparison": "Comparison compare",
    "api.logs": "Answer diagnose plan score",
    "api.result": "Result load run",
    "api.sweeps": "SweepResult load_sweep sweep",
    "errors": "DataError FairbenchError Interrupted RunFailed UsageError",
}
__all__ = sorted(" ".join(_NAMES.values()).split())
__getattr__ = lazy_names(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
