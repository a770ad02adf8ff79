"""Backends: the simulator, or real processes, which serve an experiment.

Everything here decides what is measured, so it is part of a spec's identity. SGLang's path, the
time to wait for it and an endpoint's secrets are given to each run and are not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fairbench.config.server_args import check_router_command, check_server_args
from fairbench.config.settings import ENGINE, MACHINE
from fairbench.errors import DataError
from fairbench.files.json_text import parsed
from fairbench.schedulers.eviction.registry import EVICTIONS
from fairbench.schedulers.params import param_names

NO_PROFILE = "none"  # the ``gpu`` of a spec whose hardware is real
EXTERNAL = "external"  # the router of a spec with a third-party router command
AS_SERVED = "as served"  # scheduler, router, local and model of an endpoint: unknown

Api = Literal["generate", "completions", "chat"]

# Fields that the driver sets in every body.
MANAGED_FIELDS = frozenset(
    {"messages", "prompt", "input_ids", "stream", "max_tokens", "max_completion_tokens"}
)

# Engine settings that SGLang has no flag for.
ENGINE_ONLY = (
    "full_reservation",
    "step_by_step",
    "num_continuous_decode_steps",
    "in_batch_prefix_caching",
    "batch_is_full",
    "swap_space",
    "prefix_match_us",
    "release",
)

# Eviction policies that no server can run, because requests do not state their session.
NEED_SESSIONS = frozenset({"retention"})

# vLLM's flags for the engine settings that it has too.
VLLM_FLAGS = {
    "max_running_requests": "--max-num-seqs",
    "mem_fraction_static": "--gpu-memory-utilization",
}

# Emulated seconds per real second; outside this range, measured times are meaningless.
MIN_TIME_SCALE, MAX_TIME_SCALE = 1e-6, 1e6

Count = Annotated[int, Field(ge=1)]


class BackendConfig(BaseModel):
    """The fields and properties common to all kinds of backend.

    ``max_concurrency`` is the highest number of requests that the driver keeps in flight. To
    add a kind, write its class, name it in ``Backend``, and write ``live/backends/KIND.py``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    if TYPE_CHECKING:  # each kind has its own name field
        kind: str
    max_concurrency: Count | None = None

    has_profile: ClassVar[bool] = False
    """Whether a timing profile decides its speed; otherwise it has a model of its own."""
    is_managed: ClassVar[bool] = True
    """Whether fairbench starts its servers and chooses router and scheduler."""
    disobeyed: ClassVar[frozenset[str]] = frozenset()
    """The engine settings that this kind of backend ignores."""
    evictions: ClassVar[frozenset[str]] = frozenset()
    """The eviction policies that its servers can run."""
    run_options: ClassVar[frozenset[str]] = frozenset()
    """The options of runs that only this kind of backend supports (``LiveOptions``)."""

    @property
    def own_policy(self) -> str | None:
        """The server's own scheduling policy, if it replaces fairbench's scheduler."""
        return None

    @property
    def external_router(self) -> list[str] | None:
        """The command of an external router in front of the workers, if any."""
        return None


class _Servers(BackendConfig):
    """Servers that fairbench starts, each with the flags ``server_args``."""

    api: Api = "generate"
    server_args: list[str] = []
    run_options: ClassVar[frozenset[str]] = frozenset({"launcher"})

    @model_validator(mode="after")
    def _not_managed(self) -> Self:
        check_server_args(self.server_args)
        return self


class RealServers(_Servers):
    """Real servers with ``tp`` GPUs each; ``share_gpus`` lets several share GPUs.

    ``schedule_policy`` is the engine's own policy, instead of our scheduler of that name.
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

    kind: Literal["sglang"] = "sglang"
    schedule_policy: Literal["fcfs", "lpm"] | None = None
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
            raise ValueError("must be completions or chat for vLLM")
        return api


class Emulator(_Servers):
    """``fairbench emulate``: the simulated engine behind real HTTP.

    ``time_scale`` emulated seconds pass in a real second. ``router_command`` starts a third-party
    router before the workers, see ``config/server_args.py``; the router is called by OpenAI's API
    unless ``api`` says otherwise.
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
    """A running OpenAI-compatible server, benchmarked as it is.

    If ``output_lengths`` is exact, requests contain ``min_tokens``, which not every server
    supports; if it is free, answers may be shorter than in the workload. ``extra_body`` is a JSON
    object of more fields for every request, in which null removes a field; ``max_tokens_field`` is
    the name of the field with an answer's maximum length. ``rate_limited`` decides about a request
    after a 429: it fails, or is sent again after the time in Retry-After, for ``longest_wait_s`` in
    total.
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
        """The fields in ``extra_body``."""
        return _extra_fields(self.extra_body)


def _extra_fields(text: str | None) -> dict[str, Any]:
    """Return the fields of a JSON object; none for no text. Raises ValueError for others."""
    if not text:
        return {}
    try:
        fields = parsed(text.encode(), "extra_body", strict=True)
    except DataError as error:
        raise ValueError(f"must be a JSON object: {error}") from None
    if not isinstance(fields, dict):
        raise ValueError("must be a JSON object")
    return fields


_Kinds: TypeAlias = SGLang | VLLM | Emulator | Endpoint
Backend: TypeAlias = Annotated[_Kinds, Field(discriminator="kind")]
KINDS: Mapping[str, type[BackendConfig]] = {
    cls.model_fields["kind"].default: cls for cls in get_args(_Kinds)
}
