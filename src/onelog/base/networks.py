"""Networks as operators list them, and where an address lies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from onelog.base.errors import ConfigError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_networks(key: str, texts: Iterable[str]) -> tuple[Network, ...]:
    """The networks of a configuration key. Raises ConfigError."""
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}; write networks such as 10.0.0.0/8") from None


def is_within(networks: Iterable[Network], host: str) -> bool:
    """Whether an address is in one of the networks. Raises ValueError for what is no address.

    On a socket of both families an IPv4 peer has an IPv6 address: it counts as what it is, too.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return any(address in network or (mapped or address) in network for network in networks)


def is_loopback(host: str) -> bool:
    """Whether `host` is `localhost` or an address of this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
