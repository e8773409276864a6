"""A bound listening address, taken before anything slow starts.

Rules: binding happens once, at start, and either gives every address of the host or fails with one
clear sentence. Another module serves the sockets (`server`).
"""

from __future__ import annotations

import errno
import ipaddress
import socket

import msgspec

from onelog.base.errors import ConfigError, Conflict


class Listener(msgspec.Struct, frozen=True):
    """Bound sockets of one listener."""

    name: str
    host: str
    port: int
    """The port in use, also if the configuration says 0."""
    sockets: list[socket.socket]

    @property
    def address(self) -> str:
        """`host:port` as people write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        hosts = (sock.getsockname()[0] for sock in self.sockets)
        return all(ipaddress.ip_address(host).is_loopback for host in hosts)

    def close(self) -> None:
        """Let go of the sockets. Idempotent."""
        for sock in self.sockets:
            sock.close()


def bind(name: str, host: str, port: int) -> Listener:
    """Bind and listen on every address of `host`.

    Raises Conflict when the port is taken and ConfigError when the address cannot be used.
    """
    try:
        found = socket.getaddrinfo(
            # Both families, as two sockets: an IPv4 peer keeps its own address.
            None if host == "::" else host,
            port,
            type=socket.SOCK_STREAM,
            flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV,
        )
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"listeners.{name}.host = {host!r} cannot be resolved: {error}") from None
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in found:
            # With port 0 the first address chooses, and the others follow.
            chosen = port or (sockets[0].getsockname()[1] if sockets else 0)
            sock = _bind_one(family, kind, protocol, (address[0], chosen, *address[2:]))
            if sock is not None:
                sockets.append(sock)
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise _explain(name, host, port, error) from None
    if not sockets:
        raise ConfigError(f"listeners.{name}.host = {host!r} is not an address of this machine")
    return Listener(name, host, sockets[0].getsockname()[1], sockets)


def _bind_one(
    family: int, kind: int, protocol: int, address: tuple[str | int, ...]
) -> socket.socket | None:
    """One listening socket; None when the machine lacks the address (IPv6 switched off)."""
    try:
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return None
        raise
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
        sock.listen(1024)
    except OSError as error:
        sock.close()
        if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL:
            return None
        raise
    sock.setblocking(False)
    return sock


def _explain(name: str, host: str, port: int, error: OSError) -> ConfigError | Conflict:
    key = f"listeners.{name}.port"
    if error.errno == errno.EADDRINUSE:
        return Conflict(
            f"port {port} is taken: another program listens on {host}:{port}. "
            f"Stop it, or choose another port with --set {key}=N"
        )
    if error.errno == errno.EACCES:
        return ConfigError(f"{key} = {port} needs privileges: choose a port of 1024 or above")
    return ConfigError(f"cannot listen on {host}:{port} for {name}: {error.strerror}")
