"""Test useful service by hand, with two clients of one owner, one of which pads its prompts."""

from dataclasses import replace
from math import isnan

from fairbench.core import ServiceWeights
from fairbench.metrics.goodput import group_service, useful
from fairbench.metrics.records import PLAIN, UNFINISHED, Padding, Window
from fairbench.metrics.summary import summarize
from fairbench.metrics.tables import Tables
from tests.metrics.metrics_helpers import facts, log, programs, requests

# Client 0 pads each prompt by 100 tokens. Of its tokens, 50 of 150 input and all 20 output are
# useful.
TABLES = Tables(
    ["padder", "plain", "idle"],
    requests(
        {"request_id": 0, "program_id": 0, "client": 0, "admitted_s": 1.0, "input_tokens": 150},
        {"request_id": 1, "program_id": 1, "client": 0, "admitted_s": 9.0, "input_tokens": 150},
        {"request_id": 2, "program_id": 2, "client": 1, "admitted_s": 1.0, "input_tokens": 30},
        {"request_id": 3, "program_id": 3, "client": 0, "input_tokens": 150, "status": UNFINISHED},
    ),
    programs(
        *(
            {"program_id": n, "client": 0, "arrival_s": at, "finish_s": end, "status": status,
             "demand_input_tokens": 150, "demand_output_tokens": 20}
            for n, at, end, status in ((0, 0.0, 3.0, 0), (1, 2.0, 11.0, 0), (3, 4.0, 0, UNFINISHED))
        ),
        {"program_id": 2, "client": 1, "finish_s": 2.0, "demand_input_tokens": 30,
         "demand_output_tokens": 5},
    ),
    log(
        {"client": 0, "start_s": 1.0, "end_s": 2.0, "input_tokens": 150, "output_tokens": 20},
        {"client": 1, "start_s": 1.0, "end_s": 2.0, "input_tokens": 30, "output_tokens": 5},
        {"client": 0, "start_s": 9.0, "end_s": 10.0, "input_tokens": 150, "output_tokens": 20},
    ),
)  # fmt: skip


def test_padding_is_not_useful_service():
    one = group_service(TABLES, {0: Padding(100)}, 5.0)
    assert one.served == 50 + 2 * 20
    assert one.due == 3 * (50 + 2 * 20)
    assert (one.programs, one.finished) == (3, 1)
    assert one.fraction == 1 / 3
    assert one.programs_served == 1


def test_more_is_served_later():
    one = group_service(TABLES, {0: Padding(100)}, 12.0)
    assert (one.served, one.finished) == (2 * 90, 2)


def test_clients_of_one_owner_are_summed_with_their_own_padding():
    one = group_service(TABLES, {0: Padding(100), 1: PLAIN}, 5.0)
    assert one.served == 90 + 30 + 2 * 5
    assert (one.programs, one.finished) == (4, 2)


def test_only_the_beginning_of_a_lengthened_answer_is_useful():
    one = group_service(TABLES, {0: Padding(100, 4)}, 5.0)
    assert one.served == 50 + 2 * 20 / 4
    assert one.due == 3 * (50 + 2 * 20 / 4)
    assert group_service(TABLES, {0: Padding(output_multiple=4)}, 5.0).served == 150 + 10


def test_a_client_without_requests_has_no_useful_service():
    one = group_service(TABLES, {2: PLAIN}, 5.0)
    assert isnan(one.fraction)
    assert one.programs_served == 0


def test_useful_service_of_each_client_in_a_window():
    padding = {0: Padding(100, 4)}
    early, late = (
        useful(TABLES, padding, Window(*times), ServiceWeights()).tolist()
        for times in ((1.0, 5.0), (5.0, 12.0))
    )
    assert early == [50 + 2 * 20 / 4, 30 + 2 * 5, 0]
    assert late == [50 + 2 * 20 / 4, 0, 0]


def test_rows_show_useful_service_if_there_is_padding():
    known = facts(clients=3, window=Window(1.0, 5.0))
    first, *others = known.clients
    padded = replace(known, clients=(first._replace(padding=Padding(100, 2)), *others))
    keys = ("useful_service_tok_s", "padding_tokens", "output_multiple")
    clients = summarize(TABLES, padded)["clients"]
    rows = [{key: row[key] for key in keys if key in row} for row in clients]
    assert rows[0] == {
        **{"useful_service_tok_s": (50 + 20) / 4, "padding_tokens": 100, "output_multiple": 2}
    }
    assert rows[1:] == [{"useful_service_tok_s": 10.0}, {"useful_service_tok_s": 0.0}]
    empty = summarize(TABLES, replace(padded, window=Window(5.0, 5.0)))
    assert empty["clients"][0]["useful_service_tok_s"] is None
    assert empty["notes"]["clients.c0.useful_service_tok_s"]
    assert "useful_service_tok_s" not in summarize(TABLES, known)["clients"][0]
