"""Test places for replicas on a lost Ray cluster, and on one with a silent node."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from fairbench.errors import RunFailed, UsageError
from fairbench_load.launchers import Wanted
from fairbench_ray import launcher
from fairbench_ray.replicas import ReplicasPlaced
from tests.load.live_recipes import places_of
from tests.on_ray import fake_bridge


def test_a_cluster_lost_before_placement_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "serve_replicas", fake_bridge.serve)
    monkeypatch.setattr(launcher, "find_spec", lambda name: name)  # pretends that Ray is installed
    (tmp_path / "script").write_text("d")
    ray = launcher.RayLauncher(str(tmp_path / "script"))
    said = r"^the Ray cluster at .*script was lost$"
    with pytest.raises(RunFailed, match=said), places_of(ray, Wanted(1)):
        pass


def test_a_node_that_does_not_answer_is_named():
    silent = Future()
    silent.set_exception(TimeoutError())
    line = SimpleNamespace(call=lambda *_: silent)
    with pytest.raises(UsageError, match=r"^node n1: does not answer$"):
        launcher._fit_places(line, ReplicasPlaced(("n1",), 0), Wanted(1))
