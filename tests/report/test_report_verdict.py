"""Test the verdict on a run: one line that is never kinder than the run's numbers."""

from types import MappingProxyType

import pytest

from fairbench.metrics.reasons import NOT_CONTENDED
from fairbench.report.verdict import repeats_verdict, verdict
from fairbench.results.references import SHARES, Reference


def client(name, share, *, heavy=False, programs=5):
    return {
        "client": name,
        "misbehaving": heavy,
        "programs": programs,
        "entitlement_ratio": share,
    }


def run(shares, worst=None, beyond=MappingProxyType({}), **changes):
    """Return a summary with these shares, and the worst window ``(client, share, length)``."""
    rows = [client(name, share, heavy=name == "flood") for name, share in shares.items()]
    known = [share for share in shares.values() if share is not None]
    windows = []
    if worst:
        name, share, length_s = worst
        times = {"start_s": 444.0, "end_s": 444.0 + length_s}
        windows = [{"client": name, "share": share, **times, "heavy_client": "flood"} | beyond]
    return {
        "num_programs": 10,
        "clients": rows,
        "min_entitlement_ratio": min(known, default=None),
        "worst_windows": windows,
        "window_end_s": 900.0,
        "notes": {},
    } | changes


BOTH = "Under lpm, the lowest share would be 41.0% over the run and 12.0% in the worst 60 s."
TWO = {"flood": 1.003, "b": 0.977}


@pytest.mark.parametrize(
    ("summary", "said"),
    [
        (
            run(TWO, ("b", 0.608, 60)),
            "Fair over the run (97.7% of the fair share at least), not in every minute (60.8% for "
            "b from 444 to 504 s).",
        ),
        (
            run(TWO, ("b", 0.608, 60), {"heavy_share": 1.046}),
            "Fair over the run (97.7% of the fair share at least), not in every minute (60.8% for "
            "b from 444 to 504 s, while flood received 104.6%).",
        ),
        (
            run(TWO, ("flood", 0.5, 60)),
            "Fair over the run (97.7% of the fair share at least), not in every minute (50.0% for "
            "flood (heavy) from 444 to 504 s).",
        ),
        (
            run(TWO, ("b", 0.95, 60)),
            "Fair over the run (97.7% of the fair share at least) and in every minute (95.0% at "
            "least).",
        ),
        (
            run(TWO, ("b", 0.3, 10)),
            "Fair over the run (97.7% of the fair share at least), not in every 10 s (30.0% for b "
            "from 444 to 454 s).",
        ),
        (
            run(TWO),
            "Fair over the run (97.7% of the fair share at least); no client waited long enough to "
            "judge parts of it.",
        ),
        (
            run({"flood": 1.4, "b": 0.41, "c": 0.6}, ("c", 0.12, 60)),
            "Not fair: b received 41.0% of its fair share over the run. In the worst 60 s from 444 "
            "to 504 s, c received 12.0%.",
        ),
        (
            run({"flood": 1.4, "b": 0.41}, ("b", 0.12, 60), {"heavy_share": 1.9}),
            "Not fair: b received 41.0% of its fair share over the run. In the worst 60 s from 444 "
            "to 504 s, b received 12.0%, while flood received 190.0%.",
        ),
        (
            run({"b": 0.41, "c": 0.6}),
            "Not fair: b received 41.0% of its fair share over the run.",
        ),
        (
            run({"b": None, "c": None}, notes={"min_entitlement_ratio": NOT_CONTENDED}),
            "Over the run, every client received all the service that it asked for.",
        ),
        (
            run(
                {"b": None, "c": None},
                ("c", 0.2, 60),
                notes={"min_entitlement_ratio": NOT_CONTENDED},
            ),
            "Over the run, every client received all the service that it asked for. In the worst "
            "60 s from 444 to 504 s, c received 20.0%.",
        ),
        (
            run({"b": None, "c": None}, notes={"min_entitlement_ratio": "no time passed"}),
            "Shares of the whole run are not judged: no time passed.",
        ),
        (run({"b": 1.0}), "One client sent requests, so nothing was shared."),
        (
            run({"b": 0.5, "c": 1.0}, failed=9, queue_empty_share=1.0),
            "Requests failed, and no client delayed another.",
        ),
        (
            run({"b": 1.0, "c": 1.0}, ("c", 0.0, 60), refused=9, queue_empty_share=1.0),
            "Requests failed, and no client delayed another.",
        ),
        (run(TWO, num_programs=0), ""),
    ],
)
def test_the_verdict_follows_from_the_shares(summary, said):
    assert verdict(summary) == said


LITTLE = {"queue_empty_share": 0.442, "lone_tpot_ratio": 2.0}
NO_LOAD = (
    "Too little load to judge the whole run (no request waited for 44.2% of the window): b "
    "received 80.0% of its fair share."
)


@pytest.mark.parametrize(
    ("worst", "changes", "said"),
    [
        (None, {}, NO_LOAD),
        (("flood", 0.95, 60), {}, NO_LOAD),
        # a client waited in some minute, or a full batch made tokens slow
        (("b", 0.5, 60), {}, "Not fair: b received 80.0% of its fair share over the run. In the "),
        (None, {"lone_tpot_ratio": 4.1}, "Not fair: b received 80.0% of its fair share over the "),
        (None, {"queue_empty_share": 0.25}, "Not fair: b received 80.0% of its fair share over "),
        (None, {"queue_empty_share": None}, "Not fair: b received 80.0% of its fair share over "),
    ],
)
def test_a_low_share_is_not_judged_where_the_load_is_too_little(worst, changes, said):
    text = verdict(run({"flood": 1.4, "b": 0.8}, worst) | LITTLE | changes)
    assert text.startswith(said)


def test_a_window_of_other_clients_does_not_excuse_a_low_share():
    summary = run({"flood": 1.4, "b": 0.8}, ("flood", 0.95, 60), window_start_s=90.0)
    start = "Not fair: b received 80.0% of its fair share over the run."
    assert verdict(summary) == f"{start} In every minute, waiting clients received at least 95.0%."
    summary["clients"][1]["share_60s"] = None
    assert verdict(summary) == start
    # a window as long as the run is the run
    short = run({"flood": 1.4, "b": 0.8}, ("b", 0.95, 54), window_start_s=846.0)
    assert verdict(short) == start


def test_failed_requests_are_counted_beside_the_shares():
    assert verdict(run(TWO, failed=1100, num_requests=4000)).endswith(
        " 1,100 of 4,000 requests failed."
    )


@pytest.mark.parametrize("share", [0.0, 0.4, 0.75, 0.8999])
def test_a_verdict_is_not_simply_fair_where_a_client_waited(share):
    assert "not in every minute" in verdict(run(TWO, ("b", share, 60)))
    assert verdict(run({"a": 1.0, "b": share})).startswith("Not fair: b ")


@pytest.mark.parametrize(
    ("shares", "worst", "said"),
    [
        ((0.41, 0.12, None), ("b", 0.6, 60), BOTH),
        ((0.41, 0.12, 0.02), ("b", 0.6, 10), BOTH.replace("12.0%", "2.0%").replace("60 s", "10 s")),
        (
            (0.41, None, None),
            ("b", 0.6, 60),
            "Under lpm, the lowest share would be 41.0% over the run.",
        ),
        (
            (0.41, 0.12, None),
            None,
            "Under lpm, the lowest share would be 41.0% over the run and 12.0% in the worst 60 s.",
        ),
        (
            (None, 0.12, None),
            ("b", 0.6, 60),
            "Under lpm, the lowest share would be 12.0% in the worst 60 s.",
        ),
    ],
)
def test_the_reference_has_the_same_shares_under_another_scheduler(shares, worst, said):
    reference = Reference("lpm", dict(zip(SHARES, shares, strict=True)))
    assert verdict(run(TWO, worst), reference).endswith(f" {said}")


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        (970.0, 1000.0, "Throughput is 3.0% lower than under lpm."),
        (1349.0, 1000.0, "Throughput is 34.9% higher than under lpm."),
        (1004.0, 1000.0, "Throughput is that of lpm."),
        (1004.0, None, BOTH),
        (None, 1000.0, BOTH),
    ],
)
def test_the_verdict_names_the_cost_in_throughput(here, there, said):
    values = dict(zip(SHARES, (0.41, 0.12, None), strict=True)) | {"service_rate_tok_s": there}
    summary = run(TWO, ("b", 0.6, 60), service_rate_tok_s=here)
    assert verdict(summary, Reference("lpm", values)).endswith(f" {said}")


def test_a_reference_without_shares_has_no_number():
    nothing = Reference("lpm", {"min_entitlement_ratio": None, "min_share_60s": None})
    text = verdict(run(TWO, ("b", 0.6, 60)), nothing)
    assert text.endswith(" Under lpm, no client would be short of service.")


def test_repeats_are_judged_by_their_means():
    mean = {"min_entitlement_ratio": {"mean": 0.95}, "min_share_60s": {"mean": 0.4}}
    assert repeats_verdict({"seeds": [0, 1, 2], **mean}) == (
        "Mean of 3 seeds: Fair over the run (95.0% of the fair share at least), not in every "
        "minute (40.0%)."
    )


def test_repeats_of_short_runs_name_the_length_of_their_windows():
    mean = {"min_entitlement_ratio": {"mean": 0.95}, "min_share_60s": {"mean": 0.4}}
    ends = {"window_start_s": {"mean": 6.0}, "window_end_s": {"mean": 60.0}}
    assert repeats_verdict({"seeds": [0, 1], **mean, **ends}).endswith("not in every 54 s (40.0%).")
    short = mean | ends | {"min_entitlement_ratio": {"mean": 0.8}, "min_share_60s": {"mean": 0.95}}
    little = {key: {"mean": value} for key, value in LITTLE.items()}
    assert repeats_verdict({"seeds": [0, 1], **short, **little}) == (
        "Mean of 2 seeds: Too little load to judge the whole run (no request waited for 44.2% of "
        "the window): the client that is worst off received 80.0% of its fair share."
    )
