"""Test that the page on the schedulers' interface has the code's tables and a working example."""

import re
from pathlib import Path

import pytest

from fairbench.config.resolve import resolve
from fairbench.schedulers import registry
from fairbench.schedulers.registry import VARIABLE
from fairbench.sim.run import simulate
from fairbench_studies.pages.scheduler_interface import scheduler_interface

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "scheduler-interface.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_page_has_every_hook_and_view():
    assert TEXT.endswith(f"\n\n{scheduler_interface()}")
    for name in ("`prompt: tuple[Segment, ...]`", "`in_flight: int`", "| `WorkerLoad` |"):
        assert name in TEXT
    for name in ("## Request", "`oldest(client)`", "`skip(client)`", "`on_tokens(client, tokens)`"):
        assert name in TEXT


@pytest.fixture
def example(monkeypatch, tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "mine.py"))
    registry._with_plugins.cache_clear()
    yield "least-served"
    registry._with_plugins.cache_clear()


def test_the_example_serves_clients_alike(example):
    """The heavy client of a short run gets less under the example than under FCFS."""
    flags = {"workload": "chat", "duration_s": 20.0, "router": "round-robin"}
    shares = [
        simulate(resolve({**flags, "local": local})).summary["jain_index"]
        for local in (example, "fcfs")
    ]
    assert shares[0] >= shares[1]
