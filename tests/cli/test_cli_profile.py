"""Test the output, files and refusals of ``fairbench profile``."""

import json

import pytest
from typer.testing import CliRunner

from fairbench.cli.app import app


def fairbench(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_model_and_a_gpu_make_a_file_that_a_run_takes(tmp_path):
    path = tmp_path / "qwen.toml"
    found = fairbench("profile", "qwen3-14b", "--gpu", "h100", "--roofline", "-o", path)
    assert found.exit_code == 0, found.output
    assert "h100-80gb/qwen3-14b/tp1/roofline" in found.output
    assert (
        "derived: roofline of data sheet and config; time per token within 10% in " in found.output
    )
    assert "248,359 tokens of 163,840 bytes on each GPU" in found.output
    flags = ("--gpu", path, "--workload", "chat", "--scheduler", "fcfs", "--num-programs", 1)
    run = fairbench("run", *flags, "--json", "--result-dir", tmp_path / "runs")
    assert run.exit_code == 0, run.output
    summary = json.loads(run.stdout.splitlines()[-1])
    assert summary["timing_profile"].startswith(f"h100-80gb/qwen3-14b/tp1/file:{path}@")
    assert summary["timing_grade"].startswith("derived: roofline")
    assert summary["completed"] > 0


def test_the_help_shows_whole_sentences_and_the_short_form():
    shown = fairbench("profile", "--help").stdout
    assert "..." not in shown.replace("[ARGS]...", "")
    assert "fairbench profile MODEL --gpu GPU" in shown


def test_derive_is_the_default_command():
    flags = ("qwen3-8b", "--gpu", "a100", "--roofline", "--json")
    assert fairbench("profile", *flags).stdout == fairbench("profile", "derive", *flags).stdout


def test_a_plot_is_written(tmp_path):
    pytest.importorskip("matplotlib", reason="the plot extra is not installed")
    path = tmp_path / "fit.png"
    found = fairbench("profile", "gpt-oss-20b", "--gpu", "a100", "--roofline", "--plot", path)
    assert found.exit_code == 0, found.output
    assert path.stat().st_size > 1_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nosuch", "--gpu", "h100"), "unknown model 'nosuch'"),
        (("qwen3-8b", "--gpu", "h1000"), "unknown gpu 'h1000'"),
        (("qwen3-8b", "--gpu", "h100", "--tp", 3), "--tp 3: must divide the 32 attention heads"),
        (("qwen3-8b", "--gpu", "h100", "-o", "x.json"), "--output-file x.json: must end in .toml"),
        (("qwen3-8b", "--gpu", "h100", "--plot", "x.gif"), "--plot x.gif: must end in .svg, .png"),
        (("qwen3-32b", "--gpu", "l40s"), "weights take 61.0 GiB on each of 1 GPUs"),
        (("qwen3-8b",), "give either --gpu NAME or --gpu-spec FILE"),
        (("qwen3-8b", "--gpu", "h100", "--interconnect", "nvlnk"), "Did you mean 'nvlink'?"),
        (
            ("qwen3-8b", "--gpu", "h100", "--kv-dtype", "int4"),
            "--kv-dtype int4: choose from fp16, fp8",
        ),
        (("qwen3-8b", "--gpu", "h100", "--gpu-spec", "x.toml"), "give either --gpu NAME or"),
        (("calibrate", "none.json", "--model", "qwen3-8b", "--gpu", "a40"), "none.json"),
        (("probe", "--base-url", "http://127.0.0.1:9", "--gpu", "h100"), "cannot be probed"),
    ],
)
def test_impossible_values_are_refused(arguments, message):
    found = fairbench("profile", *arguments)
    assert found.exit_code == (1 if "probe" in arguments else 2)
    assert message in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_fit_is_a_flag_of_validate(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"path": "somewhere"}\n')
    by_name, by_flag = fairbench("profile", "fit", path), fairbench("validate", path, "--fit")
    assert (by_name.exit_code, by_name.stderr) == (by_flag.exit_code, by_flag.stderr)
    assert by_name.exit_code == 2
