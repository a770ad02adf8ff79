"""Small blocking HTTP requests to fairbench's own servers, never through a proxy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from fairbench.errors import RunFailed

TIMEOUT_S = 10.0  # the longest time without data
NO_HEADERS: Mapping[str, str] = {}

_direct = build_opener(ProxyHandler({}))


def answers(url: str, *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> bool:
    """Return whether the server answers at ``url`` with success (2xx) within ``timeout_s``."""
    status = status_of(url, method=method, timeout_s=timeout_s)
    return status is not None and status < 300


def status_of(url: str, *, method: str = "GET", timeout_s: float = TIMEOUT_S) -> int | None:
    """Return the HTTP status at ``url``, or None if no HTTP server answers in ``timeout_s``."""
    try:
        with _direct.open(Request(url, method=method), timeout=timeout_s) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code
    except (OSError, HTTPException):
        return None


def get_text(
    url: str, *, headers: Mapping[str, str] = NO_HEADERS, timeout_s: float = TIMEOUT_S
) -> str:
    """Return the text at ``url``. Raises RunFailed if there is none within ``timeout_s``."""
    try:
        with _direct.open(Request(url, headers=dict(headers)), timeout=timeout_s) as answer:
            content: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise RunFailed(f"{url}: {error}") from None
    return content.decode("utf-8", "replace")


def get_json(
    url: str, *, headers: Mapping[str, str] = NO_HEADERS, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """Return the JSON object at ``url``. Raises RunFailed if there is none within ``timeout_s``."""
    try:
        content = json.loads(get_text(url, headers=headers, timeout_s=timeout_s))
    except ValueError as error:
        raise RunFailed(f"{url}: {error}") from None
    if not isinstance(content, dict):
        raise RunFailed(f"{url}: the answer is not a JSON object")
    return content
