"""Live events as server-sent events: rates, alarms, and the tail of a filter.

Rules: a client that does not read costs one connection and nothing more: the server stops making
events for it, its tail skips what it cannot keep up with and says how much, and after a while the
connection is cut. There are `STREAMS_MAX` at a time. Who the caller is now is asked again before
each event: a role that was taken away shows nothing more. Making events takes from the API's share
of the loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import (
    VIEWER,
    AnyEvents,
    ApiCall,
    ApiInput,
    Caller,
    EventStream,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.overview import trouble_info
from onelog.admin.api.peeking import shown
from onelog.admin.api.rates import RateBook, Totals, TrafficRates
from onelog.admin.contract import TroubleInfo
from onelog.base.clock import Clock
from onelog.base.errors import NotAuthenticated, NotAuthorized, OnelogError, QuotaExceeded
from onelog.base.topics import check_filter
from onelog.broker import LOCAL, Action, Record, TailCursor

TAG = "events"
STREAMS_MAX: Final = 50
LAG_MAX: Final = 1000
"""Offsets of a partition that a tail may be behind before it skips."""
MESSAGES_AT_ONCE: Final = 50
MESSAGES_PER_INTERVAL: Final = 500


class EventQuery(ApiInput, frozen=True, kw_only=True):
    """What to follow."""

    interval_ms: Annotated[
        int, Meta(ge=250, le=60_000, description="Time between two events of rates.")
    ] = 1000
    filter: Annotated[
        str,
        Meta(max_length=4096, description="Topic or filter to follow; empty: no messages."),
    ] = ""
    value_bytes: Annotated[
        int, Meta(ge=0, le=65_536, description="Bytes of each value that are shown.")
    ] = 1024


class RatesEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event `rates`."""

    time_ms: int
    totals: Totals
    rates: TrafficRates


class AlarmsEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event `alarms`: sent at the start and whenever it changes."""

    status: str
    alarms: list[TroubleInfo]


class SkippedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The event `skipped`: messages that the client was too slow for, or too many to show."""

    offsets: int


class EventStreams:
    """Handlers."""

    def __init__(self, desk: AdminDesk, clock: Clock) -> None:
        self._desk = desk
        self._clock = clock
        self._rates = RateBook(clock)
        self.open = 0

    def table(self) -> list[AnyEvents]:
        """What can be followed."""
        return [
            EventStream(
                path="/events", role=VIEWER, tag=TAG, query=EventQuery, handler=self.follow,
                summary="Live events: rates, alarms, the tail of a filter.",
            ),
        ]  # fmt: skip

    async def follow(self, call: ApiCall[EventQuery, None]) -> AsyncIterator[bytes]:
        """Begin to follow."""
        text, broker, who = call.query.filter, self._desk.broker, call.caller
        if self.open >= STREAMS_MAX:
            raise QuotaExceeded(
                f"{STREAMS_MAX} clients follow events already: close one, then try again"
            )
        if text:
            check_filter(text)
            if not broker.authorizer.allows(who.principal, Action.SUBSCRIBE, text):
                raise NotAuthorized(f"{who.name} may not subscribe to {text}")
        return self._events(call)

    async def _events(self, call: ApiCall[EventQuery, None]) -> AsyncIterator[bytes]:
        """Runs from the first event on; one that never began has nothing to let go of."""
        interval_s, share = call.query.interval_ms / 1000, self._desk.share
        alarms: bytes = b""
        tail: TailCursor | None = None
        self.open += 1
        try:
            if call.query.filter:
                # As the broker: the caller was asked about, and each record is (`_messages`). A
                # cursor of the caller would need the right to all of the filter.
                tail = self._desk.broker.cursors.open_tail(
                    [call.query.filter], lag_max=LAG_MAX, principal=LOCAL
                )
            while self._desk.is_open and (who := _caller_now(call)) is not None:
                await share.turn()
                found, alarms = await share.metered(self._state(who, alarms))
                yield found
                if tail is None:
                    await self._desk.until_closing(interval_s)
                    continue
                until, left = self._clock.monotonic() + interval_s, MESSAGES_PER_INTERVAL
                while (wait_s := until - self._clock.monotonic()) > 0 and self._desk.is_open:
                    if left <= 0:
                        await self._desk.until_closing(wait_s)
                        break
                    records = await tail.next(min(left, MESSAGES_AT_ONCE), wait_s)
                    await share.turn()
                    who = _caller_now(call)
                    if who is None:
                        return
                    data = await share.metered(self._messages(call, who, tail, records))
                    if data:
                        yield data
                    left -= len(records)
        except OnelogError as error:
            yield _event("end", {"reason": str(error)})
        finally:
            self.open -= 1
            if tail is not None:
                await self._desk.close_tail(tail)

    async def _state(self, who: Caller, before: bytes) -> tuple[bytes, bytes]:
        desk = self._desk
        totals, rates = self._rates.sample(desk.broker, desk.desks())
        now_ms = self._clock.now_ms()
        found = _event("rates", RatesEvent(time_ms=now_ms, totals=totals, rates=rates))
        troubles = desk.troubles.rows()
        status = "failing" if not desk.health.ready().ok else "degraded" if troubles else "ok"
        sight = desk.sight(who)
        standing = [trouble_info(row, sight) for row in troubles if row.standing]
        alarms = _event("alarms", AlarmsEvent(status=status, alarms=standing))
        return found + (alarms if alarms != before else b""), alarms

    async def _messages(
        self,
        call: ApiCall[EventQuery, None],
        who: Caller,
        tail: TailCursor,
        records: list[Record],
    ) -> bytes:
        pieces: list[bytes] = []
        skipped, tail.skipped = tail.skipped, 0
        if skipped:
            pieces.append(_event("skipped", SkippedEvent(offsets=skipped)))
        allows = self._desk.broker.authorizer.allows
        for record in records:
            if allows(who.principal, Action.DELIVER, record.topic):
                pieces.append(_event("message", shown(record, call.query.value_bytes)))
            await self._desk.share.breathe()
        return b"".join(pieces)


def _caller_now(call: ApiCall[EventQuery, None]) -> Caller | None:
    """Who asks, by the role of now; None: it may look no more."""
    try:
        who = call.caller if call.recheck is None else call.recheck()
    except (NotAuthenticated, NotAuthorized):
        return None
    return who if who.role.covers(VIEWER) else None


def _event(name: str, body: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(body))
