"""Models: the models that workers serve."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web

from fairbench.live.json_errors import no_such_model
from fairbench.live.router.problem import Problem


class _Listed(msgspec.Struct):
    data: list[dict[str, Any]]


def named_model(listed: bytes, name: str) -> web.Response:
    """Return a model from a worker's list, else 404. Raises Problem for an invalid list."""
    try:
        models = msgspec.json.decode(listed, type=_Listed).data
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Problem(HTTPStatus.BAD_GATEWAY, "the worker does not list its models") from None
    for model in models:
        if model.get("id") == name:
            return web.Response(body=msgspec.json.encode(model), content_type="application/json")
    return no_such_model(name)
