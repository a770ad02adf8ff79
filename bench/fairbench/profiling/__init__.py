"""Timing profiles from a model's config and a GPU, from the output of runs, or from a server."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.profiling.calibrate import calibrated as calibrated
    from fairbench.profiling.calibrate import decoded as decoded
    from fairbench.profiling.derived_profile import derive as derive
    from fairbench.profiling.derived_profile import described as described
    from fairbench.profiling.fit import predicted_ms as predicted_ms
    from fairbench.profiling.probe import ProbedServer as ProbedServer
    from fairbench.profiling.probe import fit_probe as fit_probe
    from fairbench.profiling.probe import pool_tokens as pool_tokens
    from fairbench.profiling.probe import root_of as root_of
    from fairbench.profiling.probe import served_model as served_model
    from fairbench.profiling.probe import session_of as session_of

__getattr__ = lazy_names(
    __name__,
    {
        "calibrate": "calibrated decoded",
        "derived_profile": "derive described",
        "fit": "predicted_ms",
        "probe": "ProbedServer fit_probe pool_tokens root_of served_model session_of",
    },
)
