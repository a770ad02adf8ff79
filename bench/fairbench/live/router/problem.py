"""Errors of the router's own, in the shape of OpenAI's."""

from __future__ import annotations

from http import HTTPStatus

from aiohttp import web

from fairbench.live import headers
from fairbench.live.json_errors import error_answer, error_body


class Problem(Exception):
    """Why a request gets no answer. The message is for its client; ``worker`` is who failed."""

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
        """The answer, if none has begun."""
        response = error_answer(self.status, str(self))
        if self.retry_after_s is not None:
            response.headers["Retry-After"] = str(self.retry_after_s)
        if self.worker is not None:
            response.headers[headers.WORKER] = str(self.worker)
        return response

    def event(self, *, done: bool = True) -> bytes:
        """The end of a stream that has begun, which clients of OpenAI and SGLang understand.

        Without ``done`` the worker itself says that this was all.
        """
        body = error_body(self.status, str(self))
        return b"data: %b\n\n%b" % (body, b"data: [DONE]\n\n" if done else b"")


def bad_request(message: str) -> Problem:
    """The client's own fault: 400."""
    return Problem(HTTPStatus.BAD_REQUEST, message)
