"""How nodes know each other: certificates, a shared secret, or the same machine.

Rules:
- With certificates (mutual TLS 1.3) the common name of a node's certificate is `node-<id>`, and its
  authority signs nodes of this cluster and nobody else. Host names are not checked: the id is.
- With a shared secret both sides prove that they have it (`handshake.py`). Both ways together are
  stronger: then the proof holds for this one TLS connection only.
- With neither, only this machine is spoken to: loopback addresses and Unix sockets.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any, Final

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import ConfigError
from onelog.base.networks import is_loopback
from onelog.cluster.link.address import LinkAddress
from onelog.cluster.link.layout import LinkViolation
from onelog.net.tls import Tls, TlsSettings, mutual_context, server_context

SECRET_BYTES_MIN: Final = 16
SECRET_BYTES_MAX: Final = 4096
_NAME: Final = re.compile(r"node-(0|[1-9][0-9]{0,9})")


class LinkSecurity(msgspec.Struct, frozen=True):
    """What the links of this node use."""

    secret: bytes | None = None
    accepting: Tls | None = None
    dialling: Tls | None = None

    @property
    def is_open(self) -> bool:
        """Whether anybody who can connect is taken for a node."""
        return self.secret is None and self.accepting is None

    def allows(self, address: LinkAddress) -> bool:
        """Whether a link to this address may be made."""
        return not self.is_open or bool(address.path) or is_loopback(address.host)

    def check(self, address: LinkAddress, key: str) -> None:
        """Raises ConfigError for an address that strangers can reach while there is no
        security."""
        if not self.allows(address):
            raise ConfigError(
                f"{key} = {address.host!r} is not of this machine: links between machines need"
                " listeners.inner.tls (see `onelog cluster certs`) or listeners.inner.secret_file"
            )


def node_name(node: int) -> str:
    """The common name of a node's certificate."""
    return f"node-{node}"


def certified_node(secure: ssl.SSLObject) -> int:
    """The node that the peer's verified certificate names. Raises LinkViolation."""
    found: Any = secure.getpeercert() or {}
    names = [value for row in found.get("subject", ()) for key, value in row if key == "commonName"]
    match = _NAME.fullmatch(names[0]) if len(names) == 1 else None
    if match is None:
        raise LinkViolation(f"the certificate names no node: its common name is {names}")
    return int(match[1])


def channel_binding(secure: ssl.SSLObject) -> bytes:
    """What only this TLS connection has; the same on both sides."""
    return secure.get_channel_binding("tls-unique") or b""


def mutual_tls(
    cert_file: str, key_file: str, ca_file: str, clock: Clock, name: str
) -> tuple[Tls, Tls]:
    """The TLS of those who dial us and of our own dialling. Raises ConfigError."""
    settings = TlsSettings(
        cert_file=cert_file, key_file=key_file, client_ca_file=ca_file, client_cert="required",
        version_min="1.3",
    )  # fmt: skip
    return Tls(settings, clock, name, server_context), Tls(settings, clock, name, mutual_context)


def read_secret(file: str, key: str) -> bytes:
    """The shared secret in a file, without white space around it. Raises ConfigError."""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{key} = {file!r} cannot be read: {error.strerror}") from None
    if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
        raise ConfigError(
            f"{key} = {file!r} holds {len(secret)} bytes: a secret has {SECRET_BYTES_MIN} to"
            f" {SECRET_BYTES_MAX}; make one with `openssl rand -hex 32`"
        )
    return secret
