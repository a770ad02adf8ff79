"""Test the driver on a real socket: its requests, and its reading of the answers."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

from fairbench.config.resolve import experiment
from fairbench.core import Segment
from fairbench.errors import ProgramFailed, RunFailed, UsageError
from fairbench.sim.run import simulate
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.plan import ProgramArrival, nth_program
from fairbench_load.driver.connection import RunClock
from fairbench_load.driver.drive import LiveLLM, drive
from fairbench_load.driver.server_apis import StreamedAnswer
from fairbench_load.driver.target import DriverTarget
from fairbench_load.records import read_records
from tests.load.live_driving import SCALE, SMALL, VOCAB, driven, small_spec
from tests.load.live_null_server import CHAT, COMPLETIONS, Fault, null_server

IN = (Segment("in", 10),)


# the same programs as in the simulator


def simulated_trace(spec):
    result = simulate(spec)
    columns = ("program_id", "depth", "input_tokens", "output_tokens", "max_new_tokens")
    rows = zip(*(result.requests[name].tolist() for name in columns), strict=True)
    names = ("program_id", "arrival_s", "requests", "demand_input_tokens", "demand_output_tokens")
    programs = zip(*(result.programs[name].tolist() for name in names), strict=True)
    return Counter(rows), sorted(programs)


def live_trace(records):
    rows = (
        (r.program_id, r.depth, r.input_tokens, r.output_tokens, r.max_new_tokens)
        for r in records.requests
    )
    programs = (
        (p.program_id, p.arrival_s, p.requests, p.demand_input_tokens, p.demand_output_tokens)
        for p in records.programs
    )
    return Counter(rows), sorted(programs)


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("workload", list(SMALL))
def test_programs_make_the_same_calls_as_in_the_simulator(workload, seed):
    spec = small_spec(workload, seed=seed, num_programs=3)
    records, server, _ = driven(spec, target={"lengths": "header"}, faults=obey_the_header)
    requests, programs = simulated_trace(spec)
    live_requests, live_programs = live_trace(records)
    assert live_requests == requests
    assert [p[:1] + p[2:] for p in live_programs] == [p[:1] + p[2:] for p in programs]
    arrivals = [p[1] for p in programs]
    assert [p[1] for p in live_programs] == pytest.approx(arrivals, abs=1e-9)
    assert {r.status for r in records.requests} == {"finished"}
    assert server.seen == sum(requests.values())


def test_a_trace_makes_the_same_calls_as_in_the_simulator(tmp_path):
    path = tmp_path / "log.jsonl"
    lines = [
        {"time": 0.0, "client": "a", "input_tokens": 30, "output_tokens": 3},
        {"time": 0.5, "client": "b", "session": "s", "input_tokens": 20, "output_tokens": 2}
        | {"hash_ids": [1], "block_size": 16},
        {"time": 1.0, "client": "a", "input_tokens": 24, "output_tokens": 1}
        | {"hash_ids": [1, 2], "block_size": 16},
        {"time": 4.5, "client": "b", "session": "s", "input_tokens": 40, "output_tokens": 2}
        | {"hash_ids": [1, 3], "block_size": 16},
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    spec = experiment({"trace": str(path), "scheduler": "fcfs"}, {})
    records, server, _ = driven(spec, target={"lengths": "header"}, faults=obey_the_header)
    assert live_trace(records) == simulated_trace(spec)
    assert server.seen == 4
    steps = sorted((r for r in records.requests if r.client == "b"), key=lambda r: r.depth)
    assert steps[1].arrival_s >= steps[0].arrival_s + 4.0  # never before its recorded time


@pytest.mark.parametrize("clients", ["bbaacc", "cabcab", "abcabc"])
def test_simultaneous_requests_are_sent_in_the_order_of_the_trace(tmp_path, clients):
    path = tmp_path / "log.jsonl"
    request = {"input_tokens": 30, "output_tokens": 1}
    times = [0.0] * len(clients) + [2.0] * len(clients)
    lines = [
        {"time": at, "client": name} | request for at, name in zip(times, clients * 2, strict=True)
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    spec = experiment({"trace": str(path), "scheduler": "fcfs"}, {})
    records, _, _ = driven(spec, target={"lengths": "header"}, faults=obey_the_header)
    sent = sorted(records.requests, key=lambda record: record.request_id)
    assert [record.client for record in sent] == list(clients * 2)


def obey_the_header(number, request):
    """Make the null server read the answer's length from the header, as the emulator does."""
    length = int(request.headers["x-fairbench-output-tokens"])
    request.body["sampling_params"]["min_new_tokens"] = length


@pytest.mark.parametrize("incremental", [False, True])
def test_later_prompts_match_the_servers_output(incremental):
    records, server, _ = driven(small_spec("chat"), incremental=incremental, keep=True)
    by_id = {record.request_id: record for record in records.requests}
    turns = {}
    for record in by_id.values():
        turns.setdefault(record.program_id, []).append(record)
    for chain in turns.values():
        chain.sort(key=lambda record: record.depth)
        for earlier, later in pairwise(chain):
            assert later.cached_tokens == earlier.input_tokens + earlier.output_tokens
    assert any(len(chain) > 1 for chain in turns.values())
    assert all(len(r.body["input_ids"]) > 0 for r in server.requests)


@pytest.mark.parametrize(("api", "path"), [("completions", COMPLETIONS), ("chat", CHAT)])
def test_later_texts_match_the_servers_output(api, path):
    target = {"api": api, "model": "tiny"}
    records, server, _ = driven(small_spec("chat"), target=target, keep=True)
    assert {request.path for request in server.requests} == {path}
    assert {request.body["model"] for request in server.requests} == {"tiny"}
    later = [record for record in records.requests if record.depth > 0]
    assert later
    roles = 1 if api == "chat" else 0  # the null server counts roles as words
    for record in later:
        before = next(
            r
            for r in records.requests
            if (r.program_id, r.depth) == (record.program_id, record.depth - 1)
        )
        assert record.cached_tokens == before.input_tokens + before.output_tokens + roles


def test_a_request_carries_client_prompt_and_length():
    records, server, _ = driven(small_spec("tot"), target={"headers": {"x-mine": "yes"}}, worker=3)
    by_key = Counter()
    for request in server.requests:
        headers, sampling = request.headers, request.body["sampling_params"]
        assert headers["x-mine"] == "yes"
        assert headers["x-smg-routing-key"] == headers["x-fairbench-client"]
        assert request.body["routing_key"] == headers["x-fairbench-client"]
        length = int(headers["x-fairbench-output-tokens"])
        assert sampling["max_new_tokens"] == sampling["min_new_tokens"] == length
        depth, program = int(headers["x-fairbench-depth"]), int(headers["x-fairbench-program"])
        by_key[(headers["x-fairbench-client"], program, depth)] += 1
    assert by_key == Counter((r.client, r.program_id, r.depth) for r in records.requests)
    assert {record.worker for record in records.requests} == {3}


def test_the_server_may_get_only_the_output_limit():
    _, server, _ = driven(small_spec("chat"), target={"lengths": "free"})
    for request in server.requests:
        sampling = request.body["sampling_params"]
        assert "min_new_tokens" not in sampling
        assert sampling["max_new_tokens"] == int(request.headers["x-fairbench-output-tokens"])


def test_times_of_a_request_are_in_order_and_gaps_add_up():
    records, _, result = driven(small_spec("chat"), chunks=3, gap_s=0.004, queue_time_s=0.25)
    for r in records.requests:
        assert r.arrival_s <= r.submit_s <= r.first_token_s <= r.finish_s <= result.end_s
        assert r.admitted_s == r.submit_s + 0.25
        assert sum(r.chunk_tokens) == r.output_tokens
        assert len(r.chunk_s) == len(r.chunk_tokens) == min(3, r.output_tokens)
        assert (r.chunk_s[0], r.chunk_s[-1]) == (r.first_token_s, r.finish_s)
        # Chunks are 4 ms apart on the wall clock, so 0.2 s apart in the run. A late chunk may catch
        # up.
        assert r.finish_s - r.first_token_s >= 0.1 * (len(r.chunk_s) - 1)


# faults, and the errors that they cause

FAULTS = {
    "HTTP 429": Fault("status", status=429),
    "HTTP 503": Fault("status", status=503),
    "disconnected": Fault("disconnect", after=1),
    "stream error: it broke": Fault("error", after=1),
    "stream error: aborted: too long": Fault("abort", status=400),
    "stream cut: it ended": Fault("cut", after=1),
    "stream error: the event does not match the server's API": Fault("junk", after=1),
    "timeout: silent for 0.5 s": Fault("hang", after=1),
}


@pytest.mark.parametrize("said", list(FAULTS))
def test_a_failed_request_fails_its_program_and_no_other(said):
    fault = FAULTS[said]
    records, _, result = driven(
        small_spec("chat", {"turns_min": 2, "turns_max": 2}),
        target={"idle_timeout_s": 0.5},
        chunks=2,
        faults=lambda number, request: fault if number == 1 else None,
    )
    failed = [record for record in records.requests if record.error is not None]
    assert len(failed) == 1
    assert failed[0].error.startswith(said)
    assert failed[0].status == "refused"
    assert failed[0].finish_s is None
    assert (failed[0].first_token_s is not None) == (fault.after == 1)
    ended = {program.program_id: program.status for program in records.programs}
    assert Counter(ended.values()) == {"finished": 3, "refused": 1}
    assert ended[failed[0].program_id] == "refused"
    assert result.complete


def test_a_stream_may_last_longer_than_it_may_be_silent():
    whole = {"output_sigma": 0.0, "output_tokens": 40.0, "max_new_tokens": 40}
    records, _, _ = driven(
        small_spec("chat", whole | {"turns_min": 1, "turns_max": 1}, num_programs=1),
        target={"idle_timeout_s": 0.5},
        chunks=40,
        gap_s=0.02,
    )
    assert {record.status for record in records.requests} == {"finished"}
    assert max(r.finish_s - r.first_token_s for r in records.requests) > 0.5 * SCALE


def test_a_missing_server_is_an_error_of_every_request():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # the port is bound, but no server listens
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        records, _, _ = driven(small_spec("chat"), target={"base_url": url})
    assert {record.error.partition(":")[0] for record in records.requests} == {
        "no connection was opened"
    }
    assert {record.submit_s for record in records.requests} == {None}
    assert {program.status for program in records.programs} == {"refused"}


def driven_against(reply):
    """Return records of a run against a server that answers ``reply`` and then hangs up."""

    async def run(folder):
        async def answer(reader, writer):
            await reader.read(2**16)
            writer.write(reply)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            target = DriverTarget(url, time_scale=SCALE)
            await drive(small_spec("chat"), target, folder, vocab=VOCAB)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(Path(folder)))
        return read_records(Path(folder))


def test_invalid_http_is_an_error():
    records = driven_against(b"220 mail.example ESMTP\r\n")
    assert {record.error.partition(":")[0] for record in records.requests} == {"not HTTP"}
    assert {record.status for record in records.requests} == {"refused"}


@pytest.mark.parametrize(("header", "worker"), [(b"x-fairbench-worker: 3\r\n", 3), (b"", -1)])
def test_a_refusal_counts_for_the_worker_that_the_router_names(header, worker):
    reply = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 4\r\n%b\r\noops" % header
    records = driven_against(reply)
    assert {(record.status, record.worker) for record in records.requests} == {("refused", worker)}


def test_an_answer_may_be_empty_and_end_with_the_connection():
    meta = {"prompt_tokens": 9, "completion_tokens": 0, "finish_reason": {"type": "length"}}
    event = json.dumps({"output_ids": [], "meta_info": meta}).encode()
    reply = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: %b\n\n" % event
    records = driven_against(reply)
    assert {program.status for program in records.programs} == {"finished"}
    for record in records.requests:
        assert (record.status, record.output_tokens, record.chunk_s) == ("finished", 0, [])
        assert record.first_token_s == record.finish_s >= record.submit_s


def test_connections_are_reused():
    _, server, _ = driven(small_spec("chat", {"think_mean_s": 1.0}), keep=False)
    assert server.seen > server.connections


def test_a_connection_that_the_server_had_closed_is_no_error():
    records, server, _ = driven(small_spec("chat"), one_shot=True)
    assert {record.status for record in records.requests} == {"finished"}
    assert server.seen == len(records.requests) > 4


# load


def test_the_concurrency_limit_holds_and_queued_requests_are_counted():
    spec = small_spec("tot", num_programs=4, request_rate=100.0)
    records, server, _ = driven(spec, target={"max_concurrency": 3}, gap_s=0.001)
    assert server.most == 3
    assert len(records.requests) == 8 * 30
    held = [record for record in records.requests if record.held_s > 0.01]
    assert len(held) > 100
    assert all(record.submit_s >= record.arrival_s for record in records.requests)


def test_a_client_in_a_closed_loop_has_a_fixed_number_of_programs_in_flight():
    spec = small_spec("chat", clients=1, num_programs=4, request_rate=100.0)
    wrong = {"client": 0, "in_flight": 1}
    data = spec.workload.model_dump(mode="json", exclude_none=True)
    data["scenarios"] = {"one": {"rate": 1.0, "misbehaving": [wrong]}}
    spec = spec.model_copy(
        update={"scenario": "one", "workload": WorkloadSpec.model_validate(data)}
    )
    records, server, _ = driven(spec, gap_s=0.001)
    assert server.most == 1
    programs = sorted(records.programs, key=lambda program: program.arrival_s)
    assert len(programs) == 4
    for before, after in pairwise(programs):
        assert after.arrival_s >= before.finish_s


class ThreeTimes:
    """A user that begins three programs, each as soon as the previous one has ended."""

    def __init__(self, plan, seed, number):
        self.left = [nth_program(plan, seed, number + 2 * turn, None) for turn in (2, 1, 0)]

    def next(self, now_s):
        return ProgramArrival(now_s, self.left.pop()) if self.left else None


def test_users_in_a_closed_loop_wait_for_the_end_of_their_programs(monkeypatch):
    def two(plan, *, seed, source):
        return tuple(ThreeTimes(plan, seed, number) for number in (0, 1))

    monkeypatch.setattr("fairbench_load.driver.drive.users_of", two)
    short = {"turns_min": 1, "turns_max": 1, "output_tokens": 4, "output_sigma": 0.0}
    records, server, _ = driven(small_spec("chat", short, clients=1), gap_s=0.001)
    assert server.most == 2
    assert sorted(program.program_id for program in records.programs) == [0, 1, 2, 3, 4, 5]
    by_number = sorted(records.programs, key=lambda program: program.program_id)
    for mine in (by_number[::2], by_number[1::2]):
        for before, after in pairwise(mine):
            assert after.arrival_s >= before.finish_s


@pytest.mark.slow
def test_a_low_limit_on_open_files_is_raised():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spec = small_spec("chat", {"turns_min": 1, "turns_max": 1}, num_programs=100, request_rate=inf)
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 50, limits[1]))
    try:
        records, server, _ = driven(spec, first_gap_s=3.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert server.most > 100
    assert {record.error for record in records.requests} == {None}


def test_requests_are_due_at_absolute_times_however_late_the_driver_is():
    """Three sleeps of 10 s, with 5 s of work in between, are due after 10, 20 and 30 s."""
    due_s = []

    class Busy:
        async def send_call(self, call, outputs):
            due_s.append(call.due_s)
            raise ProgramFailed("that is all")

    async def program(llm):
        for _ in range(3):
            await llm.sleep(10.0)
            time.sleep(0.005)  # blocks the event loop for 5 s of the run
            with pytest.raises(ProgramFailed):
                await call(llm, depth=0)

    async def main():
        clock = RunClock(scale=1000.0)
        await program(LiveLLM(1, "a", 4.0, Busy(), clock))

    asyncio.run(main())
    assert due_s == [14.0, 24.0, 34.0]


async def call(llm, depth):
    return await llm.generate(IN, name="b", output_tokens=1, max_new_tokens=1, depth=depth)


def test_gather_waits_for_every_branch_before_it_reports_a_failure():
    ended = []

    class Token(StreamedAnswer):
        def _read_event(self, payload):
            return 0

        def rendered(self):
            return b"1"

    class Caller:
        async def send_call(self, call, outputs):
            await asyncio.sleep(0.02 if call.depth else 0.0)
            ended.append(call.depth)
            if call.depth == 0:
                raise ProgramFailed("refused")
            answer = Token()
            answer.output_tokens = 1
            return answer

    async def main():
        llm = LiveLLM(1, "a", 0.0, Caller(), RunClock())
        assert await llm.gather([]) == []
        with pytest.raises(ProgramFailed):
            await llm.gather([call(llm, depth) for depth in (0, 1)])
        assert await llm.gather([call(llm, 2)]) == [Segment("1/b", 1)]

    asyncio.run(main())
    assert ended == [0, 1, 2]


def test_a_mistake_in_a_program_is_not_taken_for_a_failure_of_the_server(monkeypatch):
    from fairbench.workloads.programs.chat import Chat

    async def broken(self, llm):
        raise KeyError("a mistake")

    monkeypatch.setattr(Chat, "run", broken)
    with pytest.raises(KeyError, match="a mistake"):
        driven(small_spec("chat"))


def test_a_full_disk_ends_the_run_with_one_line(tmp_path):
    (tmp_path / "requests.jsonl").symlink_to("/dev/full")

    async def main():
        async with null_server() as server:
            await drive(small_spec("chat"), DriverTarget(server.url), tmp_path, vocab=VOCAB)

    with pytest.raises(RunFailed, match=r"requests\.jsonl: cannot be written: No space left"):
        asyncio.run(main())


# the end


def test_an_interrupted_run_keeps_running_requests_as_unfinished():
    records, server, result = driven(
        small_spec("tot", num_programs=3),
        chunks=3,
        faults=lambda number, request: Fault("hang", after=2) if number >= 4 else None,
        interrupted=lambda server: server.seen >= 6 and server.under_way == server.seen - 4,
    )
    assert not result.complete
    by_status = Counter(record.status for record in records.requests)
    assert by_status["finished"] == 4
    # On a busy machine, some requests have been sent but not received.
    assert by_status["unfinished"] == len(records.requests) - 4 >= server.seen - 4
    cut = [r for r in records.requests if r.status == "unfinished" and r.chunk_s]
    assert all(r.output_tokens == sum(r.chunk_tokens) <= 2 for r in cut)
    assert {program.status for program in records.programs} == {"unfinished"}
    assert all(request.gone for request in server.requests[4:])


def test_the_time_to_drain_is_limited():
    records, _, result = driven(
        small_spec("chat", max_drain_s=20.0),
        faults=lambda number, request: Fault("hang") if number == 0 else None,
    )
    assert result.complete
    assert result.end_s > result.last_arrival_s + 20.0
    assert Counter(program.status for program in records.programs) == {
        "finished": 3,
        "unfinished": 1,
    }


KILLED = """
import asyncio, sys
from pathlib import Path
from tests.load.live_driving import small_spec, VOCAB
from fairbench_load.driver.drive import drive
from fairbench_load.driver.target import DriverTarget
spec = small_spec("chat", num_programs=500, request_rate=100.0)
asyncio.run(drive(spec, DriverTarget(sys.argv[1]), Path(sys.argv[2]), vocab=VOCAB))
"""


@pytest.mark.slow
def test_finished_requests_survive_sigkill(tmp_path):
    async def main():
        async with null_server(chunks=2) as server:
            command = [sys.executable, "-c", KILLED, server.url, str(tmp_path)]
            paths = os.pathsep.join(sys.path)
            process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths})
            try:
                while server.seen < 100:
                    assert process.poll() is None
                    await asyncio.sleep(0.01)
            finally:
                process.send_signal(signal.SIGKILL)
                process.wait()
            return server.seen - server.under_way, server.connections

    answered, connections = asyncio.run(main())
    records = read_records(tmp_path)
    # An answer in transit when the process died is lost, at most one per connection.
    assert len(records.requests) >= answered - connections
    assert len(records.requests) > 50
    assert {record.status for record in records.requests} == {"finished"}


def test_records_need_a_folder(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        asyncio.run(
            drive(
                small_spec("chat"),
                DriverTarget("http://127.0.0.1:1"),
                tmp_path / "none",
                vocab=range(9, 99),
            )
        )
