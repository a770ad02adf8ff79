"""Test experiment files: flags override stored values, and errors are named."""

import pytest

from fairbench.config.resolve import read_experiment, resolve
from fairbench.errors import DataError, UsageError


def write(tmp_path, text):
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    return path


def test_a_file_can_set_everything_that_flags_can(tmp_path):
    path = write(
        tmp_path,
        'scheduler = "vtc"\ndp = 2\nrequest_rate = 1\n'
        "[settings]\nvtc.charge = 'input'\n\"tot.branches\" = 3\n",
    )
    spec = resolve({}, {}, read_experiment(path))
    assert spec == resolve(
        {"scheduler": "vtc", "dp": 2, "request_rate": 1}, {"vtc.charge": "input", "tot.branches": 3}
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "dp = 1\nshceduler = 'vtc'",
            r"experiment\.toml: unknown key 'shceduler'.*mean 'scheduler'",
        ),
        (
            '{"scheduler": "vtc"}',
            r"experiment\.toml: is JSON, but must be TOML with lines KEY = VALUE",
        ),
        ("dp = ", r"experiment\.toml: line 1: "),
        (
            "[d2lpm]\nworker_quantum = 3",
            r"toml: d2lpm: parameters belong in the table \[settings\.d2lpm\]$",
        ),
        ("'tot.branches' = 3", r"toml: tot.branches: .* the table \[settings\.tot\]$"),
        ("settings = 3", r"experiment\.toml: settings: must be a table"),
    ],
)
def test_a_wrong_file_is_named_with_key_or_line(tmp_path, text, expected):
    with pytest.raises(DataError, match=expected):
        read_experiment(write(tmp_path, text))


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ({"dp": "4"}, "dp = '4': must be a valid integer"),
        ({"dp": True}, "dp = True: must be a valid integer"),
        ({"scheduler": 3}, "scheduler = 3: must be a string"),
        ({"workload": 3}, "workload = 3: "),
        ({"workload": {"name": "x"}}, "workload.program: missing"),
        ({"settings": {"quantum": 5}}, "unknown setting 'quantum'"),
        ({"duration_s": "long"}, "duration_s = 'long': must be a valid number"),
    ],
)
def test_wrong_types_in_a_file_are_one_line(file, expected):
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, file)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp = 0", "dp = 0: must be greater than or equal to 1"),
        ("scheduler = 3", "scheduler = 3: must be a string"),
        ("scenario = ['s1']", "scenario = ['s1']: must be a string"),
        ("scenario = 's9'", "unknown scenario of tot 's9'"),
        ("router = 'robin'", "unknown router 'robin'"),
        ("workload = 'tott'", "unknown workload 'tott'"),
        ("gpu = 'b100'", "unknown gpu 'b100'"),
        ("request_rate = inf", "request_rate = inf: needs num_programs"),
        (
            "workload = 'chat'\nclients = 3",
            "clients = 3: must be at least 4 for scenario s1 of chat",
        ),
        ("warmup_s = 1e9", "warmup_s = 1000000000.0: must be below duration_s"),
        ("[settings]\ndlpm = 5", "settings.dlpm = 5: must be a table"),
        ("[settings]\ntot = 5", "settings.tot = 5: must be a table"),
        ("[settings.dlpm]\nquantun = 5", "unknown parameter of dlpm 'quantun'"),
        ("[settings.vtc]\nweights = 5", "vtc.weights = 5: must be an object"),
        ("[settings.tot]\nbranches = 0", "tot.branches = 0: must be"),
    ],
)
def test_errors_in_a_file_name_the_file(tmp_path, text, expected):
    path = write(tmp_path, text)
    file = read_experiment(path)
    with pytest.raises(DataError) as caught:
        resolve({"seed": 1}, {}, file, path=path)
    assert str(caught.value).startswith(f"{path}: {expected}")


def test_a_wrong_policy_of_a_file_is_named_although_a_flag_changes_its_defaults(tmp_path):
    path = write(tmp_path, "eviction = 'robin'")
    with pytest.raises(DataError, match=f"^{path}: unknown eviction 'robin': choose from"):
        resolve({"model": "llama-3.1-8b"}, {}, read_experiment(path), path=path)


def test_errors_in_a_flag_do_not_name_the_file(tmp_path):
    path = write(tmp_path, "dp = 0\nseed = 1\nwarmup_s = 30\n")
    file = read_experiment(path)
    with pytest.raises(UsageError, match=r"^dp = -1: must be"):
        resolve({"dp": -1}, {}, file, path=path)
    with pytest.raises(UsageError, match=r"^unknown prefix of a setting 'dlpn'"):
        resolve({"dp": 1}, {"dlpn.quantum": 1}, file, path=path)
    with pytest.raises(UsageError, match=r"^warmup_s = 30.0: must be below"):
        resolve({"dp": 1, "duration_s": 20}, {}, file, path=path)
    assert resolve({"dp": 2}, {}, file, path=path).dp == 2


@pytest.mark.parametrize(
    ("flags", "settings", "text", "names_file"),
    [
        ({"dp": 2}, {}, "seed = -1", True),
        # the flag is as wrong as the file's value, which it replaces
        ({"seed": -1}, {}, "seed = -1", False),
        ({}, {"dlpm.quantum": -1}, "[settings]\ndlpm.quantum = -1", False),
        # the first error that is found
        ({}, {"dlpm.refill": "x"}, "[settings]\nvtc.charge = 'x'", True),
        ({"local": "vtc"}, {}, "router = 'robin'", True),
        ({"backend": {"max_concurrency": 3}}, {}, "[backend]\nkind = 'emulator'\ntp = 2", True),
        ({"backend": {"tp": 2}}, {}, "[backend]\nkind = 'emulator'", False),
        ({"engine": "vllm"}, {}, "[backend]\nkind = 'emulator'", False),
        ({"seed": 1}, {}, "tokenizer = 'x.json'", True),
    ],
)
def test_errors_name_the_source_of_the_key(tmp_path, flags, settings, text, names_file):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        resolve(flags, settings, read_experiment(path), path=path)
    assert str(caught.value).startswith(f"{path}: ") == names_file
    assert isinstance(caught.value, DataError) == names_file
