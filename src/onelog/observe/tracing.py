"""Spans for OpenTelemetry: what the broker tells a collector about messages that carry a trace.

Rules: the only room of opentelemetry, imported only when tracing is on. A span belongs to a trace
that its message names and that was sampled; the broker begins no trace. Spans wait in a bounded
queue, and a thread of their own sends them: a collector that is slow or away costs spans, never
messages. Every span is counted once: as sent, as lost (no collector took it) or as dropped (the
queue was full). A failure to send is reported to `Troubles`, not logged for each attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from onelog.observe.metrics import Sample
from onelog.observe.troubles import Troubles

SENDING: Final = "trace-export"
"""Standing: the collector takes no spans."""
QUEUE_SPANS_MAX: Final = 2048
SEND_TIMEOUT_S: Final = 5.0
_KINDS: Final = {
    # The broker stands between two programs: it consumes from the one and produces to the other.
    "publish": SpanKind.CONSUMER,
    "append": SpanKind.INTERNAL,
    "deliver": SpanKind.PRODUCER,
}


class SpanSender:
    """Makes spans and hands them to the thread that sends them."""

    def __init__(self, endpoint: str, node: str, version: str, troubles: Troubles) -> None:
        # Its libraries log each failed attempt; the register has it once, for as long as it lasts.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._watched = WatchedExporter(endpoint, troubles, asyncio.get_running_loop())
        about = {"service.name": "onelog", "service.instance.id": node, "service.version": version}
        self._provider = TracerProvider(
            sampler=ParentBased(ALWAYS_OFF), resource=Resource.create(about), shutdown_on_exit=False
        )
        # Its queue never gets full, because `add` counts what waits: it would drop without a count.
        self._provider.add_span_processor(
            BatchSpanProcessor(self._watched, max_queue_size=QUEUE_SPANS_MAX)
        )
        self._tracer = self._provider.get_tracer("onelog", version)
        self._contexts = TraceContextTextMapPropagator()
        self._made = 0
        self._dropped = 0

    def context(self, carrier: Mapping[str, str]) -> Context | None:
        """The context that a message names; None: it is malformed, or not sampled."""
        found = self._contexts.extract(carrier, Context())
        told = get_current_span(found).get_span_context()
        return found if told.is_valid and told.trace_flags.sampled else None

    def add(
        self,
        operation: str,
        subject: str,
        parent: Context,
        times_ns: tuple[int, int],
        about: Mapping[str, str | int],
    ) -> Context:
        """A span that is over, under a context. Returns its own context, or that context if the
        queue is full."""
        if self._made - self._watched.taken >= QUEUE_SPANS_MAX:
            self._dropped += 1
            return parent
        begin, end = times_ns
        span = self._tracer.start_span(
            f"{operation} {subject}", parent, _KINDS[operation], about, start_time=begin
        )
        self._made += 1
        span.end(end)
        return set_span_in_context(span, Context())

    def close(self) -> None:
        """Blocks: send what waits. A collector that does not take the first of it gets no more."""
        self._watched.is_closing = True
        self._provider.shutdown()

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        sent, lost = self._watched.sent, self._watched.lost
        yield Sample("onelog_spans_sent_total", "Spans that a collector took.", "counter", sent)
        yield Sample("onelog_spans_lost_total", "Spans that no collector took.", "counter", lost)
        full = "Spans that were not made because too many waited for the collector."
        yield Sample("onelog_spans_dropped_total", full, "counter", self._dropped)


class WatchedExporter(SpanExporter):
    """Sends by OTLP over HTTP, in the sending thread, and tells what became of it."""

    def __init__(self, endpoint: str, troubles: Troubles, loop: asyncio.AbstractEventLoop) -> None:
        self._inner = OTLPSpanExporter(endpoint=endpoint, timeout=SEND_TIMEOUT_S)
        self._endpoint = endpoint
        self._troubles = troubles
        self._loop = loop
        self.taken = 0
        """Spans that left the queue."""
        self.sent = 0
        self.lost = 0
        self.is_closing = False
        self._is_well = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send some spans."""
        self.taken += len(spans)
        if self.is_closing and not self._is_well:
            self.lost += len(spans)
            return SpanExportResult.FAILURE
        result = self._inner.export(spans)
        self._is_well = result is SpanExportResult.SUCCESS
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
        else:
            self.lost += len(spans)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell, result is SpanExportResult.SUCCESS)
        return result

    def _tell(self, well: bool) -> None:
        if well:
            self._troubles.clear(SENDING, "tracing")
        else:
            told = f"the collector at {self._endpoint} takes no spans: see tracing.endpoint"
            self._troubles.stand(SENDING, "tracing", told, blocks=False)

    def shutdown(self) -> None:
        """No more spans come."""
        self._inner.shutdown()  # type: ignore[no-untyped-call]
