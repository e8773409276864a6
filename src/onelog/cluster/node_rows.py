"""The rows of nodes in the metadata store: the cluster, its members, who is there, who controls.

Words: a *member* is a node that belongs to the cluster, whether it runs or not. A node that runs is
*registered*. Its *node epoch* is the revision of its registration: unique, growing, and comparable
within any transaction.

Rules:
- A row is written with a compare of its own revision; nothing is written over what was not seen.
- What a later start may have lost is written down as the first node epoch that counts
  (`disk_since`, `cache_since`). The revision of the member's row as it was read, plus one, lies
  after every older epoch and not after the new one.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

from onelog.base.errors import StorageError
from onelog.cluster.rows import NODES
from onelog.metadata.store import Entry

CLUSTER: Final = "cluster"
MEMBERS: Final = "members/"
STOPPING: Final = "stopping/"
"""Nodes that are about to stop."""
FORMAT: Final = 1

T = TypeVar("T")


class ClusterRow(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster itself; written once."""

    id: str
    format: int = FORMAT
    owner: int
    """The node that made it. Streams of before there were several nodes lie there."""
    version: int = 1
    """The inner version that operators finalised: every node has to speak it."""


class ClusterMember(msgspec.Struct, frozen=True, kw_only=True):
    """A node that belongs to the cluster."""

    data_uuid: str
    name: str = ""
    roles: tuple[str, ...] = ()
    rack: str = ""
    version: str = ""
    registrations: int = 0
    """How often it registered with this data."""
    is_clean: bool = False
    """Whether the process before this one closed everything."""
    boot_id: str = ""
    disk_since: int = 0
    """What it had in node epochs below this one was on a disk that is gone."""
    cache_since: int = 0
    """What it had in node epochs below this one may have been lost with the page cache."""
    process_since: int = 0
    """What it had in memory in node epochs below this one was that of another process."""
    draining: bool = False
    has_store: bool = False
    """Whether it keeps history in an object store."""


class RegisteredNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that runs; it hangs on a lease."""

    data_uuid: str
    process: str
    """Which process: two with the same data would both believe to be the node."""
    listeners: dict[str, str] = {}
    """Where clients reach it."""
    inner: str = ""
    """Where other nodes reach it: `host:port` or `unix:path`."""
    version: str = ""
    inner_versions: tuple[int, int] = (1, 1)
    """The lowest and the highest inner version that it speaks."""


class ControllerRow(msgspec.Struct, frozen=True, kw_only=True):
    """Who controls; the revision of this row fences each of its writes."""

    node: int
    node_epoch: int


def next_member(
    before: ClusterMember | None, revision: int, now: ClusterMember, *, is_same_process: bool
) -> ClusterMember:
    """The row of a member that registers; `revision` is that of its row before (0: none)."""
    first = revision + 1
    if before is None or before.data_uuid != now.data_uuid:
        since = 0 if before is None else first
        return msgspec.structs.replace(
            now,
            registrations=1,
            disk_since=since,
            cache_since=since,
            process_since=since,
            draining=False,
        )
    cache_since = before.cache_since
    if not is_same_process and not now.is_clean and now.boot_id != before.boot_id:
        cache_since = first
    return msgspec.structs.replace(
        now,
        registrations=before.registrations + 1,
        disk_since=before.disk_since,
        cache_since=cache_since,
        process_since=before.process_since if is_same_process else first,
        draining=before.draining,
    )


def member_key(node: int) -> str:
    """Where the row of a member stands."""
    return f"{MEMBERS}{node}"


def node_key(node: int) -> str:
    """Where the registration of a node stands."""
    return f"{NODES}{node}"


def number_of(key: str) -> int:
    """The node whose row stands at `key`."""
    return int(key.rpartition("/")[2])


def decode_row(entry: Entry, kind: type[T]) -> T:
    """The row of an entry. Raises StorageError."""
    try:
        return msgspec.json.decode(entry.value, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise StorageError(f"the metadata row {entry.key!r} cannot be read: {error}") from None
