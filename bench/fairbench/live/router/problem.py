"""The router's own errors, in OpenAI's format."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler

from fairbench.live import headers
from fairbench.live.json_errors import error_answer, error_body


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

    def event(self, *, done: bool = True) -> bytes:
        """Return the end of a begun stream, in a form that OpenAI and SGLang clients understand.

        Without ``done``, the worker itself marks the end.
        """
        body = error_body(self.status, str(self))
        return b"data: %b\n\n%b" % (body, b"data: [DONE]\n\n" if done else b"")


@web.middleware
async def problems_as_answers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with the error response of a Problem that the handler raises."""
    try:
        return await handler(request)
    except Problem as problem:
        return problem.response()


def bad_request(message: str) -> Problem:
    """Return an error of the client (400)."""
    return Problem(HTTPStatus.BAD_REQUEST, message)
