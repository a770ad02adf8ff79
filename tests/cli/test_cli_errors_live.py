"""Test bad input of commands for real servers: a one-line error, exit code 2, nothing started."""

import socket

import pytest

WORKER = "http://127.0.0.1:1"
EMULATOR = ["serve", "--dp", "1", "--backend", "emulator", "--port", "0"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--worker-url", "http://a:0"], "'http://a:0' must be an address http://HOST[:PORT]"),
        (
            ["--worker-url", "http://a/?x=1"],
            "'http://a/?x=1' must be an address http://HOST[:PORT]",
        ),
        (["--worker-url", "http://u:p@a"], "must be an address http://HOST[:PORT]"),
        (["--worker-url", f"{WORKER},kv=tcp://a"], "'kv=tcp://a' must be kv=tcp://HOST:PORT or"),
        (["--worker-url", f"{WORKER},kv=tcp://a:1,kv=tcp://a:2"], "each given once"),
        (
            ["--worker-url", f"{WORKER},replay=tcp://a:1"],
            "replay needs kv, because a replay repeats missed KV events; give kv, too",
        ),
        (
            ["--worker-url", WORKER, "--worker-url", f"{WORKER}/"],
            f"--worker-url {WORKER}: this worker is given twice; give each worker once",
        ),
        (
            ["--worker-url", "http://127.0.0.1:9", "--worker-url", "http://localhost:9/"],
            "http://localhost:9: this worker is given twice (as http://127.0.0.1:9)",
        ),
        (["--worker-url", WORKER, "--time-scale", "2"], "--time-scale needs --dp"),
        (
            ["--worker-url", WORKER, "--dp", "2"],
            (
                "workers: give either --worker-url, for workers that already run, or --dp, "
                "to start workers"
            ),
        ),
        (["--worker-url", WORKER, "--host", "1.2.3.4"], "--host 1.2.3.4 --port 0: Cannot assign"),
        (["--dp", "1", "--backend", "emulatr"], "choose from emulator, sglang, vllm. Did you mean"),
        (["--dp", "1", "--backend", "endpoint"], "unknown backend 'endpoint': choose from"),
    ],
)
def test_serve_refuses_wrong_flags(refused, arguments, expected):
    assert expected in refused("serve", "--port", "0", *arguments)


def test_a_port_in_use_is_found_before_workers_are_started(refused):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = refused(*EMULATOR, "--port", port)
    assert line == f"--host 127.0.0.1 --port {port}: Address already in use"


def test_a_log_dir_that_is_a_file_is_refused(refused, tmp_path):
    (tmp_path / "file").write_text("")
    assert refused(*EMULATOR, "--log-dir", "file").startswith("--log-dir file: cannot be written: ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"sk-1" = 5', "key 1: the client must be a string"),
        ('[team]\n"sk-1" = "ann"', "key 1: the client must be a string"),
        ('"sk-1" = "ann\\n"', "key 1: the client must be a name, not 'ann\\n'"),
        ('"" = "ann"', "key 1: must be printable ASCII"),
        ('"sk-1 " = "ann"', "key 1: must be printable ASCII"),
        ('"sk-1" = "a"\n"sk-1" = "b"', "line 2: Cannot overwrite a value"),
        ('"sk-1" = ', "line 1: Invalid value"),
        ("", "must contain at least one key"),
    ],
)
def test_wrong_keys_are_named_and_never_shown(refused, tmp_path, text, expected):
    (tmp_path / "keys.toml").write_text(text)
    line = refused("serve", "--worker-url", WORKER, "--port", "0", "--keys", "keys.toml")
    assert line.startswith(f"keys.toml: {expected}")
    assert "sk-1" not in line


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("a b=c", "header 'a b': the name may contain only letters, digits and dashes"),
        ("é=c", "header 'é': the name may contain only letters"),
        ("a\nb=c", r"header 'a\nb': the name may contain only letters"),
        ("a=c\nd", "header a: the value must be one line of text"),
        ("Content-Length=5", "header Content-Length is set by fairbench itself; leave it out"),
    ],
)
def test_headers_that_would_break_a_request(refused, header, expected):
    arguments = ["--base-url", WORKER, "--workload", "chat", "--duration", "1"]
    assert expected in refused("run", *arguments, "--header", header)


def test_a_replay_port_needs_events(refused):
    line = refused("emulate", "--port", "0", "--kv-replay-port", "1")
    assert line == "--kv-replay-port needs --kv-events-port"


def test_a_misspelt_key_is_named_before_a_missing_one(refused, tmp_path):
    (tmp_path / "mine.toml").write_text("[gird]\ndp = [1]")
    assert "Did you mean 'grid'?" in refused("sweep", "mine.toml")
