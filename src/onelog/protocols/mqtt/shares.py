"""Shared subscriptions: `$share/<group>/<filter>` is one queue cursor that its members drain.

Rules:
- A group is its name and its filter; its backlog is kept while no member is connected, and begins
  at the first subscription. Retained messages are never sent (MQTT5 4.8.2).
- A message is with one member at a time. PUBACK or PUBREC settles it, with an error code too: the
  message is then given up and not offered to others (4.8.2-6). QoS 0 is settled when it is sent.
- What a member has not acknowledged when its connection goes, goes to another, lowest offset first.
- A member without room, or whose client cannot take a packet that large, is passed over. What no
  member can take is given up.
- A group without members is deleted after `idle_expiry_ms`; the time that the broker was down
  counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from onelog.base.errors import Closed, OnelogError, QuotaExceeded
from onelog.broker import (
    LATEST,
    Cursor,
    Delivery,
    Position,
    Principal,
    QueueCursor,
    QueueSettings,
)
from onelog.observe import get_logger
from onelog.protocols.mqtt.mapping import from_record, remaining_expiry_s
from onelog.protocols.mqtt.outgoing import prepare
from onelog.protocols.mqtt.special import OWN_SOURCE, Address
from onelog.protocols.mqtt.subscribed import Subscribed
from onelog.record.headers import PUBLISHER, find_header
from onelog.record.record import Record

if TYPE_CHECKING:
    from onelog.cursors.wait import QueueWait
    from onelog.protocols.mqtt.hub import Hub
    from onelog.protocols.mqtt.session import MqttSession

PASS_RECORDS: Final = 256
"""Messages that a group hands out before others have a turn."""

_IDLE: Final = "mqtt/shares/"
_CURSOR: Final = "share/"

_log = get_logger("mqtt")


class ShareStrategy(StrEnum):
    """Which member gets the next message."""

    ROUND_ROBIN = "round_robin"
    LEAST_IN_FLIGHT = "least_in_flight"
    STICKY = "sticky"
    """The same one as long as it has room."""
    HASH_TOPIC = "hash_topic"
    HASH_CLIENT = "hash_client"
    """By the client that published."""


class ShareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How shared subscriptions behave."""

    strategy: ShareStrategy = ShareStrategy.ROUND_ROBIN
    by_group: dict[str, ShareStrategy] = {}
    """Groups with a strategy of their own."""
    idle_expiry_ms: int = 7 * 24 * 3600 * 1000
    """How long a group without members keeps its backlog; 0: for ever."""
    queue: QueueSettings = QueueSettings()

    def strategy_of(self, group: str) -> ShareStrategy:
        """The strategy of a group."""
        return self.by_group.get(group, self.strategy)

    @property
    def needs_publishers(self) -> bool:
        """Whether messages have to carry the client that published them."""
        return ShareStrategy.HASH_CLIENT in (self.strategy, *self.by_group.values())


class Member:
    """A session in a group."""

    def __init__(self, group: ShareGroup, session: MqttSession, row: Subscribed) -> None:
        self.group = group
        self.session = session
        self.row = row
        self._held: dict[int, int] = {}
        """Queue token → packet id, of what the client has not acknowledged."""

    @property
    def room(self) -> int:
        """How many messages it can take now."""
        connection = self.session.connection
        return 0 if connection is None or connection.is_slow else self.session.output.room

    def begin(self) -> None:
        """Be offered messages."""
        self.group.add(self)

    def go_on(self) -> None:
        """Be offered messages again."""
        self.group.hand_out_soon()

    def give(self, delivery: Delivery) -> bool:
        """Send a message; False when the client may not have it, or it does not fit its window
        or packet size.
        """
        session, row = self.session, self.row
        if not session.may_have(delivery.record.topic):
            return False
        publish = from_record(
            delivery.record,
            now_ms=session.hub.clock.now_ms(),
            qos_max=row.qos,
            retain=None if row.retain_as_published else False,
            packet_id=1,
            subscription_ids=(row.identifier,) if row.identifier else (),
        )
        if publish is None:
            return False
        packet = prepare(session.output, publish, (OWN_SOURCE, delivery.token))
        if packet is None:
            return False
        packet.push(session.output)
        session.hub.counters.caught_up += 1
        if packet.packet_id:
            self._held[delivery.token] = packet.packet_id
            session.owned[packet.packet_id] = (self, delivery.token)
        else:
            self.group.cursor.ack(delivery.token)
        return True

    def settle(self, tag: int, *, accepted: bool) -> Cursor | None:
        """The client acknowledged a message, or refused it."""
        if self._held.pop(tag, None) is None:
            return None
        cursor = self.group.cursor
        if accepted:
            cursor.ack(tag)
        else:
            cursor.reject(tag)
        self.group.hand_out_soon()
        return cursor

    def positions(self) -> list[Position]:
        """None: the group's cursor keeps them."""
        return []

    def park(self) -> None:
        """Leave, and let others have what was not acknowledged."""
        self.group.remove(self)
        for token, packet_id in self._held.items():
            self.session.owned.pop(packet_id, None)
            self.session.output.ack(packet_id)
            self.group.release(token)
        self._held.clear()

    def end(self) -> None:
        """Leave; what is in flight to the client is completed."""
        self.group.remove(self)


class ShareGroup:
    """One group: its queue and its members."""

    def __init__(self, shares: Shares, name: str, group: str, cursor: QueueCursor) -> None:
        self.name = name
        self.cursor = cursor
        self.members: list[Member] = []
        self._shares = shares
        self._strategy = shares.settings.strategy_of(group)
        self._turn = 0
        self._scheduled = False
        self._stuck = False
        """Whether only a member without room can take the next message."""
        self._wait: QueueWait | None = None

    def add(self, member: Member) -> None:
        """A member is ready."""
        if member not in self.members:
            self.members.append(member)
        self.hand_out_soon()

    def remove(self, member: Member) -> None:
        """A member takes no more, or went before it began."""
        if member in self.members:
            self.members.remove(member)
        if not self.members:
            self._stop_waiting()
            self._shares.left_alone(self)

    def release(self, token: int) -> None:
        """What a member had goes to another."""
        try:
            self.cursor.release(token, delay_ms=0)
        except OnelogError as error:  # the queue was deleted in between
            _log.info("a shared message was let go", group=self.name, reason=str(error))
        self.hand_out_soon()

    # -- handing out

    def hand_out_soon(self) -> None:
        """Look at the end of this pass: what comes back together is handed out in its order."""
        if not self._scheduled and self.members:
            self._scheduled = True
            self._shares.hub.loop.call_soon(self._hand_out)

    def _hand_out(self) -> None:
        self._scheduled = False
        self._stop_waiting()
        try:
            self._hand_out_some()
        except Closed:
            return  # deleted; the next subscription begins it anew
        except OnelogError as error:
            _log.error("a share group cannot be read", group=self.name, reason=str(error))

    def _hand_out_some(self) -> None:
        room = sum(member.room for member in self.members)
        if room == 0:
            self._ask_for_room()
            return
        cursor = self.cursor
        touched: set[MqttSession] = set()
        self._stuck = False
        for delivery in cursor.acquire(self.name, min(room, PASS_RECORDS)):
            member = self._give(delivery)
            if member is not None:
                touched.add(member.session)
        for session in touched:
            session.write_out()
        if self._stuck:
            self._ask_for_room()
        elif not cursor.is_full and (cursor.has_returned or cursor.reading.may_go_on()):
            self.hand_out_soon()
        else:
            self._wait = cursor.when_available(self._available)

    def _ask_for_room(self) -> None:
        for member in self.members:
            if not member.room:
                member.session.ask_for_room(member)

    def _available(self) -> None:
        self._wait = None
        self.hand_out_soon()

    def _stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None

    def _give(self, delivery: Delivery) -> Member | None:
        """Give a message to a member; who got it."""
        now_ms = self._shares.hub.clock.now_ms()
        if remaining_expiry_s(delivery.record.headers, now_ms=now_ms) == 0:
            self.cursor.ack(delivery.token)
            return None
        passed_over = 0
        for index in self._candidates(delivery.record):
            member = self.members[index]
            if member.room:
                if member.give(delivery):
                    self._turn = index + (self._strategy is not ShareStrategy.STICKY)
                    return member
                passed_over += 1
        if passed_over == len(self.members):  # for none of them, or too large (3.1.2-25)
            self.cursor.reject(delivery.token)
        else:
            self._stuck = True
            self.cursor.release(delivery.token, delay_ms=0, count=False)
        return None

    def _candidates(self, record: Record) -> Iterator[int]:
        """Members by their number, the preferred one first."""
        count = len(self.members)
        if self._strategy is ShareStrategy.LEAST_IN_FLIGHT:
            first = self._turn % count
            turns = [(first + step) % count for step in range(count)]
            yield from sorted(turns, key=lambda index: self.members[index].session.output.pending)
            return
        first = self._turn
        if self._strategy is ShareStrategy.HASH_TOPIC:
            first = crc32(record.topic.encode())
        elif self._strategy is ShareStrategy.HASH_CLIENT:
            first = crc32(find_header(record.headers, PUBLISHER) or b"")
        for step in range(count):
            yield (first + step) % count


class Shares:
    """Every share group of a node."""

    def __init__(self, hub: Hub, settings: ShareSettings) -> None:
        self.hub = hub
        self.settings = settings
        self.groups: dict[str, ShareGroup] = {}
        self._names: set[str] = set()
        """Of all groups, also those that nobody came back to since the start."""
        self._opening = asyncio.Lock()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Let the backlogs of groups that nobody comes back to end in their time."""
        now_ms = self.hub.clock.now_ms()
        known = (await self.hub.broker.store.range(_IDLE)).entries
        since = {entry.key.removeprefix(_IDLE): int(entry.value) for entry in known}
        for name in self.hub.broker.cursors.names():
            if name.startswith(_CURSOR):
                self._names.add(name)
                if name not in since:  # the broker went before its members
                    await self.hub.broker.store.put(_IDLE + name, b"%d" % now_ms)
                self._arm(name, since.get(name, now_ms))

    async def join(
        self, session: MqttSession, row: Subscribed, address: Address, principal: Principal
    ) -> Member:
        """Make a session a member; the group begins now if it is new."""
        name = f"{_CURSOR}{address.argument}/{address.filter}"
        cursors = self.hub.broker.cursors
        async with self._opening:
            group = self.groups.get(name)
            if group is None or cursors.find(name) is not group.cursor:
                most = self.hub.limits.share_groups
                if name not in self._names and len(self._names) >= most:
                    raise QuotaExceeded(f"there are {most} share groups already")
                cursor = await cursors.open_queue(
                    name,
                    (address.filter,),
                    start=LATEST,
                    settings=self.settings.queue,
                    principal=principal,
                )
                group = self.groups[name] = ShareGroup(self, name, address.argument, cursor)
                self._names.add(name)
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()
                await self.hub.broker.store.delete(_IDLE + name)
        return Member(group, session, row)

    # -- groups without members

    def left_alone(self, group: ShareGroup) -> None:
        """The last member is gone: the backlog stays for a while."""
        if self.groups.get(group.name) is not group or group.name in self._timers:
            return
        now_ms = self.hub.clock.now_ms()
        self._arm(group.name, now_ms)
        self._start(self._note_idle(group.name, now_ms))

    async def _note_idle(self, name: str, now_ms: int) -> None:
        if name in self._timers:
            await self.hub.broker.store.put(_IDLE + name, b"%d" % now_ms)

    def _arm(self, name: str, since_ms: int) -> None:
        expiry_ms = self.settings.idle_expiry_ms
        if expiry_ms:
            # A wall clock that jumped back must not keep it longer than promised.
            left_ms = min(max(0, since_ms + expiry_ms - self.hub.clock.now_ms()), expiry_ms)
            self._timers[name] = self.hub.loop.call_later(left_ms / 1000, self._due, name)

    def _due(self, name: str) -> None:
        self._timers.pop(name, None)
        self._start(self._expire(name))

    async def _expire(self, name: str) -> None:
        async with self._opening:
            group = self.groups.get(name)
            if group is not None and group.members:
                return
            self.groups.pop(name, None)
            if name in self.hub.broker.cursors.names():
                await self.hub.broker.cursors.delete(name)
            self._names.discard(name)
            await self.hub.broker.store.delete(_IDLE + name)
            _log.info("a share group without members ended", group=name)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.hub.loop.create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except OnelogError as error:
            _log.error("the idle time of a share group was not kept", reason=str(error))

    async def close(self) -> None:
        """Stop the timers; the backlogs stay."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._tasks:
            await asyncio.gather(*self._tasks)
