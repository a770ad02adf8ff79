"""Test the calibration of derived profiles with the output of one benchmark.

A simulated server with known costs answers the benchmark, which must recover these costs.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.errors import DataError
from fairbench_calibration.profiling.calibrate import calibrated, decoded
from fairbench_calibration.profiling.derived_profile import derive
from fairbench_logs.scoring.records import read_answers


def served(profile, concurrency, count=60, prompt=200, output=100):
    """Return answers of a closed loop in which rounds of equal requests start together."""
    start, columns = 0.0, []
    for _ in range(count // concurrency):
        lead_s = profile.prefill_ps([(0, prompt)] * concurrency) * 1e-12
        steps = [
            profile.decode_ps(concurrency, concurrency * (prompt + n)) for n in range(1, output)
        ]
        first, last = start + lead_s, start + lead_s + sum(steps) * 1e-12
        columns += [(start, first, last)] * concurrency
        start = last
    begin, first, last = np.array(columns).T
    size = len(begin)
    return begin, first, last, np.full(size, float(prompt)), np.full(size, float(output))


def changed(profile, memory, sequence, launch):
    costs = dict(profile.coefficients_ms)
    for name in {"c_w", "c_K", "c_e"} & costs.keys():
        costs[name] *= memory
    costs["c_nd"] *= sequence
    costs["c0"] *= launch
    return replace(profile, coefficients_ms=costs, host_ms=profile.host_ms * launch)


def answers(run):
    _, first, last, prompt, output = run
    return first, last, prompt, prompt, output


@pytest.mark.parametrize("concurrency", [1, 12, 60])
@pytest.mark.parametrize(
    ("model", "gpu", "true"),
    [
        ("qwen2.5-7b", "a40", (1.25, 1.0, 1.0)),
        ("llama-3.1-8b", "rtx4090", (0.85, 0.5, 2.0)),
        ("qwen3-30b-a3b", "h200", (1.1, 2.0, 1.5)),
    ],
)
def test_the_server_of_the_benchmark_is_predicted_at_other_loads(model, gpu, true, concurrency):
    start = derive(model, gpu, engine="vllm", roofline=True).profile
    server = changed(start, *true)
    found = calibrated(decoded(*answers(served(server, concurrency))), start, mixed=True)
    batch = concurrency
    ours, theirs = (one.decode_ps(batch, batch * 250) for one in (found, server))
    assert ours == pytest.approx(theirs, rel=0.02)
    for other in (1, 12, 60):
        errors = [
            abs(one.decode_ps(other, other * 250) / server.decode_ps(other, other * 250) - 1)
            for one in (start, found)
        ]
        assert errors[1] < max(0.1, errors[0])


def test_only_reads_sequences_and_launches_change_and_the_profile_says_so():
    start = derive("qwen2.5-7b", "a40", engine="vllm", roofline=True).profile
    server = changed(start, 1.2, 1.0, 1.0)
    found = calibrated(decoded(*answers(served(server, 12))), start, mixed=True)
    same = ("c_T", "p", "c_A", "c_npf")
    assert [found.coefficients_ms[k] for k in same] == [start.coefficients_ms[k] for k in same]
    assert found.profile_id == "a40-48gb/qwen2.5-7b/tp1/calibrated"
    assert found.grade.startswith("calibrated: memory reads x1.")
    assert "60 requests of one run" in found.grade


def vllm_bench(run):
    begin, first, last, prompt, output = run
    gaps = (last - first) / (output - 1)
    return {
        "date": "20260101-000000", "backend": "vllm", "endpoint_type": "openai",
        "request_rate": "inf", "duration": float(last.max()), "completed": len(begin),
        "input_lens": prompt.astype(int).tolist(), "output_lens": output.astype(int).tolist(),
        "ttfts": (first - begin).tolist(), "start_times": begin.tolist(),
        "itls": [[gap] * int(n - 1) for gap, n in zip(gaps, output, strict=True)],
        "generated_texts": [""] * len(begin), "errors": [""] * len(begin),
    }  # fmt: skip


def sglang_bench(run, concurrency):
    table = vllm_bench(run)
    del table["start_times"], table["endpoint_type"], table["date"]
    return table | {
        "backend": "sglang",
        "request_rate": float("inf"),
        "max_concurrency": concurrency,
    }


def log_of_requests(run):
    rows = [
        {
            "start": b,
            "ttft": f - b,
            "latency": e - b,
            "input_tokens": int(p),
            "output_tokens": int(o),
        }
        for b, f, e, p, o in zip(*(one.tolist() for one in run), strict=True)
    ]
    return "\n".join(map(json.dumps, rows))


@pytest.mark.parametrize("form", ["vllm", "sglang", "log"])
def test_every_form_of_output_gives_the_same_answers(tmp_path, form):
    start = derive("qwen2.5-7b", "a40", engine="vllm", roofline=True).profile
    run = served(start, 12)
    text = {
        "vllm": lambda: json.dumps(vllm_bench(run)),
        "sglang": lambda: json.dumps(sglang_bench(run, 12)),
        "log": lambda: log_of_requests(run),
    }[form]()
    path = tmp_path / "bench.jsonl"
    path.write_text(text)
    for ours, true in zip(read_answers(path), answers(run), strict=True):
        assert ours - ours.min() == pytest.approx(true - true.min(), abs=2e-6)


def test_the_command_writes_the_profile(tmp_path):
    start = derive("qwen2.5-7b", "a40", engine="vllm", roofline=True).profile
    bench, out = tmp_path / "bench.json", tmp_path / "mine.toml"
    bench.write_text(json.dumps(vllm_bench(served(changed(start, 1.2, 1, 1), 12))))
    flags = ("--model", "qwen2.5-7b", "--gpu", "a40", "--engine", "vllm", "--roofline")
    found = CliRunner().invoke(app, ["profile", "calibrate", str(bench), *flags, "-o", str(out)])
    assert found.exit_code == 0, found.stderr
    assert "a40-48gb/qwen2.5-7b/tp1/calibrated" in found.output
    assert "calibrated with bench.json" in out.read_text()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"latency": 3.0, "output_tokens": 8}, "the first token is missing"),
        ({"latency": 3.0, "ttft": 3.0, "output_tokens": 8}, "no request has a time to first token"),
        ({"latency": 3.0, "ttft": 1.0, "output_tokens": 1}, "no request has a time to first token"),
    ],
)
def test_answers_without_times_per_token_are_refused(tmp_path, answer, message):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"start": 0, "input_tokens": 9, **answer}))
    with pytest.raises(DataError, match=message):
        read_answers(path)


def test_a_file_without_known_columns_is_refused_with_its_columns(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps({"pages": {"items": [{"start": 0}]}}))
    with pytest.raises(DataError, match=r"needs start, input_tokens, .*\(it has pages"):
        read_answers(path)
