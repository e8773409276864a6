"""Who a web server without credentials may be asked by: programs of this machine."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Final

_HOST_CHARS_MAX: Final = 300


def names_loopback(host: str) -> bool:
    """Whether a Host header is this machine's own name for itself.

    Without this a web page could point a name of its own at 127.0.0.1 and read the answers in the
    visitor's browser (DNS rebinding).
    """
    if len(host) > _HOST_CHARS_MAX:
        return False
    return _is_loopback(host)


@lru_cache(64)
def _is_loopback(host: str) -> bool:
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
