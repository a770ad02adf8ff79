"""The flags of ``fairbench serve``: the router before workers, and what guards it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from fairbench.config.backend_names import STARTED
from fairbench.config.flags.flag import OTHER, Flag, flags_of
from fairbench.config.flags.run import RUN
from fairbench.config.flags.texts import assigned, goodput_of, split_words, weights_of


def _flag(help: str, default: str = "", **rest: Any) -> Flag:
    """Declare a flag of a command whose help has no panels."""
    return Flag(help, OTHER, default, **rest)


class ServeFlags(TypedDict, total=False):
    """Flags of ``fairbench serve``: what they mean is in its ``--help``."""

    worker_url: Annotated[
        list[str] | None,
        _flag(
            "A worker that runs already, with its KV events if it publishes any; repeat it.",
            metavar="URL[,kv=tcp://HOST:PORT[,replay=tcp://HOST:PORT]]",
        ),
    ]
    worker_key: Annotated[
        str | None,
        _flag(
            "Key sent to every --worker-url as Authorization: Bearer KEY, in place of a "
            "client's. A file keeps it out of lists of processes.",
            metavar="KEY",
        ),
    ]
    worker_key_file: Annotated[
        Path | None,
        _flag(
            'Keys of workers, lines of "URL" = "KEY", and "*" = "KEY" for those not named.',
            metavar="FILE.toml",
        ),
    ]
    gateway: Annotated[str | None, RUN["gateway"].flag]
    saturation: Annotated[
        str | None,
        _flag("Saturation detector of the gateway.", default="concurrency", metavar="DETECTOR"),
    ]
    max_inflight_per_worker: Annotated[
        str | None,
        _flag(
            "Requests at a worker at once for --saturation concurrency. [default: auto, as "
            "many as workers say that they run]",
            metavar="N|auto",
        ),
    ]
    dp: Annotated[
        int | None, _flag("Start so many workers instead, and end them with this.", least=1)
    ]
    scheduler: Annotated[
        str, _flag("Pair of router and local scheduler, see `list schedulers`.", default="d2lpm")
    ]
    router: Annotated[str | None, _flag("Another router than the pair's.")]
    local: Annotated[str | None, _flag("Another local scheduler than the pair's; with --dp.")]
    settings: Annotated[
        Mapping[str, Any] | None,
        _flag(
            "Any parameter of the router and, with --dp, of the workers; may be repeated.",
            metavar="NAME.PARAM=VALUE",
            option="--set",
            read=lambda _, texts: assigned(texts),
            repeats=True,
        ),
    ]
    weights: Annotated[
        Mapping[str, float] | None,
        _flag(
            "Weights: entitlements relative to clients that are not named, which have 1.",
            metavar="NAME=WEIGHT,...",
            read=weights_of,
        ),
    ]
    host: Annotated[str, _flag("Address to listen on.", default="127.0.0.1")]
    port: Annotated[
        int, _flag("Port to listen on; 0 is any free port.", default="8000", least=0, most=65_535)
    ]
    allow_host: Annotated[
        list[str] | None,
        _flag(
            "Without --keys: another name by which the router may be asked (Host, Origin), next "
            "to addresses, localhost and this machine's name; repeat it. * is any.",
            metavar="NAME",
        ),
    ]
    goodput: Annotated[
        Mapping[str, str] | None,
        _flag(
            "Deadlines of requests, for schedulers that support them: ttft, tpot or e2el, in ms or "
            "s, of all of them or of those whose header x-llm-d-inference-objective is NAME; may "
            "be repeated.",
            metavar="[NAME.]LATENCY:TIME",
            read=goodput_of,
            repeats=True,
        ),
    ]
    tls_cert: Annotated[
        Path | None, _flag("Serve HTTPS, with this certificate and its chain.", metavar="FILE.pem")
    ]
    tls_key: Annotated[Path | None, _flag("The certificate's private key.", metavar="FILE.pem")]
    admin_port: Annotated[
        int | None,
        _flag(
            "Port of 127.0.0.1 where workers are listed, added and drained: GET and POST "
            "/workers, DELETE /workers/N; 0 is any free port.",
            default="none",
            least=0,
            most=65_535,
        ),
    ]
    admin_key_file: Annotated[
        Path | None, _flag("File with the key of --admin-port, a line.", metavar="FILE")
    ]
    peer: Annotated[
        list[str] | None,
        _flag(
            "Another router before the same workers, which is told what clients were charged "
            "here; repeat it, and name this one there.",
            metavar="URL",
        ),
    ]
    peer_key_file: Annotated[
        Path | None,
        _flag("File with the key that all --peer routers share, a line.", metavar="FILE"),
    ]
    otel: Annotated[
        bool,
        _flag(
            "Trace requests by OpenTelemetry; where to, its variables say "
            "(OTEL_EXPORTER_OTLP_ENDPOINT). Needs the extra otel."
        ),
    ]
    keys: Annotated[
        Path | None,
        _flag(
            'API keys, lines of "KEY" = "CLIENT", then tables of weights and quotas; it may '
            "change meanwhile. Without it a request says whose it is.",
            metavar="FILE.toml",
        ),
    ]
    client_from: Annotated[
        str | None,
        _flag(
            "Fields of a body that say whose a request is where no header does, strongest "
            "first: user, safety_identifier, prompt_cache_key.",
            default="user",
            metavar="user,...",
        ),
    ]
    tokenizer: Annotated[
        str | None, _flag("tokenizer.json for prompts in text.", default="tokens are approximated")
    ]
    max_queue: Annotated[
        int,
        _flag(
            "Most requests under way. When they are, the client with the most waiting ones "
            "makes room for others; more are answered with 429.",
            default="10000",
            least=1,
        ),
    ]
    max_queue_per_client: Annotated[
        int | None, _flag("Most of them of any one client.", default="--max-queue", least=1)
    ]
    max_body_memory: Annotated[
        int | None,
        _flag(
            "Most memory of long bodies under way, of which nobody gets all. [default: a quarter "
            "of the machine's]",
            metavar="MIB",
            least=1,
        ),
    ]
    vocab_size: Annotated[
        int | None,
        _flag(
            "Token ids that the model has; requests with others are refused. [default: as the "
            "workers say]",
            least=1,
        ),
    ]
    allow_regex: Annotated[
        bool,
        _flag(
            "Let clients send regular expressions and grammars (stop_regex, regex, ebnf, "
            "structural_tag, patterns in schemas). An engine evaluates them at every step: one "
            "that backtracks stops a worker for all clients."
        ),
    ]
    stall_timeout: Annotated[
        float,
        _flag(
            "A worker that has requests and produces nothing for so long is down, whatever its "
            "/health says.",
            default="120.0",
            metavar="SECONDS",
            least=1,
        ),
    ]
    grace: Annotated[
        float,
        _flag("Seconds that streams get to end after SIGINT or SIGTERM.", default="30.0", least=0),
    ]
    backend: Annotated[
        str, _flag("Engine to start with --dp.", default="sglang", metavar="|".join(STARTED))
    ]
    model: Annotated[str | None, _flag("Model that --dp serves.")]
    gpu: Annotated[
        str | None, _flag("Timing profile of emulators started with --dp.", default="a100")
    ]
    tp: Annotated[int | None, _flag("GPUs of each SGLang server started with --dp.")]
    load_format: Annotated[
        str | None, _flag("Load format of servers started with --dp, as in SGLang.")
    ]
    server_args: Annotated[
        Sequence[str] | None,
        _flag(
            "Another flag of each server started with --dp; may be repeated.",
            metavar="'--FLAG VALUE'",
            option="--server-arg",
            read=split_words,
            repeats=True,
        ),
    ]
    time_scale: Annotated[
        float | None, _flag("Seconds of an emulator's time in a second, with --dp.")
    ]
    server_python: Annotated[
        str | None,
        _flag("Python with SGLang for --dp.", default="$FAIRBENCH_SGLANG_PYTHON, or this one"),
    ]
    ready_check_timeout_sec: Annotated[
        float,
        _flag("Seconds within which workers of --dp must be ready.", default="600.0", least=1),
    ]
    log_dir: Annotated[
        Path, _flag("Directory for the logs of workers started with --dp.", default="results/serve")
    ]
    dry_run: Annotated[bool, _flag("Say what would be done, as TOML, and start nothing.")]


SERVE = flags_of(ServeFlags)
