"""The flags of the command ``fairbench serve``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypedDict

from fairbench.config.flags import (
    HOST,
    PORT,
    READY,
    READY_S,
    RUN,
    SERVER_PYTHON,
    SETTINGS,
    UNTESTED,
)
from fairbench.config.parse_flags import STARTED, Flag, flags_of


class ServeFlags(TypedDict, total=False):
    """The flags of ``fairbench serve``, with their help texts."""

    worker_url: Annotated[
        list[str] | None,
        Flag(
            "URL of a running worker, with the address of its KV events if it publishes "
            "them; may be repeated.",
            metavar="URL[,kv=tcp://HOST:PORT[,replay=tcp://HOST:PORT]]",
        ),
    ]
    worker_key: Annotated[
        str | None,
        Flag(
            "API key sent to every --worker-url as Authorization: Bearer KEY, in place of "
            "the client's key. --worker-key-file keeps keys out of the process list.",
            metavar="KEY",
        ),
    ]
    worker_key_file: Annotated[
        Path | None,
        Flag(
            'File with the API keys of workers: lines of "URL" = "KEY"; "*" = "KEY" is for '
            "all other workers.",
            metavar="FILE.toml",
        ),
    ]
    gateway: Annotated[str | None, RUN["gateway"]]
    saturation: Annotated[str | None, RUN["saturation"].but(default="concurrency")]
    max_inflight_per_worker: Annotated[
        str | None,
        Flag(
            "Limit on concurrent requests at a worker for --saturation concurrency. "
            "[default: auto, the limit that the worker reports]",
            metavar="N|auto",
        ),
    ]
    dp: Annotated[
        int | None,
        RUN["dp"].but(
            "Number of workers to start, instead of --worker-url; they end with the router.",
            default="",
            least=1,
        ),
    ]
    scheduler: Annotated[str, RUN["scheduler"]]
    router: Annotated[str | None, RUN["router"]]
    local: Annotated[
        str | None,
        RUN["local"].but("Local scheduler to use instead of the scheduler's own; needs --dp."),
    ]
    settings: Annotated[
        Mapping[str, Any] | None,
        SETTINGS.but("Parameter of the router or, with --dp, of the workers; may be repeated."),
    ]
    weights: Annotated[Mapping[str, float] | None, RUN["weights"].but(default="")]
    host: Annotated[str, HOST]
    port: Annotated[int, PORT.but(default=8000)]
    allow_host: Annotated[
        list[str] | None,
        Flag(
            "Host name that is accepted in the headers Host and Origin if --keys is not "
            "given, in addition to IP addresses, localhost and the name of this machine; * "
            "accepts any; may be repeated.",
            metavar="NAME",
        ),
    ]
    goodput: Annotated[
        Mapping[str, str] | None,
        RUN["goodput"].but(
            "Latency target (ttft, tpot or e2el, in ms or s) for schedulers that support "
            "deadlines; with NAME, only for requests whose header "
            "x-llm-d-inference-objective is NAME; may be repeated.",
            default="",
        ),
    ]
    tls_cert: Annotated[
        Path | None,
        Flag("File with the certificate and its chain, to serve HTTPS.", metavar="FILE.pem"),
    ]
    tls_key: Annotated[
        Path | None, Flag("File with the private key of the certificate.", metavar="FILE.pem")
    ]
    admin_port: Annotated[
        int | None,
        PORT.but(
            "Port of 127.0.0.1 where workers are listed, added and drained: GET and POST "
            "/workers, DELETE /workers/N; 0 chooses a free port.",
            default="none",
        ),
    ]
    admin_key_file: Annotated[
        Path | None, Flag("File with the API key of --admin-port on one line.", metavar="FILE")
    ]
    peer: Annotated[
        list[str] | None,
        Flag(
            "URL of another router in front of the same workers. The routers exchange the "
            "charges of clients, so each must name the other; may be repeated.",
            metavar="URL",
        ),
    ]
    peer_key_file: Annotated[
        Path | None,
        Flag("File with the key that all --peer routers share, on one line.", metavar="FILE"),
    ]
    otel: Annotated[
        bool,
        Flag(
            "Export traces of requests with OpenTelemetry, configured by its environment "
            "variables such as OTEL_EXPORTER_OTLP_ENDPOINT. Needs the extra `otel`."
        ),
    ]
    keys: Annotated[
        Path | None,
        Flag(
            'File with the API keys of clients: lines of "KEY" = "CLIENT", then tables of '
            "weights and quotas. The file is read again when it changes. Without it, each "
            "request names its client.",
            metavar="FILE.toml",
        ),
    ]
    client_from: Annotated[
        str | None,
        Flag(
            "Body fields that name the client of a request without a client header, "
            "strongest first: user, safety_identifier, prompt_cache_key.",
            default="user",
            metavar="user,...",
        ),
    ]
    tokenizer: Annotated[
        str | None,
        RUN["tokenizer"].but(
            "File tokenizer.json that tokenizes text prompts.", default="tokens are approximated"
        ),
    ]
    max_queue: Annotated[
        int,
        Flag(
            "Limit on unfinished requests. When the limit is reached, a waiting request "
            "of the client with the most waiting requests is refused with status 429 to "
            "make room for another client.",
            default=10_000,
            least=1,
        ),
    ]
    max_queue_per_client: Annotated[
        int | None, Flag("Limit on unfinished requests per client.", default="--max-queue", least=1)
    ]
    max_body_memory: Annotated[
        int | None,
        Flag(
            "Limit on the memory of request bodies, in MiB; a single client may use "
            "only a part of it. [default: a quarter of the machine's memory]",
            metavar="MIB",
            least=1,
        ),
    ]
    vocab_size: Annotated[
        int | None,
        Flag(
            "Size of the model's vocabulary; requests with larger token ids are refused. "
            "[default: the size that the workers report]",
            least=1,
        ),
    ]
    allow_regex: Annotated[
        bool,
        Flag(
            "Let clients send regular expressions and grammars (stop_regex, regex, ebnf, "
            "structural_tag, patterns in schemas). An engine evaluates them at each step; an "
            "expression that backtracks stops a worker for all clients."
        ),
    ]
    stall_timeout: Annotated[
        float,
        Flag(
            "Seconds after which a worker that has requests and produces no tokens counts as "
            "down, even if its /health answers.",
            default=120.0,
            metavar="SECONDS",
            least=1,
        ),
    ]
    grace: Annotated[
        float,
        Flag(
            "Seconds that running requests get to finish after SIGINT or SIGTERM.",
            default=30.0,
            least=0,
        ),
    ]
    backend: Annotated[
        str,
        RUN["backend"].but(
            "Engine to start with --dp.", default="sglang", metavar="|".join(STARTED)
        ),
    ]
    model: Annotated[str | None, RUN["model"].but("Model that --dp serves.", default="")]
    gpu: Annotated[str | None, RUN["gpu"].but("Timing profile of emulators started with --dp.")]
    tp: Annotated[
        int | None,
        RUN["tp"].but("Number of GPUs of each SGLang server started with --dp.", default=""),
    ]
    load_format: Annotated[
        str | None,
        RUN["load_format"].but(
            "SGLang's name of the weights' format, for servers started with --dp."
        ),
    ]
    mem_fraction_static: Annotated[
        float | None,
        RUN["mem_fraction_static"].but(
            "Fraction of GPU memory for weights and KV cache of workers started with --dp, in the "
            "form of `--set engine.mem_fraction_static`."
        ),
    ]
    server_args: Annotated[
        Sequence[str] | None,
        RUN["server_args"].but(
            "Other command-line options of each server started with --dp; may be repeated."
        ),
    ]
    allow_untested_release: Annotated[bool, UNTESTED]
    time_scale: Annotated[
        float | None,
        RUN["time_scale"].but(
            "Speed of emulators started with --dp: emulated seconds per real second.", default=""
        ),
    ]
    server_python: Annotated[
        str | None,
        SERVER_PYTHON.but(
            "Python interpreter with SGLang, for servers started with --dp.",
            default="$FAIRBENCH_SGLANG_PYTHON, or this one",
        ),
    ]
    ready_check_timeout_sec: Annotated[
        float,
        READY.but("Seconds within which workers started with --dp must be ready.", default=READY_S),
    ]
    log_dir: Annotated[
        Path,
        Flag("Directory for the logs of workers started with --dp.", default=Path("results/serve")),
    ]
    dry_run: Annotated[bool, Flag("Print the settings as TOML, and start nothing.")]


SERVE = flags_of(ServeFlags)
