"""Servers on which an experiment can run: real or emulated servers, or a running endpoint.

The backend decides what is measured, so it is part of an experiment's identity. Options that affect
only a single run, such as the path of SGLang or an endpoint's API key, are not part of the backend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

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
    """Fill in the placeholders of the router's command."""
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
                f"server_args: {flag} is not supported: each rank has its own queue and "
                "cache, and a run counts a server as one worker; start more servers with dp "
                "instead"
            )


REDACTED = "***"
ARGS = "server_args"
COMMAND = "router_command"
_SECRET = frozenset({"key", "secret", "password", "passwd", "credential", "credentials"})


def is_secret(flag: str) -> bool:
    """Return whether a flag's value is secret, such as the value of ``--api-key``."""
    words = flag.lstrip("-").replace("_", "-").lower().split("-")
    return flag.startswith("--") and (not _SECRET.isdisjoint(words) or words[-1] == "token")


def without_secrets(args: Sequence[str]) -> list[str]:
    """Replace each secret in a command line by ``***``."""
    kept: list[str] = []
    hides_next = False
    for word in args:
        flag, equals, _ = word.partition("=")
        if hides_next and not word.startswith("--"):
            kept.append(REDACTED)
        elif equals and is_secret(flag):
            kept.append(f"{flag}={REDACTED}")
        else:
            kept.append(word)
        hides_next = not equals and is_secret(word)
    return kept


def storable(content: Any) -> Any:
    """Return the content of an experiment file without secrets.

    Secrets may occur in ``server_args`` and ``router_command``, even in nested tables.
    """
    if isinstance(content, Mapping):
        return {
            key: _args(value) if str(key).rpartition(".")[2] in (ARGS, COMMAND) else storable(value)
            for key, value in content.items()
        }
    return [storable(one) for one in content] if isinstance(content, list) else content


def _args(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if all(isinstance(word, str) for word in value):
        return without_secrets(value)
    # A sweep has one list of server arguments for each of its points.
    return [_args(one) for one in value]


def check_given(args: Sequence[str], what: str = ARGS) -> None:
    """Raise UsageError if a stored command line lacks its secret, which must be given again."""
    for word, following in zip(args, [*args, ""][1:], strict=True):
        flag, equals, value = word.partition("=")
        if is_secret(flag) and REDACTED in (value if equals else following,):
            raise UsageError(f"{what}: {flag} is secret and was not stored; give it again")


NO_PROFILE = "none"
EXTERNAL = "external"  # the value of ``router`` if another project's router is used
# ``AS_SERVED`` stands for the unknown scheduler, router and model of a server that runs already.
AS_SERVED = "as served"

Api = Literal["generate", "completions", "chat"]

# fairbench's load driver itself sets the fields ``MANAGED_FIELDS`` of a request body.
MANAGED_FIELDS = frozenset(
    {"messages", "prompt", "input_ids", "stream", "max_tokens", "max_completion_tokens"}
)

# A real SGLang server has no flag for the settings ``ENGINE_ONLY``, or the flag is not tested.
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

# The eviction policies ``NEED_SESSIONS`` need sessions, which requests to real servers do not name.
NEED_SESSIONS = frozenset({"retention"})

VLLM_FLAGS = {
    "max_running_requests": "--max-num-seqs",
    "mem_fraction_static": "--gpu-memory-utilization",
}

# ``MIN_TIME_SCALE`` and ``MAX_TIME_SCALE`` exclude scales at which measured times are meaningless.
MIN_TIME_SCALE, MAX_TIME_SCALE = 1e-6, 1e6

Count = Annotated[int, Field(ge=1)]


class BackendConfig(BaseModel):
    """The fields and properties that all kinds of backend have.

    ``max_concurrency`` limits the requests in flight. To add a kind of backend, write a subclass,
    add the subclass to ``Backend``, and write ``live/backends/KIND.py``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    # Each subclass declares a field ``kind``, whose value names the kind of backend.
    if TYPE_CHECKING:
        kind: str
    max_concurrency: Count | None = None

    has_profile: ClassVar[bool] = False
    """Whether a timing profile decides the servers' speed; otherwise, a model must be named."""
    is_managed: ClassVar[bool] = True
    """Whether fairbench starts the servers, and chooses their router and scheduler."""
    disobeyed: ClassVar[frozenset[str]] = frozenset()
    """The engine settings that this kind of backend does not support."""
    evictions: ClassVar[frozenset[str]] = frozenset()
    """The eviction policies that the servers of this backend support."""
    run_options: ClassVar[frozenset[str]] = frozenset()
    """The options of ``LiveOptions`` that this kind of backend supports."""

    @property
    def own_policy(self) -> str | None:
        """The server's scheduling policy that replaces fairbench's scheduler, if one is set."""
        return None

    @property
    def external_router(self) -> list[str] | None:
        """The command that starts an external router in front of the workers, if there is one."""
        return None


class _Servers(BackendConfig):
    """Servers that fairbench starts, with the command line flags ``server_args``."""

    api: Api = "generate"
    server_args: list[str] = []
    run_options: ClassVar[frozenset[str]] = frozenset({"launcher"})

    @model_validator(mode="after")
    def _not_managed(self) -> Self:
        check_server_args(self.server_args)
        return self


class RealServers(_Servers):
    """Real servers with ``tp`` GPUs each; ``share_gpus`` lets several servers use one GPU.

    ``schedule_policy`` is a policy of the engine that replaces fairbench's scheduler.
    """

    tp: Count = 1
    share_gpus: bool = False
    load_format: str | None = None
    schedule_policy: str | None = None
    run_options: ClassVar[frozenset[str]] = frozenset({"launcher", "server_python"})

    @property
    def own_policy(self) -> str | None:
        return self.schedule_policy


SGLangPolicy: TypeAlias = Literal[
    "fcfs", "lpm", "dfs-weight", "lof", "random", "routing-key", "hrrn", "shortest-prefill-first"
]


class SGLang(RealServers):
    """Real SGLang servers."""

    kind: Literal["sglang"] = "sglang"
    schedule_policy: SGLangPolicy | None = None
    evictions: ClassVar[frozenset[str]] = frozenset(EVICTIONS) - NEED_SESSIONS
    disobeyed: ClassVar[frozenset[str]] = frozenset(ENGINE_ONLY)


class VLLM(RealServers):
    """Real vLLM servers."""

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


class Endpoint(BackendConfig):
    """A running OpenAI-compatible server that fairbench did not start.

    - ``output_lengths`` is "exact" if requests contain ``min_tokens``, which not every server
      supports. If ``output_lengths`` is "free", answers may be shorter than in the workload.
    - ``extra_body`` is a JSON object with more fields for every request; null removes a field.
    - ``max_tokens_field`` names the field that limits the length of an answer.
    - ``rate_limited`` decides whether a request with status 429 fails, or is sent again after the
      time in the answer's Retry-After header.
    - ``longest_wait_s`` limits the total seconds for which a request waits after status 429.
    """

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
                "base_url: must not contain credentials, because it is stored; give them "
                "with --header"
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
    """Return the fields of the JSON object in ``text``, or {} if there is no text."""
    if not text:
        return {}
    try:
        fields = parsed(text.encode(), "extra_body", strict=True)
    except DataError as error:
        raise ValueError(f"the extra body must be a JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("the extra body must be a JSON object")
    return fields


_Kinds: TypeAlias = SGLang | VLLM | Emulator | Endpoint
Backend: TypeAlias = Annotated[_Kinds, Field(discriminator="kind")]
KINDS: Mapping[str, type[BackendConfig]] = {
    cls.model_fields["kind"].default: cls for cls in get_args(_Kinds)
}
