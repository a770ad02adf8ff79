"""Comparison of the simulator with real servers, and with engines' own code."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench_calibration.validate.engine_check import POLICIES as POLICIES
    from fairbench_calibration.validate.engine_check import check_engine as check_engine
    from fairbench_calibration.validate.engine_check import check_lines as check_lines
    from fairbench_calibration.validate.live_run import compare_live as compare_live
    from fairbench_calibration.validate.live_run import live_lines as live_lines
    from fairbench_calibration.validate.live_run import simulated_spec as simulated_spec

__getattr__ = lazy_names(
    __name__,
    {
        "engine_check": "POLICIES check_engine check_lines",
        "live_run": "compare_live live_lines simulated_spec",
    },
)
