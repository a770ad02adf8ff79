"""Test profile files: what was written is read, and errors name the file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairbench.config.resolve import resolve
from fairbench.errors import DataError, UsageError
from fairbench.files.formats import dumps
from fairbench.hardware.catalogue import (
    is_known,
    load_profile,
    profile_ids,
    profile_of_table,
    read_profile,
    resolve_profile,
    table_of,
)

QWEN = "h100-80gb/qwen3-14b/tp1/measured-vllm"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Write a profile of Qwen3-14B to ``mine.toml`` in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.toml"
    path.write_text(dumps(table_of(load_profile(QWEN), "a test", {"MAPE": 1.0})))
    return path


@given(st.sampled_from(profile_ids()))
def test_a_written_file_is_read_back(name):
    profile = load_profile(name)
    table = table_of(profile, "a test", {})
    again = profile_of_table(table, "table")
    assert table_of(again, "a test", {}) == table
    assert again.decode_ps(20, 9_000) == pytest.approx(profile.decode_ps(20, 9_000), rel=1e-5)
    assert again.fit_domain == profile.fit_domain
    assert again.frontend == profile.frontend


def test_a_profile_file_can_be_given_as_a_gpu(file):
    spec = resolve({"gpu": "mine.toml", "workload": "chat"})
    assert spec.model == "qwen3-14b"
    assert spec.gpu.startswith("h100-80gb/qwen3-14b/tp1/file:mine.toml@")
    assert resolve({"gpu": spec.gpu, "model": spec.model}).gpu == spec.gpu
    found, bundled = resolve_profile(spec.gpu, spec.model), load_profile(QWEN)
    assert found.coefficients_ms == pytest.approx(bundled.coefficients_ms)
    assert found.prefill_ps([(0, 512)]) == bundled.prefill_ps([(0, 512)])
    assert is_known(spec.gpu)


def test_a_changed_file_is_noticed(file):
    gpu = resolve({"gpu": "mine.toml"}).gpu
    file.write_text(file.read_text().replace("c_w = 10.65", "c_w = 20.62"))
    with pytest.raises(
        UsageError, match=r"gpu mine.toml: the file has changed since .* --gpu mine.toml"
    ):
        resolve({"gpu": gpu})
    assert not is_known(gpu)
    assert resolve({"gpu": "mine.toml"}).gpu != gpu


def test_another_model_than_that_of_the_file_is_refused(file):
    assert resolve({"gpu": "mine.toml", "model": "Qwen/Qwen3-14B"}).model == "qwen3-14b"
    with pytest.raises(UsageError, match=r"model = 'qwen3-8b': must be 'qwen3-14b', the model of"):
        resolve({"gpu": "mine.toml", "model": "qwen3-8b"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('grade = "', 'grad = "', "unknown key 'grad': .* Did you mean 'grade'"),
        ("c_w = 10.65", "", "coefficients_ms.c_w: missing"),
        (
            "c_w = 10.65",
            "c_w = -1.0",
            r"coefficients_ms\.c_w = -1\.0: must be greater than or equal to 0",
        ),
        ("c_w = 10.65", 'c_w = "a"', r"coefficients_ms.c_w = 'a': must be a valid number"),
        (
            "c_w = 10.65",
            "c_w = 1.0\nc_e = 1.0",
            r"coefficients_ms = .*: c_e and q_e must be given together",
        ),
        ("c_w = 10.65", "c_w = 1.0\nc_x = 1.0", r"unknown key 'coefficients_ms.c_x'"),
        ("p = 1.7927", "p = 0.5", r"coefficients_ms.p = 0.5: must be greater than or equal to 1"),
        ("/tp1/", "/two/", r"profile = .*: must be GPU/MODEL/tpN/SOURCE"),
        ("/tp1/", "/tp0/", r"profile = .*: must be GPU/MODEL/tpN/SOURCE, with N from 1 to 999"),
        ("/tp1/", "/tp99999999999999999999/", r"profile = .*: must be GPU/MODEL/tpN/SOURCE"),
        (
            "mem_fraction_static = 0.83",
            "mem_fraction_static = 83",
            "pool.mem_fraction_static = 83: must be less than or equal to 1",
        ),
        (
            "kv_bytes_per_token = 163840",
            "kv_bytes_per_token = 0",
            "pool.kv_bytes_per_token = 0.0: must be greater than 0",
        ),
        (
            "chunked_prefill_size = 8192",
            "chunked_prefill_size = 0",
            "pool.chunked_prefill_size = 0: must be greater than or equal to 1",
        ),
        ("weights_gib = 27.5", "", "pool.weights_gib: missing"),
    ],
)
def test_errors_in_a_file_are_named(file, old, new, message):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(DataError, match=f"mine.toml: {message}"):
        read_profile("mine.toml")


def test_a_description_of_a_gpu_is_no_profile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "l20.toml").write_text('name = "l20"\nmemory_gb = 48\n')
    for name, wrong in (
        ("l20.toml", "l20.toml: describes a GPU, not"),
        ("l20.json", "unknown gpu 'l20.json'"),
    ):
        how = f"profile MODEL --gpu-spec {name} -o PROFILE.toml`, then give --gpu PROFILE.toml"
        with pytest.raises(UsageError, match=f"{wrong}.*{how}"):
            resolve({"gpu": name})


def test_a_missing_file_is_refused():
    with pytest.raises(DataError, match=r"nothing.toml: cannot be read: No such file"):
        resolve({"gpu": "nothing.toml"})
