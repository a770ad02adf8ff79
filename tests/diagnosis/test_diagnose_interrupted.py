"""Test that an interrupted diagnosis keeps its finished part and names what is missing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairbench.execute.tasks import Interruption, RunContext, Silent, attempt
from fairbench.report.pages.html import as_html
from fairbench.workloads.traces.read import TraceParams
from fairbench_logs.diagnosis.access_log import read_log
from fairbench_logs.diagnosis.diagnosis import DiagnosisInput, diagnose
from fairbench_logs.diagnosis.page import diagnosis_page
from fairbench_logs.diagnosis.text import diagnosis_json, diagnosis_text

SCHEDULERS = ("fcfs", "vtc", "fair-finish")


class StoppedAfter:
    """An executor that runs tasks in this process and is interrupted after ``count`` of them."""

    def __init__(self, count, order=range(9)):
        self.left, self.order = count, order

    def run(self, tasks, interrupted):
        for index in sorted(range(len(tasks)), key=self.order.index):
            if interrupted():
                return
            if self.left == 0:
                interrupted.signum = signal.SIGINT  # interrupts while this task runs
            self.left -= 1
            yield index, attempt(tasks[index], interrupted)


def written(path, *, measured, seconds=150, flood=15.0):
    """Write a log in which team-1 floods from 40 to 90 s and the others wait for it."""
    rng = random.Random(1)
    rows = [(at_s, f"team-{at_s % 4 + 2}") for at_s in range(seconds)]
    rows += [(rng.uniform(40, 90), "team-1") for _ in range(int(50 * flood))]
    lines = []
    for at_s, client in sorted(rows):
        wait_s = 20.0 if 40 < at_s < 90 and client != "team-1" else 0.1
        answer = f",{wait_s},{wait_s + 1}" if measured else ""
        lines.append(f"{at_s:.3f},{client},1200,150{answer}")
    header = "time,client,input_tokens,output_tokens" + (",ttft_s,latency_s" if measured else "")
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def interrupted_after(count, log, *, plan=False, **order):
    context = RunContext(Interruption(), Silent(), StoppedAfter(count, **order))
    asked = DiagnosisInput({}, 1, SCHEDULERS, plan=plan)
    return diagnose(read_log(TraceParams(file=str(log))), asked, context)


def shown(found):
    """Return the text as one line, and check that the page and the JSON can be made."""
    assert json.loads(json.dumps(diagnosis_json(found)))["missing"] == list(found.missing)
    assert found.missing[0] in as_html(diagnosis_page(found))
    return " ".join(diagnosis_text(found).split())


@pytest.mark.parametrize("measured", [True, False])
def test_without_any_replay_the_log_alone_is_diagnosed(measured, tmp_path):
    found = interrupted_after(0, written(tmp_path / "log.csv", measured=measured))
    text = shown(found)
    assert found.replays == ()
    assert "- team-1 floods from 40 to 90 s" in text
    assert ("4 of 4 other clients waited" in text) is measured
    assert "nobody waits" not in text
    assert text.endswith(
        "Interrupted. Missing: the replay under fcfs, the replay under vtc, "
        "the replay under fair-finish."
    )


@pytest.mark.slow
def test_finished_replays_are_kept(tmp_path):
    log = written(tmp_path / "log.csv", measured=False)
    found = interrupted_after(2, log)
    text = shown(found)
    assert [run.scheduler for run in found.replays] == ["fcfs", "vtc"]
    assert "4 of 4 other clients waited" in text
    assert "(fcfs to vtc)" in text
    assert found.missing == ("the replay under fair-finish",)
    rows = {one["scheduler"]: one for one in diagnosis_json(found)["schedulers"]}
    whole = {
        one["scheduler"]: one for one in diagnosis_json(interrupted_after(9, log))["schedulers"]
    }
    assert rows == {name: whole[name] for name in ("fcfs", "vtc")}


def test_without_a_replay_of_the_present_scheduler_nothing_is_compared(tmp_path):
    log = written(tmp_path / "log.csv", measured=False)
    found = interrupted_after(1, log, order=[1, 2, 0])
    text = shown(found)
    assert [run.scheduler for run in found.replays] == ["vtc"]
    assert "Fair queueing" not in text
    assert "hurt" not in text
    assert "vtc" in text


@pytest.mark.slow
def test_an_interrupted_plan_is_named_as_missing(tmp_path):
    found = interrupted_after(4, written(tmp_path / "log.csv", measured=True), plan=True)
    assert len(found.replays) == 3
    assert found.missing == ("the number of replicas",)
    assert "Fair queueing lowers" in shown(found)


@pytest.mark.slow
def test_ctrl_c_prints_the_findings_so_far_and_ends_with_130(tmp_path):
    log = written(tmp_path / "log.csv", measured=True, seconds=1000, flood=60.0)
    command = [sys.executable, "-m", "fairbench", "diagnose", str(log), "--disable-tqdm"]
    report = tmp_path / "page.md"
    process = subprocess.Popen(
        [*command, "--dp", "1", "--report", str(report)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and not children.read_text():
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 130, errors
    assert "- team-1 floods from 40 to 90 s" in out
    assert "Interrupted. Missing: the replay under" in out
    assert errors.startswith("fairbench: interrupted; the diagnosis lacks the replay under ")
    assert len(errors.splitlines()) == 1
    assert "Missing: the replay under" in report.read_text()
