"""Flags of ``fairbench serve`` for operators: keys, TLS, admin port, traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

WorkerKey = Annotated[
    str | None,
    Option(
        metavar="KEY",
        help="API key sent to every --worker-url as Authorization: Bearer KEY, in place of "
        "the client's key. --worker-keys keeps keys out of the process list.",
    ),
]
WorkerKeyFile = Annotated[
    Path | None,
    Option(
        metavar="FILE.toml",
        help='File with the API keys of workers: lines of "URL" = "KEY"; "*" = "KEY" is for '
        "all other workers.",
    ),
]
Promised = Annotated[
    list[str] | None,
    Option(
        "--goodput",
        metavar="[NAME.]LATENCY:TIME",
        help="Deadline of requests, for schedulers that support deadlines. LATENCY is ttft, "
        "tpot or e2el; TIME is in ms or s. With NAME, for requests whose header "
        "x-llm-d-inference-objective is NAME; may be repeated.",
    ),
]
TlsCert = Annotated[
    Path | None,
    Option(metavar="FILE.pem", help="File with the certificate and its chain, to serve HTTPS."),
]
TlsKey = Annotated[
    Path | None, Option(metavar="FILE.pem", help="File with the private key of the certificate.")
]
AdminPort = Annotated[
    int | None,
    Option(
        min=0,
        max=65_535,
        help="Port of 127.0.0.1 for administration: GET /workers lists workers, POST /workers "
        "adds one, DELETE /workers/N drains one; 0 chooses a free port. [default: none]",
    ),
]
AdminKeyFile = Annotated[
    Path | None,
    Option(metavar="FILE", help="File with the API key of --admin-port on one line."),
]
Peers = Annotated[
    list[str] | None,
    Option(
        metavar="URL",
        help="URL of another router in front of the same workers. The routers exchange the "
        "charges of clients, so each must name the other; may be repeated.",
    ),
]
PeerKeyFile = Annotated[
    Path | None,
    Option(metavar="FILE", help="File with the key that all --peer routers share, on one line."),
]
Otel = Annotated[
    bool,
    Option(
        "--otel",
        help="Export traces of requests with OpenTelemetry, configured by its environment "
        "variables such as OTEL_EXPORTER_OTLP_ENDPOINT. Needs the extra `otel`.",
    ),
]
Saturation = Annotated[
    str | None,
    Option(metavar="DETECTOR", help="Saturation detector of the gateway. [default: concurrency]"),
]
MaxInflight = Annotated[
    str | None,
    Option(
        metavar="N|auto",
        help="Limit on concurrent requests at a worker for --saturation concurrency. "
        "[default: auto, the limit that the worker reports]",
    ),
]
Keys = Annotated[
    Path | None,
    Option(
        metavar="FILE.toml",
        help='File with the API keys of clients: lines of "KEY" = "CLIENT", then tables of '
        "weights and quotas. The file is read again when it changes. Without it, each "
        "request names its client.",
    ),
]
ClientFrom = Annotated[
    str | None,
    Option(
        metavar="user,...",
        help="Fields of the body that identify the client of a request without an identifying "
        "header, in order of precedence: user, safety_identifier, prompt_cache_key. "
        "[default: user]",
    ),
]
Tokenizer = Annotated[
    str | None,
    Option(
        help="File tokenizer.json that tokenizes text prompts. [default: the number of tokens is "
        "estimated]"
    ),
]
MaxQueuePerClient = Annotated[
    int | None,
    Option(min=1, help="Limit on unfinished requests of each client. [default: --max-queue]"),
]
MaxBodyMemory = Annotated[
    int | None,
    Option(
        min=1,
        metavar="MIB",
        help="Limit on the memory of large request bodies, in MiB; a single client may use "
        "only a part of it. [default: a quarter of the machine's memory]",
    ),
]
ClientLimit = Annotated[
    bool,
    Option(
        "--client-limit/--no-client-limit",
        help="Limit each client's share of the workers. A client that is alone leaves a fifth "
        "of the workers free for others. Change the limits with --set "
        "gateway.client_limit, gateway.client_requests and gateway.client_reserve.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    Option(
        metavar="NAME",
        help="Host name that is accepted in the headers Host and Origin if --keys is not "
        "given, in addition to IP addresses, localhost and the name of this machine; * "
        "accepts any; may be repeated.",
    ),
]
AllowRegex = Annotated[
    bool,
    Option(
        "--allow-regex",
        help="Accept regular expressions and grammars from clients (stop_regex, regex, ebnf, "
        "structural_tag, patterns in schemas). An engine evaluates them at every step, "
        "so a slow expression can block a worker for all clients.",
    ),
]
StallTimeout = Annotated[
    float,
    Option(
        min=1,
        metavar="SECONDS",
        help="Seconds after which a worker that has requests and produces no tokens counts as "
        "down, even if its /health answers.",
    ),
]
VocabSize = Annotated[
    int | None,
    Option(
        min=1,
        help="Size of the model's vocabulary; requests with larger token ids are refused. "
        "[default: the size that the workers report]",
    ),
]
