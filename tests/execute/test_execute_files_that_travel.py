"""Test that an experiment's files reach another machine, and that results return."""

import os
from pathlib import Path

import pytest

from fairbench.config.resolve import resolve
from fairbench.errors import UsageError
from fairbench.execute.executors import executor_named
from fairbench.execute.simulations import files_of
from fairbench.execute.tasks import LocalProcesses, Reading, Saving
from fairbench_load.sent_files import SentFiles
from fairbench_ray import cluster
from tests.execute import pool_tasks

COST = "def cost(input_tokens, output_tokens):\n    return input_tokens + output_tokens\n"


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """Change to the folder of a user."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    return home


def packed(*names):
    """Pack half of the files for a task that saves them, and half for one that does not."""
    saving = Saving(pool_tasks.keep, Path("anywhere"), names[::2])
    return SentFiles.packed([saving, Reading(pool_tasks.refuse, names[1::2]), pool_tasks.die])


def test_an_experiment_lists_the_files_that_it_reads(at_home):
    (at_home / "cost.py").write_text(COST)
    assert files_of(resolve({"workload": "chat"})) == ()
    (trace,) = files_of(resolve({"workload": "vtc-arena"}))
    assert trace == "vtc_arena_trace.jsonl.gz"
    own = resolve({"workload": "chat", "local": "vtc-predict"}, {"vtc-predict.cost": "cost.py"})
    assert files_of(own) == ("cost.py",)
    read = own.model_copy(update={"dataset_path": "sub/data.jsonl", "tokenizer": "hub/name"})
    assert files_of(read) == ("cost.py", "sub/data.jsonl"), "a hub's name is no file"
    assert files_of(own.model_copy(update={"dataset_path": "hf:some/set"})) == ("cost.py",)


def test_relative_files_keep_their_places(at_home, tmp_path, monkeypatch):
    (at_home / "sub" / "words").mkdir(parents=True)
    (at_home / "sub" / "words" / "tokenizer.json").write_bytes(b"{}")
    data = tmp_path / "data"
    data.mkdir()
    (data / "trace.jsonl").write_bytes(b"recorded")
    (data / "mine.py").write_bytes(b"own = 1")
    monkeypatch.setenv("FAIRBENCH_DATA", str(data))
    monkeypatch.setenv("FAIRBENCH_SCHEDULERS", f"{data / 'mine.py'}")
    sent_files = packed("trace.jsonl", "sub/words", "trace.jsonl")
    assert set(sent_files.files) == {"trace.jsonl", "sub/words/tokenizer.json"}
    monkeypatch.delenv("FAIRBENCH_SCHEDULERS")
    away = tmp_path / "away"
    away.mkdir()
    with sent_files.unpacked(away):
        assert Path("trace.jsonl").read_bytes() == b"recorded"
        assert Path("sub/words/tokenizer.json").read_bytes() == b"{}"
        assert Path(os.environ["FAIRBENCH_SCHEDULERS"]).read_bytes() == b"own = 1"
        assert Path(os.environ["FAIRBENCH_SCHEDULERS"]).name == "mine.py"
    assert Path.cwd() == at_home
    assert "FAIRBENCH_SCHEDULERS" not in os.environ


def test_code_of_a_user_is_found_through_its_variable(at_home, tmp_path, monkeypatch):
    for variable, name in (("FAIRBENCH_SCHEDULERS", "own.py"), ("FAIRBENCH_PROGRAMS", "kinds.py")):
        (at_home / name).write_text(f"of = '{variable}'")
        monkeypatch.setenv(variable, name)
    sent_files = packed()
    monkeypatch.setenv("FAIRBENCH_PROGRAMS", "of-this-node.py")
    (tmp_path / "away").mkdir()
    with sent_files.unpacked(tmp_path / "away"):
        for variable in ("FAIRBENCH_SCHEDULERS", "FAIRBENCH_PROGRAMS"):
            assert Path(os.environ[variable]).read_text() == f"of = '{variable}'"
    assert os.environ["FAIRBENCH_PROGRAMS"] == "of-this-node.py"


def test_objects_that_cannot_be_sent_are_refused(at_home):
    with pytest.raises(
        UsageError, match=r"\.\./trace\.jsonl: cannot be copied to the nodes of the"
    ):
        packed("../trace.jsonl")
    with pytest.raises(UsageError, match=r"trace lost\.jsonl: no such file"):
        packed("lost.jsonl")


def test_a_file_with_an_absolute_name_must_exist_on_every_node(at_home):
    file = at_home / "trace.jsonl"
    file.write_bytes(b"recorded")
    sent_files = packed(str(file))
    assert sent_files.files == {}
    sent_files.check("n1")
    file.write_bytes(b"another")
    with pytest.raises(
        UsageError, match=f"node n1 does not have the file {file}; give a path relative to"
    ):
        sent_files.check("n1")
    file.unlink()
    with pytest.raises(UsageError, match="node n1 does not have the file"):
        sent_files.check("n1")


def test_returned_files_are_written_as_a_whole_beside_existing_ones(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "note").write_bytes(b"old")
    cluster._save({"run/table": b"rows", "run/sub/more": b"1", "note": b"new"}, tmp_path)
    found = {str(p.relative_to(tmp_path)): p for p in tmp_path.rglob("*") if p.is_file()}
    assert {name: path.read_bytes() for name, path in found.items()} == {
        "run.2/table": b"rows",
        "run.2/sub/more": b"1",
        "note": b"new",
    }
    cluster._save({}, tmp_path / "fresh")
    assert not list(tmp_path.rglob(".writing-*"))


def test_executors_are_chosen_by_name(monkeypatch):
    assert isinstance(executor_named("local"), LocalProcesses)
    with pytest.raises(UsageError, match=r"unknown executor .rai.: choose from local, ray\."):
        executor_named("rai")
    with pytest.raises(UsageError, match="--ray-address auto: needs --executor ray"):
        executor_named("local", "auto")
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"--executor ray needs the package ray: pip install '\.\[ray\]'"
    ):
        executor_named("ray")
