"""Test that help texts and messages name only flags that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from typer.main import get_command

from fairbench.cli.app import app, command_names, load

SOURCE = Path(__file__).resolve().parents[2] / "bench"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]")
COMMAND = re.compile(r"`(?:fairbench )?([a-z]+)(?: ([a-z]+))?")
# flags of SGLang, vLLM, Ray, git and nvidia-smi, and variables of style sheets
FOREIGN = {
    *("--data-parallel", "--data-parallel-size", "--device", "--disable-radix-cache"),
    *("--ec-transfer-config", "--enable-cache-report", "--enable-dp", "--enable-lora"),
    *("--enable-metrics", "--enable-prompt-tokens-details", "--gpu-memory-utilization"),
    *("--kv-cache-memory-bytes", "--kv-events-config", "--kv-transfer-config", "--max-num-seqs"),
    *("--model-path", "--no-enable-prefix-caching", "--num-gpu-blocks-override", "--tp-size"),
    *("--pipeline-parallel-size", "--runner", "--scheduler-cls", "--scheduling-policy"),
    *("--is-embedding", "--speculative-algorithm", "--enable-priority-scheduling"),
    *("--speculative-config", "--tensor-parallel-size", "--language-only", "--pp-size"),
    *("--kv-offloading-size", "--dp-size", "--disaggregation-mode", "--nnodes"),
    *("--data-parallel-backend", "--radix-eviction-policy"),
    *("--error-unmatch", "--no-renames", "--show-prefix"),
    *("--node-ip-address", "--porcelain", "--query-gpu", "--c0", "--c1", "--ink", "--rest"),
}


@cache
def commands():
    """Return the flags of each command by its name, such as ``trace cut``, and its help texts."""
    found = [
        ("", get_command(app)),
        *(each for name in command_names() for each in walk(name, load(name))),
    ]
    return {name: (flags_of(one), texts_of(one)) for name, one in found}


def walk(name, command):
    yield name, command
    for part, one in getattr(command, "commands", {}).items():
        yield from walk(f"{name} {part}".strip(), one)


def flags_of(command):
    options = (one for param in command.params for one in (*param.opts, *param.secondary_opts))
    return {*options, "--help"}


def texts_of(command):
    helps = [param.help for param in command.params if getattr(param, "help", None)]
    return [text for text in (command.help, command.epilog, *helps) if text]


def unknown(text, *names):
    """Return the flags in a text that neither our commands nor another named program has."""
    named = {" ".join(filter(None, found)) for found in COMMAND.findall(text)}
    named |= {found.partition(" ")[0] for found in named}
    known = set().union(*(commands()[name][0] for name in {*names, *named} & commands().keys()))
    return sorted(set(FLAG.findall(text)) - known)


@pytest.mark.parametrize("name", commands())
def test_help_names_flags_of_its_command(name):
    _, texts = commands()[name]
    assert [(text, wrong) for text in texts if (wrong := unknown(text, name))] == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("Give --worker-url twice.", []),
        ("--worker-keys keeps keys out.", ["--worker-keys"]),
        ("As `run --trace`, with --traces.", ["--traces"]),
        ("See `fairbench trace cut --head`.", []),
        ("See `fairbench trace cut --tail` and --wroker-url.", ["--tail", "--wroker-url"]),
    ],
)
def test_a_flag_that_does_not_exist_is_found(text, wrong):
    assert unknown(text, "serve") == wrong


def messages():
    """Yield each text of the source that is not a docstring, with its location."""
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docs = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(getattr(node, "body", None), list)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and id(node) not in docs:
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", node.value


@pytest.mark.slow
def test_messages_name_flags_of_some_command():
    known = set().union(*(flags for flags, _ in commands().values())) | FOREIGN
    wrong = [
        (place, flag)
        for place, text in messages()
        for flag in FLAG.findall(text)
        if flag not in known
    ]
    assert wrong == []
