"""Test the captions that state where a figure's numbers come from."""

from fairbench_studies.kit.provenance import of_first_runs, provenance
from tests.figure_helpers import PROFILE, cell


def test_one_seed_has_no_interval():
    assert provenance([cell("lpm"), cell("vtc")]) == f"simulated on {PROFILE}; seed 0"


def test_several_seeds_have_an_interval():
    interval = "mean and 95% interval (Student's t)"
    some = [cell("lpm", seeds=(0, 1)), cell("vtc", seeds=(0, 1, 2))]
    assert provenance(some) == f"simulated on {PROFILE}; seeds 0 to 2, {interval}"
    assert provenance([cell("lpm", seeds=(4, 2, 9))]).endswith(f"seeds 2, 4, 9, {interval}")


def test_only_the_first_run_is_shown_over_time():
    assert of_first_runs([cell("lpm", seeds=(3, 1, 2))]) == f"simulated on {PROFILE}; seed 3"


def test_measured_runs_are_not_called_simulated():
    one, other = cell("lpm"), cell("vtc")
    other.runs[0].summary.update(simulated=False, served="two servers")
    assert provenance([one, other]) == f"measured on two servers; simulated on {PROFILE}; seed 0"
