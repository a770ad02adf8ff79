"""Give mutated files to the commands that read them.

``python tests/fuzz/fuzz_files.py 5000 [SEED]`` prints how each input ended. It also prints the
inputs that ended neither in success nor in a one-line error.
"""

import gzip
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from typer.testing import CliRunner

from fairbench.cli.app import app
from fairbench.config.resolve import resolve
from fairbench.execute.live_runs import NO_FLAGS
from fairbench.execute.run_or_recover import run_and_save
from fairbench.execute.tasks import run_context
from fairbench.workloads.traffic import recorded

LIMIT_S = 60  # an input may ask for a long simulation, which is no failure
ODD = [
    *(None, True, -1, 0, 1, 2.5, 2**31, 2**53, 2**63, 2**64, 10**400, 1e30, 1e300, -1e300),
    *(float("inf"), float("nan"), "", "a", "\0", "\x1b[2J", "::error::a", "\ud800", "é" * 300),
    *([], {}, [[]], [None], ["a"], [1, "a"], {"a": {}}, [0] * 3, {"client": []}),
]
BYTES = [
    *(b"null", b"-1", b"1e999", b"9" * 30, b"9" * 5000, b"NaN", b"[]", b"{}", b'"', b"\\", b"\xff"),
    *(
        b"\x00",
        b"\n",
        b"\r",
        b",",
        b"=",
        b"[",
        b"]" * 9,
        b"[" * 2000,
        b'{"a":' * 2000,
        b"\xf0\x9f\x98\x80",
    ),
    *(b"2024-01-01T00:00:00Z", b"true", b"''", b"\xef\xbb\xbf", b"\\ud800"),
]
REQUEST = {"client": "a", "start": 0.5, "first_token": 1.0, "end": 2.0, "status": "finished"}
REQUEST |= {"input_tokens": 9, "output_tokens": 4, "cached_tokens": 2, "worker": 0, "program": 1}
BENCH = {"input_lens": [9, 8], "output_lens": [2, 3], "ttfts": [0.1, 0.2], "errors": ["", ""]}
BENCH |= {"itls": [[0.1], [0.1, 0.2]], "request_rate": float("inf"), "max_concurrency": None}
MEASURED = {"path": "VTC/all_results_overload.jsonl", "client": [0, 1], "prompt_len": [5, 5]}
MEASURED |= {"output_len": [5, 5], "req_time": [0, 1], "recorded": "2023-12"}
MEASURED |= {"first_token_latency": [1, 1], "request_latency": [2, 2], "weights": [1, 2]}
VTC = {"req_time": 0.5, "first_token_latency": 0.1, "request_latency": 1.5, "adapter_dir": "a"}
VTC |= {"prompt_len": 5, "output_len": 6}
CHAT = {
    "conversation_a": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]
}
TRACE = {"t": 0.5, "client": 0, "prompt_len": 5, "output_len": 6}
PARAMS = """[params]
turns_min = 1
turns_max = 2
think_mean_s = 1.0
user_tokens = 9.0
user_sigma = 0.5
output_tokens = 9.0
output_sigma = 0.5
max_new_tokens = 16
"""
WORKLOAD = f"""
name = "mine"
program = "chat"
latency = "program"
clients = 2
duration_s = 20.0
warmup_s = 0.0
max_drain_s = 60.0
{PARAMS}[scenarios.s1]
rate = 1.0
[scenarios.s2]
rate = 1.0
[[scenarios.s2.misbehaving]]
client = 1
rate_multiple = 4.0
"""
SINGLE = "[params]\ninput_min = 5\ninput_max = 9\noutput_min = 5\noutput_max = 9\n"
TRACED = WORKLOAD.replace('"chat"', '"single"').replace(PARAMS, SINGLE)
TRACED = TRACED.replace(
    "\nclients",
    """
arrivals = { kind = "trace", params = { file = "t.jsonl" } }
clients""",
)
SHORT = ["--num-programs", "1"]


def jsonl(*records):
    return "".join(json.dumps(record) + "\n" for record in records).encode()


INPUTS = {  # for each file name, its valid content and the command that reads it
    "lines.jsonl": (
        jsonl(REQUEST, {**REQUEST, "client": "b", "program": 2}),
        ["score", "lines.jsonl"],
    ),
    "bench.jsonl": (jsonl(BENCH), ["score", "bench.jsonl", "--json"]),
    "vtc.json": (jsonl({"result": {"responses": [VTC, VTC]}}), ["score", "vtc.json"]),
    "measured.jsonl": (jsonl(MEASURED), ["validate", "measured.jsonl"]),
    "tot.jsonl": (
        jsonl({"question": "a b", "answer": "c"}),
        ["run", *SHORT, "--workload", "tot", "--dataset-path", "tot.jsonl"],
    ),
    "chat.jsonl": (
        jsonl(CHAT, CHAT),
        ["run", *SHORT, "--workload", "chat", "--dataset-path", "chat.jsonl"],
    ),
    "tot.csv": (
        b"question,answer\na b,c\nd,e\n",
        ["run", *SHORT, "--workload", "tot", "--dataset-path", "tot.csv"],
    ),
    "w.toml": (WORKLOAD.encode(), ["run", *SHORT, "--workload", "w.toml", "--scenario", "s1"]),
    "w2.toml": (WORKLOAD.encode(), ["run", *SHORT, "--workload", "w2.toml", "--scenario", "s2"]),
    "t.jsonl": (jsonl(TRACE, TRACE), ["run", "--workload", "traced.toml"]),
}
KEYS = b'"KEY-1" = "ann"\n"KEY-2" = "bob"\n[clients.ann]\nweight = 4\ntokens_per_min = 100\n'
SWEEP = (
    b'name = "mine"\n[base]\nworkload = "tot"\nnum_programs = 1\n[[grid]]\nscheduler = ["vtc"]\n'
)
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"},
}
SERVE = ["serve", "--worker-url", "http://127.0.0.1:9", "--dry-run"]
TOKENS = ["run", *SHORT, "--workload", "tot", "--dataset-path", "words.jsonl", "--tokenizer"]
INPUTS |= {
    "lines.jsonl.gz": (gzip.compress(jsonl(REQUEST, REQUEST)), ["score", "lines.jsonl.gz"]),
    "keys.toml": (KEYS, [*SERVE, "--keys", "keys.toml"]),
    "workers.toml": (b'"*" = "KEY"\n', [*SERVE, "--worker-key-file", "workers.toml"]),
    "admin.txt": (b"KEY\n", [*SERVE, "--admin-port", "0", "--admin-key-file", "admin.txt"]),
    "sweep.toml": (SWEEP, ["sweep", "sweep.toml", "--dry-run"]),
    "tokenizer.json": (json.dumps(TOKENIZER).encode(), [*TOKENS, "tokenizer.json"]),
}
ACCESS = b"time,client,input_tokens,output_tokens,ttft,latency\n"
FLOODED = b"".join(
    (
        *(b"%d,ann,90,9,0.2,1\n" % n for n in range(20)),
        *(b"%d.%d,bob,900,90,2,9\n" % (n, m) for n in range(5, 9) for m in range(9)),
    )
)
DIAGNOSE = ["diagnose", "--no-plan", "--dp", "1", "--disable-tqdm"]
INPUTS |= {
    "flood.csv": (ACCESS + FLOODED, [*DIAGNOSE, "flood.csv", "--report", "page.html"]),
    "once.csv": (ACCESS + b"0,ann,90,9,0.2,1\n" * 3, [*DIAGNOSE, "once.csv", "--report", "p.md"]),
    "access.csv": (ACCESS + FLOODED, ["report", "access.csv", "-o", "page.html"]),
    "scored.csv": (ACCESS + FLOODED, ["score", "scored.csv", "--report", "page.html"]),
}
RUN_COMMANDS = (
    ["show", "run"],
    ["show", "run", "--output-file", "out.jsonl", "--output-details"],
    ["score", "run"],
    ["report", "run", "-o", "page.html"],
    ["check", "run", "good"],
    ["check", "good", "run", "--fail-if", "victim_p99_s:+10%"],
    ["run", "run/experiment.toml", *SHORT],
    ["compare", "run", "good"],
)


class TooLong(BaseException):
    """The input asks for a simulation that takes too long."""


def mutated(data, rng):
    """Change a few bytes, or a value of the JSON in them."""
    if rng.random() < 0.5 and (structured := _structured(data, rng)) is not None:
        return structured
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(changed) + 1)
        to = min(len(changed), at + rng.choice((0, 1, 3, 20)))
        kind = rng.randrange(4)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del changed[at:to]
        elif kind == 2:
            changed[at:to] = rng.choice(BYTES)
        else:
            changed[at:at] = changed[at:to]
    return bytes(changed)


def _structured(data, rng):
    """Return JSON or TOML text with one odd value, or None for other text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    try:
        lines = [json.loads(text)]
    except ValueError:
        try:
            lines = [json.loads(line) for line in text.splitlines()]
        except ValueError:
            found = list(re.finditer(r"(?m)(?<== ).*$", text))
            if not found:
                return None
            place = rng.choice(found)
            odd = rng.choice(BYTES).decode(errors="replace")
            return (text[: place.start()] + odd + text[place.end() :]).encode()
    at = rng.randrange(len(lines))
    lines[at] = _with_odd(lines[at], rng)
    return jsonl(*lines)


def _with_odd(value, rng):
    inner = []
    if isinstance(value, dict | list):
        inner = list(value) if isinstance(value, dict) else list(range(len(value)))
    if not inner or rng.random() < 0.15:
        return rng.choice(ODD)
    key = rng.choice(inner)
    if isinstance(value, dict) and rng.random() < 0.1:
        return {k: v for k, v in value.items() if k != key}
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = _with_odd(value[key], rng)
    return copy


@contextmanager
def prepared():
    """Prepare and enter a directory with every valid input and a run ``good``."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        flags = {"workload": "tot", "scenario": "s1", "num_programs": 2}
        with run_context() as context:
            run_and_save(resolve(flags), NO_FLAGS, here / "runs", context)
        (here / "traced.toml").write_text(TRACED)
        (here / "words.jsonl").write_bytes(INPUTS["tot.jsonl"][0])
        next((here / "runs").iterdir()).rename(here / "good")
        before = Path.cwd()
        os.chdir(here)
        try:
            yield here
        finally:
            os.chdir(before)


def attempt(here, rng):
    """Give a mutated input to a command. Return how it ended, and the input if it ended badly."""
    if rng.random() < 0.6:
        name = rng.choice(list(INPUTS))
        data, command = INPUTS[name]
    else:
        copy_run(here)
        file = rng.choice(sorted((here / "run").iterdir()))
        name, data, command = f"run/{file.name}", file.read_bytes(), rng.choice(RUN_COMMANDS)
    given = mutated(data, rng)
    (here / name).write_bytes(given)
    ended = outcome(command)
    shutil.rmtree(here / "results", ignore_errors=True)
    return ended, name, command, given


def copy_run(here):
    """Copy the valid run ``good`` to ``run``, which is then damaged."""
    shutil.rmtree(here / "run", ignore_errors=True)
    shutil.copytree(here / "good", here / "run")


def outcome(command):
    """Return ``0``, ``1`` (only ``check``), ``2`` with its line, ``too long``, or the fault."""

    def too_long(*_):
        raise TooLong

    recorded._arrivals_by_client.cache_clear()  # otherwise, the first file would be read for all
    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LIMIT_S)
    try:
        into = ["--result-dir", "results"] if command[0] == "run" else []
        result = CliRunner().invoke(app, [*command, *into])
    except TooLong:
        return "too long"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    if isinstance(result.exception, TooLong):
        return "too long"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return "".join(traceback.format_exception(result.exception)[-3:])
    complaints = result.stderr.splitlines()
    if result.exit_code == 2 and (len(complaints) != 1 or result.stdout):
        return f"2, but with {complaints!r} and {result.stdout[:200]!r}"
    if result.exit_code not in ((0, 1, 2) if command[0] == "check" else (0, 2)):
        return f"{result.exit_code} with {complaints!r}"
    return str(result.exit_code)


def well(ended, command):
    """Tell whether the outcome is acceptable. Only a simulating command may take long."""
    return ended in ("0", "1", "2") or (
        ended == "too long" and command[0] in ("run", "compare", "diagnose")
    )


def main(count, seed):
    rng = random.Random(seed)
    ends = Counter()
    with prepared() as here:
        for number in range(count):
            ended, name, command, given = attempt(here, rng)
            ends[ended if well(ended, command) else "wrong"] += 1
            if not well(ended, command):
                print(
                    f"{number}: {name} {' '.join(command)}\n{given[:2000]!r}\n{ended}\n", flush=True
                )
    print(f"seed {seed}, {count} inputs:", dict(sorted(ends.items())))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
