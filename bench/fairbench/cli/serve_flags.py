"""Flags of ``fairbench serve`` for its operator: keys of workers, TLS, admin port, traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

WorkerKey = Annotated[
    str | None,
    Option(
        metavar="KEY",
        help="Key sent to every --worker-url as Authorization: Bearer KEY, in place of a "
        "client's. A file keeps it out of lists of processes.",
    ),
]
WorkerKeyFile = Annotated[
    Path | None,
    Option(
        metavar="FILE.toml",
        help='Keys of workers, lines of "URL" = "KEY", and "*" = "KEY" for those not named.',
    ),
]
Promised = Annotated[
    list[str] | None,
    Option(
        "--goodput",
        metavar="[NAME.]LATENCY:TIME",
        help="Deadlines of requests, for schedulers that support them: ttft, tpot or e2el, in "
        "ms or "
        "s, of all of them or of those whose header x-llm-d-inference-objective is NAME; may be "
        "repeated.",
    ),
]
TlsCert = Annotated[
    Path | None,
    Option(metavar="FILE.pem", help="Serve HTTPS, with this certificate and its chain."),
]
TlsKey = Annotated[Path | None, Option(metavar="FILE.pem", help="The certificate's private key.")]
AdminPort = Annotated[
    int | None,
    Option(
        min=0,
        max=65_535,
        help="Port of 127.0.0.1 where workers are listed, added and drained: GET and POST "
        "/workers, DELETE /workers/N; 0 is any free port. [default: none]",
    ),
]
AdminKeyFile = Annotated[
    Path | None, Option(metavar="FILE", help="File with the key of --admin-port, a line.")
]
Peers = Annotated[
    list[str] | None,
    Option(
        metavar="URL",
        help="Another router before the same workers, which is told what clients were charged "
        "here; repeat it, and name this one there.",
    ),
]
PeerKeyFile = Annotated[
    Path | None,
    Option(metavar="FILE", help="File with the key that all --peer routers share, a line."),
]
Otel = Annotated[
    bool,
    Option(
        "--otel",
        help="Trace requests by OpenTelemetry; where to, its variables say "
        "(OTEL_EXPORTER_OTLP_ENDPOINT). Needs the extra otel.",
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
        help="Requests at a worker at once for --saturation concurrency. [default: auto, as "
        "many as workers say that they run]",
    ),
]
Keys = Annotated[
    Path | None,
    Option(
        metavar="FILE.toml",
        help='API keys, lines of "KEY" = "CLIENT", then tables of weights and quotas; it may '
        "change meanwhile. Without it a request says whose it is.",
    ),
]
ClientFrom = Annotated[
    str | None,
    Option(
        metavar="user,...",
        help="Fields of a body that say whose a request is where no header does, strongest "
        "first: user, safety_identifier, prompt_cache_key. [default: user]",
    ),
]
Tokenizer = Annotated[
    str | None,
    Option(help="tokenizer.json for prompts in text. [default: tokens are approximated]"),
]
MaxQueuePerClient = Annotated[
    int | None, Option(min=1, help="Most of them of any one client. [default: --max-queue]")
]
MaxBodyMemory = Annotated[
    int | None,
    Option(
        min=1,
        metavar="MIB",
        help="Most memory of long bodies under way, of which nobody gets all. [default: a quarter "
        "of the machine's]",
    ),
]
ClientLimit = Annotated[
    bool,
    Option(
        "--client-limit/--no-client-limit",
        help="Keep a fifth of the workers free of any one client that is alone, so that others "
        "find room; several clients share what workers run and hold. Other shares by "
        "--set gateway.client_limit, client_requests and client_reserve.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    Option(
        metavar="NAME",
        help="Without --keys: another name by which the router may be asked (Host, Origin), next "
        "to addresses, localhost and this machine's name; repeat it. * is any.",
    ),
]
AllowRegex = Annotated[
    bool,
    Option(
        "--allow-regex",
        help="Let clients send regular expressions and grammars (stop_regex, regex, ebnf, "
        "structural_tag, patterns in schemas). An engine evaluates them at every step: one that "
        "backtracks stops a worker for all clients.",
    ),
]
StallTimeout = Annotated[
    float,
    Option(
        min=1,
        metavar="SECONDS",
        help="A worker that has requests and produces nothing for so long is down, whatever its "
        "/health says.",
    ),
]
VocabSize = Annotated[
    int | None,
    Option(
        min=1,
        help="Token ids that the model has; requests with others are refused. [default: as the "
        "workers say]",
    ),
]
