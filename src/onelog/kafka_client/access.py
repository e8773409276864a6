"""Where the broker is and how one gets in: addresses, TLS, login.

Rules: an `Access` is plain values, so that it travels to executors with a task. A password is
never shown: not in a repr, not in an error. TLS is imported by who uses it: a command of a moment
mostly does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from onelog.base.errors import ConfigError

if TYPE_CHECKING:
    import ssl

PORT: Final = 9092
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

Address = tuple[str, int]


def parse_servers(text: str, named: str = "option servers") -> tuple[Address, ...]:
    """`host:port,host` as addresses; the port of Kafka where none is given."""
    found = []
    for part in (piece.strip() for piece in text.split(",")):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(PORT)
        host = host.strip("[]")
        if not host or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ConfigError(f"{named}: {part!r} is not host:port")
        found.append((host, int(port)))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Access:
    """How to reach the broker's Kafka listener."""

    servers: tuple[Address, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    mechanism: str = "PLAIN"
    tls: bool = False
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True
    timeout_s: float = 60.0
    """How long a broker that is away is looked for before a call fails; 0: one try."""
    connect_s: float = 10.0
    answer_s: float = 30.0
    """How long a broker may take to answer, beside what the request itself waits."""
    client_id: str = "onelog"
    """Sent with every request; the broker shows it in its log."""
    ca_named: str = "option tls.ca:"
    """What the user calls `ca_file`, for errors."""

    @property
    def who(self) -> str:
        """Who asks, as rules name users."""
        if self.user:
            return f"user {self.user}"
        return "the client certificate's user" if self.cert_file else "anonymous"

    def __str__(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.servers)

    def context(self) -> ssl.SSLContext:
        """The TLS context that the options describe. Raises ConfigError."""
        import ssl  # noqa: PLC0415

        try:
            context = ssl.create_default_context(cafile=self.ca_file or None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{self.ca_named} {self.ca_file}: {error}") from error
        context.check_hostname = self.check_hostname
        if self.cert_file:
            try:
                context.load_cert_chain(
                    self.cert_file, self.key_file or None, self.key_password or None
                )
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(f"option tls.cert: {self.cert_file}: {error}") from error
        return context
