"""The files of the user's that an experiment reads while it runs, by the names it has for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairbench.config import ExperimentSpec
from fairbench.schedulers.costs import cost_names
from fairbench.workloads.hub import HUB_PREFIX


def files_of(spec: ExperimentSpec) -> tuple[str, ...]:
    """Traces, costs, data set and tokenizer; the workload itself is part of the spec.

    Those of ``FAIRBENCH_SCHEDULERS`` and ``FAIRBENCH_PROGRAMS`` are any experiment's. What a name
    of a hub stands for is no file of the user's.
    """
    found = [*_called_file(spec.workload.model_dump()), *cost_names(spec.settings)]
    if spec.dataset_path and not spec.dataset_path.startswith(HUB_PREFIX):
        found.append(spec.dataset_path)
    if spec.tokenizer and Path(spec.tokenizer).exists():
        found.append(spec.tokenizer)
    return tuple(dict.fromkeys(found))


def _called_file(value: Any) -> Iterator[str]:
    """Every text called ``file``, such as a trace's among the parameters of arrivals."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            if key == "file" and isinstance(one, str):
                yield one
            yield from _called_file(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _called_file(one)
