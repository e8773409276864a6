"""Shared subscriptions: `$share/<group>/<filter>` is one queue (`queues/filter_queue.py`) that its
members drain.

Rules:
- A group is its name and its filter; its backlog is kept while no member is connected, and begins
  at the first subscription. Retained messages are never sent (MQTT5 4.8.2).
- A message is with one member at a time. PUBACK or PUBREC settles it, also with an error code: then
  the message is given up and not offered to others (4.8.2-6). A message of QoS 0 is settled when it
  is sent.
- When the connection of a member ends, its unacknowledged messages go to others, lowest offset
  first.
- A member without room, or whose client does not accept a packet that large, is passed over. A
  message that no member can take is given up. One that no member has the right to waits for a
  member that has it.
- On several nodes, the owner of a group's shard has its members; any other node refuses them.
- A group without members is deleted after `idle_expiry_ms`; the time that the broker was down
  counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import msgspec

from onelog.base.errors import Conflict, NotFound, NotLeader, OnelogError, QuotaExceeded
from onelog.broker import (
    LATEST,
    LOCAL,
    Cursor,
    Position,
    QueueSettings,
    Record,
)
from onelog.observe import get_logger
from onelog.protocols.mqtt.idle_groups import IdleGroups
from onelog.protocols.mqtt.mapping import from_record
from onelog.protocols.mqtt.outgoing import prepare
from onelog.protocols.mqtt.special import OWN_SOURCE, SubscribeAddress
from onelog.protocols.mqtt.subscribed import Subscribed
from onelog.queues.consumers import Delivery, Strategy
from onelog.queues.filter_queue import FilterConsumer, FilterQueue

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub
    from onelog.protocols.mqtt.session import MqttSession

_CURSOR: Final = "share/"

_log = get_logger("mqtt")


class ShareSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How shared subscriptions behave."""

    strategy: Strategy = Strategy.ROUND_ROBIN
    by_group: dict[str, Strategy] = {}
    """Groups with a strategy of their own."""
    idle_expiry_ms: int = 7 * 24 * 3600 * 1000
    """How long a group without members keeps its backlog; 0: for ever."""
    queue: QueueSettings = QueueSettings()

    def strategy_of(self, group: str) -> Strategy:
        """The strategy of a group."""
        return self.by_group.get(group, self.strategy)

    @property
    def needs_publishers(self) -> bool:
        """Whether messages have to carry the client that published them."""
        return Strategy.HASH_CLIENT in (self.strategy, *self.by_group.values())


class ShareMember(FilterConsumer):
    """A session that drains the queue of a group."""

    def __init__(
        self, shares: Shares, queue: FilterQueue, session: MqttSession, row: Subscribed
    ) -> None:
        self._shares = shares
        self.queue = queue
        self.session = session
        self.row = row
        self.tag = session.client_id
        self._held: dict[int, int] = {}
        """Place in the queue → packet id, of messages that the client has not acknowledged."""

    # -- called by the queue

    @property
    def room(self) -> int:
        """How many messages it can take now."""
        connection = self.session.connection
        return 0 if connection is None or connection.is_slow else self.session.output.room

    @property
    def unacked(self) -> int:
        """Unacknowledged messages of its client, of all subscriptions."""
        return self.session.output.pending

    def may_have(self, record: Record) -> bool:
        """Whether its user may have a message."""
        return self.session.may_have(record.topic)

    def take(self, delivery: Delivery) -> bool:
        """Send a message; False: the client may not have it, or it does not fit the window or
        packet size."""
        session, row = self.session, self.row
        if not self.may_have(delivery.record):
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
        packet = prepare(session.output, publish, (OWN_SOURCE, delivery.place))
        if packet is None:
            return False
        packet.push(session.output)
        session.hub.counters.caught_up += 1
        if packet.packet_id:
            self._held[delivery.place] = packet.packet_id
            session.owned[packet.packet_id] = (self, delivery.place)
        else:
            self.queue.settle(delivery.place)
        return True

    def flush(self) -> None:
        """Write out the messages of this pass."""
        self.session.write_out()

    def ask_for_room(self) -> None:
        """Wake the queue when the session has room."""
        self.session.ask_for_room(self)

    def queue_gone(self) -> None:
        """Nothing: the next subscription begins the group again."""

    # -- called by the session

    def begin(self) -> None:
        """Begin to take messages."""
        self.queue.add_consumer(self)

    def go_on(self) -> None:
        """Take messages again."""
        self.queue.wake()

    def settle(self, tag: int, *, accepted: bool) -> Cursor | None:
        """The client acknowledged a message, or refused it."""
        if self._held.pop(tag, None) is None:
            return None
        if accepted:
            self.queue.ack(tag)
        else:
            self.queue.reject(tag)
        return self.queue.cursor

    def positions(self) -> list[Position]:
        """None: the cursor of the group keeps them."""
        return []

    def park(self) -> None:
        """Leave, and let others have the unacknowledged messages."""
        self.end()
        for packet_id in self._held.values():
            self.session.owned.pop(packet_id, None)
            self.session.output.ack(packet_id)
        self.queue.requeue(self._held)
        self._held.clear()

    def end(self) -> None:
        """Leave; messages in flight to the client are completed."""
        self.queue.remove_consumer(self)
        if not self.queue.consumers:
            self._shares.left_alone(self.queue)


class Shares:
    """Every share group of a node."""

    def __init__(self, hub: Hub, settings: ShareSettings) -> None:
        self.hub = hub
        self.settings = settings
        self.groups: dict[str, FilterQueue] = {}
        self._names: set[str] = set()
        """The names of all groups, also of those without members since the start."""
        self._idle = IdleGroups(hub.broker)
        self._opening = asyncio.Lock()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.member: type[ShareMember] = ShareMember
        """What a session becomes in a group."""

    async def open(self, *, made_now: bool) -> None:
        """Before any shard is taken. `made_now`: streams are made at once."""
        await self._idle.open(made_now=made_now)

    async def take(self, shard: int) -> None:
        """Let the backlogs of a shard's groups without members expire in time."""
        now_ms, cursors = self.hub.clock.now_ms(), self.hub.broker.cursors
        since = await self._idle.take(shard)
        names = {
            name
            for name in cursors.names()
            if name.startswith(_CURSOR) and cursors.shard_of(name) == shard
        }
        # The members of all other groups were connected when the broker stopped.
        await self._idle.note(dict.fromkeys(names - since.keys(), now_ms))
        for name in since.keys() - names:  # groups that were deleted
            await self._idle.forget(name)
        self._names |= names
        for name in names:
            self._arm(name, since.get(name, now_ms))

    def drop(self, shard: int) -> None:
        """The groups of a shard are the next owner's."""
        shard_of = self.hub.broker.cursors.shard_of
        for name in [name for name in self._names if shard_of(name) == shard]:
            self._names.discard(name)
            self.groups.pop(name, None)
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()

    async def join(
        self, session: MqttSession, row: Subscribed, address: SubscribeAddress
    ) -> ShareMember:
        """Make a session a member. A new group begins now.

        The queue is the broker's: the rights of a member count when it takes a message.
        """
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
                    principal=LOCAL,
                )
                strategy = self.settings.strategy_of(address.argument)
                group = FilterQueue(cursor, strategy, self.hub.loop, self.hub.clock)
                self.groups[name] = group
                self._names.add(name)
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()
                await self._idle.forget(name)
        return self.member(self, group, session, row)

    def rights_changed(self) -> None:
        """Members may have messages now that none of their group could have before."""
        for group in self.groups.values():
            group.offer_withheld()

    # -- groups without members

    def left_alone(self, group: FilterQueue) -> None:
        """The last member is gone: the backlog stays for a while."""
        if self.groups.get(group.name) is not group or group.name in self._timers:
            return
        now_ms = self.hub.clock.now_ms()
        self._arm(group.name, now_ms)
        self._start(self._note_idle(group.name, now_ms))

    async def _note_idle(self, name: str, now_ms: int) -> None:
        if name in self._timers:
            await self._idle.note({name: now_ms})

    def _arm(self, name: str, since_ms: int) -> None:
        expiry_ms = self.settings.idle_expiry_ms
        if expiry_ms:
            # A wall clock that jumped back must not keep it longer than promised.
            left_ms = min(max(0, since_ms + expiry_ms - self.hub.clock.now_ms()), expiry_ms)
            self._timers[name] = self.hub.loop.call_later(left_ms / 1000, self._due, name)

    def _due(self, name: str) -> None:
        self._timers.pop(name, None)
        self._start(self._expire(name))

    async def delete(self, name: str) -> None:
        """Forget a group without members and its backlog. Raises NotFound, Conflict."""
        if name not in self._names:
            raise NotFound(f"there is no share group {name!r}")
        await self._expire(name)
        if name in self._names:
            raise Conflict(f"the share group {name!r} has members: end their connections first")

    async def _expire(self, name: str) -> None:
        async with self._opening:
            group = self.groups.get(name)
            if group is not None and group.consumers:
                return
            timer = self._timers.pop(name, None)
            if timer is not None:
                timer.cancel()
            self.groups.pop(name, None)
            if name in self.hub.broker.cursors.names():
                await self.hub.broker.cursors.delete(name)
            self._names.discard(name)
            await self._idle.forget(name)
            _log.info("a share group without members ended", group=name)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.hub.loop.create_task(self._quietly(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except NotLeader:
            pass  # the group is the next owner's
        except OnelogError as error:
            _log.error("the idle time of a share group was not kept", reason=str(error))

    async def close(self) -> None:
        """Stop the timers; the backlogs stay."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._tasks:
            await asyncio.gather(*self._tasks)
