"""Where else: what other nodes serve and this node does not, for clients that ask here."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from onelog.base.errors import InvalidRequest
from onelog.log.cluster_map import NOBODY, ClusterMap

if TYPE_CHECKING:
    from onelog.broker.broker import Broker

_URLS_REMEMBERED: Final = 1000
_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - it is told to nobody


def address_at(cluster: ClusterMap, node: int, listener: str) -> str | None:
    """The `host:port` at which clients reach a listener of another node, by the listener's name.

    None: there is no other node (nobody owns what they want, or this node does), it has no such
    listener, or the listener binds every address and says none (`advertised`).
    """
    if node in (NOBODY, cluster.node):
        return None
    for place in cluster.nodes():
        if place.id == node:
            url = place.listeners.get(listener)
            return None if url is None else _address(url)
    return None


def check_here(broker: Broker, text: str) -> None:
    """Raise InvalidRequest where this node has no copy for good of a partition whose records match
    a filter.

    Whoever followed the filter here would miss these records and not know it (I9).
    """
    source = next(broker.cursors.elsewhere(text), None)
    if source is None:
        return
    cluster, place = broker.cluster, f"{source.stream.name}/{source.partition.id}"
    nodes = cluster.replicas(source.stream.record.id, source.partition).replicas
    wanted = ",".join(str(node) for node in (*nodes, cluster.node))
    raise InvalidRequest(
        f"node {cluster.node}, which serves this client, has no copy of {place}, where records of"
        f" {text[:60]} lie: give it one with `onelog cluster reassign {place} --to {wanted}`"
    )


@lru_cache(_URLS_REMEMBERED)
def _address(url: str) -> str | None:
    parts = urlsplit(url)
    return None if parts.hostname in _EVERYWHERE else parts.netloc
