"""Functions that make timing profiles from a model's config, a benchmark, or a server."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_calibration.profiling.calibrate import calibrated as calibrated
    from fairbench_calibration.profiling.calibrate import decoded as decoded
    from fairbench_calibration.profiling.derived_profile import derive as derive
    from fairbench_calibration.profiling.derived_profile import described as described
    from fairbench_calibration.profiling.figure import Points as Points
    from fairbench_calibration.profiling.figure import draw_profile as draw_profile
    from fairbench_calibration.profiling.fit import predicted_ms as predicted_ms
    from fairbench_calibration.profiling.probe import ProbedServer as ProbedServer
    from fairbench_calibration.profiling.probe import fit_probe as fit_probe
    from fairbench_calibration.profiling.probe import pool_tokens as pool_tokens
    from fairbench_calibration.profiling.probe import root_of as root_of
    from fairbench_calibration.profiling.probe import served_model as served_model
    from fairbench_calibration.profiling.probe import session_of as session_of

__getattr__ = lazy_names(
    __name__,
    {
        "calibrate": "calibrated decoded",
        "derived_profile": "derive described",
        "figure": "Points draw_profile",
        "fit": "predicted_ms",
        "probe": "ProbedServer fit_probe pool_tokens root_of served_model session_of",
    },
)
