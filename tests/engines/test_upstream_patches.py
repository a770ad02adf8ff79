"""Test the patches for SGLang and vLLM in ``examples/upstream``.

The slow tests run in the environments of tests/sglang_cpu/install.sh and tests/vllm_cpu/install.sh.
"""

import json
import subprocess
import sys
import types
import unittest
from collections import OrderedDict, defaultdict
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.schedulers.drive import first_candidate
from fairbench.schedulers.local.dlpm import DLPM
from fairbench.schedulers.local.vtc import VTC
from fairbench.schedulers.views import QueueView
from tests.engines.upstream import (
    PATCHES,
    ROOT,
    STRIPPED,
    TESTS,
    patched_copy,
    patched_files,
    run_patched,
)
from tests.schedulers.local.local_server import call
from tests.sim import sglang_seam, vllm_seam

ABSENT = {"sglang": sglang_seam.why_absent(), "vllm": vllm_seam.why_absent()}
EVENTS = st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.integers(1, 40)))


def added(engine, path):
    """Return the lines that a patch adds to a file."""
    return next(lines for at, lines, _ in patched_files(engine) if at == path)


def fair_queue():
    """Return the queue that the patch adds to vLLM. The other classes of vLLM are not needed."""
    lines = added("vllm", "vllm/v1/core/sched/request_queue.py")
    source = lines[lines.index("class FairRequestQueue") : lines.index("    elif policy")]
    names = {"RequestQueue": object, "OrderedDict": OrderedDict, "defaultdict": defaultdict}
    exec(f"from __future__ import annotations\n{source}", names)
    return names["FairRequestQueue"]()


@pytest.fixture
def counters(monkeypatch):
    """Return the module that the patch adds to SGLang, under the name that it has there."""
    name = "sglang.srt.managers.deficit_counters"
    module = types.ModuleType(name)
    exec(added("sglang", "sglang/srt/managers/deficit_counters.py"), vars(module))
    monkeypatch.setitem(sys.modules, name, module)
    register = SimpleNamespace(register_cpu_ci=lambda **_: None)
    monkeypatch.setitem(sys.modules, "sglang.test.ci.ci_register", register)
    return module


@pytest.mark.parametrize("engine", PATCHES)
def test_a_patch_is_whole_and_stands_alone(engine):
    text = PATCHES[engine].read_text()
    assert text.isascii()
    assert "fairbench" not in text
    counted = subprocess.run(  # refuses a patch whose line counts are wrong
        ["git", "apply", "--numstat", f"-p{STRIPPED[engine]}", PATCHES[engine]],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    files = [line.split("\t") for line in counted.splitlines()]
    assert {path for *_, path in files} == {path for path, *_ in patched_files(engine)}
    removed = sum(int(count) for _, count, _ in files)
    assert removed < 15
    assert TESTS[engine] in {path for *_, path in files}


@pytest.mark.parametrize("engine", PATCHES)
def test_the_page_names_every_file_of_a_patch(engine):
    page = (ROOT / "docs/reference/upstream.md").read_text()
    for path, *_ in patched_files(engine):
        assert path.split("/", 1)[1] in page or path in page


def test_the_unit_tests_of_the_counters_pass(counters):
    names = {"__name__": "tests_of_the_patch"}
    exec(added("sglang", TESTS["sglang"]), names)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(names["TestDeficitCounters"])
    result = unittest.TestResult()
    suite.run(result)
    assert result.wasSuccessful(), result.failures + result.errors
    assert result.testsRun == 10


class Twin:
    """A request as the engine's class sees it, beside the simulator's request."""

    def __init__(self, number, client, extend_tokens):
        self.ours = call(number, client, extend_tokens)
        self.session_id = self.routing_key = client
        self.full_untruncated_fill_ids, self.prefix_len = [0] * extend_tokens, 0
        self.output_ids, self.finished_len, self.over = [], None, False
        self.admitted = False

    def finished(self):
        return self.over


class Both:
    """A simulated scheduler and an engine's class that get the same random events.

    A subclass implements ``theirs``, which tells the engine's class about an event.
    """

    def __init__(self, scheduler):
        self.scheduler, self.view = scheduler, QueueView()
        self.requests, self.running = {}, []

    def arrive(self, client, tokens):
        one = Twin(len(self.requests), client, tokens)
        self.requests[one.ours] = one
        self.scheduler.on_arrival(one.ours, self.view, 0)
        self.view.enter(one.ours)
        self.entered(one)

    def select(self):
        """Admit the next request, and check that both choose it."""
        selection = self.scheduler.select(self.view, 0)
        wanted = first_candidate(selection)
        found = self.next()
        assert (found and found.ours) is wanted
        if found is not None:
            recompute, found.admitted = found.admitted, True
            self.view.leave(wanted)
            tokens = len(found.full_untruncated_fill_ids)
            self.scheduler.on_admitted(wanted, tokens, recompute)
            self.started(found, 0 if recompute else tokens)
            self.running.append(found)
        selection.close()

    def produce(self, tokens):
        for one in self.running[:1]:
            one.output_ids += [7] * tokens
            self.scheduler.on_tokens(one.ours.client, tokens)
            self.produced(one, tokens)

    def preempt(self):
        if self.running:
            one = self.running.pop()
            self.scheduler.on_retract(one.ours, self.view, 0)
            self.retracted(one)

    def finish(self):
        if self.running:
            one = self.running.pop(0)
            one.over = True
            self.scheduler.on_finish(one.ours)
            self.ended(one)

    def abort(self, client):
        if client in self.view.clients():
            request = self.view.oldest(client)
            self.view.leave(request)
            self.scheduler.on_finish(request)
            self.aborted(self.requests[request])

    def run(self, events):
        for event, client, amount in events:
            self.arrive(client, amount)
            (
                self.select,
                self.select,
                lambda amount=amount: self.produce(amount),
                self.preempt,
                self.finish,
                lambda client=client: self.abort(client),
            )[event]()
        while len(self.view):
            self.select()


class BothVLLM(Both):
    """VTC and the fair queue of the patch."""

    def __init__(self):
        super().__init__(VTC(VTC.Params()))
        self.theirs = fair_queue()

    def entered(self, one):
        self.theirs.add_request(one)

    def next(self):
        return self.theirs.pop_request() if self.theirs else None

    def started(self, one, tokens):
        self.theirs.on_scheduled(one, tokens)

    def produced(self, one, tokens):
        self.theirs.on_output(one, tokens)

    def retracted(self, one):
        self.view._requests = {one.ours: None, **self.view._requests}
        mine = self.view._of_client.pop(one.ours.client, {})
        first = {one.ours.client: {one.ours: None, **mine}}
        self.view._of_client = first | self.view._of_client
        self.theirs.prepend_request(one)

    def ended(self, one):
        pass

    def aborted(self, one):
        self.theirs.remove_requests([one])


class BothSGLang(Both):
    """DLPM and the patch's deficit counters, in order of arrival because nothing is cached."""

    def __init__(self, module):
        super().__init__(DLPM(DLPM.Params(quantum=50)))
        self.theirs, self.queue = module.DeficitCounters(50), []

    def entered(self, one):
        self.theirs.add(one)
        self.queue.append(one)

    def next(self):
        return next(self.theirs.admission_order(list(self.queue)), None)

    def started(self, one, tokens):
        self.queue.remove(one)
        self.theirs.charge_prefill(one)
        assert self.theirs.counters == self.scheduler.credit

    def produced(self, one, tokens):
        self.theirs.charge_output([one])

    def retracted(self, one):
        self.view.enter(one.ours)
        self.entered(one)

    def ended(self, one):
        self.theirs.charge_output([one])

    def aborted(self, one):
        self.queue.remove(one)
        self.theirs.remove(one)


@given(EVENTS)
def test_the_queue_for_vllm_decides_as_vtc(events):
    BothVLLM().run(events)


@given(EVENTS)
def test_the_counters_for_sglang_decide_as_dlpm(events):
    module = types.ModuleType("counters")
    exec(added("sglang", "sglang/srt/managers/deficit_counters.py"), vars(module))
    BothSGLang(module).run(events)


@pytest.mark.slow
@pytest.mark.parametrize("engine", PATCHES)
def test_a_patched_engine_passes_its_tests_and_decides_as_simulated(engine, tmp_path):
    """Both kinds of scheduling are compared. A different policy or quantum must be noticed."""
    if ABSENT[engine]:
        pytest.skip(ABSENT[engine])
    folder = patched_copy(engine, tmp_path)
    told = run_patched(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS[engine])
    assert " passed" in told
    assert "failed" not in told
    seeds = map(str, range(12))
    seen = json.loads(run_patched(folder, "-m", "tests.engines.upstream", engine, *seeds))
    assert min(seen.values()) > 2
    assert max(seen.values()) > 250
