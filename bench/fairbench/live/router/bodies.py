"""Bodies: the fields of each API that a router reads, with their types.

Counts are checked here for what a worker would die of.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairbench.live.openai_shapes import Message
from fairbench.live.router.fields import (
    Count,
    FewLogprobs,
    Int32,
    Int64,
    LogprobStart,
    Penalty,
    Scale,
    Share,
    Temperature,
    TopP,
)


class Shared(msgspec.Struct, kw_only=True):
    """Sampling parameters that have the same name in every API."""

    n: Count | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: Int32 | None = None
    min_p: Share | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Scale | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    regex: str | None = None
    ebnf: str | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    spaces_between_special_tokens: bool | None = None


class Sampling(Shared, kw_only=True):
    """``sampling_params`` of ``/generate``."""

    max_new_tokens: Count | None = None
    min_new_tokens: Count | None = None
    sampling_seed: Int64 | None = None


class Generate(msgspec.Struct):
    """``/generate``."""

    input_ids: list[int | list[int]] | None = None
    text: str | list[str] | None = None
    stream: bool | None = None
    routing_key: str | None = None
    return_logprob: bool | None = None
    top_logprobs_num: FewLogprobs | None = None
    logprob_start_len: LogprobStart | None = None


class OpenAI(Shared, kw_only=True):
    """The fields common to OpenAI's two APIs."""

    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    seed: Int64 | None = None


class RoutedCompletion(OpenAI, kw_only=True):
    """``/v1/completions``."""

    prompt: str | list[int | str | list[int]]
    best_of: Count | None = None
    echo: bool | None = None
    logprobs: FewLogprobs | None = None


class RoutedChat(OpenAI, kw_only=True):
    """``/v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    logprobs: bool | FewLogprobs | None = None
    top_logprobs: FewLogprobs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
