"""Moves the metadata of a node on its own into etcd: the node becomes the first of a cluster.

Rules:
- The cluster's row is written last. Until then nothing in etcd counts, and the move can be done
  again from the start; after that only the file is left to be put aside.
- Keys that are there already must be those of an attempt before: nothing is written over (I9).
- The file is kept under another name.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import AlreadyExists, ConfigError
from onelog.cluster.identity import NodeIdentity, load_identity, new_identity, save_identity
from onelog.cluster.joining import LOCAL_FILE
from onelog.cluster.node_rows import CLUSTER, MEMBERS, ClusterRow, decode_row
from onelog.cluster.rows import CONTROLLER, NODES
from onelog.metadata.store import Entry, MetadataStore, Put

MOVED: Final = f"{LOCAL_FILE}.moved"


class MovedMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """What was moved."""

    cluster_id: str
    rows: int
    """Rows that etcd has of this node now."""


async def move_metadata(
    local: MetadataStore, etcd: MetadataStore, data_dir: Path, node: int
) -> MovedMetadata:
    """Copy every row into etcd, then make the cluster. Raises AlreadyExists when etcd holds other
    rows, ConfigError when it holds another cluster. The caller puts the file aside."""
    identity = await asyncio.to_thread(_identity, data_dir)
    rows = [row for row in (await local.range("")).entries if not row.lease and _is_moved(row.key)]
    found = await etcd.get(CLUSTER)
    if found is None:
        await _check_same(etcd, rows)
        await etcd.write([Put(row.key, row.value) for row in rows])
        made = ClusterRow(id=identity.cluster_id, owner=node)
        await etcd.put(CLUSTER, msgspec.json.encode(made))
    elif decode_row(found, ClusterRow) != ClusterRow(id=identity.cluster_id, owner=node):
        raise ConfigError(
            "etcd holds another cluster of this name already: choose another cluster.name"
        )
    return MovedMetadata(cluster_id=identity.cluster_id, rows=len(rows))


def _is_moved(key: str) -> bool:
    """Rows of nodes are in a copy of another cluster, and mean nothing here."""
    return key not in (CLUSTER, CONTROLLER) and not key.startswith((MEMBERS, NODES))


def put_aside(data_dir: Path) -> None:
    """The file is no longer what counts. Blocks."""
    (data_dir / LOCAL_FILE).replace(data_dir / MOVED)
    for name in ("-wal", "-shm"):
        (data_dir / f"{LOCAL_FILE}{name}").unlink(missing_ok=True)


def _identity(data_dir: Path) -> NodeIdentity:
    """With the id of the cluster that is made: an attempt that is done again makes the same."""
    found = load_identity(data_dir) or new_identity()
    if not found.cluster_id:
        found = msgspec.structs.replace(found, cluster_id=uuid.uuid4().hex)
        save_identity(data_dir, found)
    return found


async def _check_same(etcd: MetadataStore, rows: list[Entry]) -> None:
    ours = {row.key: row.value for row in rows}
    there = (await etcd.range("")).entries
    other = [row.key for row in there if ours.get(row.key) != row.value]
    if other:
        raise AlreadyExists(
            f"etcd holds rows under this cluster's name that are not this node's, such as"
            f" {other[0]!r}: choose another cluster.name, or empty it first"
        )
