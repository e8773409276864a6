"""Spans of traced messages: what the broker reports of a publish, an append and a delivery.

Rules: `Broker.traces` is None while tracing is off; then nobody calls this and nobody looks for
traces. A record has a trace if its header `traceparent` is valid and says that the trace is
sampled. The record itself is never changed. At most `SPANS_PER_SECOND_MAX` spans are made in a
second (I8); messages beyond that are counted, and no span is made of them. A failure here is a
failure of tracing: it is registered, and no message is affected.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from onelog.base.clock import Clock
from onelog.base.limits import SPANS_PER_SECOND_MAX
from onelog.kernel import ATTR_CODEC_MASK, ATTR_CONTROL, BatchInfo, scan_batches
from onelog.observe import Sample, Troubles
from onelog.record.batch import decode
from onelog.record.headers import Headers

if TYPE_CHECKING:
    from onelog.kernel.types import Buffer

PARENT: Final = b"traceparent"
STATE: Final = b"tracestate"
TRACING: Final = "tracing"
"""Incidents: a span could not be made."""
_NAME: Final = re.compile(PARENT)
_UNPACKED_BYTES_MAX: Final = 1024 * 1024
"""Compressed bytes that are looked through for traces in a second."""

Operation = Literal["publish", "append", "deliver"]
Context = Any
"""Where a span belongs; only the sink knows what it is."""


class SpanSink(Protocol):
    """Takes spans that are over."""

    def context(self, carrier: Mapping[str, str]) -> Context | None:
        """The context that a message names; None: it is malformed, or not sampled."""
        ...

    def add(
        self,
        operation: Operation,
        subject: str,
        parent: Context,
        times_ns: tuple[int, int],
        about: Mapping[str, str | int],
    ) -> Context:
        """A span under a context. Returns its own context, for spans under it."""
        ...


class Spans:
    """Makes the spans of one broker, within their bounds."""

    def __init__(self, sink: SpanSink, clock: Clock, troubles: Troubles) -> None:
        self._sink = sink
        self._troubles = troubles
        self.now_ns = clock.now_ns
        self._monotonic = clock.monotonic
        self._second = 0
        self._made = 0
        self._unpacked = 0
        self.left_out = 0
        """Messages, or batches of them, that got no span because the second's share was used."""

    def samples(self) -> Iterator[Sample]:
        """Numbers for the metrics."""
        yield Sample(
            "onelog_spans_left_out_total",
            "Traced messages, or batches, beyond the spans of their second.",
            "counter",
            self.left_out,
        )

    @property
    def has_share(self) -> bool:
        """Whether more spans may be made in this second."""
        second = int(self._monotonic())
        if second != self._second:
            self._second, self._made, self._unpacked = second, 0, 0
        return self._made < SPANS_PER_SECOND_MAX

    def context(self, headers: Headers) -> Context | None:
        """The context of a message by its headers; None: there is none, or no share is left."""
        found: dict[str, str] = {}
        for name, value in headers:
            if value is not None and name in (PARENT, STATE):
                found.setdefault(name.decode(), value.decode(errors="replace"))
        if PARENT.decode() not in found:
            return None
        context = self._sink.context(found)
        if context is not None and not self.has_share:
            self.left_out += 1
            return None
        return context

    def add(
        self,
        operation: Operation,
        subject: str,
        parent: Context,
        times_ns: tuple[int, int],
        about: Mapping[str, str | int],
    ) -> Context:
        """A span that is over. Returns its context, for spans under it."""
        self._made += 1
        facts = {"messaging.system": "onelog", "messaging.operation.name": operation, **about}
        return self._sink.add(operation, subject, parent, times_ns, facts)

    def delivered(
        self,
        protocol: str,
        topic: str,
        headers: Headers,
        begin_ns: int,
        about: Mapping[str, str | int],
    ) -> None:
        """A message was given to the connection of a client just now; a span if it has a trace."""
        try:
            context = self.context(headers)
            if context is not None:
                facts = {
                    "messaging.destination.name": topic,
                    "network.protocol.name": protocol,
                    **about,
                }
                self.add("deliver", topic, context, (begin_ns, self.now_ns()), facts)
        except Exception as error:  # noqa: BLE001  tracing must not harm a message
            self._troubles.note(TRACING, protocol, error)

    def delivered_run(
        self,
        protocol: str,
        rows: Iterable[tuple[str, Headers, Mapping[str, str | int]]],
        begin_ns: int,
    ) -> None:
        """The same for many messages: topic, headers and facts of each."""
        try:
            for topic, headers, about in rows:
                self.delivered(protocol, topic, headers, begin_ns, about)
        except Exception as error:  # noqa: BLE001
            self._troubles.note(TRACING, protocol, error)

    def traced_in(
        self, data: Buffer, first: int, end: int
    ) -> Iterator[tuple[int, bytes | None, Headers, BatchInfo]]:
        """Offset, topic and headers of records from `first` to before `end` that may have a trace,
        and their batch.

        Batches without the name of the header are passed over; so are compressed ones beyond
        `_UNPACKED_BYTES_MAX` in a second.
        """
        if not self.has_share:
            return
        has_name = _NAME.search(data) is not None
        for info in scan_batches(data, 0, False):
            if info.last_offset < first or info.attributes & ATTR_CONTROL:
                continue
            if info.base_offset >= end:
                return
            if not (self._may_unpack(info) if info.attributes & ATTR_CODEC_MASK else has_name):
                continue
            slices = decode(memoryview(data), info, check_crc=False)
            for index in range(len(slices)):
                offset = slices.offset(index)
                if first <= offset < end:
                    yield offset, slices.topic(index), slices.record(index)[4], info

    def _may_unpack(self, info: BatchInfo) -> bool:
        self._unpacked += info.size_bytes
        if self._unpacked > _UNPACKED_BYTES_MAX:
            self.left_out += 1
            return False
        return True
