"""Bodies: the fields of each API that a router reads, with what they can be.

Counts are checked here for what a worker would die of.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fairbench.live.openai_shapes import Message
from fairbench.live.router.fields import Count, FewLogprobs, Int32, Int64, Scale


class Sampling(msgspec.Struct):
    """``sampling_params`` of ``/generate``."""

    max_new_tokens: Count | None = None
    min_new_tokens: Count | None = None
    n: Count | None = None
    top_k: Int32 | None = None
    stop_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    repetition_penalty: Scale | None = None
    sampling_seed: Int64 | None = None


class Generate(msgspec.Struct):
    """``/generate``."""

    input_ids: list[int | list[int]] | None = None
    text: str | list[str] | None = None
    stream: bool | None = None
    routing_key: str | None = None
    top_logprobs_num: FewLogprobs | None = None
    logprob_start_len: Int32 | None = None


class OpenAI(msgspec.Struct, kw_only=True):
    """What the two APIs of OpenAI share."""

    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    n: Count | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    seed: Int64 | None = None
    top_k: Int32 | None = None
    stop_token_ids: list[int] | None = None
    logit_bias: dict[str, float] | None = None
    repetition_penalty: Scale | None = None


class RoutedCompletion(OpenAI, kw_only=True):
    """``/v1/completions``."""

    prompt: str | list[int | str | list[int]]
    best_of: Count | None = None
    logprobs: FewLogprobs | None = None


class RoutedChat(OpenAI, kw_only=True):
    """``/v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: Count | None = None
    top_logprobs: FewLogprobs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
