"""The ports of the listeners, and what others can reach by them.

Rule: a look binds a port and does not listen, so a broker that starts at the same moment gets it.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from onelog.base.networks import is_loopback
from onelog.cli.doctor.findings import Finding
from onelog.config.listeners import InnerListener, Listeners
from onelog.config.model import Security

_LISTEN: Final = "0A"
"""A state in /proc/net/tcp."""


def look(
    listeners: Listeners, security: Security, holder: int | None, *, is_clustered: bool = False
) -> list[Finding]:
    """Every listener that starts."""
    found: list[Finding] = []
    for name, row in enabled(listeners, is_clustered=is_clustered):
        found += judge_port(name, row.host, row.port, bind_error(row.host, row.port), holder)
        found += judge_exposure(name, row.host, security.anonymous, has_tls=hasattr(row, "tls"))
        found += judge_advertised(name, getattr(row, "advertised", ""))
    return found


def enabled(listeners: Listeners, *, is_clustered: bool = False) -> Iterator[tuple[str, Any]]:
    """The listeners of a port that start, by name."""
    for name, row in msgspec.structs.asdict(listeners).items():
        is_inner = isinstance(row, InnerListener)
        if is_clustered and not row.socket if is_inner else row.enabled:
            yield name, row


def bind_error(host: str, port: int) -> int:
    """Why a port cannot be bound, as errno; 0: it can."""
    try:
        family, kind, number, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror:
        return errno.EADDRNOTAVAIL
    with socket.socket(family, kind, number) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            return error.errno or errno.EINVAL
    return 0


def judge_port(name: str, host: str, port: int, wrong: int, holder: int | None) -> list[Finding]:
    """Whether the listener gets its port."""
    place = f"{name}: {host}:{port}"
    key = f"listeners.{name}"
    if wrong == 0:
        return [Finding("ok", "ports", f"{place} is free")]
    if wrong == errno.EADDRINUSE:
        owners = owners_of(port)
        if holder is not None and (holder in owners or not owners):
            return [Finding("ok", "ports", f"{place} is that of the running broker")]
        whose = "".join(f" by {program_of(pid)} (pid {pid})" for pid in sorted(owners)[:1])
        do = f"end that program, or choose another port: --set {key}.port=NUMBER"
        return [Finding("error", "ports", f"{place} is in use{whose}", do)]
    if wrong == errno.EACCES:
        told = f"{place} is a port that only root may bind"
        return [Finding("error", "ports", told, f"choose a port above 1023 with {key}.port")]
    if wrong == errno.EADDRNOTAVAIL:
        told = f"{place} is no address of this machine"
        return [Finding("error", "ports", told, f"set {key}.host to 0.0.0.0, or to an own address")]
    return [Finding("error", "ports", f"{place} cannot be bound: errno {wrong}", f"change {key}")]


def judge_exposure(name: str, host: str, anonymous: str, *, has_tls: bool) -> list[Finding]:
    """What peers of other machines can see and do."""
    if is_loopback(host):
        return []
    found = []
    if anonymous == "always":
        told = f"{name} at {host}: everybody who reaches it may read and write everything"
        do = "set security.anonymous to loopback, and make users: onelog user add NAME"
        found.append(Finding("warning", "security", told, do))
    if not has_tls:
        told = f"{name} at {host} has no TLS: messages and passwords cross the network readable"
        do = f"enable listeners.{name}_tls with a certificate, or keep it inside a private network"
        found.append(Finding("warning", "security", told, do))
    return found


def judge_advertised(name: str, address: str) -> list[Finding]:
    """Kafka clients and other nodes go where the broker sends them."""
    if not address or address.startswith("unix:"):
        return []
    host = address.rpartition(":")[0].strip("[]")
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        told = f"listeners.{name}.advertised = {address!r}: this machine cannot resolve the name"
        do = "set it to a name or address by which others reach the broker"
        return [Finding("warning", "ports", told, do)]
    return []


def owners_of(port: int) -> set[int]:
    """The processes that listen on a port, as far as this user may know."""
    nodes = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for cells in map(str.split, rows):
            if cells[3] == _LISTEN and int(cells[1].rpartition(":")[2], 16) == port:
                nodes.add(f"socket:[{cells[9]}]")
    return {pid for pid in _processes() if nodes & _sockets_of(pid)} if nodes else set()


def _processes() -> Iterator[int]:
    try:
        yield from [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    except OSError:
        return


def _sockets_of(pid: int) -> set[str]:
    found = set()
    try:
        for path in Path(f"/proc/{pid}/fd").iterdir():
            found.add(str(path.readlink()))
    except OSError:
        pass  # it ended, or belongs to somebody else
    return found


def program_of(pid: int) -> str:
    """The name of a process."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "a process"
