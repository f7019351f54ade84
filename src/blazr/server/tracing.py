"""One span for each request, sent by OpenTelemetry, which is imported only here and when asked for.

Names are those of its conventions for HTTP servers and for generative models.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec

import blazr
from blazr.core.errors import ConfigError

_EXPORTER = ["opentelemetry", "exporter", "otlp", "proto", "http"]
_NEEDED = (
    *(".".join(_EXPORTER[:depth]) for depth in range(1, len(_EXPORTER) + 1)),
    "opentelemetry.sdk",
)
_NAMES = {
    "method": "http.request.method",
    "path": "url.path",
    "status": "http.response.status_code",
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}


class Tracer:
    """Sends spans in batches, from a thread of its own; a collector that is away delays nothing.

    Args:
        endpoint: The collector's address, such as ``http://localhost:4318``.

    Raises:
        ConfigError: OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str) -> None:
        if not all(map(find_spec, _NEEDED)):  # each before what is in it
            raise ConfigError(
                "traces need OpenTelemetry.",
                hint="pip install 'blazr[otel]', or leave out --otlp-endpoint",
            )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        base = endpoint.rstrip("/")
        url = base if base.endswith("/v1/traces") else f"{base}/v1/traces"
        facts = {"service.name": "blazr", "service.version": blazr.__version__}
        self._provider = TracerProvider(resource=Resource.create(facts), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
        self._tracer = self._provider.get_tracer("blazr")

    def record(
        self,
        started: datetime,
        took_s: float,
        facts: Mapping[str, str | int],
        headers: Mapping[str, str],
    ) -> None:
        """Tell of a request that is over.

        Args:
            started: When it came.
            took_s: How long it took.
            facts: About it, by the names that the access log has.
            headers: Its headers; ``traceparent`` says which trace it belongs to.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        started_ns = int(started.timestamp() * 1e9)
        span = self._tracer.start_span(
            f"{facts['method']} {facts['path']}",
            context=TraceContextTextMapPropagator().extract(headers),
            kind=SpanKind.SERVER,
            attributes={_NAMES.get(name, f"blazr.{name}"): each for name, each in facts.items()},
            start_time=started_ns,
        )
        if int(facts["status"]) >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(started_ns + int(took_s * 1e9))

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()
