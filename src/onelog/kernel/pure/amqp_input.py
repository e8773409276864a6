"""AMQP's way in, interpreted: one connection's bytes become staged records and events.

Rules:
- A publish whose names and properties are known (a route) is staged and counted; its neighbours to
  the same stage are one event. Everything else is an event, as `split_amqp` has them.
- Events come in their order, and take effect in it: after the first event that the caller has to
  handle, nothing is staged any more. Acknowledgements and heartbeats do not stop staging.
- The compiled kernel settles plain acknowledgements that no event stands before, and counts staged
  publishes; neither is an event then (`AmqpReader`).
- When a read cuts a publish in two, the rest is waited for, up to `WAIT_BYTES_MAX` and a few
  frames; each frame of a larger publish is an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onelog.base.errors import LimitExceeded, MessageTooLarge
from onelog.kernel.pure.amqp_channel import AmqpPeer
from onelog.kernel.pure.amqp_wire import (
    ACK,
    ACK_METHOD,
    FAULT,
    HEARTBEAT,
    METHOD,
    PUBLISH_METHOD,
    Content,
    frame_at,
    publish_event,
    read_ack,
    read_content,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onelog.kernel.pure.stage import Stage

STAGED = 102
STAGE_BYTES_MAX = 4 * 1024 * 1024


class AmqpRoute:
    """Where publishes with the same exchange, key and properties go."""

    __slots__ = ("headers", "stage", "topic", "value_bytes_max")

    def __init__(
        self,
        topic: bytes,
        stage: Stage,
        value_bytes_max: int,
        headers: Sequence[tuple[bytes, bytes | None]],
    ) -> None:
        self.topic = topic
        self.stage = stage
        self.value_bytes_max = value_bytes_max
        self.headers = tuple(headers)


class AmqpInput:
    """One connection's byte stream."""

    __slots__ = ("_rest", "_routes", "frame_bytes_max")

    def __init__(self, frame_bytes_max: int) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._routes: dict[tuple[int, bytes, bytes], AmqpRoute] = {}
        self._rest = b""

    @property
    def route_count(self) -> int:
        """How many routes it knows."""
        return len(self._routes)

    def add_route(self, channel: int, names: bytes, properties: bytes, route: AmqpRoute) -> None:
        """Let publishes with these names and properties be staged without a check."""
        self._routes[channel, names, properties] = route

    def forget(self) -> None:
        """Forget all routes: every publish is checked again."""
        self._routes.clear()

    def take(self, data: bytes, now_ms: int) -> tuple[bytes, list[tuple[Any, ...]]]:
        """Take received bytes. Returns the bytes that events refer to, and the events.

        Events are as in `split_amqp`; (STAGED, channel, count, stage, start, end) are publishes
        that follow each other and are staged. After the first event that the caller has to handle,
        except acknowledgements, nothing is staged.
        """
        data, self._rest = self._rest + data, b""
        view = memoryview(data)
        events: list[tuple[Any, ...]] = []
        may_stage = bool(self._routes)
        at = 0
        while (frame := frame_at(view, at, self.frame_bytes_max)) is not None:
            kind, channel, start, end = frame
            if kind == FAULT:
                events.append((FAULT, channel))
                return data, events
            number = bytes(view[start : start + 4]) if kind == METHOD else b""
            event: tuple[Any, ...] | None = None
            after = end + 1
            if number == PUBLISH_METHOD:
                content = read_content(view, channel, (start, end), self.frame_bytes_max)
                if content is None:
                    break
                if content.is_whole:
                    stage = self._stage(channel, content, now_ms) if may_stage else None
                    if stage is not None:
                        _add_staged(events, channel, stage, at, content.after)
                        at = content.after
                        continue
                    event = publish_event(channel, content)
                    after = content.after if event is not None else after
            elif number == ACK_METHOD and end - start == 13:
                event = read_ack(view, channel, start)
            if event is None:
                event = (kind, channel, start, end)
            may_stage = may_stage and event[0] in (ACK, HEARTBEAT)
            events.append(event)
            at = after
        self._rest = data[at:]
        return data, events

    def _stage(self, channel: int, content: Content, now_ms: int) -> Stage | None:
        """Stage a publish whose route is known; None: it has no route, or no room."""
        route = self._routes.get((channel, content.names, content.properties))
        if route is None or len(content.parts) > 1:
            return None
        body = b"".join(content.parts)
        builder = route.stage.builder
        if len(body) > route.value_bytes_max or builder.size_bytes - 61 >= STAGE_BYTES_MAX:
            return None
        try:
            builder.add(route.topic, route.topic, body, route.headers, now_ms)
        except (LimitExceeded, MessageTooLarge):
            return None
        route.stage.touch()
        return route.stage


def _add_staged(
    events: list[tuple[Any, ...]], channel: int, stage: Stage, start: int, end: int
) -> None:
    if events and events[-1][0] == STAGED:
        _kind, last_channel, count, last_stage, first, last_end = events[-1]
        if last_channel == channel and last_stage is stage and last_end == start:
            events[-1] = (STAGED, channel, count + 1, stage, first, end)
            return
    events.append((STAGED, channel, 1, stage, start, end))


class AmqpReader(AmqpPeer):
    """A connection that is read."""

    __slots__ = ("clock", "generation", "input", "pauses", "queues", "reading")

    input: AmqpInput
    pauses: Any
    reading: Any
    queues: Any
    """Its generation changes when routes may be wrong."""
    generation: int
    """The one of the routes that are known."""
    clock: Any

    def data_received(self, data: bytes) -> None:
        """Bytes of the peer, in order."""
        self.take_slowly(data)

    def take_slowly(self, data: bytes) -> None:
        """Take a read that may be anything."""
        raise NotImplementedError
