"""The kinds of backend: the settings of real servers, emulated servers and a running endpoint.

Each kind of backend is an entry point of the group ``fairbench.backends``. The class attribute
``backend`` names a ``LiveBackend`` as ``MODULE:NAME``; the module is imported only for live runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from fairbench.config.backend import (
    ARGS,
    NEED_SESSIONS,
    REDACTED,
    BackendConfig,
    Count,
    SGLangPolicy,
    is_secret,
)
from fairbench.config.settings import ENGINE, MACHINE
from fairbench.errors import DataError, UsageError, unknown_name
from fairbench.files.formats import parsed
from fairbench.schedulers.eviction.registry import EVICTIONS
from fairbench.schedulers.params import param_names

PORT, WORKER_URLS, WORKER_URL_LIST = "port", "worker_urls", "worker_url_list"
PLACEHOLDERS: Mapping[str, str] = {
    PORT: "the port on which the router listens",
    "port2": "another free port, for the router's metrics",
    "host": "the address on which the router listens",
    WORKER_URLS: "the URL of a worker; the word that contains it is repeated for each worker",
    WORKER_URL_LIST: "the URLs of all workers, separated by commas",
    "model": "the model's name",
}
PORTS = 2  # maximum number of network ports that a router's command uses
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def check_router_command(words: Sequence[str]) -> None:
    """Raise ValueError for a router's command with a missing or an unknown placeholder."""
    if not words:
        raise ValueError("the router's command must not be empty")
    used = {name for word in words for name in _PLACEHOLDER.findall(word)}
    for name in sorted(used):
        if name not in PLACEHOLDERS:
            raise ValueError(str(unknown_name("placeholder", name, PLACEHOLDERS)))
    if PORT not in used:
        raise ValueError(
            f"the router's command must contain {{{PORT}}}, which stands for the router's port"
        )
    if used.isdisjoint({WORKER_URLS, WORKER_URL_LIST}):
        raise ValueError(
            f"the router's command must contain {{{WORKER_URLS}}} or {{{WORKER_URL_LIST}}}, which "
            "stand for the workers' URLs"
        )


def fill_command(
    words: Sequence[str], *, host: str, ports: Sequence[int], workers: Sequence[str], model: str
) -> list[str]:
    """Return the router's command with its placeholders filled in."""
    each_url = f"{{{WORKER_URLS}}}"
    values = {
        PORT: str(ports[0]),
        "port2": str(ports[1]),
        "host": host,
        WORKER_URL_LIST: ",".join(workers),
        "model": model,
        WORKER_URLS: each_url,
    }
    command: list[str] = []
    for word in words:
        filled = _PLACEHOLDER.sub(lambda found: values[found[1]], word)
        command += (
            [filled.replace(each_url, url) for url in workers] if each_url in filled else [filled]
        )
    return command


# fairbench itself sets the flags ``MANAGED_ARGS`` when it starts a server.
MANAGED_ARGS = frozenset(
    {"--host", "--port", "--model-path", "--model", "--tp-size", "--tp", "--load-format"}
    | {"--schedule-policy", "--kv-events-config", "--kv-events-port", "--time-scale", "--local"}
    | {"--scheduler-cls", "--tensor-parallel-size", "--enable-prompt-tokens-details"}
)
# Server flags with the prefixes ``RANK_ARGS`` start data-parallel ranks inside a server.
RANK_ARGS = ("--dp", "--data-parallel", "--enable-dp")


def check_server_args(args: Sequence[str]) -> None:
    """Raise ValueError for a server flag that fairbench itself sets or does not support."""
    for arg in args:
        flag = arg.partition("=")[0]
        if flag.startswith("--") and len(words := flag.split()) > 1:
            raise ValueError(
                f"server_args: {flag!r} has {len(words)} words, and each item must be one word"
            )
        if flag in MANAGED_ARGS:
            raise ValueError(f"server_args: {flag} is set by fairbench itself; leave it out")
        if flag.startswith(RANK_ARGS):
            raise ValueError(
                f"server_args: {flag} is not supported: fairbench counts a server as one "
                "worker, but each data-parallel rank has its own queue and cache; start more "
                "servers with fairbench's --dp instead"
            )


def check_given(args: Sequence[str], what: str = ARGS) -> None:
    """Raise UsageError if a secret was removed from a stored command line and not given again."""
    for word, following in zip(args, [*args, ""][1:], strict=True):
        flag, equals, value = word.partition("=")
        if is_secret(flag) and REDACTED in (value if equals else following,):
            raise UsageError(f"{what}: {flag} is secret and was not stored; give it again")


Api = Literal["generate", "completions", "chat"]

# fairbench's load driver itself sets the fields ``MANAGED_FIELDS`` of a request body.
MANAGED_FIELDS = frozenset(
    {"messages", "prompt", "input_ids", "stream", "max_tokens", "max_completion_tokens"}
)

# The settings ``ENGINE_ONLY`` have no flag in SGLang, or are not tested on real servers.
ENGINE_ONLY = (
    "full_reservation",
    "step_by_step",
    "num_continuous_decode_steps",
    "in_batch_prefix_caching",
    "batch_is_full",
    "prefix_match_us",
    "release",
    "enable_mixed_chunk",
)

VLLM_FLAGS = {
    "max_running_requests": "--max-num-seqs",
    "mem_fraction_static": "--gpu-memory-utilization",
}

# limits on ``time_scale`` (emulated seconds per real second)
MIN_TIME_SCALE, MAX_TIME_SCALE = 1e-6, 1e6


class LoadedBackend(BackendConfig):
    """The base class of backends to which this package's load driver sends requests."""

    runs: ClassVar[str] = "fairbench_load.runs:ServerRuns"
    backend: ClassVar[str]


class _Servers(LoadedBackend):
    """Servers that fairbench starts, with the command line flags ``server_args``."""

    api: Api = "generate"
    server_args: list[str] = Field([])
    run_options: ClassVar[frozenset[str]] = frozenset({"launcher"})

    @model_validator(mode="after")
    def _not_managed(self) -> Self:
        check_server_args(self.server_args)
        return self


class RealServers(_Servers):
    """Real servers with ``tp`` GPUs each; ``share_gpus`` lets several servers use one GPU.

    If ``schedule_policy`` is set, this engine policy runs instead of fairbench's scheduler.
    """

    tp: Count = 1
    share_gpus: bool = False
    load_format: str | None = None
    schedule_policy: str | None = None
    run_options: ClassVar[frozenset[str]] = frozenset({"launcher", "server_python"})

    @property
    def own_policy(self) -> str | None:
        return self.schedule_policy


class SGLang(RealServers):
    """Real SGLang servers."""

    backend: ClassVar[str] = "fairbench_load.backends.sglang:SGLangBackend"
    kind: Literal["sglang"] = "sglang"
    schedule_policy: SGLangPolicy | None = None
    evictions: ClassVar[frozenset[str]] = frozenset(EVICTIONS) - NEED_SESSIONS
    disobeyed: ClassVar[frozenset[str]] = frozenset(ENGINE_ONLY)


class VLLM(RealServers):
    """Real vLLM servers."""

    backend: ClassVar[str] = "fairbench_load.backends.vllm:VLLMBackend"
    kind: Literal["vllm"] = "vllm"
    api: Api = "completions"
    schedule_policy: Literal["fcfs"] | None = None
    evictions: ClassVar[frozenset[str]] = frozenset(EVICTIONS) - NEED_SESSIONS
    disobeyed: ClassVar[frozenset[str]] = (
        frozenset(param_names(MACHINE[ENGINE])) - VLLM_FLAGS.keys() - {"load_cap"}
    )

    @field_validator("api")
    @classmethod
    def _speaks(cls, api: Api) -> Api:
        if api == "generate":
            raise ValueError("the API of vLLM must be completions or chat")
        return api


class Emulator(_Servers):
    """Emulated servers (``fairbench emulate``): the simulated engine behind real HTTP.

    In one real second, ``time_scale`` seconds pass in the servers. ``router_command`` starts a
    third-party router in front of the servers. The third-party router receives requests in OpenAI's
    completions API unless ``api`` names another API.
    """

    backend: ClassVar[str] = "fairbench_load.backends.emulator:EmulatorBackend"
    kind: Literal["emulator"] = "emulator"
    time_scale: Annotated[float, Field(ge=MIN_TIME_SCALE, le=MAX_TIME_SCALE)] = 1.0
    router_command: list[str] | None = None
    has_profile: ClassVar[bool] = True

    @model_validator(mode="before")
    @classmethod
    def _speaks_openai(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("router_command") is not None:
            return {"api": "completions", **data}
        return data

    @field_validator("router_command")
    @classmethod
    def _can_be_filled(cls, words: list[str] | None) -> list[str] | None:
        if words is not None:
            check_router_command(words)
        return words

    @property
    def external_router(self) -> list[str] | None:
        return self.router_command


class Endpoint(LoadedBackend):
    """A running OpenAI-compatible server that fairbench did not start.

    - ``output_lengths`` is "exact" if requests contain ``min_tokens``, which not every server
      supports. If ``output_lengths`` is "free", answers may be shorter than the workload demands.
    - ``extra_body`` is a JSON object with more fields for every request; null removes a field.
    - ``max_tokens_field`` names the field that limits the length of an answer.
    - ``rate_limited`` decides whether a request with HTTP status 429 fails, or is sent again after
      the time in the answer's Retry-After header.
    - ``longest_wait_s`` is a request's maximum total wait after answers with status 429.
    """

    backend: ClassVar[str] = "fairbench_load.backends.endpoint:EndpointBackend"
    kind: Literal["endpoint"] = "endpoint"
    base_url: str
    api: Api = "completions"
    output_lengths: Literal["exact", "free"] = "exact"
    extra_body: str | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None
    rate_limited: Literal["fail", "wait"] | None = None
    longest_wait_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    is_managed: ClassVar[bool] = False
    disobeyed: ClassVar[frozenset[str]] = frozenset(param_names(MACHINE[ENGINE]))
    run_options: ClassVar[frozenset[str]] = frozenset({"headers"})

    @model_validator(mode="after")
    def _is_url(self) -> Self:
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url = {self.base_url!r}: write http://HOST:PORT")
        if parts.username or parts.password:
            raise ValueError(
                "base_url: must not contain credentials, because the URL is stored; give "
                "credentials with --header"
            )
        return self

    @field_validator("extra_body")
    @classmethod
    def _is_object(cls, text: str | None) -> str | None:
        fields = _extra_fields(text)
        for name in sorted(MANAGED_FIELDS & set(fields)):
            how = ", by --max-tokens-field" if name == "max_completion_tokens" else ""
            raise ValueError(f"{name} is set by fairbench itself{how}; leave it out")
        return text

    @property
    def extra_fields(self) -> dict[str, Any]:
        """The fields of ``extra_body``, which every request contains."""
        return _extra_fields(self.extra_body)


def _extra_fields(text: str | None) -> dict[str, Any]:
    """Return the fields of a JSON object; an empty text counts as {}."""
    if not text:
        return {}
    try:
        fields = parsed(text.encode(), "extra_body", strict=True)
    except DataError as error:
        raise ValueError(f"the extra body must be a JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("the extra body must be a JSON object")
    return fields
