"""Virtual hosts that come and go while the broker runs.

Rules: a new one is in the metadata store before the request is answered, and exists again after a
restart. `/` and those in the configuration cannot be deleted. Deleting a virtual host closes its
connections and deletes its queues, exchanges and bindings; its messages stay in the log as long as
retention says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base.errors import Conflict, InvalidName, InvalidRequest, LimitExceeded, NotFound
from onelog.broker import Put
from onelog.queues.addresses import DEFAULT_VHOST
from onelog.queues.definitions import MADE, host_prefix, key_of
from onelog.queues.exchanges import BUILT_IN
from onelog.queues.vhosts import NAME_BYTES_MAX, VirtualHost

if TYPE_CHECKING:
    from onelog.protocols.amqp.hub import Hub

HOSTS_MAX: Final = 1000
TEXT_CHARS_MAX: Final = 4096
TAGS_MAX: Final = 64


class HostNote(msgspec.Struct, frozen=True, kw_only=True):
    """The description and tags of a virtual host."""

    description: str = ""
    tags: tuple[str, ...] = ()


class Hosts:
    """The virtual hosts of a hub, with their notes."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._notes: dict[str, HostNote] = {
            DEFAULT_VHOST: HostNote(description="Default virtual host")
        }
        self._leaving: set[str] = set()

    async def open(self) -> None:
        """Read the kept notes."""
        for vhost in self._hub.vhosts.all():
            entry = await self._hub.broker.store.get(key_of(vhost.name, MADE, ""))
            if entry is not None and entry.value:
                self._notes[vhost.name] = msgspec.json.decode(entry.value, type=HostNote)

    def note(self, name: str) -> HostNote:
        """The note of a virtual host."""
        return self._notes.get(name, HostNote())

    def find(self, name: str) -> VirtualHost:
        """A virtual host. Raises NotFound."""
        found = self._hub.vhosts.find(name)
        if found is None:
            raise NotFound("vhost_not_found")
        return found

    async def make(self, name: str, note: HostNote) -> bool:
        """Make a virtual host or change its note. Returns whether it is new."""
        self.check(name, note)
        is_new = self._hub.vhosts.find(name) is None
        put = Put(key_of(name, MADE, ""), msgspec.json.encode(note))
        await self._hub.broker.store.txn([], [put])
        self._notes[name] = note
        self._hub.vhosts.add(name)
        self._hub.queues.topology_changed()
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
        self._hub.vhosts.remove(name)  # nobody can open it any more
        self._notes.pop(name, None)
        self._leaving.add(name)
        try:
            # First of all: a crash while it is emptied leaves no part of it.
            await self._forget(name)
            await self._empty(vhost)
            await self._forget(name)  # rows that were being declared meanwhile
        finally:
            self._leaving.discard(name)
        self._hub.queues.topology_changed()

    async def _forget(self, name: str) -> None:
        await self._hub.broker.store.delete(host_prefix(name), prefix=True)

    async def _empty(self, vhost: VirtualHost) -> None:
        for connection in list(self._hub.connections):
            if connection.vhost is vhost:
                connection.close(320, f"CONNECTION_FORCED - vhost '{vhost.name}' is down")
        for queue in list(vhost.queues.values()):
            await vhost.delete_queue(queue)
        built_in = {record.name for record in BUILT_IN}
        for record in vhost.router.exchanges():
            if record.name not in built_in and vhost.router.find(record.name) is not None:
                await vhost.delete_exchange(record.name, if_unused=False)
        for binding in vhost.router.bindings():
            await vhost.unbind(binding)
