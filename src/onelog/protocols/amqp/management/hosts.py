"""Virtual hosts that come and go while the broker runs.

Rules: one that was made is a row of the metadata store (`queues/topology.py`); it is there when its
row is. `/` and those that the configuration names cannot go. With a virtual host go its
connections, queues, exchanges and bindings; what was sent stays in the log for as long as retention
says.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.errors import Conflict, InvalidName, InvalidRequest, LimitExceeded, NotFound
from onelog.queues.addresses import DEFAULT_VHOST, NAME_BYTES_MAX
from onelog.queues.definitions import MADE, host_prefix, key_of
from onelog.queues.vhosts import VirtualHost

if TYPE_CHECKING:
    from onelog.protocols.amqp.hub import Hub

HOSTS_MAX: Final = 1000
TEXT_CHARS_MAX: Final = 4096
TAGS_MAX: Final = 64


class HostNote(msgspec.Struct, frozen=True, kw_only=True):
    """The description and tags of a virtual host."""

    description: str = ""
    tags: tuple[str, ...] = ()


_DEFAULT_NOTE: Final = HostNote(description="Default virtual host")


class Hosts:
    """The virtual hosts of a hub, with their notes."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._topology = hub.queues.topology
        self._leaving: set[str] = set()

    def note(self, name: str) -> HostNote:
        """What is written about a virtual host."""
        row = self._topology.find(_key(name))
        if row is not None and isinstance(row.record, bytes) and row.record:
            return msgspec.json.decode(row.record, type=HostNote)
        return _DEFAULT_NOTE if name == DEFAULT_VHOST else HostNote()

    def find(self, name: str) -> VirtualHost:
        """A virtual host. Raises NotFound."""
        found = self._hub.vhosts.find(name)
        if found is None:
            raise NotFound("vhost_not_found")
        return found

    async def make(self, name: str, note: HostNote) -> bool:
        """Make a virtual host or change what is written about it; whether it is new."""
        while True:
            self.check(name, note)
            is_new = self._hub.vhosts.find(name) is None
            with contextlib.suppress(Conflict):  # another was faster: look again
                await self._topology.put(_key(name), msgspec.json.encode(note))
                return is_new

    def check(self, name: str, note: HostNote) -> None:
        """Check a virtual host before it is made. Raises InvalidName, InvalidRequest,
        LimitExceeded."""
        if len(note.description) > TEXT_CHARS_MAX or len(note.tags) > TAGS_MAX:
            raise InvalidRequest(
                f"a virtual host has at most {TAGS_MAX} tags, and {TEXT_CHARS_MAX} characters of"
                " description"
            )
        if self._hub.vhosts.find(name) is not None:
            return
        if name in self._leaving:
            raise Conflict(f"the virtual host '{name}' is being deleted; try again soon")
        if not name or len(name.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
            raise InvalidName(f"a virtual host's name has 1 to {NAME_BYTES_MAX} bytes")
        if len(self._hub.vhosts.all()) >= HOSTS_MAX:
            raise LimitExceeded(f"there are {HOSTS_MAX} virtual hosts, which is the limit")

    async def delete(self, name: str) -> None:
        """Delete a virtual host and everything in it. Raises NotFound, InvalidRequest."""
        vhost = self.find(name)
        configured = [row.strip() for row in self._hub.config.amqp.vhosts.split(",")]
        if name == DEFAULT_VHOST or name in configured:
            raise InvalidRequest(
                f"the virtual host '{name}' cannot be deleted: it is built in, or amqp.vhosts of"
                " the configuration names it"
            )
        self._leaving.add(name)
        try:
            await self._hub.queues.carry_through(self._forget(name))
            await self._empty(vhost)
        finally:
            self._leaving.discard(name)

    async def _forget(self, name: str) -> None:
        """Delete all rows at once: a crash while it is emptied leaves no part of it."""
        while self._hub.vhosts.find(name) is not None:
            with contextlib.suppress(Conflict):
                if self._topology.find(_key(name)) is None:  # the configuration named it once
                    await self._topology.put(_key(name), b"")
                await self._topology.delete_prefix(host_prefix(name), _key(name))

    async def _empty(self, vhost: VirtualHost) -> None:
        for connection in list(self._hub.connections):
            if connection.vhost is vhost:
                connection.close(320, f"CONNECTION_FORCED - vhost '{vhost.name}' is down")
        await vhost.rows.cleared()
        for queue in list(vhost.queues.values()):  # those that are not kept have no rows
            await vhost.delete_queue(queue)


def _key(name: str) -> str:
    return key_of(name, MADE, "")
