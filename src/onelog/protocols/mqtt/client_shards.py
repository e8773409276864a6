"""The shards of MQTT's clients: what begins when this node owns one, and ends when it does not.

Rules:
- The name of a client's session and will is its client id, of a share group its name and filter, of
  an exclusive subscription its filter. Delayed messages lie together in shard 0.
- A shard is taken after its sessions: wills of clients that the earlier owner served count as left
  from then on, and share groups have had no members since then.
- When a shard is lost, its clients hear who serves them, and their connections end. They wait a
  moment for the next owner to be known. Nothing is written, no will is published and no session
  ends: all that is the next owner's.
- A session that stays, but had joined a share group or held an exclusive subscription of a lost
  shard, ends as any other connection that this node ends.
- Where nobody elects, this node owns all shards from the start to the end.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from onelog.base.errors import NotOwner, OnelogError, StateLoading, Unavailable
from onelog.broker import NO_NODE, until_visible
from onelog.protocols.mqtt.exclusive import Exclusive
from onelog.protocols.mqtt.observed import ObservedFilters
from onelog.protocols.mqtt.shares import ShareMember

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub
    from onelog.protocols.mqtt.session import MqttSession

DELAYED_SHARD: Final = 0
"""Partition 0 of `~delayed`, which has all messages, is a part of this shard."""
OWNER_S: Final = 1.0
"""How long connections of a lost shard wait for its next owner to be known."""
_AT_ONCE: Final = 256
"""Sessions that are looked at before others have a turn."""


class ClientShards:
    """All of MQTT that is kept by name, as a `ShardService`."""

    name = "mqtt"

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._shards = hub.broker.shards
        self.exclusive = Exclusive(self._shards.check_led)
        self.observed = ObservedFilters(hub, hub.broker.observing)
        """What clients read that lies on other nodes."""

    async def open(self) -> None:
        """Take what this node owns, and what elections give it from now on."""
        hub = self._hub
        await hub.delayed.open(is_elected=self._shards.is_elected)
        await hub.shares.open(made_now=self._shards.is_elected)
        await hub.wills.open()
        await self._shards.register(self)

    def close(self) -> None:
        """No shard comes or goes any more."""
        self.observed.close()
        self._shards.remove(self)

    def check(self, client_id: str) -> None:
        """Raise NotOwner, StateLoading or StateUnknown unless a client is served here."""
        self._shards.check(self, client_id.encode())

    async def take(self, shard: int) -> None:
        """See `ShardService`."""
        hub = self._hub
        if self._shards.is_elected:
            await until_visible(hub.broker.streams.streams())
        await hub.shares.take(shard)
        if shard == DELAYED_SHARD:
            await hub.delayed.begin()
        await hub.wills.take(shard)

    async def drop(self, shard: int) -> None:
        """See `ShardService`."""
        hub = self._hub
        hub.wills.drop(shard)
        if shard == DELAYED_SHARD:
            await hub.delayed.end()
        await self._until_owned(shard)
        for number, session in enumerate(list(hub.sessions.values()), 1):
            error = self._error_for(session, shard)
            connection = session.connection
            if error is not None and connection is not None:
                connection.fail(error)
                if not self._shards.leads(session.client_id.encode()):
                    await hub.leave(connection)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
        hub.shares.drop(shard)

    async def _until_owned(self, shard: int) -> None:
        """Wait a moment until somebody owns a shard, if a client is to hear of it."""
        names = (client_id.encode() for client_id in self._hub.sessions)
        name = next((name for name in names if self._shards.of(name) == shard), None)
        cluster = self._hub.broker.cluster
        nobody = (NO_NODE, cluster.node)  # rows may be a moment old
        if name is None or cluster.owner(name) not in nobody:
            return
        known = asyncio.Event()

        def look() -> None:
            if cluster.owner(name) not in nobody:
                known.set()

        cluster.on_change.append(look)
        try:
            async with asyncio.timeout(OWNER_S):
                await known.wait()
        except TimeoutError:
            pass  # then they are to try again
        finally:
            cluster.on_change.remove(look)

    def _error_for(self, session: MqttSession, shard: int) -> OnelogError | None:
        """Why a connection ends when a shard is lost; None: it stays."""
        name = session.client_id.encode()
        if self._shards.of(name) == shard:
            try:
                self._shards.check_led(name)
            except NotOwner as error:
                return error
            return StateLoading(f"the session of {session.client_id} is read anew")
        cursors = self._hub.broker.cursors
        for special in session.specials.values():
            if isinstance(special, ShareMember) and cursors.shard_of(special.queue.name) == shard:
                return Unavailable(f"the share group {special.queue.name} is with another node now")
        for row in session.subscriptions.values():
            if row.exclusive and self._shards.of(row.filter.encode()) == shard:
                return Unavailable(f"$exclusive/{row.filter} is with another node now")
        return None
