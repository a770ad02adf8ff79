"""The fairbench scheduler for each scheduler name in VTC-artifact.

VTC-artifact names a folder after the scheduler and its settings. ``VTC_oracle`` uses the true
output lengths, ``VTC_pred_50`` predicts them with errors of up to 50%, and ``VTC_predict`` predicts
them by a moving average. ``WVTC`` is VTC with client weights, and ``LShare/rpmN`` limits each
client to N requests per minute. A scheduler whose name ends in ``_profile`` charges a profiled cost
instead of weighted tokens. Source: [VTC-artifact], fair_bench/REVISION.md and slora/server/router/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fairbench.errors import DataError, unknown_name
from fairbench.schedulers.base import LocalScheduler
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.params import make_params
from fairbench.schedulers.registry import build_local, local_class
from fairbench_studies.validation.slora.forms import in_form
from fairbench_studies.validation.slora.recorded import RECORDED, Recorded, vtc_form

# ``_SCHEDULERS`` maps each scheduler name of VTC-artifact to a local scheduler and its settings.
# Schedulers derived from VTC charge the whole input, as the code of VTC-artifact does.
_SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "FCFS": ("fcfs", {}),
    "LCF": ("lcf", {}),
    "VTC": ("vtc", {}),
    "WVTC": ("vtc", {}),
    "VTC_oracle": ("vtc-predict", {}),
    "VTC_pred_50": ("vtc-predict", {"error": 0.5}),
    "VTC_predict": ("vtc-predict", {"predictor": "average"}),
    "VTC_profile": ("vtc-predict", {"predictor": "none", "cost": "profiled"}),
    "VTC_oracle_profile": ("vtc-predict", {"cost": "profiled"}),
    "VTC_pred_50_profile": ("vtc-predict", {"error": 0.5, "cost": "profiled"}),
    "VTC_predict_profile": ("vtc-predict", {"predictor": "average", "cost": "profiled"}),
}
_RATE_LIMIT = re.compile(r"LShare/rpm([1-9]\d*)")
KNOWN_SCHEDULERS = (*_SCHEDULERS, "LShare/rpmN")
# The measured server was started with ``_WVTC_WEIGHTS`` (REVISION.md: --fair-weights 1 2 3 4).
_WVTC_WEIGHTS = {"0": 1.0, "1": 2.0, "2": 3.0, "3": 4.0}


def build_scheduler(
    measured_name: str, date: Recorded = RECORDED[-1], weights: Mapping[str, float] | None = None
) -> LocalScheduler:
    """Return a new scheduler that follows VTC-artifact's code at the date of a measured run.

    ``weights`` are the weights of the clients. None means the weights in the measured runs of
    ``measured_name``. Raises DataError if the scheduler is unknown, or does not support weights.
    """
    params: dict[str, Any]
    if limit := _RATE_LIMIT.fullmatch(measured_name):
        name, params = "rpm", {"limit": int(limit[1])}
    elif measured_name in _SCHEDULERS:
        name, params = _SCHEDULERS[measured_name]
    else:
        error = unknown_name("scheduler of a measured run", measured_name, KNOWN_SCHEDULERS)
        raise DataError(str(error))
    if name in ("fcfs", "rpm"):
        if weights:
            raise DataError(
                f"field 'weights': scheduler {measured_name} does not support weights; remove "
                "the field"
            )
    else:
        implied = _WVTC_WEIGHTS if measured_name == "WVTC" else {}
        chosen = dict(implied if weights is None else weights)
        params = {**params, "charge": "input", "weights": chosen}
    settings = {f"{name}.{param}": value for param, value in params.items()}
    scheduler = local_class(name)
    if not issubclass(scheduler, VTC):
        return build_local(name, settings)
    return in_form(vtc_form(date), scheduler)(make_params(name, scheduler.Params, settings))
