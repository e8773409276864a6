"""Where else: the address of another node, for clients that it serves and this node does not."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from onelog.log.cluster_map import NOBODY, ClusterMap

_URLS_REMEMBERED: Final = 1000


def address_at(cluster: ClusterMap, node: int, listener: str) -> str | None:
    """The `host:port` at which clients reach a listener of another node, by the listener's name.

    None: there is no other node (nobody owns what they want, or this node does), or it has no such
    listener.
    """
    if node in (NOBODY, cluster.node):
        return None
    for place in cluster.nodes():
        if place.id == node:
            url = place.listeners.get(listener)
            return None if url is None else _address(url)
    return None


@lru_cache(_URLS_REMEMBERED)
def _address(url: str) -> str:
    return urlsplit(url).netloc
