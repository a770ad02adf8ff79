"""Test workload files: writing and reading back, loading by name or path, and every kind of
mistake.
"""

import json
import tomllib

import pytest

from fairbench.errors import DataError, UsageError
from fairbench.workloads.model import WorkloadSpec
from fairbench.workloads.spec import load_workload, settable_params, workload_names

MINIMAL = """\
name = "mine"
program = "tree-of-thought"
latency = "program"
clients = 2
duration_s = 60.0
warmup_s = 10
max_drain_s = 60.0

[params]
branches = 2
instruction_tokens = 0
question_tokens = 100.0
question_sigma = 0.0
question_scale = 1.0
turn_tokens = 10
output_tokens = 8

[scenarios.greedy]
rate = 1.0
misbehaving = [{ client = 1, rate_multiple = 2.0 }]
"""


def toml(value):
    """Return a value as inline TOML. Tables may hold only strings, numbers and arrays."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


@pytest.fixture
def load(tmp_path):
    """Load MINIMAL with one text replaced by another."""

    def load(old="", new="", text=MINIMAL):
        assert old in text
        path = tmp_path / "mine.toml"
        path.write_text(text.replace(old, new, 1))
        return load_workload(str(path))

    return load


def test_bundled_workloads_load_by_name():
    names = workload_names()
    assert {"chat", "judge", "long-qa", "mix", "tot"} <= {*names}
    assert names == sorted(names)


@pytest.mark.parametrize("name", workload_names())
def test_a_workload_is_read_back_unchanged_from_toml(name):
    spec = load_workload(name)
    assert spec.name == name
    dumped = spec.model_dump(mode="json", exclude_none=True)
    text = "\n".join(f"{key} = {toml(value)}" for key, value in dumped.items())
    assert WorkloadSpec.model_validate(tomllib.loads(text)) == spec


def test_latency_metrics_of_workloads():
    own = {"chat": "program", "judge": "program", "long-qa": "ttft", "mix": "program",
           "tot": "program"}  # fmt: skip
    assert {name: load_workload(name).latency for name in own} == own


LIMITS = {"engine.max_running_requests", "vllm.max_num_seqs"}


SHARES_AND_DEADLINES = {"dlpm-edf.quantum", "edf-dlpm.quantum"}


@pytest.mark.parametrize("name", [n for n in workload_names() if not n.startswith("vtc-")])
def test_every_workload_sets_the_quanta_and_the_running_limit(name):
    spec = load_workload(name)
    for scenario in spec.scenario_names:
        settings = spec.scheduler_settings(scenario)
        limits = {key: settings.pop(key) for key in LIMITS & settings.keys()}
        assert set(limits) == LIMITS
        assert len(set(limits.values())) <= 1
        for joined in SHARES_AND_DEADLINES:
            assert settings.pop(joined, settings["dlpm.quantum"]) == settings["dlpm.quantum"]
        assert set(settings) == {"dlpm.quantum", "d2lpm.worker_quantum"}
        assert 0 < settings["dlpm.quantum"] < settings["d2lpm.worker_quantum"]


def test_scenario_settings_override_others(load):
    text = MINIMAL + '[scenarios.greedy.settings]\n"dlpm.quantum" = 5\n'
    spec = load("[scenarios", '[settings]\n"dlpm.quantum" = 9\n"a.b" = 1\n[scenarios', text=text)
    assert spec.scheduler_settings("greedy") == {"dlpm.quantum": 5, "a.b": 1}


def test_a_file_is_loaded_by_its_path(load):
    spec = load()
    assert spec.name == "mine"
    assert spec.scenario_names == ["greedy", "none"]
    assert spec.scenario("none").rate == 1.0
    assert spec.scenario("none").misbehaving == ()


def test_a_relative_path_needs_only_the_suffix(load, tmp_path, monkeypatch):
    load()
    monkeypatch.chdir(tmp_path)
    assert load_workload("mine.toml").name == "mine"


def test_a_file_may_define_scenario_none(load):
    assert load(text=MINIMAL + "[scenarios.none]\nrate = 0.5\n").scenario("none").rate == 0.5


def test_parameters_that_can_be_set():
    names = settable_params(load_workload("tot"))
    assert {"branches", "misbehaving.branches", "misbehaving.rate_multiple"} <= set(names)
    assert "rate_multiple" not in names


def test_an_unknown_name_is_refused():
    with pytest.raises(UsageError, match=r"unknown workload 'tott'.*Did you mean 'tot'"):
        load_workload("tott")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("clients = 2", "clients =", r"mine\.toml: line 4: Invalid value: clients =$"),
        ("clients = 2", "clients = 2\nclients = 3", r"line 5"),
        ("[params]", "[params", r"line 9"),
        ("rate_multiple = 2.0 }]", "", r"line 2\d"),
        ("clients = 2", "client = 2", r"key in the workload 'client'.*Did you mean 'clients'"),
        ("rate = 1.0", "rat = 1.0", r"key in scenarios\.greedy 'rat'.*Did you mean 'rate'"),
        ("rate = 1.0", "rate = 1.0\nrates = 2.0", r"scenarios\.greedy\.rates = 2\.0"),
        ("rate = 1.0", "rate = 1.0\nrates = { h100 = 0.0 }", r"rates\.h100 = 0\.0"),
        ("rate_multiple", "rate_multipl", r"scenarios\.greedy\.misbehaving 'rate_multipl'.*mean"),
        ("branches = 2", "branchs = 2", r"parameter in params 'branchs'.*Did you mean 'branches'"),
        ("branches = 2\n", "", r"params\.branches: missing"),
        ("branches = 2", 'branches = "2"', r"params\.branches = '2'"),
        ("branches = 2", "branches = 1979-05-27", r"params\.branches"),
        ("clients = 2\n", "", r"clients: missing"),
        ("clients = 2", "clients = 0", r"clients = 0"),
        ("clients = 2", "clients = true", r"clients = True"),
        ("duration_s = 60.0", "duration_s = -1", r"duration_s = -1"),
        ("duration_s = 60.0", "duration_s = inf", r"duration_s = inf"),
        ("duration_s = 60.0", "duration_s = 5", r"warmup_s = 10.*below duration_s"),
        ('latency = "program"', 'latency = "ttfb"', r"latency.*program.*ttft"),
        ("tree-of-thought", "tree-of-thoughts", r"program kind.*Did you mean 'tree-of-thought'"),
        ("rate = 1.0", "rate = 0", r"scenarios\.greedy\.rate = 0"),
        ("client = 1", "client = 2", r"misbehaving\.client = 2: must be below clients = 2"),
        ("greedy", "none", r"every client is well-behaved"),
        ("rate_multiple = 2.0 }", "params = { branches = 99 } }", r"branches = 99"),
        ("rate_multiple = 2.0 }", "until_fraction = 1.5 }", r"until_fraction = 1\.5"),
        ("}]", "}, { client = 1 }]", r"a client is listed twice"),
        (
            'name = "mine"',
            'name = "my own"',
            r"name = 'my own': the name must consist of letters, digits, - and _",
        ),
        ("mine", "m" * 65, r"name = 'm+': must have at most 64 characters"),
        ("branches = 2", f"branches = {'[' * 5000}", r"mine\.toml: nested more than 32 levels"),
    ],
)
def test_wrong_files_are_one_clear_line(load, old, new, message):
    with pytest.raises(DataError, match=message) as raised:
        load(old, new)
    assert str(raised.value).count("\n") == 0
    assert "mine.toml" in str(raised.value)


@pytest.mark.parametrize("content", ["scenarios = 3", "scenarios = [1]", "params = 1\nname = 2"])
def test_tables_of_the_wrong_type_are_refused(tmp_path, content):
    path = tmp_path / "mine.toml"
    path.write_text(content)
    with pytest.raises(DataError, match=r"mine\.toml"):
        load_workload(str(path))


def test_a_workload_without_scenarios_is_refused(load):
    text = MINIMAL[: MINIMAL.index("[scenarios")] + "[scenarios]\n"
    with pytest.raises(DataError, match="scenarios"):
        load(text=text)


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"absent\.toml: cannot be read: No such file"):
        load_workload(str(tmp_path / "absent.toml"))
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        load_workload(str(tmp_path) + "/")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not UTF-8"):
        load_workload(str(tmp_path / "binary.toml"))
