"""Test that some run varies every setting, and that former settings are constants."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from fairbench.config import to_toml
from fairbench.config.resolve import resolve
from fairbench.config.settings import params_by_part
from fairbench.errors import UsageError
from fairbench.schedulers.params import as_settings, make_params, param_names
from fairbench.schedulers.registry import locals_by_name, routers_by_name

ROOT = Path(__file__).resolve().parents[2]
MOST_SETTINGS = 290
RUNS = ("tests", "studies", "workloads", "results/tables", "bench/fairbench/config")

# Settings that no study, sweep, preset, workload or test varies. The list must not grow: a new
# setting needs a run that varies it.
NEVER_VARIED: set[str] = set()


@cache
def settings():
    return {
        f"{part}.{name}"
        for part, params in params_by_part().items()
        for name in param_names(params)
    }


@cache
def names_of(part):
    """Return the names under which a test or a study may build a part."""
    paths = {**locals_by_name(), **routers_by_name()}
    params = params_by_part()[part].__qualname__.partition(".")[0].removesuffix("Params")
    return {paths.get(part, "").partition(":")[2], params, f'"{part}"'} - {""}


def varied(texts):
    """Return the settings to which some text gives a value."""
    found = set()
    for text in texts:
        words = set(re.findall(r"[\w-]+\.\w+|\w+__\w+", text))
        assigned = set(re.findall(r"(\w+)(?==[^=]|\"?: |\"?, \[)", text))
        for key in settings() - found:
            part, _, name = key.partition(".")
            keyword = f"{part.replace('-', '_')}__{name}"
            built = name in assigned and any(one in text for one in names_of(part))
            if built or key in words or keyword in words:
                found.add(key)
        if "\n[" in text or text.startswith("["):
            found |= settings() & set(nested(text))
    return found


def nested(text):
    """Yield ``NAME.PARAM`` for every table in TOML, and nothing for other text."""
    try:
        tables = [tomllib.loads(text)]
    except tomllib.TOMLDecodeError:
        return
    while tables:
        for name, value in tables.pop().items():
            below = value if isinstance(value, list) else [value]
            for one in (one for one in below if isinstance(one, dict)):
                yield from (f"{name}.{param}" for param in one)
                tables.append(one)


def texts():
    own = Path(__file__)
    for folder in RUNS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".toml") and path != own:
                yield path.read_text(encoding="utf-8")


def test_there_are_few_settings():
    assert len(settings()) <= MOST_SETTINGS


def test_every_setting_has_a_run_that_varies_it():
    assert settings() - varied(texts()) == NEVER_VARIED


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("simulate(resolve({}, {'vtc.lift': 'none'}))", {"vtc.lift"}),
        ("desk(100, gateway__max_requests=2)", {"gateway.max_requests"}),
        ("desk(9, llm_d_vtc__forget_s=3)", {"llm-d-vtc.forget_s"}),
        ("scheduler = HoldingDLPM(HoldingDLPM.Params(floor=1))", {"dlpm-hold.floor"}),
        ("[settings.rpm]\nlimit = 5\n", {"rpm.limit"}),
        ("from x import HoldingDLPM\nassert floor", set()),
        ("limit = 3", set()),
    ],
)
def test_a_run_that_varies_a_setting_is_found(text, found):
    assert varied([text]) == found


CONSTANTS = [
    ("vtc", "form", "artifact"),
    ("lcf", "input_weight", 3),
    ("dlpm-hold", "rejoin", "never"),
    ("kthena", "request_weight", 1.0),
    ("lightllm", "max_wait_tokens", 11),
    ("vtc-basic", "max_load", 50.0),
]


@pytest.mark.parametrize(("part", "name", "other"), CONSTANTS)
def test_a_constant_can_be_read_with_its_value_only(part, name, other):
    params = params_by_part()[part]
    stored = as_settings(part, params())
    assert name not in param_names(params)
    assert make_params(part, params, stored) == params()
    with pytest.raises(UsageError) as caught:
        make_params(part, params, {f"{part}.{name}": other})
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{part}.{name} = {other!r}: must be {getattr(params(), name)!r}")


def test_an_experiment_that_was_stored_with_a_constant_runs_again():
    spec = resolve({"scheduler": "round-robin+lcf"}, {"lcf.tenants": "tree"})
    text = to_toml(spec)
    assert "input_weight = 1" in text
    assert resolve({}, {}, tomllib.loads(text)) == spec
    edited = text.replace("input_weight = 1", "input_weight = 2")
    with pytest.raises(UsageError, match=r"^lcf.input_weight = 2: must be 1"):
        resolve({}, {}, tomllib.loads(edited))
