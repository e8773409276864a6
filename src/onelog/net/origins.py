"""Which web pages may open a WebSocket.

A browser sends the page's Origin with every WebSocket, and no page can change it; a program sends
none, or any. So the check keeps out pages, not programs.

Rules: a page of a configured origin may connect. Any other page is foreign, except one that was
loaded from the very host and port that it connects to. If the listener needs no credentials, that
host must not be a name: a name that its owner points at this machine for a moment (DNS rebinding)
would make a foreign page look like one of ours. An address and `localhost` cannot be pointed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

ANY: Final = "*"
"""As a configured origin: every page may connect."""


def may_connect(
    found: Sequence[str], hosts: Sequence[str], origins: Sequence[str], *, trusts_names: bool
) -> bool:
    """Whether a request comes from a program, or from a page that may connect.

    `found` and `hosts` are the values of its headers Origin and Host, one of each in order.
    """
    if not found or ANY in origins:
        return True
    if len(found) > 1 or len(hosts) != 1:
        return False
    if found[0] in origins:
        return True
    usual_port = 443 if found[0].startswith("https:") else 80
    page = _host_and_port(found[0], usual_port)
    here = _host_and_port(f"//{hosts[0]}", usual_port)
    return page is not None and page == here and (trusts_names or _is_fixed(page[0]))


def _host_and_port(url: str, usual_port: int) -> tuple[str, int] | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return (parts.hostname, port or usual_port) if parts.hostname else None


def _is_fixed(host: str) -> bool:
    """Whether a host cannot be pointed somewhere else: an address, or `localhost`."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
