"""Test the Grafana board: its queries parse, and real scrapes contain what they ask for."""

import json
import re
from pathlib import Path

import pytest

from fairbench_load.client_metrics import COUNTED, FIRST_TOKEN, QUEUE_TIME, Ledger
from tests.load.live_scrapes import STREAM, asked, exported, home, routed

BOARD = json.loads((Path(__file__).parents[1] / "examples" / "grafana.json").read_text())
PANELS = [one for one in BOARD["panels"] if one["type"] != "row"]
QUERIES = [(one["title"], to["expr"]) for one in PANELS for to in one["targets"]]
OF_PROMETHEUS = {"job"}  # labels that Prometheus itself adds


def filled_in(query):
    """Return a query as Grafana sends it."""
    return query.replace("$__rate_interval", "1m").replace("$job", "serve")


def names_in(query):
    """Return (metric, labels that are matched or kept) for every metric of a query."""
    kept = {one for group in re.findall(r"by \(([^)]*)\)", query) for one in group.split(", ")}
    for name, matched in re.findall(r"(fairbench_\w+)(?:\{([^}]*)\})?", query):
        yield name, kept | set(re.findall(r"(\w+)=", matched)) - OF_PROMETHEUS


def served():
    wrong = {"input_ids": "no ids"}
    return routed([("ann", STREAM), ("bob", wrong)], gateway="vtc", weights={"ann": 2.0})


def in_an_engine(exporter):
    host = home(balances={"ann": 1.0})
    host.ledger = Ledger(exporter)
    for what in COUNTED:
        host.ledger.count(what, "ann")
    for what in (QUEUE_TIME, FIRST_TOKEN):
        exporter.waited(what, asked("ann"))
    exporter.update_gauges(host)


@pytest.fixture(scope="module")
def scraped():
    """Return the labels of each metric, in a router's scrape and in that of a plugin."""
    found = {}
    for page in (served(), exported(in_an_engine)):
        for name, labels in page:
            found.setdefault(name, set()).update(key for key, _ in labels)
    # no request waits when this router is scraped
    return found | {"fairbench_held_requests": {"client"}}


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_prometheus_parses_each_query(title, query):
    parser = pytest.importorskip("promql_parser", reason="pip install promql-parser")
    assert parser.parse(filled_in(query))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("rate(fairbench_service_total)", "expected type matrix"),
        ("sum by client (up)", "invalid promql query"),
        ("topk(20, up", "unclosed left parenthesis"),
    ],
)
def test_the_parser_refuses_what_prometheus_refuses(wrong, why):
    parser = pytest.importorskip("promql_parser", reason="pip install promql-parser")
    with pytest.raises(ValueError, match=why):
        parser.parse(wrong)


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_each_query_asks_for_metrics_and_labels_that_exist(scraped, title, query):
    asked_for = dict(names_in(query))
    assert asked_for
    for name, labels in asked_for.items():
        assert name in scraped
        assert labels <= scraped[name]


def test_every_metric_by_client_is_on_the_board(scraped):
    shown = {name for _, query in QUERIES for name, _ in names_in(query)}
    left_out = {name for name in scraped if name.startswith("fairbench_client_")} - shown
    parts = ("_created", "_sum", "_count")
    # Only the reference has a plugin's recomputed tokens and refusals of ``rpm``.
    assert {one for one in left_out if not one.endswith(parts)} == {
        "fairbench_client_recomputed_tokens_total"
    }


def test_panels_say_what_they_show_and_do_not_overlap():
    taken = set()
    for one in BOARD["panels"]:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken
        taken |= cells
    assert all(one["description"].endswith(".") for one in PANELS)
    assert len({one["id"] for one in BOARD["panels"]}) == len(BOARD["panels"])


def test_the_board_lists_jobs_by_a_metric_of_every_server():
    (jobs,) = (one for one in BOARD["templating"]["list"] if one["name"] == "job")
    (name,) = re.findall(r"label_values\((\w+), job\)", jobs["query"]["query"])
    for page in (served(), exported(in_an_engine)):
        assert name in {one for one, _ in page}
