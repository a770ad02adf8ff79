"""Operator tables: times of iterations from the optional ``aiconfigurator-core``.

NVIDIA measured the operators on the named GPU; the package models how they add up to an iteration.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fairbench.hardware.gpus import GPU
from fairbench.profiling.fit import Column, Iterations

PACKAGE = "aiconfigurator_core"
_BF16 = {"activation_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
_WEIGHTS = {
    "fp16": {"weight_dtype": "bfloat16", "moe_dtype": "bfloat16"},
    "fp8": {"weight_dtype": "fp8_block", "moe_dtype": "fp8_block"},
    "int4": {"weight_dtype": "int4", "moe_dtype": "int4"},
}


class NoTable(Exception):
    """The tables lack the GPU, or an operator of the model on this GPU."""


def operators_ms(
    config: Mapping[str, Any], gpu: GPU, tp: int, engine: str, dtype: str | None, it: Iterations
) -> tuple[Column, str]:
    """Return the milliseconds of each iteration, and the measured engine release.

    Args:
        config: The model's ``config.json``.
        gpu: The GPU.
        tp: GPUs that share the model.
        engine: ``sglang`` or ``vllm``.
        dtype: Number format of the weights; None for that of the config.
        it: The iterations.

    Raises NoTable.
    """
    if find_spec(PACKAGE) is None:
        raise NoTable("aiconfigurator-core is not installed: pip install '.[profile]'")
    if gpu.system is None:
        raise NoTable(f"the operator tables have no {gpu.name}")
    from aiconfigurator_core.sdk.perf_database import resolve_query_version
    from aiconfigurator_core.sdk.rust_engine_step import RustForwardPassPerfModel

    with _quiet(), TemporaryDirectory() as folder:
        own = {key: value for key, value in config.items() if key != "quantization_config"}
        kept = dict(config) if dtype is None else own
        (Path(folder) / "config.json").write_text(json.dumps(kept), encoding="utf-8")
        chosen = {} if dtype is None else _WEIGHTS[dtype]
        given: dict[str, Any] = {"schema_version": 1, "pp_size": 1, "attention_dp_size": 1}
        given |= {"moe_tp_size": tp, "moe_ep_size": 1, "tp_size": tp}
        given |= {"backend": engine, "backend_version": "current"}
        given |= {"model_path": folder, "model_name": folder}
        given |= {"system": gpu.system, "system_name": gpu.system} | chosen
        missing = ""
        for kv in (_BF16, {}):  # the tables of some GPUs have latent attention in 8 bits only
            try:
                model = RustForwardPassPerfModel.from_native(given | kv)
                times = [_estimate(model, row) for row in zip(*it, strict=True)]
            except Exception as error:  # the package raises the errors of its parts
                missing = missing or " ".join(str(error).split()).partition(" at /")[0]
                continue
            return np.array(times), str(resolve_query_version(gpu.system, engine, "current"))
        raise NoTable(f"the operator tables lack a part: {missing[:160]}")


def _estimate(model: Any, row: tuple[float, ...]) -> float:
    prefills, new, prefix, decodes, context = map(int, row)
    scheduled = {
        "num_prefill_requests": prefills,
        "sum_prefill_tokens": prefills * new,
        "sum_prefill_kv_tokens": prefills * prefix,
        "var_prefill_length": 0.0,
        "num_decode_requests": decodes,
        "sum_decode_kv_tokens": decodes * context,
        "var_decode_kv_tokens": 0.0,
    }
    return float(model.estimate_forward_pass_time_ms({"scheduled_requests": scheduled}))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the package's log of its fallbacks."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
