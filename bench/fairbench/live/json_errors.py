"""Error answers in OpenAI's format, and the exception by which the router refuses a request."""

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
RETRY_AFTER_S = 5  # seconds after which a refused client should send the request again
MOST_SHOWN = 200  # limit on the characters of a path or name in a message


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """Return an error as JSON. ``param`` names the field that causes the error, if any."""
    fallback = "server_error" if status >= 500 else "invalid_request_error"
    kind = _TYPES.get(status, fallback)
    error = {"message": message, "type": kind, "param": param, "code": int(status)}
    return msgspec.json.encode({"error": error})


def error_answer(status: int, message: str, param: str | None = None) -> web.Response:
    """Return an error as a JSON response with the HTTP status ``status``."""
    body = error_body(status, message, param)
    return web.Response(body=body, status=status, content_type="application/json")


def no_such_model(name: str) -> web.Response:
    """Return the 404 response for a model that no server offers."""
    said = f"the model {name[:MOST_SHOWN]!r} does not exist"
    return error_answer(HTTPStatus.NOT_FOUND, said, "model")


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer aiohttp's own errors in JSON: unknown paths, wrong methods, bodies that are too long.

    If the body of a request was not read to its end, the answer announces that the connection
    closes. Without this announcement, the client would send its next request on the connection, and
    the next request would be lost.
    """
    answer = await _handled(request, handler)
    if not (answer.prepared or request.content.at_eof()):
        answer.force_close()
    return answer


async def _handled(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        answer = error_answer(
            error.status, f"{_request_line(request)}: allowed methods are {allowed}"
        )
        answer.headers["Allow"] = allowed
        return answer
    except web.HTTPNotFound as error:
        return error_answer(error.status, f"{_request_line(request)}: this path does not exist")
    except web.HTTPRequestEntityTooLarge as error:
        return error_answer(error.status, "the body is too long")
    except web.RequestPayloadError:
        said = "the encoding of the body does not match its headers"
        return error_answer(HTTPStatus.BAD_REQUEST, said)


def _request_line(request: web.Request) -> str:
    return f"{request.method[:20]} {request.rel_url.raw_path[:MOST_SHOWN]}"


class Problem(Exception):
    """The exception that refuses a request. The client receives the message.

    ``worker`` is the number of the worker that has failed, or None.
    """

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
        """Return the error as a response, for a client that has received no part of an answer."""
        response = error_answer(self.status, str(self))
        if self.retry_after_s is not None:
            response.headers["Retry-After"] = str(self.retry_after_s)
        if self.worker is not None:
            response.headers[headers.WORKER] = str(self.worker)
        return response

    def event(self, *, named: bool = False, done: bool = True) -> bytes:
        """Return the error as the last events of a stream, in a form that clients understand.

        Clients of OpenAI's API and of SGLang understand this form. Clients of APIs with ``named``
        events read only named events. ``done`` is false if the API has no event "[DONE]" or if the
        worker sends that event itself.
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
    """Return the error 429, after which the client may send the request again."""
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, message, retry_after_s=retry_after_s)


def unavailable(message: str) -> Problem:
    """Return the error 503 for a time in which no worker is available."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, message, retry_after_s=RETRY_AFTER_S)


def bad_request(message: str) -> Problem:
    """Return the error 400 for an invalid request."""
    return Problem(HTTPStatus.BAD_REQUEST, message)
