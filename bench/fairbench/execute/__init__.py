"""Execution of experiments, without printing and without ending the process."""

from typing import TYPE_CHECKING

from fairbench.named import lazy_names

if TYPE_CHECKING:
    from fairbench.execute.comparison import compare_experiments as compare_experiments
    from fairbench.execute.live_runs import NO_FLAGS as NO_FLAGS
    from fairbench.execute.live_runs import LiveFlags as LiveFlags
    from fairbench.execute.live_runs import check_live as check_live
    from fairbench.execute.live_runs import check_live_points as check_live_points
    from fairbench.execute.repeats import comparison_json as comparison_json
    from fairbench.execute.repeats import remarks_on as remarks_on
    from fairbench.execute.repeats import repeat as repeat
    from fairbench.execute.repeats import run_sweep as run_sweep
    from fairbench.execute.repeats import simulate_each as simulate_each
    from fairbench.execute.run_or_recover import recover_run as recover_run
    from fairbench.execute.run_or_recover import run_and_save as run_and_save
    from fairbench.execute.run_or_recover import run_unsaved as run_unsaved
    from fairbench.execute.simulations import OutdatedRun as OutdatedRun
    from fairbench.execute.simulations import estimate as estimate
    from fairbench.execute.simulations import expected_requests as expected_requests
    from fairbench.execute.simulations import outdated_runs as outdated_runs
    from fairbench.execute.tasks import Failure as Failure
    from fairbench.execute.tasks import interruptible as interruptible
    from fairbench.execute.tasks import run_context as run_context
    from fairbench.execute.workload_check import check_facts as check_facts

__getattr__ = lazy_names(
    __name__,
    {
        "comparison": "compare_experiments",
        "workload_check": "check_facts",
        "live_runs": "LiveFlags NO_FLAGS check_live check_live_points",
        "run_or_recover": "recover_run run_and_save run_unsaved",
        "repeats": "comparison_json remarks_on repeat run_sweep simulate_each",
        "simulations": "estimate expected_requests outdated_runs OutdatedRun",
        "tasks": "Failure interruptible run_context",
    },
)
