"""Whether a data directory and an etcd belong together; looked at before anything is opened.

Rules:
- Data that the metadata does not name, or metadata whose data is not here, is never taken for a
  new node (I9): the start is refused, with words.
- The first node makes the cluster's row. Any other node with an empty data directory joins it.
- A data directory that is empty in place of the one a node had is taken only when its operator says
  so (`is_replaced`): everything that was only on the old one is gone then, and counts as gone.
- An etcd that knows less of this node than the node itself was emptied, or restored from an old
  copy.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import msgspec

from onelog.base.errors import ConfigError, StorageError
from onelog.cluster.identity import NodeIdentity, load_identity, new_identity, save_identity
from onelog.cluster.link.hello import VERSIONS
from onelog.cluster.node_rows import (
    CLUSTER,
    FORMAT,
    MEMBERS,
    ClusterMember,
    ClusterRow,
    decode_row,
    member_key,
    number_of,
)
from onelog.metadata.once import written_once
from onelog.metadata.store import MetadataStore

LOCAL_FILE = "metadata.db"


async def join(
    store: MetadataStore, data_dir: Path, node: int, *, is_replaced: bool = False
) -> tuple[ClusterRow, NodeIdentity]:
    """Look whether this node may serve this cluster. Raises ConfigError, StorageError."""
    identity = await asyncio.to_thread(_own, data_dir)
    row = await _cluster(store, identity, node)
    if identity.cluster_id not in ("", row.id):
        raise StorageError(
            f"the data in {data_dir} belongs to cluster {identity.cluster_id}, and etcd holds"
            f" cluster {row.id}: check cluster.etcd.endpoints, cluster.name and data_dir"
        )
    entry = await store.get(member_key(node))
    if entry is not None:
        found = decode_row(entry, ClusterMember)
        is_new_disk = found.data_uuid != identity.data_uuid and not identity.registrations
        if not (is_new_disk and is_replaced):
            _check_member(found, identity, data_dir, node)
    elif identity.registrations:
        raise StorageError(_forgot(data_dir, node))
    if not identity.cluster_id:
        identity = msgspec.structs.replace(identity, cluster_id=row.id)
        await asyncio.to_thread(save_identity, data_dir, identity)
    return row, identity


async def check_store(store: MetadataStore, node: int, *, has_store: bool) -> None:
    """Raise ConfigError where two nodes would write the history of one stream to a store."""
    for entry in (await store.range(MEMBERS)).entries:
        other = number_of(entry.key)
        if other != node and (has_store or decode_row(entry, ClusterMember).has_store):
            whose = "this node has" if has_store else f"node {other} has"
            raise ConfigError(
                f"{whose} an object store (store.url), and a cluster of several nodes cannot write"
                " history there yet: leave store.url out, or keep the cluster at one node"
            )


def _own(data_dir: Path) -> NodeIdentity:
    """The identity of the data directory, which is made if there is no data yet."""
    if (data_dir / LOCAL_FILE).exists():
        raise ConfigError(
            f"cluster.mode = 'etcd', but {data_dir / LOCAL_FILE} holds the metadata of a node on"
            " its own: move it with `onelog cluster init`, or choose an empty data directory"
        )
    identity = load_identity(data_dir)
    if identity is not None:
        return identity
    if any(next((data_dir / name).glob(rows), None) for name, rows in _DATA):
        raise StorageError(
            f"there is data in {data_dir}, and neither a metadata.db nor a node.json that says what"
            " it is: restore it from a backup, or choose an empty data directory"
        )
    identity = new_identity()
    save_identity(data_dir, identity)
    return identity


_DATA = (("segment", "*/*"), ("kv", "*"))


async def _cluster(store: MetadataStore, identity: NodeIdentity, node: int) -> ClusterRow:
    entry = await store.get(CLUSTER)
    if entry is not None:
        row = decode_row(entry, ClusterRow)
    elif identity.cluster_id:
        raise StorageError(
            f"etcd holds nothing of cluster {identity.cluster_id}, which this node's data belongs"
            " to: it was emptied, or it is another etcd. Restore it, or check"
            " cluster.etcd.endpoints and cluster.name"
        )
    else:
        new = ClusterRow(id=uuid.uuid4().hex, owner=node, version=VERSIONS[1])
        made = msgspec.json.encode(new)
        row = msgspec.json.decode(await written_once(store, CLUSTER, made), type=ClusterRow)
    if row.format > FORMAT:
        raise ConfigError(
            f"the cluster in etcd has format {row.format}, and this version knows {FORMAT}: use a"
            " newer version of OneLog"
        )
    if not VERSIONS[0] <= row.version <= VERSIONS[1]:
        raise ConfigError(
            f"the nodes of the cluster speak the inner version {row.version} (`onelog cluster"
            f" finalize`), and this release speaks {VERSIONS[0]} to {VERSIONS[1]}: use a release of"
            " OneLog that the other nodes run"
        )
    return row


def _check_member(row: ClusterMember, identity: NodeIdentity, data_dir: Path, node: int) -> None:
    if row.data_uuid != identity.data_uuid:
        raise StorageError(
            f"node {node} registered with other data than {data_dir} holds: use the right data_dir."
            " If that data is gone for good, start once with node.replaced = true: this node then"
            " copies everything from the others, and what only it had is lost"
        )
    if row.registrations < identity.registrations:
        raise StorageError(_forgot(data_dir, node))


def _forgot(data_dir: Path, node: int) -> str:
    return (
        f"etcd knows less of node {node} than the node itself ({data_dir}/node.json): it was"
        " restored from an old copy, and what the cluster decided since is gone. Restore a newer"
        " copy"
    )
