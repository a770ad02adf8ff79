"""Errors in OpenAI's format, and the exception by which the router refuses a request."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from fairbench.live import headers

_TYPES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
RETRY_AFTER_S = 5
MOST_SHOWN = 200  # characters of a path or a name that are shown


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """Return the JSON of an error; ``param`` names the field at fault."""
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    kind = _TYPES.get(status, fallback)
    error = {"message": message, "type": kind, "param": param, "code": int(status)}
    return msgspec.json.encode({"error": error})


def error_answer(status: int, message: str, param: str | None = None) -> web.Response:
    """Return the error of ``status``, ``message`` and ``param`` as a response."""
    body = error_body(status, message, param)
    return web.Response(body=body, status=status, content_type="application/json")


def no_such_model(name: str) -> web.Response:
    """Return the 404 response for a model that is not served."""
    said = f"the model {name[:MOST_SHOWN]!r} does not exist"
    return error_answer(HTTPStatus.NOT_FOUND, said, "model")


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Report aiohttp's own errors as JSON: unknown path, wrong method, body too long.

    If a body was not read to its end, the answer announces that the connection closes. Otherwise
    the client's next request would be sent on that connection and lost.
    """
    answer = await _answered(request, handler)
    if not (answer.prepared or request.content.at_eof()):
        answer.force_close()
    return answer


async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = error_answer(error.status, f"{_asked(request)}: only {allowed}")
        answer.headers["Allow"] = allowed
        return answer
    except web.HTTPNotFound as error:
        return error_answer(error.status, f"{_asked(request)}: there is nothing")
    except web.HTTPRequestEntityTooLarge as error:
        return error_answer(error.status, "the body is too long")
    except web.RequestPayloadError:
        said = "the encoding of the body does not match its headers"
        return error_answer(HTTPStatus.BAD_REQUEST, said)


def _asked(request: web.Request) -> str:
    return f"{request.method[:20]} {request.rel_url.raw_path[:MOST_SHOWN]}"


class Problem(Exception):
    """The reason for refusing a request. The client sees the message; ``worker`` has failed."""

    def __init__(
        self,
        status: HTTPStatus,
        message: str,
        *,
        retry_after_s: int | None = None,
        worker: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self.worker = worker

    def response(self) -> web.Response:
        """Return the error response, if no answer has begun."""
        response = error_answer(self.status, str(self))
        if self.retry_after_s is not None:
            response.headers["Retry-After"] = str(self.retry_after_s)
        if self.worker is not None:
            response.headers[headers.WORKER] = str(self.worker)
        return response

    def event(self, *, named: bool = False, done: bool = True) -> bytes:
        """Return the end of a begun stream, in a form that OpenAI and SGLang clients understand.

        Clients of APIs with ``named`` events read only those. ``done`` is false if the worker
        itself marks the end, or the API has no such mark.
        """
        body = error_body(self.status, str(self))
        if named:
            body = b'{"type":"error",%b' % body[1:]
        name = b"event: error\n" if named else b""
        return b"%bdata: %b\n\n%b" % (name, body, b"data: [DONE]\n\n" if done else b"")


@web.middleware
async def problems_as_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with the error response of a Problem that the handler raises."""
    try:
        return await handler(request)
    except Problem as problem:
        return problem.response()


def too_many(message: str, retry_after_s: int = RETRY_AFTER_S) -> Problem:
    """Return a refusal for now (429)."""
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, message, retry_after_s=retry_after_s)


def unavailable(message: str) -> Problem:
    """Return an error while no worker is up (503)."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, message, retry_after_s=RETRY_AFTER_S)


def bad_request(message: str) -> Problem:
    """Return an error of the client (400)."""
    return Problem(HTTPStatus.BAD_REQUEST, message)
