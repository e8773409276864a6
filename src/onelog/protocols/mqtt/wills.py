"""Wills: published, after their delay, when a client leaves without DISCONNECT.

Rules:
- When a client comes back before the delay is over, its will is dropped (MQTT5 3.1.2-8, 3.1.3.2.2).
  The delay is never longer than the session lives.
- A will is in the internal stream `~wills` before CONNECT is answered, and leaves it when it is
  published or void. So it outlives the broker: after a start, a waiting will goes out at its time,
  and a client that was connected when the broker died counts as gone from the start on (3.1.2.5).
- Closing waits until a will that is being published is durable and its row is gone, so that it is
  published once; later wills go out after the next start. When the broker dies in between, the will
  is published again.
- A will that the disk refuses keeps its row and goes out after the next start.
- On several nodes, the owner of a client's shard has its will. It publishes one only after it wrote
  once more that the will is due, which an owner that was deposed cannot. So a will goes out once,
  unless its owner is lost between the publish and the removal of the row. One whose topic another
  node leads now is tried again until its client is back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base import faults
from onelog.base.errors import NotAuthorized, NotLeader, OnelogError, Timeout, Unavailable
from onelog.broker import KeptTable, Notice, Principal
from onelog.broker.sessions import NEVER_MS
from onelog.observe import get_logger
from onelog.protocols.mqtt import delayed
from onelog.protocols.mqtt.mapping import to_message
from onelog.protocols.mqtt.packets import Will

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub

STREAM: Final = "~wills"

CLOSE_TIMEOUT_S: Final = 5.0
"""How long closing waits for a disk that does not answer."""

RETRY_S: Final = 1.0
"""Wait before a will is tried again whose partition took nothing."""
_PASSING: Final = (NotLeader, Timeout, Unavailable)
"""What an election, a lost link or too few replicas lead to."""

_log = get_logger("mqtt")


class KeptWill(msgspec.Struct, array_like=True, frozen=True):
    """A will as `~wills` keeps it."""

    user: str
    will: Will
    due_ms: int | None = None
    """When to publish it; None while its client is connected."""
    certificate: bool = False
    """Whether a certificate proved the user's name."""
    claims: tuple[str, ...] = ()
    """Claims of the user's token, for access rules."""

    @classmethod
    def of(cls, principal: Principal, will: Will) -> KeptWill:
        """The will of a client that connects now."""
        return cls(principal.name, will, certificate=principal.certificate, claims=principal.claims)

    def principal(self, client_id: str) -> Principal:
        """The principal that publishes it."""
        return Principal(self.user, "mqtt", client_id, self.certificate, self.claims)


class Wills:
    """The wills of all clients that have not disconnected properly yet."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._shards = hub.broker.shards
        self._table: KeptTable
        self._kept: dict[str, KeptWill] = {}
        """The row of each client that has one."""
        self._waiting: dict[str, tuple[asyncio.TimerHandle, KeptWill]] = {}
        self._under_way = 0
        """Publishes, and changes of rows, that are not durable yet."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    async def open(self) -> None:
        """Find out where wills are kept."""
        self._table = await self._hub.broker.make_kept(STREAM)

    async def take(self, shard: int) -> None:
        """Take over the wills of an earlier run, or of an earlier owner."""
        for key, value in (await self._table.load(shard)).items():
            client_id, row = key.decode(), msgspec.msgpack.decode(value, type=KeptWill)
            self._kept[client_id] = row
            if row.due_ms is None:
                known = self._hub.broker.sessions.get(client_id)
                self._leave(client_id, row, 0 if known is None else known.expiry_ms)
            else:
                self._wait(client_id, row, row.due_ms - self._hub.clock.now_ms())

    def drop(self, shard: int) -> None:
        """The wills of a shard are the next owner's."""
        for client_id in [*self._kept]:
            if self._shards.of(client_id.encode()) == shard:
                del self._kept[client_id]
                waiting = self._waiting.pop(client_id, None)
                if waiting is not None:
                    waiting[0].cancel()

    def kept(self) -> list[tuple[str, KeptWill]]:
        """Every will, with its client."""
        return list(self._kept.items())

    async def keep(self, client_id: str, principal: Principal, will: Will | None) -> None:
        """A client is about to be accepted: its will counts from now on."""
        if will is None:
            self.forget(client_id)
            return
        row = self._kept[client_id] = KeptWill.of(principal, will)
        await self._table.put([(client_id.encode(), msgspec.msgpack.encode(row))])

    def forget(self, client_id: str) -> None:
        """A client sent DISCONNECT, or its will is published."""
        if self._kept.pop(client_id, None) is not None:
            self._put(client_id, None)

    def leave(self, client_id: str, principal: Principal, will: Will, expiry_ms: int) -> None:
        """A client left without DISCONNECT."""
        row = self._kept.get(client_id) or KeptWill.of(principal, will)
        self._leave(client_id, row, expiry_ms)

    def _leave(self, client_id: str, row: KeptWill, expiry_ms: int) -> None:
        delay_ms = (row.will.properties.will_delay_s or 0) * 1000
        if expiry_ms != NEVER_MS:
            delay_ms = min(delay_ms, expiry_ms)
        if delay_ms == 0:
            self._publish(client_id, row)
            return
        due_ms = self._hub.clock.now_ms() + delay_ms
        row = self._kept[client_id] = msgspec.structs.replace(row, due_ms=due_ms)
        self._put(client_id, msgspec.msgpack.encode(row))
        self._wait(client_id, row, delay_ms)

    def _wait(self, client_id: str, row: KeptWill, left_ms: int) -> None:
        # A wall clock that jumped back must not let a will wait longer than its delay.
        delay_ms = (row.will.properties.will_delay_s or 0) * 1000
        delay_s = min(max(left_ms, 0), delay_ms) / 1000
        timer = self._hub.loop.call_later(delay_s, self._publish, client_id, row)
        self._waiting[client_id] = (timer, row)

    def back(self, client_id: str, *, clean: bool) -> None:
        """The client is back: its will is void, unless its session ends now."""
        found = self._waiting.pop(client_id, None)
        if found is None:
            return
        timer, row = found
        timer.cancel()
        if clean:  # MQTT5 3.1.2.5: the delay is over when the session is
            self._publish(client_id, row)

    def _publish(self, client_id: str, row: KeptWill) -> None:
        self._waiting.pop(client_id, None)
        if self._closed or not self._shards.leads(client_id.encode()):
            return  # its row stays: it goes out after the next start, or by the next owner
        if self._shards.is_elected:
            self._publish_as_owner(client_id, row)
        else:
            self._send(client_id, row)

    def _publish_as_owner(self, client_id: str, row: KeptWill) -> None:
        row = msgspec.structs.replace(row, due_ms=self._hub.clock.now_ms())
        if client_id in self._kept:
            self._kept[client_id] = row
        try:
            put = self._table.put([(client_id.encode(), msgspec.msgpack.encode(row))])
        except OnelogError:
            return  # another node owns it
        self._begin()

        def was_put(put: asyncio.Future[None]) -> None:
            if not put.cancelled() and put.exception() is None:
                self._send(client_id, row)
            self._end()

        put.add_done_callback(was_put)

    def _send(self, client_id: str, row: KeptWill) -> None:
        hub, will, principal = self._hub, row.will, row.principal(client_id)
        self._begin()

        def done(error: OnelogError | None) -> None:
            faults.hit("mqtt.will_published")
            waits = isinstance(error, _PASSING) and self._shards.is_elected
            if error is not None and not waits:
                _log.warning("a will could not be published", client=client_id, reason=str(error))
            if self._kept.get(client_id) is row:  # not the row of a later connection
                if error is None or isinstance(error, delayed.HOPELESS):
                    self.forget(client_id)
                elif waits:
                    timer = hub.loop.call_later(RETRY_S, self._publish, client_id, row)
                    self._waiting[client_id] = (timer, row)
            self._end()

        try:
            topic = hub.rewriter.topic(will.topic, client_id, principal.name)
            if topic.startswith(delayed.PREFIX):
                hub.broker.publisher.put(*hub.delayed.take(will, topic, principal), Notice(done))
            elif topic.startswith("$") and not hub.may_write(topic):
                raise NotAuthorized(f"clients may not publish to {topic}")
            else:
                message = to_message(will, topic=topic, now_ms=hub.clock.now_ms())
                hub.broker.publisher.publish((message,), Notice(done), principal=principal)
        except OnelogError as error:
            done(error)

    def _put(self, client_id: str, value: bytes | None) -> None:
        """Change a row without waiting: a change that a crash loses is made again."""
        self._begin()
        try:
            self._table.put([(client_id.encode(), value)]).add_done_callback(self._was_put)
        except NotLeader:  # the next owner has the row
            self._end()
        except OnelogError as error:
            _log.warning("a will may be published again", client=client_id, reason=str(error))
            self._end()

    def _was_put(self, put: asyncio.Future[None]) -> None:
        error = None if put.cancelled() else put.exception()
        if error is not None:
            _log.warning("a will may be published again", reason=str(error))
        self._end()

    def _begin(self) -> None:
        self._under_way += 1
        self._idle.clear()

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way:
            self._idle.set()

    async def close(self) -> None:
        """Finish wills that are being published; waiting ones go out after the next start."""
        self._closed = True
        for timer, _row in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("wills may be published again", count=self._under_way)
