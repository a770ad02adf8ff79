"""Traces: an OpenTelemetry span for each request, without the text of prompts and answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from typing import Any

from fairbench.errors import UsageError
from fairbench_load.http_server import Problem
from fairbench_serve.answers import NOTHING, Charge
from fairbench_serve.ingress import LEFT, OK

NAMES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
REFUSED = "refused"
FLUSH_MS = 2_000  # limit in milliseconds on exporting the remaining spans when the router ends


@dataclass(slots=True)
class RequestTrace:
    """The data of a request's span; ``client`` is None until the client is known."""

    client: str | None = None
    worker: int | None = None
    held_s: float = 0.0
    outcome: str = ""
    charge: Charge = NOTHING

    def end_attempt(self, worker: int, outcome: str, charge: Charge = NOTHING) -> None:
        """Record how an attempt at a worker ended; another attempt may follow."""
        self.worker, self.outcome = worker, outcome
        self.charge = self.charge.plus(charge)


class Traces:
    """A tracer for routers without OpenTelemetry, which exports nothing."""

    @contextmanager
    def request(self, path: str, sent: dict[str, str]) -> Iterator[RequestTrace]:
        """Trace a request in the ``with`` block; ``sent`` holds the headers for the worker."""
        yield RequestTrace()

    def close(self) -> None:
        """Export the remaining spans, if the collector answers within ``FLUSH_MS`` milliseconds."""


NO_TRACES = Traces()


def otel_traces() -> Traces:
    """Return a tracer with OpenTelemetry's exporter, which environment variables configure.

    Raises UsageError if OpenTelemetry is not installed.
    """
    for name in NAMES:
        if find_spec("opentelemetry") is None or find_spec(name) is None:
            raise UsageError(f"--otel needs the package {name}: pip install '.[otel]'")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override the service name.
    provider = TracerProvider(resource=Resource.create({"service.name": "fairbench-router"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return OtelTraces(provider)


class OtelTraces(Traces):
    """Traces of requests, exported by an OpenTelemetry ``TracerProvider``."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("fairbench.router")
        self._propagator = TraceContextTextMapPropagator()
        self._kind, self._in_context = SpanKind.SERVER, set_span_in_context
        self._error = Status(StatusCode.ERROR)

    @contextmanager
    def request(self, path: str, sent: dict[str, str]) -> Iterator[RequestTrace]:
        span = self._tracer.start_span(
            f"POST {path}", self._propagator.extract(sent), kind=self._kind
        )
        self._propagator.inject(sent, self._in_context(span))
        trace, status = RequestTrace(), HTTPStatus.OK
        try:
            yield trace
        except Problem as problem:
            status = problem.status
            trace.outcome = trace.outcome or REFUSED
            span.set_attribute("http.response.status_code", int(status))
            raise
        finally:
            outcome = trace.outcome or LEFT
            span.set_attributes(_told(trace, outcome))
            # OpenTelemetry's convention: a client's error does not mark a server span as failed.
            if outcome not in (OK, LEFT) and not (outcome == REFUSED and status < 500):
                span.set_status(self._error)
            span.end()

    def close(self) -> None:
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


def _told(trace: RequestTrace, outcome: str) -> dict[str, str | int | float]:
    told: dict[str, str | int | float] = {
        "fairbench.outcome": outcome,
        "fairbench.held_s": trace.held_s,
        "fairbench.cached_tokens": trace.charge.cached_tokens,
        "gen_ai.usage.input_tokens": trace.charge.input_tokens,
        "gen_ai.usage.output_tokens": trace.charge.output_tokens,
    }
    if trace.client is not None:
        told["fairbench.client"] = trace.client
    if trace.worker is not None:
        told["fairbench.worker"] = trace.worker
    return told
