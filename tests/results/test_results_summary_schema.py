"""Test that a stored summary with a missing or odd value is shown, or refused in one line."""

import copy
from pathlib import Path

import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import DataError
from fairbench.execute.live_runs import NO_FLAGS
from fairbench.execute.run_or_recover import run_and_save
from fairbench.execute.tasks import run_context
from fairbench.report.run_table import summary_text
from fairbench.results.store import read_run
from fairbench.results.summary import check_summary

GONE = object()
ODD = (GONE, None, "a", [], {"a": 1})
ROWS = {  # keys that this short run lacks
    "worst_windows": {
        "start_s": 1.0,
        "end_s": 11.0,
        "share": 0.4,
        "client": "client-0",
        "heavy_client": None,
    },
    "evictions": {"client": "client-0", "by": "client-1", "tokens": 3.0},
    "tenants": {
        "tenant": "a",
        "clients": 2,
        "weight": 2.0,
        "service_rate_tok_s": 2.0,
        "tree_share": 1.0,
    },
}


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    config = resolve({"workload": "three-class", "num_programs": 2, "eviction": "lru"})
    runs = tmp_path_factory.mktemp("runs")
    with run_context() as context:
        run_and_save(config, NO_FLAGS, runs, context)
    (folder,) = runs.iterdir()
    stored = dict(read_run(folder).summary)
    assert stored["goodput_classes"]
    stored["clients"] = stored["clients"][:1]
    return stored | {key: [row] for key, row in ROWS.items()}


def places(value, above=()):
    """Yield the paths of all values. Later rows of a list are like the first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:1])
    for key, below in inner:
        yield (*above, key)
        if isinstance(below, dict | list):
            yield from places(below, (*above, key))


def replaced(summary, place, odd):
    *above, key = place
    holder = changed = copy.copy(summary)
    for step in above:
        holder[step] = copy.copy(holder[step])
        holder = holder[step]
    if odd is GONE:
        del holder[key]
    else:
        holder[key] = odd
    return changed


def complaint_about(summary):
    try:
        check_summary(summary, Path("summary.json"))
    except DataError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_every_value_may_be_missing_or_odd(summary):
    refused = shown = 0
    for place in places(summary):
        for odd in ODD:
            changed = replaced(summary, place, odd)
            complaint = complaint_about(changed)
            assert "\n" not in complaint
            assert complaint or summary_text(changed, path=Path("run")), place
            refused += bool(complaint)
            shown += not complaint
    assert refused > shown > 0


@pytest.mark.parametrize("key", ["end_s", "share", "client", "heavy_client"])
def test_a_worst_window_is_complete(summary, key):
    with pytest.raises(DataError, match=rf"worst_windows.*{key}"):
        check_summary(replaced(summary, ("worst_windows", 0, key), GONE), Path("summary.json"))
